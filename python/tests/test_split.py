"""Sequences side by side on real ranks over gloo: the same bits as one after the other, and what leaves when.

Run by path, or `python -m unittest discover -s tests`, with an interpreter that has torch.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import unittest
import weakref
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import torch

import evenkeel
from evenkeel.layout import Layout
from jobs import inputs
from paired import drawn_plan
from plans import chunked_example, document, late_groups, worked_example
from test_replay import odd_example
from world import SixRanks, World

PAIRS = [("random", seed, (2, 3, 4, 5)[seed % 4]) for seed in range(300, 328)]
PAIRS += [("early", seed, (2, 3, 4, 5, 6)[seed % 5]) for seed in range(300, 330)]


class TestPairs(SixRanks):
    """All tests share six ranks."""

    jobs = "paired."

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

    def test_in_turn(self) -> None:
        """Sequences that are computed together have the bits of two attentions, and what is posted has one order:
        in the directions in which the plan weaves rings they take turns, else one follows the other."""
        turns = set()
        for seed, (sample, own_last) in enumerate(
            itertools.product((worked_example(), odd_example(), late_groups()), (False, True)), 1
        ):
            for forth, back in itertools.product((False, True), (False, True)):
                seed += 1
                job = {**sample, "own_last": own_last, "two_batch_overlap": True, "weave_forward": forth,
                       "weave_backward": back}
                answers = self.answers(4, "in_turn", job, seed)
                for backend in ("gloo", "nccl"):
                    with self.subTest(groups=sample["groups"], own_last=own_last, forth=forth, back=back, seed=seed):
                        for rank, answer in enumerate(answers):
                            self.assertEqual(answer[backend]["same"], [True, True], f"rank {rank}")
                        orders = [a[backend]["events"] for a in answers if a[backend]["events"]]
                        self.assertEqual(orders, len(orders) * orders[:1], "one order on all ranks")
                        for phase, woven in (("fwd.ring", forth), ("bwd.ring_grad", back)):
                            of = [e[0] for e in orders[0] if e[1] == phase]
                            alternate = sum(a != b for a, b in zip(of, of[1:])) > 1
                            self.assertTrue(woven or not alternate, phase)
                            turns |= {(phase, own_last)} if alternate else set()
        self.assertEqual(len(turns), 4, "rings of three groups or more take turns in both directions, either way")

    def test_other_plans(self) -> None:
        for answer in self.answers(4, "of_two_plans"):
            self.assertEqual(answer, "beside: want sequences of the same plan")

    def test_any_timing(self) -> None:
        """Places are written to only when they are free, whoever is early, in float32 and half precision."""
        for seed in range(400, 412):
            for drawn in ("random", "early"):
                with self.subTest(seed=seed, drawn=drawn):
                    dtype = "bfloat16" if seed % 3 == 0 else "float32"
                    self.check_pair("poisoned", drawn, seed, 2 + seed % 5, dtype, True)

    def test_order_of_batches(self) -> None:
        for drawn, seed, ranks in PAIRS[::4]:
            with self.subTest(drawn=drawn, seed=seed, ranks=ranks):
                self.check_pair("inline", drawn, seed, ranks)

    def test_layers(self) -> None:
        """Two layers for two sequences. What comes before B's attention is made while A's all-to-all in is on
        the wire, B's ring while A's out is, what follows A's attention while B's out is; backward the same
        with B before A. What is recomputed is so before the backward sends anything."""
        for sample, own_last in itertools.product((worked_example(), odd_example()), (False, True)):
            forth, back = _layer(own_last)
            for recompute in (False, True):
                with self.subTest(groups=sample["groups"], own_last=own_last, recompute=recompute):
                    job = {**sample, "own_last": own_last, "two_batch_overlap": True}
                    answers = self.answers(4, "layered", job, recompute)
                    want = 2 * forth + [["backward"]] + 2 * ((forth if recompute else []) + back)
                    seats = Layout(evenkeel.load_plan(job))
                    for rank, answer in enumerate(answers):
                        here = want
                        if seats.seat(rank) is None:
                            here = [e for e in want if len(e) == 1]
                        self.assertEqual(_short(answer["events"]), here, f"rank {rank}")
                        self.assertEqual(answer["same"], [True] * 8, f"rank {rank}")
                        tokens = seats.plan.tokens(rank)
                        self.assertEqual(answer["zeros"], [not tokens] * 8, f"rank {rank}")

    def test_several_plans_at_once(self) -> None:
        """Ranks without a place in one plan have theirs in another; whoever has one keeps the order."""
        plans = [{**d, "own_last": last, "keep_tail": last} for d, last in
                 ((worked_example(), True), (odd_example(), True), (late_groups(), False),
                  (chunked_example(1), True), (late_groups(), True), (odd_example(), True))]
        layouts = [Layout(evenkeel.load_plan(d)) for d in plans]
        answers = self.answers(4, "several", plans)
        for rank, answer in enumerate(answers):
            with self.subTest(rank=rank):
                self.assertEqual(answer["same"], [True] * 12)
                seated = [i for i, layout in enumerate(layouts) if layout.seat(rank) is not None]
                # One tensor for who has no place, so that it recomputes what the others do.
                self.assertEqual(answer["asked"], 2 * (4 * len(seated) + 6 - len(seated)))
                mine = [[seated[k], phase.replace("ring_grad", "ring")] for k, phase, _ in answer["events"]]
                forth = [[k, "fwd.a2a_in"] for k in range(6)]
                back = [[5, "bwd.ring"], *([k, "bwd.a2a_in"] for k in reversed(range(6)))]
                for k in range(6):
                    forth += [[k, "fwd.ring"], [k, "fwd.a2a_out"]]
                for k in reversed(range(6)):
                    lead = [[k - 1, "bwd.ring"]] if k and layouts[k - 1].plan.own_last else []
                    back += [[k, "bwd.ring"], *lead, [k, "bwd.a2a_out"]]
                want = [e for e in forth + 2 * back if e[0] in seated]
                want = [e for e in want if "ring" not in e[1] or layouts[e[0]].steps > 1]
                self.assertEqual(_collapsed(mine), _collapsed(want))

    def test_process_groups(self) -> None:
        """Sequences of different process groups do not wait for each other's turn."""
        for answer in self.answers(4, "apart"):
            want = [[0, "bwd.ring", 0], [0, "bwd.a2a_in", 0], [1, "bwd.ring", 0], [1, "bwd.a2a_in", 0]]
            self.assertEqual(answer[:4], want)

    def test_without_gradients(self) -> None:
        for answer in self.answers(4, "without_gradients"):
            self.assertEqual(answer, [True] * 12)

    def test_spans(self) -> None:
        """Either sequence has the spans of one alone, of its own micro-batch and layer in both directions; an
        all-to-all has a span at either end, with the bytes that leave and those that come."""
        for late, own_last in itertools.product((False, True), (False, True)):
            for rank, answer in enumerate(self.answers(4, "traced", late, own_last)):
                with self.subTest(late=late, own_last=own_last, rank=rank):
                    want = []
                    for s in map(_timeless, answer["alone"]):
                        ends = ({"bytes_in": 0}, {"bytes_out": 0}) if "a2a" in s["op"] else ({},)
                        want += [{**s, **end, "layer": 7} for end in ends]
                    for mb in (3, 4):
                        mine = [_timeless(s) for s in answer["spans"] if s["mb"] == mb]
                        self.assertEqual(mine, [{**s, "mb": mb} for s in want])
                    self.assertEqual(len(answer["spans"]), 2 * len(want))
                    self.assertEqual(answer["now"], [0, 0], "what the trace is set to is the caller's")
                    ends = 0
                    for s in sorted(answer["spans"], key=lambda s: s["t0_ns"]):
                        self.assertGreaterEqual(s["t0_ns"], ends, "spans of one rank do not overlap")
                        ends = s["t0_ns"] + s["dur_ns"]


