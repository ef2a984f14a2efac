"""What each collective moves: a rank's buffers, and the right answer, which every rank can compute itself.

Sizes follow costmodel/op: `bytes` is the whole gathered, scattered or exchanged buffer of all_gather,
reduce_scatter and all_to_all, one rank's message elsewhere. Buffers are float32.
"""
from __future__ import annotations

from typing import Any, Optional

import torch

from errors import Failure, axis

OPS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "send_recv_pairs",
    "all_to_all_v",
)
FLOAT_BYTES = 4

Shape = dict[str, Any]


def value(rank: int, index: torch.Tensor) -> torch.Tensor:
    """What a rank holds at each index before a verified collective, float64.

    Below 2**14, so that sums over up to 1024 ranks are exact in float32, and different for neighbouring ranks
    and elements.
    """
    return ((rank % 61) * 257 + index % 257).to(torch.float64)


def elements(size_bytes: int) -> int:
    """Whole float32 elements of a size, at least one."""
    return max(1, size_bytes // FLOAT_BYTES)


def lengths(op: str, shape: Shape, size: int, rank: int) -> tuple[int, int]:
    """Elements of a rank's send and receive buffers; 0 received means that the op works in place."""
    if op == "all_to_all_v":
        matrix = shape["matrix_bytes"]
        sent = sum(b // FLOAT_BYTES for b in matrix[rank])
        return sent, sum(row[rank] // FLOAT_BYTES for row in matrix)
    whole = elements(shape["bytes"])
    part = max(1, whole // size)
    if op == "send_recv_pairs" and partner(shape, size, rank) is None:
        return 0, 0
    return {
        "all_reduce": (whole, 0),
        "all_gather": (part, part * size),
        "reduce_scatter": (part * size, part),
        "all_to_all": (part * size, part * size),
        "send_recv": (whole, whole),
        "send_recv_pairs": (whole, whole),
    }[op]


def partner(shape: Shape, size: int, rank: int) -> Optional[int]:
    """The group rank that a rank exchanges with in send_recv_pairs, None for one that only waits."""
    half, pairs = size // 2, shape["pairs"]
    if rank < pairs:
        return rank + half
    return rank - half if half <= rank < half + pairs else None


def expected(op: str, shape: Shape, size: int, rank: int) -> torch.Tensor:
    """The right answer of a verified collective on a rank, float64."""
    sent, received = lengths(op, shape, size, rank)
    if op == "all_to_all_v":
        return _expected_uneven(shape["matrix_bytes"], rank)
    if op == "all_reduce":
        return sum(value(p, torch.arange(sent)) for p in range(size))
    if op == "all_gather":
        return torch.cat([value(p, torch.arange(sent)) for p in range(size)])
    mine = torch.arange(rank * received, (rank + 1) * received)
    if op == "reduce_scatter":
        return sum(value(p, mine) for p in range(size))
    if op == "all_to_all":
        part = received // size
        return torch.cat([value(p, torch.arange(rank * part, (rank + 1) * part)) for p in range(size)])
    source = (rank - 1) % size if op == "send_recv" else partner(shape, size, rank)
    if source is None:
        return torch.zeros(0, dtype=torch.float64)
    return value(source, torch.arange(received))


def _expected_uneven(matrix: list[list[int]], rank: int) -> torch.Tensor:
    parts = [torch.zeros(0, dtype=torch.float64)]
    for p, row in enumerate(matrix):
        counts = [b // FLOAT_BYTES for b in row]
        start = sum(counts[:rank])
        parts.append(value(p, torch.arange(start, start + counts[rank])))
    return torch.cat(parts)


def small_shape(op: str, size: int) -> Shape:
    """A shape of an op whose answer is checked before the first time is taken; uneven where the op may be."""
    if op == "all_to_all_v":
        all_ranks = range(size)
        matrix = [[0 if i == j else FLOAT_BYTES * (1 + i + 2 * j) for j in all_ranks] for i in all_ranks]
        return {"matrix_bytes": matrix}
    return {"group": size, "bytes": FLOAT_BYTES * 6 * size, "pairs": size // 2}


def check_shape(op: str, shape: Shape, size: int) -> None:
    """Refuses a shape that does not fit the group, before any rank waits for another."""
    if op not in OPS:
        raise Failure("unsupported", f"op {op!r} is no collective; known are {', '.join(OPS)}")
    ranks = _matrix_ranks(shape) if op == "all_to_all_v" else axis(shape, "group", 2)
    if ranks != size:
        raise Failure("internal", f"{op}: a shape for {ranks} ranks on a group of {size}")
    if op != "all_to_all_v":
        axis(shape, "bytes")
    if op == "send_recv_pairs" and axis(shape, "pairs") > size // 2:
        said = f"send_recv_pairs: pairs {shape['pairs']}: want 1 to {size // 2} on {size} ranks"
        raise Failure("internal", said)


def _matrix_ranks(shape: Shape) -> int:
    matrix = shape.get("matrix_bytes")
    rows = matrix if isinstance(matrix, list) else [None]
    if any(not isinstance(row, list) or len(row) != len(rows) for row in rows):
        raise Failure("internal", "shape.matrix_bytes: want a square list of lists of bytes")
    if any(not isinstance(b, int) or b < 0 for row in matrix for b in row):
        raise Failure("internal", "shape.matrix_bytes: want whole numbers of bytes, 0 or more")
    return len(matrix)
