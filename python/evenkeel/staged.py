"""A plan of a pipeline as a replay runs it: all layers of its model on its stages, all chunks, in its order."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping, Optional

import torch
from torch import Tensor

from .compare import Checking, Inputs
from .compare_stages import CheckStages
from .flow import Flow, process_groups
from .frames import Place
from .kernels import Kernel
from .loss import Loss, compared, loss_of
from .parts import Lost, Members
from .plan import Plan
from .port import ProcessGroup
from .record import Recorder
from .stages import Pipeline
from .whole import Layers


class Staged:
    """A pipeline's work; as parts.Work."""

    in_twos, batched = False, True

    def __init__(self, pipeline: Pipeline, lost: Optional[Lost] = None) -> None:
        """lost: of the loss behind the last stage, where it is run."""
        self.pipeline, self.lost = pipeline, lost
        self.made: Mapping[Members, ProcessGroup] = {}

    @property
    def like(self) -> Plan:
        """See Work."""
        return self.pipeline.like

    def plans(self) -> Iterator[Plan]:
        """See Work."""
        yield self.like

    def groups(self) -> list[Members]:
        """See Work."""
        return process_groups(self.pipeline)

    def join(self, made: Mapping[Members, ProcessGroup]) -> None:
        """See Work."""
        self.made = made


class StagedCourse:
    """A pipeline as it is timed; as course.Course."""

    def __init__(self, work: Staged) -> None:
        self.work = work
        self._flow: Optional[Flow] = None
        self._loss: Optional[Loss] = None
        self._gradients: dict[int, Tensor] = {}  # of the loss, by chunk

    def checked(self, of: Checking) -> tuple[dict[str, Any], dict[str, Any]]:
        """See compare."""
        entry, exact = CheckStages(self.work.pipeline, self.work.made, of).run()
        if self.work.lost is not None:
            entry["loss"] = compared(self.work.lost, self.work.pipeline.stages[-1].ranks, of)
        return entry, exact

    def prepare(
        self, rank: int, inputs: Inputs, kernel: Kernel, layers: Optional[Layers], trace: Recorder,
        device: torch.device,
    ) -> None:
        """Makes inputs, of which all chunks have the same, and layers."""
        assert layers is not None
        pipeline, self._trace = self.work.pipeline, trace
        if pipeline.stage_of(rank) < 0:
            return
        s, place = pipeline.seat(rank)
        if self.work.lost is not None and s + 1 == len(pipeline.stages):
            self._loss = loss_of(self.work.lost, layers.model, device)
        rows = [pipeline.rows(s, place, k) for k in range(len(pipeline.chunks))]
        self._tokens = [x.end - x.start for x in rows]
        self._given = [inputs.wide(name, torch.arange(max(self._tokens) if needed else 0), layers.model.hidden)
                       for name, needed in (("x", s == 0), ("dy", s + 1 == len(pipeline.stages) and not self._loss))]
        stage = pipeline.stages[s]
        own = layers.at(stage.first, stage.layers)
        self._flow = Flow(pipeline, rank, own, kernel, self.work.made, device, trace)

    def clear(self) -> None:
        """Leaves nothing of the last step."""
        self._gradients = {}
        if self._flow:
            self._flow.clear()

    def run(self, meet: Callable[[], None], place: Place) -> None:
        """One step."""
        if self._flow:
            x, dy = self._given
            if self._loss is None:
                self._flow.run(self._first(x), self._first(dy), place=place)
            else:
                self._flow.run(self._first(x), self._gradients.pop, self._lose, place=place)
        self._trace.mb = 0

    def _lose(self, chunk: int, y: Tensor) -> None:
        assert self._loss is not None
        self._gradients[chunk] = self._loss.gradient(y, self._trace)

    def _first(self, x: Tensor) -> Callable[[int], Tensor]:
        return lambda chunk: x[:self._tokens[chunk]]