class TestMisuse(unittest.TestCase):
    """One rank, without a process group."""

    def setUp(self) -> None:
        self.plan = evenkeel.load_plan(document([[(0, 40)]], [[(0, 6)]], 6, 2, 8))
        q, k, v, self.dout = inputs(self.plan, 1)
        self.heads = [x.requires_grad_() for x in (q, k, v)]

    def begun(self, **options: Any) -> evenkeel.SplitAttention:
        return evenkeel.begin_attention(self.plan, 0, *self.heads, **options)

    def finished(self, **options: Any) -> Any:
        """A sequence's output."""
        x = self.begun(**options)
        x.compute()
        return x.finish()

    def refuses(self, call: Any, said: str) -> None:
        with self.assertRaises(RuntimeError) as caught:
            call()
        self.assertEqual(str(caught.exception), said)

    def test_calls_out_of_turn(self) -> None:
        """A refused call changes nothing: the sequence goes on."""
        want = evenkeel.attention(self.plan, 0, *self.heads)
        for _ in range(2):
            x = self.begun()
            self.refuses(x.finish, "finish: this sequence has not been computed yet: call compute first")
            x.compute()
            self.refuses(x.compute, "compute: this sequence has been computed: finish is next")
            out = x.finish()
            self.assertTrue(torch.equal(out, want))
            over = "this sequence has been finished: begin_attention begins another"
            self.refuses(x.finish, "finish: " + over)
            self.refuses(x.compute, "compute: " + over)
            out.backward(self.dout)

    def test_gradients_switched_off(self) -> None:
        """Else the results would have no graph, or half of one."""
        x = self.begun()
        for call, name in ((x.compute, "compute"), (x.finish, "finish")):
            with torch.no_grad():
                self.refuses(call, name + ": gradients were enabled when the sequence began and no longer are")
            call()

    def test_a_call_that_fails(self) -> None:
        """The sequence is lost, and says so; others are not."""
        class Fails(evenkeel.Math):
            def forward(self, *args: Any) -> Any:
                raise ZeroDivisionError("no")

        x = self.begun(kernel=Fails())
        with self.assertRaises(ZeroDivisionError):
            x.compute()
        for call, name in ((x.compute, "compute"), (x.finish, "finish")):
            self.refuses(call, name + ": an earlier call for this sequence failed")
        self.assertTrue(self.finished().requires_grad)

    def test_refused(self) -> None:
        chunked = evenkeel.load_plan({**document([[(0, 40)]], [[(0, 6)]], 6, 2, 8), "head_chunks": 2})
        with self.assertRaises(ValueError) as caught:
            evenkeel.begin_attention(chunked, 0, *self.heads)
        self.assertEqual(str(caught.exception), "plan: head_chunks 2: want a plan that computes all heads at "
                         "once; attention runs this one")
        q, k, v = self.heads
        with self.assertRaisesRegex(ValueError, r"q: shape \[39, 6, 8\]: rank 0 of the plan has"):
            evenkeel.begin_attention(self.plan, 0, q[1:], k, v)
        with self.assertRaisesRegex(evenkeel.PlanError, "docs: 3 tokens in all"):
            self.begun(docs=[3])

    def test_a_backward_that_failed(self) -> None:
        """Leaves nothing behind for others, and may be tried again."""
        class Fails(evenkeel.Math):
            failing = True

            def backward(self, *args: Any) -> Any:
                if self.failing:
                    raise ZeroDivisionError("no")
                return super().backward(*args)

        kernel = Fails()
        out = self.finished(kernel=kernel)
        with self.assertRaises(ZeroDivisionError):
            torch.autograd.grad(out, self.heads, self.dout, retain_graph=True)
        kernel.failing = False
        got = torch.autograd.grad(out, self.heads, self.dout)
        want = torch.autograd.grad(evenkeel.attention(self.plan, 0, *self.heads), self.heads, self.dout)
        self.assertTrue(all(map(torch.equal, got, want)))
        kernel.failing, out = True, self.finished(kernel=kernel)
        run = weakref.ref(out.grad_fn.run)
        with self.assertRaises(ZeroDivisionError):
            out.backward(self.dout)
        del out
        gc.collect()  # an error and what it went through know each other
        self.assertIsNone(run(), "it stands in line for a backward that never comes")

    def test_an_output_gradient_written_to(self) -> None:
        """What has left is a copy, and so is what stays here."""
        plan = evenkeel.load_plan(document([[(0, 40)]], [[(0, 1)]], 1, 1, 8))
        q, k, v, dout = inputs(plan, 1)
        heads = [x.requires_grad_() for x in (q, k, v)]
        want = torch.autograd.grad(evenkeel.attention(plan, 0, *heads), heads, dout)
        both = [evenkeel.begin_attention(plan, 0, *heads) for _ in range(2)]
        for x in both:
            x.compute()
        outs = [x.finish() for x in both]
        given = dout.clone()
        outs[0].register_hook(lambda grad: given.zero_())  # called between the second's finish and compute
        got = torch.autograd.grad([outs[0] * 0, outs[1]], heads, [dout, given])
        self.assertFalse(bool(given.any()))
        self.assertTrue(all(map(torch.equal, got, want)))

    def test_begin_backward(self) -> None:
        """Of what finish returned, and of nothing that is made of it."""
        plan = evenkeel.load_plan({**document([[(0, 40)]], [[(0, 6)]], 6, 2, 8), "own_last": True})
        x = evenkeel.begin_attention(plan, 0, *self.heads)
        x.compute()
        out = x.finish()
        evenkeel.begin_backward(out)
        with self.assertRaises(ValueError) as caught:
            evenkeel.begin_backward(out * 2)
        self.assertEqual(str(caught.exception), "out: made by MulBackward0: want the tensor that attention "
                         "returned, or finish")

    def test_nothing_is_kept(self) -> None:
        """When its graph is gone, so is the sequence."""
        out = self.finished()
        run = weakref.ref(out.grad_fn.run)
        out.backward(self.dout)
        self.assertIsNotNone(run())
        del out
        self.assertIsNone(run())


