"""Kernels of one attention block: out and log-sum-exp forward, and a backward that takes both of the whole
attention instead of the block's.

Tensors are [heads, tokens, head_dim], the log-sum-exp float32 [heads, tokens]. `shared` says of every KV head
how many consecutive query heads read it: (3, 3, 1) where a rank holds 7 query heads of a model with 3 to a KV
head.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
from typing import Any, Optional, Sequence

import torch
from torch import Tensor

Out = tuple[Tensor, Tensor]
Grads = tuple[Tensor, Tensor, Tensor]


class Kernel:
    """A way to compute one block. A FULL block is any rectangle; a causal one is square."""

    name = ""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, shared: Sequence[int], causal: bool) -> Out:
        """out of the shape of q, and lse."""
        raise NotImplementedError

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, shared: Sequence[int],
        causal: bool,
    ) -> Grads:
        """dq, dk, dv of the block; out and lse are of the whole attention."""
        raise NotImplementedError


class Math(Kernel):
    """Matrix products and softmax in float32 over chunks of query rows, on any device and any torch.

    The query heads that share a KV head are one tall matrix, so grouped heads cost no copies of k and v. An
    object keeps its scratch memory between calls and belongs to one thread.
    """

    name = "math"
    scratch_bytes = 64 << 20  # of one matrix of scores; backward has two

    def __init__(self) -> None:
        self._scratch: dict[tuple[str, torch.device], Tensor] = {}

    def forward(self, q: Tensor, k: Tensor, v: Tensor, shared: Sequence[int], causal: bool) -> Out:
        """See Kernel."""
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        for j, lo, hi in _groups(shared):
            self._forward(q[lo:hi], k[j].float(), v[j].float(), out[lo:hi], lse[lo:hi], causal)
        return out, lse

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, shared: Sequence[int],
        causal: bool,
    ) -> Grads:
        """See Kernel. Gradients are float32, whatever the inputs are."""
        dq = torch.empty(q.shape, dtype=torch.float32, device=q.device)
        dk, dv = (torch.zeros(k.shape, dtype=torch.float32, device=q.device) for _ in range(2))
        for j, lo, hi in _groups(shared):
            mine = dout[lo:hi], q[lo:hi], k[j].float(), v[j].float(), out[lo:hi], lse[lo:hi]
            self._backward(*mine, dq[lo:hi], dk[j], dv[j], causal)
        return dq, dk, dv

    def _room(self, name: str, rows: int, cols: int, device: torch.device) -> Tensor:
        have = self._scratch.get((name, device))
        if have is None or have.numel() < rows * cols:
            have = self._scratch[name, device] = torch.empty(rows * cols, device=device)
        return have[: rows * cols].view(rows, cols)

    def _chunks(self, q_len: int, k_len: int, group: int, causal: bool) -> list[tuple[int, int, int]]:
        """(a, z, n): query rows a to z see the first n keys. Short causal chunks skip most of the masked
        half."""
        rows = max(1, self.scratch_bytes // (4 * group * k_len))
        if causal:
            rows = min(rows, max(64, q_len // 8))
        ends = [(a, min(a + rows, q_len)) for a in range(0, q_len, rows)]
        return [(a, z, z if causal else k_len) for a, z in ends]

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool) -> None:
        """One KV head: q and out [group, rows, head_dim], k and v [keys, head_dim], lse [group, rows]."""
        group, scale = q.shape[0], 1 / math.sqrt(q.shape[2])
        for a, z, n in self._chunks(q.shape[1], k.shape[0], group, causal):
            s = self._room("p", group * (z - a), n, q.device)
            torch.mm(_tall(q[:, a:z]) * scale, k[:n].t(), out=s)
            _mask(s.view(group, z - a, n), a, causal)
            top = s.amax(1, keepdim=True)
            total = s.sub_(top).exp_().sum(1, keepdim=True)
            out[:, a:z] = torch.mm(s, v[:n]).div_(total).view(group, z - a, -1)
            lse[:, a:z] = top.add_(total.log_()).view(group, z - a)

    def _backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dq: Tensor, dk: Tensor,
        dv: Tensor, causal: bool,
    ) -> None:
        """One KV head, as _forward. With P = exp(scores - lse) and D = rowsum(dout * out): dv = P^T dout,
        dS = P * (dout v^T - D), dq = dS k, dk = dS^T q."""
        group, scale = q.shape[0], 1 / math.sqrt(q.shape[2])
        for a, z, n in self._chunks(q.shape[1], k.shape[0], group, causal):
            x, dy = _tall(q[:, a:z]) * scale, _tall(dout[:, a:z])
            rowsum = (dy * _tall(out[:, a:z])).sum(1, keepdim=True)
            p, dp = (self._room(name, len(x), n, q.device) for name in ("p", "dp"))
            torch.mm(x, k[:n].t(), out=p)
            _mask(p.view(group, z - a, n), a, causal)
            p.sub_(lse[:, a:z].reshape(-1, 1)).exp_()
            dv[:n].addmm_(p.t(), dy)
            torch.mm(dy, v[:n].t(), out=dp)
            dp.sub_(rowsum).mul_(p)
            dk[:n].addmm_(dp.t(), x)
            dq[:, a:z] = torch.mm(dp, k[:n]).mul_(scale).view(group, z - a, -1)


class Repeating(Kernel):
    """Kernels that take the same number of query heads for every KV head: keys and values are repeated where
    the rank's share is not like that, by as little as possible, and their gradients added up.

    grouped: whether that number may be above one.
    """

    grouped = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, shared: Sequence[int], causal: bool) -> Out:
        """See Kernel."""
        times = _times(shared, self.grouped)
        return self.even_forward(q, _repeat(k, times), _repeat(v, times), causal)

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, shared: Sequence[int],
        causal: bool,
    ) -> Grads:
        """See Kernel."""
        times = _times(shared, self.grouped)
        dq, dk, dv = self.even_backward(dout, q, _repeat(k, times), _repeat(v, times), out, lse, causal)
        return dq, _added(dk, times), _added(dv, times)

    def even_forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Out:
        """forward with a number of query heads that is a multiple of that of KV heads."""
        raise NotImplementedError

    def even_backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
    ) -> Grads:
        """backward likewise."""
        raise NotImplementedError


class FlashAttention2(Repeating):
    """The flash-attn package, from 2.7 on: its functions below autograd, which give and take the lse."""

    name = "fa2"

    def __init__(self, module: Any = None) -> None:
        module = module or importlib.import_module("flash_attn.flash_attn_interface")
        self._run, self._run_back = module._flash_attn_forward, module._flash_attn_backward
        _demand(self._run, "window_size_left", "flash-attn 2.7")

    def even_forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Out:
        """See Repeating."""
        qs, ks, vs = (_tokens_first(x) for x in (q, k, v))
        out, lse, *_ = self._run(qs, ks, vs, **self._options(q, causal), return_softmax=False)
        return out[0].transpose(0, 1), lse[0]

    def even_backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
    ) -> Grads:
        """See Repeating."""
        inputs = [_tokens_first(x) for x in (dout, q, k, v, out)]
        grads = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in inputs[1:4]]
        rows = lse[None].contiguous()
        self._run_back(*inputs, rows, *grads, **self._options(q, causal), deterministic=False)
        dq, dk, dv = (g[0].transpose(0, 1) for g in grads)
        return dq, dk, dv

    def _options(self, q: Tensor, causal: bool) -> dict[str, Any]:
        """A square is causal whichever corner a package aligns the diagonal with."""
        return {
            "dropout_p": 0.0, "softmax_scale": 1 / math.sqrt(q.shape[2]), "causal": causal,
            "window_size_left": -1, "window_size_right": -1, "softcap": 0.0, "alibi_slopes": None,
        }


class TorchFlash(Repeating):
    """The flash attention inside torch >= 2.1, through the operators that torch's own ring attention
    calls."""

    name = "sdpa_flash"

    def __init__(self, namespace: Any = None) -> None:
        ops: Any = getattr(torch, "ops").aten if namespace is None else namespace
        self._run = ops._scaled_dot_product_flash_attention
        self._run_back = ops._scaled_dot_product_flash_attention_backward
        self._ends: tuple[Any, Any] = (None, None)  # of packed sequences, of which there are none
        self._random: tuple[Any, Any] = (None, None)  # demanded by the backward, read for dropout only

    def even_forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Out:
        """See Repeating."""
        scale = 1 / math.sqrt(q.shape[2])
        results = self._run(q[None], k[None], v[None], 0.0, causal, False, scale=scale)
        out, lse, ends_q, ends_k, _, _, seed, offset, *_ = results
        self._ends, self._random = (ends_q, ends_k), (seed, offset)
        return out[0], lse[0, :, : q.shape[1]]

    def even_backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
    ) -> Grads:
        """See Repeating."""
        dq, dk, dv = self._run_back(
            dout[None], q[None], k[None], v[None], out[None], lse[None].contiguous(), *self._ends,
            q.shape[1], k.shape[1], 0.0, causal, *self._random, scale=1 / math.sqrt(q.shape[2]),
        )[:3]
        return dq[0], dk[0], dv[0]


class TorchCudnn(Repeating):
    """cuDNN's attention inside torch 2.5 to 2.11, on Hopper and data-center Blackwell often the fastest."""

    name = "sdpa_cudnn"

    def __init__(self, namespace: Any = None) -> None:
        ops: Any = getattr(torch, "ops").aten if namespace is None else namespace
        self._run = ops._scaled_dot_product_cudnn_attention
        self._run_back = ops._scaled_dot_product_cudnn_attention_backward
        _demand(self._run, "compute_log_sumexp", "torch 2.5")
        self._random: tuple[Any, Any] = (None, None)  # demanded by the backward, read for dropout only
        self._one_more = True  # whether its log-sum-exp has a last axis of 1

    def even_forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Out:
        """See Repeating."""
        out, lse, _, _, _, _, *self._random, _ = self._run(
            query=q[None], key=k[None], value=v[None], attn_bias=None, compute_log_sumexp=True,
            dropout_p=0.0, is_causal=causal, return_debug_mask=False, scale=1 / math.sqrt(q.shape[2]),
        )
        self._one_more = lse.dim() == 4
        return out[0], lse.reshape(q.shape[0], -1)[:, : q.shape[1]]

    def even_backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
    ) -> Grads:
        """See Repeating."""
        rows = lse[None, ..., None] if self._one_more else lse[None]
        seed, offset = self._random
        dq, dk, dv = self._run_back(
            grad_out=dout[None], query=q[None], key=k[None], value=v[None], out=out[None].to(q.dtype),
            logsumexp=rows.contiguous(), philox_seed=seed, philox_offset=offset, attn_bias=None,
            cum_seq_q=None, cum_seq_k=None, max_q=q.shape[1], max_k=k.shape[1], dropout_p=0.0,
            is_causal=causal, scale=1 / math.sqrt(q.shape[2]),
        )[:3]
        return dq[0], dk[0], dv[0]


