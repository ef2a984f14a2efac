"""Tests of the memory that row-wise ops share.

Run by path: python3 -I -B test_pool.py
"""

from __future__ import annotations

import os
import sys
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

# As the worker does, before torch loads its pools of threads: spinning ones slow each other down.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch  # noqa: E402

import ops  # noqa: E402
import pool  # noqa: E402
from device import Device  # noqa: E402
from errors import Failure  # noqa: E402
from kernels import Kernels  # noqa: E402
from sampling import Prepared  # noqa: E402
from service import Service, ops_of  # noqa: E402

ROWS = {"tokens": 40, "width": 192}
SHAPES = {
    **{kind: {**ROWS, "dtype": "f32"} for kind in ("norm", "rope", "swiglu", "gelu", "ce_chunk")},
    "adamw": {"params": 5001}, "lse_merge": {"tokens": 37, "q_heads": 3, "head_dim": 64},
}
CACHE = 1 << 17


class Case(unittest.TestCase):
    def setUp(self):
        torch.set_grad_enabled(False)
        self.cpu = Device("cpu", 1)
        self.cpu.last_bytes = CACHE
        self.ops = ops_of(self.cpu, Kernels(self.cpu))
        self.pool = pool.Pool(self.cpu)
        self.taken: list[tuple] = []  # use, first and last byte of every window
        window = self.pool.window

        def seen(use, dtype, at, n):
            t = window(use, dtype, at, n)
            self.taken.append((use, t.data_ptr(), t.data_ptr() + n * t.element_size()))
            return t

        self.pool.window = seen

    def every(self):
        """All ops that use windows, in two precisions where they have them, each as a subtest."""
        for kind, shape in SHAPES.items():
            for dtype in ("f32", "bf16") if "dtype" in shape else ("",):
                with self.subTest(kind, dtype=dtype):
                    self.taken.clear()
                    yield self.ops[kind], {**shape, "dtype": dtype}

    def held(self, use: str) -> list:
        return [(k, b) for k, b in self.pool._buffers.items() if k[0] == use]