class TestFailures(unittest.TestCase):
    def test_a_rank_dies(self) -> None:
        with World(4) as world:
            answers = world.run("paired.leave")
            self.assertEqual(answers[2], {"error": "gone"})
            for rank in (0, 1, 3):
                said = answers[rank].get("error", "nothing")
                self.assertRegex(said, rf"rank {rank}: fwd\.\w+ step \d: (from|to) rank \d: .")


class TestCorpus(unittest.TestCase):
    def test_kinds(self) -> None:
        """The drawn plans hold what they are there for."""
        kinds: dict[str, int] = {}
        for drawn, seed, ranks in PAIRS:
            job, docs = drawn_plan(drawn, seed, ranks)
            plan = evenkeel.load_plan(job)
            seated = [m for g in plan.groups for m in g]
            for kind, holds in (
                ("no tokens", any(not plan.tokens(m.rank) for m in seated)),
                ("no heads", any(not m.q_heads for m in seated)), ("idle", len(seated) < plan.ranks),
                ("one group", len(plan.groups) == 1), ("ring", len(plan.groups) > 1),
                ("ring of 4 or more", len(plan.groups) > 3), ("documents", docs is not None),
                ("own last in a ring", plan.own_last and len(plan.groups) > 1),
                ("mixed groups", len({len(g) for g in plan.groups}) > 1),
            ):
                kinds[kind] = kinds.get(kind, 0) + holds
        for kind, least in (("no tokens", 5), ("no heads", 5), ("idle", 2), ("one group", 3), ("ring", 30),
                            ("ring of 4 or more", 5), ("documents", 10), ("own last in a ring", 15),
                            ("mixed groups", 10)):
            self.assertGreaterEqual(kinds[kind], least, f"{kind}: {kinds}")


