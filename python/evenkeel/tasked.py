"""A plan of tasks as a replay runs it: all layers of all modules on their ranks, in the order of the runs."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping, MutableMapping, Optional

import torch

from . import exchange, moves
from .compare import Checking, Inputs
from .compare_tasks import CheckTasks, drawn
from .frames import Place
from .kernels import Kernel
from .parts import Members
from .plan import Plan
from .port import ProcessGroup
from .record import Recorder
from .taskflow import TaskFlow
from .tasks import Tasks
from .whole import Layers


class Tasked:
    """The work of a plan of tasks; as parts.Work."""

    in_twos, batched = False, True

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self.made: Mapping[Members, ProcessGroup] = {}

    @property
    def like(self) -> Plan:
        """See Work: of the first module."""
        return self.tasks.modules[0].like(self.tasks.dtype)

    def plans(self) -> Iterator[Plan]:
        """Those of all modules, a sample each."""
        return (m.like(self.tasks.dtype) for m in self.tasks.modules)

    def groups(self) -> list[Members]:
        """See Work."""
        return [*moves.process_groups(self.tasks), *exchange.process_groups(self.tasks)]

    def join(self, made: Mapping[Members, ProcessGroup]) -> None:
        """See Work."""
        self.made = made


class TaskedCourse:
    """A plan of tasks as it is timed; as course.Course."""

    def __init__(self, work: Tasked) -> None:
        self.work = work
        self._flow: Optional[TaskFlow] = None

    def checked(self, of: Checking) -> tuple[dict[str, Any], dict[str, Any]]:
        """See compare."""
        return CheckTasks(self.work.tasks, self.work.made, of).run()

    def prepare(
        self, rank: int, inputs: Inputs, kernel: Kernel, layers: Optional[Layers], trace: Recorder,
        device: torch.device,
    ) -> None:
        """Makes inputs and layers."""
        assert layers is not None
        tasks, self._trace = self.work.tasks, trace
        if not tasks.own(rank):
            return
        self._given = [{i: drawn(tasks, inputs, name, i, rank) for i in tasks.own(rank) if tasks.ends(i)[end]}
                       for end, name in enumerate(("x", "dy"))]
        self._flow = TaskFlow(tasks, rank, layers, kernel, self.work.made, device, trace)

    def clear(self) -> None:
        """Leaves nothing of the last step."""
        if self._flow:
            self._flow.clear()

    def run(self, meet: Callable[[], None], place: Place) -> None:
        """One step."""
        if self._flow:
            x, dy = self._given
            self._flow.run(x.__getitem__, dy.__getitem__, place=place)
        self._trace.mb = 0


def many_queues(environment: MutableMapping[str, str]) -> None:
    """Before CUDA starts: gives a GPU as many queues as it may have, where the user has not said how many. Streams that
    share one wait for each other's messages, which may wait for what these are to compute."""
    environment.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
