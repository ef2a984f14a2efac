"""The attention of one layer, as one rank of a plan runs it.

    all-to-all in -> ring of blocks -> all-to-all out

Inside a group the all-to-all turns "my tokens, all heads" into "the group's tokens, my heads" and back. q, k
and v of a message travel in one piece.

A plan of one group may cut the heads of every rank into chunks. The all-to-alls of a chunk then travel while
others are computed: all of them in leave at once, and each one out when its chunk is computed. No KV head is
in two chunks of a rank, so that no byte is sent twice.

Backward, where ranks compute their own blocks last, the ring's first keys and values leave before all that,
as they need no gradient: when the attention's backward begins, or earlier where begin_backward is called.
Both sides still have the messages between them in one order: for every rank that hop is the first of the
backward.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Optional, Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .kernels import Kernel, default_kernel
from .lane import Lane
from .layout import Rows, Seat, layout_of
from .meter import Meter, Trace, timed
from .plan import Plan, documents
from .port import Batch, Message, Port, ProcessGroup
from .ring import Back, Forth, Held, Ring

Part = Callable[[Seat], Tensor]  # of a message to a member
Parts = list[tuple[Seat, Tensor]]  # from members
Wide = Callable[[Seat], int]  # heads of a message


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
    check_inputs(plan, rank, q, k, v)
    run = Run(plan, rank, q, group, kernel, docs, meter, trace)
    out: Tensor = _Attention.apply(run, q, k, v)
    return out


def begin_backward(out: Tensor) -> None:
    """Lets the first keys and values of an attention's backward travel now, while the backward of what
    follows the attention is computed.

    out is what attention returned, or finish of begin_attention, and no view of it. Every rank of the plan
    calls this at the same place of its backward, ranks without tokens too, or none does; between this and the
    attention's backward no other attention of the process group runs, but for those under way beside it. Of
    these it is meant for the one whose backward is first, the last that was begun. It is optional: without it they leave when the attention's backward
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
    if not isinstance(run, Run):
        made = "a leaf" if out.grad_fn is None else f"made by {type(out.grad_fn).__name__}"
        raise ValueError(f"out: {made}: want the tensor that attention returned, or finish")
    with torch.no_grad(), as_given(out.device):
        run.begin(out.grad_fn)


