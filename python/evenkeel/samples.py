"""Attention of the samples that a rank has of a module, each on its own: one call of a kernel, in which the samples
are further heads.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .kernels import Kernel
from .meter import Meter, Trace, timed
from .tasks import Module


class Samples:
    """The attention of a module's layers over so many samples. meter, trace: count and time what is done."""

    def __init__(
        self, module: Module, count: int, kernel: Kernel, meter: Optional[Meter] = None, trace: Optional[Trace] = None
    ) -> None:
        m = module.model
        self.module, self.count, self.kernel = module, count, kernel
        self.shared = (m.q_heads // m.kv_heads,) * (m.kv_heads * count)
        self._meter, self._trace = meter or Meter(), trace

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """out [tokens, q_heads, head_dim] of q as wide, and of k and v [tokens, kv_heads, head_dim], one sample after
        the other."""
        out: Tensor = _SampleAttention.apply(self, q, k, v)
        return out

    def timed(self, direction: str) -> Any:
        """A span of the kernel, whose work is counted."""
        model, seq_len = self.module.model, self.module.seq_len
        pairs = seq_len * (seq_len + 1) // 2 if self.module.causal else seq_len * seq_len
        flops = 4 * model.head_dim * len(self.shared) * self.shared[0] * pairs
        if direction == "bwd":
            flops = 5 * flops // 2
        self._meter.work(direction, flops)
        return timed(self._trace, direction, 0, "attn", flops, {
            "mask": "diag" if self.module.causal else "full", "q_len": seq_len, "kv_len": seq_len,
            "q_heads": sum(self.shared), "kv_heads": len(self.shared), "head_dim": model.head_dim,
        })

    def folded(self, x: Tensor) -> Tensor:
        """[tokens, heads, head_dim] as [samples * heads, tokens of one, head_dim]."""
        by_sample = x.view(self.count, self.module.seq_len, *x.shape[1:]).transpose(1, 2)
        return by_sample.reshape(-1, self.module.seq_len, x.shape[2]).contiguous()

    def unfolded(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """The inverse, in a precision."""
        by_sample = x.reshape(self.count, -1, *x.shape[1:]).transpose(1, 2)
        return by_sample.to(dtype).reshape(self.count * self.module.seq_len, -1, x.shape[2])


class _SampleAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, of: Samples, *heads: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = (of.folded(x) for x in heads)
        with of.timed("fwd"):
            out, lse = of.kernel.forward(q, k, v, of.shared, of.module.causal)
        ctx.of = of
        ctx.save_for_backward(q, k, v, out, lse)
        return of.unfolded(out, q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Optional[Tensor], ...]:  # type: ignore[override]
        of: Samples = ctx.of
        q, k, v, out, lse = ctx.saved_tensors
        folded = of.folded(dout.contiguous())
        with of.timed("bwd"):
            grads: Sequence[Tensor] = of.kernel.backward(
                folded, q, k, v, out, lse, of.shared, of.module.causal)
        return (None, *(of.unfolded(x, q.dtype) for x in grads))
