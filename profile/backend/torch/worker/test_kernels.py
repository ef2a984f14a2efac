"""Tests of the kernels that this machine may not have, against stand-ins with their published signatures.

Run by path: python3 -I -B test_kernels.py
"""

from __future__ import annotations

import os
import sys
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402

import attention_aten as aten  # noqa: E402
import attention_packages  # noqa: E402
import reference  # noqa: E402
from attention import Block, Explicit, Saved  # noqa: E402
from attention_ops import Attention  # noqa: E402
from binding import Callee  # noqa: E402
from device import Device  # noqa: E402
from errors import Failure  # noqa: E402
from kernels import FusedCPU, Kernels  # noqa: E402

SEED = torch.tensor(7)  # what a stand-in's forward leaves for its backward
OFFSET = torch.tensor(8)


def rows(x: torch.Tensor) -> torch.Tensor:
    """[1, heads, tokens, dim] as [tokens, heads, dim]."""
    return x[0].transpose(0, 1)


def stand_in_forward(query, key, value, causal, scale):
    """What a fused operator computes, in the precision of its inputs."""
    assert abs(scale - query.shape[-1] ** -0.5) < 1e-12
    q, k, v = rows(query), rows(key), rows(value)
    out, lse = reference.attention(q, k, v, [(0, len(q), 0, len(k), causal)])
    return out.transpose(0, 1)[None].to(query.dtype), lse[None].float()


def stand_in_backward(grad_out, query, key, value, out, lse, causal):
    q, k, v, o, do = (rows(t) for t in (query, key, value, out, grad_out))
    grads = reference.attention_backward(q, k, v, o, lse, do, [(0, len(q), 0, len(k), causal)])
    return tuple(g.transpose(0, 1)[None].to(query.dtype) for g in grads)


FORWARD = "Tensor query, Tensor key, Tensor value"
MORE = "Tensor cum_seq_q, Tensor cum_seq_k, int max_q, int max_k"

# Signatures as PyTorch 2.6 to 2.10 publish them (native_functions.yaml).
SAVED = "Tensor out, Tensor logsumexp"
STATE = "Tensor philox_seed, Tensor philox_offset"
SCALE = "*, float? scale=None"
GRADS = "(Tensor grad_query, Tensor grad_key, Tensor grad_value)"
WINDOW = "int? window_size_left=None, int? window_size_right=None"
SCHEMAS = {
    "_scaled_dot_product_flash_attention":
        f"({FORWARD}, float dropout_p=0.0, bool is_causal=False, bool return_debug_mask=False, {SCALE}) -> "
        f"(Tensor output, Tensor logsumexp, {MORE}, Tensor rng_state, Tensor unused, Tensor debug_attn_mask)",
    "_scaled_dot_product_flash_attention_backward":
        f"(Tensor grad_out, {FORWARD}, {SAVED}, {MORE}, float dropout_p, bool is_causal, {STATE}, {SCALE}) "
        f"-> {GRADS}",
    "_scaled_dot_product_cudnn_attention":
        f"({FORWARD}, Tensor? attn_bias, bool compute_log_sumexp, float dropout_p=0.0, bool is_causal=False, "
        f"bool return_debug_mask=False, {SCALE}) -> "
        f"(Tensor output, Tensor logsumexp, {MORE}, {STATE}, Tensor debug_attn_mask)",
    "_scaled_dot_product_cudnn_attention_backward":
        f"(Tensor grad_out, {FORWARD}, {SAVED}, {STATE}, Tensor attn_bias, {MORE}, float dropout_p, "
        f"bool is_causal, {SCALE}) -> (Tensor, Tensor, Tensor)",
    "_scaled_dot_product_efficient_attention":
        f"({FORWARD}, Tensor? attn_bias, bool compute_log_sumexp, float dropout_p=0.0, bool is_causal=False, "
        f"{SCALE}) -> (Tensor output, Tensor log_sumexp, {STATE})",
    "_scaled_dot_product_efficient_attention_backward":
        f"(Tensor grad_out_, {FORWARD}, Tensor attn_bias, {SAVED}, {STATE}, float dropout_p, "
        f"bool[4] grad_input_mask, bool is_causal=False, {SCALE}) -> (Tensor, Tensor, Tensor, Tensor)",
    "_scaled_dot_product_flash_attention_for_cpu":
        f"({FORWARD}, float dropout_p=0.0, bool is_causal=False, *, Tensor? attn_mask=None, "
        "float? scale=None) -> (Tensor output, Tensor logsumexp)",
    "_scaled_dot_product_flash_attention_for_cpu_backward":
        f"(Tensor grad_out, {FORWARD}, {SAVED}, float dropout_p, bool is_causal, *, "
        f"Tensor? attn_mask=None, float? scale=None) -> {GRADS}",
    "_flash_attention_forward":
        f"({FORWARD}, Tensor? cum_seq_q, Tensor? cum_seq_k, int max_q, int max_k, float dropout_p, "
        f"bool is_causal, bool return_debug_mask, {SCALE}, {WINDOW}, Tensor? seqused_k=None, "
        "Tensor? alibi_slopes=None) -> (Tensor output, Tensor softmax_logsumexp, Tensor rng_state, "
        "Tensor unused, Tensor debug_attn_mask)",
    "_flash_attention_backward":
        f"(Tensor grad_out, {FORWARD}, {SAVED}, {MORE}, float dropout_p, bool is_causal, Tensor rng_state, "
        f"Tensor unused, {SCALE}, {WINDOW}) -> (Tensor, Tensor, Tensor)",
}

