"""What one device computes of a step of tasks, on some of the samples: every module in turn, in float64."""

from __future__ import annotations

from typing import Callable, Sequence

import torch
from torch import Tensor

from . import reference
from .moves import HALF
from .plan import Segment
from .tasks import Module, Tasks
from .whole import Layer

LayerAt = Callable[[int, int], Layer]  # of a module, by number
Drawn = Callable[[str, int, Sequence[int]], Tensor]  # rows of x or dy of a module's samples
Learned = Callable[[int, int, dict[str, Tensor]], None]  # gradients of a module's layer


class Answer:
    """results, input_gradients: by module [samples * tokens of one, hidden], one sample after the other."""

    def __init__(
        self, tasks: Tasks, samples: Sequence[Sequence[int]], layer: LayerAt, drawn: Drawn, tick: reference.Tick,
        learned: Learned,
    ) -> None:
        """samples: by module, with all that they need and that need them."""
        self._tasks, self._samples, self._layer, self._tick = tasks, samples, layer, tick
        self.results, self.input_gradients = ([torch.empty(0)] * len(tasks.modules) for _ in range(2))
        order = [run.module for run in tasks.runs if run.first == 0]
        inputs: dict[int, list[Tensor]] = {}
        for m in order:
            x = drawn("x", m, samples[m]).double()
            for n in tasks.modules[m].needs:
                for i, j in self._pairs(n, m):
                    theirs = self._sample(self.results[n], n, i)
                    mine = self._sample(x, m, j)
                    mine[:len(theirs)] += HALF * theirs[:len(mine)]
            inputs[m], self.results[m] = self._forward(m, x)
        gradients = [drawn("dy", m, samples[m]).double() for m in range(len(tasks.modules))]
        for m in reversed(order):
            dx = self.input_gradients[m] = self._backward(m, inputs.pop(m), gradients[m], learned)
            for n in tasks.modules[m].needs:
                for i, j in self._pairs(n, m):
                    theirs = self._sample(gradients[n], n, i)
                    mine = self._sample(dx, m, j)
                    theirs[:len(mine)] += HALF * mine[:len(theirs)]

    def _pairs(self, n: int, m: int) -> list[tuple[int, int]]:
        """Of two modules, places among the samples of which the second one needs the first."""
        a, b = self._tasks.modules[n].batch, self._tasks.modules[m].batch
        place = {s: j for j, s in enumerate(self._samples[m])}
        return [(i, place[s * b // a]) for i, s in enumerate(self._samples[n])]

    def _sample(self, x: Tensor, m: int, place: int) -> Tensor:
        """All elements of a sample, in place."""
        n = self._tasks.modules[m].seq_len
        return x[place * n:(place + 1) * n].view(-1)

    def _forward(self, m: int, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """What goes into every layer, and the last one's output."""
        of, inputs = self._tasks.modules[m], list[Tensor]()
        if not len(x):  # a module of which no sample is compared
            return inputs, x
        attention, at = self._attention(m)
        for i in range(of.layers):
            inputs.append(x)
            x = reference.layer_output(of.model, self._layer(m, i).weights, attention, x, at)
        return inputs, x

    def _backward(self, m: int, inputs: list[Tensor], dy: Tensor, learned: Learned) -> Tensor:
        of, dx = self._tasks.modules[m], dy.clone()
        if not inputs:
            return dx
        attention, at = self._attention(m)
        for i in reversed(range(len(inputs))):
            dx, grads = reference.layer_gradients(of.model, self._layer(m, i).weights, attention, inputs.pop(), dx, at)
            learned(m, i, grads)
        return dx

    def _attention(self, m: int) -> tuple[reference.Attention, Tensor]:
        """That of a module's samples, and where their tokens are."""
        of, count = self._tasks.modules[m], len(self._samples[m])
        docs = [Segment(i * of.seq_len, (i + 1) * of.seq_len) for i in range(count)]
        return (reference.Attention(count * of.seq_len, docs, self._tick, of.causal),
                torch.arange(of.seq_len).repeat(count))


def positions(of: Module, samples: Sequence[int]) -> Tensor:
    """Where drawn rows of samples are."""
    return torch.cat([torch.arange(0), *(torch.arange(s * of.seq_len, (s + 1) * of.seq_len) for s in samples)])
