"""The attention of one layer over a chunk of a pipeline, on one rank of a stage.

    all-to-all in -> each piece's own square, and of a slice the rectangle against its context -> all-to-all out

Ranks keep the context by heads, as it was computed: the keys and values of a slice are put where those of later
slices find them, and nothing of the context is sent again. Backward the last slice is the first, and leaves in
the same way the gradients of the context's keys and values, to which the slices before it add theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, MutableMapping, Optional, Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .blocks import Block, cut
from .executor import Exchange, Moving, Run, as_given, check_inputs, heads_of, own_heads, width
from .kernels import Kernel
from .layout import Seat
from .meter import Meter, Trace, timed
from .plan import Plan, Segment
from .port import ProcessGroup
from .ring import Held
from .stages import Piece
from .tiles import Tiles, put


@dataclass
class Kept:
    """Of one layer, on one rank: the keys and values [kv_heads, 2, tokens, head_dim] of a sequence's slices but
    the last, as far as there are any, and from the last slice's backward pass on their gradients, float32."""

    kv: Optional[Tensor] = None
    grads: Optional[Tensor] = None


Stores = MutableMapping[int, Kept]  # by sequence, of one layer


def chunk_attention(
    plan: Plan, place: int, heads: Sequence[Tensor], pieces: Sequence[Piece], stores: Stores, *,
    group: ProcessGroup = None, kernel: Optional[Kernel] = None, meter: Optional[Meter] = None,
    trace: Optional[Trace] = None,
) -> Tensor:
    """out [tokens, q_heads, head_dim] of a rank's tokens of a chunk, of q, k and v as executor.attention takes
    them. plan: Pipeline.plan of the stage and chunk, whose rank `place` this is. stores: the
    layer's contexts, which the call and its backward read and change. All ranks of the stage make the calls of all
    chunks, forward and backward, in one order."""
    q, k, v = heads
    check_inputs(plan, place, q, k, v)
    run = ChunkRun(plan, place, q, group, kernel, pieces, stores, meter, trace)
    out: Tensor = _ChunkAttention.apply(run, q, k, v)
    return out


