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
from .exchange import GROUP, Exchange, Key, carried
from .frames import Place
from .mail import Room
from .meter import Meter, Trace, timed
from .moves import Move
from .parts import Members
from .port import ProcessGroup
from .tasks import Link, Tasks

Pass = tuple[int, bool]  # a run, and whether it is its backward pass
Got = Sequence[tuple[Link, Tensor]]  # what came by a link, [tokens, hidden]


class Runs:
    """A rank's runs, for any number of steps. What they compute is a subclass's. travels: in which precision gradients
    of weights are added up, if any are."""

    def __init__(
        self, tasks: Tasks, rank: int, groups: Mapping[Members, ProcessGroup], device: torch.device,
        trace: Optional[Trace] = None,
    ) -> None:
        """groups: those of moves.process_groups and exchange.process_groups."""
        self._tasks, self._trace, self._own = tasks, trace, tasks.own(rank)
        dtype = DTYPES[tasks.dtype]
        links = [x for x in tasks.links if x.source in self._own or x.target in self._own]
        self._into, self._from = ({i: [x for x in links if x[side] == i] for i in self._own} for side in (1, 0))
        self._moves = {
            (x, back): Move(tasks, x, back, rank, groups, torch.empty(
                0, tasks.module(x.source).model.hidden, dtype=dtype, device=device))
            for x in links for back in (False, True)
        }
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
                self._exchanges[i] = Exchange(
                    f"gradients of run {i}", rank, ranks, group, travels[ranks], device)

    def enter(self, i: int, got: Got) -> Tensor:
        """What a module's first run begins with [tokens, hidden], of what it needs of others."""
        raise NotImplementedError

    def forward(self, i: int, x: Tensor) -> Tensor:
        """A run's results [tokens, hidden]."""
        raise NotImplementedError

    def ended(self, i: int, y: Tensor) -> None:
        """A module's results, of its last run."""

    def begin(self, i: int, got: Got) -> Tensor:
        """The gradient of these, of what came from those that need them."""
        raise NotImplementedError

    def backward(self, i: int, dy: Tensor) -> Tensor:
        """The gradient of what a run began with."""
        raise NotImplementedError

    def left(self, i: int, dx: Tensor) -> Callable[[Link], Tensor]:
        """That of what a module's first run began with is there: by link, the gradient of what it got."""
        raise NotImplementedError

    def summed(self, i: int, key: Key, flat: Tensor) -> None:
        """What was posted of gradients of weights, added up."""

    def step(self, place: Optional[Place] = None) -> None:
        """All passes."""
        self._left = dict(self._needs)
        self._make_room(p for p, n in self._needs.items() if not n)
        for i in self._own:
            self._at(i, place)
            self._forward(i)
        for i in reversed(self._own):
            self._at(i, place)
            self._backward(i)
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

    def _forward(self, i: int) -> None:
        first, last = self._tasks.ends(i)
        got = self._arrived(i, False)
        y = self.forward(i, self.enter(i, got) if first else got[0][1]).detach()
        for link in self._from[i]:
            self._give(link, False, y)
        if last:
            self.ended(i, y)
        self._ended(i, False)

    def _backward(self, i: int) -> None:
        first, last = self._tasks.ends(i)
        got = self._arrived(i, True)
        for link in self._from[i]:
            self._moves[link, False].answered()
        dx = self.backward(i, self.begin(i, got) if last else got[0][1])
        of = self.left(i, dx) if first else lambda _: dx
        for link in sorted(self._into[i], reverse=True):  # the last source first, as is predicted
            self._give(link, True, of(link))
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

    def _settle(self, i: int) -> None:
        """Waits for the sums of a run's gradients."""
        if i not in self._exchanges:
            return
        if self._trace is not None:
            self._trace.layer, self._trace.again = self._tasks.runs[i].first, False
        with timed(self._trace, "bwd", 0, "grad_wait") as span:
            sums, span.bytes_in = self._exchanges[i].wait()
        for key, flat in sums.items():
            self.summed(i, key, flat)

    def _at(self, i: int, place: Optional[Place]) -> None:
        if self._trace is not None:
            self._trace.mb = i
        if place is not None:
            place.mb = i