class Run:
    """One call: forward, and later its backward."""

    def __init__(
        self, plan: Plan, rank: int, q: Tensor, group: ProcessGroup, kernel: Optional[Kernel],
        docs: Optional[Sequence[int]], meter: Optional[Meter], trace: Optional[Trace],
    ) -> None:
        self.plan, self.group, self.trace, self.meter = plan, group, trace, meter or Meter()
        self.docs, self.kernel = documents(plan.seq_len, docs), kernel or default_kernel(q)
        self.layout = layout_of(plan)
        self.seat = self.layout.seat(rank)
        self.port, self._device = Port(rank, plan.ranks, group, self.meter, q.device), q.device
        self._begun: Optional[Back] = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, list[Held]]:
        """out, and what the backward needs, by chunk of heads."""
        kept: list[Held] = []
        if self.seat is None:
            return torch.empty_like(q), kept

        def compute(me: Seat, arrived: Moving) -> Tensor:
            held, out = self.compute(me, q, arrived)
            kept.append(held)
            return out

        parts = Exchange(self, self.seat, "fwd", q).through(joined(q, k, v), width, compute, heads_of)
        return self.output(q, parts), kept

    def compute(self, me: Seat, like: Tensor, arrived: Moving) -> tuple[Held, Tensor]:
        """The ring forward of what has come: what the backward needs, and out of the rank's heads."""
        held = self.room(me, like)
        self.fill(held, me, arrived)
        Forth(self.ring(me), held, self.lane(me)).alone()
        assert held.out is not None
        return held, held.out

    def output(self, like: Tensor, parts: Parts) -> Tensor:
        """out of the rank's own tokens, of what has come from members."""
        assert self.seat is not None
        out = like.new_empty(self.seat.tokens, self.plan.q_heads, self.plan.head_dim)
        for member, x in parts:
            own_heads(out, member).copy_(x.transpose(0, 1))
        return out

    def begin(self, node: Any) -> None:
        """Posts the ring's first hop backward where that is to be first, and has not been; node: the call's
        of autograd's graph."""
        if self._begun is None and self.first_hop:
            self._post_first(Held(*node.saved_tensors))

    @property
    def first_hop(self) -> bool:
        """Whether the backward has a hop of keys and values that is to leave before anything else."""
        return self.seat is not None and self.plan.own_last and self.layout.steps > 1

    def _post_first(self, held: Held, lane: Optional[Lane] = None) -> None:
        assert self.seat is not None
        self._begun = self.back(self.seat, held, lane or self.lane(self.seat)).begin()

    def back(self, me: Seat, held: Held, lane: Lane) -> Back:
        """The ring backward: that which has begun, if one has, else one in a lane."""
        begun, self._begun = self._begun, None
        return begun or Back(self.ring(me), held, lane)

    def backward(self, node: Any, dout: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """dq, dk, dv of the rank's own tokens, in the precision of activations; node as in begin."""
        assert self.seat is not None
        self.begin(node)
        # What was begun has what the node kept; hooks of saved tensors may give that only once.
        kept = [self._begun.held] if self._begun else _chunked(node.saved_tensors)

        def compute(me: Seat, arrived: Moving) -> Tensor:
            return self.compute_back(me, dout, arrived, kept.pop(0))

        exchange = Exchange(self, self.seat, "bwd", dout)
        parts = exchange.through(lambda m: own_heads(dout, m).transpose(0, 1), heads_of, compute, width)
        return self.gradients(dout, parts)

    def compute_back(self, me: Seat, like: Tensor, arrived: Moving, held: Held) -> Tensor:
        """The ring backward of what has come: the gradients of the rank's heads, as joined has q, k and v."""
        back = self.back(me, held, self.lane(me))
        dq, dkv = back.alone(self.whole(me, like, arrived))
        del back, held  # and their buffers, before others are made
        return self.summed(me, dq, dkv)

    def summed(self, me: Seat, dq: Tensor, dkv: Tensor) -> Tensor:
        """Gradients as joined has q, k and v: those of a KV head are added up over a rank's slots of it."""
        slots = [[i for i, s in enumerate(me.slots) if s.kv == j] for j in me.kv]
        # No copy of those of a KV head in one slot: with dq and the result they are all of a rank's memory.
        sums = [dkv[of].sum(0) if len(of) > 1 else dkv[of[0]] for of in slots]
        return torch.cat([dq, *(x[side:side + 1] for side in (0, 1) for x in sums)])

    def gradients(self, like: Tensor, parts: Parts) -> tuple[Tensor, Tensor, Tensor]:
        """dq, dk, dv of the rank's own tokens, of what has come from members. Those of a KV head are added up
        over the ranks that read it, in the order of chunks and members whichever comes first."""
        assert self.seat is not None
        shape = self.seat.tokens, self.plan.q_heads, self.plan.head_dim
        dq = torch.empty(shape, dtype=torch.float32, device=like.device)
        dk, dv = (dq.new_zeros(shape[0], self.plan.kv_heads, shape[2]) for _ in range(2))
        for member, part in parts:
            xq, xk, xv = part.transpose(0, 1).split([member.heads, len(member.kv), len(member.kv)], 1)
            own_heads(dq, member).copy_(xq)
            for whole, x in ((dk, xk), (dv, xv)):
                whole[:, member.kv] += x
        return dq.to(like.dtype), dk.to(like.dtype), dv.to(like.dtype)

    def of_chunk(self, chunk: int) -> Any:
        """Inside, spans are of a chunk of heads."""
        return _of_chunk(self.trace, chunk) if self.trace is not None else contextlib.nullcontext()

    def room(self, me: Seat, like: Tensor) -> Held:
        """The place of what the rank computes with."""
        tokens, dim = self.layout.groups[me.group].tokens, like.shape[2]
        return Held(like.new_empty(me.heads, tokens, dim), like.new_empty(len(me.slots), 2, tokens, dim))

    def fill(self, held: Held, me: Seat, arrived: Moving) -> None:
        """Puts there what has come, [heads of q, k and v, tokens, head_dim] from each member."""
        slots = torch.tensor([me.kv.index(s.kv) for s in me.slots], dtype=torch.long, device=held.q.device)
        for member, x in arrived.take():
            xq, xk, xv = x.split([me.heads, len(me.kv), len(me.kv)])
            _place(held.q, xq, member.rows)
            _place(held.kv[:, 0], xk[slots], member.rows)
            _place(held.kv[:, 1], xv[slots], member.rows)

    def whole(self, me: Seat, like: Tensor, arrived: Moving) -> Tensor:
        """[heads, the group's tokens, head_dim], of [heads, tokens, head_dim] from its members."""
        whole = like.new_empty(me.heads, self.layout.groups[me.group].tokens, like.shape[2])
        for member, x in arrived.take():
            _place(whole, x, member.rows)
        return whole

    def lane(self, me: Seat) -> Lane:
        """A lane for rings in one direction, of this call and of others of the plan."""
        return self.ring(me).lane(self._device)

    def ring(self, seat: Seat) -> Ring:
        """The ring of a rank's place, for one direction."""
        return Ring(self.layout, seat, self.port, self.kernel, self.docs, self.meter, self.trace)


class _Attention(torch.autograd.Function):
    """A run as a node of autograd's graph."""

    @staticmethod
    def forward(ctx: Any, run: Run, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # type: ignore[override]
        with as_given(q.device):
            out, held = run.forward(q, k, v)
        ctx.run = run
        ctx.save_for_backward(*([x for h in held for x in (h.q, h.kv, h.out, h.lse)] or (q, k, v)))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Optional[Tensor], ...]:  # type: ignore[override]
        if ctx.run.seat is None:
            return (None, *(torch.zeros_like(x) for x in ctx.saved_tensors))
        with as_given(dout.device):
            return (None, *ctx.run.backward(ctx, dout))


def as_given(device: torch.device) -> Any:
    """Inside, autocast is off: it would round the float32 products of a kernel to half precision."""
    if device.type not in ("cpu", "cuda"):
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)


