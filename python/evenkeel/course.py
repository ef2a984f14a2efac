"""The step of one plan that is timed: its layers, or its attentions alone, forward and then backward; of a
plan of batches that of every micro-batch in turn."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import torch
from torch import Tensor

from .compare import Inputs
from .drawn import DTYPES
from .frames import Place
from .kernels import Kernel
from .meter import timed
from .parts import Part, Work
from .record import Recorder
from .request import Request
from .tokens import positions
from .whole import Layer, Stack, angles


class Lap:
    """A rank's work in one micro-batch: forward and backward over its tokens."""

    def __init__(
        self, part: Part, rank: int, asked: Request, inputs: Inputs, kernel: Kernel, layers: Sequence[Layer],
        trace: Recorder, device: torch.device,
    ) -> None:
        self._part, place = part, part.ranks.index(rank)
        plan, own = part.plan, positions(part.plan, place)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return part.attention(rank, (q, k, v), kernel, trace=trace)

        self._stack: Any
        if asked.parts == "attention":
            self._stack = Bare(attend, asked.layers, part.recompute, trace)
            self._inputs = tuple(inputs.heads(n, own) for n in ("q", "k", "v", "dout"))
            return
        model = layers[0].model
        tables = angles(positions(plan, place, part.docs), model.rotary, DTYPES[plan.dtype], device)
        self._stack = Stack(layers, attend, tables, part.recompute, trace)
        self._inputs = tuple(inputs.wide(n, own, model.hidden) for n in ("x", "dy"))

    def clear(self) -> None:
        """Leaves nothing of the last time."""
        self._stack.clear()

    def run(self) -> None:
        """Once."""
        with self._part.named():
            self._stack.forward(*self._inputs[:-1])
            self._stack.backward(self._inputs[-1])


class Course:
    """One plan as it is timed."""

    def __init__(self, work: Work, asked: Request) -> None:
        self.work, self.asked = work, asked
        self._laps: list[Optional[Lap]] = []

    def prepare(
        self, rank: int, inputs: Inputs, kernel: Kernel, layers: Sequence[Layer], trace: Recorder,
        device: torch.device,
    ) -> None:
        """Makes inputs and layers."""
        self._trace = trace
        self._laps = [Lap(part, rank, self.asked, inputs, kernel, layers, trace, device) if part else None
                      for part in self.work.own(rank)]

    def clear(self) -> None:
        """Leaves nothing of the last step."""
        for lap in self._laps:
            if lap:
                lap.clear()

    def run(self, meet: Callable[[], None], place: Place) -> None:
        """One step. The ranks of a plan of batches meet after each micro-batch, and leave no gradient for the
        next one to be added to, as no price has that in it."""
        for i, lap in enumerate(self._laps):
            self._trace.mb = i
            if self.work.batched:
                place.mb = i
            if lap:
                lap.run()
            if self.work.batched:
                if lap:
                    lap.clear()
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
