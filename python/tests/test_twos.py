"""Two micro-batches together on real ranks over gloo: the same bits as one after the other, what leaves when, and
their replay."""

from __future__ import annotations

import itertools
import json
import os
import sys
import unittest
import weakref
from typing import Any
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import torch

import evenkeel
from evenkeel import rendezvous, replay
from evenkeel.compare import Inputs
from evenkeel.course import Course, Lap
from evenkeel.frames import Fault, Frames, Place
from evenkeel.layout import Layout
from evenkeel.parts import work_of
from evenkeel.record import Recorder
from evenkeel.request import Request
from evenkeel.split import Steps
from evenkeel.whole import Layers, model_of
from jobs import inputs
from paired import drawn_plan
from plans import chunked_example, document, late_groups, worked_example
from starter import Ranks
from test_replay import complete, odd_example
from test_replay_batch import MICRO, head, one_sequence
from test_split import _short, _timeless
from together import woven
from world import SixRanks, World

DRAWN = [("random", seed, (2, 3, 4, 5)[seed % 4]) for seed in range(500, 512)]
DRAWN += [("early", seed, (2, 3, 4, 5, 6)[seed % 5]) for seed in range(500, 515)]
WOVEN = [("random", seed, (3, 4, 5, 6)[seed % 4]) for seed in range(600, 616)]
WOVEN += [("early", seed, (2, 3, 4, 5, 6)[seed % 5]) for seed in range(600, 640)]


def in_twos(plan: dict[str, Any], own_last: bool = False, recompute: str = "none") -> dict[str, Any]:
    """A complete plan document whose micro-batches go in twos."""
    plan = {**complete(plan, recompute), "own_last": own_last, "two_batch_overlap": True}
    plan["job"]["grad_accumulation"] = 2
    return plan


