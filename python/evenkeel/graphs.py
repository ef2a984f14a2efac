"""Blocks of any kind with autograd, one after the other, each a graph of its own.

So a block's backward pass is over when its gradients are wanted: they may travel while those before it are computed.
"""

from __future__ import annotations

from functools import partial
from typing import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Block = Callable[[Tensor], Tensor]
# Runs a block's backward pass, which is given, by the block's place among the others.
Around = Callable[[int, Callable[[], None]], None]


class Blocks:
    """Those of one pass: the first `again` of them are computed again in the backward pass, with the same random
    numbers and under the same autocast."""

    def __init__(self, blocks: Sequence[Block], again: int, around: Around = lambda _, backward: backward()) -> None:
        self._blocks, self._again, self._around = blocks, again, around
        self._kept: list[tuple[Tensor, Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        """The last block's result. ValueError for one of another shape, dtype or device than x."""
        for i, block in enumerate(self._blocks):
            x = x.detach().requires_grad_()
            y = checkpoint(block, x, use_reentrant=True) if i < self._again else block(x)
            if i < self._again:
                # Of weights that autocast has cast without a graph: later blocks would have no gradient of them.
                torch.clear_autocast_cache()
            fitting(y, x, f"blocks[{i}]: its result")
            self._kept.append((x, y))
            x = y
        return x

    def backward(self, dy: Tensor) -> Tensor:
        """The gradient of x, of that of the result."""
        for i in reversed(range(len(self._blocks))):
            x, y = self._kept.pop()
            self._around(i, partial(torch.autograd.backward, y, dy))
            dy = torch.zeros_like(x) if x.grad is None else x.grad
        return dy


def fitting(x: Tensor, like: Tensor, what: str) -> None:
    """Raises ValueError for a tensor that is not like another in shape, dtype and device: others have made room for
    that."""
    for name in ("shape", "dtype", "device"):
        has, want = getattr(x, name), getattr(like, name)
        if has != want:
            raise ValueError(f"{what}: {name} {has}: want {want}, as the plan was loaded for")