NONE = torch.empty(0)


def flash(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, scale=None):
    assert dropout_p == 0 and not return_debug_mask
    out, lse = stand_in_forward(query, key, value, is_causal, scale)
    return out, lse, NONE, NONE, query.shape[2], key.shape[2], SEED, OFFSET, NONE


def flash_backward(
    grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
    philox_seed, philox_offset, scale=None,
):
    assert (int(philox_seed), int(philox_offset), max_q, max_k) == (7, 8, query.shape[2], key.shape[2])
    return stand_in_backward(grad_out, query, key, value, out, logsumexp[0], is_causal)


def cudnn(
    query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, return_debug_mask=False,
    scale=None
):
    assert compute_log_sumexp and attn_bias is None
    out, lse = stand_in_forward(query, key, value, is_causal, scale)
    return out, lse[..., None], NONE, NONE, query.shape[2], key.shape[2], SEED, OFFSET, NONE


def cudnn_backward(
    grad_out, query, key, value, out, logsumexp, philox_seed, philox_offset, attn_bias, cum_seq_q, cum_seq_k,
    max_q,
    max_k, dropout_p, is_causal, scale=None,
):
    assert (int(philox_seed), int(philox_offset), max_k) == (7, 8, key.shape[2])
    return stand_in_backward(grad_out, query, key, value, out, logsumexp[0, ..., 0], is_causal)


def efficient(query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, scale=None):
    out, lse = stand_in_forward(query, key, value, is_causal, scale)
    padding = -lse.shape[2] % 32
    return out, torch.nn.functional.pad(lse, (0, padding), value=float("inf")), SEED, OFFSET


def efficient_backward(
    grad_out_, query, key, value, attn_bias, out, logsumexp, philox_seed, philox_offset, dropout_p,
    grad_input_mask,
    is_causal=False, scale=None,
):
    assert logsumexp.shape[2] % 32 == 0 and list(grad_input_mask) == [True, True, True, False]
    lse = logsumexp[0, :, : query.shape[2]]
    return (*stand_in_backward(grad_out_, query, key, value, out, lse, is_causal), NONE)


def for_cpu(query, key, value, dropout_p=0.0, is_causal=False, attn_mask=None, scale=None):
    return stand_in_forward(query, key, value, is_causal, scale)


def for_cpu_backward(
    grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask=None, scale=None
):
    return stand_in_backward(grad_out, query, key, value, out, logsumexp[0], is_causal)


