"""Pipelines for tests, and what the ranks of a test's world do with them."""

from __future__ import annotations

import random
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch import Tensor

import evenkeel
from evenkeel import reference
from evenkeel.flow import Flow, process_groups
from evenkeel.plan import Segment
from evenkeel.stages import SCHEMA, Pipeline, load_pipeline
from evenkeel.whole import Layer, Model

Document = dict[str, Any]
F, B = False, True  # of a pass: backward


def document(
    lengths: list[int], chunks: list[tuple[Optional[tuple[int, int, int]], list[int]]],
    stages: list[tuple[list[int], int]], orders: list[list[tuple[int, bool]]], again: list[list[int]],
    heads: tuple[int, int, int] = (12, 4, 8), dtype: str = "f32",
) -> Document:
    """A plan document as the rank program takes it. chunks: of (sequence, context, tokens) of a slice or None, and
    whole sequences; stages: of ranks and a number of layers."""
    listed = []
    for of, whole in chunks:
        x: dict[str, Any] = {"sequence": -1}
        if of:
            x = {"sequence": of[0], "context_tokens": of[1], "slice_tokens": of[2]}
        listed.append({**x, **({"whole": whole} if whole else {})})
    ranks = [r for of, _ in stages for r in of]
    model = dict(zip(("q_heads", "kv_heads", "head_dim"), heads), hidden=24, ffn=40, gated_mlp=True)
    return {
        "schema": SCHEMA, "job": {"model": model, "dtype": dtype}, "layers": sum(n for _, n in stages),
        "ranks": [{"rank": r, "device": "torch_cpu:1"} for r in range(max(ranks) + 1)], "lengths_tokens": lengths,
        "stages": [{"ranks": of, "layers": n} for of, n in stages], "chunks": listed, "recomputed_layers": again,
        "orders": [[{"chunk": k, **({"backward": True} if back else {})} for k, back in of] for of in orders],
    }


def random_pipeline(seed: int, ranks: int) -> Document:
    """Stages of 1 to 4 of the ranks, whose order is any; sequences in slices, packed, or both; every stage has a
    random order of its own in which nothing waits for itself."""
    r = random.Random(f"pipeline {seed}")
    lengths = [r.randint(1, 30) for _ in range(r.randint(1, 5))]
    chunks = _chunks(r, lengths)
    crews, left = [], r.sample(range(ranks), ranks)
    while left:
        n = r.choice([n for n in (1, 2, 3, 4) if n <= len(left)])
        crews.append(sorted(left[:n]))
        left = left[n:]
    stages = [(crew, r.randint(1, 3)) for crew in crews]
    again = [[r.choice([0, n, r.randint(0, n)]) for _ in chunks] for _, n in stages]
    heads = r.choice([(12, 4, 8), (12, 12, 4), (12, 1, 6), (12, 3, 8)])
    return document(lengths, chunks, stages, _orders(r, chunks, len(stages)), again, heads)


def _chunks(r: random.Random, lengths: list[int]) -> list[tuple[Optional[tuple[int, int, int]], list[int]]]:
    slices: list[list[Any]] = []  # by sequence, in their order
    whole: list[int] = []
    for i, n in enumerate(lengths):
        if n < 2 or r.random() < 0.4:
            whole.append(i)
            continue
        cuts = sorted({0, n, *(r.randint(0, n) for _ in range(r.randint(1, 3)))})
        slices.append([(i, a, b - a) for a, b in zip(cuts, cuts[1:])])
    chunks: list[Any] = []
    while any(slices):
        of = r.choice([x for x in slices if x])
        chunks.append((of.pop(0), []))
    while whole:
        n = r.randint(1, len(whole))
        if chunks and r.random() < 0.5:
            r.choice(chunks)[1].extend(whole[:n])
        else:
            chunks.insert(r.randint(0, len(chunks)), (None, whole[:n]))
        whole = whole[n:]
    return chunks


