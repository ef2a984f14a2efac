"""A plan of batches for a training loop: what a rank has of every micro-batch, and its attention.

Groups of ranks run side by side, each with sequences of its own, packed one behind another. The plan says which; how
their tokens and heads lie on a group's ranks follows from the kind of group (GroupLayout of solver/batch, whose layouts
these are, by a test that both share). All of it are plans of all ranks: their messages need no process groups of their
own, so that groups may change from one micro-batch to the next.
"""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import dataclass
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Union

import torch
from torch import Tensor

from . import fields
from .client import BatchPlan
from .executor import attention
from .kernels import Kernel
from .meter import Meter, Trace
from .parts import BATCH_SCHEMA
from .plan import MOST_CHUNKS, SCHEMA, Plan, PlanError, Segment, Share, Source, check_schema, load_plan, opened
from .port import ProcessGroup
from .tokens import positions

_SHARES = 1e-9  # by so much the sum of shares may be off one


class Span(NamedTuple):
    """Tokens lo to hi - 1 of a sequence, by its place in the batch's lengths."""

    sequence: int
    lo: int
    hi: int


@dataclass(frozen=True)
class BatchPart:
    """What a rank has of a micro-batch: of a group's sequences, whose places in the batch are `sequences`, the tokens
    `spans`, in its order; maybe none. ranks: the group's. plan: of all ranks, of which only these have work; docs:
    lengths of its documents. recompute: the plan counts on layers that are computed again in the backward pass."""

    rank: int
    ranks: tuple[int, ...]
    sequences: tuple[int, ...]
    docs: tuple[int, ...]
    plan: Plan
    recompute: bool

    @property
    def spans(self) -> tuple[Span, ...]:
        """The rank's tokens."""
        out: list[Span] = []
        ends = list(itertools.accumulate(self.docs))
        at = 0
        for s in self.plan.segments[self.rank]:
            while ends[at] <= s.start:
                at += 1
            k, lo = at, s.start
            while lo < s.end:
                hi, start = min(s.end, ends[k]), ends[k] - self.docs[k]
                out.append(Span(self.sequences[k], lo - start, hi - start))
                k, lo = k + 1, hi
        return tuple(out)

    def positions(self, device: Optional[torch.device] = None) -> Tensor:
        """Where the rank's tokens are in their sequences, int64 [tokens]: what rotary embeddings turn by."""
        return positions(self.plan, self.rank, self.docs, device)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, kernel: Optional[Kernel] = None, group: ProcessGroup = None,
        meter: Optional[Meter] = None, trace: Optional[Trace] = None,
    ) -> Tensor:
        """evenkeel.attention of the rank's tokens, each causal in its own sequence. All ranks of the part call it, and
        its backward, as often."""
        return attention(self.plan, self.rank, q, k, v, group=group, kernel=kernel, docs=self.docs, meter=meter,
                         trace=trace)


@dataclass(frozen=True)
class _Kind:
    """A kind of group. uses: its devices by pool. Ranks of its all-to-alls, which are in the order of their ring, are
    places in the group; the schedule has fields as plans have them."""

    uses: tuple[int, ...]
    shares: tuple[float, ...]  # by place, of every sequence
    groups: tuple[tuple[Share, ...], ...]
    schedule: Mapping[str, Any]
    recompute: bool

    def layout(self, lengths: Sequence[int]) -> tuple[list[list[Segment]], list[list[Share]]]:
        """Segments by place, of sequences one behind another, each a zigzag of its own; and the all-to-alls that have
        any, without members that have neither tokens nor heads."""
        own: list[list[Segment]] = [[] for _ in self.shares]
        start = 0
        for n in lengths:
            for place, segments in enumerate(zigzag(split(n, self.shares), self.groups)):
                for s in segments:
                    _append(own[place], Segment(start + s.start, start + s.end))
            start += n
        kept = [[m for m in g if own[m.rank] or m.q_heads] for g in self.groups if any(own[m.rank] for m in g)]
        return own, kept


@dataclass(frozen=True)
class _Group:
    kind: int
    ranks: tuple[int, ...]
    sequences: tuple[int, ...]


