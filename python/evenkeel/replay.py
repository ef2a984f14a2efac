"""One rank of `evenkeel replay`: checks plans against one device and then times their layers.

Started by evenkeel with the environment that torchrun sets, a request on stdin and file descriptor 3 open for
frames. A step is `layers` layers forward and then backward on the rank's tokens, if asked with the loss behind
them. Of a plan of batches a step is that of every micro-batch in turn, in each of which the rank's group has a packed
sequence, and at the end of which all ranks meet. If asked, of plans of one sequence and of batches it is a whole training
step, with the embedding, the exchange of gradients and parameters among the ranks and the optimizer, as if the model
had so many layers; of batches gradients are added up over the micro-batches, between which all ranks meet. Of a
pipeline a step is all layers of the model, on its stages, and all chunks; of tasks it is all layers of all modules.
Where any plan has two_batch_overlap, a step of every plan is two micro-batches of its sequence: of that one through the
layers together, of the others one after the other.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import platform
import random
import resource
import socket
import time
from typing import Any, Mapping, Optional, Sequence, Union

import torch

from . import host, stages, tasks, vectors
from .compare import Checking, Inputs
from .confine import Confinement, ConfineError, confine
from .course import Course
from .drawn import DTYPES
from .frames import Fault, Frames, read_request
from .judge import LIMITS
from .kernels import Kernel, Math, default_kernel
from .lane import LaneError
from .parts import Lost, Work, few_groups, join, work_of
from .plan import Plan, PlanError
from .port import ExchangeError
from .record import Journal, Recorder, gather
from .rendezvous import Meeting, Wires, World, describe, package_hash
from .request import Request, kernel_named
from .staged import Staged, StagedCourse
from .stepped import StepCourse, training_of
from .tasked import Tasked, TaskedCourse, many_queues
from .whole import Layers, Model, model_of

AnyWork = Union[Work, Staged, Tasked]
AnyCourse = Union[Course, StepCourse, StagedCourse, TaskedCourse]

# After a peer is lost, before the process leaves: others that wait for the same peer shall name it, and not
# this rank. The keeper of the store stays longer, for them to hear the first cause.
_LINGER_S, _KEEPER_LINGER_S = 0.5, 1.5


def main() -> None:
    """Serves the one request of this process, and ends it."""
    gc.freeze()  # modules stay; looking through torch's takes a tenth of a second, which every collection would
    os.dup2(2, 1)  # libraries write to stdout, which may be a pipe that nobody reads
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Of tasks each two runs have process groups of their own, with a connection to every rank.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    frames, rank = Frames(), None
    try:
        asked = Request.of(read_request())
        frames.start()
        rank = _Rank(asked, World.of(os.environ), frames)
        frames.send({"t": "result", **rank.run()}, True)
    except BaseException as error:  # whatever it is, the starter must hear of it
        _report(_fault(error), rank, frames)
        os._exit(1)
    os._exit(0)


def _report(fault: Fault, rank: Optional["_Rank"], frames: Frames) -> None:
    said, at = fault.said, str(frames.place)
    meeting = rank.meeting if rank is not None and fault.kind == "peer" else None
    if meeting is not None:
        said = meeting.first_cause(said)
    frames.send({"t": "error", "class": fault.kind, "msg": said[:4000], "at": at}, True)
    if meeting is not None:
        time.sleep(_LINGER_S if meeting.world.rank else _KEEPER_LINGER_S)


def _fault(error: BaseException) -> Fault:
    if isinstance(error, Fault):
        return error
    if isinstance(error, (ExchangeError, LaneError)):
        return Fault("peer", str(error))
    if isinstance(error, PlanError):
        return Fault("usage", str(error))
    said = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
    if "out of memory" in said or isinstance(error, MemoryError):
        said += "; run fewer layers (--layers) or fewer plans at a time"
    return Fault("internal", said)


class _Rank:
    """This process."""

    def __init__(self, asked: Request, world: World, frames: Frames) -> None:
        self._asked, self._world, self._frames = asked, world, frames
        works = _plans(asked, world)
        self._plan = works[0].like
        if isinstance(works[0], Tasked) and _named(asked, world).type == "cuda":
            many_queues(os.environ)
        self._device = _device(asked, world)
        self._confined = _confined(asked, self._device)
        host.use(asked.threads if self._device.type == "cpu" else 0, asked.cores)
        host.keep_freed_memory()
        self._kernel = _kernel(works, self._device) if asked.kernel == "auto" else kernel_named(asked.kernel)
        self._model = _model(works[0], asked, 0)
        self._trace = Recorder(world.rank, self._device, frames, asked.turns)
        in_twos = any(work.in_twos for work in works)
        self._courses = [_course(work, asked, in_twos) for work in works]
        self.meeting: Optional[Meeting] = None

    def run(self) -> dict[str, Any]:
        """The result."""
        self._hello()
        asked, frames = self._asked, self._frames
        frames.enter("meet")
        meeting = self.meeting = Meeting(self._world, asked.timeout_s)
        plans = [[plan, asked.batches_of(i)] for i, plan in enumerate(asked.plans)]
        infos = meeting.agree(describe(self._plan.dtype, plans, asked.shared(), asked.cores))
        wires = meeting.connect(asked.backend, self._device)
        wires.barrier()
        self._join()
        result = self._prepared(meeting, wires)
        journal = Journal(asked.trace + ".own")
        self._timed(wires, journal)
        frames.enter("gather")
        counts = gather(journal, wires, asked.trace)
        wires.barrier()
        journal.remove()
        ranks = [{"rank": r, **{k: info[k] for k in ("host", "python", "torch", "threads", "cores")}}
                 for r, info in enumerate(infos)]
        return {**result, "ranks": ranks, **(counts or {})}

    def _join(self) -> None:
        """Makes the process groups of parts."""
        world, asked = self._world, self._asked
        device = self._device if asked.backend == "nccl" else None
        try:
            wanted = [of for c in self._courses for of in c.work.groups()]
            made = join(wanted, world.rank, world.size, asked.timeout_s, device)
        except (RuntimeError, ValueError) as error:
            said = str(error).strip().splitlines() or [""]
            raise Fault("peer", f"rank {world.rank}: joining groups: {said[0]}") from error
        for course in self._courses:
            course.work.join(made)

    def _hello(self) -> None:
        cuda, part = self._device.type == "cuda", self._confined
        on = torch.cuda.get_device_name(self._device) if cuda else "cpu"
        self._frames.send({
            **({} if cuda else {"vectors": vectors.describe()}), "sms": part.sms if part else 0,
            "t": "hello", "rank": self._world.rank, "pid": os.getpid(), "host": socket.gethostname(),
            "python": platform.python_version(), "torch": str(torch.__version__), "device": on,
            "kernel": self._kernel.name, "evenkeel": package_hash(),
        })

    def _prepared(self, meeting: Meeting, wires: Wires) -> dict[str, Any]:
        """Makes layers and inputs and checks every plan: `numerics` and `exact` of the result."""
        asked, inputs = self._asked, Inputs(self._plan, self._asked.seed, self._device)
        layers: Optional[Layers] = None
        if self._model is not None:
            layers = Layers(self._model, asked.seed, DTYPES[self._plan.dtype], self._device)
        numerics, exact = [], []
        for i, course in enumerate(self._courses if asked.check else []):
            self._frames.enter("numerics", i)
            entry, counted = course.checked(Checking(
                number=i, kernel=self._kernel, inputs=inputs, meeting=meeting, wires=wires, frames=self._frames,
                sampled_above=asked.sampled_above, seed=asked.seed, layers=layers))
            exact.append(counted)
            numerics.append(entry)
        for course in self._courses:
            course.prepare(self._world.rank, inputs, self._kernel, layers, self._trace, self._device)
        return {"numerics": numerics, "exact": exact}

    def _timed(self, wires: Wires, journal: Journal) -> None:
        """Blocks of all plans, each in an order that seed and block give."""
        asked = self._asked
        gc.collect()
        gc.freeze()  # what is there stays; looking through it would take longer than a small step
        gc.disable()
        for number in range(-asked.warmup, asked.repeats):
            order = list(range(len(self._courses)))
            random.Random(f"{asked.seed}/{number}").shuffle(order)
            for i in order:
                if number < 0:
                    self._frames.enter("warmup", i, number + asked.warmup)
                else:
                    self._frames.enter("block", i, number)
                dur_ns = self._step(self._courses[i], wires)
                if number >= 0:
                    journal.step(number, i, self._trace, dur_ns)
            if number >= 0:
                journal.end_block()
        gc.enable()

    def _step(self, course: AnyCourse, wires: Wires) -> int:
        """From leaving the barrier to the end of all this rank has to do, in ns."""
        course.clear()
        gc.collect()
        wires.barrier()
        begin = time.perf_counter_ns()
        self._trace.zero()
        course.run(wires.barrier, self._frames.place)
        wires.sync()
        return time.perf_counter_ns() - begin


def _plans(asked: Request, world: World) -> list[AnyWork]:
    """The plans' work, which must be alike in what ranks and layers are made for."""
    works: list[AnyWork] = []
    for i, document in enumerate(asked.plans):
        try:
            works.append(_work(document, asked, i, world.size))
            _alike(works[i], works[0])
            if _model(works[i], asked, i) != _model(works[0], asked, 0):
                raise PlanError("job.model: another model than that of plan 0; replay them apart")
        except PlanError as error:
            raise Fault("usage", f"plan {i}: {error}") from error
    if asked.backend == "nccl":
        try:
            tasked = [group for work in works if isinstance(work, Tasked) for group in work.groups()]
            few_groups(tasked, world.size, "replay fewer plans at a time, or one")
        except PlanError as error:
            raise Fault("usage", str(error)) from error
    in_twos = next((i for i, work in enumerate(works) if work.in_twos), None)
    if in_twos is not None and asked.parts in ("loss", "step"):
        raise Fault("usage", f"plan {in_twos}: parts: {asked.parts!r}: of a plan with two_batch_overlap, of which "
                             "layers alone are run: want 'layer'")
    for i, work in enumerate(works):
        if in_twos is not None and work.batched:
            raise Fault("usage", f"plan {i}: batches: a step of plan {in_twos}, which has two_batch_overlap, is "
                                 "two micro-batches of one sequence each; replay them apart")
    return works


