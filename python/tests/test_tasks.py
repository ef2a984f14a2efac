"""Plans of tasks read and refused, what goes where between runs, their closed form, and which samples are compared:
everything that needs no ranks."""

from __future__ import annotations

import copy
import math
import os
import sys
import unittest
from typing import Any, Callable
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import torch

from evenkeel import exchange, moves, reference
from evenkeel.closed import expected_tasks
from evenkeel.plan import PlanError, Segment
from evenkeel.task_samples import (
    HELD, Cost, Holders, Knot, attention_samples, attention_work, graph, knots_of, whole_samples,
)
from evenkeel.task_weights import PICKED, Picks, Sums, apart
from evenkeel.tasks import Link, Tasks, tasks_of
from evenkeel.whole import Layer
from task_plans import Document, document, joined, model, module, random_tasks

Change = Callable[[Document], Any]


def small() -> Document:
    """Module a has 3 layers and 4 samples of 5 tokens, and c needs it and b. Ranks 0 and 1 have a's first two layers,
    ranks 1 and 2 the third; rank 3 has nothing."""
    a, b = model(16, 24, (4, 2, 6)), model(12, 20, (3, 3, 4), gated=False)
    modules = [module("a", 3, 4, 5, a), module("b", 1, 2, 3, b, causal=True), module("c", 2, 3, 4, a, ["b", "a"])]
    return document(4, modules, [(0, 2, {0: 1, 1: 3}), (1, 1, {0: 2}), (0, 1, {1: 3, 2: 1}), (2, 2, {0: 2, 2: 1})])


def first_of(d: Document, i: int) -> None:
    d["runs"].insert(0, d["runs"].pop(i))


