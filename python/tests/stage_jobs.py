"""What the ranks of a test's world do with evenkeel.PipelineStage."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch import Tensor

import dense
import evenkeel
from evenkeel.stages import Pipeline
from pipelines import Document, _chunks, _orders, document, random_pipeline

HIDDEN, VOCAB = 10, 13


class Block(torch.nn.Module):
    """A layer that knows where its tokens are."""

    def __init__(self, heads: tuple[int, int, int], number: int) -> None:
        super().__init__()
        torch.manual_seed(number)
        q, kv, d = heads
        self.sizes, self.dim = (q, kv, kv), d
        self.qkv = torch.nn.Linear(HIDDEN, (q + 2 * kv) * d)
        self.out = torch.nn.Linear(q * d, HIDDEN)

    def forward(self, x: Tensor, at: Tensor, attend: Callable[..., Tensor]) -> Tensor:
        x = x + torch.sin(at[:, None] * torch.arange(1, HIDDEN + 1)).to(x.dtype)
        q, k, v = self.qkv(x).view(len(x), sum(self.sizes), self.dim).split(self.sizes, 1)
        return x + self.out(torch.relu(attend(q, k, v).flatten(1)))


def model(heads: tuple[int, int, int], layers: range) -> tuple[torch.nn.Embedding, list[Block], torch.nn.Linear]:
    blocks = [Block(heads, i) for i in layers]
    torch.manual_seed(99)
    return torch.nn.Embedding(VOCAB, HIDDEN), blocks, torch.nn.Linear(HIDDEN, VOCAB)


def tokens(sequence: int, lo: int, hi: int) -> Tensor:
    return (torch.arange(lo, hi) * 7 + sequence * 5 + torch.arange(lo, hi) ** 2) % VOCAB


def heads_of(planned: Document) -> tuple[int, int, int]:
    q, kv, d = (planned["job"]["model"][n] for n in ("q_heads", "kv_heads", "head_dim"))
    return q, kv, d


def solved(planned: Document) -> Pipeline:
    """A plan as solve writes it, without a job, and as a training loop loads it."""
    q, kv, d = heads_of(planned)
    plan = {**{k: v for k, v in planned.items() if k not in ("job", "ranks")},
            "devices": [r["device"] for r in planned["ranks"]]}
    return evenkeel.load_pipeline(plan, q_heads=q, kv_heads=kv, head_dim=d, dtype="f32")


def next_batch(planned: Document, seed: int) -> Document:
    """A random plan of another batch on the stages of one."""
    r = random.Random(f"next {seed}")
    lengths = [r.randint(1, 30) for _ in range(r.randint(1, 6))]
    chunks, stages = _chunks(r, lengths), [(s["ranks"], s["layers"]) for s in planned["stages"]]
    again = [[r.randint(0, n) for _ in chunks] for _, n in stages]
    return document(lengths, chunks, stages, _orders(r, chunks, len(stages)), again, heads_of(planned))


def trained(rank: int, groups: Any, seed: int, ranks: int, steps: int, others: int) -> Optional[dict[str, Any]]:
    """Steps of a random pipeline, and then of so many other batches on its stages: how far the last step's loss and
    gradients are from those of one device, and what a step needs no longer when it is over."""
    planned = random_pipeline(seed, ranks)
    heads = heads_of(planned)
    stage = evenkeel.PipelineStage(solved(planned), hidden=HIDDEN, kernel=evenkeel.Math())
    embedding, blocks, head = model(heads, stage.layers)

    def ids(spans: Any, ahead: int) -> Tensor:
        return torch.cat([torch.arange(0), *(tokens(s, lo + ahead, hi + ahead) for s, lo, hi in spans)])

    def loss(spans: Any, y: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(head(y), ids(spans, 1), reduction="sum")

    mine = [*embedding.parameters(), *(w for b in blocks for w in b.parameters()), *head.parameters()]
    for i in range(steps + others):
        if i >= steps:
            stage.take(solved(next_batch(planned, 10 * seed + i)))
        for w in mine:
            w.grad = None
        total = stage.step(blocks, lambda spans: embedding(ids(spans, 0)), loss)
    if not stage.layers:
        return {"errors": [], "loss": None, "layers": 0} if rank < ranks else None
    for w in mine:
        w.grad = torch.zeros_like(w) if w.grad is None else w.grad
        if stage.group is not None:
            dist.all_reduce(w.grad, group=stage.group)
    if total is not None and stage.group is not None:
        dist.all_reduce(total, group=stage.group)
    pipeline = stage.pipeline
    want, answer = one_device(heads, pipeline.lengths, pipeline.layers, stage)
    errors = [float((w.grad - g).norm() / max(1e-6, float(g.norm()))) for w, g in zip(mine, answer)]
    off = None if total is None else abs(float(total) - want) / want
    return {"errors": errors, "loss": off, "layers": len(stage.layers)}


def refused(rank: int, groups: Any, seed: int) -> list[str]:
    """Why plans are not taken that differ from what a rank runs: of other stages, or another model."""
    stage = evenkeel.PipelineStage(solved(random_pipeline(seed, 4)), hidden=HIDDEN, kernel=evenkeel.Math())
    had = stage.pipeline
    first, rest = had.stages[0], had.stages[1:]
    said = []
    for other in (
        replace(had, stages=rest), replace(had, stages=(replace(first, layers=first.layers + 1), *rest)),
        replace(had, stages=(replace(first, ranks=(*first.ranks, 9)), *rest)), replace(had, kv_heads=2),
        replace(had, dtype="bf16"),
    ):
        try:
            stage.take(other)
        except ValueError as error:
            said.append(str(error))
    return said if stage.pipeline is had else []


class Dropping(Block):
    """A layer with random numbers."""

    def forward(self, x: Tensor, at: Tensor, attend: Callable[..., Tensor]) -> Tensor:
        return torch.nn.functional.dropout(super().forward(x, at, attend), 0.3)


def alone(again: list[int]) -> Document:
    """Two chunks of a sequence on rank 0."""
    order = [(0, False), (1, False), (1, True), (0, True)]
    return document([9], [((0, 0, 5), []), ((0, 5, 4), [])], [([0], 2)], [order], [again], (4, 2, 6))


def again_alike(rank: int, groups: Any) -> list[list[float]]:
    """Of layers with dropout and under autocast, how far the gradients of what is computed again are from those of
    what is not, and their norms."""
    out = []
    for casts in (False, True):
        grads = []
        for again in ([0, 0], [2, 1]):
            stage = evenkeel.PipelineStage(solved(alone(again)), hidden=HIDDEN)
            blocks = [Dropping((4, 2, 6), i) for i in range(2)]
            if rank:
                continue
            x = torch.randn(9, HIDDEN, generator=torch.Generator().manual_seed(3))
            torch.manual_seed(17)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=casts):
                stage.step(blocks, lambda s: x[s[0][1]:s[0][2]], lambda s, y: y.float().square().sum())
            grads.append(torch.cat([w.grad.flatten() for b in blocks for w in b.parameters()]))
        if not rank:
            out.append([float((grads[0] - grads[1]).norm()), float(grads[0].norm())])
    return out


def failing(rank: int, groups: Any) -> list[str]:
    """What is said of results that do not fit, and of a step after one that failed; rank 0 alone has work."""
    said = []

    def attempt(stage: Any, *parts: Any) -> None:
        try:
            stage.step(*parts)
            said.append("")
        except (ValueError, RuntimeError) as error:
            said.append(str(error))

    blocks = [Block((4, 2, 6), i) for i in range(2)]
    fine = (blocks, lambda s: torch.zeros(s[0][2] - s[0][1], HIDDEN), lambda s, y: y.sum())
    for parts in (
        (blocks, lambda s: torch.zeros(9, HIDDEN), fine[2]),
        (blocks, lambda s: fine[1](s).double(), fine[2]),
        ([blocks[0], lambda x, at, attend: x[:, 1:]], *fine[1:]),
        (blocks[:1], *fine[1:]),
        (*fine[:2], lambda s, y: torch.zeros(())),
    ):
        stage = evenkeel.PipelineStage(solved(alone([0, 1])), hidden=HIDDEN)
        if not rank:
            attempt(stage, *parts)
            attempt(stage, *fine)
    return said


def one_device(heads: tuple[int, int, int], lengths: Any, layers: int, stage: Any) -> tuple[float, list[Tensor]]:
    """The loss, and the gradients of the parameters that a rank has, zero of embedding and head where it has none."""
    embedding, blocks, head = model(heads, range(layers))
    total = torch.zeros(())
    for s, n in enumerate(lengths):
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            each = heads[0] // heads[1]
            scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(each, 1)) / heads[2] ** 0.5
            scores = scores.masked_fill(dense.hidden(len(q), None), float("-inf"))
            return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.repeat_interleave(each, 1))

        x = embedding(tokens(s, 0, n))
        for block in blocks:
            x = block(x, torch.arange(n), attend)
        total = total + torch.nn.functional.cross_entropy(head(x), tokens(s, 1, n + 1), reduction="sum")
    total.backward()
    ends = [w.grad if has else torch.zeros_like(w) for of, has in ((embedding, stage.first), (head, stage.last))
            for w in of.parameters()]
    inner = [w.grad for i in stage.layers for w in blocks[i].parameters()]
    return float(total), [ends[0], *inner, *ends[1:]]
