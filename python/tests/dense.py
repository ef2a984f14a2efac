"""The answers: causal attention written plainly in float64 with autograd, sharing nothing with the
package."""

from __future__ import annotations

import math
from typing import Optional, Sequence

import torch
from torch import Tensor


def hidden(seq_len: int, docs: Optional[Sequence[int]]) -> Tensor:
    """[queries, keys]: True where a query may not see a key."""
    owner = torch.tensor([i for i, n in enumerate(docs or [seq_len]) for _ in range(n)])
    at = torch.arange(seq_len)
    return (at[None, :] > at[:, None]) | (owner[None, :] != owner[:, None])


def seen(held: Sequence[Sequence[int]]) -> list[list[int]]:
    """From the positions of one document that each group holds, in the order of the ring: how many steps
    further the other groups are that see any of a group's keys."""
    mask, n = hidden(sum(map(len, held)), None), len(held)
    sees = [[not bool(mask[q][:, k].all()) for k in held] for q in held]
    return [[d for d in range(1, n) if sees[(k + d) % n][k]] for k in range(n)]


def near(held: Sequence[Sequence[int]]) -> list[int]:
    """How many steps further the first of them is; 0 if there is none."""
    return [min(ds, default=0) for ds in seen(held)]


def reach(held: Sequence[Sequence[int]]) -> list[int]:
    """How many steps further the last of them is; 0 if there is none."""
    return [max(ds, default=0) for ds in seen(held)]


def sent(held: Sequence[Sequence[int]], keep_tail: bool) -> list[int]:
    """By group, how many of its tokens travel as keys and values: with keep_tail none behind the last of all
    other groups."""
    ends = [max((p for j, own in enumerate(held) if j != i for p in own), default=-1) for i in range(len(held))]
    return [sum(not keep_tail or p < end for p in own) for own, end in zip(held, ends)]


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """out [tokens, q_heads, head_dim]; mask as hidden makes it."""
    each = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(each, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[2])
    weights = torch.softmax(scores.masked_fill(mask, -math.inf), 2)
    return torch.einsum("hqk,khd->qhd", weights, v)


def with_gradients(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, docs: Optional[Sequence[int]]
) -> list[Tensor]:
    """[out, dq, dk, dv] in float64."""
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    out = attention(*leaves, hidden(q.shape[0], docs))
    return [out.detach(), *torch.autograd.grad(out, leaves, dout.double())]


def error(got: Tensor, want: Tensor, scale: float) -> float:
    """|got - want| / |want| in the 2-norm, over `scale` where the answer is zero but for rounding; infinity
    for anything that is not finite."""
    if got.shape != want.shape or not bool(torch.isfinite(got).all()):
        return math.inf
    norm = float(want.norm())
    return float((got.double() - want).norm()) / (norm if norm > 1e-6 * scale else scale or 1.0)
