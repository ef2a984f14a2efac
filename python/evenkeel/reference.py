"""What one device computes: attention and a whole layer, written plainly in float64.

Nothing here is timed, and nothing here is shared with what is checked. No matrix of all scores exists at a
time: query rows are taken in chunks.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Mapping, Optional, Sequence

import torch
from torch import Tensor

from .plan import Segment
from .whole import EPS, Model

# Bytes of one chunk's matrix of scores; there are about five such matrices.
_SCORES = 64 << 20
_FEW = 256  # rows, of which there may always be as many at a time

Tick = Callable[[], None]  # called after every chunk: a sign of life


class Attention:
    """Attention over packed documents on one device, causal or of every token to its whole document. Heads are taken
    one at a time: q, k, v and dout are [tokens, head_dim] in any precision."""

    def __init__(self, seq_len: int, docs: Sequence[Segment], tick: Tick, causal: bool = True) -> None:
        self._tick = tick
        # Rows of several documents at a time would be held against all keys of these.
        longest = max((d.end - d.start for d in docs), default=seq_len)
        self._rows = min(max(1, _SCORES // (8 * seq_len)), max(_FEW, longest))
        self._starts = torch.zeros(seq_len, dtype=torch.int64)
        self._ends = torch.arange(1, seq_len + 1)  # of what a query sees
        for d in docs:
            self._starts[d.start:d.end] = d.start
            if not causal:
                self._ends[d.start:d.end] = d.end

    def rows(
        self, at: Tensor, q: Tensor, k: Tensor, v: Tensor, dout: Optional[Tensor] = None
    ) -> tuple[Tensor, ...]:
        """out of the query rows at rising positions `at`, whose rows q and dout are; with dout also dq, and
        these rows' part of dk and dv."""
        k, v = k.double(), v.double()
        n = self._rows
        parts, dkv = [], [torch.zeros_like(x) for x in (k, v)] if dout is not None else []
        for a in range(0, len(at), n):
            some = at[a:a + n].cpu()
            keys = slice(int(self._starts[some].min()), int(self._ends[some].max()))
            hidden = self._hidden(some, keys).to(k.device)
            one = _chunk(q[a:a + n].double(), k[keys], v[keys], hidden,
                         None if dout is None else dout[a:a + n].double())
            parts.append(one[:2])
            for whole, part in zip(dkv, one[2:]):
                whole[keys] += part
            self._tick()
        return (*(torch.cat(x) for x in zip(*parts)), *dkv)

    def _hidden(self, at: Tensor, keys: slice) -> Tensor:
        k = torch.arange(keys.start, keys.stop)
        return (k >= self._ends[at][:, None]) | (k < self._starts[at][:, None])


def _chunk(
    q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, dout: Optional[Tensor]
) -> tuple[Tensor, ...]:
    """(out,) or (out, dq, dk, dv). With P = softmax(scores): dv = P^T dout, dS = P * (dout v^T -
    rowsum(dout * out)), dq = dS k, dk = dS^T q."""
    scale = 1 / math.sqrt(q.shape[1])
    p = torch.softmax((q @ k.t()).mul_(scale).masked_fill_(hidden, -math.inf), 1)
    out = p @ v
    if dout is None:
        return (out,)
    ds = (dout @ v.t()).sub_((dout * out).sum(1, keepdim=True)).mul_(p).mul_(scale)
    return out, ds @ k, ds.t() @ q, p.t() @ dout