def parts(cu_q, cu_k, causal):
    q, k = cu_q.tolist(), cu_k.tolist()
    return [(q[i], q[i + 1], k[i], k[i + 1], causal) for i in range(len(q) - 1)]


def packed(
    query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask,
    scale=None,
    window_size_left=None, window_size_right=None, seqused_k=None, alibi_slopes=None,
):
    spans = parts(cum_seq_q, cum_seq_k, is_causal)
    assert max_q == max(s[1] - s[0] for s in spans) and max_k == max(s[3] - s[2] for s in spans)
    out, lse = reference.attention(query, key, value, spans)
    return out.to(query.dtype), lse.float(), SEED, OFFSET, NONE


def packed_backward(
    grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
    rng_state,
    unused, scale=None, window_size_left=None, window_size_right=None,
):
    assert (int(rng_state), int(unused)) == (7, 8)
    spans = parts(cum_seq_q, cum_seq_k, is_causal)
    grads = reference.attention_backward(query, key, value, out, logsumexp, grad_out, spans)
    return tuple(g.to(query.dtype) for g in grads)


FUNCTIONS = {
    "_scaled_dot_product_flash_attention": flash,
    "_scaled_dot_product_flash_attention_backward": flash_backward,
    "_scaled_dot_product_cudnn_attention": cudnn,
    "_scaled_dot_product_cudnn_attention_backward": cudnn_backward,
    "_scaled_dot_product_efficient_attention": efficient,
    "_scaled_dot_product_efficient_attention_backward": efficient_backward,
    "_scaled_dot_product_flash_attention_for_cpu": for_cpu,
    "_scaled_dot_product_flash_attention_for_cpu_backward": for_cpu_backward,
    "_flash_attention_forward": packed, "_flash_attention_backward": packed_backward,
}


def operators(library: str, **instead) -> object:
    """A namespace of registered stand-in operators, some replaced."""
    lib = torch.library.Library(library, "DEF")
    operators.kept = getattr(operators, "kept", []) + [lib]  # they vanish with their library
    for name, schema in SCHEMAS.items():
        lib.define(name + schema)
        lib.impl(name, instead.get(name, FUNCTIONS[name]), "CPU")
    return getattr(torch.ops, library)


OPERATORS = operators("evenkeel_stand_in")


def accelerator() -> Device:
    """A CPU that passes for an accelerator when a kernel asks whether it can run."""
    device = Device("cpu", 2)
    device.kind, device.capability = "cuda", (9, 0)
    device.dtype = {"f32": torch.float32, "bf16": torch.bfloat16}.__getitem__
    device.free_bytes, device.sync = (lambda: 1 << 40), (lambda: None)
    return device


def shape(mask: str, heads: tuple, dtype: str = "bf16") -> dict:
    kv = 37 if mask == "diag" else 53
    return {
        "mask": mask, "q_len": 37, "kv_len": kv, "q_heads": heads[0], "kv_heads": heads[1], "head_dim": 64,
        "dtype": dtype
    }


def documents(heads: tuple) -> dict:
    return {
        "seq_lens": [5, 1, 30], "q_heads": heads[0], "kv_heads": heads[1], "head_dim": 64, "dtype": "bf16"
    }


class Case(unittest.TestCase):
    def setUp(self):
        torch.set_grad_enabled(False)

    def right(self, kernel, heads: tuple = (6, 2), varlen: bool = False) -> None:
        """Every op of a kernel at small shapes, through the same code that measures."""
        self.assertEqual(kernel.why, "")
        kernels = Kernels(Device("cpu", 2))
        kernels.by_name = {kernel.name: kernel}
        cases = [(op, shape(mask, heads)) for op in ("attn_fwd", "attn_bwd") for mask in ("full", "diag")]
        if varlen:
            cases += [(op, documents(heads)) for op in ("attn_varlen_fwd", "attn_varlen_bwd")]
        for op, s in cases:
            with self.subTest(op=op, shape=s):
                attention = Attention(kernels, op)
                self.assertLess(attention.check({**s, "kernel": kernel.name}, 5), 1e-2)