# What is done to that plan, and how the refusal begins.
BAD: list[tuple[str, Change, str]] = [
    ("schema", lambda d: d.update(schema="evenkeel.taskplan/v9"), "schema: 'evenkeel.taskplan/v9': want"),
    ("no schema", lambda d: d.pop("schema"), "schema: None: want"),
    ("no job", lambda d: d.pop("job"), "job: missing"),
    ("a job in words", lambda d: d.update(job="f32"), "job: want an object"),
    ("half again", lambda d: d["job"].update(recompute="half"), "job.recompute: 'half': want full"),
    ("again, in a list", lambda d: d["job"].update(recompute=["full"]), "job.recompute: ['full']: want full"),
    ("no ranks", lambda d: d.pop("ranks"), "ranks: want a list of objects"),
    ("other ranks", lambda d: d["ranks"].pop(), "ranks: 3 of them: 4 ranks were started"),
    ("ranks in another order", lambda d: d["ranks"].reverse(), "ranks[0].rank: 3: want 0"),

    ("no modules", lambda d: d.pop("modules"), "modules: want a list of objects"),
    ("none", lambda d: d.update(modules=[]), "modules: want a list of objects"),
    ("no name", lambda d: d["modules"][1].pop("name"), "modules[1].name: None: want a name of its own"),
    ("an empty name", lambda d: d["modules"][1].update(name=""), "modules[1].name: '': want a name of its own"),
    ("a name twice", lambda d: d["modules"][1].update(name="a"), "modules[1].name: 'a': want a name of its own"),
    ("no layers", lambda d: d["modules"][0].update(layers=0), "modules[0].layers: 0: want a whole number from 1"),
    ("no batch", lambda d: d["modules"][0].pop("batch_samples"), "modules[0].batch_samples: None: want a whole"),
    ("half a token", lambda d: d["modules"][0].update(seq_len_tokens=0.5), "modules[0].seq_len_tokens: 0.5: want"),
    ("a mask in words", lambda d: d["modules"][1].update(causal="yes"), "modules[1].causal: 'yes': want true or"),
    ("no model", lambda d: d["modules"][2].pop("model"), "modules[2].model: missing"),
    ("no hidden", lambda d: d["modules"][1]["model"].pop("hidden"), "modules[1].model.hidden: None: want a whole"),
    ("heads", lambda d: d["modules"][1]["model"].update(kv_heads=2),
     "modules[1].model.kv_heads: 2: must divide q_heads 3"),
    ("an odd angle", lambda d: d["modules"][0]["model"].update(rotary_dim=3),
     "modules[0].model.rotary_dim: 3: want an even number up to head_dim"),
    ("another activation", lambda d: d["modules"][0]["model"].update(activation="gelu"),
     "modules[0].model.activation: 'gelu': replay has silu with a gate and gelu without"),
    ("needs in words", lambda d: d["modules"][2].update(after="a"), "modules[2].after: want a list of names"),
    ("needs nobody", lambda d: d["modules"][2].update(after=["a", "d"]), "modules[2].after[1]: 'd': want names of"),
    ("needs itself", lambda d: d["modules"][2].update(after=["c"]), "modules[2].after[0]: 'c': want names of other"),
    ("needs it twice", lambda d: d["modules"][2].update(after=["a", "a"]), "modules[2].after[1]: 'a': want names"),
    ("they wait", lambda d: d["modules"][0].update(after=["c"]),
     "runs[0].module: a begins before all layers of c, which it needs"),

    ("no runs", lambda d: d.pop("runs"), "runs: want a list of objects"),
    ("a module beyond", lambda d: d["runs"][1].update(module=3), "runs[1].module: 3: want 0 to 2"),
    ("below", lambda d: d["runs"][1].update(module=-1), "runs[1].module: -1: want a whole number from 0"),
    ("true is no number", lambda d: d["runs"][1].update(module=True), "runs[1].module: True: want a whole number"),
    ("too early", lambda d: first_of(d, 3), "runs[0].module: c begins before all layers of b, which it needs"),
    ("before its last layer", lambda d: d["runs"].append(d["runs"].pop(2)),
     "runs[2].module: c begins before all layers of a, which it needs"),
    ("a run without layers", lambda d: d["runs"][0].update(layers=0), "runs[0].layers: 0: want a whole number"),
    ("too many layers", lambda d: d["runs"][2].update(layers=2), "runs[2].layers: 2: the runs before leave 1 of a"),
    ("too few layers", lambda d: d["runs"][3].update(layers=1), "runs: have 1 of the 2 layers of c"),
    ("a rank beyond", lambda d: d["runs"][0].update(ranks=[0, 4]), "runs[0].ranks: [0, 4]: want rising ones of 0"),
    ("a rank below", lambda d: d["runs"][0].update(ranks=[-1, 1]), "runs[0].ranks: want a list of whole numbers"),
    ("a rank twice", lambda d: d["runs"][0].update(ranks=[1, 1]), "runs[0].ranks: [1, 1]: want rising ones"),
    ("falling ranks", lambda d: d["runs"][0].update(ranks=[1, 0]), "runs[0].ranks: [1, 0]: want rising ones"),
    ("nobody", lambda d: d["runs"][0].update(ranks=[], samples=[]), "runs[0].ranks: want a list of whole numbers"),
    ("shares", lambda d: d["runs"][0].update(samples=[4]), "runs[0].samples: 1 of them: want one for each of 2"),
    ("nothing for one", lambda d: d["runs"][0].update(samples=[0, 4]), "runs[0].samples: want a list of whole"),
    ("too few samples", lambda d: d["runs"][0].update(samples=[1, 2]),
     "runs[0].samples: 3 together: want batch_samples of a, 4"),
    ("too many samples", lambda d: d["modules"][0].update(batch_samples=3), "runs[0].samples: 4 together: want"),
]


