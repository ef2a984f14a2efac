"""Plans of tasks for tests, and what one device computes of them: the whole graph of modules by autograd in float64,
sharing nothing with what is tested."""

from __future__ import annotations

import random
from typing import Any, Mapping, Optional, Sequence

import torch
from torch import Tensor

import dense

Document = dict[str, Any]
SCHEMA = "evenkeel.taskplan/v1"
EPS = 1e-5


def model(hidden: int, ffn: int, heads: tuple[int, int, int], gated: bool = True, **more: Any) -> Document:
    """A model as documents have it; one without a gate has learned positions and LayerNorm."""
    of = dict(zip(("q_heads", "kv_heads", "head_dim"), heads), hidden=hidden, ffn=ffn)
    kind = {"gated_mlp": True} if gated else {"layer_norm": True, "position_rows": 64}
    return {**of, **kind, **more}


def module(
    name: str, layers: int, batch: int, seq_len: int, of: Document, after: Sequence[str] = (), causal: bool = False
) -> Document:
    """A module of the task "t"."""
    return {
        "name": name, "task": "t", "layers": layers, "batch_samples": batch, "seq_len_tokens": seq_len, "model": of,
        **({"after": list(after)} if after else {}), **({"causal": True} if causal else {}),
    }


def document(
    ranks: int, modules: Sequence[Document], runs: Sequence[tuple[int, int, Mapping[int, int]]], dtype: str = "f32",
    again: bool = False,
) -> Document:
    """A plan document as the rank program takes it. runs: of a module, a number of layers, and samples by rank."""
    return {
        "schema": SCHEMA, "job": {"dtype": dtype, **({"recompute": "full"} if again else {})},
        "ranks": [{"rank": r, "device": "torch_cpu:1"} for r in range(ranks)], "modules": list(modules),
        "runs": [{"module": m, "layers": n, "ranks": list(of), "samples": list(of.values())} for m, n, of in runs],
    }


def random_tasks(seed: int, ranks: int, dtype: str = "f32") -> Document:
    """Up to 5 modules, each of which may need some before it; batches, samples and models are any; a module's layers
    are cut into runs on any ranks in any shares; the runs of modules that do not wait for each other are mixed."""
    r = random.Random(f"tasks {seed}")
    modules: list[Document] = []
    for i in range(r.randint(1, 5)):
        heads = r.choice([(4, 2, 6), (3, 3, 4), (6, 1, 8), (4, 4, 8)])
        of = model(r.choice([12, 16, 20]), r.choice([16, 24]), heads, r.random() < 0.5)
        needs = [m["name"] for m in modules if r.random() < 0.4]
        r.shuffle(needs)
        modules.append(module(f"m{i}", r.randint(1, 4), r.choice([1, 2, 3, 5, 8]), r.choice([1, 2, 5, 7]), of, needs,
                              r.random() < 0.5))
    left = [m["layers"] for m in modules]
    runs = []
    while any(left):
        free = [i for i, m in enumerate(modules) if left[i] and not any(
            left[j] for j, other in enumerate(modules) if other["name"] in m.get("after", []))]
        i = r.choice(free)
        n = r.randint(1, left[i])
        runs.append((i, n, _shares(r, ranks, modules[i]["batch_samples"])))
        left[i] -= n
    return document(ranks, modules, runs, dtype, r.random() < 0.4)


def _shares(r: random.Random, ranks: int, batch: int) -> dict[int, int]:
    of = sorted(r.sample(range(ranks), r.randint(1, min(ranks, batch))))
    cuts = sorted(r.sample(range(1, batch), len(of) - 1))
    return {rank: b - a for rank, a, b in zip(of, [0, *cuts], [*cuts, batch])}


class Answer:
    """One device's step. weights: by module and layer, by name; inputs, gradients: by module [samples, tokens,
    hidden], of the first layer and of the last one's output. results, input_gradients, weight_gradients: what it comes
    to, likewise."""

    def __init__(
        self, of: Document, weights: Sequence[Sequence[Mapping[str, Tensor]]], inputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
    ) -> None:
        leaves = [[{n: w.detach().double().requires_grad_() for n, w in layer.items()} for layer in m]
                  for m in weights]
        drawn = [x.detach().double().requires_grad_() for x in inputs]
        self.results: list[Tensor] = [torch.empty(0)] * len(drawn)
        names = [m["name"] for m in of["modules"]]
        left: Optional[list[int]] = list(range(len(names)))
        while left:
            i = next(i for i in left if not any(names.index(n) in left for n in of["modules"][i].get("after", [])))
            left.remove(i)
            m, x = of["modules"][i], drawn[i]
            for need in m.get("after", []):
                x = joined(x, self.results[names.index(need)])
            for layer in leaves[i]:
                x = torch.stack([_layer(m, layer, sample) for sample in x])
            self.results[i] = x
        flat = [w for m in leaves for layer in m for w in layer.values()]
        total = sum((y * dy.double()).sum() for y, dy in zip(self.results, gradients))
        found = list(torch.autograd.grad(total, [*drawn, *flat]))
        self.input_gradients, rest = found[:len(drawn)], iter(found[len(drawn):])
        self.weight_gradients = [[{n: next(rest) for n in layer} for layer in m] for m in leaves]
        self.results = [y.detach() for y in self.results]


def joined(x: Tensor, results: Tensor) -> Tensor:
    """Inputs with the results of a needed module: of n samples, the one numbered a goes to that numbered a * m // n,
    half as large, element by element as far as both have some."""
    out, (n, m) = [sample.reshape(-1) for sample in x], (len(results), len(x))
    for a, result in enumerate(results):
        b = a * m // n
        theirs, mine = result.reshape(-1), out[b]
        k = min(len(theirs), len(mine))
        out[b] = torch.cat([mine[:k] + theirs[:k] / 2, mine[k:]])
    return torch.stack(out).view(x.shape)


def _layer(of: Document, w: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """A pre-norm layer over one sample [tokens, hidden]."""
    m = of["model"]
    heads, kv, d = m["q_heads"], m["kv_heads"], m["head_dim"]
    qkv = _norm(m, w, "norm1", x) @ w["qkv"]
    q, k, v = qkv.view(len(x), -1, d).split([heads, kv, kv], 1)
    if not m.get("position_rows"):
        q, k = _turned(q), _turned(k)
    hidden = dense.hidden(len(x), None) if of.get("causal") else torch.zeros(len(x), len(x), dtype=torch.bool)
    base = x + dense.attention(q, k, v, hidden).reshape(len(x), -1) @ w["out"]
    up = _norm(m, w, "norm2", base) @ w["up"]
    if m.get("gated_mlp"):
        gate, rest = up.chunk(2, 1)
        act = torch.nn.functional.silu(gate) * rest
    else:
        act = torch.nn.functional.gelu(up, approximate="tanh")
    return base + act @ w["down"]


def _norm(m: Document, w: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    if m.get("layer_norm"):
        return torch.nn.functional.layer_norm(x, x.shape[-1:], w[name], w[name + "_bias"], EPS)
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * w[name]


def _turned(x: Tensor) -> Tensor:
    """Rotary positions, base 10000, of all elements of a head."""
    a, b = x.chunk(2, -1)
    half = a.shape[-1]
    angle = torch.arange(len(x), dtype=x.dtype)[:, None] / 10000 ** (torch.arange(half, dtype=x.dtype) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