class Operators(Case):
    def test_all_pairs(self):
        for spec in aten.OPERATORS:
            kernel = aten.Aten(accelerator(), spec, OPERATORS)
            self.right(kernel, (6, 2) if kernel.native_gqa else (3, 3))
            self.assertIn("Tensor query", kernel.describe()["schema"])
        self.right(aten.Packed(accelerator(), namespace=OPERATORS), varlen=True)

    def test_older_names_of_the_random_state(self):
        older = SCHEMAS["_scaled_dot_product_flash_attention"].replace("rng_state", "philox_seed")
        lib = torch.library.Library("evenkeel_older", "DEF")
        for name, schema in (
            ("_scaled_dot_product_flash_attention", older.replace("unused", "philox_offset")),
            ("_scaled_dot_product_flash_attention_backward", SCHEMAS[
                "_scaled_dot_product_flash_attention_backward"
            ]),
        ):
            lib.define(name + schema)
            lib.impl(name, FUNCTIONS[name], "CPU")
        self.right(aten.Aten(accelerator(), aten.OPERATORS[0], torch.ops.evenkeel_older))

    def test_refusals_say_what_is_needed(self):
        missing = types.SimpleNamespace()
        why = aten.Aten(accelerator(), aten.OPERATORS[1], missing).why
        self.assertEqual(why, f"needs torch >= 2.5, this is {torch.__version__}")
        self.assertIn("needs an accelerator", aten.Aten(Device("cpu", 2), aten.OPERATORS[0], OPERATORS).why)
        old = accelerator()
        old.capability = (7, 5)
        self.assertIn("compute capability 8.0, this is 7.5", aten.Aten(old, aten.OPERATORS[0], OPERATORS).why)
        block = Block(8, 8, 4, 2, 64, "bf16", False)
        efficient_kernel = aten.Aten(accelerator(), aten.OPERATORS[2], OPERATORS)
        self.assertIn("2 for 4", efficient_kernel.refusal("attn_fwd", block))
        flash_kernel = aten.Aten(accelerator(), aten.OPERATORS[0], OPERATORS)
        self.assertIn("has no attn_varlen_fwd", flash_kernel.refusal("attn_varlen_fwd", block))
        self.assertIn("not f32", flash_kernel.refusal("attn_fwd", Block(8, 8, 4, 2, 64, "f32", False)))
        self.assertIn("multiple", flash_kernel.refusal("attn_fwd", Block(8, 8, 5, 2, 64, "bf16", False)))

    def test_an_operator_that_recomputes_its_own_statistics_is_caught(self):
        def local(grad_out, query, key, value, out, logsumexp, *rest, scale=None):
            own, lse = stand_in_forward(query, key, value, rest[5], query.shape[-1] ** -0.5)
            return stand_in_backward(grad_out, query, key, value, own, lse[0], rest[5])

        wrong = operators("evenkeel_local", _scaled_dot_product_flash_attention_backward=local)
        self.caught(wrong, "attn_bwd", shape("full", (4, 4)))

    def test_a_mask_aligned_to_the_other_corner_or_left_out_is_caught(self):
        def unmasked(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, scale=None):
            return flash(query, key, value, dropout_p, False, return_debug_mask, scale)

        self.caught(operators(
            "evenkeel_unmasked", _scaled_dot_product_flash_attention=unmasked
        ), "attn_fwd", shape("diag", (4, 4)))

    def caught(self, namespace, op: str, s: dict) -> None:
        kernels = Kernels(Device("cpu", 2))
        kernels.by_name = {"sdpa_flash": aten.Aten(accelerator(), aten.OPERATORS[0], namespace)}
        with self.assertRaises(Failure) as caught:
            Attention(kernels, op).check({**s, "kernel": "sdpa_flash"}, 5)
        self.assertEqual(caught.exception.cls, "wrong")


