"""The step of one plan that is timed: its layers, or its attentions alone, forward and then backward; of a
plan of batches that of every micro-batch in turn. Where a plan of the request has its micro-batches in twos,
the step of every one is two of them, one after the other or together, so that plans can be compared.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from .compare import Checking, Inputs, checked
from .drawn import DTYPES
from .frames import Place
from .kernels import Kernel
from .loss import Loss, compared, loss_of
from .meter import timed
from .parts import Part, Work
from .record import Recorder
from .request import Request
from .split import Steps
from .tokens import positions
from .twos import Nothing, Pair
from .whole import Layers, Linear, Stack, angles


class Lap:
    """A rank's work in one micro-batch, or in two that go together: forward and backward over its tokens."""

    def __init__(
        self, part: Part, rank: int, asked: Request, inputs: Inputs, kernel: Kernel, layers: Optional[Layers],
        trace: Recorder, device: torch.device, together: bool = False, loss: Optional[Loss] = None,
    ) -> None:
        self._part, place, self._together = part, part.ranks.index(rank), together
        self._loss, self._trace = loss, trace
        plan, own, recompute = part.plan, positions(part.plan, place), part.recompute

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return part.attention(rank, (q, k, v), kernel, trace=trace)

        def begin(q: Tensor, k: Tensor, v: Tensor) -> Steps:
            return part.steps(rank, (q, k, v), kernel, trace=trace)

        self._stack: Any
        if asked.parts == "attention":
            self._stack = Bare(attend, asked.layers, recompute, trace)
            if together:
                self._stack = Pair(asked.layers, Nothing(), begin, recompute, trace)
            self._inputs = tuple(inputs.heads(n, own) for n in ("q", "k", "v", "dout"))
            return
        assert layers is not None
        model, of = layers.model, layers.at(0, asked.layers)
        tables = angles(positions(plan, place, part.docs), model.rotary, DTYPES[plan.dtype], device)
        if together:
            # Gradients of weights are not added up, as no price has that in it.
            self._stack = Pair(len(of), Linear(of, tables, trace), begin, recompute, trace, dropped=True)
        else:
            again = len(of) if recompute else 0
            self._stack = Stack(of, lambda _, *heads: attend(*heads), tables, again, trace)
        self._inputs = tuple(inputs.wide(n, own, model.hidden) for n in ("x", "dy"))

    def clear(self) -> None:
        """Leaves nothing of the last time."""
        self._stack.clear()

    def run(self) -> None:
        """Once."""
        *first, last = self._inputs
        with self._part.named():
            if self._together:
                x = first[0] if len(first) == 1 else tuple(first)
                self._stack.forward(x, x)
                self._stack.backward(last, last)
            else:
                y = self._stack.forward(*first)
                self._stack.backward(last if self._loss is None else self._loss.gradient(y, self._trace))


class Course:
    """One plan as it is timed; in_twos: a step is two micro-batches, of the one that a plan of one sequence
    has."""

    def __init__(self, work: Work, asked: Request, in_twos: bool = False) -> None:
        self.work, self.asked, self._in_twos = work, asked, in_twos
        self._laps: list[Optional[Lap]] = []

    def checked(self, of: Checking) -> tuple[dict[str, Any], dict[str, Any]]:
        """See compare."""
        entry, exact = checked(self.work, of)
        if self.work.lost is not None:
            entry["loss"] = compared(self.work.lost, range(of.meeting.world.size), of)
        return entry, exact

    def prepare(
        self, rank: int, inputs: Inputs, kernel: Kernel, layers: Optional[Layers], trace: Recorder,
        device: torch.device,
    ) -> None:
        """Makes inputs and layers."""
        self._trace, together = trace, self.work.in_twos
        loss = None
        if self.work.lost is not None:
            assert layers is not None
            loss = loss_of(self.work.lost, layers.model, device)
        made = (rank, self.asked, inputs, kernel, layers, trace, device, together, loss)
        self._laps = [Lap(part, *made) if part else None for part in self.work.own(rank)]
        if self._in_twos and not together:
            self._laps *= 2

    def clear(self) -> None:
        """Leaves nothing of the last step."""
        for lap in self._laps:
            if lap:
                lap.clear()

    def run(self, meet: Callable[[], None], place: Place) -> None:
        """One step. Micro-batches leave no gradient for the next one to be added to, as no price has that in
        it; the ranks of a plan of batches meet after each."""
        several = self.work.batched or self._in_twos
        for i, lap in enumerate(self._laps):
            self._trace.mb = i
            if several:
                place.mb = i
            if lap:
                lap.run()
                if several:
                    lap.clear()
            if self.work.batched:
                self._trace.layer = 0
                with timed(self._trace, "bwd", 0, "meet"):
                    meet()
        self._trace.mb = 0


class Bare:
    """Attentions without layers around them, each of the same q, k and v; as whole.Stack."""

    def __init__(self, attend: Any, layers: int, recompute: bool, trace: Recorder) -> None:
        self._attend, self._layers, self._recompute, self._trace = attend, layers, recompute, trace
        self._kept: list[Any] = []
        self._heads: tuple[Tensor, ...] = ()

    def forward(self, *heads: Tensor) -> None:
        """All layers of q, k, v."""
        self._heads = heads
        for i in range(self._layers):
            self._trace.layer = i
            with torch.set_grad_enabled(not self._recompute):
                self._kept.append(self._one())

    def backward(self, dout: Tensor) -> None:
        """All layers' gradients."""
        for i in reversed(range(self._layers)):
            self._trace.layer, out = i, self._kept.pop()
            if self._recompute:
                self._trace.again = True
                out = self._one()
                self._trace.again = False
            torch.autograd.backward(out, dout)

    def clear(self) -> None:
        """Drops what a step has left."""
        self._kept = []

    def _one(self) -> Tensor:
        out: Tensor = self._attend(*(x.detach().requires_grad_(torch.is_grad_enabled()) for x in self._heads))
        return out
