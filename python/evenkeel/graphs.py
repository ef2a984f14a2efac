"""Blocks of any kind with autograd, one after the other, each a graph of its own.

So a block's backward pass is over when its gradients are wanted: they may travel while those before it are computed.
"""

from __future__ import annotations

from functools import partial
from typing import Callable, Optional, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Block = Callable[[Tensor], Tensor]
# Runs a block's backward pass, which is given, by the block's place among the others.
Around = Callable[[int, Callable[[], None]], None]


class Blocks:
    """Those of one pass: the first `again` of them are computed again in the backward pass, with the same random
    numbers and under the same autocast."""

    def __init__(
        self, blocks: Sequence[Block], again: int, around: Around = lambda _, backward: backward(),
        name: Callable[[int], str] = "blocks[{}]".format,
    ) -> None:
        """name: of a block, by its place, for errors."""
        self._blocks, self._again, self._around, self._name = blocks, again, around, name
        self._kept: list[tuple[Tensor, Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        """The last block's result. ValueError for one of another shape, dtype or device than x."""
        for i, block in enumerate(self._blocks):
            x = x.detach().requires_grad_()
            again = i < self._again
            y = checkpoint(partial(_with_graph, block), x, use_reentrant=True) if again else block(x)
            if again:
                # Of weights that autocast has cast without a graph: later blocks would have no gradient of them.
                torch.clear_autocast_cache()
            fitting(y, x, f"{self._name(i)}: its result")
            self._kept.append((x, y))
            x = y
        return x

    def backward(self, dy: Tensor) -> Tensor:
        """The gradient of x, of that of the result."""
        for i in reversed(range(len(self._blocks))):
            x, y = self._kept.pop()
            self._around(i, partial(back, y, dy))
            dy = torch.zeros_like(x) if x.grad is None else x.grad
        return dy


def _with_graph(block: Block, x: Tensor) -> Tensor:
    """A block's result, as checkpoint wants it where it is computed again: one that is of nothing that has gradients
    is a leaf."""
    y = block(x)
    return y if y.requires_grad or not torch.is_grad_enabled() else y.detach().requires_grad_()


def back(y: Tensor, dy: Optional[Tensor] = None) -> None:
    """A backward pass from y, if it is of anything that has gradients. Every operator has the precision of its forward
    pass, where autocast around both would choose anew."""
    if y.requires_grad:
        with torch.autocast(y.device.type, enabled=False):
            torch.autograd.backward(y, dy)


def fitting(x: Tensor, like: Tensor, what: str) -> None:
    """Raises ValueError for a tensor that is not like another in shape, dtype and device: others have made room for
    that."""
    if not isinstance(x, Tensor):
        raise ValueError(f"{what}: {type(x).__name__}: want a tensor")
    for name in ("shape", "dtype", "device"):
        has, want = getattr(x, name), getattr(like, name)
        if has != want:
            out = "; its loader takes another dtype" if name == "dtype" else ""
            raise ValueError(f"{what}: {name} {has}: want {want}, as the plan was loaded for{out}")