class TestReading(unittest.TestCase):
    def test_good(self) -> None:
        t = tasks_of(small(), 4)
        self.assertEqual([(m.name, m.layers, m.batch, m.needs, m.seq_len, m.causal) for m in t.modules],
                         [("a", 3, 4, (), 5, False), ("b", 1, 2, (), 3, True), ("c", 2, 3, (1, 0), 4, False)])
        self.assertEqual([(m.model.hidden, m.model.gated, m.model.rotary) for m in t.modules],
                         [(16, True, 6), (12, False, 0), (16, True, 6)])
        self.assertEqual([(r.module, r.first, r.layers, r.ranks, r.samples) for r in t.runs], [
            (0, 0, 2, (0, 1), (1, 3)), (1, 0, 1, (0,), (2,)), (0, 2, 1, (1, 2), (3, 1)), (2, 0, 2, (0, 2), (2, 1))])
        self.assertEqual((t.dtype, t.recompute, t.depth()), ("f32", False, 5))
        self.assertEqual([t.own(r) for r in range(4)], [[0, 1, 3], [0, 2], [2, 3], []])
        self.assertEqual([t.ends(i) for i in range(4)], [(True, False), (True, True), (False, True), (True, True)])
        self.assertEqual(t.links, ((0, 2), (1, 3), (2, 3)))
        self.assertEqual([t.within(x) for x in t.links], [True, False, False])
        self.assertEqual([t.runs[0].share(r) for r in range(3)], [(0, 1), (1, 4), (0, 0)])

    def test_again(self) -> None:
        for said, want in (("full", True), ("none", False)):
            d = small()
            d["job"]["recompute"] = said
            self.assertEqual(tasks_of(d, 4).recompute, want)

    def test_refused(self) -> None:
        for name, change, said in BAD:
            with self.subTest(name):
                d = copy.deepcopy(small())
                change(d)
                with self.assertRaises(PlanError) as found:
                    tasks_of(d, 4)
                self.assertTrue(str(found.exception).startswith(said), str(found.exception))

    def test_unlike(self) -> None:
        """Whatever differs in modules, and nothing that a plan decides."""
        first = tasks_of(small(), 4)
        for name, change, said in (
            ("dtype", lambda d: d["job"].update(dtype="bf16"), "job.dtype: bf16: plan 0 has f32"),
            ("one more", lambda d: (d["modules"].append(module("d", 1, 1, 1, model(8, 8, (1, 1, 4)))),
                                    d["runs"].append({"module": 3, "layers": 1, "ranks": [0], "samples": [1]})),
             "modules: 4 of them: plan 0 has 3"),
            ("order", lambda d: d["modules"][2].update(after=["a", "b"]), "modules[2].after: not what plan 0 has"),
            ("tokens", lambda d: d["modules"][1].update(seq_len_tokens=4), "modules[1].seq_len_tokens: not what"),
            ("mask", lambda d: d["modules"][1].update(causal=False), "modules[1].causal: not what plan 0 has"),
            ("model", lambda d: d["modules"][1]["model"].update(ffn=4), "modules[1].model: not what plan 0 has"),
            ("name", lambda d: d["modules"][1].update(name="x") or d["modules"][2].update(after=["x", "a"]),
             "modules[1].name: not what plan 0 has"),
            ("", lambda d: d["job"].update(recompute="full") or d["runs"][1].update(ranks=[3]), None),
        ):
            with self.subTest(name):
                d = small()
                change(d)
                unlike = tasks_of(d, 4).unlike(first)
                self.assertEqual(unlike[:len(said)] if unlike and said else unlike, said)