class Rotation(Case):
    def test_these_are_all_that_use_windows(self):
        self.assertEqual({kind for kind, op in self.ops.items() if op.windowed}, set(SHAPES))

    def test_windows_of_a_rotation_overlap_nowhere_and_outgrow_the_cache(self):
        for op, shape in self.every():
            calls, size = self.pool.rotation(op, shape, 1)
            ordered = sorted(self.taken, key=lambda w: w[1])
            self.assertTrue(all(a[2] <= b[1] for a, b in zip(ordered, ordered[1:])))
            self.assertGreater(len(calls), 1)
            self.assertGreaterEqual(len(calls) * size, 2 * CACHE)
            self.assertLess((len(calls) - 1) * size, 2 * CACHE)
            # What is told is what is taken, but for tables and what a set has of its own.
            windows = sum(last - first for _, first, last in self.taken)
            self.assertAlmostEqual(windows / (len(calls) * size), 1, delta=0.02)

    def test_small_sets_are_limited(self):
        calls, _ = self.pool.rotation(ops.Norm(self.cpu), {"tokens": 1, "width": 8, "dtype": "f32"}, 1)
        self.assertEqual(len(calls), pool._SETS)

    def test_calls_write_neither_what_others_read_nor_each_others_windows(self):
        for op, shape in self.every():
            calls, _ = self.pool.rotation(op, shape, 1)
            before = [(b, b.clone()) for _, b in self.held("read")]
            self.assertTrue(before)
            calls[0]()
            mine = self.taken[:len(self.taken) // len(calls)]
            for _, b in self.held("state") + self.held("room"):
                rest = b.clone()
                calls[0]()
                for at in torch.nonzero(rest != b).flatten().tolist():
                    where = b.data_ptr() + at * b.element_size()
                    self.assertTrue(any(first <= where < last for _, first, last in mine))
            for b, copy in before:
                self.assertTrue(torch.equal(b, copy))

    def test_state_stays_finite_from_op_to_op(self):
        for _ in range(3):
            for op, shape in self.every():
                calls, _ = self.pool.rotation(op, shape, 1)
                for call in 20 * calls:
                    call()
        for use in ("state", "square", "room"):
            for key, b in self.held(use):
                self.assertTrue(bool(torch.isfinite(b.double()).all()), key)
                self.assertLess(float(b.double().abs().max()), 100 if use != "room" else float("inf"), key)
        for key, b in self.held("square"):
            self.assertGreaterEqual(float(b.min()), 0)
        # Random numbers at first, and something like them still.
        for key, b in self.held("state"):
            self.assertGreater(float(b.float().std()), 0.05, key)

    def test_windows_give_the_results_of_tensors_of_their_own(self):
        for op, shape in self.every():
            bound = []
            bind = op.bind
            with mock.patch.object(op, "bind", lambda *a: bound.append(bind(*a)) or bound[-1]):
                self.pool.rotation(op, shape, 1)
            last = bound[-1]
            want = last.expected()
            for name, got in last.outputs(last.call()).items():
                self.assertLess(pool_error(got, want[name]), op.limit(shape), name)


def pool_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


class Layout(Case):
    def test_inputs_lie_as_a_layers_products_wrote_them(self):
        # q lies beside k and v in one product, gate beside up in another: rows are apart.
        for kind, width, result in (("rope", 3 * 64, 2 * 64), ("swiglu", 2 * 128, 128)):
            self.taken.clear()
            calls, _ = self.pool.rotation(self.ops[kind], {"tokens": 50, "width": 128, "dtype": "f32"}, 1)
            sizes = [last - first for _, first, last in self.taken]
            self.assertEqual(sizes, len(calls) * [4 * 50 * width, 4 * 50 * result])


class Memory(Case):
    def test_a_point_that_needs_no_more_makes_nothing_anew(self):
        norm = ops.Norm(self.cpu)
        self.pool.rotation(norm, {"tokens": 100, "width": 256, "dtype": "f32"}, 1)
        with mock.patch.object(pool, "_filled", mock.Mock(side_effect=AssertionError)):
            self.pool.rotation(norm, {"tokens": 7, "width": 256, "dtype": "f32"}, 2)

    def test_large_buffers_make_way(self):
        norm = ops.Norm(self.cpu)
        self.pool.rotation(norm, {"tokens": 4000, "width": 256, "dtype": "f32"}, 1)
        self.assertGreater(self.pool.bytes, 8_000_000)
        self.pool.rotation(self.ops["lse_merge"], {"tokens": 10, "q_heads": 1, "head_dim": 64}, 1)
        self.assertGreater(self.pool.bytes, 8_000_000)  # it needs both uses of these
        self.pool.rotation(norm, {"tokens": 40, "width": 256, "dtype": "bf16"}, 1)
        self.assertEqual({k[1] for k, b in self.pool._buffers.items() if len(b) > CACHE}, set())
        self.pool.trim(self.pool.turn_bytes)
        self.assertLessEqual(self.pool.bytes, 4 * self.pool.turn_bytes)
        self.assertGreater(self.pool.bytes, 0)
        self.pool.trim()
        self.assertEqual(self.pool.bytes, 0)

    def test_what_cannot_fit_is_refused_before_anything_is_made(self):
        self.pool.rotation(ops.Norm(self.cpu), {"tokens": 100, "width": 256, "dtype": "f32"}, 1)
        held = self.pool.bytes
        self.cpu.free_bytes = lambda: 1 << 20
        with self.assertRaises(Failure) as caught:
            self.pool.rotation(ops.Norm(self.cpu), {"tokens": 4000, "width": 256, "dtype": "f32"}, 1)
        self.assertEqual((caught.exception.cls, self.pool.bytes), ("oom", held))

    def test_tables_of_fewer_rows_are_the_first_of_more(self):
        made = []

        def make(rows):
            made.append(rows)
            return (torch.arange(rows),)

        for rows in (10, 4, 20, 10):
            (t,) = self.pool.tables("k", rows, lambda: make(rows))
            self.assertEqual(t.tolist(), list(range(rows)))
        self.assertEqual(made, [10, 20])

    def test_a_service_keeps_it_between_row_wise_points_alone(self):
        service = Service(mock.Mock())
        service.answer({"t": "hello", "proto": 1, "device": "cpu", "threads": 1})
        service._device.last_bytes = CACHE

        def held(kind, **shape):
            service.answer({"t": "prepare", "op": kind, "shape": shape, "seed": 1})
            return service._pool.bytes

        large = held("norm", tokens=4000, width=256, dtype="f32")
        self.assertGreater(large, 8_000_000)
        self.assertGreaterEqual(held("gelu", tokens=10, width=256, dtype="f32"), 4000 * 1024)
        small = held("gemm", m=8, n=8, k=8, dtype="f32", **{"pass": "fwd"})
        self.assertLessEqual(small, 4 * 2 * CACHE)
        self.assertEqual(held("mem_capacity"), 0)


class Timed(Case):
    def test_calls_take_one_set_after_the_other(self):
        prepared = Prepared(ops.Norm(self.cpu), {"tokens": 40, "width": 192, "dtype": "f32"}, 1, self.pool)
        sets = len(prepared._calls)
        self.assertEqual(prepared.work_bytes, sets * prepared.set_bytes)
        (_, room), = self.held("room")
        room.zero_()
        for n in range(1, sets + 1):
            prepared.call()
            self.assertEqual(int((room != 0).sum()), n * 40 * 192)


if __name__ == "__main__":
    unittest.main()
