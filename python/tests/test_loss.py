"""The loss that replay runs behind a pipeline's last layer, alone and in the rank program."""

from __future__ import annotations

import itertools
import json
import os
import sys
import unittest
from dataclasses import replace
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import torch
from torch.nn import functional as F

from evenkeel import replay
from evenkeel.drawn import Drawn
from evenkeel.frames import Fault
from evenkeel.loss import Loss, enough, loss_of
from evenkeel.meter import Trace
from evenkeel.nodes import EPS
from evenkeel.parts import Lost
from evenkeel.rendezvous import World
from evenkeel.request import Request
from evenkeel.whole import model_of
from starter import Ranks
from test_replay import MODEL
from test_replay_batch import MICRO, head, one_sequence
from test_replay_pipeline import pipeline

CPU = torch.device("cpu")
RMS = model_of(pipeline())
NORM = replace(RMS, layer_norm=True)


def twos(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan whose micro-batches go through the layers in twos."""
    return {**plan, "two_batch_overlap": True}


class TestLoss(unittest.TestCase):
    def test_the_gradient_is_that_of_cross_entropy(self) -> None:
        """Of chunks that end anywhere, by a reference written apart: targets are 0, 1, 2 .. of each chunk anew."""
        for model, vocab, chunk, tokens in ((RMS, 40, 7, 20), (NORM, 40, 7, 21), (RMS, 3, 100, 9), (RMS, 33, 1, 2)):
            loss = Loss(Lost(vocab, chunk, 5, "f32"), model, CPU)
            x = Drawn(1, "x").filled(tokens, model.hidden, dtype=torch.float32, scale=2.0)
            got, leaf = loss.gradient(x), x.double().requires_grad_()
            scale = Drawn(5, "loss norm").filled(model.hidden, dtype=torch.float64) * 0.1 + 1
            if model.layer_norm:
                y = F.layer_norm(leaf, leaf.shape[-1:], scale, Drawn(5, "loss bias").filled(
                    model.hidden, dtype=torch.float64) * 0.1, EPS)
            else:
                y = scale * leaf / (leaf.pow(2).mean(1, keepdim=True) + EPS).sqrt()
            head = Drawn(5, "loss head").filled(model.hidden, vocab, dtype=torch.float64) / model.hidden ** 0.5
            targets = torch.tensor([i % chunk % vocab for i in range(tokens)])
            F.cross_entropy(y @ head, targets, reduction="sum").backward()
            assert leaf.grad is not None
            self.assertLess(float((got - leaf.grad).norm() / leaf.grad.norm()), 1e-5)
            self.assertLess(float((loss.wants(x, chunk)[0] - leaf.grad).norm() / leaf.grad.norm()), 1e-6)

    def test_nothing_is_kept_and_no_tokens_have_no_loss(self) -> None:
        loss, trace = Loss(Lost(9, 4, 1, "bf16"), NORM, CPU), Trace(0)
        trace.zero()
        none = torch.empty(0, NORM.hidden, dtype=torch.bfloat16)
        self.assertEqual(loss.gradient(none, trace).shape, none.shape)
        self.assertEqual(trace.spans(), [])
        x = Drawn(1, "x").filled(6, NORM.hidden, dtype=torch.bfloat16)
        with torch.no_grad():
            dx = loss.gradient(x, trace)
        self.assertEqual((dx.dtype, dx.requires_grad, x.grad), (torch.bfloat16, False, None))
        self.assertEqual([w.grad for w in loss._norm], [None, None])
        (span,) = trace.spans()
        self.assertEqual((span["op"], span["dir"], span["flops"], span["shape"]),
                         ("loss", "fwd", 6 * 6 * NORM.hidden * 9, {"tokens": 6}))

    def test_what_is_compared_crosses_a_chunk_and_stays_small(self) -> None:
        for vocab, chunk, want in ((9, 10, (10, 15)), (9, 1, (1, 2)), (9, 5, (5, 8)), (10 ** 9, 10, (1, 2)),
                                   (10 ** 7, 100, (8, 12))):
            of = Lost(vocab, chunk, 1, "f32")
            self.assertEqual(enough(of, RMS), want)

    def test_one_is_made_for_all_plans(self) -> None:
        of = Lost(9, 4, 1, "f32")
        self.assertIs(loss_of(of, RMS, CPU), loss_of(Lost(9, 4, 1, "f32"), RMS, CPU))
        self.assertIsNot(loss_of(of, RMS, CPU), loss_of(of, NORM, CPU))

    def test_other_chunks_have_other_targets(self) -> None:
        loss = Loss(Lost(9, 4, 1, "f32"), RMS, CPU)
        x = Drawn(1, "x").filled(6, RMS.hidden, dtype=torch.float32)
        self.assertLess(float((loss.gradient(x, chunk=2) - loss.wants(x, 2)[0]).norm()), 1e-5)
        self.assertGreater(float((loss.gradient(x) - loss.wants(x, 2)[0]).norm()), 1e-2)


class TestReplayWithLoss(unittest.TestCase):
    def test_every_chunk_has_a_loss_on_the_last_stage(self) -> None:
        """Each between its forward and its backward pass; the layers' backward begins with its gradient."""
        plans = [pipeline(vocab=50), pipeline([[0] * 6] * 2, vocab=50)]
        with Ranks(plans, 3, repeats=1, warmup=0, parts="loss", loss_chunk=8) as ranks:
            ends = ranks.ends()
            self.assertEqual([e["t"] for e in ends], ["result"] * 3, ends)
            with open(ranks.traces[0], encoding="utf-8") as file:
                lines = [json.loads(line) for line in file]
        for i, numerics in enumerate(ends[0]["numerics"]):
            self.assertGreater(numerics["loss"]["dx"], 0)
            self.assertLessEqual(numerics["loss"]["dx"], numerics["loss"]["limit"])
            self.assertEqual(numerics["loss"]["rows"], 12)
            for rank in range(3):
                mine = [x for x in lines if (x["t"], x["plan"], x["rank"]) == ("span", i, rank)]
                lost = [x for x in mine if x["op"] == "loss"]
                if rank != 1:
                    self.assertEqual(lost, [])
                    continue
                self.assertEqual(sorted((x["mb"], x["shape"]["tokens"]) for x in lost),
                                 [(0, 21), (1, 5), (2, 29), (3, 1), (4, 8), (5, 7)])
                for x in lost:
                    self.assertEqual((x["layer"], x["dir"], x["flops"]),
                                     (3, "fwd", 6 * x["shape"]["tokens"] * MODEL["hidden"] * 50))
                    of = [y for y in mine if y["mb"] == x["mb"]]
                    back = [y["dir"] == "bwd" or y.get("again", False) for y in of]
                    self.assertEqual(back, sorted(back))
                    self.assertEqual(of[back.index(True) - 1], x)

    def test_plans_of_all_kinds_have_it_behind_their_layers(self) -> None:
        """In every micro-batch, of the rank's tokens, between its forward and its backward pass."""
        plans: list[Any] = [pipeline(), head(3), one_sequence()]
        with Ranks(plans, 3, repeats=1, warmup=0, parts="loss", layers=2, batches=[None, MICRO, None]) as ranks:
            ends = ranks.ends()
            self.assertEqual([e["t"] for e in ends], ["result"] * 3, ends)
            with open(ranks.traces[0], encoding="utf-8") as file:
                lines = [json.loads(line) for line in file]
        for i, rank in itertools.product((1, 2), range(3)):
            self.assertTrue(0 < ends[0]["numerics"][i]["loss"]["dx"] <= 2e-5)
            mine = [x for x in lines if (x["t"], x["plan"], x["rank"]) == ("span", i, rank)]
            tokens = {x["mb"]: x["shape"]["tokens"] for x in mine if x["op"] == "linear_out"}
            self.assertEqual({x["mb"]: x["shape"]["tokens"] for x in mine if x["op"] == "loss"}, tokens)
            for mb in tokens:
                of = [x for x in mine if x["mb"] == mb and x["op"] != "meet"]
                at = next(j for j, x in enumerate(of) if x["op"] == "loss")
                self.assertEqual([x["dir"] == "bwd" or x.get("again", False) for x in of],
                                 [j > at for j in range(len(of))])
                self.assertEqual((of[at]["layer"], of[at - 1]["op"]), (1, "linear_out"))

    def test_a_wrong_gradient_is_found(self) -> None:
        """On the last stage's rank, by rank 0."""
        twice = "from evenkeel import loss\nright = loss._fall\nloss._fall = lambda *of: right(*of) * 1.001\n"
        with Ranks([pipeline()], 3, {1: twice}, repeats=1, warmup=0, parts="loss") as ranks:
            for end in ranks.ends():
                self.assertEqual((end["t"], end["class"]), ("error", "numerics"))
                self.assertIn("plan 0 loss: rank 1: dx is off by 1.0e-03 of its norm", end["msg"])

    def test_refusals(self) -> None:
        world = World(0, 3, 0, "localhost", 1)
        for plan, more, said in (
            (twos(one_sequence()), {}, "plan 0: parts: 'loss': of a plan with two_batch_overlap"),
            (pipeline(vocab=None), {}, "plan 0: job.model.vocab: None: want a whole number from 1 on, for the loss"),
            (pipeline(vocab=True), {}, "plan 0: job.model.vocab: True"),
            (pipeline(vocab=0), {}, "plan 0: job.model.vocab: 0"),
            (pipeline(vocab=9), {"loss_chunk": 0}, "loss_chunk: 0: want a whole number from 1 on"),
            (pipeline(vocab=9), {"parts": "los"}, "parts: 'los': want layer, loss, step, attention"),
            (pipeline(vocab=9), {"parts": "attention"}, "parts: 'attention': stages send each other"),
        ):
            with self.assertRaises(Fault) as caught:
                replay._plans(Request.of({"plans": [plan], "trace": "x", "parts": "loss", **more}), world)
            self.assertIn(said, caught.exception.said)


if __name__ == "__main__":
    unittest.main()
