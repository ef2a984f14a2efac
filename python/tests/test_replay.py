"""The rank program of `evenkeel replay` on real gloo ranks: what it records, and how it fails."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import unittest
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import evenkeel
from plans import chunked_example, document, late_groups, worked_example
from starter import Ranks

MODEL = {"hidden": 48, "ffn": 80, "layers": 2, "vocab": 100, "gated_mlp": True, "tied_embeddings": True}


def complete(
    plan: dict[str, Any], recompute: str = "none", dtype: str = "f32", **model: Any
) -> dict[str, Any]:
    """A plan document with what a whole layer needs."""
    plan["job"].update(recompute=recompute, dtype=dtype)
    plan["job"]["model"].update({**MODEL, **model})
    for rank in plan["ranks"]:
        rank["device"] = "torch_cpu:1"
    return plan


def odd_example() -> dict[str, Any]:
    """The worked example's problem with a rank of no tokens, one of no heads and one without work."""
    segments: list[list[tuple[int, int]]] = [[(0, 200), (600, 768)], [], [(200, 600)], []]
    return document(segments, [[(0, 0), (1, 12)], [(2, 12)]], 12, 4, 16)


def one_rank(tokens: int = 64) -> dict[str, Any]:
    return complete(document([[(0, tokens)]], [[(0, 4)]], 4, 2, 8))


# Text for a rank that stands still, or dies, in the third backward block it computes.
THIRD = """
import os, signal, time
from evenkeel.kernels import Math
run, calls = Math.backward, []
def changed(self, *args):
    calls.append(0)
    if len(calls) == 3:
        {do}
    return run(self, *args)
Math.backward = changed
"""


