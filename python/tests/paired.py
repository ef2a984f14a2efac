"""Jobs of a world's ranks that run sequences side by side, against the same ones one after the other."""

from __future__ import annotations

import contextlib
import os
import random
from typing import Any, Iterator, Optional
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import evenkeel
from evenkeel.port import Batch, Port
from jobs import Groups, Jittered, counted, inputs, known, poisoned_memory, run
from plans import DRAWS, worked_example
from test_replay import odd_example

Events = list[list[Any]]


@contextlib.contextmanager
def noted(waits: bool = False) -> Iterator[Events]:
    """[sequence, phase, step] of what is posted inside, in order; with waits also what is waited for, as
    [sequence, "got " phase]. Sequences are numbered as they are first heard of. Others may add to it."""
    post, received, events = Port.post, Batch.received, []
    ports: list[Port] = []
    made: dict[int, tuple[Batch, list[Any]]] = {}

    def note_post(port: Port, phase: str, step: int, *messages: Any) -> Batch:
        if port not in ports:
            ports.append(port)
        events.append([ports.index(port), phase, step])
        batch = post(port, phase, step, *messages)
        made[id(batch)] = batch, [ports.index(port), "got " + phase]
        return batch

    def note_wait(batch: Batch) -> None:
        of = made[id(batch)][1]
        if "a2a" in of[1]:  # those of a ring are waited for beside the computing
            events.append(of)
        received(batch)

    with mock.patch.object(Port, "post", note_post):
        with mock.patch.object(Batch, "received", note_wait) if waits else contextlib.nullcontext():
            yield events


def drawn_plan(drawn: str, seed: int, ranks: int) -> tuple[dict[str, Any], Optional[list[int]]]:
    """A drawn plan that computes all heads at once; whether it says two_batch_overlap changes nothing."""
    document, docs = DRAWS[drawn](seed, ranks)
    document = {key: x for key, x in document.items() if key != "head_chunks"}
    return ({**document, "two_batch_overlap": True} if seed % 2 else document), docs


def side_by_side(
    plans: list[evenkeel.Plan], rank: int, wholes: list[list[Tensor]], backward: str, begun: list[int],
    together: bool = False, **options: Any
) -> list[list[Tensor]]:
    """By sequence [out, dq, dk, dv], all under way at once. backward: "sum" of all losses, or "each", the last
    one first. begun: the sequences for which begin_backward is called before. together: one call computes all."""
    own = [[evenkeel.shard(plan, rank, x) for x in whole] for plan, whole in zip(plans, wholes)]
    leaves = [[x.clone().requires_grad_() for x in of[:3]] for of in own]
    under_way = [evenkeel.begin_attention(plan, rank, *x, **options) for plan, x in zip(plans, leaves)]
    if together:
        under_way[0].compute(*under_way[1:])
    else:
        for x in under_way:
            x.compute()
    outs = [x.finish() for x in under_way]
    for i in begun:
        evenkeel.begin_backward(outs[i])
    losses = [(out * of[3]).sum() for out, of in zip(outs, own)]
    if backward == "sum":
        torch.stack(losses).sum().backward()
    else:
        for loss in reversed(losses):
            loss.backward()
    return [[out.detach(), *(x.grad for x in of)] for out, of in zip(outs, leaves)]


def pair(
    rank: int, groups: Groups, seed: int, ranks: int, drawn: str, dtype: str = "float32", jittered: bool = False
) -> Optional[dict[str, Any]]:
    """Two sequences of a drawn plan: whether they have the bits of two attentions, what was counted, and what
    was posted, by one alone too."""
    if rank >= ranks:
        return None
    document, docs = drawn_plan(drawn, seed, ranks)
    plan, meter, r = evenkeel.load_plan(document), evenkeel.Meter(), random.Random(f"pair {seed}")
    wholes = [[x.to(getattr(torch, dtype)) for x in inputs(plan, 2 * seed + i)] for i in range(2)]
    with noted() as lone:
        alone = [run(plan, rank, whole, groups[ranks], docs, kernel=evenkeel.Math()) for whole in wholes]
    kernel = Jittered() if jittered else evenkeel.Math()
    begun = r.choice([[], [], [1], [1, 1], [1, 0]])
    backward = r.choice(["sum", "sum", "each"])
    with noted() as events:
        got = side_by_side([plan, plan], rank, wholes, backward, begun, group=groups[ranks], docs=docs,
                           kernel=kernel, meter=meter)
    same = [all(map(torch.equal, a, b)) for a, b in zip(alone, got)]
    return {"same": same, "lone": [e[1:] for e in lone if not e[0]], "events": events, "begun": begun,
            "backward": backward, **counted(meter)}


