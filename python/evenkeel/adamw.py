"""AdamW over one flat tensor (Loshchilov and Hutter 2019, algorithm 2), as it is measured: the library's fused update
where there is one for the device, else five passes. The constants are those of what is measured."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

LR, BETA1, BETA2, EPS, WEIGHT_DECAY = 1e-4, 0.9, 0.95, 1e-8, 0.1


class AdamW:
    """The optimizer of parameters, with moments of their size. All tensors are float32 and of one dimension."""

    def __init__(self, params: Tensor, grads: Tensor) -> None:
        """params: what is updated in place. grads: where their gradients are, whenever step is called."""
        self.params, self.grads, self.steps = params, grads, 0
        self.moment1, self.moment2 = torch.zeros_like(params), torch.zeros_like(params)
        self._fused = _fused(params.device)
        # What the passes need beside, as the measured ones do.
        self._room = torch.empty_like(params) if self._fused is None else params[:0]

    def step(self) -> None:
        """One update."""
        self.steps += 1
        if self._fused is not None:
            self._fused(self.params, self.grads, self.moment1, self.moment2, self.steps)
            return
        unbias1, unbias2 = 1 / (1 - BETA1 ** self.steps), 1 / (1 - BETA2 ** self.steps)
        m, v, g, room = self.moment1, self.moment2, self.grads, self._room
        m.lerp_(g, 1 - BETA1)
        v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
        torch.sqrt(v, out=room).mul_(unbias2 ** 0.5).add_(EPS)
        self.params.mul_(1 - LR * WEIGHT_DECAY).addcdiv_(m, room, value=-LR * unbias1)


# Of parameters, gradients, moments, and which step it is.
Update = Callable[[Tensor, Tensor, Tensor, Tensor, int], None]


def _fused(device: torch.device) -> Optional[Update]:
    """The library's update, None where this release has none for the device: it is tried on a few elements, because
    a failure half way would leave the state changed."""
    fused: Any = getattr(torch, "_fused_adamw_", None)
    if fused is None:
        return None

    def update(p: Tensor, g: Tensor, m: Tensor, v: Tensor, steps: int) -> None:
        step = torch.full((), float(steps), device=p.device)
        fused([p], [g], [m], [v], [], [step], amsgrad=False, maximize=False, lr=LR, beta1=BETA1, beta2=BETA2,
              weight_decay=WEIGHT_DECAY, eps=EPS)

    try:
        p, g, m, v = (torch.ones(4, device=device) for _ in range(4))
        update(p, g, m, v, 1)
    except (RuntimeError, TypeError):
        return None
    return update
