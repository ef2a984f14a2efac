"""Samples on their way from one run to another, forward their results and backward the gradients of these.

Between two runs of a module every sample goes from who had it to who has it next. A module's first run adds to its own
inputs the results of the modules that it needs, half as large: sample a of n goes to sample a * m // n of its m, and of
the elements those that both samples have are added, from the first on. All elements travel, either way, to and from the
rank that has the sample.
"""

from __future__ import annotations

from typing import Mapping, Optional

import torch
from torch import Tensor

from .mail import Mail, cut
from .meter import Meter
from .parts import Members
from .plan import Segment
from .port import ProcessGroup
from .tasks import Link, Tasks

HALF = 0.5  # of a needed result that is added to inputs: the sum is about as large as they are


class Move:
    """What goes one way between two runs, at one rank: rows of the tokens of the first one's module."""

    def __init__(
        self, tasks: Tasks, link: Link, back: bool, rank: int, groups: Mapping[Members, ProcessGroup], like: Tensor
    ) -> None:
        """groups: those of process_groups. like [0, hidden]: of the rows."""
        gives, takes = rows(tasks, link) if not back else rows(tasks, link)[::-1]
        nothing = Segment(0, 0)
        self._gives, self._takes = gives.get(rank, nothing), takes.get(rank, nothing)
        self._key, self._like = link.source if back else link.target, like
        self._mail: Optional[Mail] = None
        self._own: Optional[Tensor] = None  # what this rank gave, some of which may stay here
        at = crossing(tasks, link)
        if rank in at:
            name = direction(link, back)
            self._mail = Mail(f"from {name}", "bwd.send" if back else "fwd.send", rank, at, groups[name, at],
                              like.device)
        self._to, self._from = ([(at.index(r), of) for r, of in side.items() if r != rank and r in at]
                                for side in (takes, gives))
        if back:
            self._to.reverse()  # a backward pass is predicted to send in the reverse of the order forward
        self.comes = sum(_common(self._takes, of) for _, of in self._from)  # rows from other ranks
        self.bytes = self.comes * like.shape[1] * like.element_size()
        self._leaves = any(_common(self._gives, of) for _, of in self._to)

    def give(self, x: Tensor) -> None:
        """The rank's rows, which nobody changes any more, leave."""
        self._own = x if _common(self._gives, self._takes) else None
        if self._mail is not None and self._leaves:
            self._mail.post(self._key, cut(x.contiguous(), self._gives, self._to))

    def expect(self) -> None:
        """Makes room for what comes from other ranks."""
        if self._mail is not None and self.comes:
            x = self._like.new_empty(self._takes.end - self._takes.start, self._like.shape[1])
            self._mail.expect(self._key, x, cut(x, self._takes, self._from))

    def take(self) -> Tensor:
        """The rank's rows, when they are there."""
        own, self._own = self._own, None
        lo, hi = max(self._gives.start, self._takes.start), min(self._gives.end, self._takes.end)
        stay = own[lo - self._gives.start:hi - self._gives.start] if own is not None else None
        if self._mail is None or not self.comes:
            return self._like.new_empty(0, self._like.shape[1]) if stay is None else stay
        x = self._mail.take(self._key)
        if stay is not None:
            x[lo - self._takes.start:hi - self._takes.start] = stay
        return x

    def answered(self) -> None:
        """See Mail."""
        if self._mail is not None:
            self._mail.answered(self._key)

    @property
    def tells(self) -> bool:
        """See Mail."""
        return self._mail is not None and self._mail.tells

    def sweep(self) -> bool:
        """See Mail."""
        return self._mail is not None and self._mail.sweep()

    def end(self) -> None:
        """Returns when all that was sent is gone."""
        self._own = None
        if self._mail is not None:
            self._mail.end()

    def count(self, into: Meter) -> None:
        """See Mail."""
        if self._mail is not None:
            self._mail.count(into)


class Joint:
    """How the samples that a rank has of a module are made with those of another one that it needs."""

    def __init__(self, tasks: Tasks, link: Link, rank: int, device: torch.device) -> None:
        source, target = tasks.module(link.source), tasks.module(link.target)
        of, first = tasks.taken(link, rank), tasks.runs[link.target].share(rank).start
        index = torch.arange(of.start, of.end) * target.batch // source.batch - first
        self._index = index.to(device)
        self._each, self._theirs = (m.seq_len * m.model.hidden for m in (target, source))
        self._hidden, self._both = source.model.hidden, min(self._each, self._theirs)

    def add(self, x: Tensor, results: Tensor) -> None:
        """Adds to the rank's inputs what it needs of the other module's results, which it has taken."""
        if len(results):
            mine, theirs = x.view(-1, self._each), results.view(-1, self._theirs)
            mine[:, :self._both].index_add_(0, self._index, theirs[:, :self._both], alpha=HALF)

    def gradient(self, dx: Tensor) -> Tensor:
        """That of these results."""
        out = dx.new_zeros(len(self._index), self._theirs)
        out[:, :self._both] = dx.view(-1, self._each)[self._index, :self._both] * HALF
        return out.view(-1, self._hidden)


def rows(tasks: Tasks, link: Link) -> tuple[dict[int, Segment], dict[int, Segment]]:
    """By rank, which tokens' rows of the source's module it has in the source, and needs in the target."""
    n = tasks.module(link.source).seq_len
    source, target = tasks.runs[link.source], tasks.runs[link.target]
    has = {r: source.share(r) for r in source.ranks}
    needs = {r: tasks.taken(link, r) for r in target.ranks}
    return ({r: Segment(s.start * n, s.end * n) for r, s in has.items()},
            {r: Segment(s.start * n, s.end * n) for r, s in needs.items()})


def crossing(tasks: Tasks, link: Link) -> tuple[int, ...]:
    """The ranks that have a message to another one, or from it; rising."""
    has, needs = rows(tasks, link)
    pairs = [(a, b) for a, x in has.items() for b, y in needs.items() if a != b and _common(x, y)]
    return tuple(sorted({r for pair in pairs for r in pair}))


def direction(link: Link, back: bool) -> str:
    """The name of the process group for what goes one way."""
    return f"run {link.target} to {link.source}" if back else f"run {link.source} to {link.target}"


def process_groups(tasks: Tasks) -> list[Members]:
    """Those of moves: one a way, of any two runs between which something is sent."""
    out: list[Members] = []
    for link in tasks.links:
        at = crossing(tasks, link)
        out += [(direction(link, back), at) for back in (False, True) if at]
    return out


def _common(a: Segment, b: Segment) -> int:
    """Rows of both."""
    return max(0, min(a.end, b.end) - max(a.start, b.start))