class TorchEfficient(Repeating):
    """The memory-efficient attention inside torch >= 2.1, on every GPU and in every precision; of several
    query heads to a KV head it knows nothing."""

    name = "sdpa_efficient"
    grouped = False
    _ALIGNED = 32  # the rows of log-sum-exp that it gives and takes are filled up to a multiple of it

    def __init__(self, namespace: Any = None) -> None:
        ops: Any = getattr(torch, "ops").aten if namespace is None else namespace
        self._run = ops._scaled_dot_product_efficient_attention
        self._run_back = ops._scaled_dot_product_efficient_attention_backward
        self._random: tuple[Any, Any] = (None, None)  # demanded by the backward, read for dropout only

    def even_forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Out:
        """See Repeating."""
        scale = 1 / math.sqrt(q.shape[2])
        out, lse, *self._random = self._run(q[None], k[None], v[None], None, True, 0.0, causal, scale=scale)
        return out[0], lse[0, :, : q.shape[1]]

    def even_backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
    ) -> Grads:
        """See Repeating. A log-sum-exp of infinity makes the weights of the rows that fill up zero. Kernels
        read out, whatever its strides are, as the forward writes it: heads by tokens."""
        rows = torch.nn.functional.pad(lse, (0, -lse.shape[1] % self._ALIGNED), value=math.inf)
        by_tokens = out.to(q.dtype).transpose(0, 1).contiguous().transpose(0, 1)
        dq, dk, dv = self._run_back(
            dout[None], q[None], k[None], v[None], None, by_tokens[None], rows[None].contiguous(),
            *self._random, 0.0, [True, True, True, False], causal, scale=1 / math.sqrt(q.shape[2]),
        )[:3]
        return dq[0], dk[0], dv[0]


