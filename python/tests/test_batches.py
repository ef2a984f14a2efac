"""Plans of batches for training loops."""

from __future__ import annotations

import copy
import json
import os
import unittest
from typing import Any

from world import HERE, SixRanks

import evenkeel
from batch_jobs import HEADS, Document, loaded, random_batch
from evenkeel.client import BatchPlan, Group


class TestTraining(SixRanks):
    jobs = "batch_jobs."

    def test_gradients_of_all_parameters(self) -> None:
        """Added up over ranks they are those of one device; groups need no process groups of their own."""
        parts = 0
        for seed in range(24):
            ranks = 2 + seed % 5
            answers = self.answers(ranks, "trained", seed, ranks)
            lengths = random_batch(seed, ranks)["lengths_tokens"]
            self.assertEqual(sum(a["tokens"] for a in answers), sum(lengths))
            for rank, answer in enumerate(answers):
                with self.subTest(seed=seed, rank=rank):
                    self.assertLess(max(answer["errors"]), 2e-5)
                    self.assertLess(answer["loss"], 1e-5)
                parts += answer["parts"]
        self.assertGreater(parts, 100)


class TestLayouts(unittest.TestCase):
    def test_those_of_the_planner(self) -> None:
        """Which its own tests wrote."""
        with open(os.path.join(HERE, "layouts.jsonl"), encoding="utf-8") as file:
            cases = [json.loads(line) for line in file]
        self.assertGreater(len(cases), 50)
        for case in cases:
            degree, lengths = sum(case["class"]["devices"]), case["lengths_tokens"]
            pools, start = [], 0
            for n in case["class"]["devices"]:
                pools.append({"device": "d", "ranks": [list(range(start, start + n))] if n else []})
                start += n
            order = [(7 * r + 3) % degree for r in range(degree)] if degree % 7 else list(range(degree))
            of = {
                "schema": "evenkeel.batchplan/v1", "lengths_tokens": lengths, "fleet": pools,
                "classes": [case["class"]],
                "micro_batches": [{"groups": [{"class": 0, "ranks": order, "sequences": list(range(len(lengths)))}]}],
            }
            batch = evenkeel.load_batch(of, q_heads=case["q_heads"], kv_heads=case["kv_heads"], head_dim=8, dtype="bf16")
            for place, rank in enumerate(order):
                part, = batch.of_rank(rank)
                assert part is not None
                plan, shard = part.plan, case["shards"][place]["segments"] or []
                self.assertEqual([tuple(s) for s in plan.segments[rank]],
                                 [(s["start_tokens"], s["end_tokens"]) for s in shard])
                self.assertEqual([[(m.rank, m.q_heads) for m in g] for g in plan.groups],
                                 [[(order[m["rank"]], m["q_heads"]) for m in g] for g in case["groups"]])
                schedule = case["schedule"]
                for name in ("own_last", "keep_tail", "two_batch_overlap", "weave_forward", "weave_backward"):
                    self.assertEqual(getattr(plan, name), schedule.get(name, False))
                self.assertEqual(plan.head_chunks, schedule.get("head_chunks", 1))

    def test_spans(self) -> None:
        """Of two sequences on ranks 2 and 0, a zigzag each; rank 1 has a micro-batch of its own."""
        kinds = [{"devices": [2]}, {"devices": [1], "recompute": True}]
        micro = [{"groups": [{"class": 0, "ranks": [2, 0], "sequences": [1, 0]}]},
                 {"groups": [{"class": 1, "ranks": [1], "sequences": [2]}, {"class": 1, "ranks": [0], "sequences": []}]}]
        batch = loaded({"schema": "evenkeel.batchplan/v1", "lengths_tokens": [8, 5, 3], "classes": kinds,
                        "fleet": [{"device": "d", "ranks": [[0, 1, 2]]}], "micro_batches": micro})
        (a, none), (nothing, b), (c, last) = (batch.of_rank(r) for r in range(3))
        self.assertEqual((none, nothing, last), (None, None, None))
        assert a and b and c
        self.assertEqual(c.spans, ((1, 0, 1), (1, 3, 5), (0, 0, 2), (0, 6, 8)))
        self.assertEqual(a.spans, ((1, 1, 3), (0, 2, 6)))
        self.assertEqual(a.positions().tolist(), [1, 2, 2, 3, 4, 5])
        self.assertEqual((a.ranks, a.sequences, a.docs, a.recompute), ((2, 0), (1, 0), (5, 8), False))
        self.assertEqual((b.spans, b.recompute), (((2, 0, 3),), True))
        with self.assertRaisesRegex(ValueError, "^rank: 3: the plan has ranks 0 to 2$"):
            batch.of_rank(3)


