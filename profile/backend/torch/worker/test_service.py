"""Tests of what a request does, on an accelerator that is played by this machine's CPU.

Run by path: python3 -I -B test_service.py
"""

from __future__ import annotations

import os
import sys
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

# As the worker does, before torch loads its pools of threads: spinning ones slow each other down.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch  # noqa: E402

import device  # noqa: E402
import gauge  # noqa: E402
import layer  # noqa: E402
import nodes  # noqa: E402
import ops  # noqa: E402
import service  # noqa: E402
import wire  # noqa: E402
from errors import Failure  # noqa: E402
from inputs import Inputs  # noqa: E402
from kernels import Kernels  # noqa: E402


class FakeComm:
    """Remembers what it was asked."""

    def __init__(self, _device):
        self.log = []

    def ops(self):
        return ["all_reduce", "send_recv"]

    def refused(self):
        return {"all_gather": "not today"}

    def availability(self):
        return {"gloo": {"ok": True}}

    def prepare(self, op, shape, seed, group):
        self.log.append((op, group, seed))
        if shape.get("bytes") == 13:
            raise Failure("unsupported", "13 bytes")
        return {"work_bytes": 5}

    def run(self, inner, n, progress):
        progress(n)
        return [inner] * n

    def verify(self, op, shape, group):
        return {op + group: 0.0}

    def serve(self, request):
        return {"port": 7}

    def join(self, request):
        return {"warnings": ["LL128 off"]}

    def leave(self):
        self.log.append("left")


class FakeGuard:
    """As nvml.Guard."""

    why = ""

    def begin(self):
        self.begun = True

    def end(self):
        return {"sm_mhz": [1980, 1965]} if self.begun else {}

    def busy(self):
        return [4711]


class Requests(unittest.TestCase):
    def setUp(self):
        self.heart = wire.Heart()  # never started: it only counts here
        with mock.patch.object(service, "Comm", FakeComm):
            self.service = service.Service(self.heart)
            self.hello = self.service.answer({"t": "hello", "proto": 1, "device": "cpu", "threads": 2})

    def refused(self, cls: str, word: str, **request) -> None:
        with self.assertRaises(Failure) as caught:
            self.service.answer(request)
        self.assertEqual(caught.exception.cls, cls)
        self.assertIn(word, str(caught.exception))

    def prepare(self, op: str, shape: dict, **more) -> dict:
        return self.service.answer({"t": "prepare", "op": op, "shape": shape, **more})

    def test_hello_lists_collectives_beside_device_ops(self):
        self.assertIn("all_reduce", self.hello["ops"])
        self.assertIn("gemm", self.hello["ops"])
        self.assertEqual(self.hello["refused"]["all_gather"], "not today")
        self.assertEqual(self.hello["nvml_why"], "no accelerator")

    def test_torch_that_is_too_old_is_named(self):
        for version, fine in (
            ("1.12.1", False), ("1.13.0a0", True), ("2.11.0+cu130", True), ("0.4.1", False)
        ):
            self.assertEqual(service._new_enough(version), fine)
        with mock.patch.object(torch, "__version__", "1.9.0"):
            self.refused("unsupported", "torch 1.9.0", t="hello", proto=1)

    def test_collectives_go_to_the_world(self):
        self.assertEqual(self.prepare("all_reduce", {"bytes": 8}, group="g", seed=3), {"work_bytes": 5})
        self.assertEqual(self.service._comm.log, [("all_reduce", "g", 3)])
        self.assertEqual(self.service.answer({"t": "run", "inner": 4, "n": 2})["samples_ns"], [4, 4])
        request = {"t": "verify", "op": "send_recv", "shape": {}, "group": "g"}
        self.assertEqual(self.service.answer(request), {"errors": {"send_recvg": 0.0}})
        self.assertEqual(self.service.answer({"t": "serve"}), {"port": 7})
        self.assertEqual(self.service.answer({"t": "join"}), {"warnings": ["LL128 off"]})
        self.service.leave()
        self.assertEqual(self.service._comm.log[-1], "left")

    def test_a_failed_prepare_leaves_nothing_prepared(self):
        for first in (("all_reduce", {"bytes": 8}), ("adamw", {"params": 8}), ("mem_capacity", {})):
            for second in (("all_reduce", {"bytes": 13}), ("gemm", {}), ("teleport", {})):
                self.prepare(*first)
                with self.assertRaises(Failure):
                    self.prepare(*second)
                self.refused("internal", "nothing that can be timed", t="run", inner=1, n=1)
                self.refused("internal", "nothing that can be gauged", t="gauge")

    def test_every_request_that_makes_no_sense(self):
        self.refused("internal", "unknown request 'sing'", t="sing")
        self.refused("internal", "shape: None", t="prepare", op="gemm")
        self.refused("internal", "shape.inner", t="run", n=1)
        self.refused("unsupported", "proto 2", t="hello", proto=2)

    def test_running_out_of_memory_drops_what_is_prepared(self):
        self.prepare("adamw", {"params": 8})
        self.service.recover(Failure("internal", "a hiccup"))
        self.assertEqual(len(self.service.answer({"t": "run", "inner": 1, "n": 1})["samples_ns"]), 1)
        self.service.recover(Failure("oom", "out of memory"))
        self.refused("internal", "nothing that can be timed", t="run", inner=1, n=1)

    def test_an_accelerator_is_watched(self):
        self.prepare("adamw", {"params": 8})
        self.service._guard = FakeGuard()
        with mock.patch.multiple(
            torch.cuda, reset_peak_memory_stats=lambda d: None, max_memory_allocated=lambda d: 99
        ):
            got = self.service.answer({"t": "run", "inner": 1, "n": 2})
        self.assertEqual((got["gpu"], got["peak_bytes"]), ({"sm_mhz": [1980, 1965]}, 99))
        self.assertEqual(self.service._guards(), {
            "nvml": True, "nvml_why": "", "busy": [4711], "clock_policy": "observe",
        })

    def test_which_guard_watches(self):
        self.assertIsNone(service._guard(types.SimpleNamespace(kind="cpu")))
        seen = []
        fake = types.SimpleNamespace(Guard=lambda uuid: seen.append(uuid) or "guard")
        with mock.patch.dict(sys.modules, {"nvml": fake}):
            for uuid in ("GPU-1", ""):
                self.assertEqual(service._guard(types.SimpleNamespace(kind="cuda", uuid=uuid)), "guard")
        self.assertEqual(seen, ["GPU-1", None])