def _work(document: Mapping[str, Any], asked: Request, number: int, size: int) -> AnyWork:
    of = document.get("schema")
    if of not in _WHOLE:
        work = work_of(document, asked.batches_of(number), asked.docs_tokens, size)
        training = training_of(document, work) if asked.parts == "step" else None
        return dataclasses.replace(work, lost=_lost(document, asked, work.like.dtype), training=training)
    parts = ("layer",) if of == tasks.SCHEMA else ("layer", "loss")
    for name, value, wants in (("parts", asked.parts, parts), ("docs_tokens", asked.docs_tokens, (None,))):
        if value not in wants:
            raise PlanError(f"{name}: {value!r}: {_WHOLE[of]}: want {' or '.join(map(repr, wants))}")
    if of == tasks.SCHEMA:
        return Tasked(tasks.tasks_of(document, size))
    pipeline = stages.pipeline_of(document, size)
    return Staged(pipeline, _lost(document, asked, pipeline.dtype))


# Why plans of these schemas are run in no other way.
_WHOLE = {
    stages.SCHEMA: "stages send each other whole layers' results, of the plan's own sequences",
    tasks.SCHEMA: "runs send each other whole layers' results, of the plan's own samples",
}


def _lost(document: Mapping[str, Any], asked: Request, dtype: str) -> Optional[Lost]:
    """Of the loss, where it is asked for."""
    if asked.parts not in ("loss", "step"):
        return None
    vocab = document["job"]["model"].get("vocab")
    if isinstance(vocab, bool) or not isinstance(vocab, int) or vocab < 1:
        raise PlanError(f"job.model.vocab: {vocab!r}: want a whole number from 1 on, for the loss")
    return Lost(vocab, asked.loss_chunk, asked.seed, dtype)