class FusedOnCPU(Case):
    def test_it_replaces_the_explicit_kernel_when_it_takes_groups(self):
        self.right(FusedCPU(Device("cpu", 2), OPERATORS), varlen=True)

    def test_it_is_left_alone_when_it_does_not(self):
        def equal_heads(query, key, value, dropout_p=0.0, is_causal=False, attn_mask=None, scale=None):
            if query.shape[1] != key.shape[1]:
                raise RuntimeError("expected equal heads")
            return for_cpu(query, key, value, dropout_p, is_causal, attn_mask, scale)

        def wrong_groups(query, key, value, dropout_p=0.0, is_causal=False, attn_mask=None, scale=None):
            out, lse = for_cpu(query, key, value, dropout_p, is_causal, attn_mask, scale)
            return out.flip(1), lse

        name = "_scaled_dot_product_flash_attention_for_cpu"
        self.assertIn("expected equal heads", FusedCPU(
            Device("cpu", 2), operators("evenkeel_equal", **{name: equal_heads})
        ).why)
        self.assertIn(
            "wrongly", FusedCPU(Device("cpu", 2), operators("evenkeel_flip", **{name: wrong_groups})).why
        )

    def test_wrong_gradients_of_right_shapes_are_seen(self):
        def wrong_back(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask=None, scale=None):
            dq, dk, dv = for_cpu_backward(
                grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask, scale)
            return dq, dk.flip(1), dv

        name = "_scaled_dot_product_flash_attention_for_cpu_backward"
        self.assertIn(
            "wrongly", FusedCPU(Device("cpu", 2), operators("evenkeel_back", **{name: wrong_back})).why
        )

    def test_a_release_that_counts_by_query_heads_is_never_called(self):
        def never(*_, **__):
            raise AssertionError("called")

        name = "_scaled_dot_product_flash_attention_for_cpu"
        ops = types.SimpleNamespace(aten=operators("evenkeel_never", **{name: never}))
        for version, said in (("2.8.0+cpu", "needs torch >= 2.9"), ("2.9.0a0+git1", "needs torch >= 2.9"),
                              ("2.9.0", "called")):
            with mock.patch.object(torch, "ops", ops), mock.patch.object(torch, "__version__", version):
                self.assertIn(said, FusedCPU(Device("cpu", 2)).why)

    def test_the_explicit_kernel_cuts_rows_without_changing_a_result(self):
        kernel, block = Explicit(Device("cpu", 2), ["f32"]), Block(300, 300, 4, 2, 16, "f32", True)
        q, k, v, dout = (torch.randn(300, heads, 16) for heads in (4, 2, 2, 4))
        self.assertGreater(len(kernel._chunks(block, block.parts()[0], 2)), 3)
        out, lse = reference.attention(q, k, v, block.parts())
        saved = kernel.bind_forward(block, q, k, v)()
        self.assertLess(reference.rel_err(saved.out, out), 1e-6)
        grads = kernel.bind_backward(block, q, k, v, Saved(saved.out, saved.lse, {}), dout)()
        for got, want in zip(grads, reference.attention_backward(q, k, v, out, lse, dout, block.parts())):
            self.assertLess(reference.rel_err(got, want), 1e-6)


