"""Plans of pipelines read and refused, who has which rows, and their closed forms: everything that needs no
ranks."""

from __future__ import annotations

import copy
import os
import sys
import unittest
from typing import Any, Callable

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

from evenkeel.closed import expected_stages
from evenkeel.flow import process_groups
from evenkeel.plan import PlanError
from evenkeel.stages import Pass, Piece, pipeline_of
from pipelines import B, F, Document, document

Change = Callable[[Document], Any]


def small() -> Document:
    """A sequence of 5 tokens in slices of 3 and 2, one of 1 token packed behind the first slice, and one of 3
    alone. Ranks 0 and 2 have two layers, rank 1 the third one, and rank 3 nothing."""
    orders = [[(0, F), (1, F), (2, F), (1, B), (0, B), (2, B)], [(2, F), (0, F), (1, F), (1, B), (0, B), (2, B)]]
    of = document([5, 1, 3], [((0, 0, 3), [1]), ((0, 3, 2), []), (None, [2])], [([0, 2], 2), ([1], 1)], orders,
                  [[2, 0, 1], [0, 1, 0]], heads=(4, 2, 8))
    return {**of, "ranks": [{"rank": r, "device": "torch_cpu:1"} for r in range(4)]}


def order(d: Document, stage: int, *of: tuple[int, bool]) -> None:
    d["orders"][stage] = [{"chunk": k, "backward": back} for k, back in of]


def waiting(d: Document) -> None:
    """Stage 0 ends chunk 0 before it begins chunk 2, and stage 1 wants both forward before any backward."""
    order(d, 0, (0, F), (1, F), (1, B), (0, B), (2, F), (2, B))
    order(d, 1, (0, F), (1, F), (2, F), (1, B), (0, B), (2, B))