def _course(work: AnyWork, asked: Request, in_twos: bool) -> AnyCourse:
    if isinstance(work, Tasked):
        return TaskedCourse(work)
    if isinstance(work, Work) and work.training is not None:
        return StepCourse(work, asked)
    return StagedCourse(work) if isinstance(work, Staged) else Course(work, asked, in_twos)


def _model(work: AnyWork, asked: Request, number: int) -> Optional[Model]:
    """What layers are made of: of tasks the first module's model, to which those of the others are added."""
    if isinstance(work, Tasked):
        return work.tasks.modules[0].model
    return model_of(asked.plans[number]) if asked.parts != "attention" else None


def _kernel(works: Sequence[AnyWork], device: torch.device) -> Kernel:
    """The fastest one for the heads of all plans."""
    of = {(plan.head_dim, plan.dtype) for work in works for plan in work.plans()}
    kernels = [default_kernel(torch.empty(0, 0, d, dtype=DTYPES[t], device=device)) for d, t in sorted(of)]
    return next((k for k in kernels if isinstance(k, Math)), kernels[-1])


def _alike(work: AnyWork, first: AnyWork) -> None:
    """Plans must be alike in what ranks and layers are made for."""
    if not (isinstance(work, Tasked) and isinstance(first, Tasked)):
        if isinstance(work, Tasked) or isinstance(first, Tasked):
            raise PlanError("schema: of tasks are all plans of a replay or none; replay them apart")
        for plan in work.plans():
            _known(plan.dtype)
            _like(plan, first.like)
        return
    unlike = work.tasks.unlike(first.tasks)
    if unlike:
        raise PlanError(f"{unlike}; replay them apart")
    _known(work.tasks.dtype)


