"""What a plan has for the ranks of a run: one sequence for all of them, or micro-batches of groups.

A plan of batches trains its sequences in micro-batches, one after the other. In each, groups of ranks run
side by side, every one of them the plan of a packed sequence of its own. A plan of one sequence is one
micro-batch of one group of all ranks.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Iterator, Mapping, Optional, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from .executor import attention
from .kernels import Kernel
from .lane import LaneError
from .meter import Meter, Trace
from .plan import Plan, PlanError, Share, documents, load_plan
from .port import ExchangeError, ProcessGroup, backend_of, warm_up
from .split import Steps

BATCH_SCHEMA = "evenkeel.batchplan/v1"

# A process group: its ranks, which rise, and a name, as some ranks need several.
Members = tuple[str, tuple[int, ...]]

SHARING = "shares"  # the name of those that carry gradients and parameters of whole steps

# Process groups that a rank may be in over NCCL. Each is a communicator, with buffers of its own on the GPU, and has a
# stream, of which a GPU has far fewer queues.
MOST_GROUPS = 64


@dataclass
class Part:
    """The work of one group of ranks in one micro-batch.

    plan: the group's, its rank i being rank ranks[i] of the run; these rise. name: in words, "" for the one
    part of a plan of one sequence. group: of torch.distributed, None for all ranks.
    """

    plan: Plan
    ranks: tuple[int, ...]
    docs: Optional[tuple[int, ...]]
    recompute: bool
    name: str = ""
    group: ProcessGroup = None

    def everywhere(self, size: int) -> Plan:
        """The same plan with the run's ranks, of which those of no group have no work."""
        segments = [self.plan.segments[self.ranks.index(r)] if r in self.ranks else () for r in range(size)]
        groups = tuple(tuple(Share(self.ranks[m.rank], m.q_heads) for m in g) for g in self.plan.groups)
        return replace(self.plan, segments=tuple(segments), groups=groups)

    def attention(
        self, rank: int, heads: Sequence[Tensor], kernel: Kernel, meter: Optional[Meter] = None,
        trace: Optional[Trace] = None,
    ) -> Tensor:
        """executor.attention of a rank of the run that is in the group."""
        q, k, v = heads
        return attention(self.plan, self.ranks.index(rank), q, k, v, group=self.group, kernel=kernel,
                         docs=self.docs, meter=meter, trace=trace)

    def steps(
        self, rank: int, heads: Sequence[Tensor], kernel: Kernel, meter: Optional[Meter] = None,
        trace: Optional[Trace] = None,
    ) -> Steps:
        """split.Steps of a rank of the run that is in the group."""
        q, k, v = heads
        return Steps(self.plan, self.ranks.index(rank), q, k, v, group=self.group, kernel=kernel,
                     docs=self.docs, meter=meter, trace=trace)

    def counted(self, meter: Meter) -> Meter:
        """What was counted in the group, by ranks of the run."""
        out = Meter()
        out.add(meter, self.ranks)
        return out

    def named(self) -> Any:
        """Inside, lost peers are named by the run's ranks too: see named."""
        return named(self.name, self.ranks) if self.name else contextlib.nullcontext()


@dataclass(frozen=True)
class Lost:
    """What a plan's loss is of. chunk: tokens whose logits exist at a time."""

    vocab: int
    chunk: int
    seed: int
    dtype: str


@dataclass
class Training:
    """How a plan is trained, where whole steps are run. members: the ranks that take part, rising: of one sequence those
    with tokens or heads, of batches all but those that the others train without. stage: of ZeRO: 0 shards nothing over
    them, 1 the optimizer's state, 2 gradients too, 3 also parameters. overlap: gathering and reducing go on while layers
    compute. tied: the projection to the vocabulary is the token table. vocab_bias: it has a bias. position_rows: of the
    table of positions, 0 where there is none. group: of torch.distributed, of the members."""

    members: tuple[int, ...]
    stage: int
    overlap: bool
    tied: bool
    vocab_bias: bool
    position_rows: int
    group: ProcessGroup = None

    @property
    def sharded(self) -> bool:
        """Whether a member updates its share of the parameters."""
        return self.stage > 0 and len(self.members) > 1

    def groups(self) -> list[Members]:
        """The process group that it needs, which has nothing but gradients and parameters to carry."""
        return [(SHARING, self.members)] if len(self.members) > 1 else []