# What is done to that plan, and how the refusal begins.
BAD: list[tuple[str, Change, str]] = [
    ("schema", lambda d: d.update(schema="evenkeel.pipelineplan/v9"), "schema: 'evenkeel.pipelineplan/v9': want"),
    ("no schema", lambda d: d.pop("schema"), "schema: None: want"),
    ("no job", lambda d: d.pop("job"), "job: missing"),
    ("no model", lambda d: d["job"].pop("model"), "job.model: missing"),
    ("a model in words", lambda d: d["job"].update(model="llama"), "job.model: want an object"),
    ("no heads", lambda d: d["job"]["model"].pop("q_heads"),
     "job.model.q_heads: None: want a whole number from 1"),
    ("true is no number", lambda d: d["job"]["model"].update(head_dim=True), "job.model.head_dim: True: want"),
    ("no KV heads", lambda d: d["job"]["model"].update(kv_heads=0), "job.model.kv_heads: 0: want"),
    ("uneven KV heads", lambda d: d["job"]["model"].update(kv_heads=3),
     "job.model.kv_heads: 3: must divide q_heads 4"),
    ("uneven heads", lambda d: d["job"]["model"].update(q_heads=3),
     "stages[0].ranks: 2 of them: want a divisor of the model's 3 query heads"),
    ("no ranks", lambda d: d.pop("ranks"), "ranks: want a list of objects"),
    ("other ranks", lambda d: d["ranks"].pop(), "ranks: 3 of them: 4 ranks were started"),
    ("no lengths", lambda d: d.update(lengths_tokens=[]),
     "lengths_tokens: want a list of whole numbers from 1 on"),
    ("no length", lambda d: d["lengths_tokens"].__setitem__(1, 0),
     "lengths_tokens: want a list of whole numbers from 1"),
    ("half a token", lambda d: d["lengths_tokens"].__setitem__(1, 0.5), "lengths_tokens: want a list of whole"),
    ("a longer sequence", lambda d: d["lengths_tokens"].__setitem__(0, 6),
     "chunks: have 5 of the 6 tokens of sequence 0"),
    ("a shorter sequence", lambda d: d["lengths_tokens"].__setitem__(0, 4),
     "chunks[1]: tokens 3 to 5 of sequence 0: the"),
    ("one that nobody has", lambda d: d["lengths_tokens"].append(7),
     "chunks: have 0 of the 7 tokens of sequence 3"),
    ("layers", lambda d: d.update(layers=4), "layers: 4: the stages have 3"),
    ("no layers", lambda d: d.pop("layers"), "layers: None: want a whole number"),

    ("no chunks", lambda d: d.update(chunks=[]), "chunks: want a list of objects"),
    ("a chunk of nothing", lambda d: d["chunks"].append({"sequence": -1}), "chunks[3]: has no tokens"),
    ("a number", lambda d: d["chunks"].__setitem__(0, 7), "chunks: want a list of objects"),
    ("a sequence beyond", lambda d: d["chunks"][0].update(sequence=3), "chunks[0]: sequence 3: want 0 to 2"),
    ("no sequence", lambda d: d["chunks"][0].update(sequence=-1),
     "chunks[0].sequence: -1: want a whole number from 0"),
    ("a hole", lambda d: d["chunks"][1].update(context_tokens=4),
     "chunks[1]: tokens 4 to 6 of sequence 0: the chunks before end at 3"),
    ("tokens twice", lambda d: d["chunks"][1].update(context_tokens=2),
     "chunks[1]: tokens 2 to 4 of sequence 0: the"),
    ("below nothing", lambda d: d["chunks"][1].update(context_tokens=-3), "chunks[1].context_tokens: -3: want"),
    ("a negative slice", lambda d: d["chunks"][1].update(slice_tokens=-2), "chunks[1].slice_tokens: -2: want"),
    ("beyond the end", lambda d: d["chunks"][1].update(slice_tokens=3),
     "chunks[1]: tokens 3 to 6 of sequence 0: the"),
    ("slices in another order", lambda d: d["chunks"].reverse(),
     "chunks[1]: tokens 3 to 5 of sequence 0: the chunks"),
    ("a context alone", lambda d: d["chunks"][2].update(context_tokens=1),
     "chunks[2]: has no slice: want sequence -1"),
    ("a sequence alone", lambda d: d["chunks"][2].update(sequence=2),
     "chunks[2]: has no slice: want sequence -1"),
    ("whole and beyond", lambda d: d["chunks"][2]["whole"].append(3), "chunks[2].whole: sequence 3: want 0 to 2"),
    ("whole twice", lambda d: d["chunks"][2]["whole"].append(1),
     "chunks[2].whole: tokens 0 to 1 of sequence 1: the"),
    ("whole and sliced", lambda d: d["chunks"][2]["whole"].append(0),
     "chunks[2].whole: tokens 0 to 5 of sequence 0"),
    ("whole below", lambda d: d["chunks"][2]["whole"].append(-1),
     "chunks[2].whole: want a list of whole numbers"),
    ("none whole", lambda d: d["chunks"][2].update(whole=[]), "chunks[2].whole: want a list of whole numbers"),

    ("no stages", lambda d: d.pop("stages"), "stages: want a list of objects"),
    ("a rank beyond", lambda d: d["stages"][1].update(ranks=[4]),
     "stages[1].ranks: [4]: want rising ones of 0 to 3"),
    ("a rank below", lambda d: d["stages"][1].update(ranks=[-1]),
     "stages[1].ranks: want a list of whole numbers"),
    ("a rank in two", lambda d: d["stages"][1].update(ranks=[2]),
     "stages[1].ranks: [2]: want rising ones of 0 to 3, each in one stage"),
    ("a rank twice", lambda d: d["stages"][0].update(ranks=[0, 0]), "stages[0].ranks: [0, 0]: want rising ones"),
    ("falling ranks", lambda d: d["stages"][0].update(ranks=[2, 0]), "stages[0].ranks: [2, 0]: want rising ones"),
    ("a stage of nobody", lambda d: d["stages"][1].update(ranks=[]),
     "stages[1].ranks: want a list of whole numbers"),
    ("a stage without layers", lambda d: d["stages"][1].update(layers=0),
     "stages[1].layers: 0: want a whole number from 1"),
    ("nothing again", lambda d: d.pop("recomputed_layers"),
     "recomputed_layers: want a list for each of the 2 stages"),
    ("of one stage", lambda d: d["recomputed_layers"].pop(),
     "recomputed_layers: want a list for each of the 2 stages"),
    ("of two chunks", lambda d: d["recomputed_layers"][1].pop(),
     "recomputed_layers[1]: want up to 1 layers of each of 3 chunks"),
    ("too many again", lambda d: d["recomputed_layers"].__setitem__(0, [2, 3, 1]),
     "recomputed_layers[0]: want up to 2 layers of each"),
    ("fewer than none", lambda d: d["recomputed_layers"].__setitem__(0, [2, -1, 1]), "recomputed_layers[0]"),

    ("no orders", lambda d: d.update(orders={}), "orders: want a list for each of the 2 stages"),
    ("of a stage alone", lambda d: d["orders"].pop(), "orders: want a list for each of the 2 stages"),
    ("a pass is missing", lambda d: d["orders"][1].pop(), "orders[1]: want both passes of each of 3 chunks"),
    ("a chunk beyond", lambda d: d["orders"][1][0].update(chunk=3),
     "orders[1][0].chunk: 3: want each of 0 to 2 once"),
    ("a pass twice", lambda d: d["orders"][1][1].update(chunk=2),
     "orders[1][1].chunk: 2: want each of 0 to 2 once"),
    ("a number for a pass", lambda d: d["orders"][1].__setitem__(2, 7),
     "orders[1][2].chunk: None: want a whole number"),
    ("a direction in words", lambda d: d["orders"][1][0].update(backward="no"),
     "orders[1][0].backward: 'no': want true or"),
    ("slices forward", lambda d: order(d, 1, (1, F), (0, F), (2, F), (1, B), (0, B), (2, B)),
     "orders[1][0].chunk: 1: comes before"),
    ("slices backward", lambda d: order(d, 0, (0, F), (1, F), (2, F), (0, B), (1, B), (2, B)),
     "orders[0][3].chunk: 0: comes before"),
    ("backward first", lambda d: order(d, 0, (2, B), (2, F), (0, F), (1, F), (1, B), (0, B)),
     "orders[0][0].chunk: 2: comes before"),
    ("they wait", waiting, "orders: stages wait for each other: stage 0 for chunk 1"),
]


