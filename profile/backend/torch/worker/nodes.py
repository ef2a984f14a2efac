"""The parts of a transformer layer that are no products, as fused kernels of training frameworks have them: what
they keep for the backward pass, and how often they read and write. The worker's module of this name and the
package's are the same file."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

EPS = 1e-5  # of the norms


class FusedNorm(torch.autograd.Function):
    """RMSNorm that keeps its input and one reciprocal root a row, as fused kernels do; x [rows, width]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:  # type: ignore[override]
        root = torch.linalg.vector_norm(x, 2, -1, keepdim=True, dtype=torch.float32)
        root = root.square_().div_(x.shape[-1]).add_(EPS).rsqrt_()
        ctx.save_for_backward(x, w, root)
        y: Tensor = torch.mul(x, root, out=torch.empty_like(x)).mul_(w)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        # With t = dy x root: dw = sum(t), dx = root (dy w - x root mean(t w)). In one float32 buffer, which is
        # what a processor's caches then hold.
        x, w, root = ctx.saved_tensors
        dy = dy.float()
        t = (dy * x).mul_(root)
        dw = t.sum(0)
        part = (t @ w.float()).div_(-x.shape[-1]).unsqueeze(1).mul_(root)
        dx = torch.mul(dy, w, out=t).addcmul_(x, part).mul_(root)
        return dx.to(x.dtype), dw.to(w.dtype)


class FusedSwiGLU(torch.autograd.Function):
    """silu(gate) * up of the halves of one matrix [tokens, 2 ffn], keeping that matrix alone."""

    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(both)
        gate, up = both.chunk(2, -1)
        return torch.nn.functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:  # type: ignore[override]
        both, = ctx.saved_tensors
        gate, up = both.chunk(2, -1)
        grad = torch.empty_like(both)
        dgate, dup = grad.chunk(2, -1)
        aten: Any = getattr(torch, "ops").aten
        aten.silu.out(gate, out=dup).mul_(dy)
        aten.silu_backward.grad_input(torch.mul(dy, up, out=dgate), gate, grad_input=dgate)
        return grad


class Turn(torch.autograd.Function):
    """Rotary positions of x [tokens, heads, head_dim]; backward turns back, so it keeps nothing of x. The
    first 2 n elements of a head turn, with tables of width n."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # type: ignore[override]
        ctx.tables = cos, sin
        return _turn(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        cos, sin = ctx.tables
        return _turn(dy, cos, -sin), None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    n = cos.shape[-1]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    a, b = x[..., :n], x[..., n:2 * n]
    torch.mul(a, cos, out=y[..., :n]).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=y[..., n:2 * n]).addcmul_(a, sin)
    if 2 * n < x.shape[-1]:
        y[..., 2 * n:] = x[..., 2 * n:]
    return y


def rms(x: Tensor, w: Tensor) -> Tensor:
    """torch's fused operator on an accelerator whose torch has one, as what is measured."""
    if x.device.type == "cuda" and fused_norm(getattr(torch, "ops").aten):
        y: Tensor = getattr(torch.nn.functional, "rms_norm")(x, x.shape[-1:], w, EPS)
    else:
        y = FusedNorm.apply(x, w)
    return y


def fused_norm(aten: Any) -> bool:
    """Whether torch has the fused operator that is measured, by its arguments: torch 2.7 and 2.8 have another
    one of that name for Apple's devices, and their rms_norm is many operators on a GPU."""
    found = getattr(getattr(getattr(aten, "_fused_rms_norm", None), "default", None), "_schema", None)
    return found is not None and any(a.name == "normalized_shape" for a in found.arguments)
