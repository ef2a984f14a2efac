"""Jobs of a world's ranks that train a plan, against one process that trains the same model in float64."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Any, Optional
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from evenkeel import parts, reference, shares, stepped, training, whole
from evenkeel.drawn import DTYPES
from evenkeel.kernels import Math
from evenkeel.meter import Trace
from evenkeel.parts import Lost, Part, Work
from evenkeel.plan import documents
from evenkeel.tokens import positions

CPU = torch.device("cpu")
STEPS = 2


def worked(document: dict[str, Any], docs: Optional[list[int]], chunk: int, batches: Optional[list[Any]]) -> Work:
    """As a replay has it."""
    work = parts.work_of(document, batches, docs, len(document["ranks"]))
    lost = Lost(document["job"]["model"]["vocab"], chunk, 5, document["job"]["dtype"])
    return replace(work, lost=lost, training=stepped.training_of(document, work))


def joined(work: Work, rank: int) -> None:
    """All ranks of the world call this."""
    work.join(parts.join(work.groups(), rank, dist.get_world_size(), 60, None))


def made(work: Work, rank: int, layers: int, document: dict[str, Any], trace: Optional[Trace] = None) -> Any:
    """A member's part."""
    assert work.lost is not None
    of = whole.Layers(whole.model_of(document), 3, DTYPES[work.lost.dtype], CPU)
    return training.Trained(work, rank, of, layers, Math(), CPU, trace)


class Model:
    """The whole model in one process, trained by torch's AdamW in float64."""

    def __init__(self, trained: Any, work: Work, document: dict[str, Any]) -> None:
        """With the weights that a rank begins with."""
        assert work.training is not None and work.lost is not None
        self._work, self._of = work, whole.model_of(document)
        shapes = training.unit_shapes(self._of, work.lost, work.training, len(trained.units.spans) - 1)
        self.units = [self._leaves(trained.units.full(i), of) for i, of in enumerate(shapes)]
        self.begun = [flat(x) for x in self.units]
        self._optimizer = torch.optim.AdamW(
            [w for unit in self.units for w in unit.values()], lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)

    def _leaves(self, full: Tensor, shapes: Any) -> dict[str, Tensor]:
        sizes = [math.prod(x) for x in shapes.values()]
        cut = full[:sum(sizes)].clone().double().split(sizes)
        return {n: x.view(shape).requires_grad_() for (n, shape), x in zip(shapes.items(), cut)}

    def step(self) -> None:
        """Of all sequences, one after the other, whose tokens are numbered through."""
        self._optimizer.zero_grad()
        begin = 0
        for part in (part for side in self._work.micro for part in side):
            self._loss(part, begin).backward()
            begin += part.plan.seq_len
        self._optimizer.step()

    def _loss(self, part: Part, begin: int) -> Tensor:
        lost, rest, n = self._work.lost, self.units[0], part.plan.seq_len
        assert lost is not None
        spans = documents(n, part.docs)
        at = torch.cat([torch.arange(d.end - d.start) for d in spans])
        x = rest["table"][torch.arange(begin, begin + n) * 40503 % lost.vocab]
        if "positions" in rest:
            x = x + rest["positions"][at]
        for w in self.units[1:]:
            x = self._layer(w, x, reference.Attention(n, spans, lambda: None), at)
        if "norm_bias" in rest:
            x = F.layer_norm(x, x.shape[-1:], rest["norm"], rest["norm_bias"], 1e-5)
        else:
            x = x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * rest["norm"]
        logits = x @ (rest["head"] if "head" in rest else rest["table"].t()) + rest.get("vocab_bias", torch.zeros(1))
        return F.cross_entropy(logits, self._targets(part, lost), reduction="sum")

    def _layer(self, w: dict[str, Tensor], x: Tensor, of: reference.Attention, at: Tensor) -> Tensor:
        """As the reference's, with leaves that learn and in their graph."""
        m = self._of
        q, k, v = reference._product(w, "qkv", reference._norm(m, w, "norm1", x)).view(len(x), -1, m.head_dim).split(
            [m.q_heads, m.kv_heads, m.kv_heads], 1)
        if m.qk_norm:
            q, k = reference._rms(q, w["q_norm"]), reference._rms(k, w["k_norm"])
        if m.rotary:
            q, k = (reference._turned(t, at, m.rotary) for t in (q, k))
        base = x + reference._product(w, "out", reference.Heads.apply(of, q, k, v).reshape(len(x), -1))
        inside = reference._norm(m, w, "norm1", x) if m.shared_norm else reference._norm(m, w, "norm2", base)
        up = reference._product(w, "up", inside)
        if m.gated:
            gate, rest = up.chunk(2, -1)
            act = F.silu(gate) * rest
        else:
            act = F.gelu(up, approximate="tanh")
        return base + reference._product(w, "down", act)

    def _targets(self, part: Part, lost: Lost) -> Tensor:
        """Of each rank's chunks the words 0, 1, 2 .. anew."""
        plan, out = part.plan, torch.empty(part.plan.seq_len, dtype=torch.int64)
        for rank in range(plan.ranks):
            own = positions(plan, rank)
            out[own] = torch.arange(len(own)) % lost.chunk % lost.vocab
        return out

    def moments(self, i: int) -> list[Tensor]:
        """Of a unit, flat."""
        state = self._optimizer.state
        return [torch.cat([state[w][name].flatten() for w in self.units[i].values()])
                for name in ("exp_avg", "exp_avg_sq")]


def flat(weights: dict[str, Tensor]) -> Tensor:
    return torch.cat([w.detach().clone().flatten() for w in weights.values()])