@dataclass(frozen=True)
class Work:
    """A plan's micro-batches; `batched` for a plan of batches, whose ranks meet after each, in whole steps but the
    last. lost: of the loss behind the layers, where it is run. training: where whole steps are."""

    micro: tuple[tuple[Part, ...], ...]
    batched: bool
    lost: Optional[Lost] = None
    training: Optional[Training] = None

    @property
    def like(self) -> Plan:
        """A plan with its heads and precision."""
        return next(self.parts())[1].plan

    @property
    def in_twos(self) -> bool:
        """Whether its micro-batches go through the layers in twos."""
        return any(part.plan.two_batch_overlap for _, part in self.parts())

    def parts(self) -> Iterator[tuple[int, Part]]:
        """All parts, with their micro-batch."""
        for i, side in enumerate(self.micro):
            for part in side:
                yield i, part

    def plans(self) -> Iterator[Plan]:
        """Those of all parts."""
        return (part.plan for _, part in self.parts())

    def groups(self) -> list[Members]:
        """The process groups that it needs."""
        return [("", part.ranks) for _, part in self.parts()] + (self.training.groups() if self.training else [])

    def join(self, made: Mapping[Members, ProcessGroup]) -> None:
        """Takes them."""
        for _, part in self.parts():
            part.group = made["", part.ranks]
        if self.training is not None:
            for of in self.training.groups():
                self.training.group = made[of]

    def own(self, rank: int) -> list[Optional[Part]]:
        """By micro-batch, the part that a rank has."""
        return [next((p for p in side if rank in p.ranks), None) for side in self.micro]


@contextlib.contextmanager
def named(name: str, ranks: Sequence[int]) -> Iterator[None]:
    """Inside, lost peers are named by their place among a process group's ranks: says whose places these are."""
    try:
        yield
    except (ExchangeError, LaneError) as error:
        listed = ", ".join(map(str, ranks))
        raise type(error)(f"{name}, whose ranks 0 to {len(ranks) - 1} are those of the run {listed}: "
                          f"{error}") from error


def work_of(
    document: Mapping[str, Any], batches: Optional[Sequence[Any]], docs: Optional[Sequence[int]], size: int
) -> Work:
    """The work of a plan document on so many ranks. batches: the micro-batches of one of batches, each a list
    of {"plan", "ranks", "docs_tokens"}; docs are of the others. Raises PlanError, which names the field."""
    if batches is None:
        plan = load_plan(document)
        documents(plan.seq_len, docs)
        if plan.ranks != size:
            raise PlanError(f"ranks: {plan.ranks}: {size} ranks were started")
        packed = tuple(docs) if docs is not None else None
        return Work(((Part(plan, tuple(range(size)), packed, _recomputes(document)),),), False)
    if document.get("schema") != BATCH_SCHEMA:
        raise PlanError(f"schema: {document.get('schema')!r}: want {BATCH_SCHEMA!r} where there are batches")
    if docs is not None:
        raise PlanError("docs_tokens: a plan of batches has its own sequences")
    if not isinstance(document.get("ranks"), list) or len(document["ranks"]) != size:
        raise PlanError(f"ranks: {size} ranks were started: want a list of as many")
    micro = tuple(_side_by_side(side, i, size) for i, side in enumerate(batches))
    if not any(micro):
        raise PlanError("batches: no group has work")
    return Work(micro, True)


