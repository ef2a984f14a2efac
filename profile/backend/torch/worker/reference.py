"""What every op computes, written plainly in float64: the answers that kernels are checked against.

Nothing here is timed, and nothing here is shared with a kernel. Attention tensors are [tokens, heads,
head_dim].
"""

from __future__ import annotations

import math
from typing import Callable

import torch

Tensor = torch.Tensor

# Rows of a score matrix that are held at a time: at 64 Ki keys 512 of them are 256 MiB of float64.
_ROWS = 512

EPS = 1e-5  # of RMSNorm
ADAMW = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "step": 1000}


def rel_err(got: Tensor, want: Tensor) -> float:
    """|got - want| / |want| in the 2-norm; infinity when got holds anything that is not finite."""
    got, want = got.double().cpu(), want.double().cpu()
    if got.shape != want.shape or not bool(torch.isfinite(got).all()):
        return math.inf
    scale = float(want.norm())
    return float((got - want).norm()) / (scale if scale > 0 else 1.0)


def kv_head(h: int, q_heads: int, kv_heads: int) -> int:
    """The KV head that query head h reads."""
    return h * kv_heads // q_heads


def _rows(q: Tensor, part: tuple) -> list[tuple[int, int]]:
    q0, q1 = part[0], part[1]
    return [(a, min(a + _ROWS, q1)) for a in range(q0, q1, _ROWS)]


def _scores(q: Tensor, k: Tensor, a: int, b: int, part: tuple) -> Tensor:
    """Scaled scores of query rows a..b of one head against the part's keys, the masked ones -inf."""
    q0, _, k0, k1, causal = part
    s = (q[a:b] @ k[k0:k1].T) / math.sqrt(q.shape[1])
    if causal:
        rows = torch.arange(a - q0, b - q0, device=q.device)[:, None]
        s.masked_fill_(torch.arange(k1 - k0, device=q.device)[None, :] > rows, -math.inf)
    return s


def attention(q: Tensor, k: Tensor, v: Tensor, parts: list[tuple]) -> tuple[Tensor, Tensor]:
    """out [tokens, heads, head_dim] and log-sum-exp [heads, tokens] of independent blocks.

    A part (q0, q1, k0, k1, causal) lets query rows q0..q1 see keys k0..k1; causal ones are square.
    """
    q, k, v = q.double(), k.double(), v.double()
    out, lse = torch.empty_like(q), q.new_empty(q.shape[1], q.shape[0])
    for part in parts:
        for h in range(q.shape[1]):
            j = kv_head(h, q.shape[1], k.shape[1])
            for a, b in _rows(q, part):
                s = _scores(q[:, h], k[:, j], a, b, part)
                lse[h, a:b] = torch.logsumexp(s, 1)
                out[a:b, h] = torch.softmax(s, 1) @ v[part[2]:part[3], j]
    return out, lse


def attention_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor, parts: list[tuple]
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv of the parts, given the out and log-sum-exp of the whole attention they belong to.

    With P = exp(scores - lse) and D = sum(dout * out): dv = P^T dout, dS = P * (dout v^T - D), dq = dS k, dk
    = dS^T q.
    """
    q, k, v, out, lse, dout = (t.double() for t in (q, k, v, out, lse, dout))
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    rowsum, scale = (dout * out).sum(2), 1 / math.sqrt(q.shape[2])
    for part in parts:
        keys = slice(part[2], part[3])
        for h in range(q.shape[1]):
            j = kv_head(h, q.shape[1], k.shape[1])
            for a, b in _rows(q, part):
                p = torch.exp(_scores(q[:, h], k[:, j], a, b, part) - lse[h, a:b, None])
                ds = p * (dout[a:b, h] @ v[keys, j].T - rowsum[a:b, h, None]) * scale
                dv[keys, j] += p.T @ dout[a:b, h]
                dk[keys, j] += ds.T @ q[a:b, h]
                dq[a:b, h] += ds @ k[keys, j]
    return dq, dk, dv


def lse_merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the union of two key sets from both partial results; out [rows, head_dim], lse
    [rows]."""
    out, lse, other, other_lse = (t.double() for t in (out, lse, other, other_lse))
    merged = torch.logaddexp(lse, other_lse)
    return torch.exp(lse - merged)[:, None] * out + torch.exp(other_lse - merged)[:, None] * other, merged


def norm(x: Tensor, w: Tensor) -> Tensor:
    """RMSNorm of each row: x * w / sqrt(mean(x^2) + eps)."""
    x = x.double()
    return x * w.double() / torch.sqrt((x * x).mean(-1, keepdim=True) + EPS)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the pairs (x[i], x[i + head_dim/2]) by the angle of their token; cos and sin broadcast against
    a half."""
    a, b = x.double().chunk(2, -1)
    cos, sin = cos.double(), sin.double()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    gate = gate.double()
    return gate * torch.sigmoid(gate) * up.double()


def gelu(x: Tensor) -> Tensor:
    """The tanh form: x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))."""
    x = x.double()
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def ce_chunk(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient softmax - onehot and losses logsumexp - logit[target]; logits [tokens, vocabulary]."""
    logits = logits.double()
    grad = torch.softmax(logits, 1)
    grad[torch.arange(len(targets), device=grad.device), targets] -= 1
    return grad, torch.logsumexp(logits, 1) - logits.gather(1, targets[:, None])[:, 0]


def adamw(p: Tensor, m: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Parameter and moments after one step (Loshchilov and Hutter 2019, algorithm 2, with ADAMW's
    constants)."""
    p, m, v, g = (t.double() for t in (p, m, v, g))
    h = ADAMW
    m = h["beta1"] * m + (1 - h["beta1"]) * g
    v = h["beta2"] * v + (1 - h["beta2"]) * g * g
    mhat, vhat = m / (1 - h["beta1"] ** h["step"]), v / (1 - h["beta2"] ** h["step"])
    return p - h["lr"] * (mhat / (vhat.sqrt() + h["eps"]) + h["weight_decay"] * p), m, v


def layer(x: Tensor, w: dict, cos: Tensor, sin: Tensor, q_heads: int, kv_heads: int) -> Tensor:
    """A pre-norm Llama block of x [tokens, hidden], differentiable by autograd; weights are [inputs,
    outputs]."""
    tokens, d = x.shape[0], cos.shape[-1] * 2
    qkv = (norm(x, w["norm1"]) @ w["qkv"]).view(tokens, -1, d)
    q, k, v = qkv.split([q_heads, kv_heads, kv_heads], 1)
    q, k = rope(q, cos[:, None], sin[:, None]), rope(k, cos[:, None], sin[:, None])
    group = torch.tensor([kv_head(h, q_heads, kv_heads) for h in range(q_heads)], device=x.device)
    s = torch.einsum("qhd,khd->hqk", q, k[:, group]) / math.sqrt(d)
    s = s.masked_fill(torch.ones(tokens, tokens, device=x.device).triu(1).bool(), -math.inf)
    mixed = torch.einsum("hqk,khd->qhd", torch.softmax(s, -1), v[:, group])
    y = x + mixed.reshape(tokens, -1) @ w["out"]
    gate, up = (norm(y, w["norm2"]) @ w["gate_up"]).chunk(2, -1)
    return y + swiglu(gate, up) @ w["down"]


def grads_of(fn: Callable[[], Tensor], leaves: list[Tensor], dout: Tensor) -> list[Tensor]:
    """Gradients of fn's result, weighted by dout, with respect to leaves, by float64 autograd."""
    with torch.enable_grad():
        return list(torch.autograd.grad(fn(), leaves, dout.double()))
