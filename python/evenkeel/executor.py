"""The attention of one layer, as one rank of a plan runs it.

    all-to-all in -> ring of blocks -> all-to-all out

Inside a group the all-to-all turns "my tokens, all heads" into "the group's tokens, my heads" and back. q, k
and v of a message travel in one piece.

Backward, where ranks compute their own blocks last, the ring's first keys and values leave before all that,
as they need no gradient: when the attention's backward begins, or earlier where begin_backward is called.
Both sides still have the messages between them in one order: for every rank that hop is the first of the
backward.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Optional, Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .kernels import Kernel, default_kernel
from .layout import Layout, Rows, Seat
from .meter import Meter, Trace, timed
from .plan import Plan, documents
from .port import Message, Port, ProcessGroup
from .ring import Begun, Held, Ring

Part = Callable[[Seat], Tensor]  # of a message to or from a member


def attention(
    plan: Plan, rank: int, q: Tensor, k: Tensor, v: Tensor, *, group: ProcessGroup = None,
    kernel: Optional[Kernel] = None, docs: Optional[Sequence[int]] = None, meter: Optional[Meter] = None,
    trace: Optional[Trace] = None,
) -> Tensor:
    """Causal attention over the plan's sequence: out [tokens, q_heads, head_dim] of this rank's tokens.

    q is [tokens, q_heads, head_dim], k and v are [tokens, kv_heads, head_dim], in the order of the rank's
    segments; a rank without tokens passes tensors of none. Scores are scaled by 1/sqrt(head_dim). Every rank
    of the plan calls this, and afterwards its backward: where one rank's inputs require gradients, all ranks'
    do. What is computed has the precision of the tensors, under autocast too.

    group: the process group whose rank r is rank r of the plan (default: all ranks). kernel: what computes
    the blocks (default: the fastest there is for the tensors); give the same object to all layers. docs:
    lengths in tokens of the documents packed into the sequence, each causal on its own. meter, trace: count
    and time what is done.

    Raises ValueError for tensors or a process group that are not of the plan, PlanError for docs that are
    not, and ExchangeError or LaneError, which name ranks, phase and step, when another rank is gone or stands
    still for longer than the process group's timeout.
    """
    _check(plan, rank, q, k, v)
    run = _Run(plan, rank, q, group, kernel, docs, meter, trace)
    out: Tensor = _Attention.apply(run, q, k, v)
    return out


def begin_backward(out: Tensor) -> None:
    """Lets the first keys and values of an attention's backward travel now, while the backward of what
    follows the attention is computed.

    out is what attention returned, and no view of it. Every rank of the plan calls this at the same place of
    its backward, ranks without tokens too, or none does; between this and the attention's backward no other
    attention of the process group runs. It is optional: without it they leave when the attention's backward
    begins. From here on the rank holds that backward's buffers for keys and values, ring_buffers blocks. The
    attention's backward must follow: if it never does, what was posted stays under way, and the process group
    may not be fit for other attentions.

    Does nothing for plans without own_last and those of one group, for ranks without work, for an output
    without a graph, and when it is called again. Raises ValueError for another tensor that requires
    gradients, and ExchangeError as attention does.
    """
    if not out.requires_grad:
        return
    run = getattr(out.grad_fn, "run", None)
    if not isinstance(run, _Run):
        made = "a leaf" if out.grad_fn is None else f"made by {type(out.grad_fn).__name__}"
        raise ValueError(f"out: {made}: want the tensor that attention returned")
    with torch.no_grad(), _as_given(out.device):
        run.begin(out.grad_fn)


class _Run:
    """One call: forward, and later its backward."""

    def __init__(
        self, plan: Plan, rank: int, q: Tensor, group: ProcessGroup, kernel: Optional[Kernel],
        docs: Optional[Sequence[int]], meter: Optional[Meter], trace: Optional[Trace],
    ) -> None:
        self.plan, self.trace, self.meter = plan, trace, meter or Meter()
        self.docs, self.kernel = documents(plan.seq_len, docs), kernel or default_kernel(q)
        self.layout = Layout(plan)
        self.seat = self.layout.seat(rank)
        self.port = Port(rank, plan.ranks, group, self.meter, q.device)
        self._begun: Optional[Begun] = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Optional[Held]]:
        """out, and what the backward needs."""
        if self.seat is None:
            return torch.empty_like(q), None
        exchange = _Exchange(self, self.seat, "fwd", q)
        held = exchange.tokens_in(q, k, v)
        self._ring(self.seat).forward(held)
        assert held.out is not None
        held.out = held.out.to(q.dtype)
        return exchange.output_out(held.out), held

    def begin(self, node: Any) -> None:
        """Posts the ring's first hop backward where that is to be first, and has not been; node: the call's
        of autograd's graph."""
        if self.seat is None or self._begun is not None:
            return
        ring = self._ring(self.seat)
        if ring.own_last:
            self._begun = ring.begin(Held(*node.saved_tensors))

    def backward(self, node: Any, dout: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """dq, dk, dv of the rank's own tokens; node as in begin."""
        assert self.seat is not None
        self.begin(node)
        begun, self._begun = self._begun, None
        # What was begun has what the node kept; hooks of saved tensors may give that only once.
        held = begun.held if begun else Held(*node.saved_tensors)
        exchange = _Exchange(self, self.seat, "bwd", dout)
        grads = self._ring(self.seat).backward(held, exchange.output_in(dout), begun)
        del begun  # and its buffers, before others are made
        return exchange.tokens_out(*grads)

    def _ring(self, seat: Seat) -> Ring:
        return Ring(self.layout, seat, self.port, self.kernel, self.docs, self.meter, self.trace)


class _Attention(torch.autograd.Function):
    """A run as a node of autograd's graph."""

    @staticmethod
    def forward(ctx: Any, run: _Run, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # type: ignore[override]
        with _as_given(q.device):
            out, held = run.forward(q, k, v)
        ctx.run = run
        ctx.save_for_backward(*((held.q, held.kv, held.out, held.lse) if held else (q, k, v)))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Optional[Tensor], ...]:  # type: ignore[override]
        if ctx.run.seat is None:
            return (None, *(torch.zeros_like(x) for x in ctx.saved_tensors))
        with _as_given(dout.device):
            return (None, *ctx.run.backward(ctx, dout))


def _as_given(device: torch.device) -> Any:
    """Inside, autocast is off: it would round the float32 products of a kernel to half precision."""
    if device.type not in ("cpu", "cuda"):
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)


