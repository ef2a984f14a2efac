"""Sequences side by side on real ranks over gloo: the same bits as one after the other, and what leaves when.

Run by path, or `python -m unittest discover -s tests`, with an interpreter that has torch.
"""

from __future__ import annotations

import os
import sys
import unittest
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import torch

import evenkeel
from evenkeel.layout import Layout
from paired import drawn_plan
from world import World

PAIRS = [("random", seed, (2, 3, 4, 5)[seed % 4]) for seed in range(300, 328)]
PAIRS += [("early", seed, (2, 3, 4, 5, 6)[seed % 5]) for seed in range(300, 330)]


class TestPairs(unittest.TestCase):
    """All tests share six ranks."""

    world: World

    @classmethod
    def setUpClass(cls) -> None:
        cls.world = World(6)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.world.__exit__()

    def answers(self, ranks: int, name: str, *args: Any) -> list[Any]:
        """What the ranks of a job answered, without errors."""
        out = self.world.run("paired." + name, *args)
        for rank, answer in enumerate(out):
            self.assertNotIn("error", answer, f"{name}{args} on rank {rank}")
        return [answer["ok"] for answer in out[:ranks]]

    def check_pair(self, job: str, drawn: str, seed: int, ranks: int, *more: Any) -> list[Any]:
        """Two sequences of a drawn plan are as they should be on every rank."""
        answers = self.answers(ranks, job, seed, ranks, drawn, *more)
        document, docs = drawn_plan(drawn, seed, ranks)
        plan = evenkeel.load_plan(document)
        element = 2 if "bfloat16" in more else 4
        want, layout = evenkeel.expected(plan, element, docs=docs), Layout(plan)
        sent = {(r, peer, phase): n for r, a in enumerate(answers) for phase, peer, n in a["sent"]}
        received = {(peer, r, phase): n for r, a in enumerate(answers) for phase, peer, n in a["received"]}
        flops = {(r, d): n for r, a in enumerate(answers) for d, n in a["flops"].items()}
        twice = {key: 2 * n for key, n in want.bytes.items()}
        self.assertEqual((sent, received), (twice, twice))
        self.assertEqual(flops, {key: 2 * n for key, n in want.flops.items() if n})
        for rank, answer in enumerate(answers):
            self.assertEqual(answer["same"], [True, True], f"rank {rank}")
            first = plan.own_last and len(plan.groups) > 1
            self.assertEqual(answer["events"], _interleaved(answer, first), f"rank {rank}")
            self.assertEqual(bool(answer["events"]), layout.seat(rank) is not None)
        self.assertEqual(len({str(a["events"]) for a in answers if a["events"]}), 1, "one order on all ranks")
        return answers

    def test_drawn_plans(self) -> None:
        for drawn, seed, ranks in PAIRS:
            with self.subTest(drawn=drawn, seed=seed, ranks=ranks):
                self.check_pair("pair", drawn, seed, ranks)


def _interleaved(answer: Any, first: bool) -> list[Any]:
    """What two sequences are to post, A 0 and B 1, from what one posts by itself. first: backward, the ring's
    first hop leaves before all else."""
    one = answer["lone"]
    if not one:
        return []
    half = [phase for phase, _ in one].index("fwd.a2a_out") + 1
    forth, back = one[:half], one[half:]
    hop, back = (back[:1], back[1:]) if first else ([], back)
    of = lambda k, events: [[k, *e] for e in events]
    out = [*of(0, forth[:1]), *of(1, forth[:1]), *of(0, forth[1:]), *of(1, forth[1:])]
    if answer["backward"] == "each":
        early = of(0, hop) if 0 in answer["begun"] else []
        return out + of(1, hop) + early + of(1, back) + ([] if early else of(0, hop)) + of(0, back)
    out += of(1, hop) + (of(0, hop) if 0 in answer["begun"] else [])
    out += [*of(1, back[:1]), *of(0, back[:1]), *of(1, back[1:-1])]
    if 0 not in answer["begun"]:
        out += of(0, hop)
    return out + of(1, back[-1:]) + of(0, back[1:])


if __name__ == "__main__":
    unittest.main()