class Exchange:
    """The all-to-alls of a rank's group in one direction: in, and after the computing out again, by chunk of
    heads. `like` gives dtype and device of messages, and their last axis.

    With more than one, all messages in are posted before anything is computed, in the order of chunks, and
    those out of a chunk as soon as it is computed: so every rank posts in one order, and so do both sides of a
    pair. What is sent is waited for at the end, as nothing that is computed needs it.
    """

    def __init__(self, run: Run, seat: Seat, direction: str, like: Tensor) -> None:
        self._run, self._direction, self._like = run, direction, like
        self._chunks = run.layout.chunks(seat.group)
        self._mine = [next(m for m in members if m.rank == seat.rank) for members in self._chunks]
        # With NCCL arriving and leaving are one event; until it is waited for as both, tensors are kept.
        self._at_once = run.port.nccl or len(self._chunks) == 1
        self.ins: list[Moving] = []
        self.outs: list[Moving] = []

    def through(
        self, part: Part, wide_in: Wide, compute: Callable[[Seat, Moving], Tensor], wide_out: Wide
    ) -> Parts:
        """Of every chunk, part(m) [wide_in(m) heads, own tokens, head_dim] goes to member m; compute(me, what
        has come) makes [wide_out(me) heads, the group's tokens, head_dim], of which every member gets its
        tokens. Returns what comes of all chunks, by chunk and member. What a rank would send to itself stays
        where it is."""
        run, last = self._run, len(self._chunks) - 1
        for c, me in enumerate(self._mine):
            with run.of_chunk(c):
                with timed(run.trace, self._direction, 0, "a2a_in") as span:
                    if not c:
                        self.send(part, wide_in)
                    self.keep(part, c)
                    arrived = self.take(c)
                    span.bytes_out, span.bytes_in = arrived.sent, arrived.received
                out = compute(me, arrived)
                if c < last:
                    self.leave(out, wide_out, c)
                    del out
        with run.of_chunk(last), timed(run.trace, self._direction, run.layout.steps, "a2a_out") as span:
            self.leave(out, wide_out, last)
            parts = self.end()
            span.bytes_out = sum(x.sent for x in self.outs)
            span.bytes_in = sum(x.received for x in self.outs)
        return parts

    def send(self, part: Part, wide: Wide) -> None:
        """Posts the messages in of all chunks."""
        self.ins = [self._post("a2a_in", c, part, lambda m, to: (wide(to), m.tokens))
                    for c in range(len(self._chunks))]

    def keep(self, part: Part, c: int = 0) -> None:
        """Takes this rank's own part of a chunk."""
        self.ins[c].own = part(self._mine[c])

    def take(self, c: int = 0) -> Moving:
        """Waits for what comes in of a chunk."""
        self.ins[c].batch.received()
        if self._at_once:
            self.ins[c].batch.sent()
        return self.ins[c]

    def leave(self, x: Tensor, wide: Wide, c: int = 0) -> None:
        """Posts the messages out of a chunk, of x [heads, the group's tokens, head_dim]."""
        moving = self._post("a2a_out", c, lambda m: _pick(x, m.rows), lambda m, to: (wide(m), to.tokens))
        moving.own = _pick(x, self._mine[c].rows)
        self.outs.append(moving)

    def end(self) -> Parts:
        """Waits until all that comes out is here and all that was sent is gone."""
        for moving in self.outs:
            moving.batch.received()
        for moving in (*self.ins, *self.outs):
            moving.batch.sent()
        return [pair for moving in self.outs for pair in moving.take()]

    def _post(
        self, op: str, c: int, part: Part, shape: Callable[[Seat, Seat], tuple[int, int]]
    ) -> Moving:
        """part(m) goes to member m of a chunk, what comes from it has shape(m, this rank) and head_dim."""
        run, like, me = self._run, self._like, self._mine[c]
        step = 0 if op == "a2a_in" else run.layout.steps
        others = [m for m in self._chunks[c] if m.rank != me.rank]
        sends = [Message(m.rank, part(m).to(like.dtype).contiguous()) for m in others]
        receives = [Message(m.rank, like.new_empty(*shape(m, me), like.shape[2])) for m in others]
        batch = run.port.post(f"{self._direction}.{op}", step, sends, receives)
        return Moving(self._chunks[c], batch, receives, _bytes(sends))