def fa2_module() -> types.ModuleType:
    """flash_attn.flash_attn_interface with the signatures of flash-attn 2.8."""
    m = types.ModuleType("flash_attn.flash_attn_interface")

    def _flash_attn_forward(
        q, k, v, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int,
        window_size_right: int,
        softcap: float, alibi_slopes, return_softmax: bool,
    ):
        assert (
            window_size_left, softcap, alibi_slopes
        ) == (-1, 0.0, None) and abs(softmax_scale - q.shape[-1] ** -0.5) < 1e-12
        out, lse = reference.attention(q[0], k[0], v[0], [(0, q.shape[1], 0, k.shape[1], causal)])
        return out[None].to(q.dtype), lse[None].float(), None, SEED

    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p: float, softmax_scale: float, causal: bool,
        window_size_left: int, window_size_right: int, softcap: float, alibi_slopes, deterministic: bool,
        rng_state=None,
    ):
        assert int(rng_state) == 7 and not deterministic
        spans = [(0, q.shape[1], 0, k.shape[1], causal)]
        grads = reference.attention_backward(q[0], k[0], v[0], out[0], softmax_lse[0], dout[0], spans)
        for room, grad in zip((dq, dk, dv), grads):
            room.copy_(grad[None])

    def _flash_attn_varlen_forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float,
        softmax_scale: float, causal: bool, window_size_left: int = -1, window_size_right: int = -1,
    ):
        out, lse = reference.attention(q, k, v, parts(cu_seqlens_q, cu_seqlens_k, causal))
        return out.to(q.dtype), lse.float(), None, SEED

    def _flash_attn_varlen_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q: int,
        max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool, rng_state=None,
    ):
        spans = parts(cu_seqlens_q, cu_seqlens_k, causal)
        for room, grad in zip(
            (dq, dk, dv), reference.attention_backward(q, k, v, out, softmax_lse, dout, spans)
        ):
            room.copy_(grad)

    for f in (
        _flash_attn_forward, _flash_attn_backward, _flash_attn_varlen_forward, _flash_attn_varlen_backward
    ):
        setattr(m, f.__name__, f)
    return m


def fa3_module() -> types.ModuleType:
    """flash_attn_interface as of Dao-AILab/flash-attention@c082294, hopper/flash_attn_interface.py: no argument
    has a type, and few have a default."""
    m = types.ModuleType("flash_attn_interface")

    def spans(q, k, cu_seqlens_q, cu_seqlens_k, causal):
        if cu_seqlens_q is None:
            return [(0, q.shape[-3], 0, k.shape[-3], causal)]
        return parts(cu_seqlens_q, cu_seqlens_k, causal)

    def flat(*tensors):
        return [t.reshape(-1, *t.shape[-2:]) for t in tensors]

    def _flash_attn_forward(
        q, k, v, k_new, v_new, qv, out, cu_seqlens_q, cu_seqlens_k, cu_seqlens_k_new, seqused_q, seqused_k,
        max_seqlen_q, max_seqlen_k, page_table, kv_batch_idx, leftpad_k, rotary_cos, rotary_sin,
        seqlens_rotary, q_descale, k_descale, v_descale, softmax_scale, causal, window_size=(-1, -1), attention_chunk=0, softcap=0.0,
        rotary_interleaved=True, scheduler_metadata=None, num_splits=1, pack_gqa=None, sm_margin=0,
    ):
        got, lse = reference.attention(*flat(q, k, v), spans(q, k, cu_seqlens_q, cu_seqlens_k, causal))
        return got.view_as(q).to(q.dtype), lse.float() if q.dim() == 3 else lse.float()[None], None

    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, sequed_q, sequed_k, max_seqlen_q,
        max_seqlen_k, dq, dk, dv, softmax_scale, causal, window_size=(-1, -1), softcap=0.0, deterministic=False, sm_margin=0,
    ):
        lse = softmax_lse.reshape(q.shape[-2], -1)
        span = spans(q, k, cu_seqlens_q, cu_seqlens_k, causal)
        q, k, v, out, dout = flat(q, k, v, out, dout)
        for room, grad in zip((dq, dk, dv), reference.attention_backward(q, k, v, out, lse, dout, span)):
            room.copy_(grad.view_as(room))

    m._flash_attn_forward, m._flash_attn_backward = _flash_attn_forward, _flash_attn_backward
    return m


def differentiable(q, k, v, causal: bool) -> tuple:
    """Attention of [1, tokens, heads, dim] by autograd, and its log-sum-exp."""
    group = q.shape[2] // k.shape[2]
    k, v = (t[0].repeat_interleave(group, 1).float() for t in (k, v))
    s = torch.einsum("qhd,khd->hqk", q[0].float(), k) * q.shape[-1] ** -0.5
    if causal:
        s = s.masked_fill(torch.ones(s.shape[1:]).triu(1).bool(), -float("inf"))
    out = torch.einsum("hqk,khd->qhd", s.softmax(-1), v)[None].to(q.dtype)
    return out, s.logsumexp(-1)[None]


