"""Plans of batches for training loops."""

from __future__ import annotations

import copy
import json
import os
import unittest
from typing import Any

from world import HERE, SixRanks

import torch

import evenkeel
from batch_jobs import HEADS, Document, loaded, random_batch
from evenkeel.batches import split
from evenkeel.client import BatchPlan, Group
from evenkeel.layout import _rows


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
            self.assertGreater(min(sum(a[n] for a in answers) for n in ("flops", "spans")), 0)
        self.assertGreater(parts, 100)


class TestLayouts(unittest.TestCase):
    def test_those_of_the_planner(self) -> None:
        """Which its own tests wrote."""
        with open(os.path.join(HERE, "layouts.jsonl"), encoding="utf-8") as file:
            cases = [json.loads(line) for line in file]
        self.assertGreater(len(cases), 50)
        for case in cases:
            degree, lengths = sum(case["class"]["devices"]), case["lengths_tokens"]
            order = [(7 * r + 3) % degree for r in range(degree)] if degree % 7 else list(range(degree))
            pools, start = [], 0
            for n in case["class"]["devices"]:
                pools.append({"device": "d", "ranks": [order[start:start + n]] if n else []})
                start += n
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


    def test_shares(self) -> None:
        """Of rounding, and of what is a hair more or less than all."""
        for tokens, shares, parts in (
            (10, [0.5, 0.4], [5, 5]), (10, [0.9, 0], [10, 0]), (10, [0.5, 0.6], [5, 5]), (3, [0.5, 0.5], [2, 1]),
            (1, [0.5, 0.5], [1, 0]), (5, [0.3, 0.3, 0.4], [2, 1, 2]),
        ):
            self.assertEqual(split(tokens, shares), parts)

    def test_heads_that_cannot_be_dealt(self) -> None:
        of = {"schema": "evenkeel.batchplan/v1", "lengths_tokens": [8], "classes": [{"devices": [4], "head_ranks": 4}],
              "fleet": [{"device": "a", "ranks": [[1, 3], [0, 2]]}],
              "micro_batches": [{"groups": [{"class": 0, "ranks": [0, 1, 2, 3], "sequences": [0]}]}]}
        with self.assertRaisesRegex(evenkeel.PlanError, r"^classes\[0\].head_ranks: 4: the model's 6 query heads cannot"):
            loaded(of)
        of["classes"] = [{"devices": [4], "head_ranks": 2, "weave_forward": True}]
        part, = loaded(of).of_rank(2)
        assert part is not None
        self.assertFalse(part.plan.weave_forward)
        self.assertEqual(part.positions(torch.device("meta")).device.type, "meta")

    def test_many_sequences(self) -> None:
        """A layout has work that grows with the segments, not with their square: of a ring's ranks each step looks at
        every segment once."""
        n, ranks = 300, 8
        of = {"schema": "evenkeel.batchplan/v1", "lengths_tokens": [1000 + k for k in range(n)],
              "classes": [{"devices": [ranks]}], "fleet": [{"device": "a", "ranks": [list(range(ranks))]}],
              "micro_batches": [{"groups": [{"class": 0, "ranks": list(range(ranks)), "sequences": list(range(n))}]}]}
        part, = loaded(of).of_rank(5)
        assert part is not None
        reads = 0

        class Counted(tuple):  # type: ignore[type-arg]
            def __getitem__(self, i: Any) -> Any:
                nonlocal reads
                reads += 1
                return super().__getitem__(i)

            def __iter__(self) -> Any:
                for x in super().__iter__():
                    nonlocal reads
                    reads += 1
                    yield x

        segments = Counted(part.plan.segments[5])
        rows = _rows(part.plan.segments[5], segments)
        self.assertEqual(len(rows), len(segments))
        self.assertLess(reads, 12 * len(segments))
        self.assertEqual(sum(hi - lo for _, lo, hi in part.spans), part.plan.tokens(5))
        self.assertEqual([s.sequence for s in part.spans], sorted(s.sequence for s in part.spans))


