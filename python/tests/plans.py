"""Plans for tests: random ones from a seed, and the worked example of the closed forms."""

from __future__ import annotations

import random
from typing import Any, Callable, Optional

Document = dict[str, Any]


def document(
    segments: list[list[tuple[int, int]]], groups: list[list[tuple[int, int]]], q_heads: int, kv_heads: int,
    head_dim: int, ring_buffers: int = 2, dtype: str = "f32",
) -> Document:
    """A plan document. segments: by rank; groups: of (rank, q_heads)."""
    ranks = []
    for r, own in enumerate(segments):
        ranks.append({"rank": r, "tokens": sum(b - a for a, b in own),
                      "segments": [{"start_tokens": a, "end_tokens": b} for a, b in own]})
    return {
        "schema": "evenkeel.plan/v2", "ranks": ranks,
        "groups": [[{"rank": r, "q_heads": h} for r, h in g] for g in groups],
        "job": {
            "model": {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim}, "dtype": dtype,
            "seq_len_tokens": max(b for own in segments for _, b in own), "ring_buffers": ring_buffers,
        },
    }


def worked_example() -> Document:
    """4 ranks in 2 groups, 12 query and 4 KV heads split 7+5 and 3+9, uneven segments of 768 tokens."""
    segments = [[(0, 64), (704, 768)], [(64, 256)], [(256, 300), (512, 704)], [(300, 512)]]
    return document(segments, [[(0, 7), (1, 5)], [(2, 3), (3, 9)]], 12, 4, 16)


def late_groups() -> Document:
    """4 ranks in 3 groups: that of two ranks holds the last 200 of 768 tokens, the others have a zigzag of
    those before, all visible to late queries."""
    segments = [[(0, 160), (408, 568)], [(568, 628), (708, 768)], [(628, 708)], [(160, 408)]]
    return document(segments, [[(0, 12)], [(1, 3), (2, 9)], [(3, 12)]], 12, 4, 16)


def chunked_example(head_chunks: int) -> Document:
    """4 ranks in one group: one without heads, two without tokens, one of these with a single head. Their 5,
    6, 0 and 1 heads read 2, 3, 0 and 1 KV heads, of which borders cut two."""
    segments: list[list[tuple[int, int]]] = [[(0, 200), (600, 768)], [], [(200, 600)], []]
    plan = document(segments, [[(0, 5), (2, 0), (1, 6), (3, 1)]], 12, 4, 16)
    return {**plan, "head_chunks": head_chunks} if head_chunks > 1 else plan


def random_plan(seed: int, ranks: int) -> tuple[Document, Optional[list[int]]]:
    """A plan of so many ranks, and packed documents or None."""
    r = random.Random(seed)
    kv_heads, each = r.randint(1, 4), r.choice([1, 2, 3, 4])
    seq_len = r.randint(24, 144)
    segments = _segments(r, seq_len, ranks)
    groups = _groups(r, segments, kv_heads * each)
    plan = document(segments, groups, kv_heads * each, kv_heads, r.choice([4, 8, 16]), r.choice([2, 2, 3, 4]))
    docs = [b - a for a, b in _cuts(r, seq_len, r.randint(2, 5))] if r.random() < 0.4 else None
    plan = _ordered(r, plan)
    chunks = r.randint(1, 4)
    if len(groups) == 1 and chunks > 1:
        plan["head_chunks"] = chunks
    return _tailed(seed, plan), docs


def early_plan(seed: int, ranks: int) -> tuple[Document, Optional[list[int]]]:
    """As random_plan, of two groups or more and most often with a block that ends before it has been
    everywhere: the groups hold one stretch of the sequence each, rising or falling round the ring, or one or
    more in any order, or one group holds the end and the others a zigzag of the rest."""
    r = random.Random(f"early {seed}")
    kv_heads, each = r.randint(1, 4), r.choice([1, 2, 3, 4])
    seq_len, q_heads = r.randint(24, 144), kv_heads * each
    order = r.sample(range(ranks), ranks)
    crews = _crews(r, order, max(r.randint(2, ranks), r.randint(2, ranks)))
    segments: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for crew, stretches in zip(crews, _stretches(r, seq_len, len(crews), seed)):
        for a, b in stretches:
            for c, d in _cuts(r, b - a, r.randint(1, min(2, b - a))):
                segments[r.choice(crew)].append((a + c, a + d))
    groups = [_heads(r, crew, segments, q_heads) for crew in crews]
    plan = document(segments, groups, q_heads, kv_heads, r.choice([4, 8, 16]), r.choice([2, 2, 3, 4]))
    docs = [b - a for a, b in _cuts(r, seq_len, r.randint(2, 5))] if r.random() < 0.3 else None
    return _tailed(seed, _ordered(r, plan)), docs


