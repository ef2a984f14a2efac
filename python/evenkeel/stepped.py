"""A plan of one sequence or of batches as a replay trains it; as course.py, with whole steps. Of batches all ranks meet
between micro-batches, those too that the others train without."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional

import torch

from . import fields
from .compare import Checking, Inputs, checked
from .compare_step import CheckStep
from .frames import Place
from .kernels import Kernel
from .loss import compared, loss_of
from .meter import timed
from .parts import Training, Work
from .plan import PlanError
from .record import Recorder
from .request import Request
from .training import Alive, Ends, Trained
from .whole import Layers

_STAGES = ("zero0", "zero1", "zero2", "zero3")


def training_of(document: Mapping[str, Any], work: Work) -> Training:
    """How a plan document says that its work is trained. Raises PlanError, which names the field."""
    job = document["job"]
    model, zero, overlap = job["model"], job.get("zero") or "zero3", job.get("overlap_zero", False)
    if zero not in _STAGES:
        raise PlanError(f"job.zero: {zero!r}: want {', '.join(_STAGES)}, or none for zero3")
    if not isinstance(overlap, bool):
        raise PlanError(f"job.overlap_zero: {overlap!r}: want true or false")
    rows, longest = model.get("position_rows", 0), _longest(work)
    if isinstance(rows, bool) or not isinstance(rows, int) or rows and rows < longest:
        raise PlanError(f"job.model.position_rows: {rows!r}: want a row for each of {longest} tokens, or none")
    return Training(_members(document, work), _STAGES.index(zero), overlap, bool(model.get("tied_embeddings")),
                    bool(model.get("vocab_bias")), rows)


def _longest(work: Work) -> int:
    """Tokens of the longest sequence or document, as positions count in each from 0."""
    if not work.batched:
        return work.like.seq_len  # as solve plans for
    return max(n for _, part in work.parts() for n in part.docs or (part.plan.seq_len,))


def _members(document: Mapping[str, Any], work: Work) -> tuple[int, ...]:
    """Who has a share in weights: of a plan of one sequence those with tokens or heads; of batches all but
    left_out_ranks, those too that happen to have no work."""
    if not work.batched:
        return tuple(sorted(share.rank for group in work.like.groups for share in group))
    size, left = len(document["ranks"]), document.get("left_out_ranks") or []
    if left:
        fields.numbers(document, "left_out_ranks", "", 0)
        if any(a >= b for a, b in zip(left, left[1:])) or left[-1] >= size:
            raise PlanError(f"left_out_ranks: {left}: want rising ones of 0 to {size - 1}")
    for _, part in work.parts():
        for r in set(left).intersection(part.ranks):
            raise PlanError(f"left_out_ranks: {r}: has work in {part.name}")
    return tuple(r for r in range(size) if r not in left)


class StepCourse:
    """One plan, of which a step is whole. Its weights, gradients and optimizer's state are its own."""

    def __init__(self, work: Work, asked: Request) -> None:
        assert work.training is not None and work.lost is not None
        self.work, self.asked = work, asked
        self._training, self._lost = work.training, work.lost
        self._trained: Optional[Trained] = None

    def checked(self, of: Checking) -> tuple[dict[str, Any], dict[str, Any]]:
        """See compare, and compare_step of what is checked of a step besides."""
        entry, exact = checked(self.work, of)
        assert of.layers is not None
        device = of.wires.device
        trained = self._made(of.meeting.world.rank, of.kernel, of.layers, device, of.frames.alive)
        # Whoever takes no part may still be the one that judges.
        ends = trained.ends if trained is not None else Ends(self._lost, self._training, of.layers.model, device)
        entry["loss"] = compared(self._lost, self._training.members, of, ends.loss)
        entry.update(CheckStep(self.work, self.asked.layers, trained, of).run())
        return entry, exact

    def prepare(
        self, rank: int, inputs: Inputs, kernel: Kernel, layers: Optional[Layers], trace: Recorder,
        device: torch.device,
    ) -> None:
        """Makes weights and state, unless checks have."""
        loss_of.cache_clear()  # whose weights no step needs
        assert layers is not None
        self._trace = trace
        trained = self._made(rank, kernel, layers, device, trace.alive)
        if trained is not None:
            trained.traced(trace)

    def clear(self) -> None:
        """Leaves nothing of the last step but what was learned."""
        if self._trained is not None:
            self._trained.clear()

    def run(self, meet: Callable[[], None], place: Place) -> None:
        """One step."""
        trace, batched, number = self._trace, self.work.batched, len(self.work.micro)

        def begin(i: int) -> None:
            trace.mb = i
            if batched:
                place.mb = i

        def end(i: int) -> None:
            if i == number - 1:  # which the exchange and the optimizer follow at once
                return
            trace.layer = 0
            with timed(trace, "bwd", 0, "meet"):
                meet()

        if self._trained is not None:
            self._trained.run(begin, end)
        else:
            for i in range(number):
                begin(i)
                end(i)

    def _made(
        self, rank: int, kernel: Kernel, layers: Layers, device: torch.device, alive: Alive
    ) -> Optional[Trained]:
        """None on a rank that takes no part."""
        if self._trained is None and rank in self._training.members:
            self._trained = Trained(self.work, rank, layers, self.asked.layers, kernel, device, alive=alive)
        return self._trained
