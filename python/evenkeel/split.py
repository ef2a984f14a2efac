"""The attention of one layer in three calls, so that several sequences can be under way at once.

    a = begin_attention(plan, rank, qa, ka, va)  # all-to-all in of A leaves
    b = begin_attention(plan, rank, qb, kb, vb)  # what makes qb, kb, vb runs while A's is on the wire
    a.compute()                                  # ring of A, all-to-all out of A leaves
    b.compute()                                  # ring of B while A's is on the wire
    out_a, out_b = a.finish(), b.finish()        # what follows A runs while B's is on the wire

Each call is a node of autograd's graph, tied to the next by a tensor without elements. Of the nodes that are
ready autograd runs the one that was made last, so that the backward is the forward in a mirror: finish sends
the output's gradient, compute waits for it, runs the ring backward and sends the gradients of q, k and v,
begin waits for these; and B, which ended last, comes first. So messages have one order on all ranks: that of
the calls. The ring of one sequence is over before the next call posts anything.

finish keeps what all three need for the backward: it is the first of them, so that tensors which are
recomputed (torch.utils.checkpoint) are there before any message of the backward leaves, on every rank.

Where the plan weaves rings, a.compute(b) stands in the place of a.compute() and b.compute(): one node, whose
rings take turns step by step in the directions of the plan's weave_forward and weave_backward, in the same order
of sequences. Sequences that are computed together go backward together.

Where the ring's first keys and values leave before all else (own_last), they do so for the first of the
sequences that are in their backward. Those of each other one leave when the ring of the one before it is
over, ahead of that one's all-to-all out: earlier, and a rank would hold the buffers of two rings; later, and
its own ring would wait for them.
"""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import dataclass
from typing import Any, Iterator, Optional, Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .executor import Exchange, Run, as_given, check_inputs, heads_of, joined, own_heads, width
from .kernels import Kernel
from .lane import OVER, Lane, in_turns
from .layout import Seat
from .meter import Meter, Trace, timed
from .plan import Plan
from .port import ProcessGroup
from .ring import Back, Forth, Held


def begin_attention(
    plan: Plan, rank: int, q: Tensor, k: Tensor, v: Tensor, *, group: ProcessGroup = None,
    kernel: Optional[Kernel] = None, docs: Optional[Sequence[int]] = None, meter: Optional[Meter] = None,
    trace: Optional[Trace] = None,
) -> "SplitAttention":
    """Begins the attention of a sequence: its all-to-all in leaves. compute() and finish() of what is returned
    do the rest; all three together are attention, with the same results, bit for bit.

    Arguments and errors are attention's; a plan with head_chunks is refused with ValueError. Any number of
    sequences may be under way, of one plan or several. Every rank of the plan makes all calls, of all
    sequences of the process group, in one order, and afterwards one backward pass of all of them or of each.
    A sequence that was begun must be finished: if it never is, what was posted stays under way, and the
    process group may not be fit for others.

    Spans of a trace are of the micro-batch (mb) and layer that the trace has now, in the backward too. The two
    ends of an all-to-all are two spans: what leaves is in bytes_out of the first, what comes in bytes_in of
    the second.
    """
    check_inputs(plan, rank, q, k, v)
    return SplitAttention(_Sequence(plan, rank, q, group, kernel, docs, meter, trace), q, k, v)


class SplitAttention:
    """The attention of one sequence under way; begin_attention makes it."""

    def __init__(self, run: "_Sequence", q: Tensor, k: Tensor, v: Tensor) -> None:
        # Not kept by the run: the graph has that, and would then have itself.
        self._run, self._next = run, "compute"
        self._token: Tensor = _Begin.apply(run, q, k, v)

    def compute(self, *beside: "SplitAttention") -> None:
        """Waits for what comes in, runs the ring, and lets the all-to-all out leave.

        beside: other sequences of the same plan, whose compute this is, too. Their rings take turns with this
        one's where the plan weaves them, forward or backward, and follow it where it does not. Their losses
        then take one backward pass.

        Raises ValueError for a sequence of another plan, RuntimeError when it is not this call's turn or
        gradients are no longer enabled, and ExchangeError or LaneError as attention does.
        """
        together = (self, *beside)
        if any(one._run.plan != self._run.plan for one in beside):
            raise ValueError("beside: want sequences of the same plan")
        for one in together:
            one._turn("compute")
        tokens = _Compute.apply([one._run for one in together], *(one._token for one in together))
        for one, token in zip(together, tokens):
            one._token, one._next = token, "finish"

    def finish(self) -> Tensor:
        """Waits for what comes out: out [tokens, q_heads, head_dim] of this rank's tokens, as attention returns
        it. Raises as compute does."""
        self._turn("finish")
        token, self._token = self._token, torch.empty(0)
        out: Tensor = _Finish.apply(self._run, token)
        self._next = "nothing"
        return out

    def _turn(self, call: str) -> None:
        """Refuses a call out of turn; while one runs, and after it failed, none is in turn."""
        if self._next != call:
            raise RuntimeError(f"{call}: {_SAID[self._next]}")
        if self._token.requires_grad and not torch.is_grad_enabled():
            raise RuntimeError(f"{call}: gradients were enabled when the sequence began and no longer are")
        self._next = "failed"


