"""Jobs of a world's ranks that run sequences side by side, against the same ones one after the other."""

from __future__ import annotations

import contextlib
import random
from typing import Any, Callable, Iterator, Optional
from unittest import mock

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import evenkeel
from evenkeel.port import Batch, Port
from jobs import Groups, Jittered, counted, inputs, poisoned_memory, run
from plans import DRAWS, worked_example

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
    **options: Any
) -> list[list[Tensor]]:
    """By sequence [out, dq, dk, dv], all under way at once. backward: "sum" of all losses, or "each", the last
    one first. begun: the sequences for which begin_backward is called before."""
    own = [[evenkeel.shard(plan, rank, x) for x in whole] for plan, whole in zip(plans, wholes)]
    leaves = [[x.clone().requires_grad_() for x in of[:3]] for of in own]
    under_way = [evenkeel.begin_attention(plan, rank, *x, **options) for plan, x in zip(plans, leaves)]
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


def inline(rank: int, groups: Groups, *args: Any) -> Optional[dict[str, Any]]:
    """pair with batches of messages and without a thread, as over NCCL."""
    with mock.patch("torch.distributed.get_backend", return_value="nccl"):
        return pair(rank, groups, *args)


def poisoned(rank: int, groups: Groups, *args: Any) -> Optional[dict[str, Any]]:
    """pair where memory is not a number until something is written to it and a place that is not free yet is
    noticed."""
    with poisoned_memory():
        return pair(rank, groups, *args)
