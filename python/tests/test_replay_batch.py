"""The rank program of `evenkeel replay` on plans of batches: groups side by side, micro-batches in turn."""

from __future__ import annotations

import copy
import json
import os
import sys
import unittest
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import evenkeel
from evenkeel import rendezvous, replay
from evenkeel.frames import Fault
from evenkeel.parts import BATCH_SCHEMA, work_of
from evenkeel.request import Request
from plans import document
from starter import Ranks
from test_replay import MODEL, THIRD, complete

HEADS = 6, 2, 8  # query, key and value, width


def head(ranks: int, **model: Any) -> dict[str, Any]:
    """What a request has of a plan of batches beside its micro-batches."""
    q, kv, dim = HEADS
    return {
        "schema": BATCH_SCHEMA, "ranks": [{"rank": r, "device": "torch_cpu:1"} for r in range(ranks)],
        "job": {"dtype": "f32", "model": {"q_heads": q, "kv_heads": kv, "head_dim": dim, **MODEL, **model}},
    }


def group(
    ranks: list[int], docs: list[int], segments: list[list[tuple[int, int]]],
    groups: list[list[tuple[int, int]]], recompute: str = "none", own_last: bool = False,
) -> dict[str, Any]:
    """One group of a micro-batch. segments and groups by place among its ranks."""
    plan = complete(document(segments, groups, *HEADS), recompute)
    return {"plan": {**plan, "own_last": own_last}, "ranks": ranks, "docs_tokens": docs}


def alone(rank: int, docs: list[int], recompute: str = "none") -> dict[str, Any]:
    return group([rank], docs, [[(0, sum(docs))]], [[(0, 6)]], recompute)


# Two micro-batches of three ranks. First ranks 1 and 2 in a ring, own blocks last, with a document that only
# one of them has tokens of, beside rank 0 alone, which recomputes; then ranks 0 and 2 in an all-to-all of unequal heads that
# cut a KV group, and rank 1 has nothing to do.
MICRO = [
    [group([1, 2], [5, 1, 60, 2], [[(0, 2), (4, 5), (5, 20), (50, 66)], [(2, 4), (20, 50), (66, 68)]],
           [[(0, 6)], [(1, 6)]], own_last=True),
     alone(0, [1, 40, 3], "full")],
    [group([0, 2], [30, 1, 1], [[(0, 10), (25, 31)], [(10, 25), (31, 32)]], [[(1, 2), (0, 4)]])],
]

# Text for a rank whose kernel is not as it should be.
CHANGED = """
from evenkeel.kernels import Math
run = Math.forward
def changed(self, *args):
    {do}
Math.forward = changed
"""

# A ring of all ranks, whose second document no two ranks share, and which leaves rank 1 without tokens.
RING = [[group([0, 1, 2], [50, 1], [[(0, 20), (40, 51)], [], [(20, 40)]], [[(0, 6)], [(2, 4), (1, 2)]])]]


def one_sequence() -> dict[str, Any]:
    return complete(document([[(0, 20)], [(20, 50)], [(50, 64)]], [[(0, 6)], [(1, 6)], [(2, 6)]], *HEADS))


