"""Tests of what holds for every op: its small shapes, its repeated calls, and that a wrong kernel is caught.

Run by path: python3 -I -B test_ops.py
"""

from __future__ import annotations

import math
import os
import sys
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

# As the worker does, before torch loads its pools of threads: spinning ones slow each other down.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch  # noqa: E402

import faults  # noqa: E402
import ops  # noqa: E402
import reference  # noqa: E402
from attention import Block, block_of  # noqa: E402
from device import Device  # noqa: E402
from errors import Failure  # noqa: E402
from inputs import Inputs  # noqa: E402
from kernels import Kernels  # noqa: E402
from layer import Sizes, sizes_of  # noqa: E402
from service import ops_of  # noqa: E402

ATTENTION = {"q_heads": 8, "kv_heads": 2, "head_dim": 32}
LAYER = {"tokens": 200, "hidden": 128, "ffn": 320, "q_heads": 4, "kv_heads": 2, "head_dim": 32}


def shapes(dtype: str) -> dict[str, list[dict]]:
    """Shapes of every op that a CPU runs, of each variant of one precision."""
    rows = [{"tokens": 640, "width": 1024, "dtype": dtype}]
    blocks = [
        {"mask": m, "q_len": 128, "kv_len": 128, **ATTENTION, **heads, "dtype": dtype}
        for m in ("full", "diag") for heads in ({}, {"kv_heads": 8}, {"kv_heads": 3})
    ]
    packs = [{"seq_lens": [64, 128], **ATTENTION, "dtype": dtype}]
    layers = [{**LAYER, "dtype": dtype}, {**LAYER, "kv_heads": 4, "dtype": dtype}]
    passes = [{"pass": p, "m": 256, "n": 128, "k": 64, "dtype": dtype} for p in ("fwd", "dgrad", "wgrad")]
    return {
        "attn_fwd": blocks, "attn_bwd": blocks, "attn_varlen_fwd": packs, "attn_varlen_bwd": packs,
        "gemm": passes,
        "norm": rows, "rope": rows, "swiglu": rows, "gelu": rows, "ce_chunk": rows,
        "adamw": [{"params": 4096}],
        "lse_merge": [{"tokens": 256, "q_heads": 4, "head_dim": 64}], "layer_fwd": layers,
        "layer_bwd": layers,
    }


class Case(unittest.TestCase):
    def setUp(self):
        torch.set_grad_enabled(False)
        self.cpu = Device("cpu", 2)
        self.kernels = Kernels(self.cpu)
        self.ops = ops_of(self.cpu, self.kernels)

    def every(self, dtype: str = "f32"):
        """(op, shape) of all ops, each as a subtest."""
        for kind, several in shapes(dtype).items():
            for shape in several:
                with self.subTest(kind, **shape):
                    yield self.ops[kind], shape

    def failure(self, cls: str, call) -> str:
        with self.assertRaises(Failure) as caught:
            call()
        self.assertEqual(caught.exception.cls, cls)
        return str(caught.exception)