class TestMoves(unittest.TestCase):
    def test_what_is_needed(self) -> None:
        """Sample a of n goes to sample a * m // n, so the ranks of a target share out all of the source's."""
        for n in range(1, 9):
            for m in range(1, 9):
                of = model(8, 8, (1, 1, 4))
                half = max(1, m // 2)
                shares = {0: half, 1: m - half} if m > half else {0: m}
                t = tasks_of(document(2, [module("a", 1, n, 1, of), module("b", 1, m, 1, of, ["a"])],
                                      [(0, 1, {0: n}), (1, 1, shares)]), 2)
                link = Link(0, 1)
                for r in shares:
                    lo, hi = t.runs[1].share(r)
                    want = [a for a in range(n) if lo <= a * m // n < hi]
                    self.assertEqual(list(range(*t.taken(link, r))), want, f"{n} to {m}")

    def test_between_runs_of_a_module(self) -> None:
        t = tasks_of(small(), 4)
        self.assertEqual([t.taken(Link(0, 2), r) for r in (1, 2)], [(0, 3), (3, 4)])

    def test_process_groups(self) -> None:
        """Of any two runs with something to send between ranks, those ranks alone; of the runs with several ranks. From
        b to c nothing is sent. From a's last run to c, of 4 samples to 3, samples 0 to 2 go to rank 0, which gets them
        from rank 1, and the last one is on rank 2 already."""
        t = tasks_of(small(), 4)
        self.assertEqual(moves.process_groups(t), [
            ("run 0 to 2", (0, 1, 2)), ("run 2 to 0", (0, 1, 2)), ("run 2 to 3", (0, 1)), ("run 3 to 2", (0, 1))])
        self.assertEqual(exchange.process_groups(t),
                         [("gradients", (0, 1)), ("gradients", (1, 2)), ("gradients", (0, 2))])

    def test_joint(self) -> None:
        """Results are added to inputs, and gradients come back, as autograd has it of the plain form."""
        for n, m, lengths in ((4, 3, (5, 4)), (2, 6, (3, 5)), (6, 2, (2, 7)), (3, 3, (4, 4))):
            mods = [module("a", 1, n, lengths[0], model(16, 8, (1, 1, 4))),
                    module("b", 1, m, lengths[1], model(12, 8, (1, 1, 4)), ["a"])]
            t = tasks_of(document(2, mods, [(0, 1, {0: n}), (1, 1, {0: 1, 1: m - 1})]), 2)
            source = torch.Generator().manual_seed(n)
            results = torch.randn(n, lengths[0], 16, generator=source).requires_grad_()
            x, dx = (torch.randn(m, lengths[1], 12, generator=source) for _ in range(2))
            whole = joined(x, results)
            want, = torch.autograd.grad(whole, results, dx)
            for rank in range(2):
                lo, hi = t.runs[1].share(rank)
                a = t.taken(Link(0, 1), rank)
                joint = moves.Joint(t, Link(0, 1), rank, torch.device("cpu"))
                mine = x[lo:hi].flatten(0, 1).clone()
                joint.add(mine, results.detach()[a.start:a.end].flatten(0, 1))
                self.assertTrue(torch.equal(mine, whole[lo:hi].flatten(0, 1)))
                back = joint.gradient(dx[lo:hi].flatten(0, 1))
                self.assertTrue(torch.equal(back, want[a.start:a.end].flatten(0, 1)))


class TestClosedForm(unittest.TestCase):
    def test_by_hand(self) -> None:
        """The small plan, 4 bytes an element. A sample of a has 5 * 16 elements and one of b 3 * 12.

        Runs of a: rank 0 has sample 0 and rank 1 samples 1 to 3; then rank 1 has samples 0 to 2 and rank 2 sample 3. Of
        c rank 0 has samples 0 and 1, and rank 2 sample 2: a's samples 0 to 2 go to c's 0, 0 and 1, and 3 to 2; b's, of
        which rank 0 has both, to 0 and 1.
        """
        a = 5 * 16 * 4
        want = {(0, 1): a, (1, 2): a, (1, 0): 3 * a}
        got = expected_tasks(tasks_of(small(), 4))
        sent: dict[Any, int] = {}
        for (i, j), n in want.items():
            for pair, phase in (((i, j), "fwd.send"), ((j, i), "bwd.send")):
                sent[(*pair, phase)] = sent.get((*pair, phase), 0) + n
        self.assertEqual(got.bytes, sent)
        # 4 heads of 6 and 25 or 16 pairs a sample, 3 heads of 4 and 6 pairs; layers times samples.
        forward = {0: 24 * 25 * 2 * 1 + 12 * 6 * 2 + 24 * 16 * 2 * 2, 1: 24 * 25 * (2 * 3 + 3),
                   2: 24 * 25 + 24 * 16 * 2}
        self.assertEqual(got.flops, {(r, d): each * n for r, n in forward.items() for d, each in
                                     (("fwd", 4), ("bwd", 10))})
        again = small()
        again["job"]["recompute"] = "full"
        self.assertEqual(expected_tasks(tasks_of(again, 4)).flops,
                         {(r, d): each * n for r, n in forward.items() for d, each in (("fwd", 8), ("bwd", 10))})


class TestSamples(unittest.TestCase):
    def test_knots(self) -> None:
        """Of 4 samples of a and 2 of b to 3 of c: a's 0 and 1 and b's 0 belong to c's 0, a's 2 and b's 1 to c's 1,
        a's 3 to c's 2."""
        self.assertEqual(sorted(k.samples for k in knots_of(tasks_of(small(), 4))),
                         [((0, 1), (0,), (0,)), ((2,), (1,), (1,)), ((3,), (), (2,))])

    def test_knots_are_closed(self) -> None:
        """Nothing that a sample needs, or that needs it, is in another knot, and every sample is in one."""
        for seed in range(30):
            t = tasks_of(random_tasks(seed, 6), 6)
            knots = knots_of(t)
            for j, m in enumerate(t.modules):
                self.assertEqual(sorted(s for k in knots for s in k.samples[j]), list(range(m.batch)))
                for n in m.needs:
                    for a in range(t.modules[n].batch):
                        k, = [k for k in knots if a in k.samples[n]]
                        self.assertIn(a * m.batch // t.modules[n].batch, k.samples[j])

    def test_all_or_some(self) -> None:
        """All where there is time for all; else a knot of every rank before a second one of any."""
        t = tasks_of(small(), 4)
        self.assertEqual(whole_samples(t, 5, 1e12, 1), [[0, 1, 2, 3], [0, 1], [0, 1, 2]])
        self.assertEqual(whole_samples(t, 4, 1e12, 1), [[], [], []])  # a's samples have 5 tokens
        dear = {k.samples: flops(t, k) for k in knots_of(t)}
        for seed in range(10):
            some = whole_samples(t, 8, max(dear.values()), seed)
            self.assertIn(tuple(map(tuple, some)), [*dear, ((2, 3), (1,), (1, 2))])
        self.assertEqual(whole_samples(t, 8, min(dear.values()) - 1, 1), [[], [], []])
        of = model(8, 8, (1, 1, 4))
        wide = tasks_of(document(3, [module("a", 1, 300, 1, of)], [(0, 1, {0: 100, 1: 100, 2: 100})]), 3)
        each = flops(wide, Knot(((0,),)))
        for seed in range(10):
            some, = whole_samples(wide, 8, 3.5 * each, seed)
            self.assertEqual([s // 100 for s in some], [0, 1, 2])

    def test_holders(self) -> None:
        """The ranks that have samples, in every run of their modules."""
        for seed in range(20):
            t = tasks_of(random_tasks(seed, 6), 6)
            holders = Holders(t)
            self.assertEqual(holders.seats, sum(len(run.ranks) for run in t.runs))
            for knot in knots_of(t):
                self.assertEqual(holders.of(knot), {
                    (i, r) for i, run in enumerate(t.runs) for r in run.ranks for s in knot.samples[run.module]
                    if run.share(r).start <= s < run.share(r).end})

    def test_many_samples(self) -> None:
        """Where few of many are affordable the others are not looked at one by one for ranks that have them."""
        n, looked = 20000, []
        t = tasks_of(document(2, [module("a", 1, n, 1, model(8, 8, (1, 1, 4)))], [(0, 1, {0: 1, 1: n - 1})]), 2)
        of = Holders.of

        def note(holders: Holders, knot: Knot) -> Any:
            looked.append(knot)
            return of(holders, knot)

        with mock.patch.object(Holders, "of", note):
            some, = whole_samples(t, 8, 9.5 * flops(t, Knot(((0,),))), 1)
            self.assertEqual(len(some), 9)
            whole_samples(t, 8, 1e18, 1)
            self.assertLessEqual(len(looked), 2 * n)
            looked.clear()
            even = tasks_of(document(2, [module("a", 1, n, 1, model(8, 8, (1, 1, 4)))],
                                     [(0, 1, {0: n // 2, 1: n // 2})]), 2)
            self.assertEqual(len(whole_samples(even, 8, 1e18, 1)[0]), n)
        self.assertLess(len(looked), 100)  # a rank is found after two, on average

    def test_memory(self) -> None:
        """No more samples than fit while their module is at work, whatever their FLOPs; and of two modules the larger
        one's work counts, for they are not at work at the same time."""
        of, tokens = model(64, 4096, (1, 1, 8)), 1024
        for names in ("a", "ab"):
            t = tasks_of(document(1, [module(n, 1, 200, tokens, of) for n in names],
                                  [(i, 1, {0: 200}) for i in range(len(names))]), 1)
            cost = Cost.of(t.modules[0], tokens)
            self.assertGreater(200 * cost.at_work, 2 * HELD)
            counts = [len(s) for s in whole_samples(t, tokens, 1e30, 3)]
            held = sum(counts) * cost.kept + max(counts) * cost.at_work
            self.assertLessEqual(held, HELD)
            self.assertGreater(held + cost.kept + cost.at_work, HELD)
            if len(names) == 2:
                self.assertGreater(sum(counts) * cost.at_work, HELD)

    def test_graph(self) -> None:
        """As much as autograd keeps of a layer in float64, but weights, and no more than twice as much."""
        for of in (model(24, 40, (6, 2, 8)), model(48, 16, (3, 3, 4)), model(24, 40, (6, 2, 8), gated=False),
                   model(24, 8, (6, 2, 8), gated=False), model(16, 72, (2, 1, 4), qk_norm=True, qkv_bias=True),
                   model(16, 72, (2, 1, 4), gated=False, shared_norm=True, mlp_bias=True, out_bias=True)):
            m, n = tasks_of(document(1, [module("a", 1, 1, 64, of)], [(0, 1, {0: 1})]), 1).modules[0].model, 64
            kept: dict[int, int] = {}

            def keep(x: torch.Tensor) -> torch.Tensor:
                if x.dim() > 1 and len(x) == n and x.stride(0):  # of tokens; a matrix of weights has other lengths
                    kept[x.storage().data_ptr()] = len(x.storage())
                return x

            weights = Layer(m, 1, 0, torch.float64, torch.device("cpu")).weights
            self.assertNotIn(n, {len(w) for w in weights.values()})
            x = torch.randn(n, m.hidden, dtype=torch.float64)
            attention = reference.Attention(n, (Segment(0, n),), lambda: None)
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
                alive = reference._layer(m, weights, attention, x, torch.arange(n), True)
            self.assertIsNotNone(alive)
            self.assertLessEqual(sum(kept.values()), graph(m) * n)
            self.assertLessEqual(graph(m) * n, 2 * sum(kept.values()))

    def test_attention(self) -> None:
        """All samples while they have few tokens; then one of every rank at least, and no more than there is time
        for, but one."""
        t = tasks_of(small(), 4)
        each = attention_work(t.modules[0], 20)
        self.assertEqual(attention_samples(t, 0, 20, 1e12, 1), [0, 1, 2, 3])
        for seed in range(10):
            some = attention_samples(t, 0, 9, 1e12, seed)
            for run in (t.runs[0], t.runs[2]):
                for r in run.ranks:
                    self.assertTrue(any(run.share(r).start <= s < run.share(r).end for s in some), some)
        self.assertEqual(len(attention_samples(t, 0, 20, 2.5 * each, 1)), 2)
        self.assertEqual(len(attention_samples(t, 0, 20, 0, 1)), 1)


def flops(t: Tasks, knot: Knot) -> float:
    """Of a knot's reference."""
    return sum(len(s) * Cost.of(m, 8).flops for s, m in zip(knot.samples, t.modules))


class TestWeights(unittest.TestCase):
    def picks(self, hidden: int, ffn: int, heads: tuple[int, int, int]) -> Any:
        """Those of a model, and its shapes."""
        of = tasks_of(document(1, [module("a", 1, 1, 1, model(hidden, ffn, heads))], [(0, 1, {0: 1})]), 1)
        return Picks(of.modules[0].model.shapes().values()), of.modules[0].model.shapes()

    def test_all_columns(self) -> None:
        """At least so many elements as PICKED, or all; of matrices from all columns, where there are up to as many, and
        from the first rows as from the last ones."""
        for hidden, ffn, heads in ((96, 128, (3, 1, 32)), (128, 96, (2, 2, 64)), (4096, 3, (2, 1, 2)),
                                   (30, 4095, (1, 1, 2)), (210, 2310, (7, 7, 30)), (512, 2048, (8, 2, 64))):
            picks, shapes = self.picks(hidden, ffn, heads)
            grads = [torch.arange(math.prod(shape)).view(shape) for shape in shapes.values()]
            for name, shape, x, n in zip(shapes, shapes.values(), picks.of(grads), picks.counts):
                self.assertEqual(len(x), n)
                self.assertGreaterEqual(n, min(PICKED, math.prod(shape)))
                if len(shape) == 2 and shape[1] <= PICKED:
                    self.assertEqual(len((x % shape[1]).unique()), shape[1], (name, shape))
                    self.assertGreater(math.prod(shape) - int(x[-1]), 0)
                    self.assertLessEqual(math.prod(shape) - int(x[-1]), max(1, math.prod(shape) // PICKED))

    def test_of_pieces(self) -> None:
        """The same elements of all weights in one piece."""
        picks, shapes = self.picks(96, 128, (3, 1, 32))
        grads = [torch.randn(shape) for shape in shapes.values()]
        flat = torch.cat([g.flatten() for g in grads])
        self.assertTrue(torch.equal(picks.joined(grads), picks.joined(picks.cut(flat))))

    def test_sums(self) -> None:
        """What a run's ranks had and what came back, held beside each other by who has both: in which precision it
        travelled, and its limit; and whose is wrong. Rank 2 has no part in it."""
        of = module("a", 2, 4, 1, model(16, 24, (4, 2, 4)))
        t = tasks_of(document(3, [of], [(0, 1, {0: 1, 1: 3}), (0, 1, {2: 4})], "bf16"), 3)
        shapes = t.modules[0].model.shapes().values()
        had = [[torch.randn(shape).bfloat16() for shape in shapes] for _ in range(2)]
        flats = [torch.cat([x.flatten() for x in grads]) for grads in had]
        for dtype, name, limit in ((torch.float32, "f32", 1e-5), (torch.bfloat16, "bf16", 1e-2)):
            came = flats[0].to(dtype) + flats[1].to(dtype)
            for factor in (1.0, 1 + 5 * limit):
                sums = [Sums(t, r) for r in range(3)]
                for r in range(2):
                    sums[r].before(0, 0, had[r])
                    sums[r].after(0, 0, came * factor if r == 1 else came)
                sums[2].after(1, 1, came)
                parts: list[Any] = []
                judge = mock.Mock()

                def judged(what: str, mine: Any, rows: Any, errors: Any, against: str) -> Any:
                    self.assertEqual([len(x) for x in mine], rows(len(parts)))
                    parts.append(mine)
                    if len(parts) < 3:
                        return {"": 0.0, "limit": 0, "dtype": ""}
                    found, _, more = errors(parts)
                    self.assertEqual(list(found), ["the sum of run 0's gradients"])
                    by_rank, = found.values()
                    self.assertLess(max(by_rank[0], by_rank[2]), limit)
                    self.assertEqual(by_rank[1] > 2 * limit, factor > 1)
                    return {**{n: max(x) for n, x in found.items()}, **more}

                judge.judged = judged
                for r, travels in enumerate((dtype, dtype, None)):
                    entry = sums[r].judged(judge, travels, torch.device("cpu"))
                self.assertEqual((entry["dtype"], entry["limit"]), (name, limit))  # rank 2's, who came last
        alone = tasks_of(document(1, [of], [(0, 2, {0: 4})]), 1)
        self.assertIsNone(Sums(alone, 0).judged(mock.Mock(), None, torch.device("cpu")))

    def testapart(self) -> None:
        """Over the sum's norm, and over the parts' where they cancel each other; nothing is better than NaN."""
        a, b = torch.tensor([3.0, 4.0]).double(), torch.tensor([3.0, 4.0]).double()
        self.assertAlmostEqual(apart(a + b + 1, [a, b]), math.sqrt(2) / 10)
        self.assertAlmostEqual(apart(a - a + 1, [a, -a]), math.sqrt(2) / math.sqrt(50))
        self.assertEqual(apart(torch.zeros(2), [0 * a, 0 * a]), 0)
        self.assertEqual(apart(torch.tensor([math.nan, 1]), [a, b]), math.inf)


class TestLike(unittest.TestCase):
    def test_like(self) -> None:
        """The plan of a module's heads."""
        t = tasks_of(small(), 4)
        like = t.modules[1].like("bf16")
        self.assertEqual((like.seq_len, like.q_heads, like.kv_heads, like.head_dim, like.dtype), (3, 3, 3, 4, "bf16"))
        self.assertEqual(like.segments, ((Segment(0, 3),),))


if __name__ == "__main__":
    unittest.main()
