"""One rank's runs of a plan of tasks at work: forward in their order, and backward in the reverse one.

Results leave for the runs that need them when they are computed, and gradients likewise; both travel while something
else is computed. Each two runs have a process group a direction, so that with NCCL what goes one way never waits for
what goes the other. Gradients of weights are added up among a run's ranks behind its backward passes.

What was sent is kept until it is gone. NCCL says when it is, and is asked after every pass. gloo does not: results are
kept until their gradients come, and gradients, which nothing answers, until the step is over.
"""

from __future__ import annotations

from typing import Callable, Iterable, Mapping, Optional, Sequence

import torch
from torch import Tensor

from .drawn import DTYPES
from .exchange import GROUP, Exchange, carried
from .frames import Place
from .kernels import Kernel
from .mail import Room
from .meter import Meter, Trace, timed
from .moves import Joint, Move
from .parts import Members
from .port import ProcessGroup
from .samples import Samples
from .tasks import Link, Tasks
from .whole import Around, Attend, Layer, Layers, Stack, angles

Given = Callable[[int], Tensor]  # of a run: the rank's rows [tokens, hidden]
Taken = Callable[[int, Tensor], None]
Weighed = Callable[[int, int, Tensor], None]  # of a run's layer: the gradients of all its weights in one piece
Unsummed = Callable[[int, int, Sequence[Tensor]], None]  # the same by weight, before it is added up among ranks
Pass = tuple[int, bool]  # a run, and whether it is its backward pass


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


