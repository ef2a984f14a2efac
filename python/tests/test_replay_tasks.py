"""Plans of tasks replayed as evenkeel asks for it: checks, spans, refusals, and what is said of ranks that are lost."""

from __future__ import annotations

import copy
import itertools
import json
import math
import os
import sys
import unittest
from typing import Any, Optional
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import torch

from evenkeel import rendezvous, replay
from evenkeel.closed import expected_tasks
from evenkeel.exchange import carried
from evenkeel.frames import Fault, Frames
from evenkeel.kernels import Math
from evenkeel.plan import PlanError
from evenkeel.port import ExchangeError
from evenkeel.request import Request
from evenkeel.tasks import Tasks, tasks_of
from starter import Ranks
from task_plans import Document, document, model, module
from test_replay_batch import CHANGED
from test_replay_pipeline import pipeline
from test_task_flow import spans_of

NAMES = ("out", "dq", "dk", "dv")

# A rank whose sums of a run's gradients are not what they should be.
WRONG_SUM = """
from evenkeel import exchange
run = exchange.Exchange.wait
def changed(self):
    sums, n = run(self)
    return ({{k: x * 1.01 for k, x in sums.items()}} if self._name == "gradients of run {run}" else sums), n
exchange.Exchange.wait = changed
"""


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


def failing(
    case: unittest.TestCase, changed: dict[int, str], of: Document, **options: Any
) -> list[dict[str, Any]]:
    """The last frames of all ranks, which are errors of what is compared."""
    with Ranks([of], 3, changed, repeats=1, warmup=0, **options) as ranks:
        ends = ranks.ends()
    for r, end in enumerate(ends):
        case.assertEqual((end["t"], end.get("class")), ("error", "numerics"), f"rank {r}: {end}")
    return ends


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
            self.assertEqual([numerics["layer"].get(n) for n in ("samples", "of_samples", "left")], [16, 16, None])
            self.assertEqual("exchange" in numerics, any(len(run.ranks) > 1 for run in t.runs))
            if "exchange" in numerics:
                self.assertEqual({n: numerics["exchange"][n] for n in ("limit", "dtype")},
                                 {"limit": 1e-5, "dtype": "f32"})
                self.assertLess(numerics["exchange"]["sum"], 1e-6)
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
        self.assertEqual((layer["samples"], layer["of_samples"], layer["left"]), (0, 16, ["a", "b", "c"]))
        self.assertGreater(numerics["exchange"]["sum"], 0)
        self.assertRegex(layer["skipped"], "^no sample has up to 12 tokens and a reference of all modules that need it "
                                           r"or that it needs of up to 4e\+11 FLOPs$")

    def test_a_module_that_is_left_out(self) -> None:
        """It is named where it has too many tokens; one that has nothing to do with it is compared, and the exchange of
        both."""
        of = [modules()[0], module("far", 2, 3, 40, model(16, 24, (2, 2, 8)))]
        one = document(3, of, [(0, 3, {0: 2, 1: 3}), (1, 2, {1: 2, 2: 1})])
        result, _ = self.run_plans([one], sampled_above=20)
        numerics = result["numerics"][0]
        layer = numerics["layer"]
        self.assertNotIn("skipped", layer)
        self.assertNotIn("dw", layer)
        self.assertEqual((layer["samples"], layer["of_samples"], layer["left"]), (5, 8, ["far"]))
        for name in ("out", "dx"):
            self.assertGreater(layer[name], 0)
            self.assertLess(layer[name], 5e-6)
        for end in failing(self, {2: WRONG_SUM.format(run=1)}, one, sampled_above=20):
            self.assertRegex(end["msg"], "^plan 0 exchange: rank 2: the sum of run 1's gradients is off by 1.0e-02 of "
                                         "its norm against what its ranks had, added up in float64, the limit is 1e-05")

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
        self.assertNotIn("left", layer)
        self.assertGreater(layer["samples"], 0)
        self.assertLess(layer["samples"], 16)
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
        exchange = numerics["exchange"]
        # By whether gloo knows it. Run 0 is two layers of a.
        weights = 2 * sum(math.prod(shape) for shape in tasks_of(of, 3).modules[0].model.shapes().values())
        came, = {x["bytes_in"] for x in lines if x.get("op") == "grad_wait" and x["mb"] == 0}
        self.assertEqual(exchange["dtype"], {4 * weights: "f32", 2 * weights: "bf16"}[came])
        self.assertEqual(exchange["limit"], {"f32": 1e-5, "bf16": 1e-2}[exchange["dtype"]])
        self.assertLess(exchange["sum"], exchange["limit"] / 2)
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
            (2, "taskflow", "taskflow.TaskFlow._learned", "self, i, n, grads",
             "run(self, i, n, [g * 1.01 for g in grads])", "rank [012]: dw"),
        ):
            with self.subTest(name):
                text = change.format(at=at, name=name, args=args, do=do)
                for end in self.errors({rank: text}, "numerics", [0, 1, 2]):
                    self.assertRegex(end["msg"], f"^plan 0 layers: {said} is off by")

    def test_a_wrong_exchange(self) -> None:
        """Who has another sum than its run's ranks have gradients, or gives others than it has, also where layers are
        not compared."""
        change = ("from evenkeel.exchange import Exchange\nrun = Exchange.post\n"
                  "Exchange.post = lambda self, n, grads: run(self, n, [g * 1.01 for g in grads])")
        for rank, text, said, above in (
            (1, WRONG_SUM.format(run=2), "rank 1: the sum of run 2's", 8192),
            (0, WRONG_SUM.format(run=4), "rank 0: the sum of run 4's", 12),
            (2, change, "rank [012]: the sum of run 2's", 8192), (2, change, "rank [012]: the sum of run 2's", 12),
        ):
            with self.subTest(said):
                for end in failing(self, {rank: text}, plan(), sampled_above=above):
                    self.assertRegex(end["msg"], f"^plan 0 exchange: {said} gradients is off by .* in float64")

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


