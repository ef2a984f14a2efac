"""Attention as ops: blocks and packed documents, forward, and backward from saved results."""

from __future__ import annotations

import math

import torch

import reference
from attention import Block, Kernel, Saved, block_of
from inputs import Inputs
from kernels import Kernels
from work import Bound, Op

Tensor = torch.Tensor

# Heads of the small shapes: an odd count in groups of three and eight to one; groups of unequal size; no
# groups.
_GROUPED = ((3, 1), (8, 1))
_UNEVEN = ((5, 2),)
_UNGROUPED = ((3, 3),)


class Attention(Op):
    """attn_fwd, attn_bwd, attn_varlen_fwd or attn_varlen_bwd."""

    def __init__(self, kernels: Kernels, kind: str):
        super().__init__(next(iter(kernels.by_name.values())).device)
        self.kernels, self.kind = kernels, kind

    def refusal(self) -> str:
        """Whether any kernel has it."""
        return "" if self.kernels.has(self.kind) else "no attention kernel of this worker can run it"

    def pick(self, shape: dict) -> tuple[Block, Kernel]:
        """The shape's block and the kernel that gets it."""
        b = block_of(self.kind, shape)
        self.device.dtype(b.dtype)
        return b, self.kernels.pick(self.kind, b, shape.get("kernel"))

    def variant(self, shape: dict) -> str:
        """Mask, head width, precision, grouping and kernel."""
        b, kernel = self.pick(shape)
        return f"{b.causal} {b.head_dim} {b.dtype} {_heads(b)} {kernel.name}"

    def odd(self, shape: dict) -> list[dict]:
        """Odd lengths; the shape's own kernel even where another would be the default at this size."""
        b, kernel = self.pick(shape)
        small = {**shape, "kernel": kernel.name}
        if b.docs:
            small["seq_lens"] = [70, 1, 33]
        else:
            small.update(q_len=70, kv_len=70 if b.causal else 133)
        return [{**small, "q_heads": q, "kv_heads": kv} for q, kv in _heads(b)]

    def bind(self, shape: dict, inputs: Inputs) -> Bound:
        """Inputs canonical, the kernel's layout inside its bind."""
        b, kernel = self.pick(shape)
        dtype = self.device.dtype(b.dtype)
        q = inputs.normal(b.q_len, b.q_heads, b.head_dim, dtype=dtype)
        k, v = (inputs.normal(b.kv_len, b.kv_heads, b.head_dim, dtype=dtype) for _ in range(2))
        inputs.expect(b.q_len, b.q_heads, b.head_dim, dtype=dtype)  # out, or dq
        inputs.expect(b.q_len, b.q_heads)  # the log-sum-exp
        if self.kind.endswith("_fwd"):
            return self._forward(b, kernel, q, k, v)
        return self._backward(b, kernel, q, k, v, inputs)

    def _forward(self, b: Block, kernel: Kernel, q: Tensor, k: Tensor, v: Tensor) -> Bound:
        def outputs(saved: Saved) -> dict[str, Tensor]:
            out = {"out": kernel.canonical(saved.out)}
            return out if saved.lse is None else {**out, "lse": kernel.canonical_lse(b, saved.lse)}

        def expected() -> dict[str, Tensor]:
            return dict(zip(("out", "lse"), reference.attention(q, k, v, b.parts())))

        return Bound(kernel.bind_forward(b, q, k, v), expected, outputs)

    def _backward(
        self, b: Block, kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, inputs: Inputs
    ) -> Bound:
        dout = inputs.normal(*q.shape, dtype=q.dtype)
        for t in (q, k, v):  # out, dk, dv
            inputs.expect(*t.shape, dtype=t.dtype)
        saved = kernel.bind_forward(b, q, k, v)()
        if kernel.global_lse:
            _widen(saved, inputs)

        def expected() -> dict[str, Tensor]:
            out, lse = kernel.canonical(saved.out), saved.lse
            if lse is None or not kernel.global_lse:
                out, lse = reference.attention(q, k, v, b.parts())
            else:
                lse = kernel.canonical_lse(b, lse)
            return dict(
                zip(("dq", "dk", "dv"), reference.attention_backward(q, k, v, out, lse, dout, b.parts()))
            )

        return Bound(
            kernel.bind_backward(b, q, k, v, saved, dout), expected,
            lambda grads: dict(zip(("dq", "dk", "dv"), (kernel.canonical(g) for g in grads))),
        )


def _heads(b: Block) -> tuple:
    """The small shapes' query and KV heads for a block's kind of grouping."""
    if b.q_heads % b.kv_heads:
        return _UNEVEN
    return _GROUPED if b.q_heads > b.kv_heads else _UNGROUPED


def _widen(saved: Saved, inputs: Inputs) -> None:
    """Makes out and lse those of a wider attention, in which as many keys again, of equal weight, lie
    elsewhere.

    A ring hands each block the global out and log-sum-exp; a backward that recomputes them from the block
    alone would be right on the block's own and wrong in training.
    """
    saved.lse.add_(math.log(2))
    saved.out.lerp_(inputs.normal(*saved.out.shape, dtype=saved.out.dtype), 0.5)


