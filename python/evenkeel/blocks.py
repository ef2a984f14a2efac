"""Cutting causal attention between two blocks of tokens into rectangles and squares on the diagonal.

Kernels disagree on where the diagonal of a causal rectangle starts, so there are only two kinds of blocks:
FULL, nothing masked, and DIAG, a square whose query i sees the keys 0 to i.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

from .plan import Segment


class Block(NamedTuple):
    """Query rows row to row+q_len against key columns col to col+kv_len of two groups' blocks of tokens."""

    row: int
    q_len: int
    col: int
    kv_len: int
    diag: bool

    @property
    def pairs(self) -> int:
        """Unmasked pairs of a query and a key."""
        return self.q_len * (self.q_len + 1) // 2 if self.diag else self.q_len * self.kv_len


def cut(queries: Sequence[Segment], keys: Sequence[Segment], docs: Sequence[Segment]) -> list[Block]:
    """The blocks of queries against keys, both rising, each document causal on its own; DIAG blocks first.

    The rows of all DIAG blocks of a group against itself are all its rows, so that every row has a result
    when the first FULL block is merged with it.
    """
    out: list[Block] = []
    row = col = 0
    for d in docs:
        q, k = _within(queries, d), _within(keys, d)
        out += [Block(row + b.row, b.q_len, col + b.col, b.kv_len, b.diag) for b in _cut(q, k)]
        row, col = row + _length(q), col + _length(k)
    return sorted(out, key=lambda b: not b.diag)


def _within(segments: Sequence[Segment], doc: Segment) -> list[Segment]:
    parts = (Segment(max(s.start, doc.start), min(s.end, doc.end)) for s in segments)
    return [p for p in parts if p.start < p.end]


def _length(segments: Sequence[Segment]) -> int:
    return sum(s.end - s.start for s in segments)


def _cut(queries: Sequence[Segment], keys: Sequence[Segment]) -> list[Block]:
    """One document. Every query segment has one rectangle of all keys before it, and query segments that see
    the same keys share theirs: few large blocks run faster than many small ones."""
    out: list[Block] = []
    row, wide = 0, -1  # wide: the rectangle that may still grow downwards
    for q in queries:
        n, col, seen = q.end - q.start, 0, 0
        for k in keys:
            if k.start < q.start:
                seen = col + min(k.end, q.start) - k.start
            out += _overlap(q, k, row, col)
            col += k.end - k.start
        if seen and wide >= 0 and out[wide].kv_len == seen:
            out[wide] = out[wide]._replace(q_len=out[wide].q_len + n)
        elif seen:
            wide = len(out)
            out.append(Block(row, n, 0, seen, False))
        else:
            wide = -1
        row += n
    return out


def _overlap(q: Segment, k: Segment, row: int, col: int) -> list[Block]:
    """Where positions of queries and keys coincide: a square, and below it the queries that come after."""
    lo, hi = max(q.start, k.start), min(q.end, k.end)
    if lo >= hi:
        return []
    out = [Block(row + lo - q.start, hi - lo, col + lo - k.start, hi - lo, True)]
    if hi < q.end:
        out.append(Block(row + hi - q.start, q.end - hi, col + lo - k.start, hi - lo, False))
    return out
