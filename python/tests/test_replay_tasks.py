"""Plans of tasks replayed as evenkeel asks for it: checks, spans, refusals, and what is said of ranks that are lost."""

from __future__ import annotations

import copy
import itertools
import json
import os
import sys
import unittest
from typing import Any
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import torch

from evenkeel import rendezvous, replay
from evenkeel.closed import expected_tasks
from evenkeel.frames import Fault
from evenkeel.kernels import Math
from evenkeel.request import Request
from evenkeel.tasks import Tasks, tasks_of
from starter import Ranks
from task_plans import Document, document, model, module
from test_replay_batch import CHANGED
from test_replay_pipeline import pipeline
from test_task_flow import spans_of

NAMES = ("out", "dq", "dk", "dv")


def modules(**wide: Any) -> list[Document]:
    """An encoder in full, a causal one, and one that needs both."""
    a = {**model(32, 48, (6, 2, 8)), **wide}
    b = model(24, 40, (4, 4, 6), gated=False)
    return [module("a", 3, 5, 16, a), module("b", 2, 8, 9, b, causal=True), module("c", 2, 3, 12, a, ["b", "a"])]


def plan(again: bool = False, **wide: Any) -> Document:
    """Ranks 0, 1 and 2 have the modules in shares; b is on one rank first and then on two."""
    return document(3, modules(**wide), [
        (0, 2, {0: 2, 1: 3}), (1, 1, {2: 8}), (0, 1, {0: 1, 1: 2, 2: 2}), (1, 1, {1: 2, 2: 6}), (2, 2, {0: 2, 2: 1})],
        again=again)


def other() -> Document:
    """The same modules side by side, and no weight on two ranks."""
    return document(3, modules(), [(0, 3, {0: 5}), (1, 2, {1: 8}), (2, 2, {2: 3})])


