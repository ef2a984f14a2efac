"""Kernels of blocks against dense float64 attention, and how packages for GPUs are called."""

from __future__ import annotations

import math
import os
import sys
import unittest
from types import SimpleNamespace
from typing import Any, Optional
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import torch
from torch import Tensor

import evenkeel
from evenkeel.kernels import default_kernel, fused_on_processors, merge

SHARES = [(1,), (4,), (2, 2), (3, 3, 1), (1, 4, 2), (2, 4, 4)]


def dense(q: Tensor, k: Tensor, v: Tensor, shared: Any, causal: bool) -> tuple[Tensor, Tensor]:
    """out [heads, tokens, head_dim] and lse [heads, tokens] in the inputs' precision."""
    times = torch.tensor(shared)
    scores = q @ k.repeat_interleave(times, 0).transpose(1, 2) / math.sqrt(q.shape[2])
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -math.inf)
    return torch.softmax(scores, 2) @ v.repeat_interleave(times, 0), torch.logsumexp(scores, 2)


def far(got: Tensor, want: Tensor) -> float:
    """Relative error in the 2-norm."""
    got, want = got.detach().double(), want.detach().double()
    return float((got - want).norm() / want.norm())


def block(shared: Any, q_len: int, k_len: int, dim: int = 8) -> list[Tensor]:
    """dout, q, k, v of random numbers."""
    random = torch.Generator().manual_seed(q_len + 10 * k_len)
    shapes = [(sum(shared), q_len), (sum(shared), q_len), (len(shared), k_len), (len(shared), k_len)]
    return [torch.randn(*s, dim, generator=random) for s in shapes]