class TaskFlow:
    """A rank's runs, for any number of steps. travels: in which precision its gradients of weights are added up, if it
    adds any."""

    def __init__(
        self, tasks: Tasks, rank: int, layers: Layers, kernel: Kernel, groups: Mapping[Members, ProcessGroup],
        device: torch.device, trace: Optional[Trace] = None, meter: Optional[Meter] = None,
    ) -> None:
        """layers: of all modules. groups: those of moves.process_groups and exchange.process_groups."""
        self._tasks, self._trace, self._own = tasks, trace, tasks.own(rank)
        self._weights: Optional[Weighed] = None
        self._unsummed: Optional[Unsummed] = None
        dtype = DTYPES[tasks.dtype]
        links = [x for x in tasks.links if x.source in self._own or x.target in self._own]
        self._into, self._from = ({i: [x for x in links if x[side] == i] for i in self._own} for side in (1, 0))
        self._moves = {
            (x, back): Move(tasks, x, back, rank, groups, torch.empty(
                0, tasks.module(x.source).model.hidden, dtype=dtype, device=device))
            for x in links for back in (False, True)
        }
        self._joints = {x: Joint(tasks, x, rank, device) for x in links
                        if x.target in self._own and not tasks.within(x)}
        self._rooms = {back: self._room(back) for back in (False, True)}
        self._needs, self._frees = self._orders()
        self._left: dict[Pass, int] = {}  # of these, what is not done yet
        self._going: list[Move] = []  # of which something may be kept that is gone
        self.travels: Optional[torch.dtype] = None
        travels: dict[tuple[int, ...], torch.dtype] = {}
        self._exchanges: dict[int, Exchange] = {}
        for i in self._own:
            ranks = tasks.runs[i].ranks
            if len(ranks) > 1:
                group = groups[GROUP, ranks]
                if ranks not in travels:
                    self.travels = travels[ranks] = carried(rank, ranks, group, dtype, device)
                self._exchanges[i] = Exchange(i, rank, ranks, group, travels[ranks])
        self._stacks = {i: self._stack(i, rank, layers, kernel, device, meter) for i in self._own}

    def run(
        self, inputs: Given, gradients: Given, output: Optional[Taken] = None, input_gradient: Optional[Taken] = None,
        weights: Optional[Weighed] = None, place: Optional[Place] = None, unsummed: Optional[Unsummed] = None,
    ) -> None:
        """One step. inputs, gradients: of modules' first runs and last ones, what was drawn for these; output,
        input_gradient, weights: who gets what they come to, if anybody; unsummed: and who the rank's own gradients of
        weights that it adds up with others."""
        self._left, self._weights = dict(self._needs), weights
        self._unsummed = unsummed
        self._make_room(p for p, n in self._needs.items() if not n)
        for i in self._own:
            self._at(i, place)
            self._forward(i, inputs, output)
        for i in reversed(self._own):
            self._at(i, place)
            self._backward(i, gradients, input_gradient)
        for i in reversed(self._own):
            self._at(i, place)
            self._settle(i)
        for move in self._moves.values():
            move.end()
        self._going = []
        for room in self._rooms.values():
            room.end()

    def sent(self) -> Meter:
        """What went to other ranks and came from them, in all steps so far."""
        meter = Meter()
        for move in self._moves.values():
            move.count(meter)
        return meter

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

    def _room(self, back: bool) -> Room:
        """Of what comes forward, or backward, from other ranks, by run."""
        def make(i: int) -> None:
            for move in self._coming(i, back):
                move.expect()

        order = self._own[::-1] if back else self._own
        return Room([i for i in order if self._coming(i, back)], make)

    def _coming(self, i: int, back: bool) -> list[Move]:
        """What a run's pass needs from other ranks."""
        links = self._from[i] if back else self._into[i]
        return [self._moves[x, back] for x in links if self._moves[x, back].comes]

    def _orders(self) -> tuple[dict[Pass, int], dict[Pass, list[Pass]]]:
        """Of the passes for which something comes, how many others of this rank they need; and by these, who."""
        needs: dict[Pass, int] = {}
        frees: dict[Pass, list[Pass]] = {}
        for back in (False, True):
            for i in (i for i in self._own if self._coming(i, back)):
                needed = self._needed(i, back)
                needs[i, back] = len(needed)
                for p in needed:
                    frees.setdefault(p, []).append((i, back))
        return needs, frees

    def _make_room(self, passes: Iterable[Pass]) -> None:
        """For passes of which this rank has done what they need of it."""
        for i, back in passes:
            self._rooms[back].ready([i])

    def _needed(self, i: int, back: bool) -> set[Pass]:
        """Passes of this rank that one needs."""
        if back:
            return {(i, False), *((x.target, True) for x in self._from[i] if x.target in self._own)}
        return {(x.source, False) for x in self._into[i] if x.source in self._own}

    def _forward(self, i: int, inputs: Given, output: Optional[Taken]) -> None:
        first, last = self._tasks.ends(i)
        got = self._arrived(i, False)
        if first:
            x = inputs(i).clone() if got else inputs(i)
            for link, results in got:
                self._joints[link].add(x, results)
        else:
            (_, x), = got
        y = self._stacks[i].forward(x).detach()
        for link in self._from[i]:
            self._give(link, False, y)
        if last and output is not None:
            output(i, y)
        self._ended(i, False)

    def _backward(self, i: int, gradients: Given, input_gradient: Optional[Taken]) -> None:
        first, last = self._tasks.ends(i)
        got = self._arrived(i, True)
        for link in self._from[i]:
            self._moves[link, False].answered()
        if last:
            dy = gradients(i).clone() if got else gradients(i)
            for _, x in got:
                dy += x
        else:
            (_, dy), = got
        dx = self._stacks[i].backward(dy)
        for link in sorted(self._into[i], reverse=True):  # the last source first, as is predicted
            self._give(link, True, self._joints[link].gradient(dx) if first else dx)
        if first and input_gradient is not None:
            input_gradient(i, dx)
        self._ended(i, True)

    def _arrived(self, i: int, back: bool) -> list[tuple[Link, Tensor]]:
        """What a run's pass needs, from this rank or others."""
        links, run = self._from[i] if back else self._into[i], self._tasks.runs[i]
        coming = self._coming(i, back)
        if not coming:
            return [(x, self._moves[x, back].take()) for x in links]
        if self._trace is not None:
            self._trace.layer, self._trace.again = run.first + (run.layers - 1 if back else 0), False
        with timed(self._trace, "bwd" if back else "fwd", 0, "stage_wait") as span:
            self._rooms[back].take(i)
            span.bytes_in = sum(move.bytes for move in coming)
            return [(x, self._moves[x, back].take()) for x in links]

    def _give(self, link: Link, back: bool, x: Tensor) -> None:
        move = self._moves[link, back]
        move.give(x)
        if move.tells:
            self._going.append(move)

    def _ended(self, i: int, back: bool) -> None:
        """A pass is over, and what it sent has left."""
        freed = self._frees.get((i, back), [])
        for p in freed:
            self._left[p] -= 1
        self._make_room(p for p in freed if not self._left[p])
        self._going = [move for move in self._going if move.sweep()]

    def _learned(self, i: int, layer: int, grads: Sequence[Tensor]) -> None:
        """A layer's backward pass is over."""
        if i in self._exchanges:
            if self._unsummed is not None:
                self._unsummed(i, layer, grads)
            self._exchanges[i].post(layer, grads)
        elif self._weights is not None:
            self._weights(i, layer, torch.cat([g.reshape(-1) for g in grads]))

    def _settle(self, i: int) -> None:
        """Waits for the sums of a run's gradients."""
        if i not in self._exchanges:
            return
        if self._trace is not None:
            self._trace.layer, self._trace.again = self._tasks.runs[i].first, False
        with timed(self._trace, "bwd", 0, "grad_wait") as span:
            sums, span.bytes_in = self._exchanges[i].wait()
        for layer, flat in sums.items():
            if self._weights is not None:
                self._weights(i, layer, flat)

    def _at(self, i: int, place: Optional[Place]) -> None:
        if self._trace is not None:
            self._trace.mb = i
        if place is not None:
            place.mb = i


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