class TestTogether(SixRanks):
    """All tests share six ranks."""

    jobs = "together."

    def test_drawn_plans(self) -> None:
        """Attentions, with kernels and memory as they are and at their worst."""
        for i, (drawn, seed, ranks) in enumerate(DRAWN):
            with self.subTest(drawn=drawn, seed=seed, ranks=ranks):
                self.check_drawn("in_steps", drawn, seed, ranks, i % 2 == 1, (False, False))

    def check_drawn(
        self, job: str, drawn: str, seed: int, ranks: int, poison: bool, weave: tuple[bool, bool]
    ) -> evenkeel.Plan:
        """Two sequences of a drawn plan are as they should be on every rank."""
        answers = self.answers(ranks, job, seed, ranks, drawn, poison, weave)
        document, docs = drawn_plan(drawn, seed, ranks)
        plan = evenkeel.load_plan(woven(document, *weave))
        want = evenkeel.expected(plan, docs=docs)
        sent = {(r, peer, phase): n for r, a in enumerate(answers) for phase, peer, n in a["sent"]}
        self.assertEqual(sent, {key: 2 * n for key, n in want.bytes.items()})
        for rank, answer in enumerate(answers):
            self.assertEqual(answer["same"], [True, True], f"rank {rank}")
            self.assertEqual(answer["events"], _in_order(answer["lone"], plan), f"rank {rank}")
        self.assertEqual(len({str(a["events"]) for a in answers if a["events"]}), 1)
        return plan

    def test_woven_rings(self) -> None:
        """Step by step the same bits, and messages in one order on all ranks, with and without threads."""
        drawn = []
        for i, case in enumerate(WOVEN):
            job, weave = ("in_steps", "in_steps", "in_steps_inline")[i % 3], (i % 4 != 1, i % 4 != 2)
            with self.subTest(job=job, case=case, weave=weave):
                drawn.append(self.check_drawn(job, *case, i % 3 == 1, weave))
        kinds = [(d, p.own_last, p.keep_tail) for p in drawn if len(p.groups) > 2
                 for d, weave in (("forward", p.weave_forward), ("backward", p.weave_backward)) if weave]
        self.assertEqual(len(set(kinds)), 8, "rings of three steps or more")
        shares = [(m.q_heads, p.tokens(m.rank)) for p in drawn for g in p.groups for m in g if len(p.groups) > 1]
        self.assertTrue(any(not heads for heads, _ in shares) and any(not tokens for _, tokens in shares))

    def test_layers(self) -> None:
        """Outputs and gradients of two layers and what is posted, waited for and computed in between; ranks
        without heads, tokens or work."""
        for job, own_last, recompute in itertools.product(
            (worked_example(), odd_example(), late_groups()), (False, True), (False, True)
        ):
            with self.subTest(groups=job["groups"], own_last=own_last, recompute=recompute):
                plan = evenkeel.load_plan(in_twos(job, own_last))
                seats, (forth, back) = Layout(plan), _layer(own_last)
                want = 2 * forth + [["backward"]] + 2 * ((forth if recompute else []) + back)
                answers = self.answers(4, "in_layers", {**job, "own_last": own_last}, recompute)
                for rank, answer in enumerate(answers):
                    here = want if seats.seat(rank) is not None else [e for e in want if len(e) == 1]
                    if not plan.tokens(rank):
                        here = [e for e in here if len(e) > 1 or e == ["backward"]]
                    self.assertEqual(_short(answer["events"]), here, f"rank {rank}")
                    self.assertEqual(answer["same"], [True] * 4, f"rank {rank}: y and dx of A and B")
                    summed = {x for _, x in answer["left"]}
                    self.assertEqual(summed, {True} if plan.tokens(rank) else {None}, f"rank {rank}: weights")
                    self.assertTrue(answer["apart"] and answer["cleared"])
                    self.assertEqual(answer["line"], 0, "nobody stands in line for a backward")
                    self.check_spans(answer)

    def test_woven_layers(self) -> None:
        """As test_layers. Either side's events by themselves: what a thread posts and what is waited for beside it
        have no order."""
        for job, own_last, recompute in itertools.product(
            (worked_example(), odd_example(), late_groups()), (False, True), (False, True)
        ):
            with self.subTest(groups=job["groups"], own_last=own_last, recompute=recompute):
                document = woven({**job, "own_last": own_last}, True, True)
                plan = evenkeel.load_plan(document)
                seats, (forth, back) = Layout(plan), _layer(own_last, len(plan.groups))
                want = 2 * forth + [["backward"]] + 2 * ((forth if recompute else []) + back)
                for rank, answer in enumerate(self.answers(4, "in_layers", document, recompute)):
                    here = want if seats.seat(rank) is not None else [e for e in want if len(e) == 1]
                    if not plan.tokens(rank):
                        here = [e for e in here if len(e) > 1 or e == ["backward"]]
                    got = [e if len(e) == 1 else [e[0] % 2, e[1]] for e in answer["events"]]
                    for side in ("got", "ring"):
                        self.assertEqual(_without(side, got), _without(side, here), f"rank {rank}")
                    self.assertEqual(answer["same"], [True] * 4, f"rank {rank}: y and dx of A and B")
                    self.assertEqual(answer["line"], 0, "nobody stands in line for a backward")
                    self.check_spans(answer)
                    if seats.seat(rank) is not None:
                        self.assertEqual(_turns(answer["spans"]), _alternating(2, recompute, plan), f"rank {rank}")

    def check_spans(self, answer: dict[str, Any]) -> None:
        """Either micro-batch has the spans of one alone, but two an all-to-all; none overlap."""
        for mb in range(2):
            want = []
            for s in map(_timeless, (s for s in answer["lone"] if s["mb"] == mb)):
                ends = ({"bytes_in": 0}, {"bytes_out": 0}) if "a2a" in s["op"] else ({},)
                want += [{**s, **end} for end in ends]
            self.assertEqual([_timeless(s) for s in answer["spans"] if s["mb"] == mb], want)
        end = 0
        for s in answer["spans"]:
            self.assertGreaterEqual(s["t0_ns"], end)
            end = s["t0_ns"] + s["dur_ns"]

    def test_gradients_that_are_dropped(self) -> None:
        """What is at weights of the first part is B's alone; results are the same."""
        for recompute in (False, True):
            for rank, answer in enumerate(self.answers(4, "in_layers", worked_example(), recompute, True)):
                self.assertEqual(answer["same"], [True] * 4, f"rank {rank}")
                want = {"norm1": True, "qkv": True, "out": None, "norm2": None, "up": None, "down": None}
                self.assertEqual(answer["left"], 2 * [[name, want[name]] for name, _ in answer["left"][:6]])


