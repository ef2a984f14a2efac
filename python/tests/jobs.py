"""What the ranks of a test's world do. Every job gets the rank and the process groups by size."""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from datetime import timedelta
from typing import Any, Iterator, Optional
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

import dense
import evenkeel
from evenkeel.port import Batch, Message, Port
from evenkeel import whole as layered
from plans import DRAWS, chunked_example, late_groups, random_plan, times_begun, worked_example
from test_replay import complete, odd_example

Groups = dict[int, Any]


class Even(evenkeel.Repeating):
    """A kernel that insists on as many query heads for every KV head, as those on GPUs do."""

    def __init__(self) -> None:
        self._math = evenkeel.Math()

    def even_forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        return self._math.forward(q, k, v, self._shared(q, k), causal)

    def even_backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self._math.backward(dout, q, k, v, out, lse, self._shared(q, k), causal)

    def _shared(self, q: Tensor, k: Tensor) -> list[int]:
        if q.shape[0] % k.shape[0]:
            raise ValueError(f"{q.shape[0]} query heads for {k.shape[0]} KV heads")
        return [q.shape[0] // k.shape[0]] * k.shape[0]


class Jittered(evenkeel.Math):
    """A kernel that takes now long, now short, so that messages come before and after they are waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random(os.getpid())

    def forward(self, *args: Any) -> Any:
        time.sleep(self._random.choice([0, 0, 0.001, 0.005]))
        return super().forward(*args)

    def backward(self, *args: Any) -> Any:
        time.sleep(self._random.choice([0, 0, 0.001, 0.005]))
        return super().backward(*args)


def inputs(plan: evenkeel.Plan, seed: int) -> list[Tensor]:
    """q, k, v, dout of the whole sequence."""
    source = torch.Generator().manual_seed(seed)
    heads = plan.q_heads, plan.kv_heads, plan.kv_heads, plan.q_heads
    return [torch.randn(plan.seq_len, h, plan.head_dim, generator=source) for h in heads]


def run(
    plan: evenkeel.Plan, rank: int, whole: list[Tensor], group: Any, docs: Optional[list[int]],
    begun: int = 0, **options: Any
) -> list[Tensor]:
    """[out, dq, dk, dv] of the rank's tokens. begun: how often begin_backward is called."""
    own = [evenkeel.shard(plan, rank, x) for x in whole]
    leaves = [x.clone().requires_grad_() for x in own[:3]]
    out = evenkeel.attention(plan, rank, *leaves, group=group, docs=docs, **options)
    for _ in range(begun):
        evenkeel.begin_backward(out)
    out.backward(own[3])
    return [out.detach(), *(x.grad for x in leaves)]


def compare(
    rank: int, groups: Groups, seed: int, ranks: int, dtype: str = "float32", kernel: str = "Math",
    device: str = "cpu", drawn: str = "random",
) -> Optional[dict[str, Any]]:
    """One random plan: errors of out, dq, dk, dv, what was sent and computed. None on ranks beyond it."""
    if rank >= ranks:
        return None
    document, docs = DRAWS[drawn](seed, ranks)
    plan, meter = evenkeel.load_plan(document), evenkeel.Meter()
    whole = [x.to(getattr(torch, dtype)) for x in inputs(plan, seed)]
    kinds = {"Math": evenkeel.Math, "Even": Even, "Jittered": Jittered, "default": lambda: None}
    chosen = kinds[kernel]()
    moved = [x.to(device) for x in whole]
    got = run(plan, rank, moved, groups[ranks], docs, times_begun(seed), meter=meter, kernel=chosen)
    got = [x.cpu() for x in got]
    return {"errors": errors(plan, rank, got, whole, docs), **counted(meter)}


def inline(
    rank: int, groups: Groups, seed: int, ranks: int, drawn: str
) -> Optional[dict[str, Any]]:
    """compare with batches of messages and without a thread, as over NCCL: the order of calls is the same."""
    with mock.patch("torch.distributed.get_backend", return_value="nccl"):
        return compare(rank, groups, seed, ranks, drawn=drawn)


def poisoned(
    rank: int, groups: Groups, seed: int, ranks: int, drawn: str, kernel: str = "Math"
) -> Optional[dict[str, Any]]:
    """compare where memory is not a number until something is written to it and a place that is not free yet
    is noticed."""
    with poisoned_memory():
        return compare(rank, groups, seed, ranks, kernel=kernel, drawn=drawn)


@contextlib.contextmanager
def poisoned_memory(several: bool = False) -> Iterator[None]:
    """What poisoned runs in. several: what is never written again may go to several ranks at a time."""
    with contextlib.ExitStack() as stack:
        for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
            stack.enter_context(mock.patch.object(owner, name, _poisoned(getattr(owner, name))))
        stack.enter_context(_watched(several))
        yield


def _poisoned(empty: Any) -> Any:
    def make(*args: Any, **options: Any) -> Tensor:
        x: Tensor = empty(*args, **options)
        return x.fill_(math.nan) if x.is_floating_point() else x

    return make


@contextlib.contextmanager
def _watched(several: bool) -> Iterator[None]:
    """Fails when a message begins where another is still sent from or still comes to: what a message takes
    along may have been written there meanwhile."""
    post = Port.post
    posted: list[tuple[Batch, list[Message], list[Message]]] = []

    def watch(port: Port, phase: str, step: int, sends: list[Message], receives: list[Message]) -> Batch:
        for batch, going, coming in posted:
            going, coming = going if batch._sends else [], coming if batch._receives else []
            if _meet([*sends, *receives], coming) or _meet(receives if several else [*sends, *receives], going):
                raise AssertionError(f"{phase} step {step}: a place is not free yet")
        batch = post(port, phase, step, sends, receives)
        posted.append((batch, list(sends), list(receives)))
        return batch

    with mock.patch.object(Port, "post", watch):
        yield


def _meet(some: list[Message], others: list[Message]) -> bool:
    """Whether any have memory in common; all are contiguous."""
    spans = [[(x.data_ptr(), x.data_ptr() + x.numel() * x.element_size()) for _, x in side]
             for side in (some, others)]
    return any(max(a, c) < min(b, d) for a, b in spans[0] for c, d in spans[1])


def errors(
    plan: evenkeel.Plan, rank: int, got: list[Tensor], whole: list[Tensor], docs: Optional[list[int]]
) -> list[float]:
    """Of out, dq, dk, dv of one rank."""
    wants = _answers(whole, docs)
    shards = [evenkeel.shard(plan, rank, w) for w in wants]
    return [dense.error(g, s, float(w.norm())) for g, s, w in zip(got, shards, wants)]


# By inputs, of long sequences: known plans have the same ones, whose answers take a core a second each time.
_KEPT: dict[Any, list[Tensor]] = {}


def _answers(whole: list[Tensor], docs: Optional[list[int]]) -> list[Tensor]:
    if len(whole[0]) < 500:
        return dense.with_gradients(*whole, docs)
    key = str(docs), *((x.dtype, x.shape, x.float().numpy().tobytes()) for x in whole)
    if key not in _KEPT:
        _KEPT[key] = dense.with_gradients(*whole, docs)
    return _KEPT[key]


def counted(meter: evenkeel.Meter) -> dict[str, Any]:
    """A meter's counters as lists."""
    sent = [[phase, peer, n] for (phase, peer), n in sorted(meter.sent.items())]
    received = [[phase, peer, n] for (phase, peer), n in sorted(meter.received.items())]
    return {"sent": sent, "received": received, "flops": meter.flops}


def known(late: bool, own_last: bool) -> evenkeel.Plan:
    """The worked example, or the plan with late groups, with the own block last or first."""
    return evenkeel.load_plan({**(late_groups() if late else worked_example()), "own_last": own_last})


def example(rank: int, groups: Groups, late: bool, own_last: bool) -> Optional[dict[str, Any]]:
    """A known plan run twice, the second time with its backward begun before."""
    if rank >= 4:
        return None
    plan = known(late, own_last)
    whole, meter = inputs(plan, 1), evenkeel.Meter()
    once = run(plan, rank, whole, groups[4], None, meter=meter)
    again = run(plan, rank, whole, groups[4], None, 2)
    same = all(torch.equal(a, b) for a, b in zip(once, again))
    return {"errors": errors(plan, rank, once, whole, None), "same": same, **counted(meter)}


def overtaken(rank: int, groups: Groups, late: bool) -> Optional[dict[str, Any]]:
    """A known plan where every rank begins with its own block, which is the last, only when the gradients of
    the others' blocks have left it, and takes its time, so that its own one's has come home by then."""
    if rank >= 4:
        return None
    plan, meter = known(late, True), evenkeel.Meter()
    want = evenkeel.expected(plan).bytes
    home = {(phase, to): n for (r, to, phase), n in want.items() if r == rank and phase == "bwd.ring_grad"}

    class Patient(evenkeel.Math):
        def backward(self, *args: Any) -> Any:
            if args[-1]:  # causal: a square of the own block
                limit = time.monotonic() + 20
                while any(meter.sent.get(key) != n for key, n in home.items()):
                    if time.monotonic() > limit:
                        raise AssertionError("gradients of the others' blocks wait for the own block")
                    time.sleep(0.001)
                time.sleep(0.1)
            return super().backward(*args)

    whole = inputs(plan, 1)
    got = run(plan, rank, whole, groups[4], None, meter=meter, kernel=Patient())
    return {"errors": errors(plan, rank, got, whole, None), "sent": len(home)}


@contextlib.contextmanager
def _noted() -> Iterator[list[list[Any]]]:
    """[phase, step] of what is posted inside, in order, for others to add to."""
    post, events = Port.post, []

    def note(port: Port, phase: str, step: int, *messages: Any) -> Batch:
        events.append([phase, step])
        return post(port, phase, step, *messages)

    with mock.patch.object(Port, "post", note):
        yield events


def ordered(
    rank: int, groups: Groups, late: bool, own_last: bool, begun: int
) -> Optional[dict[str, Any]]:
    """What a known plan posts in two backward passes of one graph, and where each begins; how many of the
    saved tensors they asked for."""
    if rank >= 4:
        return None
    plan, asked, grads = known(late, own_last), [], []
    q, k, v, dout = (evenkeel.shard(plan, rank, x) for x in inputs(plan, 1))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]

    def unpack(x: Tensor) -> Tensor:
        asked.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
        out = evenkeel.attention(plan, rank, *leaves, group=groups[4])
    with _noted() as events:
        for _ in range(2):
            for _ in range(begun):
                evenkeel.begin_backward(out)
            events.append(["backward", 0])
            grads.append(torch.autograd.grad(out, leaves, dout, retain_graph=True))
    return {"events": events, "asked": len(asked), "same": all(map(torch.equal, *grads))}