class TestLoadBatch(unittest.TestCase):
    def served(self, of: Document) -> BatchPlan:
        """A plan as a Client has it."""
        micro = tuple(tuple(Group(tuple(g["ranks"]), tuple(g["sequences"] or ()), 1, 1.0, g["class"])
                            for g in side["groups"]) for side in of["micro_batches"])
        return BatchPlan(0, micro, 1.0, 1.0, 0.0, 0.0, False, False)

    def test_of_a_client(self) -> None:
        q, kv, d = HEADS
        model: dict[str, Any] = {"q_heads": q, "kv_heads": kv, "head_dim": d, "dtype": "f32"}
        for seed in range(10):
            of = random_batch(seed, 5)
            setup = {"fleet": of["fleet"], "classes": of["classes"]}
            batch = evenkeel.load_batch(self.served(of), setup=setup, lengths=of["lengths_tokens"], **model)
            self.assertEqual([batch.of_rank(r) for r in range(5)], [loaded(of).of_rank(r) for r in range(5)])
        with self.assertRaisesRegex(evenkeel.PlanError, "^setup, lengths: missing"):
            evenkeel.load_batch(self.served(of), **model)
        staged = BatchPlan(0, (), 1.0, 1.0, 0.0, 0.0, False, False, pipeline={})
        with self.assertRaisesRegex(evenkeel.PlanError, "^plan: of a pipeline"):
            evenkeel.load_batch(staged, **model)

    def test_refused(self) -> None:
        kinds = [{"devices": [2, 1], "shares": [0.25, 0.5], "head_ranks": 3}]
        good = {"schema": "evenkeel.batchplan/v1", "lengths_tokens": [8, 5], "classes": kinds,
                "fleet": [{"device": "a", "ranks": [[0], [1]]}, {"device": "b", "ranks": [[2]]}],
                "micro_batches": [{"groups": [{"class": 0, "ranks": [1, 0, 2], "sequences": [1, 0]}]}]}
        self.assertEqual((len(loaded(good).of_rank(0)), loaded(good).rows), (1, (0, 1)))
        self.assertEqual(loaded({**good, "lengths_rows": [3, 8]}).rows, (3, 8))

        def kind(d: Document, **more: Any) -> None:
            d["classes"][0].update(more)

        def group(d: Document, **more: Any) -> None:
            d["micro_batches"][0]["groups"][0].update(more)

        share = [[{"rank": 0, "q_heads": 6}, {"rank": 1, "q_heads": 0}], [{"rank": 2, "q_heads": 5}]]
        for said, change in (
            ("schema: 'x'", lambda d: d.update(schema="x")), ("lengths_tokens: want", lambda d: d.update(lengths_tokens=[0])),
            ("lengths_rows: 1 of them: want", lambda d: d.update(lengths_rows=[3])),
            ("fleet: want a list", lambda d: d.pop("fleet")), (r"fleet\[1\].ranks: want", lambda d: d["fleet"][1].pop("ranks")),
            ("fleet: want ranks from 0 on", lambda d: d["fleet"][1].update(ranks=[[3]])),
            (r"classes\[0\].devices: \[2\]: want one", lambda d: kind(d, devices=[2])),
            (r"classes\[0\].shares: \[0.5, 0.5, 0.5\] by", lambda d: kind(d, shares=[0.5, 0.5])),
            (r"classes\[0\].shares: .* by device: want 0 to 1", lambda d: kind(d, shares=[-0.25, 1.5])),
            (r"classes\[0\].shares: want a number for", lambda d: kind(d, shares=[1])),
            (r"classes\[0\].shares: want a number for", lambda d: kind(d, shares=[True, "x"])),
            (r"classes\[0\].head_ranks: 2: want a divisor", lambda d: kind(d, head_ranks=2)),
            (r"classes\[0\].groups\[0\]: 9 q_heads", lambda d: kind(d, q_heads=[4, 1])),
            (r"classes\[0\].groups\[1\]: 5 q_heads in all: the model has 6", lambda d: kind(d, groups=share)),
            (r"classes\[0\].groups: want each place from 0 to 2", lambda d: kind(d, groups=share[:1])),
            (r"classes\[0\].groups: want a list of lists", lambda d: kind(d, groups=[3])),
            (r"classes\[0\].groups\[0\]\[0\].rank: None", lambda d: kind(d, groups=[[7]])),
            (r"micro_batches\[0\].groups\[0\].class: 1: want 0 to 0", lambda d: group(d, **{"class": 1})),
            (r"micro_batches\[0\].groups\[0\].ranks: \[0, 1\]: want 3", lambda d: group(d, ranks=[0, 1])),
            (r"micro_batches\[0\].groups\[0\].ranks: \[0, 1, 1\]: want 3", lambda d: group(d, ranks=[0, 1, 1])),
            (r"micro_batches\[0\].groups\[0\].ranks: 3: want one of 0 to 2", lambda d: group(d, ranks=[0, 1, 3])),
            (r"micro_batches\[0\].groups\[0\].sequences: 2: want", lambda d: group(d, sequences=[0, 1, 2])),
            (r"micro_batches\[0\].groups\[0\].sequences: 0: want", lambda d: group(d, sequences=[0, 1, 0])),
            ("micro_batches: sequence 0 is in no group", lambda d: group(d, sequences=[1])),
            (r"micro_batches\[0\].groups\[0\]: want an object", lambda d: d["micro_batches"][0].update(groups=[4])),
            (r"micro_batches\[0\].groups\[1\].ranks: 0: want one of", lambda d: d["micro_batches"][0]["groups"].append(
                {"class": 0, "ranks": [0, 1, 2], "sequences": []})),
        ):
            d = copy.deepcopy(good)
            change(d)
            with self.subTest(said), self.assertRaisesRegex(evenkeel.PlanError, "^" + said):
                loaded(d)
        for said, more in (("dtype: 'f8'", {"dtype": "f8"}), ("kv_heads: 4: must divide", {"kv_heads": 4}),
                           ("head_dim: 0: want", {"head_dim": 0})):
            with self.assertRaisesRegex(evenkeel.PlanError, "^" + said):
                evenkeel.load_batch(good, **{"q_heads": 6, "kv_heads": 2, "head_dim": 8, "dtype": "f32", **more})
        with self.assertRaises(OSError):
            evenkeel.load_batch("/no/such/plan.json", q_heads=6, kv_heads=2, head_dim=8, dtype="f32")


if __name__ == "__main__":
    unittest.main()