class TestSteps(unittest.TestCase):
    def test_refused(self) -> None:
        plan = evenkeel.load_plan(chunked_example(2))
        q, k, v = (torch.zeros(plan.tokens(0), h, plan.head_dim) for h in (plan.q_heads, *2 * [plan.kv_heads]))
        with self.assertRaisesRegex(ValueError, "^plan: head_chunks 2: want a plan that computes all heads at"):
            Steps(plan, 0, q, k, v)
        with self.assertRaisesRegex(ValueError, r"^q: shape \[1, 12, 16\]: rank 0 of the plan has"):
            Steps(plan, 0, q[:1], k, v)

    def test_nothing_is_kept_without_a_backward(self) -> None:
        """Nor when there was one: buffers of a sequence are free when it is over."""
        plan = evenkeel.load_plan(document([[(0, 40)]], [[(0, 6)]], 6, 2, 8))
        q, k, v, dout = inputs(plan, 1)
        for keep in (False, True):
            steps = Steps(plan, 0, q, k, v, kernel=evenkeel.Math())
            steps.leave()
            steps.attend()
            steps.arrive(keep)
            saved = steps._saved.saved_tensors
            self.assertEqual(len(saved), 4 * keep)
            if keep:
                held = weakref.ref(saved[1])
                del saved
                steps.leave_back(dout)
                self.assertIsNotNone(held())
                steps.attend_back()
                self.assertIsNone(held(), "keys and values, after the ring")
                steps.arrive_back()


class TestFailures(unittest.TestCase):
    def test_a_rank_dies(self) -> None:
        """While rings take turns; who waits for it hears of it, and nobody stands still. That is rank 0, for keys and
        values; the others need none of its, and may be done if what it sent in all-to-alls was on its way."""
        for backward in (False, True):
            with self.subTest(backward=backward), World(4) as world:
                answers = world.run("together.leave", backward)
                self.assertEqual(answers[2], {"error": "gone"})
                for rank in (0, 1, 3):
                    said = answers[rank].get("error", "nothing")
                    if rank and said == "nothing":
                        continue
                    self.assertRegex(said, rf"^(ExchangeError|LaneError): .*rank {rank}: (fwd|bwd)")


class TestCourse(unittest.TestCase):
    def test_gradients_between_micro_batches(self) -> None:
        """Each of two that go one after the other comes to weights without gradients, and leaves none."""
        plan = complete(document([[(0, 40)]], [[(0, 6)]], 6, 2, 8))
        asked = Request.of({"plans": [plan], "trace": "t", "layers": 2})
        work, frames, cpu = work_of(plan, None, None, 1), Frames(), torch.device("cpu")
        trace, seen = Recorder(0, cpu, frames), []
        layers = Layers(model_of(plan), 1, torch.float32, cpu)
        weights = [w for layer in layers.at(0, 2) for w in layer.weights.values()]
        inside = Lap.run

        def noted(lap: Lap) -> None:
            for call in (lambda: None, lambda: inside(lap)):
                call()
                seen.append([trace.mb, frames.place.mb, {w.grad is not None for w in weights}])

        for in_twos, want in ((True, [[0, 0, {False}], [0, 0, {True}], [1, 1, {False}], [1, 1, {True}]]),
                              (False, [[0, -1, {False}], [0, -1, {True}]])):
            course = Course(work, asked, in_twos)
            source = Inputs(evenkeel.load_plan(plan), 1, cpu)
            course.prepare(0, source, evenkeel.Math(), layers, trace, cpu)
            seen.clear()
            frames.place = Place("block")
            with mock.patch.object(Lap, "run", noted):
                course.run(lambda: self.fail("they do not meet"), frames.place)
            self.assertEqual(seen, want)
            course.clear()
            self.assertEqual(({w.grad for w in weights}, trace.mb), ({None}, 0))


