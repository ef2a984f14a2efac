"""The step of one plan that is timed: its layers, or its attentions alone, forward and then backward."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch
from torch import Tensor

from .compare import Inputs
from .drawn import DTYPES
from .executor import attention
from .kernels import Kernel
from .plan import Plan
from .record import Recorder
from .request import Request
from .tokens import positions
from .whole import Layer, Stack, angles


class Course:
    """One plan as it is timed: forward and backward over the rank's tokens."""

    def __init__(self, document: Mapping[str, Any], plan: Plan, asked: Request) -> None:
        self.document, self.plan, self.asked = document, plan, asked
        self.recompute = document["job"].get("recompute") == "full"
        self._stack: Any = None
        self._inputs: tuple[Tensor, ...] = ()

    def prepare(
        self, rank: int, inputs: Inputs, kernel: Kernel, layers: Sequence[Layer], trace: Recorder,
        device: torch.device,
    ) -> None:
        """Makes inputs and layers."""
        plan, docs, own = self.plan, self.asked.docs_tokens, positions(self.plan, rank)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attention(plan, rank, q, k, v, kernel=kernel, docs=docs, trace=trace)

        if self.asked.parts == "attention":
            self._stack = Bare(attend, self.asked.layers, self.recompute, trace)
            self._inputs = tuple(inputs.heads(n, own) for n in ("q", "k", "v", "dout"))
            return
        model = layers[0].model
        tables = angles(positions(plan, rank, docs), model.rotary, DTYPES[plan.dtype], device)
        self._stack = Stack(layers, attend, tables, self.recompute, trace)
        self._inputs = tuple(inputs.wide(n, own, model.hidden) for n in ("x", "dy"))

    def clear(self) -> None:
        """Leaves nothing of the last step."""
        self._stack.clear()

    def run(self) -> None:
        """One step."""
        self._stack.forward(*self._inputs[:-1])
        self._stack.backward(self._inputs[-1])


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