class FakePackage:
    """flash-attn's two functions, tensors [1, tokens, heads, head_dim], refusing what the real ones
    refuse."""

    def __init__(self) -> None:
        self.math = evenkeel.Math()

    def _flash_attn_forward(
        self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, causal: bool,
        window_size_left: int, window_size_right: int, softcap: float, alibi_slopes: Optional[Tensor],
        return_softmax: bool,
    ) -> Any:
        window = window_size_left, window_size_right
        self._check(q, k, softmax_scale, dropout_p, softcap, window, alibi_slopes)
        out, lse = self.math.forward(*self._bare(q, k, v), self._shared(q, k), causal)
        return out.transpose(0, 1)[None], lse[None], None, None

    def _flash_attn_backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor,
        dk: Tensor, dv: Tensor, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int,
        window_size_right: int, softcap: float, alibi_slopes: Optional[Tensor], deterministic: bool,
        rng_state: Optional[Tensor] = None,
    ) -> None:
        window = window_size_left, window_size_right
        self._check(q, k, softmax_scale, dropout_p, softcap, window, alibi_slopes)
        assert softmax_lse.is_contiguous() and softmax_lse.dtype == torch.float32
        rest = self._bare(out)[0], softmax_lse[0], self._shared(q, k), causal
        for place, grad in zip((dq, dk, dv), self.math.backward(*self._bare(dout, q, k, v), *rest)):
            place.copy_(grad.transpose(0, 1)[None])

    def _check(self, q: Tensor, k: Tensor, scale: float, *off: Any) -> None:
        assert off == (0.0, 0.0, (-1, -1), None) and scale == 1 / math.sqrt(q.shape[3]), off
        assert q.stride(3) == k.stride(3) == 1 and q.shape[2] % k.shape[2] == 0

    def _bare(self, *tensors: Tensor) -> list[Tensor]:
        return [x[0].transpose(0, 1) for x in tensors]

    def _shared(self, q: Tensor, k: Tensor) -> list[int]:
        return [q.shape[2] // k.shape[2]] * k.shape[2]


class FakeOperators:
    """torch's own pair, tensors [1, heads, tokens, head_dim]."""

    def __init__(self) -> None:
        self.math = evenkeel.Math()

    def _scaled_dot_product_flash_attention(
        self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, is_causal: bool, return_debug_mask: bool, *,
        scale: float,
    ) -> Any:
        assert (dropout_p, return_debug_mask, scale) == (0.0, False, 1 / math.sqrt(q.shape[3]))
        out, lse = self.math.forward(q[0], k[0], v[0], self._shared(q, k), is_causal)
        return out[None], lse[None], None, None, q.shape[2], k.shape[2], "seed", "offset", None

    def _scaled_dot_product_flash_attention_backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, ends_q: None,
        ends_k: None, max_q: int, max_k: int, dropout_p: float, is_causal: bool, seed: str, offset: str, *,
        scale: float,
    ) -> Any:
        assert (ends_q, ends_k, seed, offset, dropout_p) == (None, None, "seed", "offset", 0.0)
        assert (max_q, max_k, scale) == (q.shape[2], k.shape[2], 1 / math.sqrt(q.shape[3]))
        inputs = [x[0] for x in (dout, q, k, v, out, lse)]
        return tuple(g[None] for g in self.math.backward(*inputs, self._shared(q, k), is_causal))

    def _shared(self, q: Tensor, k: Tensor) -> list[int]:
        return [q.shape[1] // k.shape[1]] * k.shape[1]


class FakeCPU:
    """The pair for processors. even: it takes as many query as KV heads only, as its first releases did;
    wrong, wrong_back: its results are not what they should be."""

    def __init__(self, even: bool = False, wrong: bool = False, wrong_back: bool = False) -> None:
        self.math, self._even, self._wrong, self._wrong_back = evenkeel.Math(), even, wrong, wrong_back

    def _scaled_dot_product_flash_attention_for_cpu(
        self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
        attn_mask: Optional[Tensor] = None, scale: Optional[float] = None,
    ) -> Any:
        self._check(q, k, dropout_p, attn_mask, scale)
        out, lse = self.math.forward(q[0], k[0], v[0], self._shared(q, k), is_causal)
        return out[None] * (2 if self._wrong else 1), lse[None]

    def _scaled_dot_product_flash_attention_for_cpu_backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dropout_p: float,
        is_causal: bool, *, attn_mask: Optional[Tensor] = None, scale: Optional[float] = None,
    ) -> Any:
        self._check(q, k, dropout_p, attn_mask, scale)
        assert out.dtype == q.dtype and lse.dtype == torch.float32 and lse.shape == q.shape[:3]
        inputs = [x[0] for x in (dout, q, k, v, out, lse)]
        dq, dk, dv = (g[None] for g in self.math.backward(*inputs, self._shared(q, k), is_causal))
        return dq, dk.flip(1) if self._wrong_back else dk, dv

    def _check(self, q: Tensor, k: Tensor, *rest: Any) -> None:
        assert rest == (0.0, None, 1 / math.sqrt(q.shape[3])) and q.shape[1] % k.shape[1] == 0
        if self._even and q.shape[1] != k.shape[1]:
            raise RuntimeError("Q/K/V should have the same number of heads")

    def _shared(self, q: Tensor, k: Tensor) -> list[int]:
        return [q.shape[1] // k.shape[1]] * k.shape[1]


class FakeCudnn:
    """cuDNN's pair, with the log-sum-exp in either of the shapes that releases have."""

    def __init__(self, one_more: bool) -> None:
        self.math, self._one_more = evenkeel.Math(), one_more

    def _scaled_dot_product_cudnn_attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_bias: None, compute_log_sumexp: bool,
        dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *,
        scale: Optional[float] = None,
    ) -> Any:
        assert (attn_bias, compute_log_sumexp, dropout_p, return_debug_mask) == (None, True, 0.0, False)
        assert scale == 1 / math.sqrt(query.shape[3])
        out, lse = self.math.forward(query[0], key[0], value[0], self._shared(query, key), is_causal)
        lse = lse[None, ..., None] if self._one_more else lse[None]
        return out[None], lse, None, None, query.shape[2], key.shape[2], "seed", "offset", None

    def _scaled_dot_product_cudnn_attention_backward(
        self, grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
        philox_seed: str, philox_offset: str, attn_bias: None, cum_seq_q: None, cum_seq_k: None, max_q: int,
        max_k: int, dropout_p: float, is_causal: bool, *, scale: Optional[float] = None,
    ) -> Any:
        assert (philox_seed, philox_offset, dropout_p) == ("seed", "offset", 0.0)
        assert (max_q, max_k, scale) == (query.shape[2], key.shape[2], 1 / math.sqrt(query.shape[3]))
        assert logsumexp.dim() == (4 if self._one_more else 3) and logsumexp.is_contiguous()
        assert out.dtype == query.dtype
        lse = logsumexp.reshape(query.shape[1:3])
        inputs = [x[0] for x in (grad_out, query, key, value, out)]
        grads = self.math.backward(*inputs, lse, self._shared(query, key), is_causal)
        return tuple(g[None] for g in grads)

    def _shared(self, q: Tensor, k: Tensor) -> list[int]:
        return [q.shape[1] // k.shape[1]] * k.shape[1]


class FakeEfficient:
    """The memory-efficient pair: as many KV as query heads, rows of log-sum-exp in 32s, the rest infinite."""

    def __init__(self) -> None:
        self.math = evenkeel.Math()

    def _scaled_dot_product_efficient_attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_bias: None, compute_log_sumexp: bool,
        dropout_p: float = 0.0, is_causal: bool = False, *, scale: Optional[float] = None,
    ) -> Any:
        assert (attn_bias, compute_log_sumexp, dropout_p) == (None, True, 0.0)
        out, lse = self.math.forward(query[0], key[0], value[0], self._each(query, key, scale), is_causal)
        return out[None], torch.nn.functional.pad(lse[None], (0, -lse.shape[1] % 32)), "seed", "offset"

    def _scaled_dot_product_efficient_attention_backward(
        self, grad_out_: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: None, out: Tensor,
        logsumexp: Tensor, philox_seed: str, philox_offset: str, dropout_p: float,
        grad_input_mask: list[bool], is_causal: bool = False, *, scale: Optional[float] = None,
    ) -> Any:
        assert (attn_bias, philox_seed, philox_offset, dropout_p) == (None, "seed", "offset", 0.0)
        assert grad_input_mask == [True, True, True, False] and out.dtype == query.dtype
        assert out.transpose(1, 2).is_contiguous()
        n = query.shape[2]
        assert logsumexp.shape[2] % 32 == 0 and logsumexp.is_contiguous()
        assert bool((logsumexp[:, :, n:] == math.inf).all())
        inputs = [x[0] for x in (grad_out_, query, key, value, out, logsumexp[:, :, :n])]
        grads = self.math.backward(*inputs, self._each(query, key, scale), is_causal)
        return (*(g[None] for g in grads), None)

    def _each(self, q: Tensor, k: Tensor, scale: Optional[float]) -> list[int]:
        assert q.shape[1] == k.shape[1] and scale == 1 / math.sqrt(q.shape[3])
        return [1] * k.shape[1]