class TorchCPU(Repeating):
    """The flash attention for processors inside torch >= 2.2. It is what is measured there where it takes grouped
    heads; earlier releases count by query heads, and would read and write KV heads that do not exist."""

    name = "sdpa_cpu"
    _GROUPED = (2, 9)  # first release that takes them, pytorch/pytorch#157893

    def __init__(self, namespace: Any = None) -> None:
        self.grouped = _release(str(torch.__version__)) >= self._GROUPED
        ops: Any = getattr(torch, "ops").aten if namespace is None else namespace
        self._run = ops._scaled_dot_product_flash_attention_for_cpu
        self._run_back = ops._scaled_dot_product_flash_attention_for_cpu_backward

    def even_forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Out:
        """See Repeating."""
        out, lse = self._run(q[None], k[None], v[None], 0.0, causal, scale=1 / math.sqrt(q.shape[2]))
        return out[0], lse[0].float()

    def even_backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
    ) -> Grads:
        """See Repeating."""
        dq, dk, dv = self._run_back(
            dout[None], q[None], k[None], v[None], out[None].to(q.dtype), lse[None].contiguous(), 0.0, causal,
            scale=1 / math.sqrt(q.shape[2]),
        )
        return dq[0], dk[0], dv[0]


@functools.lru_cache(maxsize=None)
def fused_on_processors(make: Any = TorchCPU) -> bool:
    """Whether torch's own kernel for processors is used: by the same small call as the worker that measures
    decides, so that both run the same one. A torch whose kernel takes no grouped heads has Math in both."""
    same = torch.Generator().manual_seed(1)  # the program's own random numbers stay as they are
    q, dout = (torch.randn(4, 5, 32, generator=same) for _ in range(2))
    k, v = (torch.randn(2, 7, 32, generator=same) for _ in range(2))
    try:
        kernel = make()
        if not kernel.grouped:
            return False
        out, lse = kernel.forward(q, k, v, (2, 2), False)
        grads = kernel.backward(dout, q, k, v, out, lse, (2, 2), False)
    except Exception:  # a private operator: whatever it says, it cannot be used
        return False
    math_, limits = Math(), (1e-5, 1e-4, 1e-4, 1e-4)
    want, want_lse = math_.forward(q, k, v, (2, 2), False)
    wants = (want, *math_.backward(dout, q, k, v, want, want_lse, (2, 2), False))
    if [g.shape for g in grads] != [q.shape, k.shape, v.shape]:
        return False
    return all(float((g - w).norm()) < limit * float(w.norm()) for g, w, limit in zip((out, *grads), wants, limits))