class _Exchange:
    """The all-to-alls of a rank's group in one direction. `like` gives dtype and device of messages."""

    def __init__(self, run: _Run, seat: Seat, direction: str, like: Tensor) -> None:
        self._run, self._seat, self._direction, self._like = run, seat, direction, like
        self._group = run.layout.groups[seat.group]
        self._others = [m for m in self._group.members if m.rank != seat.rank]

    def tokens_in(self, q: Tensor, k: Tensor, v: Tensor) -> Held:
        """q, k, v [own tokens, heads, head_dim] to what this rank computes with."""
        def part(m: Seat) -> Tensor:
            return torch.cat([x.transpose(0, 1) for x in (_own(q, m), k[:, m.kv], v[:, m.kv])])

        me, dim = self._seat, q.shape[2]
        slots = torch.tensor([me.kv.index(s.kv) for s in me.slots], dtype=torch.long, device=q.device)
        held = Held(q.new_empty(me.heads, self._group.tokens, dim),
                    q.new_empty(len(me.slots), 2, self._group.tokens, dim))
        for member, x in self._exchange("a2a_in", part, lambda m: (_width(me), m.tokens, dim)):
            xq, xk, xv = x.split([me.heads, len(me.kv), len(me.kv)])
            _place(held.q, xq, member.rows)
            _place(held.kv[:, 0], xk[slots], member.rows)
            _place(held.kv[:, 1], xv[slots], member.rows)
        return held

    def output_out(self, out: Tensor) -> Tensor:
        """out [heads, the group's tokens, head_dim] to [own tokens, all heads, head_dim]."""
        whole = out.new_empty(self._seat.tokens, self._run.plan.q_heads, out.shape[2])
        shape: Callable[[Seat], Sequence[int]] = lambda m: (m.heads, self._seat.tokens, out.shape[2])
        for member, x in self._exchange("a2a_out", lambda m: _pick(out, m.rows), shape):
            _own(whole, member).copy_(x.transpose(0, 1))
        return whole

    def output_in(self, dout: Tensor) -> Tensor:
        """The gradient of out, the way that q went."""
        held = dout.new_empty(self._seat.heads, self._group.tokens, dout.shape[2])
        shape: Callable[[Seat], Sequence[int]] = lambda m: (self._seat.heads, m.tokens, dout.shape[2])
        for member, x in self._exchange("a2a_in", lambda m: _own(dout, m).transpose(0, 1), shape):
            _place(held, x, member.rows)
        return held

    def tokens_out(self, dq: Tensor, dkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients back to the owners of the tokens, in the precision of activations. Those of a KV head are
        added up here over this rank's slots of it and there over the ranks that read it."""
        me, plan, dim = self._seat, self._run.plan, dq.shape[2]
        slots = [[i for i, s in enumerate(me.slots) if s.kv == j] for j in me.kv]
        sums = [dkv[of, side].sum(0, keepdim=True) for side in (0, 1) for of in slots]
        mine = torch.cat([dq, *sums])
        out = dq.new_empty(me.tokens, plan.q_heads, dim)
        dk, dv = (dq.new_zeros(me.tokens, plan.kv_heads, dim) for _ in range(2))
        shape: Callable[[Seat], Sequence[int]] = lambda m: (_width(m), me.tokens, dim)
        for member, x in self._exchange("a2a_out", lambda m: _pick(mine, m.rows), shape):
            xq, xk, xv = x.transpose(0, 1).split([member.heads, len(member.kv), len(member.kv)], 1)
            _own(out, member).copy_(xq)
            for whole, part in ((dk, xk), (dv, xv)):
                whole[:, member.kv] += part
        grads = tuple(x.to(self._like.dtype) for x in (out, dk, dv))
        return grads[0], grads[1], grads[2]

    def _exchange(
        self, op: str, part: Part, shape: Callable[[Seat], Sequence[int]]
    ) -> list[tuple[Seat, Tensor]]:
        """part(m) goes to member m, what comes from it has shape(m). Returns all of them by member, the own
        part among them, which stays where it is."""
        run, like = self._run, self._like
        step = 0 if op == "a2a_in" else run.layout.steps
        with timed(run.trace, self._direction, step, op) as span:
            sends = [Message(m.rank, part(m).to(like.dtype).contiguous()) for m in self._others]
            receives = [Message(m.rank, like.new_empty(tuple(shape(m)))) for m in self._others]
            batch = run.port.post(f"{self._direction}.{op}", step, sends, receives)
            parts = {m.peer: m.tensor for m in receives}
            parts[self._seat.rank] = part(self._seat)
            batch.received()
            batch.sent()
            span.bytes_out, span.bytes_in = _bytes(sends), _bytes(receives)
        return [(m, parts[m.rank]) for m in self._group.members]


def _check(plan: Plan, rank: int, q: Tensor, k: Tensor, v: Tensor) -> None:
    if not 0 <= rank < plan.ranks:
        raise ValueError(f"rank: {rank}: the plan has ranks 0 to {plan.ranks - 1}")
    if not q.is_floating_point():
        raise ValueError(f"q: {q.dtype}: want a floating-point type")
    tokens = plan.tokens(rank)
    for name, x, heads in (("q", q, plan.q_heads), ("k", k, plan.kv_heads), ("v", v, plan.kv_heads)):
        want = (tokens, heads, plan.head_dim)
        if tuple(x.shape) != want:
            raise ValueError(f"{name}: shape {list(x.shape)}: rank {rank} of the plan has {list(want)} "
                             "(tokens, heads, head_dim)")
        if x.dtype != q.dtype or x.device != q.device:
            raise ValueError(f"{name}: {x.dtype} on {x.device}: want that of q, {q.dtype} on {q.device}")


def _width(seat: Seat) -> int:
    """Heads of q, k and v together that a rank computes with."""
    return seat.heads + 2 * len(seat.kv)


def _own(x: Tensor, seat: Seat) -> Tensor:
    """The query heads of a member, of [tokens, all heads, head_dim]."""
    return x[:, seat.first:seat.first + seat.heads]


def _place(whole: Tensor, part: Tensor, rows: Sequence[Rows]) -> None:
    """Puts a member's tokens where they belong among the group's; [heads, tokens, head_dim]."""
    for r in rows:
        whole[:, r.held:r.held + r.n] = part[:, r.own:r.own + r.n]


def _pick(whole: Tensor, rows: Sequence[Rows]) -> Tensor:
    """The inverse of _place."""
    if not rows:
        return whole[:, :0]
    return torch.cat([whole[:, r.held:r.held + r.n] for r in rows], 1)


def _bytes(messages: Sequence[Message]) -> int:
    return sum(m.tensor.numel() * m.tensor.element_size() for m in messages)
