"""What the ranks of a test's world do with plans of tasks."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any, Iterator, Optional
from unittest import mock

import torch
from torch import Tensor

import evenkeel
import jobs
from evenkeel import exchange, moves
from evenkeel.drawn import DTYPES
from evenkeel.exchange import Exchange
from evenkeel.kernels import default_kernel
from evenkeel.mail import Room
from evenkeel.port import Call, Port
from evenkeel.taskflow import TaskFlow, module_layers
from evenkeel.tasks import tasks_of
from evenkeel.whole import Layers
from pipelines import calls, fresh
from task_plans import Answer, random_tasks


class Stepped:
    """A rank's place in a plan of tasks, ready for steps; inputs and weights are the same everywhere."""

    def __init__(self, rank: int, of: Any, ranks: int, dtype: str = "f32", kernel: Any = None) -> None:
        """of: a document, or a seed of a random one. All ranks of the world make this, also those beyond the plan's."""
        self.document = of if isinstance(of, dict) else random_tasks(of, ranks, dtype)
        self.plan, self.rank = tasks_of(self.document, ranks), rank
        groups = [*moves.process_groups(self.plan), *exchange.process_groups(self.plan)]
        self.made = fresh(groups)
        self.kernel, self.dtype = kernel or evenkeel.Math(), DTYPES[self.plan.dtype]
        cpu = torch.device("cpu")
        self.layers = Layers(self.plan.modules[0].model, 5, self.dtype, cpu)
        self.inputs, self.gradients = ([self._drawn(10 * i + j) for i in range(len(self.plan.modules))]
                                       for j in range(2))

    def _drawn(self, seed: int) -> Tensor:
        m = self.plan.modules[seed // 10]
        source = torch.Generator().manual_seed(seed)
        return torch.randn(m.batch, m.seq_len, m.model.hidden, generator=source).to(self.dtype)

    def flow(self, **more: Any) -> TaskFlow:
        return TaskFlow(self.plan, self.rank, self.layers, self.kernel, self.made, torch.device("cpu"), **more)

    def own(self, of: Any, run: int) -> Tensor:
        """The rank's rows of what a run's module has."""
        share = self.plan.runs[run].share(self.rank)
        return of[self.plan.runs[run].module][share.start:share.end].flatten(0, 1)

    def run(self, flow: TaskFlow) -> tuple[dict[Any, Tensor], ...]:
        """A step: results and gradients of inputs by run, gradients of weights by run and layer."""
        got: tuple[dict[Any, Tensor], ...] = {}, {}, {}
        flow.run(lambda i: self.own(self.inputs, i), lambda i: self.own(self.gradients, i), got[0].__setitem__,
                 got[1].__setitem__, lambda i, layer, x: got[2].__setitem__((i, layer), x.clone()))
        return got


def stepped(
    rank: int, groups: Any, of: Any, ranks: int, steps: int = 1, how: str = "Math", dtype: str = "f32"
) -> Optional[dict[str, Any]]:
    """Steps of a plan: the worst errors of results, gradients of inputs, and of weights; what is left; and what was
    sent and computed in a step. how: a kernel, poisoned as in jobs.py, or inline, where messages go as over NCCL and
    all is said to be gone at once."""
    kernels = {"Jittered": jobs.Jittered, "Even": jobs.Even, "default": lambda: default_kernel(torch.empty(0, 0, 8))}
    at = Stepped(rank, of, ranks, dtype, kernels.get(how, evenkeel.Math)())
    if rank >= ranks:
        return None
    meter = evenkeel.Meter()
    with contextlib.ExitStack() as stack:
        if how == "poisoned":
            stack.enter_context(jobs.poisoned_memory(several=True))
        if how == "inline":
            stack.enter_context(mock.patch("torch.distributed.get_backend", return_value="nccl"))
            stack.enter_context(_told())
        flow = at.flow(meter=meter)
        stack.enter_context(mock.patch.object(TaskFlow, "_ended", _watching(how == "inline")))
        for _ in range(steps):
            flow.clear()
            got = at.run(flow)
    sent, there = flow.sent(), left(flow)
    return {"errors": errors(at, got), "left": there, "results": [len(x) for x in got],
            "sent": {f"{p} {peer}": n // steps for (p, peer), n in sent.sent.items()},
            "received": {f"{p} {peer}": n // steps for (p, peer), n in sent.received.items()},
            "flops": {k: n // steps for k, n in meter.flops.items()}}


def _watching(told: bool) -> Any:
    """TaskFlow._ended, after which nothing is kept of what is known to be gone: of all that was sent, either way, where
    the library tells; over gloo, after a backward pass, of what the runs that need this one were sent forward."""
    run = TaskFlow._ended

    def ended(flow: TaskFlow, i: int, back: bool) -> None:
        run(flow, i, back)
        gone = [flow._moves[link, False] for link in flow._from[i] if back]
        mails = [move._mail for move in (flow._moves.values() if told else gone)]
        assert not any(mail._going for mail in mails if mail is not None), f"what run {i} sent is still kept"

    return ended


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Inside, calls are said to be over when they are asked, as NCCL may say; when this ends they are."""
    asked: list[Call] = []

    def over(call: Call) -> bool:
        call._over = True
        asked.append(call)
        return True

    with mock.patch.object(Call, "over", property(over)):
        yield
    for call in asked:
        call._work.wait()


def alike(rank: int, groups: Any, of: Any, ranks: int) -> Optional[dict[str, bool]]:
    """Whether a step has the same bits a second time, whenever messages come, in batches of messages, and whether
    layers are computed again or not."""
    at = Stepped(rank, of, ranks)
    if rank >= ranks:
        return None
    flow = at.flow()
    once = at.run(flow)
    runs = {"once more": at.run(flow)}
    at.kernel = jobs.Jittered()
    runs["jittered"] = at.run(at.flow())
    at.kernel = evenkeel.Math()
    with mock.patch("torch.distributed.get_backend", return_value="nccl"):
        runs["inline"] = at.run(at.flow())
    at.plan = dataclasses.replace(at.plan, recompute=not at.plan.recompute)
    runs["again"] = at.run(at.flow())
    return {name: all(a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) for a, b in zip(once, got))
            for name, got in runs.items()}


def called(rank: int, groups: Any, of: Any, ranks: int) -> Optional[list[Any]]:
    """What a rank calls in a step as over NCCL, in order: see pipelines.calls. An exchange sends what it has to all
    ranks of its group, and receives as much from each."""
    at = Stepped(rank, of, ranks)
    if rank >= ranks:
        return None
    keys, post, wait = list(at.made), Exchange.post, Exchange.wait
    with calls(at.made) as (events, posted):
        def note_post(of: Exchange, layer: int, grads: Any) -> None:
            post(of, layer, grads)
            key = next(k for k in keys if at.made[k] is of._group)
            messages = [[r, 4 * sum(g.numel() for g in grads)] for r in key[1] if r != rank]
            events.append(["post", keys.index(key), messages, messages])
            posted.append(of._calls[-1])

        def note_wait(of: Exchange) -> Any:
            events.extend(["wait", next(i for i, p in enumerate(posted) if p is call)] for call in of._calls)
            return wait(of)

        with mock.patch.object(Exchange, "post", note_post), mock.patch.object(Exchange, "wait", note_wait):
            flow = at.flow()
            at.run(flow)
    return events


def traced(rank: int, groups: Any, of: Any, ranks: int) -> Optional[list[Any]]:
    """The spans of a step."""
    at = Stepped(rank, of, ranks)
    if rank >= ranks:
        return None
    trace = evenkeel.Trace(rank)
    at.run(at.flow(trace=trace))
    return trace.spans()


def left(flow: TaskFlow) -> int:
    """Of what a step needs, how much is there when it is over."""
    mails = [m._mail for m in flow._moves.values() if m._mail is not None]
    return (sum(len(mail._coming) + len(mail._going) for mail in mails)
            + sum(m._own is not None for m in flow._moves.values())
            + sum(len(x._calls) for x in flow._exchanges.values())
            + sum(w.grad is not None for s in flow._stacks.values() for x in s._linear.layers
                  for w in x.weights.values())
            + sum(len(s._kept) for s in flow._stacks.values()))


def errors(at: Stepped, got: Any) -> list[float]:
    """The largest of results, of gradients of inputs and of those of weights."""
    modules = at.plan.modules
    weights = [[x.weights for x in module_layers(at.layers, at.plan, i).at(0, m.layers)]
               for i, m in enumerate(modules)]
    answer = Answer(at.document, weights, at.inputs, at.gradients)
    worst = [0.0, 0.0, 0.0]
    for j, (found, wants) in enumerate(zip(got, (answer.results, answer.input_gradients))):
        for i, x in found.items():
            worst[j] = max(worst[j], off(x, at.own(wants, i)))
    for (i, layer), x in got[2].items():
        want = answer.weight_gradients[at.plan.runs[i].module][layer]
        worst[2] = max(worst[2], off(x, torch.cat([w.flatten() for w in want.values()])))
    return worst


def off(got: Tensor, want: Tensor) -> float:
    if got.shape != want.shape or not bool(torch.isfinite(got).all()):
        return math.inf
    return float((got.double() - want).norm() / want.norm().clamp_min(1e-6))


def readied(rank: int, groups: Any, of: Any, ranks: int) -> Optional[list[Any]]:
    """The passes for which a rank is told in a step that it has done what they need of it, as often as it is told: runs
    of forward passes and of backward ones."""
    at = Stepped(rank, of, ranks)
    if rank >= ranks:
        return None
    flow, ready = at.flow(), Room.ready
    told: list[list[int]] = [[], []]

    def note(room: Room, keys: Any) -> None:
        keys = list(keys)
        told[room is flow._rooms[True]].extend(keys)
        ready(room, keys)

    with mock.patch.object(Room, "ready", note):
        at.run(flow)
    return told


def sent_backward(rank: int, groups: Any, of: Any, ranks: int) -> Optional[list[Any]]:
    """To whom a rank sends gradients in a step, in order: between which runs, and the rank."""
    at = Stepped(rank, of, ranks)
    if rank >= ranks:
        return None
    names = {id(group): key for key, group in at.made.items()}
    sent: list[Any] = []
    post = Port.post

    def note(port: Port, phase: str, step: int, sends: Any, receives: Any) -> Any:
        name, members = names[id(port._group)]
        sent.extend([name, members[m.peer]] for m in sends if phase == "bwd.send")
        return post(port, phase, step, sends, receives)

    with mock.patch.object(Port, "post", note):
        at.run(at.flow())
    return sent
