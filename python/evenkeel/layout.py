"""What a plan means for the ranks: who holds which tokens and heads, and who sends what to whom.

The borders of all groups' head intervals together cut the query heads into *pieces*. Every piece is a ring of
its own: each group has one owner of it, and keys and values travel from the owner in one group to the owner
in the next. So a rank holds, of a block of tokens, the KV heads of every piece of its interval; a KV head
that a border cuts is there once for either side, since either side has gradients of its own to bring home.

A group needs the block of another if its last token is after the block's first: else all pairs of the two are
masked. Packed documents mask more, but differ from batch to batch, and a plan's messages do not.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import NamedTuple, Optional

from .plan import Plan, Segment


class Slot(NamedTuple):
    """A place of a block at a rank: KV head kv as the query heads of one piece read it."""

    piece: int
    kv: int


class Link(NamedTuple):
    """A message of a block between members of two groups: this rank's slots lo to hi."""

    peer: int
    lo: int
    hi: int


class Rows(NamedTuple):
    """n tokens that begin at row `own` of their owner and at row `held` of its group's block."""

    own: int
    held: int
    n: int


@dataclass(frozen=True)
class Seat:
    """A rank's place in the layout: query heads first to first+heads of group `group`."""

    rank: int
    group: int
    tokens: int
    first: int
    heads: int
    slots: tuple[Slot, ...]
    rows: tuple[Rows, ...]  # of its own tokens

    @property
    def kv(self) -> list[int]:
        """The distinct KV heads of its query heads, rising."""
        return sorted({s.kv for s in self.slots})

    def shared(self, each: int) -> tuple[int, ...]:
        """By distinct KV head, how many of its query heads read it, with `each` to a KV head in the model."""
        last = self.first + self.heads
        return tuple(min(last, (j + 1) * each) - max(self.first, j * each) for j in self.kv)

    def chunk(self, c: int, n: int, each: int) -> Seat:
        """The seat with the c-th of n chunks of its heads: of its w distinct KV heads those from c w/n to
        (c+1) w/n, rounded up, and those of its query heads that read them, with `each` to a KV head in the
        model. No KV head is in two chunks; where there are fewer than n, some have no heads, but never the
        first."""
        kv = self.kv
        mine = kv[-(-c * len(kv) // n):-(-(c + 1) * len(kv) // n)]
        if not mine:
            return replace(self, heads=0, slots=())
        first = max(self.first, mine[0] * each)
        heads = min(self.first + self.heads, (mine[-1] + 1) * each) - first
        return replace(self, first=first, heads=heads, slots=tuple(s for s in self.slots if s.kv in mine))


@dataclass(frozen=True)
class Group:
    """The ranks of one all-to-all, in order of their heads, and the tokens of all of them together."""

    members: tuple[Seat, ...]
    segments: tuple[Segment, ...]  # neighbouring ones joined
    tokens: int


@functools.lru_cache(maxsize=16)
def layout_of(plan: Plan) -> "Layout":
    """That of a plan, which all layers have."""
    return Layout(plan)


class Layout:
    """Seats and groups of a plan, made once and read by every rank.

    reach: by group, how many steps its block travels: to the last group round the ring that needs it; near:
    after how many it is at the first one, where the gradient of the block begins. Both are 0 if nobody else
    needs it. sent: by group, how many tokens of its block travel, its first ones: all, or where the plan keeps
    tails at home those of the segments that some other group needs.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.pieces = _pieces(plan)
        self.groups = tuple(self._group(g) for g in range(len(plan.groups)))
        needing = [self._needing(g) for g in range(len(self.groups))]
        self.near = tuple(min(steps, default=0) for steps in needing)
        self.reach = tuple(max(steps, default=0) for steps in needing)
        self.sent = tuple(self._sent(g) for g in range(len(self.groups)))
        self._seats = {m.rank: m for g in self.groups for m in g.members}

    @property
    def steps(self) -> int:
        """Steps of the ring: as many as there are groups."""
        return len(self.groups)

    def seat(self, rank: int) -> Optional[Seat]:
        """A rank's place, None without work."""
        return self._seats.get(rank)

    def chunks(self, group: int) -> list[tuple[Seat, ...]]:
        """By chunk of heads, the members of a group with those of their heads that are in it."""
        n, members = self.plan.head_chunks, self.groups[group].members
        if n == 1:
            return [members]
        each = self.plan.q_heads // self.plan.kv_heads
        return [tuple(m.chunk(c, n, each) for m in members) for c in range(n)]

    def source(self, group: int, step: int) -> int:
        """The group whose block is at `group` in a step of the ring, if it comes so far."""
        return (group - step) % self.steps

    def links(self, seat: Seat, steps: int) -> list[Link]:
        """With whom in the group so many steps further round the ring a rank shares which slots: to whom it
        sends these of a block, and from whom it gets them. None with its own group.

        The peers are in the order of their heads, on both sides.
        """
        group = (seat.group + steps) % self.steps
        return _links(seat, self.groups[group]) if group != seat.group else []

    def _needing(self, group: int) -> list[int]:
        """How many steps further round the ring the other groups are that need the block of one."""
        first = self.groups[group].segments[0].start
        ends = [self.groups[(group + d) % self.steps].segments[-1].end for d in range(self.steps)]
        return [d for d in range(1, self.steps) if ends[d] - 1 > first]

    def _sent(self, group: int) -> int:
        """Tokens of a group's block that travel."""
        if not self.plan.keep_tail:
            return self.groups[group].tokens
        last = max((g.segments[-1].end - 1 for i, g in enumerate(self.groups) if i != group), default=-1)
        return sum(s.end - s.start for s in self.groups[group].segments if s.start < last)

    def _group(self, g: int) -> Group:
        shares = self.plan.groups[g]
        own = [s for m in shares for s in self.plan.segments[m.rank]]
        segments = _joined(sorted(own))
        members, first = [], 0
        for m in shares:
            tokens, slots = self.plan.tokens(m.rank), self._slots(first, m.q_heads)
            rows = _rows(self.plan.segments[m.rank], segments)
            members.append(Seat(m.rank, g, tokens, first, m.q_heads, slots, rows))
            first += m.q_heads
        return Group(tuple(members), segments, sum(m.tokens for m in members))

    def _slots(self, first: int, heads: int) -> tuple[Slot, ...]:
        each = self.plan.q_heads // self.plan.kv_heads
        inside = [(i, p) for i, p in enumerate(self.pieces) if first <= p.start and p.end <= first + heads]
        return tuple(Slot(i, j) for i, p in inside for j in range(p.start // each, (p.end - 1) // each + 1))


def _pieces(plan: Plan) -> tuple[Segment, ...]:
    """The common refinement of all groups' head intervals."""
    borders = {0, plan.q_heads}
    for group in plan.groups:
        first = 0
        for m in group:
            first += m.q_heads
            borders.add(first)
    cuts = sorted(borders)
    return tuple(Segment(a, b) for a, b in zip(cuts, cuts[1:]))


def _joined(rising: list[Segment]) -> tuple[Segment, ...]:
    out: list[Segment] = []
    for s in rising:
        if out and out[-1].end == s.start:
            out[-1] = Segment(out[-1].start, s.end)
        else:
            out.append(s)
    return tuple(out)


def _rows(own: tuple[Segment, ...], held: tuple[Segment, ...]) -> tuple[Rows, ...]:
    """Where the tokens of a rank are in its group's block; each of its segments lies in one of the
    group's."""
    out, row, before, i = [], 0, 0, 0
    for s in own:
        while held[i].end <= s.start:
            before, i = before + held[i].end - held[i].start, i + 1
        out.append(Rows(row, before + s.start - held[i].start, s.end - s.start))
        row += s.end - s.start
    return tuple(out)


def _links(seat: Seat, others: Group) -> list[Link]:
    """The slots that a rank has in common with each member of another group: a run, as both are in order."""
    out = []
    for m in others.members:
        theirs = set(m.slots)
        common = [i for i, s in enumerate(seat.slots) if s in theirs]
        if common:
            out.append(Link(m.rank, common[0], common[-1] + 1))
    return out
