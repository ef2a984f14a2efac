"""The plan of a pipeline that `evenkeel solve --pipeline` writes, as far as running it needs it.

Stages of ranks have consecutive layers. Chunks go through them: pieces of sequences, of which at most the first
one is a slice, whose context other chunks have computed before. A stage's ranks have equal shares of a chunk's
tokens, in their order, and of its heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, NamedTuple, Sequence

from . import fields
from .plan import Plan, PlanError, Segment, Share, check_schema

SCHEMA = "evenkeel.pipelineplan/v1"


class Piece(NamedTuple):
    """Tokens of a sequence behind its first `context` ones, which other chunks have. last: where the sequence's
    last piece begins."""

    sequence: int
    context: int
    tokens: int
    last: int

    @property
    def more(self) -> bool:
        """Whether other chunks have tokens behind these."""
        return self.context < self.last


class Pass(NamedTuple):
    """A chunk's pass through a stage."""

    chunk: int
    backward: bool


@dataclass(frozen=True)
class Stage:
    """The ranks, the model's layers first to first + layers - 1, how many of the first of these are computed
    again in the backward pass, by chunk, and the order of the passes."""

    ranks: tuple[int, ...]
    first: int
    layers: int
    again: tuple[int, ...]
    order: tuple[Pass, ...]