def _orders(r: random.Random, chunks: list[Any], stages: int) -> list[list[tuple[int, bool]]]:
    """Plays a step in which a random stage does a random pass that may begin."""
    done: list[list[tuple[int, bool]]] = [[] for _ in range(stages)]

    def may(s: int, k: int, back: bool) -> bool:
        of, mine = chunks[k][0], done[s]
        if (k, back) in mine or back and (k, False) not in mine:
            return False
        for j, (other, _) in enumerate(chunks):
            if of and other and other[0] == of[0] and (other[1] > of[1] if back else other[1] < of[1]):
                if (j, back) not in mine:
                    return False
        source = s + 1 if back else s - 1
        return not 0 <= source < stages or (k, back) in done[source]

    while True:
        passes = [(k, b) for k in range(len(chunks)) for b in (False, True)]
        free = [(s, k, b) for s in range(stages) for k, b in passes if may(s, k, b)]
        if not free:
            return done
        s, k, b = r.choice(free)
        done[s].append((k, b))


MODELS = {
    "gated": {}, "plain": {"gated": False, "layer_norm": True, "mlp_bias": True, "rotary": 0},
}


def model_of(pipeline: Pipeline, kind: str) -> Model:
    off = dict.fromkeys(("layer_norm", "shared_norm", "qk_norm", "qkv_bias", "out_bias", "mlp_bias"), False)
    return Model(**{
        "hidden": 24, "ffn": 40, "q_heads": pipeline.q_heads, "kv_heads": pipeline.kv_heads,
        "head_dim": pipeline.head_dim, "rotary": pipeline.head_dim, "gated": True, **off, **MODELS[kind],
    })


def whole(rank: int, groups: Any, seed: int, ranks: int, kind: str, steps: int = 1) -> Optional[dict[str, Any]]:
    """A random pipeline's step, or several: on every rank the errors of what its stage ends with, and what was
    sent. None on ranks beyond it."""
    pipeline = load_pipeline(random_pipeline(seed, ranks), ranks)
    made = {key: dist.new_group(list(key[1])) for key in process_groups(pipeline)}
    if rank >= ranks:
        return None
    s = pipeline.stage_of(rank)
    stage, model, dtype = pipeline.stages[s], model_of(pipeline, kind), torch.float32
    layers = [Layer(model, 5, stage.first + i, dtype, torch.device("cpu")) for i in range(stage.layers)]
    inputs = [[torch.randn(n, 24, generator=torch.Generator().manual_seed(10 * i + j)) for j in range(2)]
              for i, n in enumerate(pipeline.lengths)]
    flow = Flow(pipeline, rank, layers, evenkeel.Math(), made, torch.device("cpu"))
    got: list[dict[int, Tensor]] = [{}, {}]

    def rows(of: int) -> Any:
        return lambda k: torch.cat([inputs[0][0][:0], *(
            inputs[q][of][lo:hi] for q, lo, hi in pipeline.positions(rank, k))])

    for _ in range(steps):
        flow.clear()
        flow.run(rows(0), rows(1), got[0].__setitem__, got[1].__setitem__)
    left = sum(len(x) for x in flow._stores)
    everything = [Layer(model, 5, i, dtype, torch.device("cpu")) for i in range(pipeline.layers)]
    wants = [_answer(model, everything, x, dy) for x, dy in inputs]
    errors = []
    for j, found in enumerate(got):
        for k, x in found.items():
            want = torch.cat([wants[0][0][:0], *(
                wants[q][j][lo:hi] for q, lo, hi in pipeline.positions(rank, k))])
            errors.append(float((x - want).norm() / want.norm().clamp_min(1e-9)) if len(want) else 0.0)
    ends = [s + 1 == len(pipeline.stages), s == 0]
    sent = {f"{phase} {peer}": n for (phase, peer), n in flow.sent().sent.items()}
    return {"errors": errors, "results": [len(x) for x in got], "ends": ends, "left": left, "sent": sent,
            "chunks": len(pipeline.chunks)}


def _answer(model: Model, layers: list[Layer], x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    """The last layer's output and the first one's gradient of a sequence, on one device."""
    of = reference.Attention(len(x), (Segment(0, len(x)),), lambda: None)
    at, xs = torch.arange(len(x)), [x.double()]
    for layer in layers:
        xs.append(reference.layer(model, layer.weights, of, xs[-1], torch.zeros_like(x), at)[0])
    grad = dy.double()
    for layer, x in zip(reversed(layers), reversed(xs[:-1])):
        grad = reference.layer(model, layer.weights, of, x, grad, at)[1]
    return xs[-1], grad
