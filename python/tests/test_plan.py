"""Plans read and refused, layouts, closed forms, cutting: everything that needs no ranks."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import random
import re
import sys
import tempfile
import unittest
from collections import Counter
from typing import Any, Callable

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import torch

import dense
import evenkeel
import plans
from evenkeel.blocks import cut
from evenkeel.layout import Layout
from evenkeel.plan import KNOWN, documents
from plans import Document, early_plan, random_plan, worked_example

Change = Callable[[Document], Any]

# What is done to the worked example, and how the refusal begins.
BAD: list[tuple[str, Change, str]] = [
    ("older schema", lambda d: d.update(schema="evenkeel.plan/v1"), "schema: 'evenkeel.plan/v1': want"),
    ("no schema", lambda d: d.pop("schema"), "schema: None: want"),
    ("no job", lambda d: d.pop("job"), "job: missing"),
    ("no groups", lambda d: d.pop("groups"), "groups: missing"),
    ("no ranks", lambda d: d.update(ranks=[]), "ranks: none"),
    ("hole", lambda d: d["ranks"][1]["segments"][0].update(start_tokens=70),
     "ranks[1].segments[0].start_tokens: nobody has tokens 64 to 70"),
    ("hole at the end", lambda d: d["job"].update(seq_len_tokens=800),
     "ranks[0].segments[1]: nobody has tokens 768 to 800"),
    ("overlap", lambda d: d["ranks"][1]["segments"][0].update(start_tokens=60),
     "ranks[1].segments[0].start_tokens: token 60 is also in ranks[0].segments[0]"),
    ("falling", lambda d: d["ranks"][0]["segments"].reverse(),
     "ranks[0].segments[1].start_tokens: 0: segments of a rank must rise"),
    ("empty segment", lambda d: d["ranks"][1]["segments"][0].update(end_tokens=64),
     "ranks[1].segments[0].end_tokens: [64, 64)"),
    ("beyond", lambda d: d["ranks"][0]["segments"][1].update(end_tokens=900),
     "ranks[0].segments[1].end_tokens: [704, 900)"),
    ("negative", lambda d: d["ranks"][0]["segments"][0].update(start_tokens=-1),
     "ranks[0].segments[0].start_tokens: -1: want"),
    ("fraction", lambda d: d["ranks"][0]["segments"][0].update(start_tokens=0.5),
     "ranks[0].segments[0].start_tokens: 0.5: want"),
    ("heads twice", lambda d: d["groups"][0][1].update(q_heads=6), "groups[0].q_heads: 13 in all"),
    ("heads missing", lambda d: d["groups"][1][0].update(q_heads=2), "groups[1].q_heads: 11 in all"),
    ("unknown rank", lambda d: d["groups"][1][0].update(rank=4),
     "groups[1][0].rank: 4: want a rank from 0 to 3"),
    ("rank twice", lambda d: d["groups"][1][0].update(rank=1),
     "groups[1][0].rank: rank 1 is also in groups[0][1]"),
    ("rank left out", lambda d: d["groups"].pop(), "groups: rank 2 has 236 tokens but is in no group"),
    ("empty group", lambda d: d["groups"].append([]), "groups[2]: want a list of at least one rank"),
    ("ranks out of order", lambda d: d["ranks"].reverse(), "ranks[0].rank: 3: ranks are listed in order"),
    ("tokens", lambda d: d["ranks"][2].update(tokens=1), "ranks[2].tokens: 1: segments and groups say 236"),
    ("first head", lambda d: d["ranks"][1].update(first_q_head=3),
     "ranks[1].first_q_head: 3: segments and groups say 7"),
    ("KV heads", lambda d: d["ranks"][1].update(kv_heads=3),
     "ranks[1].kv_heads: 3: segments and groups say 2"),
    ("later layout", lambda d: d.update(new_layout=True), "new_layout: unknown key; take the Python"),
    ("later job", lambda d: d["job"].update(window=4096), "job.window: unknown key"),
    ("later rank", lambda d: d["ranks"][0].update(stride=3), "ranks[0].stride: unknown key"),
    ("later segment", lambda d: d["ranks"][0]["segments"][1].update(step=2),
     "ranks[0].segments[1].step: unknown key"),
    ("later share", lambda d: d["groups"][1][0].update(first=3), "groups[1][0].first: unknown key"),
    ("one buffer", lambda d: d["job"].update(ring_buffers=1), "job.ring_buffers: 1: want"),
    ("dtype", lambda d: d["job"].update(dtype="f64"), "job.dtype: 'f64': want"),
    ("uneven GQA", lambda d: d["job"]["model"].update(kv_heads=5), "job.model.kv_heads: 5: must divide"),
    ("no flag", lambda d: d.update(own_last=1), "own_last: 1: want true or false"),
    ("flag in words", lambda d: d.update(own_last="true"), "own_last: 'true': want true or false"),
    ("flag of null", lambda d: d.update(own_last=None), "own_last: None: want true or false"),
    ("tail in words", lambda d: d.update(keep_tail="no"), "keep_tail: 'no': want true or false"),
    ("no chunks", lambda d: d.update(head_chunks=0), "head_chunks: 0: want a whole number from 2 to 4, or none"),
    ("chunks of several groups", lambda d: d.update(head_chunks=2),
     "head_chunks: 2: want none in a plan of 2 groups"),
    ("twos by number", lambda d: d.update(two_batch_overlap=1), "two_batch_overlap: 1: want true or false"),
    ("twos in words", lambda d: d.update(two_batch_overlap="true"),
     "two_batch_overlap: 'true': want true or false"),
    ("twos of null", lambda d: d.update(two_batch_overlap=None),
     "two_batch_overlap: None: want true or false"),
    ("woven by number", lambda d: d.update(two_batch_overlap=True, weave_forward=1),
     "weave_forward: 1: want true or false"),
    ("woven in words", lambda d: d.update(two_batch_overlap=True, weave_backward="yes"),
     "weave_backward: 'yes': want true or false"),
    ("true is no number", lambda d: d["job"]["model"].update(head_dim=True),
     "job.model.head_dim: True: want"),
]


class TestReading(unittest.TestCase):
    def test_good(self) -> None:
        plan = evenkeel.load_plan(worked_example())
        self.assertEqual((plan.ranks, plan.q_heads, plan.seq_len), (4, 12, 768))
        self.assertEqual([plan.tokens(r) for r in range(4)], [128, 192, 236, 212])
        self.assertIs(plan.own_last, False)
        for own_last in (False, True):
            said = evenkeel.load_plan({**worked_example(), "own_last": own_last})
            self.assertEqual(said, dataclasses.replace(plan, own_last=own_last))
            said = evenkeel.load_plan({**worked_example(), "keep_tail": own_last})
            self.assertEqual(said, dataclasses.replace(plan, keep_tail=own_last))

    def test_head_chunks(self) -> None:
        """Of one group, two or more; a plan that computes all heads at once says nothing."""
        plan = evenkeel.load_plan(worked_example())
        self.assertEqual(plan.head_chunks, 1)
        one = plans.chunked_example(1)
        for chunks in (2, 3, 4):
            said = evenkeel.load_plan({**one, "head_chunks": chunks})
            self.assertEqual(said, dataclasses.replace(evenkeel.load_plan(one), head_chunks=chunks))
        for wrong in (0, 1, 5, -1, True, False, None, 2.0, "2", [2]):
            with self.assertRaises(evenkeel.PlanError) as caught:
                evenkeel.load_plan({**one, "head_chunks": wrong})
            want = f"head_chunks: {wrong!r}: want a whole number from 2 to 4, or none"
            self.assertEqual(str(caught.exception), want)

    def test_two_batch_overlap(self) -> None:
        """Of two micro-batches or more, where the job says how many, and of all heads at once."""
        plan = evenkeel.load_plan(worked_example())
        self.assertIs(plan.two_batch_overlap, False)
        said = {True: dataclasses.replace(plan, two_batch_overlap=True), False: plan}
        for on, want in said.items():
            self.assertEqual(evenkeel.load_plan({**worked_example(), "two_batch_overlap": on}), want)
            for batches in (2, 3, 64):
                self.assertEqual(evenkeel.load_plan(_in_twos(on, batches)), want)
        for wrong in (1, 0, -2, True, None, 2.0, "2", [2]):
            self.assertEqual(evenkeel.load_plan(_in_twos(False, wrong)), plan)
            with self.assertRaises(evenkeel.PlanError) as caught:
                evenkeel.load_plan(_in_twos(True, wrong))
            want_said = f"two_batch_overlap: true: want job.grad_accumulation from 2 on, it is {wrong!r}"
            self.assertEqual(str(caught.exception), want_said)
        with self.assertRaises(evenkeel.PlanError) as caught:
            evenkeel.load_plan({**plans.chunked_example(2), "two_batch_overlap": True})
        self.assertEqual(str(caught.exception), "two_batch_overlap: true: want none beside head_chunks, here 2: "
                         "a plan has one or the other")
        chunked = evenkeel.load_plan({**plans.chunked_example(2), "two_batch_overlap": False})
        self.assertEqual(chunked, evenkeel.load_plan(plans.chunked_example(2)))

    def test_weave(self) -> None:
        """Of rings of micro-batches that go in twos, either direction by itself."""
        ring = {**worked_example(), "two_batch_overlap": True}
        plan, one = evenkeel.load_plan(ring), {**plans.chunked_example(1), "two_batch_overlap": True}
        self.assertEqual((plan.weave_forward, plan.weave_backward), (False, False))
        for name in ("weave_forward", "weave_backward"):
            self.assertEqual(evenkeel.load_plan({**ring, name: True}), dataclasses.replace(plan, **{name: True}))
            self.assertEqual(evenkeel.load_plan({**ring, name: False}), plan)
            for of in (worked_example(), one):  # false is what is left out
                self.assertEqual(evenkeel.load_plan({**of, name: False}), evenkeel.load_plan(of))
            for wrong, said in (
                ({**worked_example(), name: True}, "want none without two_batch_overlap, the rings of two "
                                                   "micro-batches take turns"),
                ({**one, name: True}, "want none in a plan of 1 group, which has no ring"),
            ):
                with self.assertRaises(evenkeel.PlanError) as caught:
                    evenkeel.load_plan(wrong)
                self.assertEqual(str(caught.exception), f"{name}: true: {said}")

    def test_rank_without_work(self) -> None:
        document = worked_example()
        for segments in (None, []):
            zero = dict.fromkeys(("tokens", "first_q_head", "q_heads", "kv_heads"), 0)
            idle = {"rank": 4, "segments": segments, "group": -1, **zero}
            plan = evenkeel.load_plan({**document, "ranks": [*document["ranks"], idle]})
            self.assertIsNone(Layout(plan).seat(4))

    def test_bad(self) -> None:
        for name, change, said in BAD:
            with self.subTest(name):
                document = worked_example()
                change(document)
                with self.assertRaises(evenkeel.PlanError) as caught:
                    evenkeel.load_plan(document)
                self.assertTrue(str(caught.exception).startswith(said), caught.exception)

    def test_another_kind_or_version(self) -> None:
        """The way out is what reads the document, or another package."""
        heads: dict[str, Any] = {"q_heads": 4, "kv_heads": 2, "head_dim": 8, "dtype": "f32"}
        anew = "let evenkeel solve write the plan anew"
        later = "take the Python package of the evenkeel that wrote the plan"
        for read, schema, out in (
            (evenkeel.load_plan, "evenkeel.plan/v1", anew), (evenkeel.load_plan, "evenkeel.plan/v3", later),
            (evenkeel.load_plan, "evenkeel.plan/v" + 9999 * "9", anew), (evenkeel.load_plan, None, anew),
            (evenkeel.load_plan, "evenkeel.batchplan/v1", "load_batch reads this one"),
            (evenkeel.load_plan, "evenkeel.pipelineplan/v1", "load_pipeline reads this one"),
            (lambda d: evenkeel.load_batch(d, **heads), "evenkeel.plan/v2", "load_plan reads this one"),
            (lambda d: evenkeel.load_batch(d, **heads), "evenkeel.batchplan/v2", later),
            (lambda d: evenkeel.load_pipeline(d, **heads), "evenkeel.batchplan/v1", "load_batch reads this one"),
            (evenkeel.load_tasks, "evenkeel.pipelineplan/v1", "load_pipeline reads this one"),
        ):
            with self.assertRaisesRegex(evenkeel.PlanError, f"^schema: .*: want 'evenkeel.*'; {out}$"):
                read({"schema": schema})

    def test_a_rank_that_the_plan_does_not_have(self) -> None:
        """As in a job of more ranks; a negative one is not counted from the end."""
        plan = evenkeel.load_plan(worked_example())
        for rank in (-1, 4):
            for call in (lambda: plan.tokens(rank), lambda: evenkeel.positions(plan, rank),
                         lambda: evenkeel.shard(plan, rank, torch.zeros(768))):
                with self.assertRaisesRegex(ValueError, f"rank: {rank}: the plan has ranks 0 to 3; start as many"):
                    call()

    def test_files(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.plan.json")
            with self.assertRaises(OSError):
                evenkeel.load_plan(path)
            for text, said in (("{", "not a JSON document"), ("[1]", "want one JSON object"),
                               ("[" * 100000, "not a JSON"), ('{"schema": "x"}', "schema: 'x'")):
                _write(path, text)
                with self.assertRaisesRegex(evenkeel.PlanError, "a.plan.json: " + said):
                    evenkeel.load_plan(path)
            _write(path, json.dumps(worked_example()))
            self.assertEqual(evenkeel.load_plan(path), evenkeel.load_plan(worked_example()))

    def test_whatever_is_read(self) -> None:
        """A document with any value replaced is a plan or a PlanError, and a plan that is read can be laid
        out."""
        r, read = random.Random(1), 0
        for seed in range(2000):
            document = copy.deepcopy(random_plan(seed % 50, 2 + seed % 4)[0])
            place: Any = document
            while True:
                key = r.choice(list(place) if isinstance(place, dict) else range(len(place)))
                if not isinstance(place[key], (dict, list)) or not place[key] or r.random() < 0.1:
                    break
                place = place[key]
            place[key] = r.choice([None, 0, 1, 2, 7, -1, 1 << 70, 0.5, "1", [], {}, [[]], True])
            try:
                plan = evenkeel.load_plan(document)
            except evenkeel.PlanError:
                continue
            Layout(plan)
            read += 1
        self.assertGreater(read, 20, "some changes are harmless")


class TestKnownKeys(unittest.TestCase):
    def test_are_the_documented_ones(self) -> None:
        """docs/documents.md is made from the types that write plans."""
        with open(os.path.join(HERE, "..", "..", "docs", "documents.md"), encoding="utf-8") as file:
            of_plan = file.read().split("\n## evenkeel.plan/v2\n")[1]
        for kind, name in (("plan", "solver.Plan"), ("job", "costmodel.Job"), ("rank", "solver.PlanRank"),
                           ("segment", "costmodel.Segment"), ("share", "costmodel.HeadShare")):
            table = of_plan.split(f"\n### {name}\n")[1].split("\n### ")[0]
            keys = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
            self.assertEqual(KNOWN[kind], keys, name)


class TestLayout(unittest.TestCase):
    def test_every_piece_is_a_ring(self) -> None:
        for seed in range(200):
            plan = evenkeel.load_plan(random_plan(seed, 2 + seed % 4)[0])
            layout = Layout(plan)
            for g, group in enumerate(layout.groups):
                slots = [s for m in group.members for s in m.slots]
                self.assertEqual(slots, sorted(set(slots)), "one owner of every piece in a group")
                self.assertEqual(slots, [s for m in layout.groups[0].members for s in m.slots])
                held = sorted(r.held + i for m in group.members for r in m.rows for i in range(r.n))
                self.assertEqual(held, list(range(group.tokens)))
                for m in group.members:
                    self.assertEqual(layout.links(m, 0), [])
                    for steps in range(1, layout.steps):
                        links = layout.links(m, steps)
                        passed = [i for x in links for i in range(x.lo, x.hi)]
                        self.assertEqual(passed, list(range(len(m.slots))))
                        for link in links:
                            peer = layout.seat(link.peer)
                            assert peer is not None
                            (back,) = [x for x in layout.links(peer, -steps) if x.peer == m.rank]
                            self.assertEqual(m.slots[link.lo:link.hi], peer.slots[back.lo:back.hi])

    def test_near_and_reach(self) -> None:
        """A block travels to the last group with a query that sees any of its keys in one document, and its
        gradient from the first one on."""
        for draw in (random_plan, early_plan):
            for seed in range(200):
                plan = evenkeel.load_plan(draw(seed, 2 + seed % 5)[0])
                layout = Layout(plan)
                held = [[p for s in g.segments for p in range(*s)] for g in layout.groups]
                self.assertEqual(list(layout.near), dense.near(held), f"{draw.__name__} {seed}")
                self.assertEqual(list(layout.reach), dense.reach(held), f"{draw.__name__} {seed}")

    def test_near_and_reach_of_usual_layouts(self) -> None:
        """Under a zigzag everybody needs everything, and in a chain what comes before. In one that falls
        round the ring a block has to go nearly all round it to who needs it."""
        zigzag = [[(i, i + 1), (7 - i, 8 - i)] for i in range(4)]
        chain = [[(i, i + 1)] for i in range(4)]
        for segments, near, reach in (
            (zigzag, (1, 1, 1, 1), (3, 3, 3, 3)), (chain, (1, 1, 1, 0), (3, 2, 1, 0)),
            (chain[::-1], (0, 3, 2, 1), (0, 3, 3, 3)),
        ):
            document = plans.document(segments, [[(r, 2)] for r in range(4)], 2, 1, 8)
            layout = Layout(evenkeel.load_plan(document))
            self.assertEqual((layout.near, layout.reach), (near, reach))


class TestCutting(unittest.TestCase):
    def test_every_pair_once(self) -> None:
        """Blocks cover what the mask leaves, each pair once, and DIAG blocks come first."""
        for seed in range(150):
            document, docs = random_plan(seed, 2 + seed % 4)
            plan = evenkeel.load_plan(document)
            layout, seen = Layout(plan), torch.zeros(plan.seq_len, plan.seq_len, dtype=torch.int64)
            at = [[p for s in g.segments for p in range(*s)] for g in layout.groups]
            for q, rows in zip(layout.groups, at):
                for k, cols in zip(layout.groups, at):
                    blocks = cut(q.segments, k.segments, documents(plan.seq_len, docs))
                    self.assertEqual([b.diag for b in blocks], sorted((b.diag for b in blocks), reverse=True))
                    for b in blocks:
                        self.assertTrue(b.q_len == b.kv_len or not b.diag)
                        pairs = torch.ones(b.q_len, b.kv_len, dtype=torch.int64)
                        pairs = pairs.tril() if b.diag else pairs
                        self.assertEqual(int(pairs.sum()), b.pairs)
                        down = torch.tensor(rows[b.row:b.row + b.q_len])[:, None]
                        seen[down, torch.tensor(cols[b.col:b.col + b.kv_len])] += pairs
            self.assertTrue(torch.equal(seen, (~dense.hidden(plan.seq_len, docs)).long()), f"seed {seed}")

    def test_large_rectangles(self) -> None:
        """Queries that see the same keys share a rectangle, over the gaps between their segments."""
        q, k = [(10, 20), (30, 40)], [(0, 5), (5, 10), (50, 60)]
        segments = [[evenkeel.Segment(*s) for s in x] for x in (q, k)]
        self.assertEqual([tuple(b) for b in cut(*segments, documents(60, None))], [(0, 20, 0, 10, False)])


class TestClosedForms(unittest.TestCase):
    def test_worked_example(self) -> None:
        """By hand. Borders of heads are 3 and 7, three query heads to a KV head: rank 0 holds KV head 0 for
        rank 2 and heads 1, 2 for rank 3; rank 1 heads 2, 3 for rank 3. Groups have 320 and 448 tokens."""
        want = evenkeel.expected(evenkeel.load_plan(worked_example()))
        fwd = [35_854_336, 25_610_240, 41_330_688, 123_992_064]
        self.assertEqual([want.flops[r, "fwd"] for r in range(4)], fwd)
        self.assertEqual([want.flops[r, "bwd"] for r in range(4)], [n * 5 // 2 for n in fwd])
        self.assertEqual(sum(fwd), 4 * 12 * 16 * 768 * 769 // 2)
        block = 2 * 16 * 4  # bytes a token and KV head
        for (i, j), n in {(0, 2): 1, (0, 3): 2, (1, 3): 2}.items():
            self.assertEqual(want.bytes[i, j, "fwd.ring"], n * block * 320)
            self.assertEqual(want.bytes[j, i, "fwd.ring"], n * block * 448)
            self.assertEqual(want.bytes[i, j, "bwd.ring_grad"], n * block * 448)
            self.assertEqual(want.bytes[j, i, "bwd.ring_grad"], n * block * 320)
        self.assertNotIn((1, 2, "fwd.ring"), want.bytes)
        self.assertEqual(want.bytes[0, 1, "fwd.a2a_in"], 128 * (5 + 2 * 2) * 64)
        self.assertEqual(want.bytes[0, 1, "fwd.a2a_out"], 192 * 7 * 64)
        self.assertEqual(want.bytes[3, 2, "bwd.a2a_in"], 212 * 3 * 64)
        self.assertEqual(want.bytes[3, 2, "bwd.a2a_out"], 236 * (9 + 2 * 3) * 64)

    def test_ring_of_three(self) -> None:
        """By hand, everybody needing everything. Rank 1 computes with the blocks of 10 and 30 tokens after
        its own of 20: keys and values of all but rank 2's own pass from it to rank 2, gradients of all but
        its own."""
        segments = [[(0, 5), (55, 60)], [(5, 15), (45, 55)], [(15, 45)]]
        groups = [[(r, 2)] for r in range(3)]
        document = plans.document(segments, groups, 2, 1, 8, dtype="bf16")
        want = evenkeel.expected(evenkeel.load_plan(document))
        for (i, j), kv, grad in (((0, 1), 40, 50), ((1, 2), 30, 40), ((2, 0), 50, 30)):
            self.assertEqual(want.bytes[i, j, "bwd.ring"], kv * 2 * 8 * 2)
            self.assertEqual(want.bytes[i, j, "bwd.ring_grad"], grad * 2 * 8 * 4)

    def test_chain_of_three(self) -> None:
        """By hand. Rank 0's block of 10 tokens goes to ranks 1 and 2 and its gradient from there the same way
        round; rank 1's block of 20 goes to rank 2 alone and its gradient straight back; rank 2's stays."""
        segments = [[(0, 10)], [(10, 30)], [(30, 60)]]
        document = plans.document(segments, [[(r, 2)] for r in range(3)], 2, 1, 8, dtype="bf16")
        want = evenkeel.expected(evenkeel.load_plan(document))
        ring = {key: n for key, n in want.bytes.items() if "ring" in key[2]}
        kv, grad = 2 * 8 * 2, 2 * 8 * 4  # bytes a token
        self.assertEqual(ring, {
            **{(0, 1, phase): 10 * kv for phase in ("fwd.ring", "bwd.ring")},
            **{(1, 2, phase): (10 + 20) * kv for phase in ("fwd.ring", "bwd.ring")},
            (1, 2, "bwd.ring_grad"): 10 * grad, (2, 0, "bwd.ring_grad"): 10 * grad,
            (2, 1, "bwd.ring_grad"): 20 * grad,
        })

    def test_falling_chain_of_four(self) -> None:
        """By hand. Rank 3's block of 5 tokens is needed by everybody else; rank 2's of 10 by ranks 0 and 1,
        two and three hops on; rank 1's of 20 by rank 0, three hops on. Ranks that only pass keys and values
        on have no gradient of theirs."""
        segments = [[(35, 75)], [(15, 35)], [(5, 15)], [(0, 5)]]
        document = plans.document(segments, [[(r, 2)] for r in range(4)], 2, 1, 8, dtype="bf16")
        want = evenkeel.expected(evenkeel.load_plan(document))
        ring = {key: n for key, n in want.bytes.items() if "ring" in key[2]}
        kv, grad = 2 * 8 * 2, 2 * 8 * 4  # bytes a token
        self.assertEqual(ring, {
            **{(0, 1, phase): (5 + 10) * kv for phase in ("fwd.ring", "bwd.ring")},
            **{(1, 2, phase): (5 + 20) * kv for phase in ("fwd.ring", "bwd.ring")},
            **{(2, 3, phase): (10 + 20) * kv for phase in ("fwd.ring", "bwd.ring")},
            **{(3, 0, phase): (5 + 10 + 20) * kv for phase in ("fwd.ring", "bwd.ring")},
            (0, 1, "bwd.ring_grad"): (5 + 10 + 20) * grad,  # the 20 are home
            (1, 2, "bwd.ring_grad"): (5 + 10) * grad, (2, 3, "bwd.ring_grad"): 5 * grad,
        })

    def test_a_block_makes_as_many_hops_as_it_reaches(self) -> None:
        """Keys and values; their gradients, home included, as many as it reaches beyond the step before the
        first group that needs the block. Each with all slots of the block."""
        for seed in range(200):
            plan = evenkeel.load_plan(early_plan(seed, 2 + seed % 5)[0])
            want, layout = evenkeel.expected(plan, 2), Layout(plan)
            held = [[p for s in g.segments for p in range(*s)] for g in layout.groups]
            slots = sum(len(m.slots) for m in layout.groups[0].members)
            reach = dense.reach(held)
            later = [n - m + 1 if n else 0 for m, n in zip(dense.near(held), reach)]
            for phase, e, hops in (("fwd.ring", 2, reach), ("bwd.ring", 2, reach), ("bwd.ring_grad", 4, later)):
                total = sum(n for (_, _, p), n in want.bytes.items() if p == phase)
                tokens = sum(own * n for own, n in zip(dense.sent(held, plan.keep_tail), hops))
                self.assertEqual(total, tokens * slots * 2 * plan.head_dim * e, f"seed {seed}")

    def test_gradients_of_what_came(self) -> None:
        """A rank sends the gradient of every block on whose keys and values it received, but for those that
        neither its group nor any before it on the way needs, and of no other."""
        draws = [draw(seed, 2 + seed % 5)[0] for draw in (random_plan, early_plan) for seed in range(100)]
        for seed, document in enumerate(draws):
            plan = evenkeel.load_plan(document)
            want, layout = evenkeel.expected(plan, 4), Layout(plan)
            came, went = Counter[int](), Counter[int]()
            held = [[p for s in g.segments for p in range(*s)] for g in layout.groups]
            sent = dense.sent(held, plan.keep_tail)
            for k, steps in enumerate(dense.seen(held)):
                for d in range(1, min(steps, default=1)):
                    for m in layout.groups[(k + d) % layout.steps].members:
                        came[m.rank] -= len(m.slots) * 2 * sent[k] * plan.head_dim * 4
            for (i, j, phase), n in want.bytes.items():
                if phase == "bwd.ring":
                    came[j] += n
                elif phase == "bwd.ring_grad":
                    went[i] += n
            self.assertEqual(went, +came, f"seed {seed}")

    def test_sums(self) -> None:
        """All ranks together compute every unmasked pair once."""
        for seed in range(100):
            document, docs = random_plan(seed, 2 + seed % 4)
            plan = evenkeel.load_plan(document)
            want = evenkeel.expected(plan, docs=docs)
            pairs = int((~dense.hidden(plan.seq_len, docs)).sum())
            total = sum(n for (_, direction), n in want.flops.items() if direction == "fwd")
            self.assertEqual(total, 4 * plan.q_heads * plan.head_dim * pairs)

    def test_element_size(self) -> None:
        document = worked_example()
        full = evenkeel.expected(evenkeel.load_plan(document))
        document["job"]["dtype"] = "bf16"
        half = evenkeel.expected(evenkeel.load_plan(document))
        for key, n in full.bytes.items():
            self.assertEqual(half.bytes[key], n if key[2] == "bwd.ring_grad" else n // 2)
        document["job"]["dtype"] = "fp8"
        with self.assertRaisesRegex(evenkeel.PlanError, "job.dtype: fp8: state element_bytes"):
            evenkeel.expected(evenkeel.load_plan(document))
        self.assertEqual(evenkeel.expected(evenkeel.load_plan(document), 2), half)

    def test_documents(self) -> None:
        plan = evenkeel.load_plan(worked_example())
        for docs, said in (([768, 0], r"docs\[1\]: 0"), ([700], "docs: 700 tokens in all"),
                           ([True, 767], r"docs\[0\]"), ([767, 1.0], r"docs\[1\]: 1.0: want a whole number")):
            with self.assertRaisesRegex(evenkeel.PlanError, said):
                evenkeel.expected(plan, docs=docs)
        counted: Any = torch.tensor([100, 668])  # as a data loader has them
        self.assertEqual(documents(768, counted), documents(768, [100, 668]))


class TestTokens(unittest.TestCase):
    def test_inverse(self) -> None:
        for seed in range(20):
            plan = evenkeel.load_plan(random_plan(seed, 2 + seed % 4)[0])
            whole = torch.randn(3, plan.seq_len, 2)
            parts = [evenkeel.shard(plan, r, whole, 1) for r in range(plan.ranks)]
            self.assertEqual([p.shape[1] for p in parts], [plan.tokens(r) for r in range(plan.ranks)])
            self.assertTrue(torch.equal(evenkeel.unshard(plan, parts, 1), whole))

    def test_positions(self) -> None:
        plan = evenkeel.load_plan(worked_example())
        self.assertEqual(evenkeel.positions(plan, 0)[[0, 63, 64]].tolist(), [0, 63, 704])
        self.assertEqual(evenkeel.positions(plan, 1, docs=[100, 668])[[0, 35, 36]].tolist(), [64, 99, 0])

    def test_refused(self) -> None:
        plan = evenkeel.load_plan(worked_example())
        with self.assertRaisesRegex(ValueError, "x: 700 tokens in dimension 0"):
            evenkeel.shard(plan, 0, torch.zeros(700))
        with self.assertRaisesRegex(ValueError, "parts: 1 of them"):
            evenkeel.unshard(plan, [torch.zeros(768)])
        with self.assertRaisesRegex(ValueError, r"parts\[1\]: 128 tokens: rank 1 has 192"):
            evenkeel.unshard(plan, [torch.zeros(128)] * 4)


def _in_twos(on: bool, batches: Any) -> Document:
    """The worked example of a job of so many micro-batches."""
    document = worked_example()
    document["job"]["grad_accumulation"] = batches
    return {**document, "two_batch_overlap": on}


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    unittest.main()