def flash4(q, k, v, softmax_scale=None, causal=False, return_lse=False):
    assert return_lse
    return differentiable(q, k, v, causal)


class Packages(Case):
    def install(self, name: str, module: types.ModuleType) -> None:
        sys.modules[name] = module
        self.addCleanup(sys.modules.pop, name)

    def test_flash_attn_2(self):
        self.install("flash_attn.flash_attn_interface", fa2_module())
        kernel = attention_packages.packages(accelerator())[0]
        self.right(kernel, varlen=True)
        self.assertIn("softmax_scale", kernel.schema)

    def test_flash_attn_4_and_transformer_engine_through_autograd(self):
        cute = types.ModuleType("flash_attn.cute")
        cute.flash_attn_func = flash4
        engine = types.ModuleType("transformer_engine.pytorch")

        class DotProductAttention:
            def __init__(
                self, heads, dim, num_gqa_groups, attention_dropout, qkv_format, attn_mask_type, softmax_scale
            ):
                assert qkv_format == "bshd"
                self.causal = attn_mask_type == "causal"

            def __call__(self, q, k, v):
                return differentiable(q, k, v, self.causal)[0].flatten(2)

        engine.DotProductAttention = DotProductAttention
        self.install("flash_attn.cute", cute)
        self.install("transformer_engine.pytorch", engine)
        _, _, fa4, te = attention_packages.packages(accelerator())
        self.right(fa4)
        self.right(te)
        self.repeats(fa4)

    def repeats(self, kernel) -> None:
        """A backward that is called again gives the same gradients, not their sum."""
        block = Block(9, 9, 2, 1, 16, "f32", True)
        q, k, v, dout = (torch.randn(9, heads, 16) for heads in (2, 1, 1, 2))
        call = kernel.bind_backward(block, q, k, v, kernel.bind_forward(block, q, k, v)(), dout)
        first = [g.clone() for g in call()]
        for got, want in zip(call(), first):
            self.assertTrue(torch.equal(got, want))

    def test_flash_attn_3_takes_packed_sequences_through_the_same_function(self):
        self.install("flash_attn_interface", fa3_module())
        self.right(attention_packages.packages(accelerator())[1], varlen=True)

    def test_reasons(self):
        for kernel in attention_packages.packages(accelerator()):
            self.assertTrue(kernel.why.startswith("no module "), kernel.why)
        self.install("flash_attn_interface", types.ModuleType("flash_attn_interface"))
        self.assertIn("does not load: AttributeError", attention_packages.packages(accelerator())[1].why)
        self.assertIn("accelerator", attention_packages.packages(Device("cpu", 2))[0].why)


class Binding(Case):
    def test_an_unknown_argument_without_default_is_named(self):
        def later(query, sparsity: float, gate=None):
            return query

        with self.assertRaises(Failure) as caught:
            Callee(later).bind({"query": 1, "key": 2})
        self.assertEqual(caught.exception.cls, "unsupported")
        self.assertIn("wants sparsity", str(caught.exception))
        self.assertEqual(Callee(later).bind({"query": 1, "sparsity": 0.5, "key": 2})(), 1)

    def test_optional_arguments_become_none_and_defaults_stay(self):
        seen = {}

        def call(a, b: "torch.Tensor | None", c=3):
            seen.update(a=a, b=b, c=c)

        Callee(call).bind({"a": 1})()
        self.assertEqual(seen, {"a": 1, "b": None, "c": 3})

    def test_results_have_the_names_of_the_schema(self):
        callee = Callee(OPERATORS._scaled_dot_product_efficient_attention)
        self.assertEqual(
            list(callee.results((1, 2, 3, 4))), ["output", "log_sumexp", "philox_seed", "philox_offset"]
        )


if __name__ == "__main__":
    unittest.main()
