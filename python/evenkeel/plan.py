"""The plan document that `evenkeel solve` writes, as far as running its attention needs it."""

from __future__ import annotations

import json
import operator
import os
from dataclasses import dataclass
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence, TypeVar, Union

SCHEMA = "evenkeel.plan/v2"
MOST_CHUNKS = 4  # of a rank's heads

# The keys that a plan of SCHEMA has where they say what is run and of what (docs/documents.md). Any other one
# may be of a later version and say that ranks run something else.
KNOWN = {
    "plan": frozenset((
        "schema", "tool", "created", "inputs", "simulated", "job", "strategy", "ranks", "taken", "groups", "own_last",
        "keep_tail", "head_chunks", "two_batch_overlap", "weave_forward", "weave_backward", "step", "lower_bound_s",
        "gap", "side_by_side", "settings", "considered", "warnings", "notes",
    )),
    "job": frozenset((
        "model", "cluster", "seq_len_tokens", "dtype", "recompute", "ring_buffers", "loss_chunk_tokens", "zero",
        "overlap_zero", "grad_accumulation", "memory_reserve_ratio",
    )),
    "rank": frozenset((
        "rank", "device", "node", "tokens", "segments", "group", "first_q_head", "q_heads", "kv_heads",
    )),
    "segment": frozenset(("start_tokens", "end_tokens")),
    "share": frozenset(("rank", "q_heads")),
}

# What reads documents of a kind, of those that ranks train by.
READERS = {
    "evenkeel.plan": "load_plan", "evenkeel.batchplan": "load_batch", "evenkeel.pipelineplan": "load_pipeline",
    "evenkeel.servedpipeline": "load_pipeline", "evenkeel.taskplan": "load_tasks",
}

Source = Union[str, "os.PathLike[str]", Mapping[str, Any]]  # of a document: a file, or parsed
T = TypeVar("T")


class PlanError(ValueError):
    """A plan, or a list of documents, that cannot be run. The message begins with the field."""


class Segment(NamedTuple):
    """The tokens start <= position < end of the sequence."""

    start: int
    end: int


class Share(NamedTuple):
    """How many query heads a rank computes inside its group."""

    rank: int
    q_heads: int


@dataclass(frozen=True)
class Plan:
    """Who owns which tokens and computes which heads of one causal sequence.

    segments: of every rank, rising. groups: the all-to-all groups in the order of their ring; the members of
    a group hold consecutive intervals of query heads in the order in which they are listed. ring_buffers:
    blocks of keys and values that a rank holds beside its own. dtype: of the activations (f32, bf16, f16).
    own_last: backward, ranks compute their own block after the others' and not before them. keep_tail: of a
    group's block only the segments travel that some other group needs, and their gradients. head_chunks: a
    rank computes so many chunks of its heads one after the other, while the all-to-alls of the others are
    under way; above 1 in plans of one group only. two_batch_overlap: the plan counts on micro-batches that go
    through a layer in twos, by begin_attention; attention runs one sequence all the same. weave_forward,
    weave_backward: in that direction the rings of two micro-batches take turns, step by step, where else one
    follows the other; in such plans of two groups or more only, by compute of begin_attention's first sequence
    with the other one.
    """

    seq_len: int
    q_heads: int
    kv_heads: int
    head_dim: int
    ring_buffers: int
    dtype: str
    segments: tuple[tuple[Segment, ...], ...]
    groups: tuple[tuple[Share, ...], ...]
    own_last: bool = False
    keep_tail: bool = False
    head_chunks: int = 1
    two_batch_overlap: bool = False
    weave_forward: bool = False
    weave_backward: bool = False

    @property
    def ranks(self) -> int:
        """Number of ranks, those without work included."""
        return len(self.segments)

    def tokens(self, rank: int) -> int:
        """Tokens that a rank owns."""
        return sum(s.end - s.start for s in self.own(rank))

    def own(self, rank: int) -> tuple[Segment, ...]:
        """The segments of a rank. ValueError for one that the plan does not have, as in a job of more ranks."""
        if not 0 <= rank < self.ranks:
            raise ValueError(f"rank: {rank}: the plan has ranks 0 to {self.ranks - 1}; start as many")
        return self.segments[rank]