class TestBlocks(unittest.TestCase):
    def kernels(self) -> list[evenkeel.Kernel]:
        small = evenkeel.Math()
        small.scratch_bytes = 4000  # many chunks
        gpu = [evenkeel.FlashAttention2(FakePackage()), evenkeel.TorchFlash(FakeOperators()),
               evenkeel.TorchEfficient(FakeEfficient())]
        return [evenkeel.Math(), small, *gpu, evenkeel.TorchCPU(FakeCPU()),
                *(evenkeel.TorchCudnn(FakeCudnn(more)) for more in (True, False))]

    def test_against_dense(self) -> None:
        for kernel in self.kernels():
            for shared in SHARES:
                for q_len, k_len, causal in ((1, 1, True), (150, 150, True), (40, 90, False), (90, 1, False)):
                    with self.subTest(kernel=kernel.name, shared=shared, q_len=q_len, k_len=k_len):
                        self._block(kernel, shared, block(shared, q_len, k_len), causal)

    def _block(self, kernel: evenkeel.Kernel, shared: Any, tensors: list[Tensor], causal: bool) -> None:
        dout, q, k, v = tensors
        leaves = [x.double().requires_grad_() for x in (q, k, v)]
        want, want_lse = dense(*leaves, shared, causal)
        out, lse = kernel.forward(q, k, v, shared, causal)
        self.assertLess(far(out, want), 1e-6)
        self.assertLess(far(lse, want_lse), 1e-6)
        self.assertEqual((lse.dtype, tuple(lse.shape)), (torch.float32, tuple(q.shape[:2])))
        grads = kernel.backward(dout, q, k, v, out, lse, shared, causal)
        for got, grad, like in zip(grads, torch.autograd.grad(want, leaves, dout.double()), (q, k, v)):
            self.assertEqual(got.shape, like.shape)
            # One key alone has a weight of 1, which does not change: the gradient of scores is zero.
            self.assertLess(float((got.double() - grad).norm()), 1e-5 * max(float(grad.norm()), 1.0))

    def test_global_lse(self) -> None:
        """Blocks merged are the whole, and its lse makes the blocks' gradients add up to the whole's."""
        shared = (3, 1)
        dout, q, k, v = block(shared, 30, 70)
        leaves = [x.double().requires_grad_() for x in (q, k, v)]
        want, want_lse = dense(*leaves, shared, False)
        wants = torch.autograd.grad(want, leaves, dout.double())
        kernel, parts = evenkeel.Math(), (slice(0, 25), slice(25, 26), slice(26, 70))
        out, lse = kernel.forward(q, k[:, parts[0]], v[:, parts[0]], shared, False)
        for p in parts[1:]:
            merge(out, lse, *kernel.forward(q, k[:, p], v[:, p], shared, False))
        self.assertLess(far(out, want), 1e-6)
        self.assertLess(far(lse, want_lse), 1e-6)
        grads = [kernel.backward(dout, q, k[:, p], v[:, p], out, lse, shared, False) for p in parts]
        self.assertLess(far(sum(g[0] for g in grads), wants[0]), 1e-6)
        for side in (1, 2):
            self.assertLess(far(torch.cat([g[side] for g in grads], 1), wants[side]), 1e-6)

    def test_merge_of_far_apart(self) -> None:
        """Weights of 0 and 1 give the block that has them all, and no NaN."""
        for shift in (-200.0, 200.0):
            out, lse = torch.zeros(1, 2, 3), torch.zeros(1, 2)
            merge(out, lse, torch.ones(1, 2, 3), lse + shift)
            self.assertTrue(torch.equal(out, torch.full((1, 2, 3), 1.0 if shift > 0 else 0.0)), shift)
            self.assertTrue(torch.equal(lse, torch.full((1, 2), max(shift, 0.0))))


