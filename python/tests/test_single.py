"""One process: plans of one rank, refusals, counters and traces, the lane's failures, the manual."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest
import weakref
from typing import Any, Iterator, Optional, Sequence
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import torch

import evenkeel
import pipelines
from evenkeel.lane import Lane
from evenkeel.port import Port
from jobs import errors, inputs, run
from plans import document, worked_example


def alone(seq_len: int = 40) -> evenkeel.Plan:
    """All tokens and heads at one rank."""
    return evenkeel.load_plan(document([[(0, seq_len)]], [[(0, 6)]], 6, 2, 8))


class TestOneRank(unittest.TestCase):
    def test_without_process_group(self) -> None:
        for docs in (None, [15, 1, 24]):
            plan, meter = alone(), evenkeel.Meter()
            whole = inputs(plan, 1)
            got = run(plan, 0, whole, None, docs, meter=meter)
            self.assertLess(max(errors(plan, 0, got, whole, docs)), 1e-5)
            want = evenkeel.expected(plan, docs=docs)
            self.assertEqual((meter.sent, want.bytes), ({}, {}))
            self.assertEqual(meter.flops, {d: want.flops[0, d] for d in ("fwd", "bwd")})

    def test_autocast_changes_nothing(self) -> None:
        plan, results = alone(), []
        for on in (False, True):
            whole = inputs(plan, 1)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
                results.append(run(plan, 0, whole, None, None))
        for without, under in zip(*results):
            self.assertTrue(torch.equal(without, under))

    def test_a_backend_for_each_kind_of_device(self) -> None:
        """As a process group has that was made without a name, or with one for each."""
        for named, config, device, nccl in (
            ("nccl", "", "cuda", True), ("gloo", "", "cuda", False),
            ("undefined", "cpu:gloo,cuda:nccl", "cuda", True),
            ("cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo", "cuda", True),
            ("cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo", "cpu", False),
        ):
            known = {"is_initialized": True, "get_world_size": 1, "get_rank": 0, "get_backend": named,
                     "get_backend_config": config}
            with contextlib.ExitStack() as stack, self.subTest(named=named, device=device):
                for name, value in known.items():
                    fake = mock.patch(f"torch.distributed.{name}", return_value=value, create=True)
                    stack.enter_context(fake)
                port = Port(0, 1, None, evenkeel.Meter(), torch.device(device))
                self.assertEqual(port.nccl, nccl)

    def test_idle_rank(self) -> None:
        """Ranks without work have their place in the graph."""
        plan = evenkeel.load_plan({**document([[(0, 8)], []], [[(0, 2)]], 2, 1, 4), "own_last": True})
        empty = [torch.zeros(0, h, 4, requires_grad=True) for h in (2, 1, 1)]
        with mock.patch("evenkeel.executor.Port"):
            out = evenkeel.attention(plan, 1, *empty)
            evenkeel.begin_backward(out)
            out.sum().backward()
        for x in empty:
            assert x.grad is not None
            self.assertEqual(x.grad.shape, x.shape)

    def test_refused(self) -> None:
        plan = alone()
        q, k, v, _ = inputs(plan, 1)
        four, kv = evenkeel.load_plan(worked_example()), torch.zeros(128, 4, 16)
        for args, said in (
            ((plan, 1, q, k, v), "rank: 1: the plan has ranks 0 to 0"),
            ((plan, 0, q[1:], k, v), r"q: shape \[39, 6, 8\]: rank 0 of the plan has \[40, 6, 8\]"),
            ((plan, 0, q, k, v[:, :1]), r"v: shape \[40, 1, 8\]"),
            ((plan, 0, q, k.half(), v), "k: torch.float16 on cpu: want that of q"),
            ((plan, 0, q.int(), k.int(), v.int()), "q: torch.int32: want a floating-point type"),
            ((four, 0, torch.zeros(128, 12, 16), kv, kv), "the plan has 4 ranks: call init_process_group"),
        ):
            with self.subTest(said), self.assertRaisesRegex(ValueError, said):
                evenkeel.attention(*args)
        with self.assertRaisesRegex(evenkeel.PlanError, "docs: 3 tokens in all"):
            evenkeel.attention(plan, 0, q, k, v, docs=[3])

    def test_nothing_to_begin(self) -> None:
        """Neither without a ring nor without a graph, and what is no attention's output is refused."""
        plan = evenkeel.load_plan({**document([[(0, 40)]], [[(0, 6)]], 6, 2, 8), "own_last": True})
        whole = inputs(plan, 1)
        with mock.patch("evenkeel.ring.Back.begin", side_effect=AssertionError("begun")):
            got = run(plan, 0, whole, None, None, 1)
            evenkeel.begin_backward(evenkeel.attention(plan, 0, *whole[:3]))
        self.assertLess(max(errors(plan, 0, got, whole, None)), 1e-5)
        leaf = whole[0].requires_grad_()
        out = evenkeel.attention(plan, 0, leaf, *whole[1:3])
        for wrong, said in ((leaf, "out: a leaf: want the tensor that attention returned"),
                            (out * 2, "out: made by MulBackward0: want"),
                            (out[:], "out: made by SliceBackward0: want")):
            with self.assertRaisesRegex(ValueError, said):
                evenkeel.begin_backward(wrong)

    def test_trace_file(self) -> None:
        plan, trace = alone(), evenkeel.Trace(0)
        run(plan, 0, inputs(plan, 1), None, None, trace=trace)
        before = len(trace.spans())
        trace.zero()
        self.assertEqual((trace.spans(), before > 4), ([], True))
        trace.mb = 3
        run(plan, 0, inputs(plan, 1), None, None, trace=trace)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rank0.jsonl")
            trace.write(path)
            with open(path, encoding="utf-8") as lines:
                spans = [json.loads(line) for line in lines]
        self.assertEqual(spans, trace.spans())
        (attn,) = [s for s in spans if s["op"] == "attn" and s["dir"] == "fwd"]
        shape = {"mask": "diag", "q_len": 40, "kv_len": 40, "q_heads": 6, "kv_heads": 2, "head_dim": 8}
        self.assertEqual((attn["shape"], attn["mb"]), (shape, 3))