@dataclass(frozen=True)
class Batch:
    """The micro-batches of a step. lengths: of the batch's sequences, in tokens. rows: where each was in the file that
    `solve` read, counted from 0; in what a Client submitted, its place there. ranks: how many there are. left_out: those
    of nodes that the others train without; they take no part in the exchange of gradients either."""

    lengths: tuple[int, ...]
    rows: tuple[int, ...]
    ranks: int
    left_out: tuple[int, ...]
    _kinds: tuple[_Kind, ...]
    _micro: tuple[tuple[_Group, ...], ...]
    _model: Mapping[str, int]
    _dtype: str

    def of_rank(self, rank: int) -> tuple[Optional[BatchPart], ...]:
        """What a rank has in each micro-batch, None where it is in no group that has sequences."""
        if type(rank) is not int or not 0 <= rank < self.ranks:
            raise ValueError(f"rank: {rank}: the plan has ranks 0 to {self.ranks - 1}")
        found = (next((g for g in side if rank in g.ranks and g.sequences), None) for side in self._micro)
        return tuple(self._part(rank, g) if g else None for g in found)

    def _part(self, rank: int, group: _Group) -> BatchPart:
        kind, docs = self._kinds[group.kind], tuple(self.lengths[k] for k in group.sequences)
        own, groups = kind.layout(docs)
        segments = dict(zip(group.ranks, own))
        among = len(groups)
        job = {"model": self._model, "dtype": self._dtype, "seq_len_tokens": sum(docs), "ring_buffers": 2}
        document = {
            "schema": SCHEMA, "job": job,
            "ranks": [{"rank": r, "segments": [{"start_tokens": s.start, "end_tokens": s.end}
                                               for s in segments.get(r, ())]} for r in range(self.ranks)],
            "groups": [[{"rank": group.ranks[m.rank], "q_heads": m.q_heads} for m in g] for g in groups],
            **_among(kind.schedule, among),
        }
        return BatchPart(rank, group.ranks, group.sequences, docs, load_plan(document), kind.recompute)


def load_batch(
    source: Union[Source, BatchPlan], *, q_heads: int, kv_heads: int, head_dim: int, dtype: str,
    setup: Optional[Mapping[str, Any]] = None, lengths: Optional[Sequence[int]] = None,
) -> Batch:
    """Reads a plan of `evenkeel solve --lengths` from a file or a document already parsed, for a model with such heads;
    or a BatchPlan that a Client fetched for some lengths, with what its setup() says. dtype: of q, k and v, f32, bf16
    or f16. Raises PlanError, which names the field, for what cannot be run, and OSError for a file that cannot be
    read."""
    model = {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim}

    def read(document: Mapping[str, Any]) -> Batch:
        if dtype not in ("f32", "bf16", "f16"):
            raise PlanError(f"dtype: {dtype!r}: want f32, bf16 or f16")
        for name, n in model.items():
            fields.whole(model, name, "", 1)
        if q_heads % kv_heads:
            raise PlanError(f"kv_heads: {kv_heads}: must divide q_heads {q_heads}")
        check_schema(document, BATCH_SCHEMA)
        return _batch(document, model, dtype)

    if not isinstance(source, BatchPlan):
        return opened(source, read)
    if source.pipeline is not None:
        raise PlanError("plan: of a pipeline, which has no groups: load_pipeline takes plan.pipeline")
    if not isinstance(setup, Mapping) or lengths is None:
        raise PlanError("setup, lengths: missing: a Client's plan needs the setup() of its server and the batch's "
                        "lengths")
    micro = [{"groups": [{"class": g.kind, "ranks": list(g.ranks), "sequences": list(g.sequences)} for g in side]}
             for side in source.micro_batches]
    batch = read({"schema": BATCH_SCHEMA, "fleet": setup.get("fleet"), "classes": setup.get("classes"),
                  "lengths_tokens": _as_given(lengths), "micro_batches": micro})
    for i, side in enumerate(source.micro_batches):
        for j, g in enumerate(side):
            if sum(batch.lengths[k] for k in g.sequences) != g.tokens:
                raise PlanError(f"lengths: those of micro-batch {i} group {j} are not {g.tokens} tokens together: the "
                                "plan was made for other ones")
    return batch


def _as_given(lengths: Sequence[Any]) -> list[int]:
    """As plain integers, of whatever type they are."""
    try:
        return [operator.index(n) for n in lengths]
    except TypeError as error:
        raise PlanError(f"lengths: {error}: want whole numbers of tokens") from None