class TestChoice(unittest.TestCase):
    def choose(self, dtype: torch.dtype, device: str = "cuda", dim: int = 64) -> str:
        like: Any = SimpleNamespace(device=torch.device(device), dtype=dtype, shape=(1, 1, dim))
        return default_kernel(like).name

    def test_on_processors_by_what_is_measured_there(self) -> None:
        """The worker takes torch's kernel where it takes grouped heads and is right, and so does replay."""
        version = mock.patch.object(torch, "__version__", "2.9.1+cpu")
        version.start()
        self.addCleanup(version.stop)
        for fake, want in ((FakeCPU(), True), (FakeCPU(even=True), False), (FakeCPU(wrong=True), False),
                           (FakeCPU(wrong_back=True), False), (SimpleNamespace(), False)):
            self.assertEqual(fused_on_processors(lambda fake=fake: evenkeel.TorchCPU(fake)), want)
        aten = torch.ops.aten
        own = FakeCPU()
        for name in dir(own):
            if name.startswith("_scaled"):
                patched = mock.patch.object(aten, name, getattr(own, name), create=True)
                patched.start()
                self.addCleanup(patched.stop)
        self.addCleanup(fused_on_processors.cache_clear)
        fused_on_processors.cache_clear()
        self.assertEqual(self.choose(torch.float32, "cpu"), "sdpa_cpu")
        self.assertEqual(self.choose(torch.float64, "cpu"), "math")

    def test_grouped_heads_of_releases_that_count_by_query_heads(self) -> None:
        """Before 2.9 the operator would leave its memory: it is given repeated KV heads, and by itself no replay
        takes it."""
        q, k = torch.randn(4, 5, 32), torch.randn(2, 5, 32)
        for version in ("2.8.0", "2.9.0a0+git1", "2.1"):
            with mock.patch.object(torch, "__version__", version):
                self.assertFalse(fused_on_processors(lambda: evenkeel.TorchCPU(FakeCPU())), version)
                kernel = evenkeel.TorchCPU(FakeCPU(even=True))
            out, lse = kernel.forward(q, k, k, (2, 2), True)
            want, want_lse = evenkeel.Math().forward(q, k, k, (2, 2), True)
            wants = evenkeel.Math().backward(q, q, k, k, want, want_lse, (2, 2), True)
            for got, w in zip((out, *kernel.backward(q, q, k, k, out, lse, (2, 2), True)), (want, *wants)):
                self.assertLess(far(got, w), 1e-6)

    def test_by_tensor(self) -> None:
        on_cpu = "sdpa_cpu" if fused_on_processors() else "math"
        self.assertEqual(self.choose(torch.bfloat16, "cpu"), on_cpu)
        self.assertEqual(self.choose(torch.float32), "math")
        self.assertEqual(self.choose(torch.bfloat16, dim=4), "math")
        self.assertEqual(self.choose(torch.bfloat16, dim=264), "math")

    def test_by_what_is_installed(self) -> None:
        package = SimpleNamespace(flash_attn_interface=FakePackage())
        modules = {"flash_attn": package, "flash_attn.flash_attn_interface": package.flash_attn_interface}
        with mock.patch.dict(sys.modules, modules):  # type: ignore
            self.assertEqual(self.choose(torch.bfloat16), "fa2")
        with mock.patch.dict(sys.modules, dict.fromkeys(modules)):  # type: ignore
            fused = hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_backward")
            self.assertEqual(self.choose(torch.float16), "sdpa_flash" if fused else "math")