class TestLane(unittest.TestCase):
    def test_program_fails(self) -> None:
        """Who waits for a mark hears why it never comes."""
        def program() -> Iterator[None]:
            yield
            raise ValueError("out of wire")

        with self.assertRaisesRegex(evenkeel.LaneError, "the ring stopped: out of wire"):
            with Lane(torch.device("cpu"), inline=False) as lane:
                (mark,) = lane.marks(1)
                lane.add(program(), None)
                lane.start()
                mark.wait()

    def test_computing_fails(self) -> None:
        """The program does not wait on for what is no longer computed, and the error stays what it was."""
        heard: list[BaseException] = []
        lane = Lane(torch.device("cpu"), inline=False)
        (mark,) = lane.marks(1)

        def program() -> Iterator[None]:
            try:
                mark.wait()
            except evenkeel.LaneError as error:
                heard.append(error)
            yield

        with self.assertRaisesRegex(ZeroDivisionError, "division"):
            with lane:
                lane.add(program(), None)
                lane.start()
                1 / 0
        with self.assertRaises(evenkeel.LaneError):
            lane.finish(mark)
        self.assertIn("division", str(heard[0]))

    def test_inline(self) -> None:
        """Where calls return at once the program runs step by step, and waiting out of order is an error, not
        a standstill."""
        lane, done = Lane(torch.device("cpu"), inline=True), []
        first, never = lane.marks(2)

        def program() -> Iterator[None]:
            for i in range(2):
                first.set()
                done.append(i)
                yield

        lane.add(program(), None)
        lane.start()
        lane.advance()
        self.assertEqual(done, [0])
        first.wait()
        with self.assertRaisesRegex(AssertionError, "out of order"):
            never.wait()
        lane.finish(first)
        self.assertEqual(done, [0, 1])

    def test_turns(self) -> None:
        """Programs of one lane go on one after the other; the first ring is over at its mark, with all that comes
        before it and no more, and what messages leave from is kept until the last one is."""
        for inline in (True, False):
            with self.subTest(inline=inline), Lane(torch.device("cpu"), inline) as lane:
                done: list[str] = []
                over = dict(zip("AB", lane.marks(2)))
                (last,) = lane.marks(1)
                places = [torch.empty(1) for _ in over]
                kept = [weakref.ref(x) for x in places]

                def program(name: str, turns: int) -> Iterator[None]:
                    for i in range(turns):
                        done.append(f"{name}{i}")
                        yield
                    over[name].set()
                    yield
                    last.wait()
                    done.append(f"{name} ends")

                for name, turns in (("A", 2), ("B", 3)):
                    lane.add(program(name, turns), places.pop())
                for _ in range(2):
                    lane.start()
                lane.advance()
                lane.finish(over["A"])
                self.assertEqual(done[:4], ["A0", "B0", "A1", "B1"])
                self.assertEqual([ref() is None for ref in kept], [False, False])
                if inline:
                    self.assertEqual(done[4:], [])
                last.set()
                lane.finish(over["B"])
                self.assertEqual(done[4:], ["B2", "A ends", "B ends"])
                self.assertEqual([ref() is None for ref in kept], [True, True])