class EveryOp(Case):
    def test_all_of_a_cpu_are_here(self):
        runnable = {kind for kind, op in self.ops.items() if not op.refusal()}
        self.assertEqual(runnable, set(shapes("f32")))

    def test_the_small_shapes_are_of_the_same_variant_and_odd(self):
        sizes = ("tokens", "q_len", "m", "n", "k", "params")
        for dtype in ("f32", "bf16"):
            for op, shape in self.every(dtype):
                for small in op.odd(shape):
                    self.assertEqual(op.variant(small), op.variant(shape))
                    self.assertEqual([small[s] for s in sizes if s in small and small[s] % 64 == 0], [])

    def test_variants_tell_precisions_passes_and_masks_apart(self):
        for kind, several in shapes("f32").items():
            if kind in ("adamw", "lse_merge"):
                continue  # always float32
            seen = {self.ops[kind].variant(s) for dtype in ("f32", "bf16") for s in shapes(dtype)[kind]}
            self.assertEqual(len(seen), 2 * len(several), seen)

    def test_calls_can_be_repeated(self):
        # Ops in place must neither overflow nor vanish, whatever a point's number of calls.
        for op, shape in self.every():
            bound = op.bind(shape, Inputs(self.cpu, 3))
            for _ in range(40):
                raw = bound.call()
            for name, t in bound.outputs(raw).items():
                self.assertTrue(bool(torch.isfinite(t).all()), name)
                self.assertGreater(float(t.abs().max()), 1e-12, name)

    def test_a_poisoned_output_is_never_timed(self):
        for op, shape in self.every():
            faults._seen.clear()
            with mock.patch.dict(os.environ, {"EVENKEEL_FAULT": f"nan:{op.kind}"}):
                text = self.failure("wrong", lambda: op.check(op.odd(shape)[0], 1))
            self.assertIn("relative error inf against the float64 reference", text)

    def test_an_error_of_a_percent_is_caught(self):
        for op, shape in self.every():
            small = op.odd(shape)[0]
            bind = op.bind

            def scaled(*args, bind=bind):
                bound = bind(*args)
                outputs = bound.outputs
                bound.outputs = lambda raw: {n: t * 1.01 for n, t in outputs(raw).items()}
                return bound

            with mock.patch.object(op, "bind", scaled):
                self.failure("wrong", lambda: op.check(small, 1))

    def test_inputs_are_counted(self):
        for op, shape in self.every():
            inputs = Inputs(self.cpu, 3)
            bound = op.bind(shape, inputs)
            outputs = bound.outputs(bound.call())
            least = sum(t.numel() * t.element_size() for t in outputs.values())
            self.assertGreaterEqual(inputs.bytes, least if op.kind != "layer_fwd" else 1)

    def test_the_same_seed_gives_the_same_results(self):
        for op, shape in self.every():
            results = []
            for seed in (5, 5, 6):
                bound = op.bind(shape, Inputs(self.cpu, seed))
                results.append([t.clone() for t in bound.outputs(bound.call()).values()])
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(results[0], results[1])))
            self.assertFalse(all(torch.equal(a, b) for a, b in zip(results[0], results[2])))

    def test_precisions_a_cpu_lacks_are_refused(self):
        for op, shape in self.every():
            if "dtype" in shape:
                text = self.failure(
                    "unsupported", lambda: op.bind({**shape, "dtype": "fp8"}, Inputs(self.cpu, 1))
                )
                self.assertIn("fp8", text)


class Definitions(Case):
    """What an op computes, by an example that can be followed by hand."""

    def result(self, kind: str, shape: dict) -> tuple[dict, dict]:
        bound = self.ops[kind].bind(shape, Inputs(self.cpu, 1))
        want = bound.expected()
        return bound.outputs(bound.call()), want

    def test_gemm_passes_have_the_shapes_of_a_linear_layer(self):
        for which, want in (("fwd", (3, 5)), ("dgrad", (3, 7)), ("wgrad", (7, 5))):
            got, _ = self.result("gemm", {"pass": which, "m": 3, "n": 5, "k": 7, "dtype": "f32"})
            self.assertEqual(tuple(got["c"].shape), want)

    def test_cross_entropy_gradients_sum_to_nothing_and_losses_are_about_log_v(self):
        got, _ = self.result("ce_chunk", {"tokens": 400, "width": 1000, "dtype": "f32"})
        self.assertLess(float(got["grad"].sum(1).abs().max()), 1e-5)
        # E[logsumexp - logit] of standard normal logits is log(V) + 1/2.
        self.assertAlmostEqual(float(got["loss"].mean()), math.log(1000) + 0.5, delta=0.3)
        self.assertLess(float(got["grad"][3, 3]), -0.5)  # token 3's target

    def test_rope_keeps_the_length_of_every_pair(self):
        inputs = Inputs(self.cpu, 1)
        bound = self.ops["rope"].bind({"tokens": 50, "width": 128, "dtype": "f32"}, inputs)
        before = bound.expected()["y"]
        after = bound.outputs(bound.call())["y"]
        a, b = (t.double().view(50, 2, 2, 32).norm(dim=2) for t in (before, after))
        self.assertLess(reference.rel_err(b, a), 1e-6)
        self.assertEqual(tuple(after.shape), (50, 2, ops.HEAD_DIM))

    def test_angles_of_the_first_token_are_zero(self):
        cos, sin = ops.angles(3, 8, Inputs(self.cpu, 1), torch.float32)
        self.assertEqual((cos[0].tolist(), sin[0].tolist()), ([1.0] * 4, [0.0] * 4))
        self.assertAlmostEqual(float(cos[2, 1]), math.cos(2 * 10000 ** -0.25), places=6)

    def test_adamw_moves_against_the_moments(self):
        p, m, v, g = (torch.tensor([x]) for x in (1.0, 0.5, 4.0, 0.5))
        want, _, _ = reference.adamw(p, m, v, g)
        # The first moment stays 0.5, the second becomes 0.95 * 4 + 0.05 * 0.25; step 1000 corrects nothing.
        by_hand = 1 - 1e-4 * (0.5 / (math.sqrt(3.8125) + 1e-8) + 0.1)
        self.assertAlmostEqual(float(want), by_hand, places=9)

    def test_a_causal_block_of_one_token_copies_its_value(self):
        q, v = torch.randn(1, 2, 4), torch.randn(1, 2, 4)
        out, lse = reference.attention(q, q, v, [(0, 1, 0, 1, True)])
        self.assertLess(reference.rel_err(out, v), 1e-12)
        self.assertLess(reference.rel_err(lse[:, 0], (q * q).sum(2)[0] / 2), 1e-6)