def default_kernel(q: Tensor) -> Kernel:
    """flash-attn where it is installed and torch's flash attention else, for half precision on a GPU and
    heads that these take; torch's own on a processor where it can be used; Math for everything else."""
    half = q.dtype in (torch.bfloat16, torch.float16)
    if q.device.type == "cpu" and (half or q.dtype == torch.float32) and fused_on_processors():
        return TorchCPU()
    if q.device.type != "cuda" or not half or q.shape[2] % 8 or q.shape[2] > 256:
        return Math()
    try:
        return FlashAttention2()
    except (ImportError, AttributeError):
        pass
    try:
        return TorchFlash()
    except AttributeError:
        return Math()


def merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
    """Makes of out and lse those of the attention over the keys of both, in place and in float32.

    out [heads, tokens, head_dim]. With w = sigmoid(other_lse - lse), the share of the other's keys in the sum
    of exponentials: out + w (other - out), and lse + log(1 + exp(other_lse - lse)).
    """
    weight = torch.sigmoid(other_lse - lse)
    out.lerp_(other.to(out.dtype), weight[..., None].expand_as(out))
    lse.copy_(torch.logaddexp(lse, other_lse))


def _demand(call: Any, argument: str, since: str) -> None:
    """AttributeError if a function or operator, which is private, has not the arguments of some release: an
    older one of the same name takes and gives other things."""
    overload = getattr(call, "default", None) or getattr(call, "_opoverload", None) or call
    schema = getattr(overload, "_schema", None)
    names = [a.name for a in schema.arguments] if schema is not None else list(inspect.signature(call).parameters)
    if argument not in names:
        raise AttributeError(f"{getattr(call, '__name__', call)} takes no {argument}: it wants {since} or later")