class Heads(torch.autograd.Function):
    """Attention of all heads [tokens, heads, head_dim] in autograd's graph."""

    @staticmethod
    def forward(ctx: Any, of: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # type: ignore[override]
        ctx.of = of
        ctx.save_for_backward(q, k, v)
        at, each = torch.arange(len(q)), q.shape[1] // k.shape[1]
        return torch.stack([of.rows(at, q[:, h], k[:, h // each], v[:, h // each])[0]
                            for h in range(q.shape[1])], 1)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Optional[Tensor], ...]:  # type: ignore[override]
        q, k, v = ctx.saved_tensors
        return (None, *gradients(ctx.of, q, k, v, dout)[1:])


def gradients(of: Attention, q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
    """out, dq, dk, dv of all heads, float64."""
    at, each = torch.arange(len(q)), q.shape[1] // k.shape[1]
    out, dq = (torch.empty(q.shape, dtype=torch.float64, device=q.device) for _ in range(2))
    dk, dv = (torch.zeros(k.shape, dtype=torch.float64, device=q.device) for _ in range(2))
    for h in range(q.shape[1]):
        j = h // each
        out[:, h], dq[:, h], one_k, one_v = of.rows(at, q[:, h], k[:, j], v[:, j], dout[:, h])
        dk[:, j] += one_k
        dv[:, j] += one_v
    return out, dq, dk, dv


def layer(
    model: Model, weights: Mapping[str, Tensor], of: Attention, x: Tensor, dy: Tensor, at: Tensor
) -> tuple[Tensor, Tensor]:
    """y and dx of a whole layer over x [tokens, hidden], whose tokens are at the positions `at` of their
    documents."""
    y, leaf, _ = _layer(model, weights, of, x, at, False)
    dx, = torch.autograd.grad(y, leaf, dy.double())
    return y.detach(), dx


def layer_output(
    model: Model, weights: Mapping[str, Tensor], of: Attention, x: Tensor, at: Tensor
) -> Tensor:
    """y of the same."""
    with torch.no_grad():
        return _layer(model, weights, of, x, at, False)[0]


def layer_gradients(
    model: Model, weights: Mapping[str, Tensor], of: Attention, x: Tensor, dy: Tensor, at: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """dx of the same, and the gradients of the weights."""
    return layer_whole(model, weights, of, x, dy, at)[1:]


def layer_whole(
    model: Model, weights: Mapping[str, Tensor], of: Attention, x: Tensor, dy: Tensor, at: Tensor
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """y and dx of the same, and the gradients of the weights."""
    y, leaf, w = _layer(model, weights, of, x, at, True)
    dx, *dws = torch.autograd.grad(y, [leaf, *w.values()], dy.double())
    return y.detach(), dx, dict(zip(w, dws))


def _layer(
    model: Model, weights: Mapping[str, Tensor], of: Attention, x: Tensor, at: Tensor, learn: bool
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """y, and the leaves of its graph: x, and the weights, whose gradients are wanted if `learn`."""
    m, w = model, {n: t.detach().double().requires_grad_(learn) for n, t in weights.items()}
    leaf = x.detach().double().requires_grad_()
    q, k, v = _product(w, "qkv", _norm(m, w, "norm1", leaf)).view(len(x), -1, m.head_dim).split(
        [m.q_heads, m.kv_heads, m.kv_heads], 1)
    if m.qk_norm:
        q, k = _rms(q, w["q_norm"]), _rms(k, w["k_norm"])
    if m.rotary:
        q, k = (_turned(t, at, m.rotary) for t in (q, k))
    mixed = Heads.apply(of, q, k, v).reshape(len(x), -1)
    base = leaf + _product(w, "out", mixed)
    up = _product(w, "up", _norm(m, w, "norm1", leaf) if m.shared_norm else _norm(m, w, "norm2", base))
    if m.gated:
        gate, rest = up.chunk(2, -1)
        act = gate * torch.sigmoid(gate) * rest
    else:  # the tanh form of GELU
        act = up / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
    return base + _product(w, "down", act), leaf, w


def _product(w: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    y = x @ w[name]
    return y + w[name + "_bias"] if name + "_bias" in w else y


def _norm(model: Model, w: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    if not model.layer_norm:
        return _rms(x, w[name])
    x = x - x.mean(-1, keepdim=True)
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPS) * w[name] + w[name + "_bias"]


def _rms(x: Tensor, w: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPS) * w


def _turned(x: Tensor, at: Tensor, rotary: int) -> Tensor:
    """Pairs (i, i + rotary/2) turned by position * 10000^(-2i/rotary)."""
    half = rotary // 2
    power = torch.arange(half, dtype=torch.float64, device=x.device) / half
    angle = at.to(x.device).double()[:, None, None] * 10000.0 ** -power
    a, b = x[..., :half], x[..., half:rotary]
    turned = torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)
    return torch.cat([turned, x[..., rotary:]], -1)


def adamw(p: Tensor, m: Tensor, v: Tensor, g: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Parameter and moments after the step of that number, from 1 on (Loshchilov and Hutter 2019, algorithm 2, with
    the constants of adamw.py)."""
    p, m, v, g = (t.double() for t in (p, m, v, g))
    m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
    mhat, vhat = m / (1 - 0.9 ** step), v / (1 - 0.95 ** step)
    return p - 1e-4 * (mhat / (vhat.sqrt() + 1e-8) + 0.1 * p), m, v


def error(got: Tensor, want: Tensor, scale: float) -> float:
    """|got - want| / |want| in the 2-norm, over `scale` where the answer is zero but for rounding; infinity
    for anything that is not finite."""
    if not bool(torch.isfinite(got).all()):
        return math.inf
    norm = float(want.norm())
    return float((got.double() - want).norm()) / (norm if norm > 1e-6 * scale else scale or 1.0)
