"""Whole training steps in the rank program: what is recorded and checked of them, what is found and refused."""

from __future__ import annotations

import itertools
import json
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
from test_replay_pipeline import pipeline
from test_training import GPT2, PLAIN, ZEROS, left_out, trained, unequal

LAYERS = 2
STEP = ("param_wait", "embed", "loss", "grad_wait", "optimizer")

Seen = list[tuple[str, int, str]]


def parameters(plan: dict[str, Any], layers: int) -> tuple[int, int]:
    """Of one layer and of the rest; by costmodel's Model.LayerParams and Model.Params, written out."""
    m = plan["job"]["model"]
    h, heads = m["hidden"], m["q_heads"] * m["head_dim"]
    qkv, up = heads + 2 * m["kv_heads"] * m["head_dim"], m["ffn"] * (2 if m["gated_mlp"] else 1)
    norm = 2 * h if m.get("layer_norm") else h
    layer = h * qkv + heads * h + h * up + m["ffn"] * h + (1 if m.get("shared_norm") else 2) * norm
    layer += qkv * bool(m.get("qkv_bias")) + h * bool(m.get("out_bias")) + (up + h) * bool(m.get("mlp_bias"))
    layer += 2 * m["head_dim"] * bool(m.get("qk_norm"))
    rest = norm + m["vocab"] * h * (1 if m["tied_embeddings"] else 2) + m.get("position_rows", 0) * h
    return layer, rest + m["vocab"] * bool(m.get("vocab_bias"))


def due(zero: str, overlap: bool, tokens: bool) -> Seen:
    """What a member's step has beside its layers, in order."""
    three, back = zero == "zero3", reversed(range(LAYERS))
    out: Seen = [("fwd", 0, "param_wait")] * three + [("fwd", 0, "embed")] * tokens
    out += [("fwd", layer, "param_wait") for layer in range(LAYERS)] * three
    out += [("fwd", LAYERS - 1, "loss")] * tokens
    for layer in back:
        out += [("bwd", layer, "param_wait")] * three + [("bwd", layer, "grad_wait")] * (not overlap)
    out += [("bwd", 0, "embed")] * tokens + [("bwd", 0, "grad_wait"), ("bwd", 0, "optimizer")]
    return out + [("bwd", 0, "param_wait")] * (zero in ("zero1", "zero2"))


def whole_steps(plans: list[Any], size: int, layers: int, **options: Any) -> tuple[Any, list[Any]]:
    """Rank 0's result and the recording of plans run in whole steps, which all ranks end well."""
    with Ranks(plans, size, parts="step", layers=layers, warmup=1, loss_chunk=6, **options) as ranks:
        ends = ranks.ends()
        for r, end in enumerate(ends):
            assert end["t"] == "result", f"rank {r}: {end}"
        with open(ranks.traces[0], encoding="utf-8") as file:
            return ends[0], [json.loads(line) for line in file]