def trains(
    rank: int, groups: Any, document: dict[str, Any], layers: int, docs: Optional[list[int]] = None, chunk: int = 7,
    how: str = "", batches: Optional[list[Any]] = None,
) -> Optional[dict[str, Any]]:
    """Of a member after some steps: how far what it updates, and its moments, are off those of one process, and
    whether it has the parameters that it is to have. how: scatter with a library that has a reduce-scatter, nccl with
    the calls of that, staged as of tensors that are not in the host's memory."""
    work = worked(document, docs, chunk, batches)
    joined(work, rank)
    of = work.training
    assert of is not None
    if rank not in of.members:
        return None
    with contextlib.ExitStack() as stack:
        for there, owner, name, other in (
            (how in ("scatter", "nccl"), dist, "reduce_scatter_tensor", scatter),
            (how == "nccl", dist, "all_gather_into_tensor", gather),
            (how == "nccl", dist, "get_backend", lambda _: "nccl"), (how == "staged", Tensor, "cpu", Tensor.clone),
        ):
            if there:
                stack.enter_context(mock.patch.object(owner, name, other, create=True))
        trained = made(work, rank, layers, document)
        if how == "staged":
            trained.shares._staged = True
        model, units = Model(trained, work, document), trained.units

        def begin(_: int) -> None:
            if of.stage == 3 and len(of.members) > 1:  # what a micro-batch does not gather is not a number
                for i in range(len(units.spans)):
                    units.full(i).fill_(math.nan)

        for _ in range(STEPS):
            trained.run(begin)
            left = sum(w.grad is not None for unit in units._weights for w in unit.values())
            left += sum(len(mine.stack._kept) for mine in trained._micro if mine)
            trained.clear()
            model.step()
    worst = {"change": 0.0, "moment1": 0.0, "moment2": 0.0, "has": 0.0}
    for i, span in enumerate(units.spans):
        part, wants = units.part(i), [flat(model.units[i]), *model.moments(i)]
        gots = [units.master(i), *(units.split(x)[i] for x in (units.optimizer.moment1, units.optimizer.moment2))]
        for name, got, want in zip(worst, gots, wants):
            begun = model.begun[i] if name == "change" else torch.zeros_like(want)
            scale = float((want - begun).norm()) / math.sqrt(len(want))
            mine = padded(want, span)[part]
            worst[name] = larger(worst[name], float((got - mine).norm()) / math.sqrt(len(mine)) / scale)
        if not torch.equal(units.held(i), units.master(i).to(units.dtype)):
            worst["has"] = math.inf
        due = units.held(i) if of.stage == 3 else units.full(i)
        part = part if of.stage == 3 else slice(0, span.padded)
        worst["has"] = larger(worst["has"], float((due - padded(wants[0], span)[part]).norm()) / float(wants[0].norm()))
    return {**worst, "kind": trained.shares.kind if trained.shares else "", "steps": units.optimizer.steps,
            "left": left}


def ordered(
    rank: int, groups: Any, document: dict[str, Any], layers: int, batches: Optional[list[Any]] = None
) -> Optional[list[str]]:
    """What a member posts in a step, waits for and computes, in order: of layers where they begin."""
    work = worked(document, None, 7, batches)
    joined(work, rank)
    if rank not in (work.training.members if work.training else ()):
        return None
    events: list[str] = []
    names: dict[int, str] = {}
    kept: list[shares.Coming] = []
    post = {name: getattr(shares.Shares, name) for name in ("gather", "reduce")}
    wait = shares.Coming.wait

    def posts(name: str) -> Any:
        def call(of: Any, unit: str, *tensors: Tensor) -> shares.Coming:
            said = f"{name} {unit.split()[-1] if 'layer' in unit else 'rest'}"
            events.append(said)
            kept.append(post[name](of, unit, *tensors))
            names[id(kept[-1])] = said
            return kept[-1]

        return call

    def waits(coming: shares.Coming) -> int:
        events.append(f"wait {names[id(coming)]}")
        return wait(coming)

    class Noting(Trace):
        def span(self, span: Any) -> Any:
            if (span.direction, span.op) in (("fwd", "linear_in"), ("bwd", "linear_out")) or span.op in (
                    "embed", "loss", "optimizer"):
                events.append(f"{span.direction} {span.op if 'linear' not in span.op else self.layer}")
            return super().span(span)

    trained = made(work, rank, layers, document, Noting(rank))
    with mock.patch.multiple(shares.Shares, **{n: posts(n) for n in post}), mock.patch.object(
            shares.Coming, "wait", waits):
        trained.run()
    return events


def larger(a: float, b: float) -> float:
    """Infinity where one is not a number."""
    return max(a, b) if a + b == a + b else math.inf


def padded(x: Tensor, span: Any) -> Tensor:
    return torch.cat([x, x.new_zeros(span.padded - span.size)])


def gather(out: Tensor, mine: Tensor, group: Any = None, async_op: bool = False) -> Any:
    """A gathering of one tensor into another."""
    return dist.all_gather(list(out.chunk(dist.get_world_size(group))), mine, group=group, async_op=async_op)


def scatter(out: Tensor, whole: Tensor, group: Any = None, async_op: bool = False) -> Any:
    """A reduce-scatter of a library that has one."""
    host = whole.clone()
    work = dist.all_reduce(host, group=group, async_op=True)

    class Done:
        def wait(self) -> None:
            work.wait()
            n, place = len(out), dist.get_rank(group)
            out.copy_(host[place * n:(place + 1) * n])

    if async_op:
        return Done()
    Done().wait()
    return None