def _batch(document: Mapping[str, Any], model: Mapping[str, int], dtype: str) -> Batch:
    lengths = fields.numbers(document, "lengths_tokens", "", 1)
    pools = fields.objects(document, "fleet")
    of_pools = [list(fields.nodes(pool, "ranks", f"fleet[{i}].")) for i, pool in enumerate(pools)]
    home = {r: pool for pool, of in enumerate(of_pools) for r in of}
    ranks = sorted(r for of in of_pools for r in of)
    if ranks != list(range(len(ranks))):
        raise PlanError("fleet: want ranks from 0 on, each once")
    left_out = fields.numbers(document, "left_out_ranks", "", 0) if "left_out_ranks" in document else ()
    idle = set(left_out)
    if max(idle, default=0) >= len(ranks) or len(idle) != len(left_out):
        raise PlanError(f"left_out_ranks: {list(left_out)}: want some of 0 to {len(ranks) - 1}, each once")
    kinds = tuple(_kind(c, f"classes[{i}].", [len(of) for of in of_pools], model["q_heads"])
                  for i, c in enumerate(fields.objects(document, "classes")))
    seen: set[int] = set()
    micro = []
    for i, side in enumerate(fields.objects(document, "micro_batches")):
        taken: set[int] = set()
        groups = []
        if not isinstance(side.get("groups") or [], list):
            raise PlanError(f"micro_batches[{i}].groups: want a list")
        for j, g in enumerate(side.get("groups") or ()):
            at = f"micro_batches[{i}].groups[{j}]."
            group = _group(g, at, kinds)
            for r in group.ranks:
                if r in taken or r >= len(ranks):
                    raise PlanError(f"{at}ranks: {r}: want one of 0 to {len(ranks) - 1} that no other group of the "
                                    "micro-batch has")
                if r in idle:
                    raise PlanError(f"{at}ranks: {r}: is one of left_out_ranks")
                taken.add(r)
            uses = tuple(sum(home[r] == pool for r in group.ranks) for pool in range(len(pools)))
            if uses != kinds[group.kind].uses:
                raise PlanError(f"{at}ranks: {list(uses)} devices by pool: want {list(kinds[group.kind].uses)}, as "
                                f"classes[{group.kind}] has")
            for k in group.sequences:
                if k in seen or k >= len(lengths):
                    raise PlanError(f"{at}sequences: {k}: want one of 0 to {len(lengths) - 1} that no other group has")
                seen.add(k)
            groups.append(group)
        micro.append(tuple(groups))
    left = next((k for k in range(len(lengths)) if k not in seen), None)
    if left is not None:
        raise PlanError(f"micro_batches: sequence {left} is in no group")
    rows = fields.numbers(document, "lengths_rows", "", 0) if "lengths_rows" in document else range(len(lengths))
    if len(rows) != len(lengths):
        raise PlanError(f"lengths_rows: {len(rows)} of them: want one for each of {len(lengths)} lengths")
    return Batch(lengths, tuple(rows), len(ranks), tuple(left_out), kinds, tuple(micro), dict(model), dtype)


def _group(of: Any, at: str, kinds: Sequence[_Kind]) -> _Group:
    if not isinstance(of, dict):
        raise PlanError(f"{at[:-1]}: want an object")
    kind = fields.whole(of, "class", at, 0)
    if kind >= len(kinds):
        raise PlanError(f"{at}class: {kind}: want 0 to {len(kinds) - 1}")
    ranks = fields.numbers(of, "ranks", at, 0)
    if len(ranks) != len(kinds[kind].shares) or len(set(ranks)) != len(ranks):
        raise PlanError(f"{at}ranks: {list(ranks)}: want {len(kinds[kind].shares)} of them, as classes[{kind}] has")
    sequences = fields.numbers(of, "sequences", at, 0) if of.get("sequences") not in (None, []) else ()
    return _Group(kind, ranks, sequences)


def _kind(of: Mapping[str, Any], at: str, pools: Sequence[int], q_heads: int) -> _Kind:
    """pools: how many devices each has."""
    uses = fields.numbers(of, "devices", at, 0)
    if len(uses) != len(pools) or not any(uses) or any(n > most for n, most in zip(uses, pools)):
        raise PlanError(f"{at}devices: {list(uses)}: want one number for each of {len(pools)} pools, up to "
                        f"{list(pools)}, and some device")
    by_pool = _numbers(of, "shares", at, len(pools), [1 / sum(uses)] * len(pools))
    shares = _by_place(uses, by_pool)
    if not all(0 <= w <= 1 + _SHARES for w in shares) or abs(math.fsum(shares) - 1) > _SHARES:
        raise PlanError(f"{at}shares: {list(by_pool)} for {list(uses)} devices: want 0 to 1 each, and 1 together")
    return _Kind(uses, shares, _all_to_alls(of, at, uses, q_heads), _schedule(of, at), fields.flag(of, "recompute", at))


def _schedule(of: Mapping[str, Any], at: str) -> Mapping[str, Any]:
    chunks = of.get("head_chunks") or None
    if chunks is not None and (type(chunks) is not int or not 2 <= chunks <= MOST_CHUNKS):
        raise PlanError(f"{at}head_chunks: {chunks!r}: want a whole number from 2 to {MOST_CHUNKS}, or none")
    has = {name: True for name in _FLAGS if fields.flag(of, name, at)}
    if chunks is not None and "two_batch_overlap" in has:
        raise PlanError(f"{at}two_batch_overlap: true: want none beside head_chunks, here {chunks}")
    return {**has, **({"head_chunks": chunks} if chunks is not None else {})}