class Memory(unittest.TestCase):
    """Gauges of an accelerator's memory, with its counters played."""

    SHAPE = {
        "tokens": 64, "hidden": 32, "ffn": 48, "q_heads": 2, "kv_heads": 1, "head_dim": 16, "dtype": "f32"
    }

    def gauges(self) -> gauge.Gauges:
        torch.set_grad_enabled(False)
        cpu = device.Device("cpu", 2)
        gauges = gauge.Gauges(cpu, Kernels(cpu), {})
        cpu.kind = "cuda"
        cpu.free_at_start_bytes = 123
        cpu.free_bytes = lambda: 1 << 40
        cpu.sync = cpu.release = lambda: None
        return gauges

    def counters(self, **values):
        return mock.patch.multiple(torch.cuda, **{k: (lambda v: lambda *_: v)(v) for k, v in values.items()})

    def test_capacity_is_what_was_free_before_the_first_tensor(self):
        self.assertEqual(self.gauges().measure("mem_capacity", {}, 1), {"size_bytes": 123})

    def test_a_layer_is_what_its_forward_left_without_weights_tables_and_output(self):
        weights = 4 * (32 + 32 * 4 * 16 + 2 * 16 * 32 + 32 + 32 * 96 + 48 * 32)
        output = 4 * 64 * 32
        readings = iter([1000, 1000 + weights + output + self.tables() + 777])
        with mock.patch.object(torch.cuda, "memory_allocated", lambda *_: next(readings)):
            self.assertEqual(self.gauges().measure("mem_layer", self.SHAPE, 1), {"size_bytes": 777})

    def tables(self) -> int:
        """Bytes of cos and sin of the rotary positions."""
        cpu = device.Device("cpu", 2)
        sizes = layer.sizes_of(self.SHAPE)
        one = layer.Layer(sizes, Kernels(cpu).by_name["cpu"], Inputs(cpu, 1))
        return sum(t.numel() * t.element_size() for t in (one.cos, one.sin))

    def test_the_reserve_counts_workspaces_and_no_unused_cache(self):
        gauges = self.gauges()
        del gauges.device.free_bytes
        # 3000 bytes are in use; of the 1500 that the cache of tensors holds a workspace takes 1000.
        with self.counters(memory_allocated=1000, memory_reserved=1500, mem_get_info=(7000, 10000)):
            self.assertEqual(gauges.measure("mem_reserve", {}, 1), {"size_bytes": 2500})

    def test_the_reserve_of_ranks_that_share_a_card_is_not_told(self):
        gauges = self.gauges()
        self.assertEqual(gauges.refusal("mem_reserve"), "")
        gauges.device.sharing = 2
        with self.assertRaises(Failure) as caught:
            gauges.check("mem_reserve", {})
        self.assertEqual(caught.exception.cls, "unsupported")
        self.assertIn("2 ranks share the accelerator", caught.exception.msg)
        self.assertEqual(gauges.refusal("mem_capacity"), "")

    def test_a_step_makes_the_workspaces_before_a_layer_is_measured(self):
        gauges, log = self.gauges(), []
        step, readings = gauges._step, iter([5000, 5000])
        gauges._step = lambda sizes, seed: (log.append(sizes.tokens), step(sizes, seed))

        def allocated(*_):
            log.append("read")
            return next(readings)

        with mock.patch.object(torch.cuda, "memory_allocated", allocated):
            gauges.measure("mem_layer", {**self.SHAPE, "tokens": 1100}, 1)
        self.assertEqual(log, [1024, "read", "read"])