class TestReleases(unittest.TestCase):
    def test_older_functions_of_the_same_names_are_refused(self) -> None:
        """flash-attn 2.6 has windows of two numbers and eight results, cuDNN's operator of torch 2.4 no
        log-sum-exp on request; replay then says that the kernel is not to be had."""
        def older(q: Any, k: Any, v: Any, dropout_p: float, softmax_scale: float, window_size: Any) -> Any:
            raise AssertionError("is not called")

        package: Any = SimpleNamespace(_flash_attn_forward=older, _flash_attn_backward=older)
        with self.assertRaisesRegex(AttributeError, "older takes no window_size_left: it wants flash-attn 2.7"):
            evenkeel.FlashAttention2(package)
        library = torch.library.Library("evenkeel_older_cudnn", "DEF")
        for name in ("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward"):
            library.define(name + "(Tensor query, Tensor key, Tensor value, float dropout_p=0.0) -> Tensor")
        with self.assertRaisesRegex(AttributeError, "takes no compute_log_sumexp: it wants torch 2.5"):
            evenkeel.TorchCudnn(getattr(torch.ops, "evenkeel_older_cudnn"))
        modules = {"flash_attn": SimpleNamespace(flash_attn_interface=package),
                   "flash_attn.flash_attn_interface": package}
        like: Any = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16, shape=(1, 1, 64))
        with mock.patch.dict(sys.modules, modules):
            self.assertNotEqual(default_kernel(like).name, "fa2")


@unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
class TestGPU(unittest.TestCase):
    def test_half_precision(self) -> None:
        """Whatever kernels are installed, on blocks with and without even shares."""
        for make in (evenkeel.FlashAttention2, evenkeel.TorchFlash, evenkeel.TorchCudnn,
                     evenkeel.TorchEfficient, evenkeel.Math):
            try:
                kernel = make()
            except (ImportError, AttributeError):
                continue
            for shared in SHARES:
                for q_len, k_len, causal in ((150, 150, True), (128, 300, False)):
                    with self.subTest(kernel=kernel.name, shared=shared, causal=causal):
                        self._block(kernel, shared, q_len, k_len, causal)

    def _block(self, kernel: evenkeel.Kernel, shared: Any, q_len: int, k_len: int, causal: bool) -> None:
        dout, q, k, v = (x.to(torch.bfloat16) for x in block(shared, q_len, k_len, 64))
        leaves = [x.double().requires_grad_() for x in (q, k, v)]
        want, want_lse = dense(*leaves, shared, causal)
        on = [x.cuda() for x in (dout, q, k, v)]
        out, lse = kernel.forward(*on[1:], shared, causal)
        self.assertLess(far(out.cpu(), want), 1e-2)
        self.assertLess(far(lse.cpu(), want_lse), 1e-3)
        out = out.contiguous()  # heads first, as the ring keeps it, however the forward writes it
        grads = kernel.backward(*on, out, lse, shared, causal)
        for got, grad in zip(grads, torch.autograd.grad(want, leaves, dout.double())):
            self.assertLess(far(got.cpu(), grad), 1e-2)


if __name__ == "__main__":
    unittest.main()