class TestReplay(unittest.TestCase):
    def results(self, ranks: Ranks) -> list[dict[str, Any]]:
        """The last frames, all of them results."""
        ends = ranks.ends()
        for r, end in enumerate(ends):
            self.assertEqual(end["t"], "result", f"rank {r}: {end}")
        return ends

    def recording(self, ranks: Ranks) -> list[dict[str, Any]]:
        with open(ranks.traces[0], encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def test_several_plans(self) -> None:
        """Heads that cut KV groups, ranks without tokens, heads or work, blocks that nobody else needs,
        documents, recomputation, own blocks that are the last."""
        documents = [complete(worked_example()), complete(odd_example()), complete(late_groups(), "full")]
        documents[1]["own_last"] = documents[2]["own_last"] = True
        documents[1]["job"]["grad_accumulation"] = 2  # a step is one micro-batch all the same
        docs, layers, repeats = [300, 1, 467], 2, 3
        with Ranks(documents, 4, docs_tokens=docs, layers=layers, repeats=repeats, warmup=1, seed=5) as ranks:
            result = self.results(ranks)[0]
            lines = self.recording(ranks)
            self.assertEqual(sorted(os.listdir(os.path.dirname(ranks.traces[0]))), ["trace.rank0.jsonl"])
        self.assertEqual([(r["rank"], r["threads"]) for r in result["ranks"]], [(r, 1) for r in range(4)])
        for i, plan in enumerate(documents):
            want = evenkeel.expected(evenkeel.load_plan(plan), docs=docs)
            self.check_result(result, i, want)
            again = 1 if plan["job"]["recompute"] == "full" else 0
            for rank in range(4):
                self.check_steps(lines, i, rank, layers, again, want, repeats)
        steps = [x for x in lines if x["t"] == "step"]
        self.assertEqual((result["steps"], result["spans"]), (len(steps), len(lines) - len(steps)))
        orders = self.check_order(steps, repeats)
        self.assertGreater(len(orders), 1, "three blocks of three plans in one order")

    def test_heads_in_chunks(self) -> None:
        """Plans of one group: a rank without heads, two without tokens, one with fewer KV heads than chunks,
        recomputation."""
        segments = [[(0, 64), (704, 768)], [(64, 256)], [(256, 300), (512, 704)], [(300, 512)]]
        four = document(segments, [[(0, 7), (1, 0), (2, 2), (3, 3)]], 12, 4, 16)
        documents = [complete({**four, "head_chunks": 4}, "full"), complete(chunked_example(3))]
        docs, layers, repeats = [300, 1, 467], 2, 2
        with Ranks(documents, 4, docs_tokens=docs, layers=layers, repeats=repeats, warmup=1, seed=5) as ranks:
            result = self.results(ranks)[0]
            lines = self.recording(ranks)
        for i, (plan, chunks, again) in enumerate(zip(documents, (4, 3), (1, 0))):
            want = evenkeel.expected(evenkeel.load_plan(plan), docs=docs)
            self.check_result(result, i, want)
            for rank in range(4):
                self.check_steps(lines, i, rank, layers, again, want, repeats)
            self.check_chunks([x for x in lines if x["t"] == "span" and x["plan"] == i], chunks,
                              4 * layers * repeats * (2 + again))

    def check_chunks(self, spans: list[Any], chunks: int, passes: int) -> None:
        """Every chunk was waited for once in every pass, and what left at the end of it. The first chunk is
        not named, nor one where there is none."""
        for op, want in (("a2a_in", [passes] * chunks), ("a2a_out", [0] * (chunks - 1) + [passes]),
                         ("linear_in", None)):
            of = [s.get("chunk", 0) for s in spans if s["op"] == op]
            self.assertEqual([of.count(c) for c in range(chunks)], want or [len(of)] + [0] * (chunks - 1))
        self.assertEqual({s["chunk"] for s in spans if "chunk" in s}, set(range(1, chunks)))

    def check_result(self, result: dict[str, Any], plan: int, want: evenkeel.Expected) -> None:
        """A plan's attention and layer are right, and what was counted is what was expected."""
        numerics, exact = result["numerics"][plan], result["exact"][plan]
        for errors, names, limit in ((numerics, ("out", "dq", "dk", "dv"), 1e-5),
                                     (numerics["layer"], ("out", "dx"), 2e-5)):
            self.assertEqual(errors["limit"], limit)
            for name in names:
                self.assertGreater(errors[name], 0)
                self.assertLessEqual(errors[name], limit)
        self.assertEqual((numerics["plan"], numerics["reference"], numerics["rows"]), (plan, "dense", 0))
        self.assertEqual(exact, {
            "plan": plan, "messages": len(want.bytes), "bytes": sum(want.bytes.values()),
            "flops": sum(want.flops.values())})

    def check_steps(
        self, lines: list[Any], plan: int, rank: int, layers: int, again: int, want: evenkeel.Expected,
        repeats: int,
    ) -> None:
        """The spans of one rank in every step of one plan."""
        for block in range(repeats):
            mine = [x for x in lines if (x["block"], x["plan"], x["rank"]) == (block, plan, rank)]
            step, spans = mine[-1], mine[:-1]
            self.assertEqual(step["t"], "step")
            end = 0
            for s in spans:
                self.assertGreaterEqual(s["t0_ns"], end)
                end = s["t0_ns"] + s["dur_ns"]
            self.assertGreaterEqual(step["dur_ns"], end)
            for layer in range(layers):
                of = [s for s in spans if s["layer"] == layer]
                for direction, times in (("fwd", 1 + again), ("bwd", 1)):
                    attn = [s for s in of if s["dir"] == direction and s["op"] == "attn"]
                    due = want.flops.get((rank, direction), 0)
                    self.assertEqual(sum(s["flops"] for s in attn), times * due)
                    sent = sum(n for (r, _, p), n in want.bytes.items()
                               if r == rank and p in (direction + ".a2a_in", direction + ".a2a_out"))
                    of_a2a = [s for s in of if s["dir"] == direction and s["op"].startswith("a2a")]
                    self.assertEqual(sum(s["bytes_out"] for s in of_a2a), times * sent)
                self.check_linear(of, rank, plan, again)

    def check_linear(self, spans: list[Any], rank: int, plan: int, again: int) -> None:
        """Linear parts are there once a pass, where there are tokens; marked if they are a forward made
        again."""
        tokens = (plan != 1) or rank in (0, 2)
        for direction in ("fwd", "bwd"):
            for op in ("linear_in", "linear_out"):
                of = [s for s in spans if s["dir"] == direction and s["op"] == op]
                marks = [s.get("again", False) for s in of]
                want = [False, True] if again and direction == "fwd" else [False]
                self.assertEqual(marks, want if tokens else [])

    def check_order(self, steps: list[Any], repeats: int) -> set[Any]:
        """Every block has every plan once, in one order at all ranks; returns the orders."""
        orders = set()
        for block in range(repeats):
            of = [tuple(s["plan"] for s in steps if (s["block"], s["rank"]) == (block, r)) for r in range(4)]
            self.assertEqual(len(set(of)), 1)
            self.assertEqual(sorted(of[0]), [0, 1, 2])
            orders.add(of[0])
        return orders

    def test_sampled_in_half_precision(self) -> None:
        plan = complete(document([[(0, 100), (350, 500)], [(100, 350)], [(500, 600)]],
                                 [[(0, 3), (1, 5)], [(2, 8)]], 8, 2, 16), dtype="bf16")
        with Ranks([plan], 3, repeats=1, warmup=0, sampled_above=300) as ranks:
            numerics = self.results(ranks)[0]["numerics"][0]
        self.assertEqual((numerics["reference"], numerics["rows"], numerics["limit"]), ("sampled", 256, 1e-2))
        for name in ("out", "dq", "dk", "dv"):
            self.assertGreater(numerics[name], 1e-5)
            self.assertLessEqual(numerics[name], 1e-2)
        self.assertIn("600 tokens", numerics["layer"]["skipped"])

    def test_attention_alone(self) -> None:
        plans = [complete(document([[(0, 300)], [(300, 400)]], [[(0, 6)], [(1, 6)]], 6, 2, 8), r)
                 for r in ("none", "full")]
        with Ranks(plans, 2, parts="attention", layers=2, repeats=2, warmup=0, sampled_above=64,
                   turns=True) as ranks:
            result = self.results(ranks)[0]
            lines = self.recording(ranks)
        for i, numerics in enumerate(result["numerics"]):
            self.assertNotIn("layer", numerics)
            self.assertLessEqual(max(numerics[n] for n in ("out", "dq", "dk", "dv")), 1e-5)
            spans = [x for x in lines if x["t"] == "span" and x["plan"] == i]
            self.assertEqual({s["layer"] for s in spans}, {0, 1})
            self.assertFalse({s["op"] for s in spans} & {"linear_in", "linear_out"})
            self.assertEqual(any(s.get("again") for s in spans), i == 1)


class TestFailures(unittest.TestCase):
    def errors(self, ranks: Ranks, of: list[int], kind: str) -> list[dict[str, Any]]:
        """The last frames of some ranks, errors of a kind; the processes then end with 1."""
        ends = ranks.ends()
        for r in of:
            self.assertEqual((ends[r]["t"], ends[r].get("class")), ("error", kind), f"rank {r}: {ends[r]}")
            self.assertEqual(ranks.processes[r].wait(10), 1)
        return [ends[r] for r in of]

    def plan(self) -> dict[str, Any]:
        segments = [[(0, 100)], [(100, 200)], [(200, 300)]]
        return complete(document(segments, [[(0, 4)], [(1, 4)], [(2, 4)]], 4, 2, 8))

    def test_another_torch(self) -> None:
        with Ranks([self.plan()], 3, {2: "import torch; torch.__version__ = '2.1.0'"}) as ranks:
            for end in self.errors(ranks, [0, 1, 2], "versions"):
                self.assertRegex(end["msg"], r"rank 2 has torch 2\.1\.0, rank 0 has \d")
                self.assertEqual(end["at"], "meet")

    def test_a_rank_is_killed(self) -> None:
        dies = THIRD.format(do="os.kill(os.getpid(), signal.SIGKILL)")
        with Ranks([self.plan()], 3, {1: dies}, check=False) as ranks:
            for end in self.errors(ranks, [0, 2], "peer"):
                # Whoever waits for a rank that left because of rank 1 says so, and what that one said.
                self.assertRegex(end["msg"], r"rank [02]: bwd\.\w+ step \d: (from|to) rank 1: .")
                self.assertRegex(end["at"], r"^warmup block \d, plan 0, layer 0, bwd step \d \w+$")
            self.assertEqual(ranks.processes[1].wait(), -signal.SIGKILL)
            self.assertFalse(any(os.path.exists(t) for t in ranks.traces))

    def test_a_rank_stands_still(self) -> None:
        still = THIRD.format(do="time.sleep(300)")
        with Ranks([self.plan()], 3, {1: still}, check=False, timeout_s=12, parts="attention") as ranks:
            begin = time.monotonic()
            for r, waits_for in ((0, "[12]"), (2, "1")):  # rank 2 sends to rank 0 what it has from rank 1
                end = ranks.frames(r)[-1]
                self.assertEqual((end["t"], end["class"]), ("error", "peer"))
                self.assertRegex(end["msg"], rf"bwd\.\w+ step \d: (from|to) rank {waits_for}: .")
            self.assertLess(time.monotonic() - begin, 60)
            beats = ranks.frames(1, "warmup")
            self.assertIn("hello", [b["t"] for b in beats])  # a busy rank may say before that it lives

    def test_wrong_gradients(self) -> None:
        """All ranks hear that one of them computes something else."""
        wrong = ("from evenkeel.kernels import Math\nrun = Math.backward\n"
                 "def changed(*args):\n    dq, dk, dv = run(*args)\n    return dq, dk * 1.001, dv\n"
                 "Math.backward = changed")
        with Ranks([self.plan()], 3, {2: wrong}) as ranks:
            for end in self.errors(ranks, [0, 1, 2], "numerics"):
                self.assertRegex(end["msg"], r"plan 0 attention: rank \d: dk is off by \d.* 1e-05$")
                self.assertTrue(end["at"].startswith("numerics, plan 0"), end["at"])

    def test_starter_is_gone(self) -> None:
        with Ranks([one_rank()], 1, repeats=10**6, warmup=0, check=False) as ranks:
            ranks.frames(0, "block")
            ranks.processes[0].stdin.close()
            self.assertEqual(ranks.processes[0].wait(10), 1)


if __name__ == "__main__":
    unittest.main()
