"""Which samples of tasks are compared with one device, where all of them would take too long."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Sequence

from .judge import SAMPLED_ROWS, layer_work
from .tasks import Module, Tasks

# Bytes of all layers' inputs in float64 that one device may hold.
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
    wanted = [*needed, *(s for s in order if s not in needed)][:full]
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
    left, held, seen = affordable, float(HELD), Seats()
    out: list[list[int]] = [[] for _ in tasks.modules]
    knots = knots_of(tasks)
    random.Random(f"{seed} samples").shuffle(knots)
    for fresh in (True, False):
        for knot in list(knots):
            mine = seats(tasks, knot)
            if fresh and mine <= seen:
                continue
            work, size = costs(tasks, knot, sampled_above)
            knots.remove(knot)
            if work > left or size > held:
                continue
            left, held, seen = left - work, held - size, seen | mine
            for samples, more in zip(out, knot.samples):
                samples += more
    return [sorted(samples) for samples in out]


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
            found.setdefault(top(starts[j] + a), [[] for _ in tasks.modules])[j].append(a)
    return [Knot(tuple(tuple(x) for x in of)) for of in found.values()]


def seats(tasks: Tasks, knot: Knot) -> Seats:
    """The ranks of runs that have samples of a knot."""
    out = Seats()
    for i, run in enumerate(tasks.runs):
        for rank in run.ranks:
            share = run.share(rank)
            if any(share.start <= s < share.end for s in knot.samples[run.module]):
                out.add((i, rank))
    return out


def costs(tasks: Tasks, knot: Knot, sampled_above: int) -> tuple[float, float]:
    """FLOPs of a knot's reference, forward twice and backward, and bytes of what it holds."""
    work = size = 0.0
    for m, of in zip(tasks.modules, knot.samples):
        if of and m.seq_len > sampled_above:
            return float("inf"), 0.0
        work += len(of) * m.layers * 4 / 3 * layer_work(m.model, m.seq_len, m.seq_len**2)
        size += len(of) * m.layers * m.seq_len * m.model.hidden * 8
    return work, size


def own(samples: Sequence[int], tasks: Tasks, run: int, rank: int) -> list[int]:
    """Those of some samples that a rank has of a run."""
    share = tasks.runs[run].share(rank)
    return [s for s in samples if share.start <= s < share.end]
