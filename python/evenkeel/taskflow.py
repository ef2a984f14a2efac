"""One rank's runs of a plan of tasks with the layers that replay runs."""

from __future__ import annotations

from typing import Callable, Mapping, Optional, Sequence

import torch
from torch import Tensor

from .drawn import DTYPES
from .exchange import Key
from .frames import Place
from .kernels import Kernel
from .meter import Meter, Trace
from .moves import Joint
from .parts import Members
from .port import ProcessGroup
from .samples import Samples
from .task_runs import Got, Runs
from .tasks import Link, Tasks
from .whole import Around, Attend, Layer, Layers, Stack, angles

Given = Callable[[int], Tensor]  # of a run: the rank's rows [tokens, hidden]
Taken = Callable[[int, Tensor], None]
Weighed = Callable[[int, int, Tensor], None]  # of a run's layer: the gradients of all its weights in one piece
Unsummed = Callable[[int, int, Sequence[Tensor]], None]  # the same by weight, before it is added up among ranks


def layers_of(layers: Layers, tasks: Tasks, run: int) -> list[Layer]:
    """A run's, of those that all modules have."""
    r = tasks.runs[run]
    return module_layers(layers, tasks, r.module).at(r.first, r.layers)


def module_layers(layers: Layers, tasks: Tasks, module: int) -> Layers:
    """A module's."""
    return layers.part(named(module), tasks.modules[module].model)


def named(module: int) -> str:
    """What names of a module's tensors begin with, in whatever plan it is."""
    return f"module {module} "


class TaskFlow(Runs):
    """For any number of steps."""

    _inputs: Given
    _gradients: Given
    _output: Optional[Taken]
    _input_gradient: Optional[Taken]
    _weights: Optional[Weighed]
    _unsummed: Optional[Unsummed]

    def __init__(
        self, tasks: Tasks, rank: int, layers: Layers, kernel: Kernel, groups: Mapping[Members, ProcessGroup],
        device: torch.device, trace: Optional[Trace] = None, meter: Optional[Meter] = None,
    ) -> None:
        """layers: of all modules. groups: see Runs."""
        super().__init__(tasks, rank, groups, device, trace)
        self._joints = {x: Joint(tasks, x, rank, device) for of in self._into.values() for x in of
                        if not tasks.within(x)}
        self._stacks = {i: self._stack(i, rank, layers, kernel, device, meter) for i in self._own}

    def run(
        self, inputs: Given, gradients: Given, output: Optional[Taken] = None, input_gradient: Optional[Taken] = None,
        weights: Optional[Weighed] = None, place: Optional[Place] = None, unsummed: Optional[Unsummed] = None,
    ) -> None:
        """One step. inputs, gradients: of modules' first runs and last ones, what was drawn for these; output,
        input_gradient, weights: who gets what they come to, if anybody; unsummed: and who the rank's own gradients of
        weights that it adds up with others."""
        self._inputs, self._gradients, self._output, self._input_gradient = inputs, gradients, output, input_gradient
        self._weights, self._unsummed = weights, unsummed
        self.step(place)

    def enter(self, i: int, got: Got) -> Tensor:
        """See Runs."""
        x = self._inputs(i).clone() if got else self._inputs(i)
        for link, results in got:
            self._joints[link].add(x, results)
        return x

    def forward(self, i: int, x: Tensor) -> Tensor:
        """See Runs."""
        return self._stacks[i].forward(x)

    def ended(self, i: int, y: Tensor) -> None:
        """See Runs."""
        if self._output is not None:
            self._output(i, y)

    def begin(self, i: int, got: Got) -> Tensor:
        """See Runs."""
        dy = self._gradients(i).clone() if got else self._gradients(i)
        for _, x in got:
            dy += x
        return dy

    def backward(self, i: int, dy: Tensor) -> Tensor:
        """See Runs."""
        return self._stacks[i].backward(dy)

    def left(self, i: int, dx: Tensor) -> Callable[[Link], Tensor]:
        """See Runs."""
        if self._input_gradient is not None:
            self._input_gradient(i, dx)
        return lambda link: self._joints[link].gradient(dx)

    def summed(self, i: int, key: Key, flat: Tensor) -> None:
        """See Runs."""
        if self._weights is not None:
            self._weights(i, int(key), flat)

    def clear(self) -> None:
        """Leaves nothing of the last step."""
        for stack in self._stacks.values():
            stack.clear()
        for exchange in self._exchanges.values():
            exchange.clear()

    def _stack(
        self, i: int, rank: int, layers: Layers, kernel: Kernel, device: torch.device, meter: Optional[Meter]
    ) -> "_Exchanged":
        run, module = self._tasks.runs[i], self._tasks.module(i)
        share = run.share(rank)
        count = share.end - share.start
        samples = Samples(module, count, kernel, meter, self._trace)
        tables = angles(torch.arange(module.seq_len).repeat(count), module.model.rotary, DTYPES[self._tasks.dtype],
                        device)
        return _Exchanged(
            layers_of(layers, self._tasks, i), lambda _, *heads: samples(*heads), tables,
            run.layers if self._tasks.recompute else 0, self._trace, run.first,
            lambda layer, grads: self._learned(i, layer, grads))

    def _learned(self, i: int, layer: int, grads: Sequence[Tensor]) -> None:
        """A layer's backward pass is over."""
        if i in self._exchanges:
            if self._unsummed is not None:
                self._unsummed(i, layer, grads)
            self._exchanges[i].post(layer, grads)
        elif self._weights is not None:
            self._weights(i, layer, torch.cat([g.reshape(-1) for g in grads]))


class _Exchanged(Stack):
    """Layers whose gradients of weights leave when a layer's backward pass is over."""

    def __init__(
        self, layers: Sequence[Layer], attend: Attend, tables: tuple[Tensor, Tensor], again: int,
        trace: Optional[Trace], first: int, learned: Callable[[int, Sequence[Tensor]], None],
    ) -> None:
        """learned: is given a layer's number and gradients."""
        super().__init__(layers, attend, tables, again, trace, first)
        self._learned = learned

    def _begin(self, out: Tensor) -> None:
        """See Stack: there is nothing to travel."""

    def _backward(self, i: int, kept: Around, dy: Tensor) -> Tensor:
        dx = super()._backward(i, kept, dy)
        grads = []  # of all weights: else those behind a missing one would be added up in its place
        for name, w in self._linear.layers[i].weights.items():
            assert w.grad is not None, f"layer {self._first + i}: no gradient of {name}"
            grads.append(w.grad)
        self._learned(self._first + i, grads)
        self._linear.clear(i)
        return dx
