"""The parts of the rank program in one process: layers, references, drawn tensors, refusals, counters."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
from typing import Any
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import torch
from torch import Tensor

import dense
import evenkeel
from evenkeel import judge, nodes, reference, rendezvous, replay, whole
from evenkeel.closed import expected
from evenkeel.course import Bare
from evenkeel.drawn import Drawn
from evenkeel.frames import Fault, Frames, Place
from evenkeel.plan import PlanError, documents
from evenkeel.record import Journal, Recorder, gather
from evenkeel.request import Request, kernel_named
from plans import document, worked_example
from test_replay import complete, one_rank

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {}, "qwen2": {"qkv_bias": True}, "qwen3": {"qk_norm": True},
    "gpt2": {"gated_mlp": False, "layer_norm": True, "qkv_bias": True, "out_bias": True, "mlp_bias": True,
             "position_rows": 4096},
    "gptj": {"gated_mlp": False, "layer_norm": True, "shared_norm": True, "mlp_bias": True, "rotary_dim": 8},
    "neox": {"gated_mlp": False, "layer_norm": True, "qkv_bias": True, "rotary_dim": 4},
}


def model(**changed: Any) -> whole.Model:
    return whole.model_of(complete(document([[(0, 40)]], [[(0, 6)]], 6, 2, 16), **changed))


class TestLayer(unittest.TestCase):
    def test_families(self) -> None:
        """Output, input's and weights' gradients of every kind of layer against float64."""
        for name, changed in FAMILIES.items():
            with self.subTest(family=name):
                self.check_family(model(**changed))

    def test_norm_rounds_its_gradients_once(self) -> None:
        """In bfloat16, which a second rounding would take 1.4 times as far from the exact gradients."""
        g = torch.Generator().manual_seed(1)
        x, w, dy = (torch.randn(*n, generator=g).bfloat16() for n in ((300, 192), (192,), (300, 192)))
        x.requires_grad_(), w.requires_grad_()
        nodes.FusedNorm.apply(x, w).backward(dy)
        exact = [t.detach().double().requires_grad_() for t in (x, w)]
        reference._rms(*exact).backward(dy.double())
        for got, want in zip((x.grad, w.grad), (t.grad for t in exact)):
            assert got is not None and want is not None
            once = float((want.bfloat16().double() - want).norm())
            self.assertLess(float((got.double() - want).norm()), 1.02 * once)

    def test_float32_is_float32_in_a_container_that_says_otherwise(self) -> None:
        script = ("import sys; sys.path.insert(0, sys.argv[1]); import torch; from evenkeel import replay; "
                  "replay.exact(); print(torch.backends.cuda.matmul.allow_tf32)")
        said = subprocess.run(
            [sys.executable, "-B", "-c", script, os.path.dirname(HERE)], stdout=subprocess.PIPE, text=True, check=True,
            env={**os.environ, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"},
        )
        self.assertEqual(said.stdout, "False\n")

    def test_the_fused_norm_that_is_measured(self) -> None:
        """As of torch 2.9; 2.7 has another of the same name (pytorch/pytorch#150661)."""
        for name, arguments, want in (
            ("new", "(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)", True),
            ("old", "(Tensor input, int normalized_shape_ndim, Tensor weight, float eps) -> Tensor", False),
        ):
            library = torch.library.Library(f"evenkeel_{name}_norm", "DEF")
            library.define("_fused_rms_norm" + arguments)
            self.assertEqual(nodes.fused_norm(getattr(torch.ops, f"evenkeel_{name}_norm")), want)
        self.assertFalse(nodes.fused_norm(types.SimpleNamespace()))

    def check_family(self, m: whole.Model) -> None:
        plan = evenkeel.load_plan(document([[(0, 40)]], [[(0, 6)]], 6, 2, 16))
        layer = whole.Layer(m, 3, 0, torch.float32, torch.device("cpu"))
        at, docs = evenkeel.positions(plan, 0, [25, 15]), documents(40, [25, 15])
        stack = whole.Stack([layer], lambda _, q, k, v: evenkeel.attention(plan, 0, q, k, v, docs=[25, 15]),
                            whole.angles(at, m.rotary, torch.float32, "cpu"), 0)
        x, dy = (Drawn(1, n).filled(40, m.hidden, dtype=torch.float32) for n in ("x", "dy"))
        y = stack.forward(x)
        dx = stack.backward(dy)
        of = reference.Attention(40, docs, lambda: None)
        want, grad = reference.layer(m, layer.weights, of, x, dy, at)
        self.assertLess(dense.error(y.detach(), want, 1.0), 1e-6)
        self.assertLess(dense.error(dx, grad, 1.0), 1e-6)
        for name, w in layer.weights.items():
            assert w.grad is not None
            self.assertLess(self.slope_error(m, layer, of, x, dy, at, name), 1e-5, name)

    def slope_error(
        self, m: whole.Model, layer: whole.Layer, of: Any, x: Tensor, dy: Tensor, at: Tensor, name: str
    ) -> float:
        """A weight's gradient along a random direction against the slope of the float64 layer."""
        way = Drawn(9, name).filled(*layer.weights[name].shape, dtype=torch.float64)
        h, values = 1e-5, []
        for sign in (1, -1):
            moved = {n: w.detach().double() for n, w in layer.weights.items()}
            moved[name] = moved[name] + sign * h * way
            values.append(float((reference.layer(m, moved, of, x, dy, at)[0] * dy).sum()))
        grad = layer.weights[name].grad
        assert grad is not None
        slope, norm = (values[0] - values[1]) / (2 * h), float(grad.norm() * way.norm())
        return abs(float((grad.double() * way).sum()) - slope) / norm

    def test_recomputation_changes_nothing(self) -> None:
        m, plan = model(), evenkeel.load_plan(document([[(0, 40)]], [[(0, 6)]], 6, 2, 16))
        layers = [whole.Layer(m, 3, i, torch.float32, torch.device("cpu")) for i in range(3)]
        tables = whole.angles(evenkeel.positions(plan, 0), m.rotary, torch.float32, "cpu")
        x, dy = (Drawn(1, n).filled(40, m.hidden, dtype=torch.float32) for n in ("x", "dy"))
        results = []
        attend: whole.Attend = lambda _, q, k, v: evenkeel.attention(plan, 0, q, k, v)
        for again in (0, 2, 3):
            stack = whole.Stack(layers, attend, tables, again)
            y = stack.forward(x).detach()
            dx = stack.backward(dy)
            grads = [w.grad for layer in layers for w in layer.weights.values()]
            results.append([y, dx, *(g.clone() for g in grads if g is not None)])
            stack.clear()
            self.assertTrue(all(w.grad is None for layer in layers for w in layer.weights.values()))
        self.assertEqual(len(results[0]), 2 + 3 * 6)
        for a, *others in zip(*results):
            self.assertTrue(all(torch.equal(a, b) for b in others))

    def test_refused(self) -> None:
        for changed, said in (
            ({"activation": "relu"}, "job.model.activation: 'relu'"),
            ({"gated_mlp": False, "activation": "silu"}, "job.model.activation: 'silu'"),
            ({"rotary_dim": 5}, "job.model.rotary_dim: 5"), ({"ffn": None}, "job.model.ffn: None"),
            ({"hidden": True}, "job.model.hidden: True"),
        ):
            with self.assertRaisesRegex(PlanError, "^" + said):
                model(**changed)

    def test_flops_of_products(self) -> None:
        """The weights of both parts, two a multiply-add and token."""
        m = model(qkv_bias=True)
        count = sum(s[0] * s[1] for s in m.shapes().values() if len(s) == 2)
        self.assertEqual(m.flops(7, True) + m.flops(7, False), 2 * 7 * count)


class TestReference(unittest.TestCase):
    def test_against_autograd(self) -> None:
        for docs in (None, [70, 1, 29]):
            q, k, v, dout = (torch.randn(100, h, 8, dtype=torch.float64) for h in (6, 2, 2, 6))
            of, ticks = None, []
            with mock.patch.object(reference, "_SCORES", 8 * 100 * 30):
                of = reference.Attention(100, documents(100, docs), lambda: ticks.append(1))
                got = reference.gradients(of, q, k, v, dout)
                at = torch.tensor([0, 3, 69, 70, 71, 99])
                some = of.rows(at, q[at, 4], k[:, 1], v[:, 1], dout[at, 4])
            self.assertEqual(len(ticks), 6 * 4 + 1, "chunks of 30 rows")
            wants = dense.with_gradients(q, k, v, dout, docs)
            for a, b in zip(got, wants):
                self.assertLess(dense.error(a, b, 1.0), 1e-13)
            for a, b in zip(some[:2], wants[:2]):
                self.assertLess(dense.error(a, b[at, 4], 1.0), 1e-13)

    def test_error(self) -> None:
        one = torch.ones(4, dtype=torch.float64)
        self.assertEqual(reference.error(one, one, 1.0), 0)
        self.assertAlmostEqual(reference.error(1.5 * one, one, 1.0), 0.5)
        self.assertEqual(reference.error(float("nan") * one, one, 1.0), float("inf"))
        self.assertAlmostEqual(reference.error(1e-9 * one, 0 * one, 10.0), 2e-10)


class TestDrawn(unittest.TestCase):
    def test_rows_are_of_the_whole(self) -> None:
        drawn = Drawn(7, "q")
        every = drawn.filled(50, 12, dtype=torch.float32)
        at = torch.tensor([3, 0, 49])
        self.assertTrue(torch.equal(drawn.rows(at, 12, 4, 8, dtype=torch.float32), every[at, 4:8]))
        self.assertFalse(torch.equal(every, Drawn(8, "q").filled(50, 12, dtype=torch.float32)))
        self.assertFalse(torch.equal(every, Drawn(7, "k").filled(50, 12, dtype=torch.float32)))

    def test_no_more_than_asked_for(self) -> None:
        """However many were asked for before, values are the same, as are those a period later."""
        drawn, every, most = Drawn(7, "q"), Drawn(7, "q").filled(3 << 20, dtype=torch.float32), 0
        for width, at in ((3, [2, 0]), (1, []), (4, [9, 9]), (3, [5000]), (1, [99_000]), (3, [(1 << 20) - 1, 7])):
            rows = torch.tensor(at, dtype=torch.int64)
            got = drawn.rows(rows, width, dtype=torch.float32)
            self.assertTrue(torch.equal(got, every[rows[:, None] * width + torch.arange(width)]))
            n = 1 + width * max(at, default=0)
            self.assertTrue(torch.equal(drawn.filled(n, dtype=torch.float32), every[:n]))
            most = max(most, n, width * (1 + max(at, default=-1)))
            self.assertLessEqual(len(drawn._values), 2 * most)

    def test_moments(self) -> None:
        x = Drawn(1, "x").filled(1 << 20, dtype=torch.float64)
        self.assertLess(abs(float(x.mean())), 5e-3)
        self.assertLess(abs(float(x.std()) - 1), 5e-3)

    def test_period(self) -> None:
        """Far rows are found without the whole tensor, and no two near ones are alike."""
        drawn = Drawn(1, "x")
        at = torch.arange(1_000_000, 1_000_100)
        rows = drawn.rows(at, 128, dtype=torch.float32)
        self.assertEqual(len({tuple(r) for r in rows.tolist()}), 100)


class TestRefusals(unittest.TestCase):
    def test_requests(self) -> None:
        good = {"plans": [one_rank()], "trace": "t"}
        self.assertEqual(Request.of({**good, "t": "run", "later": 1, "cores": None}).repeats, 10)
        for changed, said in (
            ({"plans": []}, "plans: missing"), ({"trace": ""}, "trace: missing"),
            ({"layers": 0}, "layers: 0"), ({"repeats": True}, "repeats: True"),
            ({"parts": "mlp"}, "parts: 'mlp'"), ({"backend": "mpi"}, "backend: 'mpi'"),
            ({"kernel": "fa9"}, "kernel: 'fa9'"), ({"seed": "x"}, "seed: 'x'"),
            ({"timeout_s": 0}, "timeout_s: 0"),
            ({"cores": [-1]}, r"cores: \[-1\]"), ({"docs_tokens": 5}, "docs_tokens: 5"),
        ):
            with self.assertRaisesRegex(Fault, "^" + said) as caught:
                Request.of({**good, **changed})
            self.assertEqual(caught.exception.kind, "usage")

    def test_plans(self) -> None:
        world = rendezvous.World(0, 1, 0, "127.0.0.1", 1)
        for second, options, said in (
            (worked_example(), {"parts": "attention"}, "plan 1: ranks: 4: 1 ranks were started"),
            (complete(document([[(0, 64)]], [[(0, 4)]], 4, 1, 8)), {}, "plan 1: kv_heads: 1: plan 0 has 2"),
            (complete(one_rank(), ffn=81), {}, "plan 1: job.model: another model"),
            (complete(one_rank(), dtype="fp8"), {}, "plan 1: job.dtype: fp8"),
            (complete(one_rank(), activation="relu"), {}, "plan 1: job.model.activation"),
            (one_rank(), {"docs_tokens": [60]}, "plan 0: docs: 60 tokens in all"),
        ):
            asked = Request.of({"plans": [one_rank(), second], "trace": "t", **options})
            with self.assertRaisesRegex(Fault, "^" + said):
                replay._plans(asked, world)

    def test_device(self) -> None:
        world = rendezvous.World(0, 1, 0, "127.0.0.1", 1)
        asked = {"plans": [one_rank()], "trace": "t"}
        self.assertEqual(replay._device(Request.of(asked), world).type, "cpu")
        with self.assertRaisesRegex(Fault, "nccl: it connects GPUs"):
            replay._device(Request.of({**asked, "backend": "nccl"}), world)
        with mock.patch("torch.cuda.is_available", return_value=False):
            with self.assertRaisesRegex(Fault, "sees no accelerator"):
                replay._device(Request.of({**asked, "device": "cuda:0"}), world)
        with self.assertRaisesRegex(Fault, "device: 'gpu'"):
            replay._device(Request.of({**asked, "device": "gpu"}), world)

    def test_kernel_that_is_missing(self) -> None:
        with mock.patch.dict(sys.modules, {"flash_attn": None, "flash_attn.flash_attn_interface": None}):
            with self.assertRaisesRegex(Fault, "kernel: fa2: needs the flash-attn package, 2.7 or later"):
                kernel_named("fa2")
        self.assertEqual(kernel_named("math").name, "math")

    def test_world(self) -> None:
        env = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_PORT": "5", "MASTER_ADDR": "h"}
        self.assertEqual(rendezvous.World.of(env), rendezvous.World(1, 2, 1, "h", 5))
        for changed, said in (
            ({"RANK": "2"}, "RANK: 2: want 0 to"), ({"MASTER_PORT": "x"}, "MASTER_PORT: 'x'"),
            ({"WORLD_SIZE": ""}, "WORLD_SIZE: ''"),
        ):
            with self.assertRaisesRegex(Fault, "^" + said):
                rendezvous.World.of({**env, **changed})

    def test_a_store_that_is_gone(self) -> None:
        class Gone:
            def set(self, *_: Any) -> None:
                raise RuntimeError("Connection reset by peer")

        meeting = rendezvous.Meeting.__new__(rendezvous.Meeting)
        meeting.world, meeting.store = rendezvous.World(1, 2, 1, "h", 5), Gone()
        said = "^rank 1: the store at h:5 does not answer: Connection reset by peer$"
        with self.assertRaisesRegex(Fault, said) as raised:
            meeting.agree({})
        self.assertEqual(raised.exception.kind, "peer")

    def test_an_error_without_words(self) -> None:
        for error, said in ((KeyboardInterrupt(), "KeyboardInterrupt"), (ValueError("a\nb"), "ValueError: a")):
            self.assertEqual(replay._fault(error).said, said)

    def test_differences(self) -> None:
        one = rendezvous.describe("f32", [one_rank()], {"layers": 1})
        self.assertEqual(rendezvous.differences([one, one]), "")
        said = rendezvous.differences([one, {**one, "host": "h"}, {**one, "torch": "2.1.0"},
                                       {**one, "torch": "9", "plans": "p"}])
        self.assertRegex(said, r"^rank 2 has torch 2\.1\.0, rank 3 has torch 9, rank 0 has \d.*: install")
        self.assertIn("; rank 3 has plans p, rank 0 has ", said)


class TestExact(unittest.TestCase):
    def check(self, meter: evenkeel.Meter) -> None:
        judge.counted("plan 3", 1, meter, expected(evenkeel.load_plan(worked_example())))

    def meter(self) -> evenkeel.Meter:
        """What rank 1 of the worked example must count."""
        meter, want = evenkeel.Meter(), expected(evenkeel.load_plan(worked_example()))
        meter.sent = {(p, j): n for (i, j, p), n in want.bytes.items() if i == 1}
        meter.received = {(p, i): n for (i, j, p), n in want.bytes.items() if j == 1}
        meter.flops = {d: want.flops[1, d] for d in ("fwd", "bwd")}
        return meter

    def test_equal(self) -> None:
        self.check(self.meter())

    def test_several_times(self) -> None:
        """Of what is run twice everything is counted twice."""
        meter, want = self.meter(), expected(evenkeel.load_plan(worked_example()))
        meter.add(self.meter(), range(4))
        judge.counted("plan 3", 1, meter, want, 2)
        with self.assertRaisesRegex(Fault, "^plan 3: rank 1 sent to"):
            judge.counted("plan 3", 1, meter, want)

    def test_unlike(self) -> None:
        """A byte more or less, a message too many or missing, a FLOP: each is named."""
        for side, word in (("sent", "sent to"), ("received", "received from")):
            for key in getattr(self.meter(), side):
                for n in (1, -1):
                    meter = self.meter()
                    getattr(meter, side)[key] += n
                    said = f"rank 1 {word} rank {key[1]} in {key[0]}: "
                    with self.assertRaisesRegex(Fault, said) as caught:
                        self.check(meter)
                    self.assertEqual(caught.exception.kind, "bytes")
            meter = self.meter()
            getattr(meter, side)["fwd.ring", 0] = 8
            with self.assertRaisesRegex(Fault, "fwd.ring: 8 bytes, the closed form says 0"):
                self.check(meter)
        for direction in ("fwd", "bwd"):
            meter = self.meter()
            meter.flops[direction] += 1
            said = f"rank 1 computed \\d+ FLOPs {direction}, the closed"
            with self.assertRaisesRegex(Fault, said) as caught:
                self.check(meter)
            self.assertEqual(caught.exception.kind, "flops")


class TestRecord(unittest.TestCase):
    def test_journal(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            journal, trace = Journal(os.path.join(folder, "j")), evenkeel.Trace(2)
            for block in range(2):
                for plan in (1, 0):
                    trace.zero()
                    trace.layer, trace.again = plan, bool(plan)
                    with trace.span(evenkeel.Span("fwd", 1, "attn", flops=5)):
                        pass
                    journal.step(block, plan, trace, 10**9)
                journal.end_block()
            parts = [[json.loads(x) for x in part.splitlines()] for part in journal.blocks()]
            journal.remove()
            self.assertEqual(os.listdir(folder), [])
        for block, lines in enumerate(parts):
            self.assertEqual([(x["t"], x["block"], x["plan"]) for x in lines],
                             [("span", block, 1), ("step", block, 1), ("span", block, 0), ("step", block, 0)])
            self.assertEqual(lines[1], {"t": "step", "block": block, "plan": 1, "rank": 2, "dur_ns": 10**9})
            self.assertEqual([lines[0].get("again"), lines[2].get("again")], [True, None])
            self.assertEqual((lines[0]["layer"], lines[0]["flops"], lines[0]["rank"]), (1, 5, 2))

    def test_a_full_disk_is_named(self) -> None:
        if not os.path.exists("/dev/full"):
            self.skipTest("this system has no /dev/full, a disk that is always full")
        journal, trace = Journal("/dev/full"), evenkeel.Trace(0)
        wires: Any = types.SimpleNamespace(world=types.SimpleNamespace(rank=0, size=1))
        journal.step(0, 0, trace, 1)
        journal.end_block()
        with self.assertRaisesRegex(Fault, "^/dev/full: No space left on device: .* TMPDIR$"):
            list(journal.blocks())
        with contextlib.suppress(OSError):
            journal._file.close()
        with tempfile.TemporaryDirectory() as folder:
            journal = Journal(os.path.join(folder, "j"))
            journal.step(0, 0, trace, 1)
            journal.end_block()
            with self.assertRaises(Fault) as raised:
                gather(journal, wires, "/dev/full")
            journal.remove()
        self.assertEqual(raised.exception.kind, "disk")

    def test_turns(self) -> None:
        """Who computes keeps the others from it, and nobody from waiting for messages."""
        here, there = (Recorder(r, torch.device("cpu"), Frames(), turns=True) for r in range(2))
        began: list[str] = []

        def other(op: str) -> None:
            with there.span(evenkeel.Span("fwd", 0, op)):
                began.append(op)

        for wait, compute in (("ring_wait", "linear_in"), ("grad_wait", "loss"), ("param_wait", "embed"),
                              ("a2a_in", "optimizer")):
            began.clear()
            with here.span(evenkeel.Span("fwd", 0, "attn")):
                threads = [threading.Thread(target=other, args=(op,)) for op in (wait, compute)]
                for t in threads:
                    t.start()
                threads[0].join(30)
                time.sleep(0.05)
                self.assertEqual(began, [wait])
            threads[1].join(30)
            self.assertEqual(began, [wait, compute])

    def test_place(self) -> None:
        for place, said in (
            (Place("block", 1, 3, 0, "fwd", 2, "attn"), "block 3, plan 1, layer 0, fwd step 2 attn"),
            (Place("warmup", 0, 1), "warmup block 1, plan 0"), (Place("meet"), "meet"),
            (Place("numerics", 2, step=7), "numerics, plan 2"), (Place("gather"), "gather"),
        ):
            self.assertEqual(str(place), said)

    def test_bare_attentions_are_recomputed(self) -> None:
        """Forward twice and backward once with recomputation, the second forward marked."""
        for recompute, forwards in ((False, 2), (True, 4)):
            marks, trace = [], evenkeel.Trace(0)

            def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                marks.append((trace.layer, trace.again))
                return q * 2

            bare = Bare(attend, 2, recompute, trace)  # type: ignore[arg-type]
            bare.forward(*(torch.ones(2, 1, 1) for _ in range(3)))
            bare.backward(torch.ones(2, 1, 1))
            self.assertEqual(len(marks), forwards)
            self.assertEqual(marks[2:], [(1, True), (0, True)] if recompute else [])


if __name__ == "__main__":
    unittest.main()