class TestReading(unittest.TestCase):
    def test_good(self) -> None:
        p = pipeline_of(small(), 4)
        self.assertEqual((p.lengths, p.layers, p.dtype), ((5, 1, 3), 3, "f32"))
        self.assertEqual((p.q_heads, p.kv_heads, p.head_dim), (4, 2, 8))
        self.assertEqual(p.chunks, ((Piece(0, 0, 3, 3), Piece(1, 0, 1, 0)), (Piece(0, 3, 2, 3),),
                                    (Piece(2, 0, 3, 0),)))
        self.assertEqual([[q.more for q in of] for of in p.chunks], [[True, False], [False], [False]])
        self.assertEqual([(s.ranks, s.first, s.layers, s.again) for s in p.stages],
                         [((0, 2), 0, 2, (2, 0, 1)), ((1,), 2, 1, (0, 1, 0))])
        self.assertEqual(p.stages[1].order[:2], (Pass(2, False), Pass(0, False)))
        self.assertEqual([p.stage_of(r) for r in range(4)], [0, 1, 0, -1])
        self.assertEqual([p.seat(r) for r in range(3)], [(0, 0), (1, 0), (0, 1)])

    def test_rows(self) -> None:
        """Of 4, 2 and 3 tokens a rank of two has half, rounded down for the first one."""
        p = pipeline_of(small(), 4)
        self.assertEqual([[tuple(p.rows(0, i, k)) for k in range(3)] for i in range(2)],
                         [[(0, 2), (0, 1), (0, 1)], [(2, 4), (1, 2), (1, 3)]])
        self.assertEqual([p.positions(0, k) for k in range(3)], [[(0, 0, 2)], [(0, 3, 4)], [(2, 0, 1)]])
        self.assertEqual([p.positions(2, k) for k in range(3)],
                         [[(0, 2, 3), (1, 0, 1)], [(0, 4, 5)], [(2, 1, 3)]])
        self.assertEqual([p.positions(1, k) for k in range(3)],
                         [[(0, 0, 3), (1, 0, 1)], [(0, 3, 5)], [(2, 0, 3)]])
        self.assertEqual(p.positions(3, 0), [])

    def test_plan_of_a_stage(self) -> None:
        """Heads are shared out evenly, whoever has tokens: of one token the last rank has it."""
        of = document([1], [(None, [0])], [([0, 1, 2, 3], 1)], [[(0, F), (0, B)]], [[0]], heads=(12, 4, 8))
        plan = pipeline_of(of, 4).plan(0, 0)
        self.assertEqual([plan.tokens(r) for r in range(4)], [0, 0, 0, 1])
        self.assertEqual([[tuple(m) for m in g] for g in plan.groups], [[(r, 3) for r in range(4)]])
        self.assertEqual((plan.seq_len, plan.q_heads, plan.kv_heads, plan.head_dim), (1, 12, 4, 8))

    def test_process_groups(self) -> None:
        """One a stage, and of a boundary one in either direction, of both stages' ranks, rising."""
        both = (0, 1, 2)
        self.assertEqual(process_groups(pipeline_of(small(), 4)),
                         [("", (0, 2)), ("", (1,)), ("0 to 1", both), ("1 to 0", both)])

    def test_refused(self) -> None:
        for name, change, said in BAD:
            with self.subTest(name):
                d = copy.deepcopy(small())
                change(d)
                with self.assertRaises(PlanError) as found:
                    pipeline_of(d, 4)
                self.assertTrue(str(found.exception).startswith(said), str(found.exception))