class TestReplayOfBatches(unittest.TestCase):
    def run_plans(
        self, plans: list[dict[str, Any]], batches: list[Any], **options: Any
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Rank 0's result and the recording."""
        with Ranks(plans, 3, batches=batches, repeats=2, warmup=1, **options) as ranks:
            ends = ranks.ends()
            for r, end in enumerate(ends):
                self.assertEqual(end["t"], "result", f"rank {r}: {end}")
            with open(ranks.traces[0], encoding="utf-8") as file:
                return ends[0], [json.loads(line) for line in file]

    def test_groups_and_micro_batches(self) -> None:
        """With a plan of one sequence between them: numerics, counts, and whose spans are of which
        micro-batch."""
        plans, batches = [head(3), one_sequence(), head(3)], [MICRO, None, RING]
        result, lines = self.run_plans(plans, batches, layers=2)
        for i, numerics in enumerate(result["numerics"]):
            self.assertEqual((numerics["plan"], numerics["reference"], numerics["rows"]), (i, "dense", 0))
            for errors, names, limit in ((numerics, ("out", "dq", "dk", "dv"), 1e-5),
                                         (numerics["layer"], ("out", "dx"), 2e-5)):
                self.assertNotIn("skipped", errors)
                for name in names:
                    self.assertGreater(errors[name], 0)
                    self.assertLessEqual(errors[name], limit)
        for i, of in ((0, MICRO), (2, RING)):
            self.check_counts(result["exact"][i], i, of)
            for rank in range(3):
                for block in range(2):
                    mine = [x for x in lines if (x["block"], x["plan"], x["rank"]) == (block, i, rank)]
                    self.check_spans(mine, rank, of)
        self.assertEqual({x["mb"] for x in lines if x["t"] == "span" and x["plan"] == 1}, {0})
        self.assertEqual(sum(x["t"] == "step" for x in lines), 2 * 3 * 3)

    def check_counts(self, exact: dict[str, Any], plan: int, micro: list[Any]) -> None:
        """The sums over all groups, each by its closed form."""
        wants = [evenkeel.expected(evenkeel.load_plan(g["plan"]), docs=g["docs_tokens"])
                 for side in micro for g in side]
        self.assertEqual(exact, {
            "plan": plan, "messages": sum(len(w.bytes) for w in wants),
            "bytes": sum(sum(w.bytes.values()) for w in wants),
            "flops": sum(sum(w.flops.values()) for w in wants)})

    def check_spans(self, lines: list[Any], rank: int, micro: list[Any]) -> None:
        """One rank's step: its spans follow each other, and those of a micro-batch are of the group that the
        rank is in there."""
        step, spans = lines[-1], lines[:-1]
        end = 0
        for s in spans:
            self.assertGreaterEqual(s["t0_ns"], end)
            end = s["t0_ns"] + s["dur_ns"]
        self.assertGreaterEqual(step["dur_ns"], end)
        self.assertEqual([s["mb"] for s in spans], sorted(s["mb"] for s in spans))
        for mb, side in enumerate(micro):
            mine = next((g for g in side if rank in g["ranks"]), None)
            *of, met = [s for s in spans if s["mb"] == mb]
            self.assertEqual((met["op"], met["dir"], met["layer"], met["step"]), ("meet", "bwd", 0, 0))
            self.assertNotIn("meet", {s["op"] for s in of})
            if mine is None:
                self.assertEqual(of, [])
                continue
            plan = evenkeel.load_plan(mine["plan"])
            want = evenkeel.expected(plan, docs=mine["docs_tokens"])
            again = mine["plan"]["job"]["recompute"] == "full"
            for layer in range(2):
                for direction, times in (("fwd", 2 if again else 1), ("bwd", 1)):
                    attn = [s for s in of if (s["layer"], s["dir"], s["op"]) == (layer, direction, "attn")]
                    due = want.flops.get((mine["ranks"].index(rank), direction), 0)
                    self.assertEqual(sum(s["flops"] for s in attn), times * due)
                    if due and len(plan.groups) > 1:
                        self.assertEqual(attn[-1]["step"] == 0, plan.own_last and direction == "bwd")
            tokens = {s["shape"]["tokens"] for s in of if s["op"].startswith("linear")}
            own = plan.tokens(mine["ranks"].index(rank))
            self.assertEqual(tokens, {own} if own else set())
            self.assertEqual(any(s.get("again") for s in of), again)

    def test_ranks_meet_after_a_micro_batch(self) -> None:
        """A rank without work in the last micro-batch waits inside its step for those that have some."""
        plans, micro = [head(3)], [[alone(0, [10])], [alone(1, [10]), alone(2, [10])]]
        slow = CHANGED.format(do="__import__('time').sleep(0.2); return run(self, *args)")
        with Ranks(plans, 3, {0: slow, 2: slow}, batches=[micro], repeats=1, warmup=0, parts="attention",
                   check=False) as ranks:
            self.assertEqual([e["t"] for e in ranks.ends()], ["result"] * 3)
            with open(ranks.traces[0], encoding="utf-8") as file:
                lines = [json.loads(line) for line in file]
        first = {x["rank"]: x["t0_ns"] for x in reversed(lines) if x["t"] == "span" and x["op"] != "meet"}
        for rank in (1, 2):
            self.assertGreater(first[rank], 0.15e9, "it began before rank 0 had ended")
        for x in lines:
            if x["t"] == "step":
                self.assertGreater(x["dur_ns"], 0.35e9, f"rank {x['rank']} did not wait")

    def test_sampled_attention(self) -> None:
        micro = [[group([0, 2], [300, 9], [[(0, 100), (250, 309)], [(100, 250)]], [[(0, 6)], [(1, 6)]]),
                  alone(1, [20, 3])]]
        result, _ = self.run_plans([head(3)], [micro], sampled_above=100)
        numerics = result["numerics"][0]
        self.assertEqual((numerics["reference"], numerics["rows"]), ("sampled", 256))
        self.assertRegex(numerics["layer"]["skipped"], "^1 of 2 groups: 309 tokens: a layer is compared up")
        self.assertEqual(numerics["layer"]["out"], 0)

    def test_wrong_numbers_are_named(self) -> None:
        """A kernel that is off on one rank."""
        off = CHANGED.format(do="out, lse = run(self, *args); return out * 1.001, lse")
        with Ranks([head(3)], 3, {2: off}, batches=[MICRO], repeats=1, warmup=0) as ranks:
            for end in ranks.ends():
                self.assertEqual((end["t"], end.get("class")), ("error", "numerics"), end)
                self.assertRegex(end["msg"], "^plan 0 micro-batch 0 group 0 attention: rank 2: out is off by")

    def test_a_rank_of_a_group_dies(self) -> None:
        """Its peer in the group names it, by its place and whose place that is."""
        dies = THIRD.format(do="os.kill(os.getpid(), signal.SIGKILL)")
        with Ranks([head(3)], 3, {2: dies}, batches=[MICRO], check=False) as ranks:
            ends = ranks.ends()
        self.assertEqual((ends[1]["t"], ends[1].get("class")), ("error", "peer"), ends[1])
        said = (r"^micro-batch 0 group 0, whose ranks 0 to 1 are those of the run 1, 2: .*"
                r"rank 0: .*(from|to) rank 1")
        self.assertRegex(ends[1]["msg"], said)
        self.assertRegex(ends[1]["at"], r"^warmup block \d, plan 0, micro-batch 0, layer 0, ")


class TestWork(unittest.TestCase):
    def test_a_plan_of_one_sequence(self) -> None:
        work = work_of(one_sequence(), None, [60, 4], 3)
        self.assertEqual([p.ranks for _, p in work.parts()], [(0, 1, 2)])
        part = work.own(1)[0]
        assert part is not None
        self.assertEqual((work.batched, part.docs, part.name), (False, (60, 4), ""))
        self.assertEqual(part.everywhere(3), part.plan)

    def test_parts_by_rank(self) -> None:
        work = work_of(head(3), MICRO, None, 3)
        names = [[p.name if p else None for p in work.own(r)] for r in range(3)]
        pair = ["micro-batch 0 group 0", "micro-batch 1 group 0"]
        self.assertEqual(names, [["micro-batch 0 group 1", pair[1]], [pair[0], None], pair])
        part = work.own(2)[1]
        assert part is not None
        whole = part.everywhere(3)
        self.assertEqual([whole.tokens(r) for r in range(3)], [16, 0, 16])
        self.assertEqual([[tuple(m) for m in g] for g in whole.groups], [[(2, 2), (0, 4)]])
        meter = evenkeel.Meter()
        meter.message(meter.sent, "fwd.ring", 1, 8)
        self.assertEqual(part.counted(meter).sent, {("fwd.ring", 2): 8})

    def test_refused(self) -> None:
        world = rendezvous.World(0, 3, 0, "127.0.0.1", 1)

        def broken(change: Any) -> Any:
            micro = copy.deepcopy(MICRO)
            change(micro)
            return micro

        first, last = r"batches\[0\]\[0\]", r"batches\[1\]\[0\]"
        for change, said in (
            (lambda m: m[0][1].update(ranks=[1]), r"batches\[0\]\[1\].ranks: rank 1 is also in group 0"),
            (lambda m: m[0][0].update(ranks=[2, 1]), first + r".ranks: \[2, 1\]: want rising ones"),
            (lambda m: m[0][0].update(ranks=[1, 3]), first + ".ranks: 3: 3 ranks were started"),
            (lambda m: m[0][0].update(ranks=[1]), first + ".ranks: 1 of them: the group's plan has 2"),
            (lambda m: m[0][0].update(ranks="x"), first + ".ranks: 'x': want a list"),
            (lambda m: m[0][0].update(docs_tokens=[5]), first + ".docs: 5 tokens in all"),
            (lambda m: m[1][0].pop("plan"), last + ".plan: want an object"),
            (lambda m: m[1][0]["plan"].update(groups=[]), last + ".groups: rank 0 has 16 tokens"),
            (lambda m: m[1][0]["plan"]["job"]["model"].update(head_dim=16), "head_dim: 16: plan 0 has 8"),
            (lambda m: m.insert(0, 5), r"batches\[0\]: want a list"),
            (lambda m: m.clear(), "batches: no group has work"),
        ):
            asked = Request.of({"plans": [head(3)], "trace": "t", "batches": [broken(change)]})
            with self.assertRaisesRegex(Fault, "^plan 0: " + said):
                replay._plans(asked, world)
        for of, batches, options, said in (
            (head(3), MICRO, {"docs_tokens": [68]}, "docs_tokens: a plan of batches"),
            (head(2), MICRO, {}, "ranks: 3 ranks were started"),
            (one_sequence(), MICRO, {}, "schema: 'evenkeel.plan/v2'"),
            (head(3), None, {}, "schema: 'evenkeel.b"),
        ):
            asked = Request.of({"plans": [of], "trace": "t", "batches": [batches], **options})
            with self.assertRaisesRegex(Fault, "^plan 0: " + said):
                replay._plans(asked, world)
        for batches in (5, [], [5]):
            with self.assertRaisesRegex(Fault, "^batches: want a list"):
                Request.of({"plans": [head(3)], "trace": "t", "batches": batches})


if __name__ == "__main__":
    unittest.main()