def in_turn(rank: int, groups: Groups, document: dict[str, Any], seed: int) -> Optional[dict[str, Any]]:
    """Two sequences of a plan that are computed together, over threads and as over NCCL: whether they have the bits
    of two attentions, and what was posted."""
    plan, answer = evenkeel.load_plan(document), {}
    if rank >= plan.ranks:
        return None
    wholes = [inputs(plan, 2 * seed + i) for i in range(2)]
    alone = [run(plan, rank, whole, groups[plan.ranks], None, kernel=evenkeel.Math()) for whole in wholes]
    for backend in ("gloo", "nccl"):
        with mock.patch("torch.distributed.get_backend", return_value=backend), noted() as events:
            got = side_by_side([plan, plan], rank, wholes, "sum", ([], [1], [0], [1, 0])[seed % 4], True,
                               group=groups[plan.ranks], kernel=evenkeel.Math())
        answer[backend] = {"same": [all(map(torch.equal, a, b)) for a, b in zip(alone, got)], "events": events}
    return answer


def of_two_plans(rank: int, groups: Groups) -> Optional[str]:
    """What computing sequences of two plans together says."""
    if rank >= 4:
        return None
    plans = [evenkeel.load_plan({**worked_example(), "own_last": last}) for last in (False, True)]
    both = [evenkeel.begin_attention(plan, rank, *(evenkeel.shard(plan, rank, x) for x in inputs(plan, 1)[:3]),
                                     group=groups[4]) for plan in plans]
    try:
        both[0].compute(both[1])
    except ValueError as error:
        for x in both:
            x.compute()
        for x in both:
            x.finish()
        return str(error)
    return "nothing"


def inline(rank: int, groups: Groups, *args: Any) -> Optional[dict[str, Any]]:
    """pair with batches of messages and without a thread, as over NCCL."""
    with mock.patch("torch.distributed.get_backend", return_value="nccl"):
        return pair(rank, groups, *args)


def poisoned(rank: int, groups: Groups, *args: Any) -> Optional[dict[str, Any]]:
    """pair where memory is not a number until something is written to it and a place that is not free yet is
    noticed."""
    with poisoned_memory():
        return pair(rank, groups, *args)


class Mark(torch.autograd.Function):
    """Notes when a tensor is made and when its gradient is there."""

    @staticmethod
    def forward(ctx: Any, events: Events, name: str, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.note = lambda: events.append([name + " back"])
        events.append([name])
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor]:  # type: ignore[override]
        ctx.note()
        return None, None, grad


