"""A causal square computed block by block, as a ring does it, against the whole.

Training on a ring and replaying a plan rest on three things that timing a block does not show: partial
results merge by their log-sum-exps, a backward takes the out and log-sum-exp of the whole, and the gradients
of the blocks add up. Shards are unequal here, as they are on unequal devices.
"""

from __future__ import annotations

from dataclasses import replace

import torch

import reference
from attention import Block, Kernel, Saved, block_of
from device import Device
from errors import Failure
from inputs import Inputs
from kernels import Kernels

Tensor = torch.Tensor


def errors(kernels: Kernels, device: Device, shape: dict, cuts: list, seed: int) -> dict[str, float]:
    """Relative errors of out, lse, dq, dk and dv of a diag block cut at the given tokens.

    Failure(unsupported) if the shape's kernel cannot take part in a ring.
    """
    b = block_of("attn_fwd", shape)
    kernel = kernels.pick("attn_bwd", b, shape.get("kernel"))
    if not b.causal or not kernel.global_lse:
        said = f"{kernel.name}: a ring needs a diag block and a backward from the global lse"
        raise Failure("unsupported", said)
    edges = [0, *sorted(int(c) for c in cuts), b.q_len]
    if any(a >= z for a, z in zip(edges, edges[1:])):
        raise Failure("internal", f"cuts: {cuts}: want growing tokens inside 0..{b.q_len}")
    inputs, dtype = Inputs(device, seed), device.dtype(b.dtype)
    q, dout = (inputs.normal(b.q_len, b.q_heads, b.head_dim, dtype=dtype) for _ in range(2))
    k, v = (inputs.normal(b.kv_len, b.kv_heads, b.head_dim, dtype=dtype) for _ in range(2))
    ring = _Ring(b, kernel, list(zip(edges, edges[1:])))
    out, lse = ring.forward(q, k, v)
    got = dict(zip(("dq", "dk", "dv"), ring.backward(q, k, v, out, lse, dout)))
    want_out, want_lse = reference.attention(q, k, v, b.parts())
    grads = reference.attention_backward(q, k, v, want_out, want_lse, dout, b.parts())
    want = {"out": want_out, "lse": want_lse, **dict(zip(("dq", "dk", "dv"), grads))}
    return {name: reference.rel_err(t, want[name]) for name, t in {"out": out, "lse": lse, **got}.items()}


class _Ring:
    """The blocks of a square whose tokens are cut into segments [a, z)."""

    def __init__(self, b: Block, kernel: Kernel, segments: list):
        self.b, self.kernel, self.segments = b, kernel, segments

    def blocks(self):
        """(rows, columns, block) of every block on or below the diagonal."""
        for i, (a, z) in enumerate(self.segments):
            for c, e in self.segments[: i + 1]:
                block = replace(self.b, q_len=z - a, kv_len=e - c, causal=a == c)
                yield slice(a, z), slice(c, e), block

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """out [tokens, heads, head_dim] and lse [heads, tokens] in float32, merged block after block."""
        out = torch.zeros(q.shape, device=q.device)
        lse = torch.full((q.shape[1], q.shape[0]), float("-inf"), device=q.device)
        for rows, cols, block in self.blocks():
            saved = self.kernel.bind_forward(block, q[rows], k[cols], v[cols])()
            mine = self.kernel.canonical_lse(block, saved.lse).float()
            both = torch.logaddexp(lse[:, rows], mine)
            keep, take = ((x - both).exp().t()[:, :, None] for x in (lse[:, rows], mine))
            out[rows] = out[rows] * keep + self.kernel.canonical(saved.out).float() * take
            lse[:, rows] = both
        return out, lse

    def backward(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor
    ) -> list[Tensor]:
        """dq, dk and dv, summed over the blocks in float32."""
        sums = [torch.zeros(t.shape, device=t.device) for t in (q, k, v)]
        for rows, cols, block in self.blocks():
            saved = self.kernel.bind_forward(block, q[rows], k[cols], v[cols])()
            self._globalise(block, saved, out[rows], lse[:, rows])
            call = self.kernel.bind_backward(block, q[rows], k[cols], v[cols], saved, dout[rows])
            for total, place, grad in zip(sums, (rows, cols, cols), call()):
                total[place] += self.kernel.canonical(grad).float()
        return sums

    def _globalise(self, block: Block, saved: Saved, out: Tensor, lse: Tensor) -> None:
        """Writes the whole's out and lse where the kernel keeps the block's own."""
        self.kernel.canonical(saved.out).copy_(out.to(saved.out.dtype))
        mine = self.kernel.canonical_lse(block, saved.lse)
        mine.copy_(lse)
        first, size = saved.lse.data_ptr(), saved.lse.numel() * saved.lse.element_size()
        if not first <= mine.data_ptr() < first + size:
            raise Failure("internal", f"{self.kernel.name}: its lse cannot be replaced in place")