class Blocks(Case):
    def test_documents_are_squares_one_after_the_other(self):
        b = block_of("attn_varlen_fwd", {"seq_lens": [3, 5], **ATTENTION, "dtype": "f32"})
        self.assertEqual((b.q_len, b.kv_len), (8, 8))
        self.assertEqual(b.parts(), [(0, 3, 0, 3, True), (3, 8, 3, 8, True)])

    def test_heads_are_shared_as_the_planner_counts_them(self):
        # Query head h reads KV head floor(h * kv_heads / q_heads).
        for q_heads, kv_heads, want in (
            (4, 2, [(0, 0, 2), (1, 2, 4)]), (5, 2, [(0, 0, 3), (1, 3, 5)]),
            (3, 3, [(0, 0, 1), (1, 1, 2), (2, 2, 3)]),
            (8, 1, [(0, 0, 8)]),
        ):
            self.assertEqual(Block(1, 1, q_heads, kv_heads, 8, "f32", False).heads(), want)

    def test_no_causal_rectangle_exists(self):
        shape = {"mask": "diag", "q_len": 4, "kv_len": 8, **ATTENTION, "dtype": "f32"}
        self.assertIn("square", self.failure("internal", lambda: block_of("attn_fwd", shape)))
        self.assertIn(
            "shape.mask", self.failure("internal", lambda: block_of("attn_fwd", {**shape, "mask": "causal"}))
        )

    def test_a_wish_that_cannot_be_met_gives_the_reason_and_none_gives_all(self):
        b = Block(8, 8, 4, 2, 64, "f32", False)
        self.assertEqual(self.kernels.pick("attn_fwd", b, None).name, "cpu")
        self.assertIn(
            "fa2 needs", self.failure("unsupported", lambda: self.kernels.pick("attn_fwd", b, "fa2"))
        )
        self.kernels.by_name["cpu"].why = "gone fishing"
        text = self.failure("unsupported", lambda: self.kernels.pick("attn_fwd", b, None))
        for name in self.kernels.by_name:
            self.assertIn(name, text)
        self.assertIn("cpu gone fishing", text)
        self.assertFalse(self.kernels.has("attn_fwd"))
        self.assertEqual(self.kernels.default(), "")

    def test_cudnn_goes_first_from_hopper_on(self):
        for capability, first in (((8, 0), "sdpa_flash"), ((9, 0), "sdpa_cudnn"), ((10, 0), "sdpa_cudnn")):
            self.cpu.capability = capability
            self.assertEqual(Kernels(self.cpu)._order[1], first)

    def test_sizes_of_a_layer(self):
        s = sizes_of({**LAYER, "dtype": "bf16"})
        self.assertEqual(s, Sizes(200, 128, 320, 4, 2, 32, "bf16"))
        self.assertTrue(s.block.causal)
        # q, k and v in one product; gate and up in another.
        self.assertEqual((s.weights()["qkv"], s.weights()["gate_up"]), ((128, 8 * 32), (128, 640)))
        self.assertIn("shape.ffn", self.failure("internal", lambda: sizes_of({**LAYER, "ffn": 0})))


if __name__ == "__main__":
    unittest.main()
