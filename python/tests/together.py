"""Jobs of a world's ranks that have two micro-batches go through layers together, as a replay has them."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Optional, Sequence
from unittest import mock

import torch
from torch import Tensor

import evenkeel
from evenkeel import split, twos, whole
from evenkeel.compare import Noting
from evenkeel.split import Steps
from jobs import Groups, Jittered, counted, inputs, poisoned_memory, run
from paired import drawn_plan, noted
from plans import worked_example
from test_replay import complete


def woven(document: dict[str, Any], forward: bool, backward: bool) -> dict[str, Any]:
    """The plan with rings that take turns, where it has any."""
    if len(document["groups"]) < 2:
        return document
    return {**document, "two_batch_overlap": True, "weave_forward": forward, "weave_backward": backward}


def in_steps_inline(rank: int, groups: Groups, *args: Any) -> Optional[dict[str, Any]]:
    """in_steps with batches of messages and without a thread, as over NCCL."""
    with mock.patch("torch.distributed.get_backend", return_value="nccl"):
        return in_steps(rank, groups, *args)


def in_steps(
    rank: int, groups: Groups, seed: int, ranks: int, drawn: str, poison: bool,
    weave: Sequence[bool] = (False, False),
) -> Optional[dict[str, Any]]:
    """Two sequences of a drawn plan in their steps, A first in both directions; as paired.pair. poison: see
    poisoned_memory. weave: whether rings take turns, forward and backward."""
    if rank >= ranks:
        return None
    document, docs = drawn_plan(drawn, seed, ranks)
    plan, meter, ends = evenkeel.load_plan(woven(document, *weave)), evenkeel.Meter(), Noting()
    given = [inputs(plan, 2 * seed + i) for i in range(2)]
    with noted() as lone:
        alone = [run(plan, rank, x, groups[ranks], docs, kernel=evenkeel.Math()) for x in given]
    kernel = Jittered() if poison else evenkeel.Math()
    begin: twos.Begin = lambda *heads: Steps(plan, rank, *heads, group=groups[ranks], docs=docs, kernel=kernel,
                                             meter=meter)
    own = [[evenkeel.shard(plan, rank, x) for x in of] for of in given]
    with noted() as events, poisoned_memory() if poison else contextlib.nullcontext():
        both = twos.Pair(1, ends, begin, False)
        both.forward(*(tuple(x[:3]) for x in own))
        both.backward(*(x[3] for x in own))
    same = [all(map(torch.equal, a, b)) for a, b in zip(alone, ends.got)]
    return {"same": same, "lone": [e[1:] for e in lone if not e[0]], "events": events, **counted(meter)}


def leave(rank: int, groups: Groups, backward: bool) -> None:
    """A rank of the worked example dies when two sequences have left; the rings of the others take turns."""
    if rank >= 4:
        return
    plan = evenkeel.load_plan(worked_example())
    *heads, dout = (evenkeel.shard(plan, rank, x) for x in inputs(plan, 1))
    a, b = (Steps(plan, rank, *heads, group=groups[4]) for _ in range(2))
    for steps in (a, b):
        steps.leave()
    if backward:
        a.attend(b)
        for steps in (a, b):
            steps.arrive()
            steps.leave_back(dout)
    if rank == 2:
        os._exit(9)
    if backward:
        a.attend_back(b)
    else:
        a.attend(b)


def in_layers(
    rank: int, groups: Groups, document: dict[str, Any], recompute: bool, dropped: bool = False
) -> Optional[dict[str, Any]]:
    """Two whole layers for two sequences together: what they post and wait for and where spans of linear parts
    begin among it; whether outputs and gradients have the bits of one sequence after the other; and the spans
    of either way."""
    if rank >= 4:
        return None
    plan, model = evenkeel.load_plan(document), whole.model_of(complete(document))
    own, cpu = evenkeel.positions(plan, rank), torch.device("cpu")
    layers = [whole.Layer(model, 1, i, torch.float32, cpu) for i in range(2)]
    weights = [w for layer in layers for w in layer.weights.values()]
    tables = whole.angles(own, model.rotary, torch.float32, cpu)
    source = torch.Generator().manual_seed(5)
    xs, dys = (torch.randn(2, plan.seq_len, model.hidden, generator=source)[:, own] for _ in range(2))

    class Marking(evenkeel.Trace):
        def span(self, span: evenkeel.Span) -> Any:
            if "linear" in span.op:
                events.append([f"{span.direction}.{span.op} {self.mb}"])
            return super().span(span)

    lone, trace = evenkeel.Trace(rank), Marking(rank)
    wants: list[list[Tensor]] = [[], []]
    for lone.mb in range(2):
        attend: whole.Attend = lambda _, *heads: evenkeel.attention(
            plan, rank, *heads, group=groups[4], trace=lone)
        stack = whole.Stack(layers, attend, tables, len(layers) * recompute, lone)
        wants[0].append(stack.forward(xs[lone.mb]).detach())
        wants[1].append(stack.backward(dys[lone.mb]))
        if dropped:
            last = [w.grad for w in weights]
            stack.clear()
        else:
            last = [w.grad.clone() if w.grad is not None else None for w in weights]
    for w in weights:
        w.grad = None
    begin: twos.Begin = lambda *heads: Steps(plan, rank, *heads, group=groups[4], trace=trace)
    with noted(waits=True) as events:
        both = twos.Pair(2, whole.Linear(layers, tables, trace), begin, recompute, trace, dropped)
        ys = [y.detach() for y in both.forward(*xs)]
        events.append(["backward"])
        dxs = both.backward(*dys)
    same = [torch.equal(a, b) for a, b in zip([*ys, *dxs], [*wants[0], *wants[1]])]
    left = [[name, None if w.grad is None else bool(last[i] is not None and torch.equal(w.grad, last[i]))]
            for i, (name, w) in enumerate((n, w) for layer in layers for n, w in layer.weights.items())]
    both.clear()
    return {"events": events, "same": same, "left": left, "lone": lone.spans(), "spans": trace.spans(),
            "line": len(split._LINE._refs), "cleared": all(w.grad is None for w in weights),
            "apart": not torch.equal(*dxs) or not len(own)}