def load_plan(source: Source) -> Plan:
    """Reads a plan from a file or a document already parsed, and checks that it can be run.

    Raises PlanError, which names the field, for another schema, a key that this version does not know, a hole in
    the sequence, tokens or heads owned twice, and ranks that are not the plan's; OSError for a file that cannot
    be read.
    """
    return opened(source, _plan_of)


def opened(source: Source, of: Callable[[Mapping[str, Any]], T]) -> T:
    """What `of` makes of a document, which may be in a file; its PlanError then names the file, too."""
    if isinstance(source, Mapping):
        return of(source)
    try:
        with open(source, encoding="utf-8") as file:
            document = json.load(file)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{os.fspath(source)}: not a JSON document: {error}") from error
    if not isinstance(document, dict):
        raise PlanError(f"{os.fspath(source)}: want one JSON object")
    try:
        return of(document)
    except PlanError as error:
        raise PlanError(f"{os.fspath(source)}: {error}") from error


def check_schema(document: Mapping[str, Any], want: str) -> None:
    """Raises PlanError for a document of another kind, which names what reads it, or of another version."""
    schema = document.get("schema")
    if schema == want:
        return
    (kind, _, version), (own, _, known) = (str(s).rpartition("/v") for s in (schema, want))
    out = "let evenkeel solve write the plan anew"
    if kind == own and version.isdecimal() and len(version) < 9 and int(version) > int(known):
        out = "take the Python package of the evenkeel that wrote the plan"
    elif kind != own and kind in READERS:
        out = f"{READERS[kind]} reads this one"
    raise PlanError(f"schema: {schema!r}: want {want!r}; {out}")


def documents(seq_len: int, docs: Optional[Sequence[int]]) -> tuple[Segment, ...]:
    """The packed documents of a sequence, from their lengths in tokens; None is one document."""
    if docs is None:
        return (Segment(0, seq_len),)
    out, start = [], 0
    for i, n in enumerate(docs):
        length = _whole(n)
        if length < 1:
            raise PlanError(f"docs[{i}]: {n!r}: want a whole number of tokens, at least 1")
        out.append(Segment(start, start + length))
        start += length
    if start != seq_len:
        raise PlanError(f"docs: {start} tokens in all: the sequence has {seq_len}")
    return tuple(out)


def _whole(n: Any) -> int:
    """As a plain integer, of whatever type it is, such as numpy's; 0 for what is no whole number."""
    try:
        return 0 if isinstance(n, bool) else operator.index(n)
    except TypeError:
        return 0


def _plan_of(document: Mapping[str, Any]) -> Plan:
    check_schema(document, SCHEMA)
    _known(document, "plan", "")
    job = _object(document, "job", "")
    _known(job, "job", "job.")
    model = _object(job, "model", "job.")
    ranks = _list(document, "ranks", "")
    if not ranks:
        raise PlanError("ranks: none: a plan lists every rank of its cluster")
    plan = Plan(
        seq_len=_count(job, "seq_len_tokens", "job.", 1),
        q_heads=_count(model, "q_heads", "job.model.", 1),
        kv_heads=_count(model, "kv_heads", "job.model.", 1),
        head_dim=_count(model, "head_dim", "job.model.", 1),
        ring_buffers=_count(job, "ring_buffers", "job.", 2),
        dtype=_dtype(job),
        segments=tuple(_segments(r, i) for i, r in enumerate(ranks)),
        groups=tuple(_group(g, i) for i, g in enumerate(_list(document, "groups", ""))),
        own_last=_flag(document, "own_last"),
        keep_tail=_flag(document, "keep_tail"),
        head_chunks=_chunks(document),
        two_batch_overlap=_flag(document, "two_batch_overlap"),
        weave_forward=_flag(document, "weave_forward"),
        weave_backward=_flag(document, "weave_backward"),
    )
    if plan.q_heads % plan.kv_heads:
        raise PlanError(f"job.model.kv_heads: {plan.kv_heads}: must divide q_heads {plan.q_heads}")
    _check_cover(plan)
    _check_groups(plan)
    _check_ranks(plan, ranks)
    if plan.head_chunks > 1 and len(plan.groups) != 1:
        raise PlanError(f"head_chunks: {plan.head_chunks}: want none in a plan of {len(plan.groups)} groups, "
                        "chunks are for one group")
    if plan.two_batch_overlap:
        _check_twos(plan, job)
    _check_woven(plan)
    return plan


