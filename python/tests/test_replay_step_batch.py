"""Whole training steps of plans of batches in the rank program: what is recorded and checked, found and refused."""

from __future__ import annotations

import itertools
import os
import sys
import unittest
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

from evenkeel import replay
from evenkeel.frames import Fault
from evenkeel.rendezvous import World
from evenkeel.request import Request
from starter import Ranks
from test_loss import twos
from test_replay_batch import MICRO, RING, alone
from test_replay_step import STEP, parameters, whole_steps
from test_training import GPT2, PLAIN, ZEROS, left_out, trained
from test_training_batch import RAGGED, batch, in_dtype

LAYERS = 2
SIZE = 5

Seen = list[tuple[int, str, int, str]]


def due(zero: str, overlap: bool, parts: list[bool]) -> Seen:
    """What a member's step has beside its layers, in order. parts: whether it has one, by micro-batch."""
    three, last, out = zero == "zero3", len(parts) - 1, []
    for mb, has in enumerate(parts):
        leaves = zero in ("zero2", "zero3") or mb == last
        of = [("fwd", 0, "param_wait")] * three + [("fwd", 0, "embed")] * has
        of += [("fwd", layer, "param_wait") for layer in range(LAYERS)] * three
        of += [("fwd", LAYERS - 1, "loss")] * has
        for layer in reversed(range(LAYERS)):
            of += [("bwd", layer, "param_wait")] * three
            of += [("bwd", layer, "grad_wait")] * (leaves and not overlap)
        of += [("bwd", 0, "embed")] * has + [("bwd", 0, "grad_wait")] * leaves
        of += [("bwd", 0, "meet")] * (mb < last)
        out += [(mb, *x) for x in of]
    return [*out, (last, "bwd", 0, "optimizer"), *[(last, "bwd", 0, "param_wait")] * (zero in ("zero1", "zero2"))]


