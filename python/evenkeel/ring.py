"""The ring of one rank: what it holds, what it computes at each step, what it passes on.

At step t the members of group g work on the block of group g-t; step 0 is their own. They take the steps in
order, or backward, where the plan says so, their own block last: the gradients of the others' then go home
meanwhile. A block travels on as soon as it has arrived and the next rank has a buffer for it, up to the last
group that needs it: so many steps are its reach. Groups on the way that do not need it pass it on all the
same; to those beyond nothing comes at its step. Backward, the float32 gradient of a block follows it, from
the first other group that needs it on: that one sends its share, every later one adds its own, and the last
one sends it home, across the ring if need be. There the owner, whose share stayed, adds what has come. Groups
before the first have no share and no gradient of the block; neither block nor gradient makes a hop where
nobody else needs it. Where the plan keeps tails at home, no block has the segments that nobody else needs.

The first hop of keys and values needs nothing that the backward computes: it may be posted before everything
else, even before the output's gradient goes to the group's members. Where the own block is the last one,
another's is the first and would be waited for: there that hop is posted as early (see executor).

Buffers, as the cost model counts them: the block of step t+1 takes the place of the one of step t+1-b, and
where none comes the place stays empty; the own block has a place of its own; gradients likewise, the one that
comes home included, and the computing may be b blocks ahead of them. A step with a block but no gradient
keeps nobody waiting for one.

Forth and Back take the steps one by one. So the rings of two sequences may take turns: step t of one, step t of
the other, the next step; all that they send then has one order too, hop t of one, hop t of the other, and in
between, backward, the gradients. Each has buffers of its own. The first one's results leave when it is over, and
do not wait for the other's last messages. Forward, the second one's first hop waits for the first one's first
step, as its keys and values are put together after that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Iterator, Optional, Sequence

import torch
from torch import Tensor

from .blocks import Block, cut
from .kernels import Grads, Kernel
from .lane import Lane, Mark
from .layout import Layout, Link, Seat
from .meter import Meter, Trace, timed
from .plan import Segment
from .port import Batch, Message, Port
from .tiles import Tiles, put


@dataclass
class Held:
    """What a rank holds inside the attention. q [heads, tokens of the group, head_dim]; kv [slots, 2, tokens
    of the group, head_dim], keys and values by slot, so that what is passed on is one piece of memory; out as
    q and lse float32 [heads, tokens] once computed."""

    q: Tensor
    kv: Tensor
    out: Optional[Tensor] = None
    lse: Optional[Tensor] = None


class Ring:
    """One rank's ring, for one call forward or backward."""

    def __init__(
        self, layout: Layout, seat: Seat, port: Port, kernel: Kernel, docs: Sequence[Segment], meter: Meter,
        trace: Optional[Trace],
    ) -> None:
        self.layout, self.seat, self.port = layout, seat, port
        self.docs, self.trace = docs, trace
        self.steps, self.buffers = layout.steps, layout.plan.ring_buffers
        self.own_last = layout.plan.own_last and self.steps > 1
        self.sends, self.receives = layout.links(seat, 1), layout.links(seat, -1)
        sources = [layout.source(seat.group, t) for t in range(self.steps)]
        self._near, self._reach = [layout.near[k] for k in sources], [layout.reach[k] for k in sources]
        self.reach = self._reach[0]  # of the own block
        shared = seat.shared(layout.plan.q_heads // layout.plan.kv_heads)
        self._tiles = Tiles(kernel, shared, layout.plan.head_dim, meter, trace)
        heads = [s.kv for s in seat.slots]
        self.first = [heads.index(j) for j in seat.kv]  # slot of each distinct KV head
        self.distinct = len(self.first) == len(heads)

    def lane(self, device: torch.device) -> Lane:
        """For this ring and others with the same steps. Ranks that exchange nothing need no thread."""
        return Lane(device, self.port.nccl or not self.sends)

    def comes(self, step: int) -> bool:
        """Whether the rank has a block at a step; where none comes, every pair is masked."""
        return step <= self._reach[step]

    def goes_on(self, step: int) -> bool:
        """Whether the keys and values of a step go to the next group."""
        return step < self._reach[step]

    def has_gradient(self, step: int) -> bool:
        """Whether the rank has a gradient of another group's block at a step, to pass on or send home."""
        return step > 0 and self._near[step] <= step <= self._reach[step]

    def begins(self, step: int) -> bool:
        """Whether that gradient begins at this rank: nothing comes for the share to be added to."""
        return step > 0 and self._near[step] == step

    def before(self, step: int, there: Callable[[int], bool]) -> int:
        """The step that had the place of this step's last, of those with anything there; 0 if none had."""
        places = range(step - self.buffers, 0, -self.buffers)
        return next((t for t in places if there(t)), 0)

    def cut(self, step: int) -> list[Block]:
        """The blocks of a step; none without heads."""
        if not self.seat.heads:
            return []
        groups, g = self.layout.groups, self.seat.group
        return cut(groups[g].segments, groups[self.layout.source(g, step)].segments, self.docs)

    def shape(self, step: int, dim: int) -> tuple[int, int, int, int]:
        """Of what travels of the block of a step, as far as the rank holds it."""
        return len(self.seat.slots), 2, self.layout.sent[self.layout.source(self.seat.group, step)], dim

    def bytes_in(self, block: Tensor) -> int:
        """Bytes of a block that came from the group before."""
        return sum(block[r.lo:r.hi].numel() for r in self.receives) * block.element_size()

    def outgoing(self, block: Tensor) -> list[Message]:
        """The messages of what travels of a block to the next group."""
        return _messages(self.sends, block)

    def travelling(self, own: Tensor) -> Tensor:
        """What travels of the own block, or of its gradient; others' come without the rest."""
        return own[:, :, : self.layout.sent[self.seat.group]]

    def incoming(self, block: Tensor) -> list[Message]:
        """The messages from the group before that fill a block."""
        return _messages(self.receives, block)

    def homeward(self, step: int, grad: Tensor) -> list[Message]:
        """The messages of the gradient of a step's block to the block's group."""
        return _messages(self.layout.links(self.seat, -step), grad)

    def returning(self, grad: Tensor) -> list[Message]:
        """The messages that fill the gradient of the own block, from where it ends."""
        return _messages(self.layout.links(self.seat, self.reach), grad)

    def _keys(self, block: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values by distinct KV head, [kv_heads, tokens, head_dim]."""
        kv = block if self.distinct else block[self.first]
        return kv[:, 0], kv[:, 1]

    def forward_step(self, t: int, held: Held, block: Tensor) -> None:
        """Merges the attention over a block into held.out and held.lse."""
        assert held.out is not None and held.lse is not None
        parts = self.cut(t)
        k, v = self._keys(block) if parts else (block, block)
        for b in parts:
            rows, cols = slice(b.row, b.row + b.q_len), slice(b.col, b.col + b.kv_len)
            whole = held.out[:, rows], held.lse[:, rows]
            self._tiles.forward(t, b, held.q[:, rows], k[:, cols], v[:, cols], *whole)

    def backward_step(self, t: int, held: Held, dout: Tensor, dq: Tensor, run: "_Backward") -> None:
        """Adds to dq and to the rank's share of the block's gradient."""
        assert held.out is not None and held.lse is not None
        parts = self.cut(t)
        k, v = self._keys(run.blocks.at(t)) if parts else (dq, dq)
        for b in parts:
            rows, cols = slice(b.row, b.row + b.q_len), slice(b.col, b.col + b.kv_len)
            whole = held.out[:, rows], held.lse[:, rows]
            grads = self._tiles.backward(
                t, b, dout[:, rows], held.q[:, rows], k[:, cols], v[:, cols], *whole
            )
            with timed(self.trace, "bwd", t, "merge"):
                self._add(b, grads, dq[:, rows], run.share(t)[:, :, cols])

    def _add(self, b: Block, grads: Grads, dq: Tensor, share: Tensor) -> None:
        """Adds a block's gradients to those of its rows and columns. A DIAG block is the first of its
        columns, and of its rows unless the others' blocks come before."""
        places = [share[x, side] for side in (0, 1) for x in self.first]
        put(dq, grads[0], b.diag and not self.own_last)
        for place, grad in zip(places, (*grads[1], *grads[2])):
            put(place, grad, b.diag)


class _Blocks:
    """The block of every step that has one, or its gradient, as `there` tells: the own one, then, from step
    `first` on, those in buffers that take turns, each as large as the largest that is ever there."""

    def __init__(
        self, ring: Ring, own: Tensor, dtype: torch.dtype, there: Callable[[int], bool], first: int = 1
    ) -> None:
        self._ring, self._own, self._dim, self._first = ring, own, own.shape[3], first
        steps = range(first, ring.steps)
        sizes = [_size(ring.shape(t, self._dim)) if there(t) else 0 for t in steps]
        turns = (max(sizes[i::ring.buffers]) for i in range(min(ring.buffers, len(steps))))
        self._room = [torch.empty(size, dtype=dtype, device=own.device) for size in turns]

    def at(self, step: int) -> Tensor:
        """[slots, 2, tokens, head_dim]"""
        if not step:
            return self._own
        shape = self._ring.shape(step, self._dim)
        return self._room[(step - self._first) % len(self._room)][: _size(shape)].view(shape)


class _Forward:
    """The messages of a ring forward: a block is passed on when it has arrived, the next one's buffer, if one
    comes, is read by nobody and what was sent from it is gone."""

    def __init__(self, ring: Ring, lane: Lane, held: Held) -> None:
        self.ring, self.blocks = ring, _Blocks(ring, held.kv, held.kv.dtype, ring.comes)
        self.arrived, self.computed = lane.marks(ring.steps), lane.marks(ring.steps)
        (self.there,) = lane.marks(1)  # the own block is
        # Set when all is posted, of this ring and those beside it, that leaves before the rank's results.
        self.over = self.arrived[-1]
        self._hops: list[Batch] = []
        self._phase = "fwd.ring"

    def program(self) -> Iterator[None]:
        """See Lane."""
        self.there.wait()
        for t in range(self.ring.steps):
            self.land(t)
            if t + 1 < self.ring.steps:
                self.hop(t)
            yield
        self.drain()

    def land(self, t: int) -> None:
        """Waits for the block of step t, if one comes."""
        if t and self.ring.comes(t):
            self._hops[t - 1].received()
        self.arrived[t].set()

    def hop(self, t: int) -> None:
        """Passes on the block of step t."""
        ring = self.ring
        sends: list[Message] = []
        receives: list[Message] = []
        if ring.comes(t + 1):
            before = ring.before(t + 1, ring.comes)
            if before:
                self.computed[before].wait()
                self._hops[before].sent()
            receives = ring.incoming(self.blocks.at(t + 1))
        if ring.goes_on(t):
            # A message is one piece of memory: a part of the own block is copied.
            sends = ring.outgoing(self.blocks.at(t) if t else ring.travelling(self.blocks.at(0)).contiguous())
        self._hops.append(ring.port.post(self._phase, t, sends, receives))

    def drain(self) -> None:
        """Waits until everything is sent."""
        for hop in self._hops:
            hop.sent()


class _Backward(_Forward):
    """The messages of a ring backward: gradients follow from where they begin, one hop behind the keys and
    values.

    All ranks have the hops in one order, and what a rank waits for before a hop belongs to earlier ones: so
    nobody waits in a circle, though gradients that go home cross the ring. In one hop at most one message
    goes from a rank to another, since only in the last hop the way home leads to the next group; so both have
    the messages between them in the same order.
    """

    def __init__(self, ring: Ring, lane: Lane, held: Held) -> None:
        super().__init__(ring, lane, held)
        self.added: list[Mark] = lane.marks(ring.steps)
        self.over = self.added[0]
        self._grads: dict[int, Batch] = {}  # by hop, from 1 on
        self._cleared: set[int] = {0}
        self._phase = "bwd.ring"

    def make_room(self, held: Held) -> None:
        """Makes the places of gradients, before the program: not earlier, since what is computed between the
        first hop and the rest wants memory of its own."""
        ring = self.ring
        # The own block's gradient, at first the rank's share of it; the columns of its squares cover it but
        # for the slots that a KV head has a second time.
        self.home = held.kv.new_zeros(held.kv.shape, dtype=torch.float32)
        # The others' shares of it, as they come home; nobody sends any of a block that nobody else needs.
        self._returned = self.home.new_empty(ring.shape(0, self.home.shape[3])) if ring.reach else self.home
        self._sums = _Blocks(ring, self.home, torch.float32, ring.has_gradient)
        # That of step 1 is the sum so far.
        self._shares = _Blocks(ring, self.home, torch.float32, ring.has_gradient, first=2)

    def program(self) -> Iterator[None]:
        """See Lane. The own block is computed after the first yield or, where it is the last, after the last
        one: no message waits for it."""
        last = self.ring.steps - 1
        self.land(0)
        if last and not self._hops:  # else it was posted when the backward began
            self.hop(0)
        if not self.ring.own_last:
            yield
        for t in range(self.ring.steps):
            if t < last:
                self.land(t + 1)
            if t + 1 < last:
                self.hop(t + 1)
            if t:
                self.add(t)
                self.pass_on(t)
            yield
        if self.ring.reach:
            self._grads[self.ring.reach].received()
            self.computed[0].wait()
            self.ring.travelling(self.home).add_(self._returned)
        self.added[0].set()
        yield
        self.drain()

    def share(self, t: int) -> Tensor:
        """Where the rank adds up its own share of the gradient of step t's block; zero at first. At step 0
        that is home."""
        place = (self._sums if not t or self._in_place(t) else self._shares).at(t)
        if t not in self._cleared:
            self._cleared.add(t)
            place.zero_()
        return place

    def add(self, t: int) -> None:
        """Adds the rank's share to what has come of the gradient of step t's block, if there is one, or makes
        it the first of it."""
        if self.ring.has_gradient(t):
            self.computed[t].wait()
            if self._in_place(t):
                self.share(t)  # zero if every pair of the block is masked
            elif self.ring.begins(t):
                self._free(t)
                self._sums.at(t).copy_(self.share(t))
            else:
                self._grads[t - 1].received()
                if t in self._cleared:  # else every pair of the block is masked
                    self._sums.at(t).add_(self._shares.at(t))
        self.added[t].set()

    def pass_on(self, t: int) -> None:
        """Sends the gradient of step t's block on, or home from where the block ends."""
        ring = self.ring
        sends: list[Message] = []
        receives: list[Message] = []
        if t + 1 < ring.steps and ring.has_gradient(t + 1) and not ring.begins(t + 1):
            self._free(t + 1)
            receives = ring.incoming(self._sums.at(t + 1))
        if t == ring.reach:
            receives += ring.returning(self._returned)
        if ring.has_gradient(t):
            grad = self._sums.at(t)
            sends = ring.outgoing(grad) if ring.goes_on(t) else ring.homeward(t, grad)
        self._grads[t] = ring.port.post("bwd.ring_grad", t, sends, receives)

    def _in_place(self, t: int) -> bool:
        """Whether the share of step t's block is added up where it is sent on from: it is the first of the
        sum, and nothing was there before. A first share is copied to a place from which another gradient
        might still be on its way, so that the computing need not wait for that."""
        return self.ring.begins(t) and not self.ring.before(t, self.ring.has_gradient)

    def _free(self, t: int) -> None:
        """Waits until the place of the gradient of step t's block is free."""
        before = self.ring.before(t, self.ring.has_gradient)
        if before:
            self._grads[before].sent()

    def drain(self) -> None:
        """See _Forward."""
        super().drain()
        for hop in self._grads.values():
            hop.sent()


class Forth:
    """A ring forward in turns, in a lane, beside others that have the same steps. `held` need not be filled
    before the turns begin."""

    def __init__(self, ring: Ring, held: Held, lane: Lane) -> None:
        self.held, self.lane, self._run, self._ring = held, lane, _Forward(ring, lane, held), ring
        lane.add(self._run.program(), self._run)

    def alone(self) -> None:
        """All turns, of the only ring of its lane."""
        with self.lane:
            for _ in self.turns():
                pass

    def turns(self) -> Iterator[None]:
        """Computes a step at each turn: fills in held.out, in the precision of held.q, and held.lse."""
        ring, held, run, lane = self._ring, self.held, self._run, self.lane
        held.out = torch.empty(held.q.shape, dtype=torch.float32, device=held.q.device)
        held.lse = torch.empty(held.q.shape[:2], dtype=torch.float32, device=held.q.device)
        lane.start()
        run.there.set()
        for t in range(ring.steps):
            if t:
                yield
            lane.advance()
            with timed(ring.trace, "fwd", t, "ring_wait") as span:
                if ring.comes(t):
                    span.bytes_in = ring.bytes_in(run.blocks.at(t)) if t else 0
                    run.arrived[t].wait()
            if ring.comes(t):
                ring.forward_step(t, held, run.blocks.at(t))
            run.computed[t].set()
        with timed(ring.trace, "fwd", ring.steps, "ring_wait"):
            lane.finish(run.over)
        held.out = held.out.to(held.q.dtype)


class Back:
    """A ring backward in turns, as Forth."""

    def __init__(self, ring: Ring, held: Held, lane: Lane) -> None:
        self.held, self.lane, self.run, self._ring = held, lane, _Backward(ring, lane, held), ring
        lane.add(self.run.program(), self.run)

    def begin(self) -> "Back":
        """Posts the first hop of keys and values of a ring of two groups or more. No thread runs yet, so that
        nobody waits for one if the rest never comes."""
        self.lane.ahead(lambda: self.run.hop(0))
        return self

    def alone(self, dout: Tensor) -> tuple[Tensor, Tensor]:
        """All turns, of the only ring of its lane: what they fill in."""
        self.make_room()
        with self.lane:
            for _ in self.turns(dout):
                pass
        return self.dq, self.run.home

    def make_room(self) -> None:
        """Makes the places of gradients: before the turns of any ring of the lane, and not earlier."""
        self.run.make_room(self.held)

    def turns(self, dout: Tensor) -> Iterator[None]:
        """Computes a step at each turn but the last, which waits for gradients: fills in self.dq, like q, and
        those of the own block, self.run.home, like kv, both float32."""
        ring, run, lane = self._ring, self.run, self.lane
        # The own block has every row: where it is the first, nothing need be there before.
        self.dq = torch.empty(self.held.q.shape, dtype=torch.float32, device=dout.device)
        if ring.own_last:
            self.dq.zero_()
        lane.start()
        for t in [*range(1, ring.steps), 0] if ring.own_last else range(ring.steps):
            lane.advance()
            with timed(ring.trace, "bwd", t, "ring_wait") as span:
                if ring.comes(t):
                    span.bytes_in = ring.bytes_in(run.blocks.at(t)) if t else 0
                    run.arrived[t].wait()
                if ring.has_gradient(t):
                    before = ring.before(t, ring.has_gradient)
                    if before:
                        run.added[before].wait()
            if ring.comes(t):
                ring.backward_step(t, self.held, dout, self.dq, run)
            run.computed[t].set()
            yield
        with timed(ring.trace, "bwd", ring.steps, "ring_wait"):
            lane.finish(run.over)


def _messages(links: Sequence[Link], block: Tensor) -> list[Message]:
    return [Message(link.peer, block[link.lo:link.hi]) for link in links]


def _size(shape: Sequence[int]) -> int:
    n = 1
    for x in shape:
        n *= x
    return n