def _known(of: Mapping[str, Any], kind: str, at: str) -> None:
    for key in of:
        if key not in KNOWN[kind]:
            raise PlanError(f"{at}{key}: unknown key; take the Python package of the evenkeel that wrote the plan")


def _object(of: Mapping[str, Any], key: str, at: str) -> Mapping[str, Any]:
    value = of.get(key)
    if not isinstance(value, dict):
        raise PlanError(f"{at}{key}: {'missing' if value is None else 'want an object'}")
    return value


def _list(of: Mapping[str, Any], key: str, at: str) -> list[Any]:
    value = of.get(key)
    if value is None and key == "segments":  # of a rank without tokens
        return []
    if not isinstance(value, list):
        raise PlanError(f"{at}{key}: {'missing' if value is None else 'want a list'}")
    return value


def _count(of: Mapping[str, Any], key: str, at: str, least: int) -> int:
    value = of.get(key)
    if value is None:
        raise PlanError(f"{at}{key}: missing")
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PlanError(f"{at}{key}: {value!r}: want a whole number from {least} on")
    return value


def _flag(of: Mapping[str, Any], key: str) -> bool:
    value = of.get(key, False)
    if not isinstance(value, bool):
        raise PlanError(f"{key}: {value!r}: want true or false")
    return value


def _chunks(document: Mapping[str, Any]) -> int:
    if "head_chunks" not in document:
        return 1
    value = document["head_chunks"]
    if isinstance(value, bool) or not isinstance(value, int) or not 2 <= value <= MOST_CHUNKS:
        raise PlanError(f"head_chunks: {value!r}: want a whole number from 2 to {MOST_CHUNKS}, or none")
    return value


def _check_twos(plan: Plan, job: Mapping[str, Any]) -> None:
    """What goes in twos has at least two micro-batches, where the job says how many there are."""
    if plan.head_chunks > 1:
        raise PlanError(f"two_batch_overlap: true: want none beside head_chunks, here {plan.head_chunks}: "
                        "a plan has one or the other")
    if "grad_accumulation" in job:
        n = job["grad_accumulation"]
        if isinstance(n, bool) or not isinstance(n, int) or n < 2:
            raise PlanError(f"two_batch_overlap: true: want job.grad_accumulation from 2 on, it is {n!r}")


def _check_woven(plan: Plan) -> None:
    """Rings that take turns are two, and there are rings."""
    for name, woven in (("weave_forward", plan.weave_forward), ("weave_backward", plan.weave_backward)):
        if woven and not plan.two_batch_overlap:
            raise PlanError(f"{name}: true: want none without two_batch_overlap, the rings of two micro-batches "
                            "take turns")
        if woven and len(plan.groups) < 2:
            raise PlanError(f"{name}: true: want none in a plan of {len(plan.groups)} group, which has no ring")


def _dtype(job: Mapping[str, Any]) -> str:
    value = job.get("dtype")
    if value not in ("f32", "bf16", "f16", "fp8"):
        raise PlanError(f"job.dtype: {value!r}: want f32, bf16, f16 or fp8")
    return str(value)


def _segments(rank: Any, i: int) -> tuple[Segment, ...]:
    if not isinstance(rank, dict):
        raise PlanError(f"ranks[{i}]: want an object")
    _known(rank, "rank", f"ranks[{i}].")
    if _count(rank, "rank", f"ranks[{i}].", 0) != i:
        raise PlanError(f"ranks[{i}].rank: {rank['rank']}: ranks are listed in order, want {i}")
    out = []
    for k, s in enumerate(_list(rank, "segments", f"ranks[{i}].")):
        at = f"ranks[{i}].segments[{k}]"
        if not isinstance(s, dict):
            raise PlanError(f"{at}: want an object")
        _known(s, "segment", at + ".")
        out.append(Segment(_count(s, "start_tokens", at + ".", 0), _count(s, "end_tokens", at + ".", 1)))
    return tuple(out)