class TestLoadBatch(unittest.TestCase):
    def served(self, of: Document) -> BatchPlan:
        """A plan as a Client has it."""
        def tokens(g: Document) -> int:
            return sum(of["lengths_tokens"][k] for k in g["sequences"] or ())

        micro = tuple(tuple(Group(tuple(g["ranks"]), tuple(g["sequences"] or ()), tokens(g), 1.0, g["class"])
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
        for more in ({}, {"setup": setup}, {"lengths": of["lengths_tokens"]}, {"setup": [], "lengths": [1]}):
            with self.assertRaisesRegex(evenkeel.PlanError, "^setup, lengths: missing"):
                evenkeel.load_batch(self.served(of), **more, **model)
        longer = [of["lengths_tokens"][0] + 1, *of["lengths_tokens"][1:]]
        for said, other in ((r"lengths: those of micro-batch \d group \d are not \d+ tokens together", longer),
                            ("lengths: .* want whole numbers", [8.5, *longer[1:]]),
                            ("lengths: .* want whole numbers", ["8", *longer[1:]])):
            with self.assertRaisesRegex(evenkeel.PlanError, "^" + said):
                evenkeel.load_batch(self.served(of), setup=setup, lengths=other, **model)
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
        more = {**good, "fleet": [{"device": "a", "ranks": [[0], [1]]}, {"device": "b", "ranks": [[2], [3, 4]]}]}
        left = loaded({**more, "left_out_ranks": [3, 4]})
        self.assertEqual((left.ranks, left.left_out, left.of_rank(4), loaded(more).left_out), (5, (3, 4), (None,), ()))

        def kind(d: Document, **more: Any) -> None:
            d["classes"][0].update(more)

        def group(d: Document, **more: Any) -> None:
            d["micro_batches"][0]["groups"][0].update(more)

        share = [[{"rank": 0, "q_heads": 6}, {"rank": 1, "q_heads": 0}], [{"rank": 2, "q_heads": 5}]]
        for said, change in (
            ("schema: 'x'", lambda d: d.update(schema="x")), ("lengths_tokens: want", lambda d: d.update(lengths_tokens=[0])),
            ("lengths_rows: 1 of them: want", lambda d: d.update(lengths_rows=[3])),
            (r"left_out_ranks: \[3\]: want some of 0 to 2", lambda d: d.update(left_out_ranks=[3])),
            (r"left_out_ranks: \[2, 2\]: want", lambda d: d.update(left_out_ranks=[2, 2])),
            (r"left_out_ranks: want a list", lambda d: d.update(left_out_ranks=[])),
            (r"micro_batches\[0\].groups\[0\].ranks: 2: is one of left_out", lambda d: d.update(left_out_ranks=[2])),
            ("fleet: want a list", lambda d: d.pop("fleet")), (r"fleet\[1\].ranks: want", lambda d: d["fleet"][1].pop("ranks")),
            ("fleet: want ranks from 0 on", lambda d: d["fleet"][1].update(ranks=[[3]])),
            (r"classes\[0\].devices: \[2\]: want one", lambda d: kind(d, devices=[2])),
            (r"classes\[0\].devices: \[0, 0\]: want one", lambda d: kind(d, devices=[0, 0], shares=None)),
            (r"classes\[0\].devices: \[2, 1000000000\]: want one", lambda d: kind(d, devices=[2, 10**9])),
            (r"classes\[0\].shares: \[0.5, 0.5\] for \[2, 1\] devices", lambda d: kind(d, shares=[0.5, 0.5])),
            (r"classes\[0\].shares: \[0.25, 0.4999\] for", lambda d: kind(d, shares=[0.25, 0.4999])),
            (r"classes\[0\].shares: .* devices: want 0 to 1", lambda d: kind(d, shares=[-0.25, 1.5])),
            (r"classes\[0\].head_chunks: 9: want", lambda d: kind(d, head_chunks=9)),
            (r"classes\[0\].head_chunks: True: want", lambda d: kind(d, head_chunks=True)),
            (r"classes\[0\].two_batch_overlap: true: want", lambda d: kind(d, head_chunks=2, two_batch_overlap=True)),
            (r"classes\[0\].own_last: 'no': want", lambda d: kind(d, own_last="no")),
            (r"classes\[0\].recompute: 'no': want", lambda d: kind(d, recompute="no")),
            (r"classes\[0\].q_heads: want a list of whole", lambda d: kind(d, q_heads=[2.5, 2])),
            (r"classes\[0\].q_heads: want a list of whole", lambda d: kind(d, q_heads=[-2, 8])),
            (r"classes\[0\].q_heads: 1 numbers: the fleet has 2", lambda d: kind(d, q_heads=[2])),
            (r"micro_batches\[0\].groups\[0\].ranks: \[1, 1\] devices by pool: want \[0, 2\]",
             lambda d: (d["fleet"][1].update(ranks=[[2], [3]]), group(d, ranks=[1, 2]),
                        kind(d, devices=[0, 2], shares=[0, 0.5], head_ranks=2))),
            (r"micro_batches\[0\].groups: want a list", lambda d: d["micro_batches"][0].update(groups=5)),
            (r"micro_batches\[0\].groups\[0\].sequences: want", lambda d: group(d, sequences={})),
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
