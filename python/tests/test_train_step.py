"""Whole training steps of the example: their gradients beside autograd's of one plain graph, the document they
are written to, and what is refused."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from typing import Any
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, ROOT, os.path.join(ROOT, "examples")]

import torch
from torch import Tensor
from torch.nn import functional as F

import train_step
from plans import document


def job(recompute: str = "none", tied: bool = False, tokens: int = 48) -> dict[str, Any]:
    """A plan of one rank, with a step that takes a second and a gigabyte."""
    plan = document([[(0, tokens)]], [[(0, 4)]], 4, 2, 8)
    plan["job"].update(dtype="f32", recompute=recompute, loss_chunk_tokens=20)
    plan["job"]["model"].update(layers=2, hidden=32, ffn=48, vocab=60, tied_embeddings=tied, gated_mlp=True)
    plan["ranks"][0]["device"] = "torch_cpu:1"
    times = {"linear forward": 0.1, "attention forward": 0.1, "loss": 0.2, "recompute": 0.1, "linear backward": 0.2,
             "attention backward": 0.2, "optimizer": 0.1}
    plan["step"] = {
        "time": {"lo_s": 0.9, "mid_s": 1.0, "hi_s": 1.1, "source": "interpolated"},
        "parts": [{"name": n, "time": {"mid_s": t}} for n, t in times.items()],
        "ranks": [{"memory": {n + "_bytes": 2**28 for n in ("states", "activations", "transient", "logits")}}],
    }
    return plan


def whole_graph(training: Any) -> Tensor:
    """The loss of all tokens at once, by torch's autograd over the model as it is written in books."""
    x = F.embedding(training._text[:-1], training._embedding)
    for layer in training._layers:
        m, w = layer.model, layer.weights
        y = rms(x, w["norm1"]) @ w["qkv"]
        q, k, v = y.view(len(x), -1, m.head_dim).split([m.q_heads, m.kv_heads, m.kv_heads], 1)
        q, k = turned(q), turned(k)
        k, v = (t.repeat_interleave(m.q_heads // m.kv_heads, 1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / m.head_dim**0.5
        scores = scores + torch.full((len(x), len(x)), -1e30).triu(1)
        x = x + torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(len(x), -1) @ w["out"]
        gate, up = (rms(x, w["norm2"]) @ w["up"]).chunk(2, -1)
        x = x + (gate * gate.sigmoid() * up) @ w["down"]
    return F.cross_entropy(rms(x, training._norm) @ training._head.t(), training._text[1:])


def rms(x: Tensor, w: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w


def turned(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angle = torch.arange(len(x))[:, None, None] * 10000.0 ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


class TestTrainStep(unittest.TestCase):
    def test_gradients_are_those_of_one_graph(self) -> None:
        for recompute in ("none", "full"):
            for tied in (False, True):
                with self.subTest(recompute=recompute, tied=tied):
                    torch.manual_seed(3)
                    training = train_step.Training(job(recompute, tied), torch.device("cpu"), "plain")
                    loss = whole_graph(training)
                    wants = torch.autograd.grad(loss, training._weights)
                    with mock.patch.object(training, "_update"):
                        got = training.step(train_step.Clock(torch.device("cpu")))
                    self.assertAlmostEqual(got, float(loss), 4)
                    for w, want in zip(training._weights, wants):
                        self.assertLess(float((w.grad - want).norm() / want.norm()), 1e-4)

    def test_steps_learn_the_text(self) -> None:
        """Parameters follow their master copies, and no gradient is left for the next step."""
        torch.manual_seed(4)
        training, clock = train_step.Training(job(), torch.device("cpu"), "plain"), train_step.Clock(torch.device("cpu"))
        training._optimizer.param_groups[0]["lr"] = 0.02
        losses = [training.step(clock) for _ in range(12)]
        self.assertLess(losses[-1], losses[0] - 0.5)
        self.assertEqual(len(clock.parts()), 12 * 5 - 1)
        self.assertTrue(all(not w.grad.any() for w in training._weights))

    def test_document_and_table(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            plans = []
            for name, plan in (("a", job()), ("b", job("full"))):
                plans.append(os.path.join(folder, name + ".plan.json"))
                with open(plans[-1], "w", encoding="utf-8") as file:
                    json.dump(plan, file)
            out = os.path.join(folder, "steps.json")
            table = self._run(0, *plans, "--kernel", "plain", "--steps", "2", "-o", out)
            with open(out, encoding="utf-8") as file:
                got = json.load(file)
            self.assertEqual(got["schema"], "evenkeel.training/v1")
            self.assertEqual([s["name"] for s in got["steps"]], ["a", "b"])
            self.assertEqual(got["steps"][1]["job"], job("full")["job"])
            for step in got["steps"]:
                self.assertEqual([sorted(t) for t in step["times"]], [sorted(n + "_s" for n in train_step.PARTS)] * 2)
                self.assertTrue(all(x > 0 for t in step["times"] for x in t.values()))
            self.assertRegex(table, r"(?m)^a +\d+\.\d +1000\.0 ")
            again = self._run(0, *plans, "--measured", out)
            self.assertEqual(table, again)
            self.assertIn("c                        was not measured",
                          self._run(0, self._copied(plans[0], "c"), "--measured", out))
            os.replace(plans[1], plans[0])
            self.assertIn("a                        was not measured, but another job of this name",
                          self._run(0, plans[0], "--measured", out))

    def test_share_of_the_plan(self) -> None:
        """Of a step that took twice as long, each part is told apart."""
        plan = job()
        times = {"forward_s": 0.4, "loss_s": 0.2, "backward_s": 1.0, "optimizer_s": 0.4}
        row = train_step.compared(plan, {"times": [times], "peak_bytes": 2**30}).split()
        self.assertEqual(row, ["2000.0", "1000.0", "+100.0", "no", "+100.0", "+0.0", "+100.0", "+300.0", "1.00", "1.00",
                               "+0.0"])

    def test_wrong_plans_are_refused(self) -> None:
        two = document([[(0, 8)], [(8, 16)]], [[(0, 4)], [(1, 4)]], 4, 2, 8)
        with tempfile.TemporaryDirectory() as folder:
            for plan, said in ((two, "2 ranks: want a plan of one"), ({"schema": "evenkeel.profile/v1"}, "want a plan that"),
                               ({**job(), "schema": "x"}, "want a plan that")):
                path = os.path.join(folder, "x.plan.json")
                with open(path, "w", encoding="utf-8") as file:
                    json.dump(plan, file)
                self.assertIn(said, self._run(1, path, "--kernel", "plain"))
            self._refuses(folder, {"dtype": "fp8"}, "fp8: want a plan in bf16")
            self._refuses(folder, {"grad_accumulation": 4}, "grad_accumulation 4: want a plan of one micro-batch")
            gpu = job()
            gpu["ranks"][0]["device"] = "h100_sxm"
            with open(path, "w", encoding="utf-8") as file:
                json.dump(gpu, file)
            if not torch.cuda.is_available():
                self.assertIn("a plan for h100_sxm, and torch finds no GPU here", self._run(1, path, "--kernel", "plain"))
            self.assertIn("No such file", self._run(1, path + ".not", "--kernel", "plain"))
            self.assertIn("No such file", self._run(1, path, "--kernel", "plain", "-o", os.path.join(folder, "no", "x")))
            self.assertIn("want a file that this script wrote", self._run(1, path, "--measured", path))
            self.assertIn("leave out -o", self._run(1, path, "--measured", path, "-o", path))
            self.assertIn("want at least one", self._run(1, path, "--steps", "0"))
            self.assertIn("two plans have one name", self._run(1, path, path, "--kernel", "plain"))
            learned = copy.deepcopy(job())
            learned["job"]["model"]["position_rows"] = 64
            with self.assertRaisesRegex(SystemExit, "learned positions"):
                train_step.Training(learned, torch.device("cpu"), "plain")

    def test_clock_of_a_gpu(self) -> None:
        """As nvidia-smi tells it while steps are measured; a GPU that tells none, or no such tool, leaves it out."""
        with tempfile.TemporaryDirectory() as folder:
            tool = os.path.join(folder, "nvidia-smi")
            for text, want in (("1755, 650.5", {"sm_clock_hz": 1.755e9, "power_w": 650.5}), ("[N/A], 70", {})):
                with open(tool, "w", encoding="utf-8") as f:
                    f.write(f"#!/bin/sh\necho \"$@\" > {folder}/asked\nwhile sleep 0.01; do echo '{text}'; done\n")
                os.chmod(tool, 0o755)
                with mock.patch.dict(os.environ, PATH=folder + os.pathsep + os.environ["PATH"]):
                    with train_step.Watch("GPU-7") as watch:
                        time.sleep(0.2)
                        self.assertEqual(watch.facts(), {}, "before it begins")
                        watch.begin()
                        until = time.monotonic() + 5
                        while want and not watch.facts() and time.monotonic() < until:
                            time.sleep(0.01)
                        time.sleep(0.05)
                self.assertEqual(watch.facts(), want)
                with open(os.path.join(folder, "asked"), encoding="utf-8") as f:
                    self.assertIn("--id=GPU-7 --query-gpu=clocks.sm,power.draw", f.read())
            with mock.patch.dict(os.environ, PATH=os.path.join(folder, "none")), train_step.Watch("GPU-7") as watch:
                watch.begin()
            self.assertEqual(watch.facts(), {})
        self.assertEqual(train_step.gpu_id(torch.device("cpu")), "")

    def test_threads_of_a_processor(self) -> None:
        for device, want in (("torch_cpu:2", 2), ("torch_cpu:1@sse4", 1), ("h100_sxm", 0), ("h200_sxm@sm80", 0)):
            self.assertEqual(train_step.threads(device), want)

    def test_plans_keep_their_names(self) -> None:
        for path, want in (("x/llama3.1-8b.plan.json", "llama3.1-8b"), ("a.json", "a"), ("b", "b")):
            self.assertEqual(train_step.name_of(path), want)

    def _refuses(self, folder: str, changed: dict[str, Any], said: str) -> None:
        plan, path = job(), os.path.join(folder, "y.plan.json")
        plan["job"].update(changed)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(plan, file)
        self.assertIn(said, self._run(1, path, "--kernel", "plain"))

    def _copied(self, path: str, name: str) -> str:
        other = os.path.join(os.path.dirname(path), name + ".plan.json")
        with open(path, encoding="utf-8") as file, open(other, "w", encoding="utf-8") as out:
            out.write(file.read())
        return other

    def _run(self, code: int, *args: str) -> str:
        done = subprocess.run([sys.executable, "-B", os.path.join(ROOT, "examples", "train_step.py"), *args],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout


if __name__ == "__main__":
    unittest.main()