def stacked(rank: int, groups: Groups, own_last: bool, recompute: bool) -> Optional[dict[str, Any]]:
    """Two whole layers over a plan with a rank of no tokens and one without work: what they post backward,
    and where spans and calls of begin_backward are among it."""
    if rank >= 4:
        return None
    document = {**complete(odd_example()), "own_last": own_last}
    plan, model = evenkeel.load_plan(document), layered.model_of(document)
    own = evenkeel.positions(plan, rank)
    layers = [layered.Layer(model, 1, i, torch.float32, torch.device("cpu")) for i in range(2)]
    tables = layered.angles(own, model.rotary, torch.float32, "cpu")
    x, dy = torch.randn(2, plan.seq_len, model.hidden, generator=torch.Generator().manual_seed(1))
    results = []

    class Noting(evenkeel.Trace):
        def span(self, span: evenkeel.Span) -> Any:
            events.append([f"{span.direction}.{span.op} span", span.step])
            return super().span(span)

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return evenkeel.attention(plan, rank, q, k, v, group=groups[4])

    def begin(out: Tensor) -> None:
        events.append(["begin", 0])
        if results:  # of the second time; the first is without
            evenkeel.begin_backward(out)

    with _noted() as events, mock.patch.object(layered, "begin_backward", begin):
        for _ in range(2):
            stack = layered.Stack(layers, attend, tables, len(layers) * recompute, Noting(rank))
            stack.forward(x[own])
            events.clear()
            results.append(stack.backward(dy[own]))
            stack.clear()
    return {"events": events, "same": torch.equal(*results), "tokens": len(own)}