def _release(version: str) -> tuple[int, int]:
    """(2, 9) for 2.9.1+cpu. What was built on the way to a release may lack what that has: it counts as the one
    before."""
    # The worker that measures has the same two lines: it is unpacked without this package, and the hash
    # of its files is in the names of what was measured, so that a module for both would make that another device's.
    major, minor, rest = (version.split(".", 2) + ["0", "0"])[:3]
    return int(major), int(minor) - (1 if "a" in rest.split("+")[0] or "dev" in rest else 0)


def _groups(shared: Sequence[int]) -> list[tuple[int, int, int]]:
    """(j, lo, hi): KV head j is read by the query heads lo to hi."""
    out, lo = [], 0
    for j, n in enumerate(shared):
        out.append((j, lo, lo + n))
        lo += n
    return out


def _tall(x: Tensor) -> Tensor:
    """[group, rows, head_dim] as float32 [group * rows, head_dim]."""
    return x.reshape(-1, x.shape[-1]).float()


def _mask(s: Tensor, first: int, causal: bool) -> None:
    """Hides later keys from the query rows `first` and on; s is [group, rows, keys], its last square is on
    the diagonal."""
    if causal:
        rows = s.shape[1]
        hidden = torch.ones(rows, rows, dtype=torch.bool, device=s.device).triu_(1)
        s[:, :, first:].masked_fill_(hidden, -math.inf)


def _times(shared: Sequence[int], grouped: bool) -> Optional[list[int]]:
    """How often each KV head is repeated so that all are read by as many query heads, by one if they may not
    be grouped; None if they are."""
    each = math.gcd(*shared) if grouped else 1
    times = [n // each for n in shared]
    return times if max(times) > 1 else None


def _repeat(x: Tensor, times: Optional[list[int]]) -> Tensor:
    if times is None:
        return x
    return x.repeat_interleave(torch.tensor(times, device=x.device), 0)


def _added(x: Tensor, times: Optional[list[int]]) -> Tensor:
    """The inverse of _repeat for gradients: the sums over the repetitions, in float32."""
    if times is None:
        return x
    return torch.stack([part.float().sum(0) for part in x.split(times)])


def _tokens_first(x: Tensor) -> Tensor:
    """[heads, tokens, head_dim] as a view [1, tokens, heads, head_dim]."""
    return x.transpose(0, 1)[None]