class Moving:
    """An all-to-all under way. own: what stays at this rank; sent, received: bytes."""

    def __init__(
        self, members: Sequence[Seat], batch: Batch, receives: Sequence[Message], sent: int
    ) -> None:
        self.batch, self.sent, self.received = batch, sent, _bytes(receives)
        self.own: Optional[Tensor] = None
        self._members, self._receives = members, receives

    def take(self) -> Parts:
        """What has arrived, by member; it is kept here no longer."""
        assert self.own is not None
        parts = {m.peer: m.tensor for m in self._receives}
        pairs = [(m, parts.get(m.rank, self.own)) for m in self._members]
        self.own, self._receives = None, ()
        return pairs


@contextlib.contextmanager
def _of_chunk(trace: Trace, chunk: int) -> Iterator[None]:
    trace.chunk = chunk
    try:
        yield
    finally:
        trace.chunk = 0


def _chunked(saved: Sequence[Tensor]) -> list[Held]:
    """What autograd has saved, by chunk of heads."""
    return [Held(*saved[i:i + 4]) for i in range(0, len(saved), 4)]


def check_inputs(plan: Plan, rank: int, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises ValueError for what attention refuses."""
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


def joined(q: Tensor, k: Tensor, v: Tensor) -> Part:
    """What of q, k and v goes to a member, in one piece."""
    return lambda m: torch.cat([x.transpose(0, 1) for x in (own_heads(q, m), k[:, m.kv], v[:, m.kv])])


def width(seat: Seat) -> int:
    """Heads of q, k and v together that a rank computes with."""
    return seat.heads + 2 * len(seat.kv)


def heads_of(seat: Seat) -> int:
    return seat.heads


def own_heads(x: Tensor, seat: Seat) -> Tensor:
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
