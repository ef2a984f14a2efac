"""Between whole sequences and the tokens of one rank."""

from __future__ import annotations

from typing import Optional, Sequence

import torch
from torch import Tensor

from .plan import Plan, documents


def shard(plan: Plan, rank: int, x: Tensor, dim: int = 0) -> Tensor:
    """The rank's tokens of a whole sequence, in the order of its segments; dim is the one of tokens."""
    if x.shape[dim] != plan.seq_len:
        raise ValueError(f"x: {x.shape[dim]} tokens in dimension {dim}: the plan has {plan.seq_len}")
    parts = [x.narrow(dim, s.start, s.end - s.start) for s in plan.own(rank)]
    return torch.cat(parts, dim) if parts else x.narrow(dim, 0, 0)


def unshard(plan: Plan, parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The whole sequence from the tokens of all ranks, by rank: the inverse of shard."""
    if len(parts) != plan.ranks:
        raise ValueError(f"parts: {len(parts)} of them: the plan has {plan.ranks} ranks")
    shape = list(parts[0].shape)
    shape[dim] = plan.seq_len
    whole = parts[0].new_empty(shape)
    for r, part in enumerate(parts):
        if part.shape[dim] != plan.tokens(r):
            raise ValueError(f"parts[{r}]: {part.shape[dim]} tokens: rank {r} has {plan.tokens(r)}")
        row = 0
        for s in plan.segments[r]:
            n = s.end - s.start
            whole.narrow(dim, s.start, n).copy_(part.narrow(dim, row, n))
            row += n
    return whole


def positions(
    plan: Plan, rank: int, docs: Optional[Sequence[int]] = None, device: Optional[torch.device] = None
) -> Tensor:
    """The global position of each token of a rank, int64 [tokens]; with docs, the position in its document:
    what rotary embeddings turn by."""
    start = torch.arange(plan.seq_len, device=device)
    for d in documents(plan.seq_len, docs):
        start[d.start:d.end] -= d.start
    return shard(plan, rank, start)