@dataclass(frozen=True)
class Pipeline:
    """Stages in the order of the layers, and chunks; the rest as in Plan."""

    lengths: tuple[int, ...]  # of the sequences, in tokens
    chunks: tuple[tuple[Piece, ...], ...]
    stages: tuple[Stage, ...]
    q_heads: int
    kv_heads: int
    head_dim: int
    dtype: str

    @property
    def layers(self) -> int:
        """Those of the model."""
        return sum(s.layers for s in self.stages)

    @property
    def like(self) -> Plan:
        """A plan with its heads and precision, of the first chunk on the first stage."""
        return self.plan(0, 0)

    def tokens(self, chunk: int) -> int:
        """Those of a chunk."""
        return sum(p.tokens for p in self.chunks[chunk])

    def rows(self, stage: int, place: int, chunk: int) -> Segment:
        """Which of a chunk's tokens the stage's rank `place` has."""
        n, tokens = len(self.stages[stage].ranks), self.tokens(chunk)
        return Segment(place * tokens // n, (place + 1) * tokens // n)

    def plan(self, stage: int, chunk: int) -> Plan:
        """A stage's all-to-all group over a chunk, as the plan of a sequence of its tokens; ranks are places in
        the stage."""
        n = len(self.stages[stage].ranks)
        rows = [self.rows(stage, i, chunk) for i in range(n)]
        return Plan(
            seq_len=self.tokens(chunk), q_heads=self.q_heads, kv_heads=self.kv_heads, head_dim=self.head_dim,
            ring_buffers=2, dtype=self.dtype, segments=tuple((r,) if r.start < r.end else () for r in rows),
            groups=(tuple(Share(i, self.q_heads // n) for i in range(n)),),
        )

    def stage_of(self, rank: int) -> int:
        """The number of a rank's stage, -1 for a rank that is in none."""
        return next((i for i, s in enumerate(self.stages) if rank in s.ranks), -1)

    def seat(self, rank: int) -> tuple[int, int]:
        """The numbers of a rank's stage and of its place in it."""
        s = self.stage_of(rank)
        return s, self.stages[s].ranks.index(rank)

    def positions(self, rank: int, chunk: int) -> list[tuple[int, int, int]]:
        """(sequence, from, to) of the sequences' tokens that a rank has of a chunk, in its order."""
        if self.stage_of(rank) < 0:
            return []
        rows, at, out = self.rows(*self.seat(rank), chunk), 0, []
        for p in self.chunks[chunk]:
            lo, hi = max(rows.start, at), min(rows.end, at + p.tokens)
            if lo < hi:
                out.append((p.sequence, p.context + lo - at, p.context + hi - at))
            at += p.tokens
        return out


def pipeline_of(document: Mapping[str, Any], ranks: int) -> Pipeline:
    """A plan document with the job's model and dtype added, for so many ranks. Raises PlanError, which names the
    field."""
    check_schema(document, SCHEMA)
    job = fields.an_object(document, "job", "")
    model = fields.an_object(job, "model", "job.")
    heads = [fields.whole(model, n, "job.model.", 1) for n in ("q_heads", "kv_heads", "head_dim")]
    if len(fields.objects(document, "ranks")) != ranks:
        raise PlanError(f"ranks: {len(document['ranks'])} of them: {ranks} ranks were started")
    lengths = fields.numbers(document, "lengths_tokens", "", 1)
    chunks = _chunks(document, lengths)
    stages = _stages(document, ranks, chunks)
    if fields.whole(document, "layers", "", 1) != sum(s.layers for s in stages):
        raise PlanError(f"layers: {document['layers']}: the stages have {sum(s.layers for s in stages)}")
    _check_waits(stages)
    for s, stage in enumerate(stages):
        if heads[0] % len(stage.ranks):
            raise PlanError(f"stages[{s}].ranks: {len(stage.ranks)} of them: want a divisor of the model's "
                            f"{heads[0]} query heads")
    if heads[0] % heads[1]:
        raise PlanError(f"job.model.kv_heads: {heads[1]}: must divide q_heads {heads[0]}")
    q_heads, kv_heads, head_dim = heads
    return Pipeline(lengths, chunks, stages, q_heads, kv_heads, head_dim, str(job.get("dtype")))


def _chunks(document: Mapping[str, Any], lengths: Sequence[int]) -> tuple[tuple[Piece, ...], ...]:
    done, last, out = [0] * len(lengths), [0] * len(lengths), []

    def take(at: str, sequence: int, context: int, tokens: int) -> Piece:
        if not 0 <= sequence < len(lengths):
            raise PlanError(f"{at}: sequence {sequence}: want 0 to {len(lengths) - 1}")
        if context != done[sequence] or not 0 < tokens <= lengths[sequence] - context:
            raise PlanError(f"{at}: tokens {context} to {context + tokens} of sequence {sequence}: the chunks "
                            f"before end at {done[sequence]}, the sequence at {lengths[sequence]}")
        done[sequence], last[sequence] = context + tokens, context
        return Piece(sequence, context, tokens, 0)

    for k, x in enumerate(fields.objects(document, "chunks")):
        at, pieces = f"chunks[{k}]", []
        n = fields.whole(x, "slice_tokens", at + ".", 0, 0)
        if n:
            context = fields.whole(x, "context_tokens", at + ".", 0, 0)
            pieces.append(take(at, fields.whole(x, "sequence", at + ".", 0), context, n))
        elif x.get("sequence") != -1 or x.get("context_tokens", 0) != 0:
            raise PlanError(f"{at}: has no slice: want sequence -1 and no context_tokens")
        for w in fields.numbers(x, "whole", at + ".", 0) if "whole" in x else ():
            pieces.append(take(f"{at}.whole", w, 0, lengths[w] if w < len(lengths) else 1))
        if not pieces:
            raise PlanError(f"{at}: has no tokens")
        out.append(pieces)
    for i, (n, length) in enumerate(zip(done, lengths)):
        if n != length:
            raise PlanError(f"chunks: have {n} of the {length} tokens of sequence {i}")
    return tuple(tuple(p._replace(last=last[p.sequence]) for p in pieces) for pieces in out)


def _stages(document: Mapping[str, Any], ranks: int, chunks: Sequence[Sequence[Piece]]) -> tuple[Stage, ...]:
    stages, first, taken = fields.objects(document, "stages"), 0, set[int]()
    lists: dict[str, list[Any]] = {}
    for name in ("recomputed_layers", "orders"):
        each = document.get(name)
        if not isinstance(each, list) or len(each) != len(stages):
            raise PlanError(f"{name}: want a list for each of the {len(stages)} stages")
        lists[name] = each
    out = []
    for s, x in enumerate(stages):
        at = f"stages[{s}]."
        of = fields.numbers(x, "ranks", at, 0)
        if any(r >= ranks or r in taken for r in of) or any(a >= b for a, b in zip(of, of[1:])):
            raise PlanError(f"{at}ranks: {list(of)}: want rising ones of 0 to {ranks - 1}, each in one stage")
        taken.update(of)
        layers = fields.whole(x, "layers", at, 1)
        times = fields.numbers({"of": lists["recomputed_layers"][s]}, "of", f"recomputed_layers[{s}] ", 0)
        if len(times) != len(chunks) or max(times) > layers:
            raise PlanError(f"recomputed_layers[{s}]: want up to {layers} layers of each of {len(chunks)} chunks")
        out.append(Stage(of, first, layers, times, _order(lists["orders"][s], f"orders[{s}]", chunks)))
        first += layers
    return tuple(out)


def _order(of: Any, at: str, chunks: Sequence[Sequence[Piece]]) -> tuple[Pass, ...]:
    """Every chunk goes forward once and then backward once; of a sequence's slices the first one first forward,
    the last one first backward."""
    if not isinstance(of, list) or len(of) != 2 * len(chunks):
        raise PlanError(f"{at}: want both passes of each of {len(chunks)} chunks")
    out: list[Pass] = []
    seen: set[Pass] = set()
    slices: dict[int, list[int]] = {}
    for k, pieces in enumerate(chunks):
        for p in pieces:
            slices.setdefault(p.sequence, []).append(k)
    for i, x in enumerate(of):
        k, back = fields.whole(x, "chunk", f"{at}[{i}].", 0), x.get("backward", False)
        if not isinstance(back, bool):
            raise PlanError(f"{at}[{i}].backward: {back!r}: want true or false")
        if k >= len(chunks) or Pass(k, back) in seen:
            raise PlanError(f"{at}[{i}].chunk: {k}: want each of 0 to {len(chunks) - 1} once in a direction")
        needed = [Pass(k, False)] if back else []
        for p in chunks[k]:
            mine = slices[p.sequence]
            j = mine.index(k) + (1 if back else -1)
            needed += [Pass(mine[j], back)] if 0 <= j < len(mine) else []
        if any(n not in seen for n in needed):
            raise PlanError(f"{at}[{i}].chunk: {k}: comes before a pass that it needs")
        seen.add(Pass(k, back))
        out.append(Pass(k, back))
    return tuple(out)


def _check_waits(stages: Sequence[Stage]) -> None:
    """Goes through all orders, each pass as soon as its stage's turn comes and the other stage has had it: none is
    left at the end."""
    done: list[set[Pass]] = [set() for _ in stages]
    moved = True
    while moved:
        moved = False
        for s, stage in enumerate(stages):
            for p in stage.order[len(done[s]):]:
                source = s + 1 if p.backward else s - 1
                if 0 <= source < len(stages) and p not in done[source]:
                    break
                done[s].add(p)
                moved = True
    for s, stage in enumerate(stages):
        if len(done[s]) < len(stage.order):
            chunk = stage.order[len(done[s])].chunk
            raise PlanError(f"orders: stages wait for each other: stage {s} for chunk {chunk}")
