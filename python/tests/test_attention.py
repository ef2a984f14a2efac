"""The executor on real ranks over gloo, against dense float64 attention and the closed forms.

Run by path, or `python -m unittest discover -s tests`, with an interpreter that has torch.
"""

from __future__ import annotations

import os
import sys
import time
import unittest
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import torch

import evenkeel
from plans import late_groups, random_plan, worked_example
from world import World

PLANS = [(seed, (2, 3, 4, 5, 4, 5)[seed % 6]) for seed in range(60)]


class TestRanks(unittest.TestCase):
    """All tests share five ranks, but for those in which one dies."""

    world: World

    @classmethod
    def setUpClass(cls) -> None:
        cls.world = World(5)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.world.__exit__()

    def answers(self, ranks: int, name: str, *args: Any) -> list[Any]:
        """What the ranks of a job answered, without errors."""
        out = self.world.run(name, *args)
        for rank, answer in enumerate(out):
            self.assertNotIn("error", answer, f"{name}{args} on rank {rank}")
        return [answer["ok"] for answer in out[:ranks]]

    def counts(self, plan: evenkeel.Plan, answers: list[Any], want: evenkeel.Expected) -> None:
        """Bytes and FLOPs are the closed forms', as integers."""
        sent = {(r, peer, phase): n for r, a in enumerate(answers) for phase, peer, n in a["sent"]}
        received = {(peer, r, phase): n for r, a in enumerate(answers) for phase, peer, n in a["received"]}
        flops = {(r, d): n for r, a in enumerate(answers) for d, n in a["flops"].items()}
        self.assertEqual(sent, want.bytes)
        self.assertEqual(received, want.bytes)
        self.assertEqual(flops, {key: n for key, n in want.flops.items() if n})

    def test_random_plans(self) -> None:
        worst = [0.0] * 4
        for seed, ranks in PLANS:
            with self.subTest(seed=seed, ranks=ranks):
                answers = self.answers(ranks, "compare", seed, ranks)
                document, docs = random_plan(seed, ranks)
                plan = evenkeel.load_plan(document)
                self.counts(plan, answers, evenkeel.expected(plan, docs=docs))
                for rank, answer in enumerate(answers):
                    self.assertLessEqual(max(answer["errors"]), 1e-5, f"rank {rank}: out, dq, dk, dv")
                    worst = [max(a, b) for a, b in zip(worst, answer["errors"])]
        print("worst relative errors of out, dq, dk, dv: " + ", ".join(f"{w:.1e}" for w in worst))

    def test_half_precision(self) -> None:
        for seed in (4, 9, 22, 31):
            with self.subTest(seed=seed):
                answers = self.answers(5, "compare", seed, 5, "bfloat16")
                document, docs = random_plan(seed, 5)
                plan = evenkeel.load_plan(document)
                self.counts(plan, answers, evenkeel.expected(plan, 2, docs))
                for answer in answers:
                    self.assertLessEqual(max(answer["errors"]), 1e-2)

    def test_kernels_that_repeat_heads(self) -> None:
        for seed in (0, 6, 14, 26, 38):
            with self.subTest(seed=seed):
                for answer in self.answers(4, "compare", seed, 4, "float32", "Even"):
                    self.assertLessEqual(max(answer["errors"]), 1e-5)

    def test_any_timing(self) -> None:
        """Buffers are reused only when nobody reads them, whoever is early."""
        for seed in range(200, 220):
            with self.subTest(seed=seed):
                for answer in self.answers(5, "compare", seed, 5, "float32", "Jittered"):
                    self.assertLessEqual(max(answer["errors"]), 1e-5)

    def test_order_of_batches(self) -> None:
        for seed in range(0, 60, 3):
            ranks = dict(PLANS)[seed]
            with self.subTest(seed=seed, ranks=ranks):
                for answer in self.answers(ranks, "inline", seed, ranks):
                    self.assertLessEqual(max(answer["errors"]), 1e-5)

    @unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
    def test_on_one_gpu(self) -> None:
        """All ranks on one GPU with its own kernels, messages through the host."""
        for seed in range(100, 130):
            with self.subTest(seed=seed):
                for answer in self.answers(5, "compare", seed, 5, "bfloat16", "default", "cuda"):
                    self.assertLessEqual(max(answer["errors"]), 1e-2)

    def test_worked_example(self) -> None:
        self.twice(worked_example())

    def test_late_groups(self) -> None:
        self.twice(late_groups(), True)

    def twice(self, document: Any, *args: Any) -> None:
        """Four ranks ran a plan twice, as it should be."""
        answers = self.answers(4, "example", *args)
        plan = evenkeel.load_plan(document)
        self.counts(plan, answers, evenkeel.expected(plan))
        for answer in answers:
            self.assertLessEqual(max(answer["errors"]), 1e-5)
            self.assertTrue(answer["same"], "the same inputs gave other bits")

    def test_two_layers(self) -> None:
        for answer in self.answers(3, "layers"):
            self.assertLessEqual(answer, 1e-5)

    def test_trace(self) -> None:
        for rank, answer in enumerate(self.answers(4, "traced")):
            spans = answer["spans"]
            for direction in ("fwd", "bwd"):
                mine = [s for s in spans if s["dir"] == direction]
                self.assertEqual({s["op"] for s in mine}, {"a2a_in", "ring_wait", "attn", "merge", "a2a_out"})
                self.assertEqual(sum(s["flops"] for s in mine), answer["flops"][direction])
                ring = [s["bytes_in"] for s in mine if s["op"] == "ring_wait"]
                got = [n for phase, _, n in answer["received"] if phase == direction + ".ring"]
                self.assertEqual(sum(ring), sum(got))
                for op in ("a2a_in", "a2a_out"):
                    for key, side in (("bytes_out", "sent"), ("bytes_in", "received")):
                        want = sum(n for phase, _, n in answer[side] if phase == f"{direction}.{op}")
                        self.assertEqual(sum(s[key] for s in mine if s["op"] == op), want)
            ends = 0
            for s in sorted(spans, key=lambda s: s["t0_ns"]):
                self.assertEqual((s["rank"], s["mb"]), (rank, 0))
                self.assertGreaterEqual(s["t0_ns"], ends, "spans of one rank do not overlap")
                ends = s["t0_ns"] + s["dur_ns"]