# By what is next.
_SAID = {
    "compute": "this sequence has not been computed yet: call compute first",
    "finish": "this sequence has been computed: finish is next",
    "nothing": "this sequence has been finished: begin_attention begins another",
    "failed": "an earlier call for this sequence failed",
}


class Steps:
    """The attention of one sequence without autograd's graph: its six steps, taken by the caller.

    Forward they are leave, attend and arrive, backward leave_back, attend_back and arrive_back, with the bits of
    attention. Who takes them itself may begin the backward with the same sequence as the forward, and do
    something else between any two. All ranks of the plan take the steps of all sequences in one order.
    Arguments, spans and errors are begin_attention's; results have no graph.
    """

    def __init__(
        self, plan: Plan, rank: int, q: Tensor, k: Tensor, v: Tensor, *, group: ProcessGroup = None,
        kernel: Optional[Kernel] = None, docs: Optional[Sequence[int]] = None, meter: Optional[Meter] = None,
        trace: Optional[Trace] = None,
    ) -> None:
        check_inputs(plan, rank, q, k, v)
        self.plan, self._run = plan, _Sequence(plan, rank, q, group, kernel, docs, meter, trace)
        self._heads: Optional[tuple[Tensor, Tensor, Tensor]] = (q, k, v)  # until they leave
        self._like, self._saved = q.new_empty(0), Saved(())

    def leave(self) -> None:
        """q, k and v leave."""
        heads, self._heads = self._heads, None
        assert heads is not None
        with self._bare():
            self._run.leave(*heads)

    def attend(self, *beside: "Steps") -> None:
        """Waits for what comes in, runs the ring, and lets the output leave. beside: others of the same plan,
        whose rings take turns with this one's, step by step; it is their attend too. Each waits for what comes
        in for it before its first step, and its output leaves after its last one."""
        with self._bare():
            self._run.attend(*(other._run for other in beside))

    def arrive(self, keep: bool = True) -> Tensor:
        """Waits for what comes out: out [tokens, q_heads, head_dim]. keep: whether a backward follows."""
        with self._bare():
            out, held = self._run.arrive()
        if keep:
            self._saved = Saved(_tensors(held))
        return out

    def begin_back(self) -> None:
        """What begin_backward does: the ring's first keys and values leave, if they are to be first."""
        with self._bare():
            self._run.begin(self._saved)

    def leave_back(self, dout: Tensor) -> None:
        """The output's gradient leaves; first of all the ring's first keys and values, where they are to and
        no other sequence is in its backward."""
        saved, self._saved = self._saved, Saved(())
        with self._bare():
            self._run.leave_back(saved, dout)

    def attend_back(self, *beside: "Steps") -> None:
        """Waits for it to come in, runs the ring backward, and lets the gradients of q, k and v leave; beside as
        in attend. The others' first keys and values leave before any step, and the gradients of all when
        all steps are taken."""
        with self._bare():
            self._run.attend_back(*(other._run for other in beside))

    def arrive_back(self) -> tuple[Tensor, Tensor, Tensor]:
        """Waits for these: dq, dk, dv of the rank's own tokens."""
        with self._bare():
            return self._run.arrive_back()

    @contextlib.contextmanager
    def _bare(self) -> Iterator[None]:
        with torch.no_grad(), as_given(self._like.device):
            yield


@dataclass
class Saved:
    """What a sequence keeps for its backward, under the name that a node of autograd's graph has for it."""

    saved_tensors: tuple[Tensor, ...]


