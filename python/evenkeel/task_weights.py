"""Gradients of weights of a plan of tasks, as they are compared: which of their elements, and whether the ranks of a
run have added them up right."""

from __future__ import annotations

import math
from typing import Any, Collection, Optional, Sequence

import torch
from torch import Tensor

from .judge import LIMITS, Found, Judge
from .tasks import Tasks

# Of a weight's gradient about this many elements are compared.
PICKED = 4096

_FLOAT32 = 4  # bytes


class Picks:
    """Of each weight of some shapes, the elements of its gradient that are compared."""

    def __init__(self, shapes: Collection[tuple[int, ...]]) -> None:
        self._sizes = [math.prod(shape) for shape in shapes]
        self._steps = [_step(n, shape[-1] if len(shape) > 1 else 1) for n, shape in zip(self._sizes, shapes)]
        self.counts = [len(range(0, n, step)) for n, step in zip(self._sizes, self._steps)]

    def of(self, grads: Sequence[Tensor]) -> list[Tensor]:
        """Those of all weights' gradients, by weight."""
        return [x.reshape(-1)[::step] for x, step in zip(grads, self._steps)]

    def places(self) -> Tensor:
        """Where they are in one piece of all weights, rising."""
        starts = [sum(self._sizes[:i]) for i in range(len(self._sizes))]
        return torch.cat([start + torch.arange(0, n, step)
                          for start, n, step in zip(starts, self._sizes, self._steps)])

    def joined(self, grads: Sequence[Tensor]) -> Tensor:
        """The same in one piece, in float32, which is exact."""
        return torch.cat(self.of(grads)).float()

    def cut(self, flat: Tensor) -> Sequence[Tensor]:
        """All weights' gradients, of one piece of them."""
        parts: Sequence[Tensor] = flat.split(self._sizes)
        return parts


def _step(n: int, columns: int) -> int:
    """Of n elements of a matrix every so many are compared: PICKED or more, spread over the rows. The step has no
    divisor in common with the number of columns, so as many elements as there are columns are in as many columns: in
    all of them where there are up to PICKED."""
    step = max(1, n // PICKED)
    while math.gcd(step, columns) > 1:
        step -= 1
    return step


class Sums:
    """A step's gradients of weights on one rank, of the elements that are compared: its own, and what they are once
    they are added up among the ranks of a run."""

    def __init__(self, tasks: Tasks, rank: int) -> None:
        self._tasks, self._rank = tasks, rank
        self.picks = [Picks(m.model.shapes().values()) for m in tasks.modules]
        self.sums: dict[tuple[int, int], Tensor] = {}  # by run and layer
        self._own: dict[tuple[int, int], Tensor] = {}

    def before(self, run: int, layer: int, grads: Sequence[Tensor]) -> None:
        """Takes the rank's own gradients of a layer of a run that has several ranks."""
        self._own[run, layer] = self.picks[self._tasks.runs[run].module].joined(grads)

    def after(self, run: int, layer: int, flat: Tensor) -> None:
        """Takes a layer's gradients, added up."""
        picks = self.picks[self._tasks.runs[run].module]
        self.sums[run, layer] = picks.joined(picks.cut(flat))

    def judged(self, judge: Judge, travels: Optional[torch.dtype], device: torch.device) -> Optional[dict[str, Any]]:
        """The plan's entry `exchange`: None where no run has several ranks. travels: in which precision this rank's
        gradients were added up, if they were. All ranks call this."""
        if not any(len(run.ranks) > 1 for run in self._tasks.runs):
            return None
        nothing, places = torch.empty(0, device=device), self._places(self._rank)
        size = torch.empty(0, dtype=travels).element_size() if travels is not None else 0
        mine = [torch.cat([nothing, *(of[at] for at in places)]) for of in (self._own, self.sums)]
        mine.append(torch.full((1 if places else 0,), float(size), device=device))
        entry = judge.judged("exchange", mine, self._rows, lambda parts: self._errors(parts, judge),
                             "what its ranks had, added up in float64")
        more = {"limit": entry.pop("limit"), "dtype": entry.pop("dtype")}
        return {"sum": max(entry.values()), **more}

    def _places(self, rank: int) -> list[tuple[int, int]]:
        """The runs and layers whose gradients a rank adds up with others, in order."""
        return [(i, layer) for i, run in enumerate(self._tasks.runs) if rank in run.ranks and len(run.ranks) > 1
                for layer in range(run.first, run.first + run.layers)]

    def _lengths(self, rank: int) -> list[int]:
        return [sum(self.picks[self._tasks.runs[i].module].counts) for i, _ in self._places(rank)]

    def _rows(self, rank: int) -> list[int]:
        lengths = self._lengths(rank)
        return [sum(lengths), sum(lengths), 1 if lengths else 0]

    def _errors(self, parts: list[list[Tensor]], judge: Judge) -> Found:
        """By run and rank, of the worst weight."""
        ranks = range(len(parts))
        own, sums = ([dict(zip(self._places(r), parts[r][k].split(self._lengths(r)))) for r in ranks] for k in (0, 1))
        errors: dict[str, list[float]] = {}
        for i, run in enumerate(self._tasks.runs):
            if len(run.ranks) == 1:
                continue
            counts, worst = self.picks[run.module].counts, [0.0] * len(parts)
            for layer in range(run.first, run.first + run.layers):
                had = [own[r][i, layer].double().split(counts) for r in run.ranks]
                came = [sums[r][i, layer].double().split(counts) for r in run.ranks]
                for w in range(len(counts)):
                    of = [x[w] for x in had]
                    for r, got in zip(run.ranks, came):
                        worst[r] = max(worst[r], apart(got[w], of))
            errors[f"the sum of run {i}'s gradients"] = worst
            judge.tick("exchange")
        full = any(float(x) == _FLOAT32 for *_, size in parts for x in size)
        dtype = "f32" if full else self._tasks.dtype
        return errors, LIMITS[dtype], {"limit": LIMITS[dtype], "dtype": dtype}


def apart(got: Tensor, parts: Sequence[Tensor]) -> float:
    """|got - sum| over |sum|, or over the norm of all parts where these cancel each other."""
    if not bool(torch.isfinite(got).all()):
        return math.inf
    want = torch.stack(list(parts)).sum(0)
    scale = max(float(want.norm()), math.hypot(*(float(x.norm()) for x in parts)))
    return float((got - want).norm()) / (scale or 1.0)