class TestReplayOfTasks(unittest.TestCase):
    def run_plans(self, plans: list[Document], **options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Rank 0's result and the recording."""
        with Ranks(plans, len(plans[0]["ranks"]), repeats=2, warmup=1, **options) as ranks:
            ends = ranks.ends()
            for r, end in enumerate(ends):
                self.assertEqual(end["t"], "result", f"rank {r}: {end}")
            with open(ranks.traces[0], encoding="utf-8") as file:
                return ends[0], [json.loads(line) for line in file]

    def test_in_turns(self) -> None:
        """Numerics, counts and spans of three plans of the same modules."""
        plans = [plan(), other(), plan(again=True)]
        result, lines = self.run_plans(plans)
        for i, numerics in enumerate(result["numerics"]):
            self.assertEqual((numerics["plan"], numerics["reference"], numerics["rows"]), (i, "dense", 0))
            # The longest way is 3 layers of a and 2 of c.
            for errors, names, limit in ((numerics, NAMES, 1e-5),
                                         (numerics["layer"], ("out", "dx", "dw"), 2e-5 * 5)):
                self.assertNotIn("skipped", errors)
                self.assertAlmostEqual(errors["limit"], limit, 12)
                for name in names:
                    self.assertGreater(errors[name], 0)
                    self.assertLess(errors[name], 5e-6)
            t = tasks_of(plans[i], 3)
            want = expected_tasks(t)
            self.assertEqual(result["exact"][i], {
                "plan": i, "messages": len(want.bytes), "bytes": sum(want.bytes.values()),
                "flops": sum(want.flops.values())})
            for block, rank in itertools.product(range(2), range(3)):
                mine = [x for x in lines if (x["block"], x["plan"], x["rank"]) == (block, i, rank)]
                self.check_spans(mine, t, rank)
        self.assertEqual(sum(x["t"] == "step" for x in lines), 2 * 3 * 3)

    def check_spans(self, lines: list[Any], t: Tasks, rank: int) -> None:
        """One rank's step: its spans follow each other, and are those of its runs' passes in their order."""
        step, spans, end = lines[-1], lines[:-1], 0
        for s in spans:
            self.assertGreaterEqual(s["t0_ns"], end)
            end = s["t0_ns"] + s["dur_ns"]
        self.assertGreaterEqual(step["dur_ns"], end)
        self.assertEqual([(s["mb"], s["layer"], s["dir"], s.get("again", False), s["op"]) for s in spans],
                         list(spans_of(t, rank)))

    def test_sampled(self) -> None:
        """Of a's samples of 16 tokens all 16 rows, for more are not asked for, and one head's gradients of keys and
        values, of one sample of every rank or more. Layers are compared of no module, for a has too many tokens for
        them and c needs it, and so b."""
        result, _ = self.run_plans([plan()], sampled_above=12)
        numerics = result["numerics"][0]
        self.assertEqual(numerics["reference"], "sampled")
        self.assertGreater(numerics["rows"], 16)
        self.assertLessEqual(max(numerics[n] for n in NAMES), 1e-5)
        layer = numerics["layer"]
        self.assertEqual((layer["out"], layer["dx"], "dw" in layer), (0, 0, False))
        self.assertRegex(layer["skipped"], "^no sample has up to 12 tokens and a reference of all modules that need it "
                                           r"or that it needs of up to 4e\+11 FLOPs$")

    def test_some_samples_after_all_layers(self) -> None:
        """Where there is no time for all, some samples are compared, and no gradients of weights, to which all samples
        add. Each of three knots takes about a third of what all do."""
        less = "from evenkeel import compare_tasks\ncompare_tasks.AFFORDABLE = {'cpu': 1.2e7}"
        with Ranks([plan()], 3, {r: less for r in range(3)}, repeats=1, warmup=0) as ranks:
            ends = ranks.ends()
        for end in ends:
            self.assertEqual(end["t"], "result", end)
        layer = ends[0]["numerics"][0]["layer"]
        self.assertNotIn("skipped", layer)
        self.assertNotIn("dw", layer)
        self.assertGreater(layer["out"], 0)
        self.assertGreater(layer["dx"], 0)

    def test_half_precision(self) -> None:
        of = plan()
        of["job"]["dtype"] = "bf16"
        result, lines = self.run_plans([of])
        numerics = result["numerics"][0]
        for errors, names, limit in ((numerics, NAMES, 1e-2), (numerics["layer"], ("out", "dx", "dw"), 1e-1)):
            self.assertAlmostEqual(errors["limit"], limit, 12)
            for name in names:
                self.assertGreater(errors[name], 1e-5)
        # Rank 2 takes two samples of a from rank 1, of 16 tokens of 32 elements.
        waits = [x["bytes_in"] for x in lines if x.get("op") == "stage_wait" and (x["rank"], x["mb"], x["dir"]) ==
                 (2, 2, "fwd")]
        self.assertEqual(waits, [2 * 16 * 32 * 2] * 2)

    def test_ranks_without_work(self) -> None:
        """They have no spans, are there at every end, and one of them judges the others. Tokens that see only
        themselves have gradients of q and k that are zero but for rounding."""
        of = plan()
        of["modules"][1]["seq_len_tokens"] = 1
        of["ranks"] = [{"rank": r, "device": "torch_cpu:1"} for r in range(5)]
        for run in of["runs"]:
            run["ranks"] = [r + 1 for r in run["ranks"]]
        result, lines = self.run_plans([of])
        self.assertEqual(result["exact"][0]["bytes"], sum(expected_tasks(tasks_of(of, 5)).bytes.values()))
        self.assertGreater(result["numerics"][0]["layer"]["dw"], 0)
        for rank in range(5):
            mine = [x for x in lines if (x["block"], x["rank"]) == (1, rank)]
            self.check_spans(mine, tasks_of(of, 5), rank)


class TestFailures(unittest.TestCase):
    def errors(self, changed: dict[int, str], kind: str, of: list[int], **options: Any) -> list[dict[str, Any]]:
        """The last frames of some ranks, which are errors of a kind."""
        with Ranks([plan()], 3, changed, repeats=1, warmup=0, **options) as ranks:
            ends = ranks.ends()
        for r in of:
            self.assertEqual((ends[r]["t"], ends[r].get("class")), ("error", kind), f"rank {r}: {ends[r]}")
        return [ends[r] for r in of]

    def test_a_wrong_kernel(self) -> None:
        """In every run, and in that of a's last layer alone: there rank 2 has two samples of 6 heads."""
        for when in ("True", "len(args[0]) == 12"):
            off = CHANGED.format(do=f"out, lse = run(self, *args); return out * (1.001 if {when} else 1), lse")
            for end in self.errors({2: off}, "numerics", [0, 1, 2]):
                self.assertRegex(end["msg"], "^plan 0 attention: rank 2: out is off by .* one device")

    def test_a_wrong_step(self) -> None:
        """Attention is right and what is sent is counted right, but results, or gradients, are not."""
        change = "from evenkeel import {at}\nrun = {name}\ndef changed({args}):\n    {do}\n{name} = changed"
        for rank, at, name, args, do, said in (
            (1, "whole", "whole.Layers.at", "self, first, n", "return run(self, first + 1, n)", "rank [012]: out"),
            (2, "moves", "moves.Joint.gradient", "self, dx", "return run(self, dx) * 1.001", "rank [012]: dx"),
            (0, "moves", "moves.Joint.add", "self, x, r", "run(self, x, r.flip(0))", "rank [012]: out"),
            (2, "exchange", "exchange.Exchange.post", "self, n, grads", "run(self, n, [g * 1.01 for g in grads])",
             "rank [012]: dw"),
        ):
            with self.subTest(name):
                text = change.format(at=at, name=name, args=args, do=do)
                for end in self.errors({rank: text}, "numerics", [0, 1, 2]):
                    self.assertRegex(end["msg"], f"^plan 0 layers: {said} is off by")

    def test_wrong_counts(self) -> None:
        """What a rank sends to another one, and computes, is counted."""
        change = ("from evenkeel.port import Port\nrun = Port.post\n"
                  "def changed(self, phase, step, sends, receives):\n"
                  "    if phase == 'bwd.send':\n        self._meter.message(self._meter.sent, phase, 0, 4)\n"
                  "    return run(self, phase, step, sends, receives)\n"
                  "Port.post = changed")
        end, = self.errors({2: change}, "bytes", [2])
        self.assertRegex(end["msg"], r"^plan 0: rank 2 sent to rank \d in bwd.send: \d+ bytes, the closed form says")
        change = ("from evenkeel.samples import Samples\nrun = Samples.timed\n"
                  "def changed(self, direction):\n    self._meter.work(direction, 1)\n    return run(self, direction)\n"
                  "Samples.timed = changed")
        end, = self.errors({1: change}, "flops", [1])
        self.assertRegex(end["msg"], r"^plan 0: rank 1 computed \d+ FLOPs fwd, the closed form says \d+$")

    def test_a_rank_dies(self) -> None:
        """Where it was waited for, which of a process group's ranks it is, and whose ranks these are."""
        dies = "import os, signal\nfrom evenkeel.{at} import {of}\ndef changed(*_): os.kill(os.getpid(), " \
               "signal.SIGKILL)\n{of}.{name} = changed"
        ends = self.errors({2: dies.format(at="moves", of="Move", name="give")}, "peer", [0, 1], check=False)
        for end in ends:
            self.assertRegex(end["msg"], r"^from run \d to \d, whose ranks 0 to \d are those of the run [012, ]+: rank "
                                         r"\d: (fwd|bwd)\.send step \d: (from|to) rank \d: ")
            self.assertRegex(end["at"], r"^block 0, plan 0, micro-batch \d, layer \d, \w+ step 0 \w+$")
        alone = document(2, modules()[:1], [(0, 3, {0: 2, 1: 3})])
        dies = dies.format(at="exchange", of="Exchange", name="post")
        with Ranks([alone], 2, {1: dies}, repeats=1, warmup=0, check=False) as ranks:
            end = ranks.ends()[0]
        self.assertEqual((end["t"], end.get("class")), ("error", "peer"), end)
        self.assertRegex(end["msg"], "^gradients of run 0, whose ranks 0 to 1 are those of the run 0, 1: rank 0: "
                                     "gradients of layer [012]: with ranks 1: .")
        self.assertRegex(end["at"], r"^block 0, plan 0, micro-batch 0, layer \d, bwd step 0 \w+$")


class TestWork(unittest.TestCase):
    world = rendezvous.World(0, 3, 0, "127.0.0.1", 1)

    def test_refused(self) -> None:
        far, dtype = plan(), plan()
        far["runs"][0]["ranks"] = [0, 3]
        dtype["job"]["dtype"] = "bf16"
        deeper, fp8 = plan(), plan()
        deeper["modules"][2]["layers"] = deeper["runs"][4]["layers"] = 3
        fp8["job"]["dtype"] = "fp8"
        more: dict[str, Any]
        for plans, more, said in (
            ([plan()], {"parts": "attention"}, "plan 0: parts: 'attention': runs send each other .* want 'layer'$"),
            ([plan()], {"docs_tokens": [71]}, r"plan 0: docs_tokens: \[71\]: .* want None$"),
            ([plan(), pipeline()], {}, "plan 1: schema: of tasks are all plans of a replay or none"),
            ([pipeline(), plan()], {}, "plan 1: schema: of tasks are all plans of a replay or none"),
            ([plan(), plan(ffn=40)], {}, r"plan 1: modules\[0\].model: not what plan 0 has; replay them apart"),
            ([plan(), deeper], {}, r"plan 1: modules\[2\].layers: not what plan 0 has; replay them apart"),
            ([plan(), dtype], {}, "plan 1: job.dtype: bf16: plan 0 has f32; replay them apart"),
            ([fp8], {}, "plan 0: job.dtype: fp8: replay runs f32, bf16, f16"),
            ([far], {}, r"plan 0: runs\[0\].ranks: \[0, 3\]: want rising ones of 0 to 2"),
            ([{**plan(), "schema": "evenkeel.taskplan/v2"}], {}, "plan 0: schema: 'evenkeel.taskplan/v2'"),
        ):
            asked = Request.of({"plans": plans, "trace": "t", **more})
            with self.subTest(said), self.assertRaisesRegex(Fault, "^" + said):
                replay._plans(asked, self.world)

    def test_before_ranks_meet(self) -> None:
        """Every rank says so on its own, without any other one."""
        of = copy.deepcopy(plan())
        of["runs"][1]["samples"] = [7]
        with Ranks([of], 3) as ranks:
            for end in ranks.ends():
                self.assertEqual((end["class"], end["at"]), ("usage", "start"))
                self.assertEqual(end["msg"], "plan 0: runs[1].samples: 7 together: want batch_samples of b, 8")

    def test_kernel_of_all_modules(self) -> None:
        """Math where one module's heads are for nothing else, whichever module it is."""
        made: list[int] = []

        def pick(like: Any) -> Any:
            made.append(like.shape[2])
            return Math() if like.shape[2] % 8 else "fast"

        for wide, want in (({}, Math), ({"head_dim": 12}, Math)):
            works = replay._plans(Request.of({"plans": [plan(**wide)], "trace": "t"}), self.world)
            with mock.patch.object(replay, "default_kernel", pick):
                self.assertIsInstance(replay._kernel(works, torch.device("cpu")), want)
        self.assertEqual(made, [6, 8, 6, 12])
        for m in (even := plan())["modules"]:
            m["model"] = {**m["model"], "head_dim": 16}
        works = replay._plans(Request.of({"plans": [even], "trace": "t"}), self.world)
        with mock.patch.object(replay, "default_kernel", pick):
            self.assertEqual(replay._kernel(works, torch.device("cpu")), "fast")


if __name__ == "__main__":
    unittest.main()