class Fused(unittest.TestCase):
    """Operators that newer releases fuse, played by functions of the published signatures."""

    def setUp(self):
        torch.set_grad_enabled(False)
        self.cpu = device.Device("cpu", 2)

    def test_norm(self):
        lib = torch.library.Library("evenkeel_norm", "DEF")
        lib.define("_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> "
                   "(Tensor, Tensor)")

        def fused(x, normalized_shape, weight, eps):
            assert list(normalized_shape) == [x.shape[-1]]
            root = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
            return x * root * weight, root

        lib.impl("_fused_rms_norm", fused, "CPU")
        found = ops.fused_norm(torch.ops.evenkeel_norm)
        self.cpu.kind = "cuda"
        self.cpu.free_bytes = lambda: 1 << 40
        with mock.patch.object(ops, "fused_norm", lambda: found):
            self.assertLess(ops.Norm(self.cpu).check({"tokens": 9, "width": 33, "dtype": "f32"}, 1), 1e-6)

    def test_another_operator_of_that_name_is_not_used(self):
        lib = torch.library.Library("evenkeel_other_norm", "DEF")
        lib.define(
            "_fused_rms_norm(Tensor input, int normalized_shape_ndim, Tensor weight, float eps) -> Tensor"
        )
        self.assertIsNone(ops.fused_norm(torch.ops.evenkeel_other_norm))
        self.assertIsNone(ops.fused_norm(types.SimpleNamespace()))

    def test_adamw(self):
        calls = []

        def fused(
            params, grads, first, second, most, steps, *, lr, beta1, beta2, weight_decay, eps, amsgrad,
            maximize
        ):
            assert not most and not amsgrad and not maximize
            calls.append(int(steps[0]))
            (p,), (g,), (m,), (v,) = params, grads, first, second
            m.lerp_(g, 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            root = (v / (1 - beta2 ** int(steps[0]))).sqrt() + eps
            p.mul_(1 - lr * weight_decay).sub_(m / root * lr / (1 - beta1 ** int(steps[0])))

        def broken(*_args, **_kwargs):
            raise RuntimeError("not implemented for 'CPU'")

        for function, used in ((fused, [1000, 1000]), (broken, [])):
            calls.clear()
            with mock.patch.object(torch, "_fused_adamw_", function, create=True):
                self.assertLess(ops.AdamW(self.cpu).check({"params": 101}, 1), 1e-6)
            self.assertEqual(calls, used)  # once on a few elements, once for real


class Layers(unittest.TestCase):
    """The nodes of a layer against autograd of their formulas."""

    def same_gradient(self, node, formula, *leaves: torch.Tensor) -> None:
        with torch.enable_grad():
            grads = []
            for fn in (node, formula):
                mine = [t.clone().requires_grad_() for t in leaves]
                out = fn(*mine)
                weight = torch.linspace(-1, 1, out.numel()).view_as(out)
                grads.append([out.detach(), *torch.autograd.grad(out, mine, weight)])
        for got, want in zip(*grads):
            self.assertLess(float((got - want).norm() / want.norm()), 1e-5)

    def test_norm(self):
        def formula(x, w):
            return x * w / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)

        self.same_gradient(nodes.FusedNorm.apply, formula, torch.randn(7, 33), torch.randn(33))

    def test_swiglu(self):
        def formula(both):
            gate, up = both.chunk(2, -1)
            return gate / (1 + torch.exp(-gate)) * up

        self.same_gradient(nodes.FusedSwiGLU.apply, formula, torch.randn(7, 34))

    def test_rotation(self):
        angle = torch.rand(7, 1, 4)
        turn = torch.complex(angle.cos(), angle.sin())

        def formula(x):
            a, b = x.chunk(2, -1)
            turned = torch.complex(a, b) * turn
            return torch.cat([turned.real, turned.imag], -1)

        def node(x):
            return nodes.Turn.apply(x, angle.cos(), angle.sin())

        self.same_gradient(node, formula, torch.randn(7, 3, 8))

    def test_gradients_do_not_accumulate(self):
        torch.set_grad_enabled(False)
        cpu = device.Device("cpu", 2)
        op = layer.LayerOp(Kernels(cpu), "layer_bwd")
        bound = op.bind(Memory.SHAPE, Inputs(cpu, 1))
        bound.call()
        once = {n: t.clone() for n, t in bound.outputs(None).items()}
        bound.call()
        for name, grad in bound.outputs(None).items():
            self.assertTrue(torch.equal(grad, once[name]), name)


if __name__ == "__main__":
    unittest.main()
