"""What running a plan must send and compute, by formula from the plan alone.

Nothing here is shared with the executor: its counters must come to the same integers.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Callable, Iterator, Optional, Sequence, Union

from .plan import Plan, PlanError, documents
from .stages import Pipeline
from .tasks import Tasks

FLOAT32 = 4  # bytes, of gradients on their way round the ring

PHASES = ("fwd.a2a_in", "fwd.ring", "fwd.a2a_out", "bwd.a2a_in", "bwd.ring", "bwd.ring_grad", "bwd.a2a_out")
SENDS = ("fwd.send", "bwd.send")  # between stages of a pipeline, and runs of tasks

_SIZES = {"f32": 4, "bf16": 2, "f16": 2}


@dataclass
class Expected:
    """bytes: by (rank, peer, phase) what a rank sends to another one, absent where nothing; phases as in
    PHASES. flops: by (rank, "fwd" or "bwd") of the attention of one layer, counted under the mask."""

    bytes: dict[tuple[int, int, str], int] = field(default_factory=dict)
    flops: dict[tuple[int, str], int] = field(default_factory=dict)

    def add(self, rank: int, peer: int, phase: str, n: int) -> None:
        """Adds n bytes."""
        if n and rank != peer:
            self.bytes[rank, peer, phase] = self.bytes.get((rank, peer, phase), 0) + n


@dataclass(frozen=True)
class _Member:
    rank: int
    tokens: int
    lo: int  # query heads lo to hi
    hi: int


def expected(
    plan: Plan, element_bytes: Optional[int] = None, docs: Optional[Sequence[int]] = None
) -> Expected:
    """Bytes that every rank sends to every other, and FLOPs, of one layer's attention forward and backward.

    With s_r the tokens of rank r in group g of S_g tokens, h_r and kv_r its query and KV heads, d the head's
    width, e element_bytes (default: of the plan's dtype):

        fwd.a2a_in   i to j of one group   s_i (h_j + 2 kv_j) d e
        fwd.a2a_out                        s_j h_i d e
        bwd.a2a_in                         s_i h_j d e
        bwd.a2a_out                        s_j (h_i + 2 kv_i) d e
        fwd.ring, bwd.ring   i of group g to j of g+1: sum of 2 T_k n_ij d e over the blocks k with
                             (g-k) mod n < reach_k
        bwd.ring_grad        the same with 4 bytes for e and near_k <= (g-k) mod n < reach_k, as an owner's
                             share stays at home and groups before the first that needs the block have none;
                             and where reach_k > 0, i of group k + reach_k to j of group k: 2 T_k n_ij d 4
        flops        4 d h_r (unmasked pairs of the queries of r's group); backward 2.5 times that

    head_chunks changes none of these: no KV head is in two chunks of a rank.

    n is the number of groups, and all groups' numbers are modulo n. near_k and reach_k are the smallest and
    the largest d, 1 <= d < n, for which group k+d has a token after the first one of group k, 0 if there is
    none; packed documents do not change them. T_k is S_k or, with keep_tail, the tokens of those segments of
    group k that begin before another group's last token. n_ij is the number of KV heads that the query heads
    common to i and j read, those counted twice that a border of any group's heads cuts in between.
    """
    if element_bytes is None:
        if plan.dtype not in _SIZES:
            raise PlanError(f"job.dtype: {plan.dtype}: state element_bytes, what activations travel in")
        element_bytes = _SIZES[plan.dtype]
    out, groups = Expected(), _members(plan)
    for members in groups:
        _exchanges(plan, members, element_bytes, out)
    if len(groups) > 1:
        _ring(plan, groups, element_bytes, out)
    for g, members in enumerate(groups):
        area = _area(plan, members, docs)
        for m in members:
            out.flops[m.rank, "fwd"] = 4 * plan.head_dim * (m.hi - m.lo) * area
            out.flops[m.rank, "bwd"] = 10 * plan.head_dim * (m.hi - m.lo) * area
    return out


def expected_stages(pipeline: Pipeline, hidden: int) -> Expected:
    """Bytes and FLOPs of all chunks of a pipeline: of the attention of one layer of every stage, and of what
    stages send each other. With s_r the rows that rank r has of a chunk of S tokens, of a stage of n ranks:

        all-to-alls    as in expected, with h_r = q_heads / n
        fwd.send       i to j of the next stage: rows of the chunk that both have, times hidden e
        bwd.send       j to i, as many
        flops          4 d h_r (sum over its pieces of m tokens behind c of m c + m (m + 1) / 2); backward 2.5
                       times that
    """
    out, e = Expected(), _SIZES[pipeline.dtype]
    for s, stage in enumerate(pipeline.stages):
        heads = pipeline.q_heads // len(stage.ranks)
        for k, pieces in enumerate(pipeline.chunks):
            rows = [pipeline.rows(s, i, k) for i in range(len(stage.ranks))]
            members = [_Member(r, x.end - x.start, i * heads, (i + 1) * heads)
                       for i, (r, x) in enumerate(zip(stage.ranks, rows))]
            _exchanges(pipeline, members, e, out)
            pairs = sum(p.tokens * p.context + p.tokens * (p.tokens + 1) // 2 for p in pieces)
            for r in stage.ranks:
                for direction, each in (("fwd", 4), ("bwd", 10)):
                    done = each * pipeline.head_dim * heads * pairs
                    out.flops[r, direction] = out.flops.get((r, direction), 0) + done
            for j, q in enumerate(pipeline.stages[s + 1].ranks if s + 1 < len(pipeline.stages) else ()):
                theirs = pipeline.rows(s + 1, j, k)
                for r, x in zip(stage.ranks, rows):
                    n = max(0, min(x.end, theirs.end) - max(x.start, theirs.start)) * hidden * e
                    out.add(r, q, "fwd.send", n)
                    out.add(q, r, "bwd.send", n)
    return out


def expected_tasks(tasks: Tasks) -> Expected:
    """Bytes and FLOPs of a step of tasks: of what runs send each other, and of the attention of all layers, those that
    are computed again as often. A sample of s tokens that one rank has and another one needs is s hidden e bytes
    forward and as many backward, e an element's: of a module that is cut into runs each sample goes from run to run;
    sample a of n, of a module that another one of m samples needs, goes to sample a m // n.

        flops          4 d q_heads, times layers, samples and pairs: s^2, or of causal ones s (s + 1) / 2; backward
                       2.5 times that
    """
    out, last = Expected(), dict[int, int]()
    have = [[r for r, n in zip(run.ranks, run.samples) for _ in range(n)] for run in tasks.runs]  # by sample
    for i, run in enumerate(tasks.runs):
        module = tasks.modules[run.module]
        for n in module.needs if run.first == 0 else [run.module]:
            there = tasks.modules[n]
            size = there.seq_len * there.model.hidden * _SIZES[tasks.dtype]
            for a, rank in enumerate(have[last[n]]):
                b = a * module.batch // there.batch
                out.add(rank, have[i][b], "fwd.send", size)
                out.add(have[i][b], rank, "bwd.send", size)
        last[run.module] = i
        s, m = module.seq_len, module.model
        pairs = s * (s + 1) // 2 if module.causal else s * s
        for rank, samples in zip(run.ranks, run.samples):
            for direction, each in (("fwd", 8 if tasks.recompute else 4), ("bwd", 10)):
                done = each * m.head_dim * m.q_heads * run.layers * samples * pairs
                out.flops[rank, direction] = out.flops.get((rank, direction), 0) + done
    return out


def _members(plan: Plan) -> list[list[_Member]]:
    out = []
    for group in plan.groups:
        members, lo = [], 0
        for share in group:
            members.append(_Member(share.rank, plan.tokens(share.rank), lo, lo + share.q_heads))
            lo += share.q_heads
        out.append(members)
    return out


def _kv(plan: Union[Plan, Pipeline], lo: int, hi: int) -> int:
    """KV heads that query heads lo to hi read."""
    each = plan.q_heads // plan.kv_heads
    return (hi - 1) // each - lo // each + 1 if hi > lo else 0


def _exchanges(plan: Union[Plan, Pipeline], members: list[_Member], e: int, out: Expected) -> None:
    """The four all-to-alls of a group."""
    wide = plan.head_dim * e
    for i in members:
        for j in members:
            hi, hj = i.hi - i.lo, j.hi - j.lo
            out.add(i.rank, j.rank, "fwd.a2a_in", i.tokens * (hj + 2 * _kv(plan, j.lo, j.hi)) * wide)
            out.add(i.rank, j.rank, "fwd.a2a_out", j.tokens * hi * wide)
            out.add(i.rank, j.rank, "bwd.a2a_in", i.tokens * hj * wide)
            out.add(i.rank, j.rank, "bwd.a2a_out", j.tokens * (hi + 2 * _kv(plan, i.lo, i.hi)) * wide)


def _ring(plan: Plan, groups: list[list[_Member]], e: int, out: Expected) -> None:
    n, (near, reach) = len(groups), _ends(plan)
    held = _travelling(plan, groups)
    for g, members in enumerate(groups):
        steps = [(g - k) % n for k in range(n)]  # that block k has made when it is here
        kv = sum(held[k] for k in range(n) if steps[k] < reach[k])
        grads = sum(held[k] for k in range(n) if near[k] <= steps[k] < reach[k])
        for i, j, wide in _shared(plan, groups, members, groups[(g + 1) % n]):
            out.add(i, j, "fwd.ring", wide * e * kv)
            out.add(i, j, "bwd.ring", wide * e * kv)
            out.add(i, j, "bwd.ring_grad", wide * FLOAT32 * grads)
        if reach[g]:
            for i, j, wide in _shared(plan, groups, groups[(g + reach[g]) % n], members):
                out.add(i, j, "bwd.ring_grad", wide * FLOAT32 * held[g])


def _travelling(plan: Plan, groups: list[list[_Member]]) -> list[int]:
    """Tokens of each group's block that go round the ring: with keep_tail all but those behind the last one
    of every other group."""
    held = [sum(m.tokens for m in members) for members in groups]
    if not plan.keep_tail:
        return held
    owned = sorted((s.end, s.start, g) for g, of in enumerate(groups) for m in of for s in plan.segments[m.rank])
    last = owned[-1][2]  # the group that has the end of the sequence
    for end, start, g in itertools.takewhile(lambda s: s[2] == last, reversed(owned)):
        held[g] -= end - start
    return held


def _ends(plan: Plan) -> tuple[list[int], list[int]]:
    """By group, how far round the ring the first and the last one are that have a token after the group's
    first."""
    owned = [[s for share in group for s in plan.segments[share.rank]] for group in plan.groups]
    first, end = [min(s.start for s in own) for own in owned], [max(s.end for s in own) for own in owned]
    n = len(owned)
    needing = [[d for d in range(1, n) if end[(k + d) % n] - first[k] > 1] for k in range(n)]
    return [min(ds, default=0) for ds in needing], [max(ds, default=0) for ds in needing]


def _shared(
    plan: Plan, groups: list[list[_Member]], of: list[_Member], to: list[_Member]
) -> Iterator[tuple[int, int, int]]:
    """(i, j, elements of keys and values a token that rank i of one group sends to j of the other), where
    any."""
    each = plan.q_heads // plan.kv_heads
    cuts = sorted({m.lo for members in groups for m in members if m.lo % each})
    for i in of:
        for j in to:
            lo, hi = max(i.lo, j.lo), min(i.hi, j.hi)
            if lo < hi:
                yield i.rank, j.rank, 2 * plan.head_dim * (_kv(plan, lo, hi) + sum(lo < c < hi for c in cuts))


def _area(plan: Plan, members: list[_Member], docs: Optional[Sequence[int]]) -> int:
    """Unmasked pairs of the members' queries: query p of a document that begins at b sees p - b + 1 keys."""
    below: Callable[[int], int] = lambda n: n * (n + 1) // 2
    area = 0
    for doc in documents(plan.seq_len, docs):
        for m in members:
            for s in plan.segments[m.rank]:
                start, end = max(s.start, doc.start), min(s.end, doc.end)
                if start < end:
                    area += below(end - doc.start) - below(start - doc.start)
    return area