class TestClosedForm(unittest.TestCase):
    def test_by_hand(self) -> None:
        """The small plan: 4 query heads in pairs, 2 KV heads one each, 8 elements of 4 bytes, hidden 24.

        Rank 0 has 2, 1 and 1 of the chunks' tokens and rank 2 has 2, 1 and 2, so 4 and 5. In go a pair of query
        heads and a KV head twice, out a pair; backward the other way round. Pairs: 3 tokens alone 6, one 1, 2 behind
        3 6 + 3, 3 alone 6: 22.
        """
        wide, hidden = 8 * 4, 24 * 4
        want = {
            (0, 2, "fwd.a2a_in"): 4 * 4 * wide, (2, 0, "fwd.a2a_in"): 5 * 4 * wide,
            (0, 2, "fwd.a2a_out"): 5 * 2 * wide, (2, 0, "fwd.a2a_out"): 4 * 2 * wide,
            (0, 2, "bwd.a2a_in"): 4 * 2 * wide, (2, 0, "bwd.a2a_in"): 5 * 2 * wide,
            (0, 2, "bwd.a2a_out"): 5 * 4 * wide, (2, 0, "bwd.a2a_out"): 4 * 4 * wide,
            (0, 1, "fwd.send"): 4 * hidden, (2, 1, "fwd.send"): 5 * hidden,
            (1, 0, "bwd.send"): 4 * hidden, (1, 2, "bwd.send"): 5 * hidden,
        }
        got = expected_stages(pipeline_of(small(), 4), 24)
        self.assertEqual(got.bytes, want)
        flops = {(r, d): each * 8 * heads * 22 for r, heads in ((0, 2), (1, 4), (2, 2))
                 for d, each in (("fwd", 4), ("bwd", 10))}
        self.assertEqual(got.flops, flops)

    def test_rows_that_do_not_meet(self) -> None:
        """Two ranks to three, 5 tokens: 0-2 and 2-5 to 0-1, 1-3 and 3-5. What rank 1 and 2 share is nothing."""
        orders = [[(0, F), (0, B)]] * 2
        of = document([5], [(None, [0])], [([1, 3], 1), ([0, 2, 4], 1)], orders, [[0], [0]], (6, 1, 4), "bf16")
        sent = {k: n for k, n in expected_stages(pipeline_of(of, 5), 10).bytes.items() if k[2].endswith("send")}
        there = {(1, 0): 1, (1, 2): 1, (3, 2): 1, (3, 4): 2}
        want = {(a, b, "fwd.send"): n * 10 * 2 for (a, b), n in there.items()}
        want.update({(b, a, "bwd.send"): n * 10 * 2 for (a, b), n in there.items()})
        self.assertEqual(sent, want)


if __name__ == "__main__":
    unittest.main()
