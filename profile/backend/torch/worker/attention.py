"""Attention blocks, the interface that kernels share, and the kernel every torch has."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Callable, NamedTuple

import torch

from device import Device
from errors import Failure, axis, word

Tensor = torch.Tensor
Grads = tuple  # dq, dk, dv

# Environment variable with names of kernels, separated by commas, that are not to be touched.
SKIP = "EVENKEEL_SKIP_KERNELS"


def left_out(name: str) -> str:
    """Why a kernel is not to be touched, "" if it may be."""
    return f"left out by {SKIP}" if name in os.environ.get(SKIP, "").split(",") else ""


@dataclass(frozen=True)
class Block:
    """One attention call. Tensors are [tokens, heads, head_dim], the log-sum-exp [q_heads, tokens].

    A FULL rectangle, a DIAG square (causal), or packed documents (docs not empty), each causal on its own. A
    causal rectangle exists nowhere: kernels disagree on where its diagonal starts.
    """

    q_len: int
    kv_len: int
    q_heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    causal: bool
    docs: tuple = ()  # tokens of each packed document

    @property
    def scale(self) -> float:
        """The factor of scores: 1/sqrt(head_dim)."""
        return 1 / math.sqrt(self.head_dim)

    def parts(self) -> list[tuple]:
        """Independent blocks (q0, q1, k0, k1, causal) that make up this one."""
        if not self.docs:
            return [(0, self.q_len, 0, self.kv_len, self.causal)]
        ends = [sum(self.docs[: i + 1]) for i in range(len(self.docs))]
        return [(end - n, end, end - n, end, True) for n, end in zip(self.docs, ends)]

    def heads(self) -> list[tuple[int, int, int]]:
        """(j, lo, hi): KV head j is read by the query heads lo..hi."""
        owner = [h * self.kv_heads // self.q_heads for h in range(self.q_heads)]
        return [(j, owner.index(j), owner.index(j) + owner.count(j)) for j in range(self.kv_heads)]


def block_of(op: str, shape: dict) -> Block:
    """The block of a shape of attn_fwd, attn_bwd, attn_varlen_fwd or attn_varlen_bwd."""
    q_heads, kv_heads, dim = axis(shape, "q_heads"), axis(shape, "kv_heads"), axis(shape, "head_dim")
    if kv_heads > q_heads:
        raise Failure("internal", f"shape.kv_heads: {kv_heads}: more than q_heads {q_heads}")
    dtype = str(shape.get("dtype"))
    if op.startswith("attn_varlen"):
        docs = shape.get("seq_lens")
        if not isinstance(docs, list) or not docs or not all(isinstance(n, int) and n > 0 for n in docs):
            raise Failure("internal", f"shape.seq_lens: {docs!r}: want a list of lengths of at least 1 token")
        return Block(sum(docs), sum(docs), q_heads, kv_heads, dim, dtype, True, tuple(docs))
    q_len, kv_len = axis(shape, "q_len"), axis(shape, "kv_len")
    causal = word(shape, "mask", "full", "diag") == "diag"
    if causal and q_len != kv_len:
        raise Failure("internal", f"shape.kv_len: {kv_len}: a diag block is square, q_len is {q_len}")
    return Block(q_len, kv_len, q_heads, kv_heads, dim, dtype, causal)


class Saved(NamedTuple):
    """A forward's results in the kernel's own layout; rest is what else its backward wants."""

    out: Tensor
    lse: Tensor
    rest: dict


@dataclass
class Kernel:
    """A way to compute attention. Subclasses set the fields in __init__ and leave why empty if usable
    here."""

    name: str
    device: Device
    why: str = ""  # why it cannot be used, "" if it can
    schema: str = ""  # signature of what is called, looked up at start
    version: str = ""
    ops: tuple = ("attn_fwd", "attn_bwd")
    dtypes: tuple = ("bf16", "f16")
    native_gqa: bool = True
    head_dims: tuple = (1, 1 << 16)  # head_dim is a multiple of the first number and at most the second
    global_lse: bool = True  # its backward takes out and lse of the whole attention, not only of this block

    def refusal(self, op: str, b: Block) -> str:
        """Why this kernel cannot run op on b, or ""."""
        if self.why:
            return self.why
        if op not in self.ops:
            return f"has no {op}"
        if b.dtype not in self.dtypes:
            return f"takes {', '.join(self.dtypes)}, not {b.dtype}"
        if b.q_heads != b.kv_heads and not self.native_gqa:
            return f"takes as many KV heads as query heads, not {b.kv_heads} for {b.q_heads}"
        if b.q_heads % b.kv_heads:
            return f"wants q_heads to be a multiple of kv_heads, not {b.q_heads} and {b.kv_heads}"
        step, most = self.head_dims
        if b.head_dim % step or b.head_dim > most:
            return f"wants head_dim to be a multiple of {step} up to {most}, not {b.head_dim}"
        return ""

    # In and out of the kernel's layout; canonical is [tokens, heads, head_dim], and lse [heads, tokens].

    def native(self, x: Tensor) -> Tensor:
        """The kernel's layout of a canonical tensor, without copying where it can be a view."""
        return x

    def canonical(self, x: Tensor) -> Tensor:
        """The inverse of native."""
        return x

    def canonical_lse(self, b: Block, lse: Tensor) -> Tensor:
        """The log-sum-exp as float32 [q_heads, tokens], from [1, heads, tokens, padded or not, (1)], packed
        [heads, tokens], or packed and padded to the longest document [docs, heads, tokens]."""
        if len(b.docs) > 1 and lse.dim() == 3 and len(lse) == len(b.docs):
            # As older flash-attn and ROCm (varlen.py of torch 2.11) leave it.
            return torch.cat([rows[:, :n] for rows, n in zip(lse, b.docs)], 1)
        return lse.reshape(b.q_heads, -1)[:, : b.q_len]

    def bind_forward(self, b: Block, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Saved]:
        """A call that computes the block's forward; q, k, v canonical."""
        raise NotImplementedError

    def bind_backward(
        self, b: Block, q: Tensor, k: Tensor, v: Tensor, saved: Saved, dout: Tensor
    ) -> Callable[[], Grads]:
        """A call that computes dq, dk, dv (native layout) without the forward; q, k, v, dout canonical."""
        raise NotImplementedError

    def differentiable(self, b: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Canonical out as a node of autograd's graph, for whole layers."""
        return Attend.apply(q, k, v, self, b)

    def describe(self) -> dict:
        """This kernel's entry in hello."""
        if self.why:
            return {"ok": False, "why": self.why}
        return {
            "ok": True, "schema": self.schema, "ops": list(self.ops), "version": self.version,
            "grouped": self.native_gqa,
        }


class Attend(torch.autograd.Function):
    """A kernel's forward and backward as one autograd node, as training frameworks wrap them."""

    @staticmethod
    def forward(ctx, q, k, v, kernel: Kernel, b: Block):  # noqa: D102
        saved = kernel.bind_forward(b, q, k, v)()
        ctx.save_for_backward(q, k, v, saved.out, saved.lse)
        ctx.kernel, ctx.block, ctx.rest = kernel, b, saved.rest
        return kernel.canonical(saved.out)

    @staticmethod
    def backward(ctx, dout):  # noqa: D102
        q, k, v, out, lse = ctx.saved_tensors
        call = ctx.kernel.bind_backward(ctx.block, q, k, v, Saved(out, lse, ctx.rest), dout)
        return (*(ctx.kernel.canonical(g) for g in call()), None, None)


# Bytes of one scratch matrix of scores. Backward holds two, so long blocks stay far below 256 MiB.
_SCRATCH = 64 << 20


class Explicit(Kernel):
    """Matrix products and softmax in float32 over chunks of query rows: what a torch without a fused CPU op
    offers.

    The query heads that share a KV head are one tall matrix, so grouped heads cost no copies of k and v.
    """

    def __init__(self, device: Device, dtypes: list[str]):
        super().__init__("cpu", device, dtypes=tuple(dtypes), version=torch.__version__)
        self.ops = ("attn_fwd", "attn_bwd", "attn_varlen_fwd", "attn_varlen_bwd")
        self.schema = "matmul, softmax"
        self._scratch: dict[str, Tensor] = {}

    def refusal(self, op: str, b: Block) -> str:
        """Any grouping of heads will do, uneven ones included."""
        even = replace(b, q_heads=b.kv_heads)
        return super().refusal(op, even)

    def _room(self, name: str, rows: int, cols: int) -> Tensor:
        """A scratch matrix [rows, cols] that all calls share, so that no call pays for fresh pages."""
        have = self._scratch.get(name)
        if have is None or have.numel() < rows * cols:
            have = self._scratch[name] = torch.empty(rows * cols, device=self.device.torch)
        return have[: rows * cols].view(rows, cols)

    def _chunks(self, b: Block, part: tuple, group: int) -> list[tuple[int, int, int]]:
        """(a, z, end): query rows a..z see the keys up to end. Causal chunks are short, which skips most of
        the masked half."""
        q0, q1, k0, k1, causal = part
        rows = max(1, _SCRATCH // (4 * group * (k1 - k0)))
        if causal:
            rows = min(rows, max(64, (q1 - q0) // 8))
        return [
            (a, min(a + rows, q1), k0 + min(a + rows, q1) - q0 if causal else k1) for a in range(q0, q1, rows)
        ]

    def bind_forward(self, b: Block, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Saved]:
        """Out and lse are allocated once; every call overwrites them."""
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        lse = torch.empty(b.q_heads, q.shape[0], device=q.device)

        def call() -> Saved:
            for part in b.parts():
                for j, lo, hi in b.heads():
                    self._forward(b, part, q[:, lo:hi], k[:, j], v[:, j], out[:, lo:hi], lse[lo:hi])
            return Saved(out, lse, {})

        return call

    def _forward(
        self, b: Block, part: tuple, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> None:
        """One KV head: q and out [tokens, group, head_dim], k and v [tokens, head_dim], lse [group,
        tokens]."""
        group, k0 = q.shape[1], part[2]
        keys, values = k[k0:part[3]].float(), v[k0:part[3]].float()
        for a, z, end in self._chunks(b, part, group):
            n = end - k0
            s = self._room("p", (z - a) * group, n)
            torch.mm(_tall(q[a:z]) * b.scale, keys[:n].t(), out=s)
            _mask(part, s.view(z - a, group, n), a, z)
            top = s.amax(1, keepdim=True)
            total = s.sub_(top).exp_().sum(1, keepdim=True)
            out[a:z] = torch.mm(s, values[:n]).div_(total).view(z - a, group, -1)
            lse[:, a:z] = (top + total.log_()).view(z - a, group).t()

    def bind_backward(
        self, b: Block, q: Tensor, k: Tensor, v: Tensor, saved: Saved, dout: Tensor
    ) -> Callable[[], Grads]:
        """Gradients are accumulated in float32 and rounded at the end."""
        dq, dk, dv = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v))

        def call() -> Grads:
            rowsum = (dout.float() * saved.out.float()).sum(2)
            for part in b.parts():
                for j, lo, hi in b.heads():
                    mine = (t[:, lo:hi] for t in (q, dout, rowsum, dq))
                    self._backward(b, part, *mine, saved.lse[lo:hi], k[:, j], v[:, j], dk[:, j], dv[:, j])
            return dq, dk, dv

        return call

    def _backward(
        self, b: Block, part: tuple, q: Tensor, dout: Tensor, rowsum: Tensor, dq: Tensor, lse: Tensor,
        k: Tensor, v: Tensor, dk: Tensor, dv: Tensor,
    ) -> None:
        """One KV head; q, dout and dq [tokens, group, head_dim], rowsum [tokens, group], k, v, dk and dv
        [tokens, head_dim]."""
        group, k0, k1 = q.shape[1], part[2], part[3]
        keys, values = k[k0:k1].float(), v[k0:k1].float()
        dkeys, dvalues = torch.zeros_like(keys), torch.zeros_like(values)
        for a, z, end in self._chunks(b, part, group):
            n = end - k0
            x, dy = _tall(q[a:z]) * b.scale, _tall(dout[a:z])
            p, dp = self._room("p", len(x), n), self._room("dp", len(x), n)
            torch.mm(x, keys[:n].t(), out=p)
            _mask(part, p.view(z - a, group, n), a, z)
            p.sub_(lse[:, a:z].t().reshape(-1, 1)).exp_()
            dvalues[:n].addmm_(p.t(), dy)
            torch.mm(dy, values[:n].t(), out=dp)
            dp.sub_(rowsum[a:z].reshape(-1, 1)).mul_(p)
            dkeys[:n].addmm_(dp.t(), x)
            dq[a:z] = torch.mm(dp, keys[:n]).mul_(b.scale).view(z - a, group, -1)
        dk[k0:k1], dv[k0:k1] = dkeys, dvalues


def _tall(x: Tensor) -> Tensor:
    """[rows, group, head_dim] as float32 [rows * group, head_dim]."""
    return x.reshape(-1, x.shape[-1]).float()


def _mask(part: tuple, s: Tensor, a: int, z: int) -> None:
    """Hides the keys after each query row a..z; s is [rows, group, keys], its last square is on the
    diagonal."""
    if part[4]:
        hidden = torch.ones(z - a, z - a, dtype=torch.bool, device=s.device).triu_(1)
        s[:, :, a - part[0]:].masked_fill_(hidden[:, None, :], -math.inf)
