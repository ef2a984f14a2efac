"""A plan of one sequence as a replay trains it; as course.py, with whole steps."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional

import torch

from .compare import Checking, Inputs, checked
from .compare_step import CheckStep
from .frames import Place
from .kernels import Kernel
from .loss import compared, loss_of
from .parts import Part, Training, Work
from .plan import Plan, PlanError
from .record import Recorder
from .request import Request
from .training import Alive, Ends, Trained
from .whole import Layers

_STAGES = ("zero0", "zero1", "zero2", "zero3")


def training_of(document: Mapping[str, Any], plan: Plan) -> Training:
    """How a plan document says that it is trained."""
    job = document["job"]
    model, zero, overlap = job["model"], job.get("zero") or "zero3", job.get("overlap_zero", False)
    if zero not in _STAGES:
        raise PlanError(f"job.zero: {zero!r}: want {', '.join(_STAGES)}, or none for zero3")
    if not isinstance(overlap, bool):
        raise PlanError(f"job.overlap_zero: {overlap!r}: want true or false")
    rows = model.get("position_rows", 0)
    if isinstance(rows, bool) or not isinstance(rows, int) or rows and rows < plan.seq_len:
        raise PlanError(f"job.model.position_rows: {rows!r}: want a row for each of {plan.seq_len} tokens, or none")
    members = tuple(sorted(share.rank for group in plan.groups for share in group))
    return Training(members, _STAGES.index(zero), overlap, bool(model.get("tied_embeddings")),
                    bool(model.get("vocab_bias")), rows)


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
        device, nothing = of.wires.device, torch.arange(0)
        trained = self._made(of.meeting.world.rank, of.kernel, of.layers, device, of.frames.alive)
        # Whoever takes no part may still be the one that judges.
        ends = trained.ends if trained is not None else Ends(
            self._lost, self._training, of.layers.model, nothing, nothing, device)
        entry["loss"] = compared(self._lost, self._training.members, of, ends.loss)
        entry.update(CheckStep(self._training, self._lost, self.asked.layers, trained, of).run())
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
        if self._trained is not None:
            self._trained.run()
        self._trace.mb = 0

    def _made(
        self, rank: int, kernel: Kernel, layers: Layers, device: torch.device, alive: Alive
    ) -> Optional[Trained]:
        """None on a rank that takes no part."""
        part = self._part(rank)
        if self._trained is None and part is not None:
            self._trained = Trained(part, self._training, self._lost, rank, layers, self.asked.layers, kernel, device,
                                    alive=alive)
        return self._trained

    def _part(self, rank: int) -> Optional[Part]:
        return self.work.own(rank)[0] if rank in self._training.members else None