class Layer:
    """Products before and after an attention, for one sequence or for two side by side."""

    def __init__(self, plan: evenkeel.Plan, rank: int, group: Any, seed: int) -> None:
        self.plan, self.rank, self.group, self.events = plan, rank, group, []
        source, wide = torch.Generator().manual_seed(seed), plan.q_heads * plan.head_dim
        self.widths = [h * plan.head_dim for h in (plan.q_heads, plan.kv_heads, plan.kv_heads)]
        shapes = (wide, sum(self.widths)), (wide, wide)
        self.weights = [(torch.randn(*s, generator=source) * s[0] ** -0.5).requires_grad_() for s in shapes]

    def before(self, x: Tensor, name: str) -> list[Tensor]:
        """q, k, v of [tokens, width]."""
        y = Mark.apply(self.events, "pre " + name, x @ self.weights[0])
        dim = self.plan.head_dim
        return [t.reshape(len(x), t.shape[1] // dim, dim) for t in y.split(self.widths, 1)]

    def after(self, x: Tensor, out: Tensor, name: str) -> Tensor:
        """The layer's output."""
        return x + torch.tanh(Mark.apply(self.events, "post " + name, out).reshape(x.shape) @ self.weights[1])

    def one(self, x: Tensor) -> Tensor:
        """One sequence, by attention."""
        q, k, v = self.before(x, "")
        return self.after(x, evenkeel.attention(self.plan, self.rank, q, k, v, group=self.group), "")

    def two(self, xa: Tensor, xb: Tensor) -> tuple[Tensor, Tensor]:
        """Two sequences side by side."""
        a = evenkeel.begin_attention(self.plan, self.rank, *self.before(xa, "A"), group=self.group)
        b = evenkeel.begin_attention(self.plan, self.rank, *self.before(xb, "B"), group=self.group)
        a.compute()
        b.compute()
        ya = self.after(xa, a.finish(), "A")
        yb = self.after(xb, b.finish(), "B")
        return ya, yb


def layered(rank: int, groups: Groups, document: dict[str, Any], recompute: bool) -> Optional[dict[str, Any]]:
    """Two layers for two sequences side by side: what is made, posted and waited for, and whether all
    gradients have the bits of one sequence after the other."""
    if rank >= 4:
        return None
    plan = evenkeel.load_plan(document)
    layers = [Layer(plan, rank, groups[4], i) for i in range(2)]
    weights = [w for layer in layers for w in layer.weights]
    source = torch.Generator().manual_seed(5)
    whole = torch.randn(2, plan.seq_len, plan.q_heads * plan.head_dim, generator=source)
    results = []
    for by_twos in (False, True):
        xs = [evenkeel.shard(plan, rank, x).clone().requires_grad_() for x in whole]
        with noted(waits=True) as events:
            ys: Any = xs
            for layer in layers:
                layer.events = events
                if not by_twos:
                    ys = [layer.one(x) for x in ys]
                elif recompute:
                    ys = checkpoint(layer.two, *ys, use_reentrant=False)
                else:
                    ys = layer.two(*ys)
            events.append(["backward"])
            losses = [(y ** 2).sum() for y in ys]
            if by_twos:
                (losses[0] + losses[1]).backward()
            else:
                for loss in losses:
                    loss.backward()
        results.append([*[y.detach() for y in ys], *[t.grad for t in (*xs, *weights)]])
        for w in weights:
            w.grad = None
    same = [torch.equal(a, b) for a, b in zip(*results)]
    return {"events": events, "same": same, "zeros": [not x.numel() or not x.any() for x in results[1]]}


def several(rank: int, groups: Groups, documents: list[dict[str, Any]]) -> Optional[dict[str, Any]]:
    """Sequences of several plans under way at once, the graph's backward made twice: whether all have the bits
    of attentions, how often saved tensors are asked for, and what was posted."""
    if rank >= 4:
        return None
    plans = [evenkeel.load_plan(d) for d in documents]
    wholes, asked, grads = [inputs(plan, i) for i, plan in enumerate(plans)], [], []
    alone = [run(plan, rank, whole, groups[4], None) for plan, whole in zip(plans, wholes)]
    own = [[evenkeel.shard(plan, rank, x) for x in whole] for plan, whole in zip(plans, wholes)]
    leaves = [[x.clone().requires_grad_() for x in of[:3]] for of in own]

    def unpack(x: Tensor) -> Tensor:
        asked.append(x)
        return x

    with noted() as events:
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
            under_way = [evenkeel.begin_attention(plan, rank, *x, group=groups[4])
                         for plan, x in zip(plans, leaves)]
            for x in under_way:
                x.compute()
            outs = [x.finish() for x in under_way]
        for _ in range(2):
            grads.append(torch.autograd.grad(outs, [x for of in leaves for x in of], [of[3] for of in own],
                                             retain_graph=True))
    got = [[outs[i].detach(), *grads[k][3 * i:3 * i + 3]] for k in range(2) for i in range(len(plans))]
    same = [all(map(torch.equal, a, b)) for a, b in zip(2 * alone, got)]
    return {"same": same, "asked": len(asked), "events": events}


def apart(rank: int, groups: Groups) -> Optional[Events]:
    """What two sequences of the known plan post backward, each over a process group of its own."""
    own = [dist.new_group(list(range(4))) for _ in range(2)]  # every rank of the world takes part
    if rank >= 4:
        return None
    plan = known(False, True)
    leaves = [evenkeel.shard(plan, rank, x).requires_grad_() for x in inputs(plan, 1)[:3]]
    under_way = [evenkeel.begin_attention(plan, rank, *leaves, group=group) for group in own]
    for x in under_way:
        x.compute()
    outs = [x.finish() for x in under_way]
    with noted() as events:  # B, the last, is 0 here: it is the first to post
        (outs[0] + outs[1]).sum().backward()
    return events


def without_gradients(rank: int, groups: Groups) -> Optional[list[bool]]:
    """The known plan and one with odd ranks where nothing, or not everything, requires gradients: whether
    results are attention's."""
    if rank >= 4:
        return None
    answers = []
    for document in (worked_example(), odd_example()):
        plan = evenkeel.load_plan({**document, "own_last": True})
        q, k, v, dout = (evenkeel.shard(plan, rank, x) for x in inputs(plan, 1))
        want = run(plan, rank, inputs(plan, 1), groups[4], None)

        def two(*heads: Tensor) -> list[Tensor]:
            both = [evenkeel.begin_attention(plan, rank, *heads, group=groups[4]) for _ in range(2)]
            for x in both:
                x.compute()
            return [x.finish() for x in both]

        with torch.no_grad():
            outs = two(q, k, v.clone().requires_grad_())
        outs += two(q, k, v)
        answers += [torch.equal(out, want[0]) and not out.requires_grad for out in outs]
        leaf = v.clone().requires_grad_()
        outs = two(q, k, leaf)
        for out in reversed(outs):
            (grad,) = torch.autograd.grad(out, leaf, dout, retain_graph=True)
            answers.append(torch.equal(grad, want[3]))
    return answers


def traced(rank: int, groups: Groups, late: bool, own_last: bool) -> Optional[dict[str, Any]]:
    """The spans of two sequences of a known plan, of micro-batches 3 and 4 of layer 7, and of one alone."""
    if rank >= 4:
        return None
    plan = known(late, own_last)
    alone, trace, meter = evenkeel.Trace(rank), evenkeel.Trace(rank), evenkeel.Meter()
    run(plan, rank, inputs(plan, 1), groups[4], None, trace=alone)
    leaves = [evenkeel.shard(plan, rank, x).requires_grad_() for x in inputs(plan, 1)[:3]]
    under_way = []
    trace.layer = 7
    for trace.mb in (3, 4):
        x = evenkeel.begin_attention(plan, rank, *leaves, group=groups[4], trace=trace, meter=meter)
        under_way.append(x)
    trace.layer, trace.mb = 0, 0
    for x in under_way:
        x.compute()
    outs = [x.finish() for x in under_way]
    (outs[0] + outs[1]).sum().backward()
    return {"alone": alone.spans(), "spans": trace.spans(), "now": [trace.layer, trace.mb], **counted(meter)}


def leave(rank: int, groups: Groups) -> None:
    """A rank of the worked example dies when two sequences have begun; the others go on."""
    plan = evenkeel.load_plan(worked_example())
    heads = [evenkeel.shard(plan, rank, x) for x in inputs(plan, 1)[:3]]
    both = [evenkeel.begin_attention(plan, rank, *heads, group=groups[4]) for _ in range(2)]
    if rank == 2:
        os._exit(9)
    for x in both:
        x.compute()
    for x in both:
        x.finish()