class _Sequence(Run):
    """One sequence, forward and later its backward, in three steps each. Between the steps of a direction it
    holds what is under way, and nothing after the last."""

    def __init__(
        self, plan: Plan, rank: int, q: Tensor, group: ProcessGroup, kernel: Optional[Kernel],
        docs: Optional[Sequence[int]], meter: Optional[Meter], trace: Optional[Trace],
    ) -> None:
        if plan.head_chunks > 1:
            raise ValueError(f"plan: head_chunks {plan.head_chunks}: want a plan that computes all heads at once; "
                             "attention runs this one")
        super().__init__(plan, rank, q, group, kernel, docs, meter, trace)
        self._like = q.new_empty(0, plan.q_heads, plan.head_dim)  # q itself may be freed
        self._spans_of = (trace.mb, trace.layer) if trace is not None else (0, 0)
        self._exchange: Optional[Exchange] = None
        self._kept: Optional[Held] = None

    def leave(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """q, k and v go to the group's members."""
        if self.seat is not None:
            self._exchange = Exchange(self, self.seat, "fwd", self._like)
            with self._timed("fwd", "a2a_in") as span:
                self._exchange.send(joined(q, k, v), width)
                self._exchange.keep(joined(q, k, v))
                span.bytes_out = self._exchange.ins[0].sent

    def attend(self, *beside: "_Sequence") -> None:
        """The ring, with what has come; its output goes to the members. beside: others of the plan whose rings
        take turns with this one's."""
        if self.seat is not None:
            with self.lane(self.seat) as lane:
                for _ in in_turns([one._attending(self.seat, lane) for one in (self, *beside)]):
                    pass

    def _attending(self, me: Seat, lane: Lane) -> Iterator[None]:
        """The turns of attend. The ring is in the lane before the first one."""
        return self._turns(me, self._under_way(), Forth(self.ring(me), self.room(me, self._like), lane))

    def _turns(self, me: Seat, exchange: Exchange, forth: Forth) -> Iterator[None]:
        with self._timed("fwd", "a2a_in") as span:
            arrived = exchange.take()
            span.bytes_in = arrived.received
        self.fill(forth.held, me, arrived)
        yield from self._named_turns(forth.turns())
        self._kept, out = forth.held, forth.held.out
        assert out is not None
        with self._timed("fwd", "a2a_out") as span:
            exchange.leave(out, heads_of)
            span.bytes_out = exchange.outs[0].sent

    def arrive(self) -> tuple[Tensor, Optional[Held]]:
        """out of the rank's own tokens, and what the backward needs."""
        if self.seat is None:
            return self._like.new_empty(self._like.shape), None
        exchange, self._exchange = self._under_way(), None
        held, self._kept = self._kept, None
        with self._timed("fwd", "a2a_out") as span:
            parts = exchange.end()
            span.bytes_in = exchange.outs[0].received
        return self.output(self._like, parts), held

    def leave_back(self, node: Any, dout: Tensor) -> None:
        """The output's gradient goes to the members; before it the ring's first keys and values, if they are
        to be first and no other sequence is in its backward."""
        # Hooks of saved tensors may give these only once, and begin_backward may have asked for them.
        if self.seat is None:
            _ = node.saved_tensors  # recomputes what the graph is to recompute, as on the other ranks
        else:
            self._kept = self._begun.held if self._begun else Held(*node.saved_tensors)
        if _LINE.join(self):
            self.lead()
        if self.seat is not None:
            self._exchange = Exchange(self, self.seat, "bwd", self._like)
            with self._timed("bwd", "a2a_in") as span:
                # Copies, always: others may write to the gradient before the rest of this pass.
                part = lambda m: own_heads(dout, m).transpose(0, 1).clone(memory_format=torch.contiguous_format)
                self._exchange.send(part, heads_of)
                self._exchange.keep(part)
                span.bytes_out = self._exchange.ins[0].sent

    @property
    def begun(self) -> bool:
        """Whether the first keys and values of its backward have left."""
        return self._begun is not None

    def lead(self, lane: Optional[Lane] = None) -> None:
        """The ring's first keys and values leave, if they are to leave before it and have not yet."""
        if self._kept is not None and self._begun is None and self.first_hop:
            self._post_first(self._kept, lane)

    def attend_back(self, *beside: "_Sequence") -> None:
        """The ring backward; the gradients of q, k and v go to the members. In between the next sequence's
        first keys and values leave. beside: as in attend."""
        if self.seat is None:
            for one in (self, *beside):
                _LINE.leave(one)
            return
        with self._begun.lane if self._begun else self.lane(self.seat) as lane:
            for one in beside:
                one.lead(lane)
            for _ in in_turns([one._attending_back(self.seat, lane) for one in (self, *beside)]):
                pass

    def _attending_back(self, me: Seat, lane: Lane) -> Iterator[None]:
        """The turns of attend_back, as _attending."""
        exchange, held, self._kept = self._under_way(), self._kept, None
        assert held is not None
        back = self.back(me, held, lane)
        back.make_room()
        return self._turns_back(me, exchange, back)

    def _turns_back(self, me: Seat, exchange: Exchange, back: Back) -> Iterator[None]:
        with self._timed("bwd", "a2a_in") as span:
            arrived = exchange.take()
            span.bytes_in = arrived.received
        yield from self._named_turns(back.turns(self.whole(me, self._like, arrived)))
        dq, dkv = back.dq, back.run.home
        del back  # and its buffers, before others are made
        grads = self.summed(me, dq, dkv)
        del dq, dkv
        _LINE.leave(self)
        with self._timed("bwd", "a2a_out") as span:
            exchange.leave(grads, width)
            span.bytes_out = exchange.outs[0].sent

    def arrive_back(self) -> tuple[Tensor, Tensor, Tensor]:
        """dq, dk, dv of the rank's own tokens."""
        if self.seat is None:
            dq, dk, dv = (self._like.new_zeros(0, h, self.plan.head_dim)
                          for h in (self.plan.q_heads, self.plan.kv_heads, self.plan.kv_heads))
            return dq, dk, dv
        exchange, self._exchange = self._under_way(), None
        with self._timed("bwd", "a2a_out") as span:
            parts = exchange.end()
            span.bytes_in = exchange.outs[0].received
        return self.gradients(self._like, parts)

    def _under_way(self) -> Exchange:
        if self._exchange is None:
            raise RuntimeError("nothing of this sequence is under way: an earlier part of its pass failed")
        return self._exchange

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Inside, spans are of the sequence's own micro-batch and layer, whatever others have said since."""
        trace = self.trace
        if trace is None:
            yield
            return
        before = trace.mb, trace.layer
        trace.mb, trace.layer = self._spans_of
        try:
            yield
        finally:
            trace.mb, trace.layer = before

    def _named_turns(self, turns: Iterator[None]) -> Iterator[None]:
        """Turns within _named, each by itself, as other sequences have theirs in between."""
        while True:
            with self._named():
                if next(turns, OVER) is OVER:
                    return
            yield

    @contextlib.contextmanager
    def _timed(self, direction: str, op: str) -> Iterator[Any]:
        step = 0 if op == "a2a_in" else self.layout.steps
        with self._named(), timed(self.trace, direction, step, op) as span:
            yield span


class _Line:
    """The sequences whose backward has begun and whose ring is not over, in that order. It is the same on all
    ranks, those without work included. A pass that failed leaves nothing for longer than its graph lives."""

    def __init__(self) -> None:
        self._refs: list["weakref.ref[_Sequence]"] = []

    def join(self, one: _Sequence) -> bool:
        """Whether it is the first one of its process group."""
        self._refs = [r for r in self._refs if r() not in (None, one)]
        first = not self._beside(one)
        self._refs.append(weakref.ref(one))
        return first

    def leave(self, one: _Sequence) -> None:
        """Its ring is over: the next one of the process group leads."""
        self._refs = [r for r in self._refs if r() not in (None, one)]
        for other in self._beside(one)[:1]:
            other.lead()

    def _beside(self, one: _Sequence) -> list[_Sequence]:
        there = (r() for r in self._refs)
        return [x for x in there if x is not None and x.group is one.group]


_LINE = _Line()


def _tensors(held: Optional[Held]) -> tuple[Tensor, ...]:
    """What is kept for a backward; nothing of a rank without work."""
    if held is None:
        return ()
    assert held.out is not None and held.lse is not None
    return held.q, held.kv, held.out, held.lse


class _Begin(torch.autograd.Function):
    """The all-to-all in; its backward is where the gradients come home."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, run: _Sequence, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        with as_given(q.device):
            run.leave(q, k, v)
        ctx.run = run
        return q.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, token: Tensor) -> tuple[Optional[Tensor], ...]:  # type: ignore[override]
        with as_given(token.device):
            return (None, *ctx.run.arrive_back())


class _Compute(torch.autograd.Function):
    """The ring, or those of sequences that are computed together."""

    @staticmethod
    def forward(ctx: Any, runs: list[_Sequence], *tokens: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        with as_given(tokens[0].device):
            first, *others = runs
            if first.plan.weave_forward:
                first.attend(*others)
            else:
                for run in runs:
                    run.attend()
        ctx.runs = runs
        return tuple(token.new_empty(0) for token in tokens)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *tokens: Tensor) -> tuple[Optional[Tensor], ...]:  # type: ignore[override]
        with as_given(tokens[0].device):
            # The one that ended last is first. Another one whose keys begin_backward has sent, in a lane of their
            # own, takes no turns.
            first, *others = reversed(ctx.runs)
            if first.plan.weave_backward and not any(run.begun for run in others):
                first.attend_back(*others)
            else:
                for run in (first, *others):
                    run.attend_back()
        return None, *(token.new_empty(0) for token in tokens)


class _Finish(torch.autograd.Function):
    """The all-to-all out; in the backward it is the first."""

    @staticmethod
    def forward(ctx: Any, run: _Sequence, token: Tensor) -> Tensor:  # type: ignore[override]
        with as_given(token.device):
            out, held = run.arrive()
        ctx.run = run
        ctx.save_for_backward(*(_tensors(held) or (token,)))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Optional[Tensor], ...]:  # type: ignore[override]
        with as_given(dout.device):
            ctx.run.leave_back(ctx, dout)
        return None, dout.new_empty(0)