def _all_to_alls(of: Mapping[str, Any], at: str, uses: Sequence[int], q_heads: int) -> tuple[tuple[Share, ...], ...]:
    """In the order of their ring: as the kind says, else neighbours that share heads, head_ranks of them."""
    degree = sum(uses)
    if of.get("groups") is not None:
        if not isinstance(of["groups"], list) or not all(isinstance(g, list) for g in of["groups"]):
            raise PlanError(f"{at}groups: want a list of lists")
        groups = [tuple(Share(fields.whole(m, "rank", f"{at}groups[{i}][{k}].", 0),
                              fields.whole(m, "q_heads", f"{at}groups[{i}][{k}].", 0)) for k, m in enumerate(g))
                  for i, g in enumerate(of["groups"])]
    else:
        size = max(1, fields.whole(of, "head_ranks", at, 0, 0))
        if degree % size:
            raise PlanError(f"{at}head_ranks: {size}: want a divisor of the group's {degree} devices")
        if of.get("q_heads") is None and q_heads % size:
            raise PlanError(f"{at}head_ranks: {size}: the model's {q_heads} query heads cannot be dealt to as many "
                            "devices evenly")
        pools = [q_heads // size] * len(uses) if of.get("q_heads") is None else fields.numbers(of, "q_heads", at, 0)
        if len(pools) != len(uses):
            raise PlanError(f"{at}q_heads: {len(pools)} numbers: the fleet has {len(uses)} pools")
        heads = [n for n, devices in zip(pools, uses) for _ in range(devices)]
        groups = [tuple(Share(r, heads[r]) for r in range(lo, lo + size)) for lo in range(0, degree, size)]
    if sorted(m.rank for g in groups for m in g) != list(range(degree)):
        raise PlanError(f"{at}groups: want each place from 0 to {degree - 1} once")
    for i, g in enumerate(groups):
        if sum(m.q_heads for m in g) != q_heads:
            raise PlanError(f"{at}groups[{i}]: {sum(m.q_heads for m in g)} q_heads in all: the model has {q_heads}; is "
                            "it the one that the batch was planned for?")
    return tuple(groups)


def _numbers(of: Mapping[str, Any], key: str, at: str, pools: int, absent: Sequence[float]) -> Sequence[float]:
    """One for each pool."""
    value = of.get(key)
    if value is None:
        return absent
    if not isinstance(value, list) or len(value) != pools or any(type(x) not in (int, float) for x in value):
        raise PlanError(f"{at}{key}: want a number for each of {pools} pools")
    return value


def _by_place(uses: Sequence[int], of: Sequence[float]) -> tuple[float, ...]:
    """What pools have, by the devices of a group."""
    return tuple(x for x, n in zip(of, uses) for _ in range(n))


_FLAGS = ("own_last", "keep_tail", "two_batch_overlap", "weave_forward", "weave_backward")


def _among(schedule: Mapping[str, Any], groups: int) -> dict[str, Any]:
    """What of a schedule so many all-to-alls can have."""
    has = dict(schedule)
    if groups != 1:
        has.pop("head_chunks", None)
    if groups < 2:
        has.pop("own_last", None)
    if groups < 2 or not has.get("two_batch_overlap"):
        for name in ("weave_forward", "weave_backward"):
            has.pop(name, None)
    return has


def split(tokens: int, shares: Sequence[float]) -> list[int]:
    """Parts of a sequence in proportion to shares, each exact to within a token: SplitByShares of costmodel."""
    out, total, dealt = [], 0.0, 0
    for w in shares:
        total += w
        exact = total * tokens
        up_to = min(tokens, math.floor(exact) + (exact - math.floor(exact) >= 0.5))
        out.append(max(0, up_to - dealt))
        dealt += out[-1]
    for i in reversed(range(len(out))):  # shares of a hair less than one
        if dealt < tokens and shares[i] > 0:
            out[i] += tokens - dealt
            dealt = tokens
    return out


def zigzag(tokens: Sequence[int], groups: Sequence[Sequence[Share]]) -> list[list[Segment]]:
    """By place, segments nested from the outside in, in the order of the groups: ZigZag of costmodel."""
    out: list[list[Segment]] = [[] for _ in tokens]
    head, tail = 0, sum(tokens)
    for m in (m for g in groups for m in g):
        n = tokens[m.rank]
        for s in (Segment(head, head + n // 2), Segment(tail - (n - n // 2), tail)):
            if s.start < s.end:
                _append(out[m.rank], s)
        head, tail = head + n // 2, tail - (n - n // 2)
    return out


def _append(to: list[Segment], s: Segment) -> None:
    """A segment, joined with the one before where they touch."""
    if to and to[-1].end == s.start:
        to[-1] = Segment(to[-1].start, s.end)
    else:
        to.append(s)