def _known(dtype: str) -> None:
    """A precision must have a limit of errors."""
    if dtype not in LIMITS:
        raise PlanError(f"job.dtype: {dtype}: replay runs {', '.join(LIMITS)}")


def _like(plan: Plan, first: Plan) -> None:
    for name in ("q_heads", "kv_heads", "head_dim", "dtype"):
        if getattr(plan, name) != getattr(first, name):
            raise PlanError(f"{name}: {getattr(plan, name)}: plan 0 has {getattr(first, name)}; "
                            "replay them apart")


def _named(asked: Request, world: World) -> torch.device:
    """The device that is asked for: a CPU where the plan's device type is one, else a GPU, maybe without its number.
    CUDA does not start for this."""
    name = asked.device
    if not name:
        kind = str(_entry(asked.plans[0], world.rank).get("device", "cpu"))
        name = "cpu" if kind.startswith(("torch_cpu", "cpu")) else "cuda"
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise Fault("usage", f"device: {name!r}: want cpu or cuda:N") from error


def _device(asked: Request, world: World) -> torch.device:
    """The rank's device, a GPU by local rank where no number is asked for."""
    device = _named(asked, world)
    if device.type == "cpu":
        if asked.backend == "nccl":
            raise Fault("usage", "backend: nccl: it connects GPUs, and this rank is on a CPU; use gloo")
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise Fault("usage", f"torch {torch.__version__} sees no accelerator for {device} on this host: replay where "
                    "the plan's GPUs are (on several hosts with one task a rank, under torchrun or Slurm), or plan for the "
                    "processors of this one, on a profile of evenkeel calibrate --backend torch")
    index = device.index if device.index is not None else world.local_rank % count
    if index >= count:
        raise Fault("usage", f"device: cuda:{index}: torch sees {count} of them")
    torch.cuda.set_device(index)
    exact()
    return torch.device("cuda", index)


def exact() -> None:
    """Makes float32 mean float32, before the first product, as for what is measured: NVIDIA's containers switch
    to TF32 through the environment, and torch 1.13 does so whatever precision is asked for afterwards."""
    for name in ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"):
        os.environ.pop(name, None)
    torch.set_float32_matmul_precision("highest")


def _confined(asked: Request, device: torch.device) -> Optional[Confinement]:
    """What this rank is confined to. Fault(usage) where that cannot be, or its GPU has too few for all."""
    if not asked.sms:
        return None
    if device.type != "cuda":
        raise Fault("usage", f"sms: {asked.sms}: this rank is on a {device.type}, not on a GPU")
    try:
        part = confine(asked.sms, device.index or 0)
    except ConfineError as error:
        raise Fault("usage", f"sms: {error}") from error
    if asked.sms_in_all > part.card:
        raise Fault("usage", f"sms: the ranks on this GPU are to have {asked.sms_in_all} multiprocessors, and "
                             f"it has {part.card}: plan for fewer")
    return part


def _entry(document: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    ranks: Sequence[Any] = document["ranks"]
    entry: Mapping[str, Any] = ranks[rank]
    return entry