class TestManual(unittest.TestCase):
    def test_example(self) -> None:
        """The README's example runs as it stands, on two ranks."""
        self.assertRegex(self.said(self.example())[0], r"rank 0: 26 tokens, 0\.\d+ GFLOP forward")

    def test_a_backward_that_never_comes(self) -> None:
        """Ranks that have begun one end as others do."""
        code, n = re.subn(r"out\.sum\(\)\.backward\(\).*", "evenkeel.begin_backward(out)", self.example())
        code, m = re.subn(r"print\(.*", "print('begun', dist.get_rank())", code)
        self.assertEqual((n, m), (1, 1))
        self.assertRegex(self.said(code)[1], "begun 1")

    def test_two_micro_batches(self) -> None:
        """The README's layer for two, which goes on from the example."""
        self.assertRegex(self.said(self.example() + self.example(1))[0], r"two micro-batches: \d+\.\d{3}")

    def test_a_stage_of_a_pipeline(self) -> None:
        """The README's loss begins where a model that knows nothing does."""
        orders = [[(0, False), (1, False), (1, True), (0, True)]] * 2
        plan = pipelines.document([30, 7], [((0, 0, 20), []), ((0, 20, 10), [1])], [([0], 2), ([1], 1)], orders,
                                  [[1, 0], [0, 1]], (4, 2, 8))
        said = self.said(self.example(2), {**plan, "devices": ["cpu"] * 2}, "p.plan.json")
        self.assertEqual(said[0], "")
        self.assertRegex(said[1], r"^loss (4|5)\.\d{3}\n$")

    def test_several_tasks(self) -> None:
        """The README's loss begins where a model that knows nothing does."""
        def module(name: str, layers: int, seq_len: int, hidden: int, after: Sequence[str] = ()) -> dict[str, Any]:
            shape = {"seq_len_tokens": seq_len, "hidden": hidden, "ffn": 64, "q_heads": 2}
            return {"name": name, "layers": layers, "batch_samples": 4, "after": list(after), "shape": shape}

        runs = [(0, 1, [1], [4]), (0, 1, [0, 1], [3, 1]), (1, 2, [0, 1], [1, 3])]
        plan = {
            "schema": "evenkeel.taskplan/v1", "dtype": "f32", "devices": [{"device": "cpu", "ranks": [[0, 1]]}],
            "modules": [module("vision", 2, 5, 32), module("text", 2, 7, 16, ["vision"])],
            "runs": [dict(zip(("module", "layers", "ranks", "samples"), run)) for run in runs],
        }
        said = self.said(self.example(3), plan, "t.plan.json")
        self.assertRegex(said[0], r"^loss (4|5)\.\d{3}\n$")
        self.assertEqual(said[0], said[1])

    def test_batches(self) -> None:
        """The README's loss begins where a model that knows nothing does."""
        micro = [[(0, [0, 1], [2, 0])], [(1, [0], [1]), (2, [1], [3])]]
        plan = {
            "schema": "evenkeel.batchplan/v1", "lengths_tokens": [40, 12, 31, 9],
            "fleet": [{"device": "a", "ranks": [[0]]}, {"device": "b", "ranks": [[1]]}],
            "classes": [{"devices": [1, 1], "shares": [0.7, 0.3], "head_ranks": 2, "q_heads": [3, 1]}, {"devices": [1, 0]},
                        {"devices": [0, 1]}],
            "micro_batches": [{"groups": [dict(zip(("class", "ranks", "sequences"), g)) for g in side]} for side in micro],
        }
        said = self.said(self.example(4), plan, "b.plan.json")
        self.assertRegex(said[0], r"^loss (4|5)\.\d{3}\n$")
        self.assertEqual(said[0], said[1])

    def example(self, number: int = 0) -> str:
        with open(os.path.join(HERE, "..", "README.md"), encoding="utf-8") as file:
            return re.findall(r"```python\n(.*?)```", file.read(), re.DOTALL)[number]  # later ones need a server

    def said(self, code: str, plan: Optional[dict[str, Any]] = None, name: str = "plan.json") -> list[str]:
        """What two ranks of a program say."""
        if plan is None:
            plan = document([[(0, 20), (90, 96)], [(20, 90)]], [[(0, 3)], [(1, 3)]], 3, 1, 8)
            plan["own_last"] = True
        with tempfile.TemporaryDirectory() as folder:
            for name, text in ((name, json.dumps(plan)), ("example.py", code)):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
            port = _free_port()
            ranks = [_start(folder, r, port) for r in range(2)]
            said = [p.communicate(timeout=120)[0] for p in ranks]
        self.assertEqual([p.returncode for p in ranks], [0, 0], said)
        return said


def _start(folder: str, rank: int, port: int) -> "subprocess.Popen[str]":
    """A rank as a launcher starts it."""
    env = {
        **os.environ, "PYTHONPATH": os.path.dirname(HERE), "OMP_NUM_THREADS": "1", "RANK": str(rank),
        "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "CUDA_VISIBLE_DEVICES": "",
    }
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-B", "example.py"], cwd=folder, env=env, text=True, stdout=pipe,
                            stderr=subprocess.STDOUT)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


if __name__ == "__main__":
    unittest.main()