class TestReplayInTwos(unittest.TestCase):
    def replayed(self, plans: list[dict[str, Any]], size: int, **options: Any) -> list[dict[str, Any]]:
        """The recording."""
        with Ranks(plans, size, **options) as ranks:
            for r, end in enumerate(ranks.ends()):
                self.assertEqual(end["t"], "result", f"rank {r}: {end}")
            with open(ranks.traces[0], encoding="utf-8") as file:
                return [json.loads(line) for line in file]

    def test_beside_others(self) -> None:
        """A step of each plan is two micro-batches, together or one after the other, of whole layers."""
        plans = [in_twos(worked_example(), True, "full"), complete(odd_example()),
                 in_twos(odd_example(), True), complete(chunked_example(2), "full")]
        docs, layers, repeats = [300, 1, 467], 2, 2
        lines = self.replayed(plans, 4, docs_tokens=docs, layers=layers, repeats=repeats, warmup=1, seed=5)
        for i, rank, block in itertools.product(range(len(plans)), range(4), range(repeats)):
            with self.subTest(plan=i, rank=rank, block=block):
                mine = [x for x in lines if (x["block"], x["plan"], x["rank"]) == (block, i, rank)]
                self.check_step(mine, rank, plans[i], docs, layers)

    def check_step(
        self, lines: list[Any], rank: int, plan: dict[str, Any], docs: list[int], layers: int
    ) -> None:
        """One rank's step of a plan."""
        step, spans = lines[-1], lines[:-1]
        self.assertEqual(step["t"], "step")
        together, end = plan.get("two_batch_overlap", False), 0
        for s in spans:
            self.assertGreaterEqual(s["t0_ns"], end)
            end = s["t0_ns"] + s["dur_ns"]
        self.assertGreaterEqual(step["dur_ns"], end)
        self.assertNotIn("meet", {s["op"] for s in spans})
        of = [s["mb"] for s in spans]
        self.assertEqual(of == sorted(of), not together or not of, "whether one comes after the other")
        loaded = evenkeel.load_plan(plan)
        want = evenkeel.expected(loaded, docs=docs)
        again = plan["job"]["recompute"] == "full"
        passes = [("fwd", False), *([("fwd", True)] if again else []), ("bwd", False)]
        for mb, layer, (direction, second) in itertools.product(range(2), range(layers), passes):
            here = [s for s in spans if (s["mb"], s["layer"], s["dir"], s.get("again", False))
                    == (mb, layer, direction, second)]
            ops = [s["op"] for s in here]
            seated, tokens = Layout(loaded).seat(rank) is not None, loaded.tokens(rank) > 0
            for op, times in (("linear_in", tokens), ("linear_out", tokens), ("a2a_in", 2 * seated),
                              ("a2a_out", 2 * seated)):
                if together or "linear" in op:
                    self.assertEqual(ops.count(op), times, op)
            flops = sum(s["flops"] for s in here if s["op"] == "attn")
            self.assertEqual(flops, want.flops.get((rank, direction), 0))
            for key, side in (("bytes_out", 0), ("bytes_in", 1)):
                due = sum(n for (*pair, phase), n in want.bytes.items() if pair[side] == rank
                          and phase in (direction + ".a2a_in", direction + ".a2a_out"))
                self.assertEqual(sum(s[key] for s in here if "a2a" in s["op"]), due, key)
        self.assertEqual({s["mb"] for s in spans}, {0, 1} if spans else set())

    def test_woven(self) -> None:
        """Rings take turns in the direction that a plan says, and in no other."""
        docs, layers = [300, 1, 467], 2
        plans = [woven(in_twos(worked_example(), False, "full"), True, True), in_twos(worked_example()),
                 woven(in_twos(late_groups(), True), False, True), woven(in_twos(odd_example(), True), True, False)]
        lines = self.replayed(plans, 4, docs_tokens=docs, layers=layers, repeats=1, warmup=0, seed=5)
        for i, rank in itertools.product(range(len(plans)), range(4)):
            with self.subTest(plan=i, rank=rank):
                mine = [x for x in lines if (x["plan"], x["rank"]) == (i, rank)]
                self.check_step(mine, rank, plans[i], docs, layers)
                plan = evenkeel.load_plan(plans[i])
                if Layout(plan).seat(rank) is not None:
                    want = _alternating(layers, plans[i]["job"]["recompute"] == "full", plan)
                    self.assertEqual(_turns(mine[:-1]), want)

    def test_attention_alone(self) -> None:
        plans = [in_twos(document([[(0, 300)], [(300, 400)]], [[(0, 4), (1, 2)]], 6, 2, 8), False, r)
                 for r in ("none", "full")]
        plans.append(complete(document([[(0, 300)], [(300, 400)]], [[(0, 6)], [(1, 6)]], 6, 2, 8)))
        lines = self.replayed(plans, 2, parts="attention", layers=3, repeats=2, warmup=0, turns=True)
        for i, again in enumerate((False, True, False)):
            of = [s for s in lines if s["t"] == "span" and (s["plan"], s["rank"], s["block"]) == (i, 0, 1)]
            self.assertEqual({s["op"] for s in of}, {"a2a_in", "ring_wait", "attn", "merge", "a2a_out"})
            for mb in range(2):
                blocks = [s["layer"] for s in of if (s["mb"], s["op"], s["dir"]) == (mb, "attn", "fwd")]
                self.assertEqual(sorted(set(blocks)), [0, 1, 2])
            self.assertEqual(any(s.get("again") for s in of), again)

    def test_together_something_else(self) -> None:
        """What only two micro-batches together get wrong is noticed before anything is timed."""
        wrong = ("from evenkeel.split import Steps\nrun, calls = Steps.arrive_back, []\ndef changed(self):\n"
                 "    calls.append(0)\n    dq, dk, dv = run(self)\n"
                 "    return dq, dk * (1.001 if len(calls) == 2 else 1), dv\nSteps.arrive_back = changed")
        plans = [one_sequence(), in_twos(one_sequence())]
        with Ranks(plans, 3, {2: wrong}) as ranks:
            for rank, end in enumerate(ranks.ends()):
                self.assertEqual((end["t"], end.get("class")), ("error", "numerics"), f"rank {rank}: {end}")
                self.assertEqual(end["msg"], "plan 1 two micro-batches together: rank 2: dk is off by 1.0e-03 of "
                                 "its norm against one micro-batch alone, the limit is 1e-05")

    def test_refused_beside_batches(self) -> None:
        world = rendezvous.World(0, 3, 0, "127.0.0.1", 1)
        said = r"two_batch_overlap, is two micro-batches of one sequence each; replay them apart$"
        for plans, batches, first in (
            ([head(3), in_twos(one_sequence())], [MICRO, None], "plan 0: batches: a step of plan 1, which has "),
            ([in_twos(one_sequence()), head(3)], [None, MICRO], "plan 1: batches: a step of plan 0, which has "),
        ):
            asked = Request.of({"plans": plans, "trace": "t", "batches": batches})
            with self.assertRaisesRegex(Fault, "^" + first + said) as caught:
                replay._plans(asked, world)
            self.assertEqual(caught.exception.kind, "usage")
        asked = Request.of({"plans": [one_sequence(), head(3)], "trace": "t", "batches": [None, MICRO]})
        self.assertEqual([w.in_twos for w in replay._plans(asked, world)], [False, False])

    def test_place(self) -> None:
        """Where a rank is says which of the two it is at, where a step has several."""
        frames = Frames()
        trace = Recorder(0, torch.device("cpu"), frames)
        for before, mb, after in ((-1, 1, -1), (0, 1, 1), (1, 0, 0)):
            frames.place.mb, trace.mb = before, mb
            with trace.span(evenkeel.Span("fwd", 0, "attn")):
                self.assertEqual(frames.place.mb, after)


