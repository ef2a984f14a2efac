"""What the ranks of a test's world do with plans of batches."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import dense
import evenkeel
from stage_jobs import HIDDEN, VOCAB, Block, tokens

Document = dict[str, Any]
HEADS = 6, 2, 8


def random_batch(seed: int, ranks: int) -> Document:
    """A plan as solve writes it: devices of two types, groups of any ranks in kinds of their own, micro-batches that
    not every rank has work in."""
    r = random.Random(f"batch {seed}")
    first = r.randint(1, ranks)
    fleet = [{"device": "a", "ranks": [list(range(first))]}, {"device": "b", "ranks": [[x] for x in range(first, ranks)]}]
    fleet = [pool for pool in fleet if pool["ranks"]]
    lengths = [r.choice([1, 2, 3, r.randint(4, 60)]) for _ in range(r.randint(1, 9))]
    left, kinds, micro = list(range(len(lengths))), [], []
    r.shuffle(left)
    while left:
        free, groups = [list(range(first)), list(range(first, ranks))][:len(fleet)], []
        for _ in range(r.randint(1, 3)):
            uses = [r.randint(0, len(pool)) for pool in free]
            if not sum(uses):
                continue
            group = [free[p].pop(r.randrange(len(free[p]))) for p, n in enumerate(uses) for _ in range(n)]
            n = r.randint(0, 3)
            mine, left = left[:n], left[n:]
            groups.append({"class": len(kinds), "sequences": mine or None, "ranks": group})
            kinds.append(_kind(r, uses))
        micro.append({"groups": groups})
    return {"schema": "evenkeel.batchplan/v1", "lengths_tokens": lengths, "fleet": fleet, "classes": kinds,
            "micro_batches": micro}


def _kind(r: random.Random, uses: list[int]) -> Document:
    degree, q = sum(uses), HEADS[0]
    out: Document = {"name": "k", "devices": uses, "base_s": 0.0, "cap_tokens": 999}
    if r.random() < 0.6:
        weights = [r.randint(0, 4) for _ in uses]
        total = sum(w * n for w, n in zip(weights, uses))
        if total:
            out["shares"] = [w / total for w in weights]
    size = r.choice([h for h in (1, 2, 3, 6) if degree % h == 0])
    if r.random() < 0.4:  # all-to-alls of unequal heads
        places = list(range(degree))
        r.shuffle(places)
        out["groups"] = []
        while places:
            own, places = places[:size], places[size:]
            heads = [0] * len(own)
            for _ in range(q):
                heads[r.randrange(len(own))] += 1
            out["groups"].append([{"rank": p, "q_heads": n} for p, n in zip(own, heads)])
    else:
        out["head_ranks"] = size
    for name in ("own_last", "keep_tail", "recompute"):
        if r.random() < 0.4:
            out[name] = True
    if r.random() < 0.3:
        out["head_chunks"] = 2
    return out


def loaded(of: Document) -> evenkeel.Batch:
    q, kv, d = HEADS
    return evenkeel.load_batch(of, q_heads=q, kv_heads=kv, head_dim=d, dtype="f32")


def model() -> tuple[torch.nn.Embedding, list[Block], torch.nn.Linear]:
    blocks = [Block(HEADS, i) for i in range(2)]
    torch.manual_seed(99)
    return torch.nn.Embedding(VOCAB, HIDDEN), blocks, torch.nn.Linear(HIDDEN, VOCAB)


def trained(rank: int, groups: Any, seed: int, ranks: int) -> Any:
    """A step of a random batch: how far its loss and gradients are from those of one device; how many parts the rank
    had, and of how many tokens."""
    of = random_batch(seed, ranks)
    embedding, blocks, head = model()
    weights = [w for m in (embedding, *blocks, head) for w in m.parameters()]
    total, parts, count = torch.zeros(()), 0, 0
    meter, trace = evenkeel.Meter(), evenkeel.Trace(rank)
    for part in loaded(of).of_rank(rank) if rank < ranks else ():
        if part is None:
            continue
        def ids(ahead: int) -> Tensor:
            return torch.cat([torch.arange(0), *(tokens(s, lo + ahead, hi + ahead) for s, lo, hi in part.spans)])

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return part.attend(q, k, v, kernel=evenkeel.Math(), group=groups[ranks], meter=meter, trace=trace)

        x = embedding(ids(0))
        for block in blocks:
            x = block(x, part.positions(), attend)
        loss = torch.nn.functional.cross_entropy(head(x), ids(1), reduction="sum")
        loss.backward()
        total += loss.detach()
        parts, count = parts + 1, count + len(x)
    for w in weights:
        w.grad = torch.zeros_like(w) if w.grad is None else w.grad
        dist.all_reduce(w.grad)
    dist.all_reduce(total)
    want, answer = one_device(of["lengths_tokens"])
    errors = [float((w.grad - g).norm() / max(1e-3, float(g.norm()))) for w, g in zip(weights, answer)]
    return {"errors": errors, "loss": abs(float(total) - want) / want, "parts": parts, "tokens": count,
            "flops": sum(meter.flops.values()), "spans": len(trace.spans())}


def one_device(lengths: list[int]) -> tuple[float, list[Tensor]]:
    embedding, blocks, head = model()
    total = torch.zeros(())
    for s, n in enumerate(lengths):
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(HEADS[0] // HEADS[1], 1)) / HEADS[2] ** 0.5
            scores = scores.masked_fill(dense.hidden(len(q), None), float("-inf"))
            return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.repeat_interleave(HEADS[0] // HEADS[1], 1))

        x = embedding(tokens(s, 0, n))
        for block in blocks:
            x = block(x, torch.arange(n), attend)
        total = total + torch.nn.functional.cross_entropy(head(x), tokens(s, 1, n + 1), reduction="sum")
    total.backward()
    return float(total), [w.grad for m in (embedding, *blocks, head) for w in m.parameters() if w.grad is not None]