def few_groups(groups: Sequence[Members], ranks: int, way_out: str) -> None:
    """PlanError where any rank would be in more process groups than it may over NCCL. groups: of runs of tasks.
    way_out: what to do, before "of fewer runs"."""
    number = [sum(rank in of for _, of in set(groups)) for rank in range(ranks)]
    most = max(number)
    if most > MOST_GROUPS:
        raise PlanError(
            f"runs: rank {number.index(most)} sends and adds up in {most} process groups: over nccl a rank is in up to "
            f"{MOST_GROUPS}: {way_out} of fewer runs, as of solve --take sequential")


def carrying(device: torch.device) -> Optional[torch.device]:
    """Where the messages of a trainer's ranks are, whose tensors are on `device`: None for the host's memory. Raises
    ValueError where the default process group carries none of them."""
    try:
        nccl = backend_of(None, device) == "nccl"
    except KeyError:
        raise ValueError(f"device: {device}: the process group carries nothing there") from None
    if nccl and device.type == "cpu":
        raise ValueError("device: cpu: the process group is NCCL's: want the rank's GPU")
    return device if nccl else None


def join(
    groups: Sequence[Members], rank: int, size: int, timeout_s: float, device: Optional[torch.device]
) -> dict[Members, ProcessGroup]:
    """Makes process groups, each once, by all ranks in the same order. device: where messages are, None for the
    host's memory."""
    made: dict[Members, ProcessGroup] = {("", tuple(range(size))): None}
    for name, ranks in groups:
        if (name, ranks) in made:
            continue
        group = made[name, ranks] = dist.new_group(list(ranks), timeout=timedelta(seconds=timeout_s))
        if rank in ranks and len(ranks) > 1:
            warm_up(group, device)
    return made


def _side_by_side(side: Any, number: int, size: int) -> tuple[Part, ...]:
    """The groups of one micro-batch, of which no rank is in two."""
    if not isinstance(side, list):
        raise PlanError(f"batches[{number}]: want a list of groups")
    out: list[Part] = []
    taken: dict[int, int] = {}
    for g, entry in enumerate(side):
        at = f"batches[{number}][{g}]"
        part = _part(entry, at, f"micro-batch {number} group {g}")
        for r in part.ranks:
            if r >= size:
                raise PlanError(f"{at}.ranks: {r}: {size} ranks were started")
            if r in taken:
                raise PlanError(f"{at}.ranks: rank {r} is also in group {taken[r]}")
            taken[r] = g
        out.append(part)
    return tuple(out)


def _part(entry: Any, at: str, name: str) -> Part:
    if not isinstance(entry, dict) or not isinstance(entry.get("plan"), dict):
        raise PlanError(f"{at}.plan: want an object")
    ranks, docs = (_numbers(entry, key, at) for key in ("ranks", "docs_tokens"))
    if ranks[0] < 0 or any(a >= b for a, b in zip(ranks, ranks[1:])):
        said = f"{list(ranks)}: want rising ones from 0 on, the order of a process group"
        raise PlanError(f"{at}.ranks: {said}")
    try:
        plan = load_plan(entry["plan"])
        documents(plan.seq_len, docs)
    except PlanError as error:
        raise PlanError(f"{at}.{error}") from error
    if plan.ranks != len(ranks):
        raise PlanError(f"{at}.ranks: {len(ranks)} of them: the group's plan has {plan.ranks}")
    return Part(plan, ranks, docs, _recomputes(entry["plan"]), name)


def _numbers(entry: Mapping[str, Any], key: str, at: str) -> tuple[int, ...]:
    value = entry.get(key)
    if not isinstance(value, list) or not value or any(type(n) is not int for n in value):
        raise PlanError(f"{at}.{key}: {value!r}: want a list of whole numbers")
    return tuple(value)


def _recomputes(document: Mapping[str, Any]) -> bool:
    return bool(document["job"].get("recompute") == "full")