class TestReplayOfSteps(unittest.TestCase):
    def test_stages(self) -> None:
        """Of ZeRO, on ranks of which one takes no part and one has no heads."""
        kinds = list(itertools.product(ZEROS, (False, True)))
        plans = [trained(left_out(), zero, overlap, "full" if overlap else "none", **PLAIN) for zero, overlap in kinds]
        result, lines = whole_steps(plans, 4, LAYERS, repeats=1)
        layer, rest = parameters(plans[0], LAYERS)
        for i, (zero, overlap) in enumerate(kinds):
            self.check_numerics(result["numerics"][i], rest + LAYERS * layer)
            for rank in range(4):
                spans = [x for x in lines if x["t"] == "span" and (x["plan"], x["rank"]) == (i, rank)]
                of = [x for x in spans if x["op"] in STEP]
                if not rank:
                    self.assertEqual(spans, [])
                    continue
                self.assertEqual([(x["dir"], x["layer"], x["op"]) for x in of], due(zero, overlap, True))
                self.assertEqual([x["t0_ns"] for x in spans], sorted(x["t0_ns"] for x in spans))
                self.assertEqual({x["layer"] for x in spans if "again" in x}, set(range(LAYERS)) if overlap else set())
                self.assertFalse([x for x in of if x["mb"] or x["step"] or x["bytes_out"] or "again" in x])
                self.check_bytes(of, zero, 4 * 3 * -(-layer // 3), 4 * 3 * -(-rest // 3))
            steps = [x for x in lines if x["t"] == "step" and x["plan"] == i]
            self.assertEqual(len(steps), 4)

    def check_numerics(self, entry: dict[str, Any], of: int) -> None:
        self.assertTrue(0 < entry["exchange"].pop("sum") < 1e-6)
        self.assertEqual(entry["exchange"], {"limit": 1e-5, "dtype": "f32", "kind": "all_reduce"})
        self.assertTrue(0 < entry["update"].pop("params") < 5e-4)
        self.assertEqual(entry["update"], {"limit": 1e-3, "parameters": of})
        for name, errors in (("layer", ("out", "dx", "dw")), ("loss", ("dx", "dw"))):
            self.assertTrue(all(0 < entry[name][n] < entry[name]["limit"] / 4 for n in errors), entry)

    def check_bytes(self, of: list[Any], zero: str, layer: int, rest: int) -> None:
        """Every unit's gradients were waited for once; its parameters too, of zero3 those of layers twice."""
        came = {op: sum(x["bytes_in"] for x in of if x["op"] == op) for op in STEP}
        gathered = {"zero0": 0, "zero3": rest + 2 * LAYERS * layer}.get(zero, rest + LAYERS * layer)
        self.assertEqual((came["grad_wait"], came["param_wait"]), (rest + LAYERS * layer, gathered))
        self.assertEqual([x["shape"] for x in of if x["op"] == "embed"],
                         [{"tokens": x["shape"]["tokens"]} for x in of if x["op"] == "loss"] * 2)

    def test_precisions_and_turns(self) -> None:
        """bf16, learned positions and a tied projection; a rank without tokens; ranks that compute one at a time."""
        plans = [trained(unequal(), "zero3", True, dtype="bf16", **{**GPT2, "tied_embeddings": False})]
        result, lines = whole_steps(plans, 3, LAYERS, repeats=1, turns=True, docs_tokens=[11, 30])
        layer, rest = parameters(plans[0], LAYERS)
        for entry in result["numerics"]:
            self.assertLess(entry["exchange"]["sum"], 1e-6)  # of three numbers of 8 bits float32 may have no error
            self.assertEqual((entry["exchange"]["dtype"], entry["exchange"]["limit"]), ("f32", 1e-5))
            self.assertTrue(0 < entry["update"]["params"] < 5e-4)
            self.assertEqual(entry["update"]["parameters"], rest + LAYERS * layer)
            self.assertTrue(0 < entry["layer"]["dw"] < entry["layer"]["limit"])
        for rank in range(3):
            of = [(x["dir"], x["layer"], x["op"]) for x in lines
                  if x["t"] == "span" and x["rank"] == rank and x["op"] in STEP]
            self.assertEqual(of, due("zero3", True, rank != 1))

    def test_one_rank_exchanges_nothing(self) -> None:
        plan = trained(left_out(), "zero3")
        plan["ranks"] = [{"rank": 0, "device": "torch_cpu:1", "segments": [{"start_tokens": 0, "end_tokens": 37}]}]
        plan["groups"] = [[{"rank": 0, "q_heads": 4}]]
        result, lines = whole_steps([plan], 1, LAYERS, repeats=1)
        self.assertNotIn("exchange", result["numerics"][0])
        self.assertTrue(0 < result["numerics"][0]["update"]["params"] < 5e-4)
        self.assertEqual([x["op"] for x in lines if x["t"] == "span" and x["op"] in STEP],
                         ["embed", "loss", "embed", "optimizer"])

    def test_without_checks(self) -> None:
        result, lines = whole_steps([trained(left_out(), "zero1")], 4, LAYERS, repeats=1, check=False)
        self.assertEqual(result["numerics"], [])
        self.assertTrue([x for x in lines if x["t"] == "span" and x["op"] == "optimizer"])

    def test_what_is_wrong_is_found(self) -> None:
        """Gradients of a layer, of the loss, of the embedding, their sums, an update, parameters that one rank has
        otherwise or gathers wrong."""
        layer = "from evenkeel import whole\nrun = whole.Stack._backward\ndef changed(self, i, kept, dy):\n" \
                "    dx = run(self, i, kept, dy)\n    self._linear.layers[i].weights['up'].grad.mul_(1.01)\n" \
                "    return dx\nwhole.Stack._backward = changed\n"
        sums = "from evenkeel import shares\nrun = shares.Coming.wait\ndef changed(self):\n" \
               "    n = run(self)\n    self.result.mul_(1.001)\n    return n\nshares.Coming.wait = changed\n"
        update = "from evenkeel import adamw\nadamw.BETA2 = 0.951\n"
        late = "from evenkeel import adamw\nadamw.WEIGHT_DECAY = 0.2\n"
        stale = "from evenkeel import units\nrun = units.Units.update\ndef changed(self, came):\n" \
                "    run(self, came)\n    self._flat.mul_(1.01)\nunits.Units.update = changed\n"
        head = "from evenkeel import loss\nrun = loss.Learning._learned\ndef changed(self):\n" \
               "    run(self)\n    self._leaf.grad.mul_(3)\nloss.Learning._learned = changed\n"
        fall = "from evenkeel import loss\nrun = loss.Learning._gradient\n" \
               "loss.Learning._gradient = lambda *of: 3 * run(*of)\n"
        table = "from evenkeel import training\nrun = training.Ends.learn\n" \
                "training.Ends.learn = lambda self, dx, trace: run(self, 3 * dx, trace)\n"
        words = "from evenkeel import training\nrun = training.functional.embedding\n" \
                "training.functional.embedding = lambda at, table: 3 * run(at, table)\n"
        gather = "from evenkeel import shares\nrun = shares.Shares.gather\ndef changed(self, of, mine, full):\n" \
                 "    c = run(self, of, mine, full)\n    c._land = lambda: full.mul_(1.5)\n    return c\n" \
                 "shares.Shares.gather = changed\n"
        for zero, change, said in (
            ("zero0", head, "^plan 0 loss: rank 2: dw is off by 2.0e.00 of its norm against one device in float64"),
            ("zero1", fall, "^plan 0 loss: rank 2: dx is off by 2.0e.00"),
            ("zero1", table, "^plan 0 embedding: rank 2: the tables' gradient is off by 2.0e.00"),
            ("zero2", words, "^plan 0 embedding: rank 2: what is looked up is off by 2.0e.00"),
            ("zero3", gather, "^plan 0 parameters: rank 2: what it has is off by"),
            ("zero1", gather, "^plan 0 parameters: rank 2: what it has is off by"),
            ("zero3", layer, "^plan 0 layer: rank 0: dw is off by .* against one device in float64"),
            ("zero0", sums, "^plan 0 exchange: rank 2: the sum of gradients is off by 1.0e-03 .* had, added up in"),
            ("zero2", sums, "^plan 0 exchange: rank 2: the sum of gradients is off by 1.0e-03"),
            ("zero0", update, "^plan 0 update: rank 2: moment2 is off by .* against AdamW in float64, the limit is 0"),
            ("zero3", late, "^plan 0 update: rank 2: params is off by .* against AdamW in float64"),
            ("zero1", stale, "^plan 0 parameters: rank 1: what it has is off by .* against what the ranks have that"),
            ("zero3", stale, "^plan 0 parameters: rank 2: what it sends is off by"),
        ):
            with self.subTest(zero=zero, said=said):
                plan = trained(left_out(), zero, dtype="bf16" if change is stale else "f32", **PLAIN)
                with Ranks([plan], 4, {2: change}, repeats=1, warmup=0, parts="step", layers=LAYERS) as ranks:
                    for end in ranks.ends():
                        self.assertEqual((end["t"], end["class"]), ("error", "numerics"), end)
                        self.assertRegex(end["msg"], said)

    def test_a_lost_member_is_named(self) -> None:
        """With what was under way, whoever waits for it."""
        dies = "import os, time\nfrom evenkeel import shares\ndef changed(*_):\n" \
               "    time.sleep(0.5)\n    os._exit(9)\nshares.Shares.{of} = changed\n"
        for zero, of, said in (("zero3", "gather", "parameters of embeddings, last norm and projection: with ranks "),
                               ("zero0", "reduce", "gradients of layer 1: with ranks ")):
            with Ranks([trained(left_out(), zero)], 4, {2: dies.format(of=of)}, repeats=1, warmup=0, parts="step",
                       layers=LAYERS) as ranks:
                ends = ranks.ends()
                lost = [e for r, e in enumerate(ends) if r in (1, 3)]
                self.assertEqual([(e["t"], e["class"]) for e in lost], [("error", "peer")] * 2, ends)
                self.assertTrue(any(said in e["msg"] and "gradients and parameters, whose ranks 0 to 2 are those of "
                                    "the run 1, 2, 3: rank" in e["msg"] for e in lost), lost)

    def test_refusals(self) -> None:
        odd = trained(left_out())
        odd["job"]["overlap_zero"] = 2
        for document, more, said in (
            (twos(trained(left_out())), {}, "plan 0: parts: 'step': of a plan with two_batch_overlap"),
            (pipeline(vocab=9), {}, "plan 0: parts: 'step': stages send each other whole layers' results, of the plan"),
            (pipeline(vocab=9), {}, ": want 'layer' or 'loss'"),
            (trained(left_out(), "zero4"), {}, "plan 0: job.zero: 'zero4': want zero0, zero1, zero2, zero3, or"),
            (odd, {}, "job.overlap_zero: 2"),
            (trained(left_out(), position_rows=36), {}, "job.model.position_rows: 36: want a row for each of 37"),
            (trained(left_out(), vocab=0), {}, "job.model.vocab: 0"),
            (trained(left_out()), {"parts": "steps"}, "parts: 'steps': want layer, loss, step, attention"),
        ):
            with self.subTest(said=said), self.assertRaises(Fault) as caught:
                size = World(0, len(document["ranks"]), 0, "localhost", 1)
                replay._plans(Request.of({"plans": [document], "trace": "x", "parts": "step", **more}), size)
            self.assertIn(said, caught.exception.said)


if __name__ == "__main__":
    unittest.main()
