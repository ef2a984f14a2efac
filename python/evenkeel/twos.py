"""Two micro-batches, A and B, that go through layers together: one is computed while the other's all-to-alls are
on the wire. A is first in both directions, as plans with two_batch_overlap are priced; autograd's order would
have the backward in a mirror, so that the attentions' steps are taken here. B's ring follows A's or, where the
plan weaves that direction, they take turns step by step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional, Protocol, Sequence

import torch
from torch import Tensor

from .meter import Trace
from .split import Steps

Begin = Callable[[Tensor, Tensor, Tensor], Steps]  # of q, k and v of one sequence


class Kept(Protocol):
    """What is kept of what came before a layer's attention."""

    @property
    def heads(self) -> Sequence[Tensor]:
        """q, k, v."""


class Ends(Protocol):
    """What is around the attentions of layers; whole.Linear is."""

    def before(self, i: int, x: Any) -> Kept:
        """q, k and v of layer i, of its input."""

    def after(self, i: int, kept: Any, out: Tensor) -> Any:
        """The layer's output, of the attention's."""

    def after_back(self, i: int, kept: Any, dy: Any) -> Tensor:
        """The gradient of the attention's output, of that of the layer's."""

    def before_back(self, i: int, kept: Any, grads: Sequence[Tensor], dy: Any) -> Any:
        """The gradient of the layer's input, of those of q, k and v."""

    def clear(self, i: int) -> None:
        """Drops the gradients of the layer's weights."""


@dataclass
class Heads:
    """q, k, v."""

    heads: tuple[Tensor, Tensor, Tensor]


class Nothing:
    """Ends without linear parts, of attentions one after the other: all have the same q, k and v, and the same
    gradient of their output. Gives no gradient of the input."""

    def before(self, i: int, x: tuple[Tensor, Tensor, Tensor]) -> Heads:
        """See Ends."""
        return Heads(x)

    def after(self, i: int, kept: Heads, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See Ends."""
        return kept.heads

    def after_back(self, i: int, kept: Heads, dy: Tensor) -> Tensor:
        """See Ends."""
        return dy

    def before_back(self, i: int, kept: Heads, grads: Sequence[Tensor], dy: Tensor) -> Tensor:
        """See Ends."""
        return dy

    def clear(self, i: int) -> None:
        """See Ends."""


class Pair:
    """Layers one after the other over one rank's tokens of two sequences of a plan, forward and then backward,
    as whole.Stack has them of one. All ranks of the plan take part, those without tokens too."""

    def __init__(
        self, layers: int, ends: Ends, begin: Begin, recompute: bool, trace: Optional[Trace] = None,
        dropped: bool = False,
    ) -> None:
        """begin: makes an attention. Spans are of the trace's micro-batches 0, which is A, and 1. dropped: what
        A leaves at weights is dropped before B gets there, and never added to, in no span; what is at the
        weights in the end is then of no use."""
        self._layers, self._ends, self._begin = layers, ends, begin
        self._recompute, self._trace, self._dropped = recompute, trace, dropped
        self._kept: list[Any] = []  # by layer: of both what _forward has, or with recompute the input

    def forward(self, a: Any, b: Any) -> tuple[Any, Any]:
        """The last layer's outputs, of the first one's inputs as the ends take them."""
        self._kept, xs = [], (a, b)
        for i in range(self._layers):
            self._at(i, False)
            with torch.set_grad_enabled(not self._recompute):
                both, ys = self._forward(i, xs)
            self._kept.append(xs if self._recompute else both)
            xs = ys
        return xs

    def backward(self, a: Any, b: Any) -> tuple[Any, Any]:
        """The gradients of the first layer's inputs, of those of the last one's outputs."""
        dys = a, b
        for i in reversed(range(self._layers)):
            both = self._kept.pop()
            if self._recompute:
                self._at(i, True)
                both, _ = self._forward(i, both)
            self._at(i, False)
            dys = self._backward(i, both, dys)
        return dys

    def clear(self) -> None:
        """Drops gradients and whatever a step has left."""
        self._kept = []
        for i in range(self._layers):
            self._ends.clear(i)

    def _forward(self, i: int, xs: tuple[Any, Any]) -> tuple[list[tuple[Kept, Steps]], tuple[Any, Any]]:
        """What either keeps for its backward, and their outputs."""
        both: list[tuple[Kept, Steps]] = []
        for mb, x in enumerate(xs):
            self._of(mb)
            kept = self._ends.before(i, x)
            q, k, v = kept.heads
            both.append((kept, self._begin(q, k, v)))
            both[mb][1].leave()
        (_, a), (_, b) = both
        if a.plan.weave_forward:
            a.attend(b)
        else:
            a.attend()
            b.attend()
        ys = []
        for mb, (kept, steps) in enumerate(both):
            self._of(mb)
            ys.append(self._ends.after(i, kept, steps.arrive(torch.is_grad_enabled())))
        return both, (ys[0], ys[1])

    def _backward(self, i: int, both: list[tuple[Kept, Steps]], dys: tuple[Any, Any]) -> tuple[Any, Any]:
        (_, a), (_, b) = both
        a.begin_back()  # B's first keys leave when A's ring is over, or with woven rings before it begins
        for mb, (kept, steps) in enumerate(both):
            self._of_weights(i, mb)
            steps.leave_back(self._ends.after_back(i, kept, dys[mb]))
        if a.plan.weave_backward:
            a.attend_back(b)
        else:
            a.attend_back()
            b.attend_back()
        dxs = []
        for mb, (kept, steps) in enumerate(both):
            grads = steps.arrive_back()
            self._of_weights(i, mb)
            dxs.append(self._ends.before_back(i, kept, grads, dys[mb]))
        return dxs[0], dxs[1]

    def _of(self, mb: int) -> None:
        if self._trace is not None:
            self._trace.mb = mb

    def _of_weights(self, layer: int, mb: int) -> None:
        self._of(mb)
        if mb and self._dropped:
            self._ends.clear(layer)

    def _at(self, layer: int, again: bool) -> None:
        if self._trace is not None:
            self._trace.layer, self._trace.again = layer, again