class TestCorpus(unittest.TestCase):
    """The random plans hold what they are there for."""

    def test_kinds(self) -> None:
        kinds: dict[str, int] = {}
        for seed, ranks in PLANS:
            document, docs = random_plan(seed, ranks)
            for kind in _kinds(evenkeel.load_plan(document), docs):
                kinds[kind] = kinds.get(kind, 0) + 1
        for kind, least in (("no tokens", 8), ("no heads", 8), ("cut KV head", 15), ("documents", 15),
                            ("idle", 3), ("mixed groups", 12), ("ring of 4 or more", 5), ("one group", 5)):
            self.assertGreaterEqual(kinds.get(kind, 0), least, f"{kind}: {kinds}")


def _kinds(plan: evenkeel.Plan, docs: Any) -> set[str]:
    each, out = plan.q_heads // plan.kv_heads, set()
    seated = [m for g in plan.groups for m in g]
    borders = [sum(m.q_heads for m in g[:i]) for g in plan.groups for i in range(len(g))]
    for kind, holds in (
        ("no tokens", any(not plan.tokens(m.rank) for m in seated)),
        ("no heads", any(not m.q_heads for m in seated)),
        ("cut KV head", any(b % each for b in borders)), ("documents", docs is not None),
        ("idle", len(seated) < plan.ranks), ("ring of 4 or more", len(plan.groups) > 3),
        ("mixed groups", len({len(g) for g in plan.groups}) > 1), ("one group", len(plan.groups) == 1),
    ):
        if holds:
            out.add(kind)
    return out


class TestFailures(unittest.TestCase):
    def test_a_rank_dies(self) -> None:
        with World(4) as world:
            begin = time.monotonic()
            answers = world.run("leave")
            self.assertEqual(answers[2], {"error": "gone"})
            for rank in (0, 1, 3):
                self.heard(rank, answers[rank])
            self.assertLess(time.monotonic() - begin, 60, "that is when gloo gives up by itself")

    def test_a_rank_stands_still(self) -> None:
        with World(4) as world:
            for rank, answer in zip((0, 2, 3), world.run("stall", 5, 300, heard=(0, 2, 3))):
                self.heard(rank, answer)

    def heard(self, rank: int, answer: Any) -> None:
        """The rank says whom it waited for, and when."""
        said = answer.get("error", "nothing")
        self.assertRegex(said, rf"rank {rank}: (fwd|bwd)\.\w+ step \d: (from|to) rank \d: .")


if __name__ == "__main__":
    unittest.main()