def traced(rank: int, groups: Groups, late: bool, own_last: bool) -> Optional[dict[str, Any]]:
    """The spans of a known plan."""
    if rank >= 4:
        return None
    plan = known(late, own_last)
    trace, meter = evenkeel.Trace(rank), evenkeel.Meter()
    trace.zero()
    run(plan, rank, inputs(plan, 1), groups[4], None, trace=trace, meter=meter)
    return {"spans": trace.spans(), **counted(meter)}


def chunked(rank: int, groups: Groups, head_chunks: int) -> Optional[dict[str, Any]]:
    """The known plan in chunks: what it posts, [phase, [peer, bytes] to, from], which posts it waits for and
    when it computes; its spans; whether it is the same bits however long blocks take, and backward a second
    time."""
    if rank >= 4:
        return None
    plan, events, posted = evenkeel.load_plan(chunked_example(head_chunks)), [], []
    whole, trace, meter = inputs(plan, 1), evenkeel.Trace(rank), evenkeel.Meter()
    post, received = Port.post, Batch.received

    def note_post(port: Port, phase: str, step: int, *messages: list[Message]) -> Batch:
        sides = [[[m.peer, m.tensor.numel() * 4] for m in x if m.tensor.numel()] for x in messages]
        events.append([phase, *sides])
        posted.append(post(port, phase, step, *messages))
        return posted[-1]

    def note_wait(batch: Batch) -> None:
        events.append(["received", posted.index(batch)])
        received(batch)

    class Noting(evenkeel.Math):
        def forward(self, *args: Any) -> Any:
            events.append(["attn"])
            return super().forward(*args)

        def backward(self, *args: Any) -> Any:
            events.append(["attn"])
            return super().backward(*args)

    with mock.patch.object(Port, "post", note_post), mock.patch.object(Batch, "received", note_wait):
        trace.zero()
        got = run(plan, rank, whole, groups[4], None, trace=trace, meter=meter, kernel=Noting())
    again = [run(plan, rank, whole, groups[4], None, kernel=Jittered()) for _ in range(3)]
    q, k, v, dout = (evenkeel.shard(plan, rank, x) for x in whole)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = evenkeel.attention(plan, rank, *leaves, group=groups[4], kernel=Jittered())
    again += [[out, *torch.autograd.grad(out, leaves, dout, retain_graph=True)] for _ in range(2)]
    same = all(torch.equal(a, b) for x in again for a, b in zip(got, x))
    return {"errors": errors(plan, rank, got, whole, None), "same": same, "events": events,
            "spans": trace.spans(), "chunk": trace.chunk, **counted(meter)}