def _layer(own_last: bool, weave: int = 0) -> tuple[list[Any], list[Any]]:
    """What happens in a layer of a ring for A, 0, and B, 1, forward and backward. weave: of so many steps, in which
    they take turns; 0 if one follows the other."""
    def half(d: str, first: str, last: str, hop: list[Any]) -> list[Any]:
        a, b = ({x: [k, f"{d}.{x}"] for x in ("a2a_in", "ring", "a2a_out")} for k in (0, 1))
        got = lambda k, x: [k, f"got {d}.a2a_{x}"]
        rings = [got(0, "in"), a["ring"], *hop[1:], a["a2a_out"], got(1, "in"), b["ring"], b["a2a_out"]]
        if weave:
            of = [e[:2] for e in _woven(d, weave)]
            rings = [got(0, "in"), got(1, "in"), *(of[1:] if hop else of), a["a2a_out"], b["a2a_out"]]
        return [
            *hop[:1], [f"{d}.{first} 0"], a["a2a_in"], [f"{d}.{first} 1"], b["a2a_in"], *rings,
            got(0, "out"), [f"{d}.{last} 0"], got(1, "out"), [f"{d}.{last} 1"],
        ]

    hops = [[k, "bwd.ring"] for k in (0, 1)] if own_last else []
    return half("fwd", "linear_in", "linear_out", []), half("bwd", "linear_out", "linear_in", hops)