class TestCarried(unittest.TestCase):
    def carried(self, said: Optional[str], dtype: torch.dtype = torch.bfloat16, backend: str = "gloo") -> torch.dtype:
        """What is found where the library says something, or nothing."""
        group, error = object(), None if said is None else RuntimeError(said)
        with mock.patch("torch.distributed.all_reduce", side_effect=error) as call, \
                mock.patch("torch.distributed.get_backend", return_value=backend):
            out = carried(5, [2, 5, 7], group, dtype, torch.device("cpu"))
        self.assertEqual(call.call_count, int(dtype != torch.float32 and backend == "gloo"))
        return out

    def test_precision(self) -> None:
        """That of the gradients, but where the library does not know it."""
        self.assertEqual(self.carried(None), torch.bfloat16)
        self.assertEqual(self.carried("Invalid scalar type"), torch.float32)
        self.assertEqual(self.carried(None, torch.float32), torch.float32)
        self.assertEqual(self.carried(None, torch.float16, "nccl"), torch.float16)

    def test_a_lost_peer(self) -> None:
        """Is no precision that the library does not know."""
        with self.assertRaises(ExchangeError) as found:
            self.carried("[gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:9")
        self.assertEqual(str(found.exception), (
            "gradients, whose ranks 0 to 2 are those of the run 2, 5, 7: rank 1: a first sum: with ranks 0, 2: "
            "[gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:9"))

    def test_a_rank_dies(self) -> None:
        """Before the first sum, in a precision that every gloo knows."""
        of = plan()
        of["job"]["dtype"] = "f16"
        dies = "import os, signal\nfrom evenkeel import task_runs\n" \
               "task_runs.carried = lambda *_: os.kill(os.getpid(), signal.SIGKILL)"
        with Ranks([of], 3, {1: dies}, repeats=1, warmup=0, check=False) as ranks:
            ends = ranks.ends()
        self.assertEqual((ends[0]["t"], ends[0].get("class")), ("error", "peer"), ends[0])
        self.assertRegex(ends[0]["msg"], "^gradients, whose ranks 0 to 1 are those of the run 0, 1: rank 0: a first "
                                         "sum: with ranks 1: ")


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

    def test_known_precisions(self) -> None:
        for dtype in ("f32", "bf16", "f16"):
            replay._known(dtype)
        with self.assertRaisesRegex(PlanError, "^job.dtype: f64: replay runs f32, bf16, f16$"):
            replay._known("f64")

    def test_queues_of_a_gpu(self) -> None:
        """Are as many as can be before CUDA is asked for anything, of plans of tasks, unless the user said how many."""
        for of, options, said, want in (
            (plan(), {"device": "cuda"}, None, "32"), (plan(), {"device": "cuda:1"}, "4", "4"),
            (pipeline(), {"device": "cuda"}, None, None), (pipeline(), {"device": "cuda"}, "1", "1"),
        ):
            seen: list[Optional[str]] = []

            def asked_for() -> bool:
                seen.append(os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"))
                return False

            world = rendezvous.World(0, len(of["ranks"]), 0, "127.0.0.1", 1)
            with mock.patch.dict(os.environ), mock.patch("torch.cuda.is_available", asked_for):
                os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
                if said is not None:
                    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = said
                asked = Request.of({"plans": [of], "trace": "t", "backend": "nccl", **options})
                with self.assertRaisesRegex(Fault, "sees no accelerator for cuda"):
                    replay._Rank(asked, world, Frames())
            self.assertEqual(seen, [want])

    def test_no_queues_of_a_processor(self) -> None:
        with mock.patch.dict(os.environ), mock.patch.object(replay, "_device", side_effect=Fault("usage", "here")):
            os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
            with self.assertRaisesRegex(Fault, "^here$"):
                replay._Rank(Request.of({"plans": [plan()], "trace": "t"}), self.world, Frames())
            self.assertNotIn("CUDA_DEVICE_MAX_CONNECTIONS", os.environ)

    def test_too_many_process_groups(self) -> None:
        """Of a chain of n runs, each on both ranks 0 and 1 in other shares: two a link and one for all exchanges; those
        of all plans count, each once."""
        def chain(n: int, first: int = 1) -> Document:
            of = module("a", n, 5, 4, model(8, 8, (1, 1, 8)))
            return document(3, [of], [(0, 1, {0: first + i % 2, 1: 5 - first - i % 2}) for i in range(n)])

        def plans(*of: Document, backend: str = "nccl") -> Any:
            return replay._plans(Request.of({"plans": list(of), "trace": "t", "backend": backend}), self.world)

        plans(chain(32), chain(32, 2))
        plans(chain(33), backend="gloo")
        with self.assertRaises(Fault) as found:
            plans(chain(33))
        self.assertEqual((found.exception.kind, found.exception.said), (
            "usage", "runs: rank 0 sends and adds up in 65 process groups: over nccl a rank is in up to 64: replay "
                     "fewer plans at a time, or one of fewer runs, as of solve --take sequential"))

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