class ChunkRun(Run):
    """One call: forward, and later its backward."""

    def __init__(
        self, plan: Plan, place: int, q: Tensor, group: ProcessGroup, kernel: Optional[Kernel],
        pieces: Sequence[Piece], stores: Stores, meter: Optional[Meter], trace: Optional[Trace],
    ) -> None:
        super().__init__(plan, place, q, group, kernel, [p.tokens for p in pieces], meter, trace)
        self._pieces, self._stores = pieces, stores
        self._held: Optional[Held] = None
        self._keys: list[Tensor] = []  # by piece, [kv_heads, 2, tokens, head_dim]

    def compute(self, me: Seat, like: Tensor, arrived: Moving) -> tuple[Held, Tensor]:
        """See Run."""
        held = self._held = self.room(me, like)
        self.fill(held, me, arrived)
        self._keys = [self._stored(p, held.kv[:, :, rows]) for p, rows in self._rows()]
        held.kv = held.kv.new_empty(0)  # the keys have it, or the store
        out = torch.empty(held.q.shape, dtype=torch.float32, device=like.device)
        held.lse = torch.empty(held.q.shape[:2], dtype=torch.float32, device=like.device)
        tiles = self._tiles(me)
        for i, (p, rows) in enumerate(self._rows()):
            for b in _blocks(p):
                k, v = self._columns(i, b)
                tiles.forward(0, b, held.q[:, rows], k, v, out[:, rows], held.lse[:, rows])
        held.out = out.to(like.dtype)
        return held, held.out

    def chunk_backward(self, dout: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """dq, dk, dv of the rank's own tokens, in the precision of activations."""
        assert self.seat is not None
        exchange = Exchange(self, self.seat, "bwd", dout)
        parts = exchange.through(
            lambda m: own_heads(dout, m).transpose(0, 1), heads_of,
            lambda me, arrived: self._computed_back(me, dout, arrived), width)
        return self.gradients(dout, parts)

    def _computed_back(self, me: Seat, like: Tensor, arrived: Moving) -> Tensor:
        held, self._held = self._held, None
        assert held is not None and held.out is not None and held.lse is not None
        dout = self.whole(me, like, arrived)
        dq = torch.empty(held.q.shape, dtype=torch.float32, device=like.device)
        dkv = dq.new_empty(len(me.slots), 2, *dq.shape[1:])
        tiles = self._tiles(me)
        for i, (p, rows) in enumerate(self._rows()):
            whole = held.out[:, rows], held.lse[:, rows]
            for b in _blocks(p):
                k, v = self._columns(i, b)
                grads = tiles.backward(0, b, dout[:, rows], held.q[:, rows], k, v, *whole)
                with timed(self.trace, "bwd", 0, "merge"):
                    put(dq[:, rows], grads[0], b.diag)
                    if b.diag:
                        dkv[:, 0, rows], dkv[:, 1, rows] = grads[1], grads[2]
                    else:
                        self._leave(p, grads[1], grads[2])
            if p.more:
                with timed(self.trace, "bwd", 0, "merge"):
                    dkv[:, :, rows] += self._taken(p)
        self._keys = []
        return self.summed(me, dq, dkv)

    def _rows(self) -> list[tuple[Piece, slice]]:
        """The pieces and where their tokens are among the chunk's."""
        return [(p, slice(d.start, d.end)) for p, d in zip(self._pieces, self.docs)]

    def _stored(self, p: Piece, kv: Tensor) -> Tensor:
        """Keys and values of a piece, in the store if later slices need them; then no piece keeps the place where
        all of them came, which has the store's once more."""
        if not p.more:
            return kv.clone() if any(q.more for q in self._pieces) else kv
        store = self._stores.setdefault(p.sequence, Kept())
        if store.kv is None:
            store.kv = kv.new_empty(*kv.shape[:2], p.last, kv.shape[3])
        place = store.kv[:, :, p.context:p.context + p.tokens]
        place.copy_(kv)
        return place

    def _columns(self, i: int, b: Block) -> tuple[Tensor, Tensor]:
        """Keys and values of a block of a piece: its own, or the context's."""
        p = self._pieces[i]
        kv: Optional[Tensor] = self._keys[i]
        if not b.diag:
            kv = self._stores[p.sequence].kv
            assert kv is not None
            kv = kv[:, :, :p.context]
        assert kv is not None
        return kv[:, 0], kv[:, 1]

    def _leave(self, p: Piece, dk: Tensor, dv: Tensor) -> None:
        """Adds gradients of the context's keys and values to those of later slices."""
        store = self._stores[p.sequence]
        if store.grads is None:  # the last slice, which has all of them
            store.grads = torch.stack([dk, dv], 1).float()
            return
        for side, grad in enumerate((dk, dv)):
            store.grads[:, side, :p.context] += grad

    def _taken(self, p: Piece) -> Tensor:
        """The gradients that later slices have left for a slice; with the first one the store ends."""
        store = self._stores[p.sequence]
        assert store.grads is not None
        own = store.grads[:, :, p.context:p.context + p.tokens]
        if not p.context:
            del self._stores[p.sequence]
        return own

    def _tiles(self, me: Seat) -> Tiles:
        shared = me.shared(self.plan.q_heads // self.plan.kv_heads)
        return Tiles(self.kernel, shared, self.plan.head_dim, self.meter, self.trace)


class _ChunkAttention(torch.autograd.Function):
    """A run as a node of autograd's graph. What it keeps is not autograd's to watch: later slices write beside
    the keys and values that earlier ones read."""

    @staticmethod
    def forward(ctx: Any, run: ChunkRun, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # type: ignore[override]
        with as_given(q.device):
            out, _ = run.forward(q, k, v)
        ctx.run = run
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Optional[Tensor], ...]:  # type: ignore[override]
        with as_given(dout.device):
            return (None, *ctx.run.chunk_backward(dout))


def _blocks(p: Piece) -> list[Block]:
    """Of a piece's tokens against its own and the context's: the former first."""
    whole = Segment(0, p.context + p.tokens)
    return cut([Segment(p.context, whole.end)], [whole], [whole])