class TestReplayOfStepsOfBatches(unittest.TestCase):
    def test_stages(self) -> None:
        """Of ZeRO, beside a plan of one sequence: what is recorded in which micro-batch, and how much came."""
        kinds = list(itertools.product(ZEROS, (False, True)))
        plans: list[Any] = [batch(zero, overlap, **PLAIN) for zero, overlap in kinds]
        result, lines = whole_steps(plans, SIZE, LAYERS, batches=[RAGGED] * len(kinds), repeats=1)
        layer, rest = parameters(plans[0], LAYERS)
        for (i, (zero, overlap)), rank in itertools.product(enumerate(kinds), range(SIZE)):
            of = [x for x in lines if x["t"] == "span" and (x["plan"], x["rank"]) == (i, rank)]
            self.assertEqual([x["t0_ns"] for x in of], sorted(x["t0_ns"] for x in of))
            if rank == 3:
                self.assertEqual([(x["mb"], x["dir"], x["layer"], x["op"]) for x in of],
                                 [(0, "bwd", 0, "meet"), (1, "bwd", 0, "meet")])
                continue
            has = [any(rank in g["ranks"] for g in side) for side in RAGGED]
            own = [x for x in of if x["op"] in (*STEP, "meet")]
            self.assertEqual([(x["mb"], x["dir"], x["layer"], x["op"]) for x in own], due(zero, overlap, has))
            self.assertEqual({x["mb"] for x in of if x["op"] in ("attn", "linear_in")},
                             {mb for mb, there in enumerate(has) if there})
            self.assertEqual({(x["mb"], x["layer"]) for x in of if "again" in x},
                             {(0, n) for n in range(LAYERS)} if not rank else set())
            self.check_bytes(own, zero, 4 * 4 * -(-layer // 4), 4 * 4 * -(-rest // 4))
        for i, entry in enumerate(result["numerics"]):
            self.assertTrue(0 < entry["exchange"].pop("sum") < 1e-6)
            self.assertEqual(entry["exchange"], {"limit": 1e-5, "dtype": "f32", "kind": "all_reduce"})
            self.assertTrue(0 < entry["update"].pop("params") < 5e-4)
            self.assertEqual(entry["update"], {"limit": 1e-3, "parameters": rest + LAYERS * layer})
            for name, errors in (("layer", ("out", "dx", "dw")), ("loss", ("dx", "dw"))):
                self.assertTrue(all(0 < entry[name][n] < entry[name]["limit"] / 2 for n in errors), entry)
        self.assertEqual(sum(x["t"] == "step" for x in lines), len(kinds) * SIZE)

    def check_bytes(self, of: list[Any], zero: str, layer: int, rest: int) -> None:
        """In a step a unit's gradients were waited for once, of zero2 and zero3 in every micro-batch; its parameters
        once, of zero3 in every one, those of layers twice."""
        came = {op: sum(x["bytes_in"] for x in of if x["op"] == op) for op in ("grad_wait", "param_wait")}
        times = len(RAGGED) if zero in ("zero2", "zero3") else 1
        gathered = {"zero0": 0, "zero3": times * (rest + 2 * LAYERS * layer)}.get(zero, rest + LAYERS * layer)
        self.assertEqual(came, {"grad_wait": times * (rest + LAYERS * layer), "param_wait": gathered})

    def test_precisions_and_turns(self) -> None:
        """bf16, learned positions, a tied projection and a rank with heads alone, beside a plan of one sequence, by
        ranks that compute one at a time."""
        model = {**GPT2, "position_rows": 60}
        one = trained(left_out(), "zero1", dtype="bf16", **model)
        one["job"]["model"].update(q_heads=6)
        one["groups"] = [[{"rank": 2, "q_heads": 3}, {"rank": 1, "q_heads": 3}], [{"rank": 3, "q_heads": 6}]]
        plans = [batch(zero, True, 4, (), "bf16", **model) for zero in ("zero1", "zero2")]
        micro = in_dtype([*RING, [alone(3, [5]), alone(1, [17], "full")]], "bf16")
        result, lines = whole_steps(
            [plans[0], one, plans[1]], 4, LAYERS, batches=[micro, None, micro], repeats=1, turns=True)
        for entry in result["numerics"]:
            self.assertLess(entry["exchange"]["sum"], 1e-6)
            self.assertTrue(0 < entry["update"]["params"] < 5e-4)
            self.assertTrue(0 < entry["layer"]["dw"] < entry["layer"]["limit"])
        self.assertEqual({x["mb"] for x in lines if x["t"] == "span" and x["plan"] == 1}, {0})
        heads = [x for x in lines if x["t"] == "span" and (x["plan"], x["rank"], x["mb"]) == (0, 1, 0)]
        self.assertEqual({x["op"] for x in heads} & {"embed", "loss", "linear_in"}, set())
        self.assertIn("attn", {x["op"] for x in heads})

    def test_what_is_wrong_is_found(self) -> None:
        """Micro-batches that are not added up, added twice or left out; ranks that add what they do not have; an
        embedding of other words, parameters of the micro-batch before; too many updates."""
        def before(owner: str, name: str, text: str, after: str = "") -> str:
            """A method that does something else first, and then."""
            return f"from evenkeel import {owner.split('.')[0]}\nrun = {owner}.{name}\ndef changed(self, *of):\n" \
                   f"    {text or 'pass'}\n    out = run(self, *of)\n    {after or 'pass'}\n    return out\n" \
                   f"{owner}.{name} = changed\n"

        every = "[self._units.drop(i) for i in range(len(self._units.spans))]"
        forgets = before("training.Exchanging", "begin", every)
        loses = before("loss.Learning", "_learn", "self._leaf.grad = None if of[-1] else self._leaf.grad")
        keeps = "from evenkeel import units\nrun = units.Units.take\ndef changed(self, i, room):\n" \
                "    had = {n: w.grad for n, w in self._weights[i].items()}\n    run(self, i, room)\n" \
                "    for n, w in self._weights[i].items():\n        w.grad = had[n]\nunits.Units.take = changed\n"
        adds = before("units.Units", "take", "none = all(w.grad is None for w in self._weights[of[0]].values())",
                      "room = of[1].add_(1e-6) if none else 0")
        late = before("training.Trained", "_idle", "had = self.ends.loss._norm[0].grad",
                      "had is None or had.mul_(1.00001)")
        silent = "from evenkeel import training\nrun = training.Exchanging.learned\ndef changed(self, unit):\n" \
                 "    if unit != 1 or self._leaves:\n        run(self, unit)\n" \
                 "training.Exchanging.learned = changed\n"
        last = "from evenkeel import units\nrun = units.Units.gain\n" \
               "units.Units.gain = lambda self, i, grad, first: run(self, i, grad, True)\n"
        twice = before("units.Units", "gain", "", "run(self, of[0], of[1].clone(), False)")
        words = "from evenkeel import training\nrun = training.Ends.embedded\ndef changed(self, of, trace):\n" \
                "    words = of.words.roll(1) if len(of.words) == 44 else of.words\n" \
                "    return run(self, training.Text(words, of.places), trace)\n" \
                "training.Ends.embedded = changed\n"
        updates = before("training.Exchanging", "end", "", "self._units.optimizer.step()")
        stale = before("training.Exchanging", "begin", "seen.extend([0] * (self._stage == 3))") + \
            "from evenkeel import shares\ngather, seen = shares.Shares.gather, []\nshares.Shares.gather = " \
            "lambda self, of, mine, full: gather(self, of, mine, full.clone() if len(seen) > 1 else full)\n"
        off = "what a micro-batch adds is off by .* against that micro-batch alone, the limit is 2e-05"
        # Rank 1 has no part in the last micro-batch, rank 2 in none.
        micro = [MICRO[1], [alone(0, [1, 40, 3], "full")]]
        micro[0] = [{**micro[0][0], "ranks": [0, 1]}]
        for zero, rank, change, said in (
            ("zero0", 1, forgets, f"^plan 0 gradients: rank 1: {off}"),
            ("zero1", 0, loses, f"^plan 0 gradients: rank 0: {off}"),
            ("zero2", 0, keeps, f"^plan 0 gradients: rank 0: {off}"),
            ("zero3", 2, adds, "^plan 0 gradients: rank 2: what a micro-batch adds is off by inf"),
            ("zero1", 2, adds, "^plan 0 gradients: rank 2: what a micro-batch adds is off by inf"),
            ("zero0", 1, late, "^plan 0 gradients: rank 1: what a micro-batch adds is off by inf"),
            ("zero0", 1, silent, "^plan 0 gradients: rank 1: what a micro-batch adds is off by inf"),
            ("zero2", 1, last, "^plan 0 exchange: rank 1: the sum of gradients is off by"),
            ("zero3", 2, twice, "^plan 0 exchange: rank 2: the sum of gradients is off by"),
            ("zero1", 0, words, "^plan 0 embedding: rank 0: what is looked up is off by"),
            ("zero3", 0, stale, "^plan 0 gradients: rank 0: what a micro-batch adds is off by inf"),
            ("zero0", 1, updates, "^plan 0 update: rank 1: params is off by"),
        ):
            with self.subTest(zero=zero, rank=rank, said=said):
                plans = [batch(zero, zero != "zero2", 3, ())]
                with Ranks(plans, 3, {rank: change}, batches=[micro], repeats=1, warmup=0, parts="step",
                           layers=1) as ranks:
                    for end in ranks.ends():
                        self.assertEqual((end["t"], end.get("class")), ("error", "numerics"), end)
                        self.assertRegex(end["msg"], said)

    def test_sums_in_bf16(self) -> None:
        """Of so many chunks rounding makes as much of a projection's bias as is allowed for; a layer's micro-batch that
        is left out is found, though it is one of many."""
        number, skipped = 30, 20
        micro = in_dtype([[alone(0, [60 + i]), alone(1, [40 + i])] for i in range(number)], "bf16")
        # Behind the check of the loss alone, and all micro-batches alone.
        skips = "from evenkeel import loss\nrun, calls = loss.Learning.gradient, []\ndef changed(self, *of, **how):\n" \
                f"    calls.append(0)\n    return run(self, *of, **how) * (len(calls) != {2 + number + skipped})\n" \
                "loss.Learning.gradient = changed\n"
        for change, said in (({}, "^$"), ({1: skips}, "^plan 0 gradients: rank 1: what a micro-batch adds is off by")):
            with Ranks([batch("zero0", True, 2, (), "bf16", **PLAIN)], 2, change, batches=[micro], parts="step",
                       layers=1, loss_chunk=4, repeats=0, warmup=0) as ranks:
                for end in ranks.ends():
                    self.assertEqual(end["t"], "error" if change else "result", end)
                    self.assertRegex(end.get("msg", ""), said)

    def test_a_lost_rank_is_named(self) -> None:
        """By its place in the group where an attention waits for it, and among all members where gradients do."""
        dies = "import os, time\nfrom evenkeel import shares, whole\ndef changed(*_):\n" \
               "    time.sleep(0.5)\n    os._exit(9)\n{of} = changed\n"
        for of, heard, said in (
            ("shares.Shares.reduce", 0, "^gradients and parameters, whose ranks 0 to 3 are those of the run "
                                        "0, 1, 2, 4: .*gradients of layer 1: with ranks "),
            ("whole.Linear.before", 1, "^micro-batch 0 group 0, whose ranks 0 to 1 are those of the run 1, 2: .*fwd"),
            ("whole.begin_backward", 1, "^micro-batch 0 group 0, whose ranks 0 to 1 are those of the run 1, 2: .*bwd"),
        ):
            with Ranks([batch("zero2", True)], SIZE, {2: dies.format(of=of)}, batches=[RAGGED], repeats=1, warmup=0,
                       parts="step", layers=LAYERS, check=False) as ranks:
                end = ranks.ends()[heard]
                self.assertEqual((end["t"], end.get("class")), ("error", "peer"), end)
                self.assertRegex(end["msg"], said)
                self.assertRegex(end["at"], "^block 0, plan 0, micro-batch 0, layer ")

    def test_refusals(self) -> None:
        for document, micro, said in (
            (batch("zero0", left=[2]), RAGGED, "left_out_ranks: 2: has work in micro-batch 0 group 0"),
            (batch("zero0", left=[5]), RAGGED, "left_out_ranks: [5]: want rising ones of 0 to 4"),
            (batch("zero0", left=[4, 3]), RAGGED, "left_out_ranks: [4, 3]: want rising ones"),
            (batch("zero0", left=["3"]), RAGGED, "left_out_ranks: want a list of whole numbers"),
            (batch("zero0", position_rows=59), RAGGED, "job.model.position_rows: 59: want a row for each of 60"),
            (batch("zero5"), RAGGED, "job.zero: 'zero5'"),
            (batch("zero0"), [[{**g, "plan": twos(g["plan"])} for g in RAGGED[0]]],
             "parts: 'step': of a plan with two_batch_overlap"),
        ):
            with self.subTest(said=said), self.assertRaises(Fault) as caught:
                asked = Request.of({"plans": [document], "trace": "x", "parts": "step", "batches": [micro]})
                replay._plans(asked, World(0, SIZE, 0, "localhost", 1))
            self.assertIn(f"plan 0: {said}", caught.exception.said)


if __name__ == "__main__":
    unittest.main()