def _woven(direction: str, steps: int) -> list[Any]:
    """What woven rings of so many steps post, in both orders of steps."""
    hops = [[[k, f"{direction}.ring", t] for k in (0, 1)] for t in range(steps - 1)]
    if direction == "fwd":
        return sum(hops, [])
    out = hops[0]
    for t, k in itertools.product(range(steps), (0, 1)):
        out = out + [h[k] for h in hops[t + 1:t + 2]] + ([[k, "bwd.ring_grad", t]] if t else [])
    return out


def _without(what: str, events: list[Any]) -> list[Any]:
    return [e for e in events if what not in e[-1]]


def _turns(spans: list[Any]) -> list[Any]:
    """[micro-batch, step] of the waits in rings, and what the all-to-alls out are among them, by pass."""
    passes = itertools.groupby(spans, lambda s: (s["layer"], s["dir"], s.get("again", False)))
    return [[[s["mb"], s["step"]] for s in of if s["op"] in ("ring_wait", "a2a_out")] for _, of in passes]


def _alternating(layers: int, recompute: bool, plan: evenkeel.Plan) -> list[Any]:
    """What _turns finds of a rank with work."""
    n = len(plan.groups)

    def half(order: list[int], weave: bool, after: bool) -> list[Any]:
        """order: of the steps; after: A's results leave after B's last step, not before."""
        rings = [[[k, t] for t in order] for k in (0, 1)]
        left = [[[k, n], [k, n]] for k in (0, 1)]  # the ring's last wait, the all-to-all out leaves
        taken = [*rings[0], *left[0], *rings[1], *left[1]]
        if weave:
            taken = [x for both in zip(*rings) for x in both]
            taken = [*taken[:-1], *left[0], taken[-1], *left[1]] if not after else [*taken, *left[0], *left[1]]
        return [*taken, [0, n], [1, n]]  # it arrives

    forth = half([*range(n)], plan.weave_forward, False)
    back = half([*range(1, n), 0] if plan.own_last else [*range(n)], plan.weave_backward, True)
    return layers * [forth] + layers * ([forth, back] if recompute else [back])


def _in_order(one: list[Any], plan: evenkeel.Plan) -> list[Any]:
    """What A, 0, and B, 1, are to post, from what one posts by itself. Where the own block is last, the ring's
    first hop backward leaves before all else."""
    if not one:
        return []
    first = plan.own_last and len(plan.groups) > 1
    half = [phase for phase, _ in one].index("fwd.a2a_out") + 1
    forth, back = one[:half], one[half:]
    hop, back = (back[:1], back[1:]) if first else ([], back)
    of = lambda k, events: [[k, *e] for e in events]
    rings = [[*of(0, forth[1:]), *of(1, forth[1:])],
             [*of(0, back[1:-1]), *of(1, hop), *of(0, back[-1:]), *of(1, back[1:])]]
    if plan.weave_forward:
        rings[0] = [*_woven("fwd", len(plan.groups)), *of(0, forth[-1:]), *of(1, forth[-1:])]
    if plan.weave_backward:
        rings[1] = [*_woven("bwd", len(plan.groups))[len(hop):], *of(0, back[-1:]), *of(1, back[-1:])]
    return [*of(0, forth[:1]), *of(1, forth[:1]), *rings[0], *of(0, hop), *of(0, back[:1]), *of(1, back[:1]),
            *rings[1]]


if __name__ == "__main__":
    unittest.main()