def layers(rank: int, groups: Groups) -> float:
    """Two attentions in one graph and a loss: the error of the gradient of q that flows through both. The
    backward of the first is begun where a framework would, before that of what follows it."""
    document, docs = random_plan(3, 3)
    if rank >= 3:
        return 0.0
    plan = evenkeel.load_plan({**document, "own_last": True})
    q, k, v, _ = inputs(plan, 2)
    x = evenkeel.shard(plan, rank, q).requires_grad_()
    sides = [evenkeel.shard(plan, rank, t) for t in (k, v)]
    first = evenkeel.attention(plan, rank, x, *sides, group=groups[3], docs=docs)
    between = torch.tanh(first)
    between.register_hook(lambda grad: evenkeel.begin_backward(first))
    second = evenkeel.attention(plan, rank, between, *sides, group=groups[3], docs=docs)
    (second ** 2).sum().backward()
    leaf, mask = q.double().requires_grad_(), dense.hidden(plan.seq_len, docs)
    k, v = k.double(), v.double()
    twice = dense.attention(torch.tanh(dense.attention(leaf, k, v, mask)), k, v, mask)
    (want,) = torch.autograd.grad((twice ** 2).sum(), leaf)
    return dense.error(x.grad, evenkeel.shard(plan, rank, want), float(want.norm()))


def stall(rank: int, groups: Groups, timeout_s: float, stalled_s: float) -> None:
    """A rank of the worked example stands still in the forward's first block, for longer than a process group
    with this timeout lets the others wait."""
    plan, four = evenkeel.load_plan(worked_example()), list(range(4))
    group = dist.new_group(four, timeout=timedelta(seconds=timeout_s))

    class Stalls(evenkeel.Math):
        def forward(self, *args: Any) -> Any:
            time.sleep(stalled_s)
            return super().forward(*args)

    run(plan, rank, inputs(plan, 1), group, None, kernel=Stalls() if rank == 1 else evenkeel.Math())


def leave(rank: int, groups: Groups) -> None:
    """A rank of the worked example dies in the backward's first block; the others run it."""
    plan = evenkeel.load_plan(worked_example())

    class Dies(evenkeel.Math):
        def backward(self, *args: Any) -> Any:
            os._exit(9)

    run(plan, rank, inputs(plan, 1), groups[4], None, kernel=Dies() if rank == 2 else evenkeel.Math())
