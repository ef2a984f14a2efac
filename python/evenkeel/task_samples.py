"""Which samples of tasks are compared with one device, where all of them would take too long."""

from __future__ import annotations

import bisect
import itertools
import random
from dataclasses import dataclass
from typing import Sequence

from .judge import SAMPLED_ROWS, layer_work
from .tasks import Module, Tasks
from .whole import Model

# Bytes of all that grows with the samples which one device may hold, in float64.
HELD = 4 << 30

Seats = set[tuple[int, int]]  # a run and a rank of it


@dataclass(frozen=True)
class Knot:
    """Samples, by module, of which none is without the others: what they are needed for, and what they need."""

    samples: tuple[tuple[int, ...], ...]


def attention_samples(tasks: Tasks, module: int, sampled_above: int, affordable: float, seed: int) -> list[int]:
    """Samples of a module whose attention is compared: all, if they have up to so many tokens together, else one of
    every rank of every run and as many more, as far as that takes no more FLOPs than are affordable; one at least."""
    of = tasks.modules[module]
    source = random.Random(f"{seed} attention {module}")
    order = source.sample(range(of.batch), of.batch)
    most = int(affordable / attention_work(of, sampled_above))
    needed: list[int] = []
    for run in (run for run in tasks.runs if run.module == module):
        for rank in run.ranks:
            share = run.share(rank)
            if not any(share.start <= s < share.end for s in needed):
                needed.append(source.randrange(share.start, share.end))
    full = max(len(needed), sampled_above // of.seq_len)
    there = set(needed)
    wanted = [*needed, *(s for s in order if s not in there)][:full]
    return sorted(wanted[:max(1, most)])


def attention_work(of: Module, sampled_above: int) -> float:
    """FLOPs of the reference of a sample's attention, with all rows or some of them."""
    wide, n = of.model.q_heads * of.model.head_dim, of.seq_len
    if n <= sampled_above:
        return 16.0 * wide * n * n
    return 16.0 * wide * n * SAMPLED_ROWS + 16.0 * wide / of.model.kv_heads * n * n


def whole_samples(tasks: Tasks, sampled_above: int, affordable: float, seed: int) -> list[list[int]]:
    """By module, the samples that are compared after all layers, which need no others: in an order by seed, those first
    that ranks have of whom there are none yet, as many as are affordable. None of a module with more tokens a sample,
    nor of those that need it or that it needs."""
    costs, holders = [Cost.of(m, sampled_above) for m in tasks.modules], Holders(tasks)
    left = Left(affordable, costs)
    out: list[list[int]] = [[] for _ in tasks.modules]
    knots = [k for k in knots_of(tasks) if left.fits(k)]
    random.Random(f"{seed} samples").shuffle(knots)
    cheapest, seen, others = min(map(left.work, knots), default=0.0), Seats(), list[Knot]()
    for fresh, some in ((True, knots), (False, others)):
        for knot in some:
            if left.flops < cheapest:
                break
            mine = holders.of(knot) if len(seen) < holders.seats else seen
            if fresh and mine <= seen:
                others.append(knot)
            elif left.fits(knot):
                left.take(knot)
                seen |= mine
                for samples, more in zip(out, knot.samples):
                    samples += more
    return [sorted(samples) for samples in out]


@dataclass(frozen=True)
class Cost:
    """What one device spends on a sample of a module: FLOPs, bytes that it holds until the end, and those while it is
    at the module's layers."""

    flops: float
    kept: float
    at_work: float

    @staticmethod
    def of(m: Module, sampled_above: int) -> "Cost":
        """The layers are computed forward twice and backward. Kept are their inputs and five more as large: drawn input
        and gradient, result, its gradient, and what came from the ranks."""
        if m.seq_len > sampled_above:
            return Cost(float("inf"), 0.0, 0.0)
        return Cost(m.layers * 4 / 3 * layer_work(m.model, m.seq_len, m.seq_len**2),
                    8.0 * m.seq_len * m.model.hidden * (m.layers + 5), 8.0 * m.seq_len * graph(m.model))


def graph(m: Model) -> int:
    """Elements that a layer's graph keeps of a token for its backward pass, in the plain form of reference.py; or a few
    more."""
    return 12 * m.hidden + 5 * m.qkv + m.q_heads * m.head_dim + 2 * m.up + 5 * m.ffn


class Left:
    """What may still be spent of FLOPs and of HELD."""

    def __init__(self, flops: float, costs: Sequence[Cost]) -> None:
        self.flops, self._costs = flops, costs
        self._kept, self._at_work = 0.0, [0.0] * len(costs)

    def work(self, knot: Knot) -> float:
        """FLOPs of a knot's reference."""
        return sum(len(s) * c.flops for s, c in zip(knot.samples, self._costs) if s)

    def fits(self, knot: Knot) -> bool:
        """Whether it may be spent on a knot. Modules are at work one after the other."""
        return self.work(knot) <= self.flops and sum(self._with(knot)) <= HELD

    def take(self, knot: Knot) -> None:
        """Spends it."""
        self.flops -= self.work(knot)
        self._kept, _ = self._with(knot)
        self._at_work = self._working(knot)

    def _with(self, knot: Knot) -> tuple[float, float]:
        """Bytes with a knot, kept and at work."""
        kept = sum(len(s) * c.kept for s, c in zip(knot.samples, self._costs))
        return self._kept + kept, max(self._working(knot))

    def _working(self, knot: Knot) -> list[float]:
        return [n + len(s) * c.at_work for n, s, c in zip(self._at_work, knot.samples, self._costs)]


class Holders:
    """Which ranks of which runs have a sample. seats: of how many there are."""

    def __init__(self, tasks: Tasks) -> None:
        self._runs: list[list[tuple[int, tuple[int, ...], list[int]]]] = [[] for _ in tasks.modules]
        for i, run in enumerate(tasks.runs):
            self._runs[run.module].append((i, run.ranks, list(itertools.accumulate(run.samples))))
        self.seats = sum(len(run.ranks) for run in tasks.runs)

    def of(self, knot: Knot) -> Seats:
        """Of all samples of a knot."""
        return {(i, ranks[bisect.bisect_right(ends, s)])
                for samples, runs in zip(knot.samples, self._runs) for i, ranks, ends in runs for s in samples}


def knots_of(tasks: Tasks) -> list[Knot]:
    """All samples of all modules."""
    starts = [sum(m.batch for m in tasks.modules[:i]) for i in range(len(tasks.modules))]
    above = list(range(sum(m.batch for m in tasks.modules)))  # a forest, whose trees are knots

    def top(i: int) -> int:
        while above[i] != i:
            above[i] = i = above[above[i]]
        return i

    for j, m in enumerate(tasks.modules):
        for n in m.needs:
            for a in range(tasks.modules[n].batch):
                above[top(starts[n] + a)] = top(starts[j] + a * m.batch // tasks.modules[n].batch)
    found: dict[int, list[list[int]]] = {}
    for j, m in enumerate(tasks.modules):
        for a in range(m.batch):
            tree = top(starts[j] + a)
            if tree not in found:
                found[tree] = [[] for _ in tasks.modules]
            found[tree][j].append(a)
    return [Knot(tuple(tuple(x) for x in of)) for of in found.values()]


def own(samples: Sequence[int], tasks: Tasks, run: int, rank: int) -> list[int]:
    """Those of some samples that a rank has of a run."""
    share = tasks.runs[run].share(rank)
    return [s for s in samples if share.start <= s < share.end]