def chunked_plan(seed: int, ranks: int) -> tuple[Document, Optional[list[int]]]:
    """As random_plan, of one group that computes its heads in 2 to 4 chunks."""
    r = random.Random(f"chunked {seed}")
    kv_heads, each = r.randint(1, 8), r.choice([1, 2, 3, 4])
    seq_len, q_heads = r.randint(24, 144), kv_heads * each
    segments = _segments(r, seq_len, ranks)
    groups = [_heads(r, list(range(ranks)), segments, q_heads)]
    plan = document(segments, groups, q_heads, kv_heads, r.choice([4, 8, 16]))
    docs = [b - a for a, b in _cuts(r, seq_len, r.randint(2, 5))] if r.random() < 0.4 else None
    return {**_ordered(r, plan), "head_chunks": 2 + seed % 3}, docs


DRAWS: dict[str, Callable[[int, int], tuple[Document, Optional[list[int]]]]] = {
    "random": random_plan, "early": early_plan, "chunked": chunked_plan,
}


def times_begun(seed: int) -> int:
    """How often begin_backward is called before the backward of a random plan, by every rank."""
    return random.Random(f"begun {seed}").randrange(3)


def _ordered(r: random.Random, plan: Document) -> Document:
    """The plan with own_last, which is false where it is left out."""
    if r.random() < 0.5:
        return {**plan, "own_last": True}
    return {**plan, "own_last": False} if r.random() < 0.2 else plan


def _tailed(seed: int, plan: Document) -> Document:
    """The plan, every other one with keep_tail."""
    return {**plan, "keep_tail": True} if random.Random(f"tail {seed}").random() < 0.5 else plan


def _stretches(r: random.Random, seq_len: int, n: int, kind: int) -> list[list[tuple[int, int]]]:
    """Of n groups in the order of their ring; see early_plan."""
    chain = [[x] for x in _cuts(r, seq_len, n)]
    if kind % 5 == 0:
        return chain
    if kind % 5 == 1:
        return chain[::-1]
    if kind % 5 < 4:
        out: list[list[tuple[int, int]]] = [[] for _ in range(n)]
        pieces = _cuts(r, seq_len, n + r.randint(0, 2))
        for i, piece in enumerate(r.sample(pieces, len(pieces))):
            out[i if i < n else r.randrange(n)].append(piece)
        return [sorted(x) for x in out]
    *rest, late = _cuts(r, seq_len, 2 * n - 1)
    out = [[rest[i], rest[-1 - i]] for i in range(n - 1)]
    out.insert(r.randrange(n), [late])
    return out


def _cuts(r: random.Random, n: int, parts: int) -> list[tuple[int, int]]:
    """0 to n in so many intervals."""
    at = [0, *sorted(r.sample(range(1, n), parts - 1)), n]
    return list(zip(at, at[1:]))


def _segments(r: random.Random, seq_len: int, ranks: int) -> list[list[tuple[int, int]]]:
    """Intervals dealt to ranks that want unequal shares, some of them none."""
    wants = [r.choice([0, 1, 2, 3, 5, 8]) for _ in range(ranks)]
    wants[r.randrange(ranks)] = 3
    out: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for piece in _cuts(r, seq_len, r.randint(ranks, 3 * ranks)):
        out[r.choices(range(ranks), wants)[0]].append(piece)
    return out


def _groups(
    r: random.Random, segments: list[list[tuple[int, int]]], q_heads: int
) -> list[list[tuple[int, int]]]:
    """Every group is led by a rank with tokens; the others join any."""
    order = list(range(len(segments)))
    r.shuffle(order)
    able = [i for i in order if segments[i]]
    leaders = able[: max(r.randint(1, len(able)), r.randint(1, len(able)))]
    crews = _crews(r, leaders + [i for i in order if i not in leaders], len(leaders))
    return [_heads(r, crew, segments, q_heads) for crew in crews]


def _crews(r: random.Random, ranks: list[int], n: int) -> list[list[int]]:
    """n groups: the first n ranks lead one each, the others join any."""
    crews = [[i] for i in ranks[:n]]
    for i in ranks[n:]:
        r.choice(crews).append(i)
    return crews


def _heads(
    r: random.Random, crew: list[int], segments: list[list[tuple[int, int]]], q_heads: int
) -> list[tuple[int, int]]:
    """The members of a group in any order, with their heads. Who has neither heads nor tokens is left out."""
    r.shuffle(crew)
    at = [0, *sorted(r.randint(0, q_heads) for _ in crew[1:]), q_heads]
    shares = [(i, b - a) for i, a, b in zip(crew, at, at[1:])]
    return [(i, h) for i, h in shares if h or segments[i]]