def _group(group: Any, i: int) -> tuple[Share, ...]:
    if not isinstance(group, list) or not group:
        raise PlanError(f"groups[{i}]: want a list of at least one rank with its q_heads")
    out = []
    for k, m in enumerate(group):
        at = f"groups[{i}][{k}]"
        if not isinstance(m, dict):
            raise PlanError(f"{at}: want an object")
        _known(m, "share", at + ".")
        out.append(Share(_count(m, "rank", at + ".", 0), _count(m, "q_heads", at + ".", 0)))
    return tuple(out)


def _check_cover(plan: Plan) -> None:
    """Every position of the sequence belongs to exactly one segment, and a rank's segments rise."""
    pieces = []
    for r, own in enumerate(plan.segments):
        for k, s in enumerate(own):
            at = f"ranks[{r}].segments[{k}]"
            if s.end <= s.start or s.end > plan.seq_len:
                said = f"[{s.start}, {s.end}): want a non-empty part of [0, {plan.seq_len})"
                raise PlanError(f"{at}.end_tokens: {said}")
            if k and s.start < own[k - 1].end:
                raise PlanError(f"{at}.start_tokens: {s.start}: segments of a rank must rise, the one before "
                                f"ends at {own[k - 1].end}")
            pieces.append((s, at))
    end, last = 0, "ranks"
    for s, at in sorted(pieces):
        if s.start > end:
            raise PlanError(f"{at}.start_tokens: nobody has tokens {end} to {s.start}")
        if s.start < end:
            raise PlanError(f"{at}.start_tokens: token {s.start} is also in {last}")
        end, last = s.end, at
    if end != plan.seq_len:
        raise PlanError(f"{last}: nobody has tokens {end} to {plan.seq_len}")


def _check_groups(plan: Plan) -> None:
    """Every rank is in at most one group, with work; every group has tokens and all heads, each once."""
    seen: dict[int, str] = {}
    for i, group in enumerate(plan.groups):
        for k, m in enumerate(group):
            at = f"groups[{i}][{k}]"
            if m.rank >= plan.ranks:
                raise PlanError(f"{at}.rank: {m.rank}: want a rank from 0 to {plan.ranks - 1}")
            if m.rank in seen:
                raise PlanError(f"{at}.rank: rank {m.rank} is also in {seen[m.rank]}")
            if not m.q_heads and not plan.segments[m.rank]:
                raise PlanError(f"{at}: rank {m.rank} has neither tokens nor heads and no place in a group")
            seen[m.rank] = at
        heads = sum(m.q_heads for m in group)
        if heads != plan.q_heads:
            said = f"{heads} in all: every group computes each of the model's {plan.q_heads} once"
            raise PlanError(f"groups[{i}].q_heads: {said}")
        if not any(plan.segments[m.rank] for m in group):
            raise PlanError(f"groups[{i}]: no member has tokens")
    for r, own in enumerate(plan.segments):
        if own and r not in seen:
            raise PlanError(f"groups: rank {r} has {plan.tokens(r)} tokens but is in no group")


def _check_ranks(plan: Plan, ranks: list[Any]) -> None:
    """What the document says of a rank a second time is what segments and groups say."""
    for r, entry in enumerate(ranks):
        for key, value in _facts(plan, r).items():
            if key in entry and entry[key] != value:
                raise PlanError(f"ranks[{r}].{key}: {entry[key]!r}: segments and groups say {value}")


def _facts(plan: Plan, rank: int) -> dict[str, int]:
    each = plan.q_heads // plan.kv_heads
    facts = {"tokens": plan.tokens(rank), "group": -1, "first_q_head": 0, "q_heads": 0, "kv_heads": 0}
    for g, group in enumerate(plan.groups):
        first = 0
        for m in group:
            if m.rank == rank:
                kv = (first + m.q_heads - 1) // each - first // each + 1 if m.q_heads else 0
                facts.update(group=g, first_q_head=first, q_heads=m.q_heads, kv_heads=kv)
            first += m.q_heads
    return facts
