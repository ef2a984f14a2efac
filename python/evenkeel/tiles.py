"""Blocks of attention as a rank computes them: counted, timed, and merged into the results of its rows."""

from __future__ import annotations

from typing import Optional, Sequence

from torch import Tensor

from .blocks import Block
from .kernels import Grads, Kernel, merge
from .meter import Meter, Trace, timed


class Tiles:
    """The blocks of a rank that has some heads; shared as kernels have it. Tensors are [heads, tokens, head_dim],
    of a block's rows and columns alone."""

    def __init__(
        self, kernel: Kernel, shared: Sequence[int], head_dim: int, meter: Meter, trace: Optional[Trace]
    ) -> None:
        self._kernel, self._shared, self._head_dim = kernel, shared, head_dim
        self._meter, self._trace = meter, trace

    def forward(self, step: int, b: Block, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> None:
        """Merges a block into out and lse, float32; a DIAG block is the first of its rows."""
        with timed(self._trace, "fwd", step, "attn") as span:
            span.flops, span.shape = self._flops(b), self._shape(b)
            self._meter.work("fwd", span.flops)
            of_block, its_lse = self._kernel.forward(q, k, v, self._shared, b.diag)
        with timed(self._trace, "fwd", step, "merge"):
            if b.diag:
                out.copy_(of_block)
                lse.copy_(its_lse)
            else:
                merge(out, lse, of_block, its_lse)

    def backward(
        self, step: int, b: Block, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> Grads:
        """dq, dk and dv of a block; out and lse are of the rows' whole attention."""
        with timed(self._trace, "bwd", step, "attn") as span:
            span.flops, span.shape = 5 * self._flops(b) // 2, self._shape(b)
            self._meter.work("bwd", span.flops)
            return self._kernel.backward(dout, q, k, v, out, lse, self._shared, b.diag)

    def _flops(self, b: Block) -> int:
        """Of a block forward, counted under the mask: two multiply-adds a pair and element."""
        return 4 * sum(self._shared) * self._head_dim * b.pairs

    def _shape(self, b: Block) -> dict[str, object]:
        """The axes of a block, as the cost model names them."""
        return {
            "mask": "diag" if b.diag else "full", "q_len": b.q_len, "kv_len": b.kv_len,
            "q_heads": sum(self._shared), "kv_heads": len(self._shared), "head_dim": self._head_dim,
        }


def put(place: Tensor, grad: Tensor, first: bool) -> None:
    """Adds a gradient to what is there; the first one takes its place."""
    if first:
        place.copy_(grad)
    else:
        place.add_(grad)