def _layer(own_last: bool) -> tuple[list[Any], list[Any]]:
    """What happens in a layer of a ring for two sequences, A 0 and B 1, forward and backward."""
    a2a = lambda k, at: [k, f"{d}.a2a_{at}"]
    d = "fwd"
    forth = [
        ["pre A"], a2a(0, "in"), ["pre B"], a2a(1, "in"),
        [0, "got fwd.a2a_in"], [0, "fwd.ring"], a2a(0, "out"),
        [1, "got fwd.a2a_in"], [1, "fwd.ring"], a2a(1, "out"),
        [0, "got fwd.a2a_out"], ["post A"], [1, "got fwd.a2a_out"], ["post B"],
    ]
    d = "bwd"
    hop = lambda k: [[k, "bwd.ring"]] if own_last else []
    back = [
        ["post B back"], *hop(1), a2a(1, "in"), ["post A back"], a2a(0, "in"),
        [1, "got bwd.a2a_in"], [1, "bwd.ring"], *hop(0), a2a(1, "out"),
        [0, "got bwd.a2a_in"], [0, "bwd.ring"], a2a(0, "out"),
        [1, "got bwd.a2a_out"], ["pre B back"], [0, "got bwd.a2a_out"], ["pre A back"],
    ]
    return forth, back


def _short(events: list[Any]) -> list[Any]:
    """Without steps and layers."""
    return _collapsed([e if len(e) == 1 else [e[0] % 2, e[1].replace("ring_grad", "ring")] for e in events])


def _collapsed(events: list[Any]) -> list[Any]:
    """What a ring posts one after the other as one."""
    pairs = zip(events, [[""], *events])
    return [e for e, before in pairs if e != before or "ring" not in e[-1]]


def _timeless(span: Any) -> Any:
    return {key: x for key, x in span.items() if key not in ("t0_ns", "dur_ns")}


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
