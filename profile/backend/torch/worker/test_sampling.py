"""Tests of how calls are timed, on a simulated accelerator, and of the worker's small parts.

Run by path: python3 -I -B test_sampling.py
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402

import device  # noqa: E402
import errors  # noqa: E402
import faults  # noqa: E402
import inputs  # noqa: E402
import overlap  # noqa: E402
import reference  # noqa: E402
import sampling  # noqa: E402
import wire  # noqa: E402
from errors import Failure, classify  # noqa: E402
from work import Bound, Op  # noqa: E402

LAUNCH_NS = 7_000  # what queueing costs the simulated host
FLUSH_NS = 90_000
RESOLUTION_NS = 500  # of events
SLOWDOWN = 1.25  # of anything on the main stream while the side stream is busy


class Simulated:
    """An accelerator with streams that run what the host queues, both on one simulated clock.

    It stands for the Device of an op and for torch.cuda. log has what was queued, in order.
    """

    kind, l2_bytes, torch, uuid = "cuda", 1 << 20, torch.device("cpu"), ""

    def __init__(self):
        self.host, self.free, self.current, self.log = 0, {"main": 0}, "main", []

    def launch(self, name: str, ns: float) -> None:
        self.host += LAUNCH_NS
        start = max(self.host, self.free[self.current])
        others = [t for s, t in self.free.items() if s != self.current]
        if name == "op" and any(t > start for t in others):
            ns *= SLOWDOWN
        self.free[self.current] = start + ns
        self.log.append(name)

    def sync(self) -> None:
        self.host = max(self.host, *self.free.values())
        self.log.append("sync")

    def free_bytes(self) -> int:
        return 1 << 40

    def sleep(self, cycles: int) -> None:
        self.launch("spin", cycles / sampling._CYCLES_PER_NS)

    def event(self, enable_timing: bool):
        return SimulatedEvent(self)

    def stream(self, device=None):
        self.free["side"] = 0
        return SimulatedStream(self, "side")

    @contextlib.contextmanager
    def on(self, stream):
        self.current = stream.name
        yield
        self.current = "main"


class SimulatedEvent:
    def __init__(self, sim: Simulated):
        self.sim, self.ns = sim, 0.0

    def record(self, stream=None) -> None:
        now = max(self.sim.host, self.sim.free[stream.name if stream else self.sim.current])
        self.ns = now // RESOLUTION_NS * RESOLUTION_NS
        self.sim.log.append("event")

    def elapsed_time(self, other: SimulatedEvent) -> float:
        return (other.ns - self.ns) / 1e6


class SimulatedStream:
    def __init__(self, sim: Simulated, name: str):
        self.sim, self.name = sim, name

    def wait_event(self, event: SimulatedEvent) -> None:
        self.sim.free[self.name] = max(self.sim.free[self.name], event.ns)


class Kernel(Op):
    """An op of a fixed duration and size."""

    kind = "kernel"

    def __init__(self, sim: Simulated, ns: float, elements: int):
        super().__init__(sim)
        self.ns, self.elements, self.used = ns, elements, []

    def bind(self, shape, room):
        room.normal(self.elements)
        number = len(self.used)
        self.used.append(0)

        def call():
            self.used[number] += 1
            self.device.launch("op", self.ns)

        return Bound(call, dict, dict)


class OnSimulated(unittest.TestCase):
    def setUp(self):
        self.sim = Simulated()
        for target, name, value in (
            (torch.cuda, "Event", self.sim.event), (torch.cuda, "_sleep", self.sim.sleep),
            (torch.cuda, "Stream", self.sim.stream), (torch.cuda, "stream", self.sim.on),
            (torch.cuda, "current_stream", lambda: SimulatedStream(self.sim, "main")),
            (sampling.time, "perf_counter_ns", lambda: self.sim.host),
        ):
            patch = mock.patch.object(target, name, value, create=True)
            patch.start()
            self.addCleanup(patch.stop)
        chill = mock.patch.object(sampling.Prepared, "_chill", lambda _: self.sim.launch("flush", FLUSH_NS))
        chill.start()
        self.addCleanup(chill.stop)

    def prepared(self, ns: float, elements: int = 1000) -> sampling.Prepared:
        self.op = Kernel(self.sim, ns, elements)
        return sampling.Prepared(self.op, {}, 1)


class Sampling(OnSimulated):
    def test_a_kernel_shorter_than_its_launch_is_timed_right(self):
        # Queued one by one as the host gets to them, four kernels of 2 us would take 4 launches of 7 us.
        self.assertEqual(self.prepared(2_000).sample(4, 3, lambda _: None), [8_000] * 3)

    def test_the_buffer_that_empties_the_cache_is_there_before_the_first_call(self):
        self.prepared(50_000)
        self.assertEqual(self.sim.log[:2], ["flush", "op"])

    def test_every_set_of_inputs_is_used_before_the_first_sample(self):
        # A layer's backward takes memory for gradients in the first call on each set, and keeps it.
        self.prepared(50_000, 1 << 16)
        self.assertEqual((len(self.op.used), min(self.op.used)), (16, 1))

    def test_a_spin_leaves_time_for_events(self):
        with mock.patch.object(sampling, "spin") as spin:
            self.prepared(50_000).sample(3, 1, lambda _: None)
        self.assertEqual(spin.call_args[0][0], 2 * 3 * LAUNCH_NS + 50_000)

    def test_samples_are_batched_and_their_progress_told(self):
        done = []
        p = self.prepared(50_000)
        self.sim.log.clear()
        self.assertEqual(p.sample(1, 70, done.append), [50_000] * 70)
        self.assertEqual(done, [32, 64, 70])
        self.assertEqual(self.sim.log.count("sync"), 3)

    def test_small_ops_find_a_cold_cache_and_large_or_repeated_ones_no_flush(self):
        for elements, inner, cold in (
            (1000, 1, True), (1000, 2, False), (2 << 18, 1, False), ((2 << 18) - 1, 1, True)
        ):
            p = self.prepared(50_000, elements)
            self.sim.log.clear()
            p.sample(inner, 1, lambda _: None)
            want = ["flush"] * cold + ["spin", "event"] + ["op"] * inner + ["event", "sync"]
            self.assertEqual(self.sim.log, want, (elements, inner))

    def test_inputs_rotate_until_they_exceed_the_cache_four_times(self):
        # 4 MiB of sets against a cache of 1 MiB: 16 sets of 256 KiB, at most 16 of smaller ones, one of 4
        # MiB.
        for elements, sets in ((1 << 16, 16), (1000, 16), (3 << 16, 6), (1 << 20, 1), (1 << 22, 1)):
            p = self.prepared(1_000, elements)
            self.op.used = [0] * len(self.op.used)
            p.sample(sets, 3, lambda _: None)
            self.assertEqual(self.op.used, [3] * sets)
            self.assertEqual((p.set_bytes, p.work_bytes), (4 * elements, 4 * elements * sets))


class Overlapping(OnSimulated):
    def ratio(self, compute_ns: float, copy_ns: float, slowed: str) -> float:
        ops = {"gemm": Kernel(self.sim, compute_ns, 10), "h2d": Kernel(self.sim, copy_ns, 10)}
        shape = {"compute": "gemm", "comm": "h2d", "slowed": slowed, "tokens": 8, "bytes": 8}
        gauge = overlap.Overlap(self.sim, ops)
        gauge.check(shape)
        return gauge.measure(shape, 1)

    def test_the_slowdown_is_whole_however_unequal_the_sides_are(self):
        for compute_ns, copy_ns in ((1e6, 1e6), (30_000, 900_000), (900_000, 30_000), (5_000, 5_000)):
            for slowed in ("compute", "comm"):
                self.assertAlmostEqual(self.ratio(compute_ns, copy_ns, slowed), SLOWDOWN, places=2)

    def test_all_pairs_share_one_stream_that_was_used_before(self):
        # A stream that is new to a library costs it a workspace: memory, and time in the first call.
        with mock.patch.object(torch.cuda, "Stream", side_effect=self.sim.stream) as made:
            self.ratio(1e6, 1e6, "compute")
        self.assertEqual(made.call_count, 1)

    def test_a_side_that_cannot_be_outlasted_is_an_error(self):
        with mock.patch.object(overlap, "_MAX_CALLS", 3), self.assertRaises(Failure) as caught:
            self.ratio(9e6, 1e5, "compute")
        self.assertIn("ended first every time", str(caught.exception))

    def test_refusals(self):
        gauge = overlap.Overlap(self.sim, {})
        self.assertEqual(gauge.refusal(), "")
        shape = {"compute": "gemm", "comm": "all_gather", "slowed": "comm", "tokens": 8, "bytes": 8}
        for change, cls, word in (
            ({}, "unsupported", "all_gather"),
            ({"comm": "h2d", "compute": "rope"}, "internal", "shape.compute"),
            ({"comm": "h2d", "tokens": 0}, "internal", "shape.tokens"),
        ):
            with self.assertRaises(Failure) as caught:
                gauge.check({**shape, **change})
            self.assertEqual(caught.exception.cls, cls)
            self.assertIn(word, str(caught.exception))

    def test_compute_shapes(self):
        self.assertEqual(overlap.compute_shape("gemm", 64)["m"], 64)
        self.assertEqual(overlap.compute_shape("attn_bwd", 64)["kv_len"], 64)


class AcceleratorError(RuntimeError):
    """As torch >= 2.8 names it."""


class OutOfMemoryError(RuntimeError):
    """As torch.cuda names it."""


class Classes(unittest.TestCase):
    def test_exceptions(self):
        for exc, cls, fatal in (
            (OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "oom", False),
            (MemoryError(), "oom", False),
            (RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"
            ), "oom", False),
            (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), "oom", False),
            (NotImplementedError("later"), "unsupported", False),
            (AssertionError("Unsupported compute capability. Supported: 9.x"), "unsupported", False),
            (RuntimeError('"addmm_impl_cpu_" not implemented for \'Half\''), "unsupported", False),
            (RuntimeError("FlashAttention only supports Ampere GPUs or newer."), "unsupported", False),
            (RuntimeError("No available kernel. Aborting execution."), "unsupported", False),
            (RuntimeError("CUDA error: no kernel image is available for execution"), "unsupported", False),
            # As cuDNN's plans fail on an H200 with torch 2.13, and cuBLAS refuses a precision.
            (RuntimeError("cuDNN Frontend error: No valid execution plans built."), "unsupported", False),
            (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling"), "unsupported", False),
            # flash_api.cpp of torch 2.9.
            (RuntimeError("head_size must be a multiple of 8, this is ensured by"), "unsupported", False),
            (RuntimeError("CUDA error: an illegal memory access was encountered"), "cuda_fatal", True),
            (RuntimeError("CUDA error: device-side assert triggered"), "cuda_fatal", True),
            (RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED"), "cuda_fatal", True),
            (AcceleratorError("something new"), "cuda_fatal", True),
            (TypeError("unsupported operand type(s) for +"), "internal", False),
            (ValueError("a\nb"), "internal", False),
        ):
            got = classify(exc)
            self.assertEqual((got.cls, got.fatal), (cls, fatal), exc)
            self.assertNotIn("\n", got.msg)
        self.assertEqual(classify(ValueError("a\nb")).msg, "ValueError: a")

    def test_real_ones(self):
        with self.assertRaises(RuntimeError) as caught:
            torch.empty(1 << 60)
        self.assertEqual(classify(caught.exception).cls, "oom")

    def test_exit_statuses(self):
        self.assertEqual(errors.exit_status(Failure("cuda_fatal", "", True)), 70)
        self.assertEqual(errors.exit_status(Failure("internal", "", True)), 71)

    def test_axes(self):
        self.assertEqual(errors.axis({"m": 3}, "m"), 3)
        for bad in ({}, {"m": 0}, {"m": 1.5}, {"m": True}, {"m": "3"}):
            with self.assertRaises(Failure) as caught:
                errors.axis(bad, "m")
            self.assertIn("shape.m", str(caught.exception))
        with self.assertRaises(Failure) as caught:
            errors.word({"mask": "ring"}, "mask", "full", "diag")
        self.assertIn("full, diag", str(caught.exception))


class Beats(unittest.TestCase):
    def beat(self, heart: wire.Heart) -> list:
        written = []
        with mock.patch.object(wire.os, "write", lambda fd, data: written.append(data)):
            heart._beat()
        return written

    def heart(self) -> wire.Heart:
        heart = wire.Heart()
        heart.begin(7, "run")
        heart.progress(3)
        heart._since -= 1
        return heart

    def test_a_beat_tells_the_request_and_its_progress(self):
        (frame,) = self.beat(self.heart())
        self.assertEqual(json.loads(frame), {"t": "beat", "id": 7, "phase": "run", "n": 3})

    def test_no_beat_for_a_young_or_answered_request(self):
        young, answered = self.heart(), self.heart()
        young.begin(8, "run")
        answered.end()
        self.assertEqual(self.beat(young) + self.beat(answered), [])

    def test_no_beat_for_a_request_answered_while_waiting_for_the_pipe(self):
        heart = self.heart()
        lock = mock.MagicMock()
        lock.__enter__.side_effect = heart.end
        with mock.patch.object(wire, "_lock", lock):
            self.assertEqual(self.beat(heart), [])
        lock.__enter__.assert_called_once()

    def test_nothing_that_is_no_number_crosses(self):
        for value in (float("nan"), float("inf")):
            with self.assertRaises(ValueError):
                wire.send({"x": value})


class Parts(unittest.TestCase):
    def test_large_inputs_repeat_a_block_but_no_row(self):
        cpu = device.Device("cpu", 1)
        x = inputs.Inputs(cpu, 5).normal(3000, 1024)
        self.assertTrue(torch.equal(x, inputs.Inputs(cpu, 5).normal(3000, 1024)))
        self.assertLess(abs(float(x.mean())), 0.01)
        self.assertLess(abs(float(x.std()) - 1), 0.01)
        rows = {tuple(r.tolist()) for r in x[:, :4]}
        self.assertEqual(len(rows), 3000)

    def test_last_level_caches_are_counted_once_and_by_threads(self):
        def first_line(path):
            core, index, name = path.split("/cpu/cpu")[1].replace("cache/index", "").split("/")
            table = {"2": ("2", core, "512K"), "3": ("3", "0-1" if core in "01" else "2-3", "32M")}
            return table[index][("level", "shared_cpu_list", "size").index(name)]

        with mock.patch.object(device, "_first_line", first_line), \
                mock.patch.object(device.glob, "glob", lambda p: [p.replace("*", i) for i in "23"]):
            self.assertEqual(device._l2_bytes(), 512 << 10)
            for cores, threads, caches in (([0], 1, 1), ([0, 1], 2, 1), ([0, 1, 2, 3], 4, 2), ([0, 2], 1, 1)):
                self.assertEqual(device.last_level(cores, threads), caches * (32 << 20), cores)
        with mock.patch.object(device.glob, "glob", lambda p: []):
            self.assertEqual((device._l2_bytes(), device.last_level([0], 1)), (0, 0))
            self.assertGreater(device.Device("cpu", 1).last_bytes, 0)

    def test_inputs_follow_the_seed_and_are_counted(self):
        cpu = device.Device("cpu", 2)
        first, again, other = (inputs.Inputs(cpu, s) for s in (5, 5, 6))
        a, b, c = (i.normal(40, 25, dtype=torch.bfloat16) for i in (first, again, other))
        self.assertTrue(torch.equal(a, b))
        self.assertFalse(torch.equal(a, c))
        self.assertEqual(first.bytes, 2000)
        self.assertFalse(torch.equal(a, first.normal(40, 25, dtype=torch.bfloat16)))
        self.assertEqual(int((a == 0).sum()), 0)

    def test_what_is_free_limits_inputs(self):
        cpu = device.Device("cpu", 2)
        cpu.free_bytes = lambda: 1000
        with self.assertRaises(Failure) as caught:
            inputs.Inputs(cpu, 1).empty(300)
        self.assertEqual(caught.exception.cls, "oom")
        self.assertIn("1200", str(caught.exception))

    def test_relative_error(self):
        want = torch.tensor([3.0, 4.0])
        self.assertEqual(reference.rel_err(want, want), 0)
        self.assertAlmostEqual(reference.rel_err(want + torch.tensor([0.0, 0.5]), want), 0.1)
        for wrong in (torch.tensor([3.0, float("nan")]), torch.tensor([3.0, float("inf")]), torch.ones(3)):
            self.assertEqual(reference.rel_err(wrong, want), float("inf"))

    def test_waiting_threads_are_seen(self):
        meter = sampling.WaitMeter(device.Device("cpu", 2))
        self.assertTrue(0 <= meter.share() <= 1)
        with mock.patch.object(sampling, "_run_delay_ns", lambda: 0):
            meter = sampling.WaitMeter(device.Device("cpu", 2))
        with mock.patch.object(sampling, "_run_delay_ns", lambda: 1 << 62):
            self.assertEqual(meter.share(), 1)

    def test_an_accelerator_tells_what_it_is(self):
        for visible, uuid, mig, l2 in (
            ("GPU-77", "GPU-77", None, 50 << 20), ("0", "GPU-abc", None, 0),
            ("MIG-5", "MIG-5", "1g.18gb", 1 << 20),
        ):
            properties = mock.Mock(
                multi_processor_count=132, total_memory=140 << 30, major=9, minor=0, L2_cache_size=l2,
                uuid="abc"
            )
            properties.name = "NVIDIA H200" + (" MIG " + mig if mig else "")
            with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": visible}), mock.patch.multiple(
                torch.cuda, is_available=lambda: True, set_device=lambda d: None,
                mem_get_info=lambda d: (9, 10),
                get_device_properties=lambda d: properties,
            ), mock.patch.object(device.Device, "_multiplies", lambda self, d: True):
                got = device.Device("cuda:0")
            self.assertEqual((got.uuid, got.mig, got.free_at_start_bytes), (uuid, mig, 9))
            self.assertEqual(got.l2_bytes, l2 or device._UNKNOWN_L2)
            self.assertEqual((got.describe()["sm"], got.describe()["sms"]), ([9, 0], 132))
            self.assertEqual(got.dtypes(), ["f32", "bf16", "f16"])

    def test_control_groups_limit_memory(self):
        for group, limit in (({"memory.max": "1000"}, 1000), ({"memory.max": "max"}, 1 << 62), ({}, 1 << 62)):
            with mock.patch.object(device, "_first_line", lambda p: group.get(os.path.basename(p), "")):
                self.assertEqual(device._cgroup("memory.max", "memory/memory.limit_in_bytes"), limit)

    def test_reference_merge_is_the_attention_over_both(self):
        q, k, v = torch.randn(5, 3, 8), torch.randn(12, 1, 8), torch.randn(12, 1, 8)
        whole, lse = reference.attention(q, k, v, [(0, 5, 0, 12, False)])
        a, b = (reference.attention(
            q, k[s], v[s], [(0, 5, 0, n, False)]
        ) for s, n in ((slice(0, 7), 7), (slice(7, 12), 5)))
        flat = [t for out, each in (a, b) for t in (out.transpose(0, 1).reshape(15, 8), each.reshape(15))]
        out, merged = reference.lse_merge(*flat)
        self.assertLess(reference.rel_err(out.view(3, 5, 8).transpose(0, 1), whole), 1e-12)
        self.assertLess(reference.rel_err(merged.view(3, 5), lse), 1e-12)

    def test_reference_backward_is_the_derivative(self):
        q, k, v, dout = (torch.randn(6, 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(4))
        span = [(0, 6, 0, 6, True)]
        out, lse = reference.attention(q.detach(), k.detach(), v.detach(), span)

        def forward():
            s = torch.einsum("qhd,khd->hqk", q, k) / 2
            s = s.masked_fill(torch.ones(6, 6).triu(1).bool(), -float("inf"))
            return torch.einsum("hqk,khd->qhd", s.softmax(-1), v)

        want = reference.grads_of(forward, [q, k, v], dout.detach())
        got = reference.attention_backward(*(t.detach() for t in (q, k, v)), out, lse, dout.detach(), span)
        for g, w in zip(got, want):
            self.assertLess(reference.rel_err(g, w), 1e-12)


class FaultSpecs(unittest.TestCase):
    def due(self, spec: str, kind: str, ops: list) -> list:
        faults._seen.clear()
        with mock.patch.dict(os.environ, {"EVENKEEL_FAULT": spec}):
            return [faults._due(kind, op) is not None for op in ops]

    def test_entries(self):
        self.assertEqual(self.due("", "hang", ["a"]), [False])
        self.assertEqual(self.due("hang:a,oom:b", "hang", ["a", "b", "a"]), [True, False, True])
        self.assertEqual(self.due("hang:a@2", "hang", ["a", "b", "a", "a"]), [False, False, True, False])

    def test_once(self):
        with tempfile.TemporaryDirectory() as folder:
            spec = f"hang:a,once-file={folder}/x"
            self.assertEqual(self.due(spec, "hang", ["b", "a", "a"]), [False, True, False])
            self.assertEqual(self.due(spec, "hang", ["a"]), [False])


if __name__ == "__main__":
    unittest.main()
