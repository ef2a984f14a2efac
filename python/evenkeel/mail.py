"""What ranks send each other while they compute: it leaves when it is made, and is received when it is needed.

Both sides have the messages of a process group in one order. A receiver makes room for a few ahead of those that it
has taken: with NCCL a message that is waited for occupies the GPU.
"""

from __future__ import annotations

from typing import Callable, Iterable, Sequence

import torch
from torch import Tensor

from .meter import Meter
from .parts import named
from .plan import Segment
from .port import Batch, Message, Port, ProcessGroup

# Of messages for which there is room before they are asked for.
AHEAD = 2


class Mail:
    """Messages of one direction in a process group, at one rank. Each has a number, under which it is sent and
    received."""

    def __init__(
        self, name: str, phase: str, rank: int, ranks: Sequence[int], group: ProcessGroup, device: torch.device
    ) -> None:
        """name: what it is, for who loses a peer. phase: under which it is counted. ranks: those of the group,
        rising."""
        self._name, self._phase, self._at, self._meter = name, phase, ranks, Meter()
        self._port = Port(ranks.index(rank), len(ranks), group, self._meter, device)
        self._coming: dict[int, tuple[Tensor, Batch]] = {}
        self._going: dict[int, Batch] = {}

    def post(self, key: int, sends: Sequence[Message]) -> None:
        """Messages leave. Their peers are places in the group."""
        self.sweep()
        with named(self._name, self._at):
            self._going[key] = self._port.post(self._phase, key, sends, [])

    @property
    def tells(self) -> bool:
        """Whether the library says when a message is gone. NCCL does; gloo knows only of what is waited for."""
        return self._port.nccl

    def sweep(self) -> bool:
        """Keeps no longer what the library says is gone. Whether anything is still kept."""
        for key in [k for k, batch in self._going.items() if self.tells and batch.gone]:
            self.answered(key)
        return bool(self._going)

    def answered(self, key: int) -> None:
        """A message is gone, for what the others made of it has come or the library says so: it is kept here no
        longer."""
        batch = self._going.pop(key, None)
        if batch is not None:
            with named(self._name, self._at):
                batch.sent()

    def expect(self, key: int, x: Tensor, receives: Sequence[Message]) -> None:
        """Makes room: x has that of all messages."""
        with named(self._name, self._at):
            self._coming[key] = x, self._port.post(self._phase, key, [], receives)

    def take(self, key: int) -> Tensor:
        """Waits for what there is room for."""
        x, batch = self._coming.pop(key)
        with named(self._name, self._at):
            batch.received()
            batch.sent()
        return x

    def end(self) -> None:
        """Returns when all that was sent is gone."""
        with named(self._name, self._at):
            for batch in self._going.values():
                batch.sent()
        self._going = {}

    def count(self, into: Meter) -> None:
        """Adds what went and came, by ranks of the run."""
        into.add(self._meter, self._at)


class Room:
    """Makes room for what comes, in its order: a little ahead of what was taken, and for nothing before the rank has
    done what it needs. Until then the GPU may have to be idle for what comes first."""

    def __init__(self, order: Sequence[int], make: Callable[[int], None]) -> None:
        """order: of all that comes in a step, each once."""
        self._order, self._make = order, make
        self._places = {key: i for i, key in enumerate(order)}
        self._made = self._taken = 0
        self._ready: set[int] = set()

    def ready(self, keys: Iterable[int]) -> None:
        """The rank has done what these need of it."""
        self._ready.update(keys)
        self._ahead()

    def take(self, key: int) -> None:
        """Something is wanted, for which there is room when this returns."""
        self._taken = self._places[key] + 1
        while self._made < self._taken:
            self._next()
        self._ahead()

    def end(self) -> None:
        """The step is over."""
        self._made = self._taken = 0
        self._ready.clear()

    def _ahead(self) -> None:
        while self._made < min(len(self._order), self._taken + AHEAD) and self._order[self._made] in self._ready:
            self._next()

    def _next(self) -> None:
        self._make(self._order[self._made])
        self._made += 1


def cut(x: Tensor, mine: Segment, others: Sequence[tuple[int, Segment]]) -> list[Message]:
    """The rows of x, which are `mine` of some, that others have as well."""
    out = []
    for peer, rows in others:
        lo, hi = max(mine.start, rows.start), min(mine.end, rows.end)
        if lo < hi:
            out.append(Message(peer, x[lo - mine.start:hi - mine.start]))
    return out
