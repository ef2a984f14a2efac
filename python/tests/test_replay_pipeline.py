"""The rank program of `evenkeel replay` on pipelines: what it compares and records, and how it fails."""

from __future__ import annotations

import itertools
import json
import os
import sys
import unittest
from typing import Any, Optional

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

from evenkeel import rendezvous, replay
from evenkeel.closed import expected_stages
from evenkeel.frames import Fault
from evenkeel.request import Request
from evenkeel.stages import Pipeline, pipeline_of
from pipelines import B, F, document
from starter import Ranks
from test_replay import MODEL, THIRD
from test_replay_batch import CHANGED, HEADS, MICRO, head, one_sequence

Document = dict[str, Any]


def pipeline(again: Optional[list[list[int]]] = None, **model: Any) -> Document:
    """Ranks 0 and 2 have two layers, rank 1 the other two. A sequence of 50 tokens in slices of 20, 29 and 1,
    with a sequence of one token behind the first slice and one of 7 behind the last, of which rank 0 has none; one
    of one token alone, of which rank 0 has nothing at all; and one of 12 in slices of 5 and 7 among the others."""
    chunks = [((0, 0, 20), [1]), ((3, 0, 5), []), ((0, 20, 29), []), (None, [4]), ((0, 49, 1), [2]),
              ((3, 5, 7), [])]
    orders = [
        [(0, F), (1, F), (2, F), (3, F), (4, F), (4, B), (5, F), (5, B), (1, B), (2, B), (0, B), (3, B)],
        [(0, F), (2, F), (1, F), (3, F), (4, F), (4, B), (2, B), (5, F), (5, B), (1, B), (3, B), (0, B)],
    ]
    of = document([50, 1, 7, 12, 1], chunks, [([0, 2], 2), ([1], 2)], orders,
                  again or [[0, 1, 0, 0, 2, 0], [2, 0, 1, 0, 0, 1]], HEADS)
    of["job"]["model"].update({**MODEL, **model})
    return of


class TestReplayOfPipelines(unittest.TestCase):
    def run_plans(self, plans: list[Document], **options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Rank 0's result and the recording."""
        size = len(plans[0]["ranks"])
        with Ranks(plans, size, repeats=2, warmup=1, **options) as ranks:
            ends = ranks.ends()
            for r, end in enumerate(ends):
                self.assertEqual(end["t"], "result", f"rank {r}: {end}")
            with open(ranks.traces[0], encoding="utf-8") as file:
                return ends[0], [json.loads(line) for line in file]

    def test_in_turns_with_other_plans(self) -> None:
        """Numerics, counts and spans of a pipeline, alone and among plans of batches and of one sequence."""
        plans, batches = [pipeline(), head(3), one_sequence(), pipeline([[0] * 6] * 2)], [None, MICRO, None, None]
        result, lines = self.run_plans(plans, batches=batches, layers=2)
        for i, numerics in enumerate(result["numerics"]):
            self.assertEqual((numerics["plan"], numerics["reference"], numerics["rows"]), (i, "dense", 0))
            depth = 4 if i in (0, 3) else 1  # roundings of all layers add up
            for errors, names, limit in ((numerics, ("out", "dq", "dk", "dv"), 1e-5),
                                         (numerics["layer"], ("out", "dx"), 2e-5 * depth)):
                self.assertNotIn("skipped", errors)
                self.assertAlmostEqual(errors["limit"], limit, 12)
                for name in names:
                    self.assertGreater(errors[name], 0)
                    self.assertLessEqual(errors[name], limit)
        for i in (0, 3):
            p = pipeline_of(plans[i], 3)
            want = expected_stages(p, MODEL["hidden"])
            self.assertEqual(result["exact"][i], {
                "plan": i, "messages": len(want.bytes), "bytes": sum(want.bytes.values()),
                "flops": sum(want.flops.values())})
            for block, rank in itertools.product(range(2), range(3)):
                mine = [x for x in lines if (x["block"], x["plan"], x["rank"]) == (block, i, rank)]
                self.check_spans(mine, p, rank)
        for i, most in ((1, 1), (2, 0)):
            self.assertEqual({x["mb"] for x in lines if x["t"] == "span" and x["plan"] == i}, set(range(most + 1)))
        self.assertEqual(sum(x["t"] == "step" for x in lines), 2 * 4 * 3)

    def check_spans(self, lines: list[Any], p: Pipeline, rank: int) -> None:
        """One rank's step: its spans follow each other, and are those of its stage's passes in their order."""
        step, spans, end = lines[-1], lines[:-1], 0
        for s in spans:
            self.assertGreaterEqual(s["t0_ns"], end)
            end = s["t0_ns"] + s["dur_ns"]
        self.assertGreaterEqual(step["dur_ns"], end)
        got = [(s["mb"], s["layer"], s["dir"], s.get("again", False), s["op"]) for s in spans]
        inside = [(*x[:-1], "attn") if x[-1] == "merge" else x for x in got]
        self.assertEqual([x for x, _ in itertools.groupby(inside)], list(passes(p, rank)))
        s, place = p.seat(rank)
        heads = p.q_heads // len(p.stages[s].ranks)
        for k, pieces in enumerate(p.chunks):
            of, rows = [x for x in spans if x["mb"] == k], p.rows(s, place, k)
            pairs = sum(x.tokens * x.context + x.tokens * (x.tokens + 1) // 2 for x in pieces)
            once, again = p.stages[s].layers, p.stages[s].again[k]
            for direction, flops in (("fwd", 4 * (once + again)), ("bwd", 10 * once)):
                found = sum(x["flops"] for x in of if (x["dir"], x["op"]) == (direction, "attn"))
                self.assertEqual(found, flops * p.head_dim * heads * pairs)
            tokens = rows.end - rows.start
            self.assertEqual({x["shape"]["tokens"] for x in of if x["op"].startswith("linear")}, {tokens} - {0})
            for x in of:
                if x["op"] == "stage_wait":
                    self.assertEqual((x["step"], x["bytes_in"]), (0, tokens * MODEL["hidden"] * 4))

    def test_sampled_attention(self) -> None:
        """Of the two sequences of more than 10 tokens all 62 rows, as there are no more, and one head's gradients
        of keys and values; layers are compared on the others."""
        result, _ = self.run_plans([pipeline()], sampled_above=10)
        numerics = result["numerics"][0]
        self.assertEqual((numerics["reference"], numerics["rows"]), ("sampled", 50 + 12))
        self.assertLessEqual(max(numerics[n] for n in ("out", "dq", "dk", "dv")), 1e-5)
        self.assertGreater(numerics["layer"]["dx"], 0)
        self.assertNotIn("skipped", numerics["layer"])

    def test_layers_that_are_too_much(self) -> None:
        """Nothing is compared that would take too long, and that is said."""
        less = "from evenkeel import compare_stages\ncompare_stages.AFFORDABLE = {'cpu': 1000}"
        with Ranks([pipeline()], 3, {r: less for r in range(3)}, repeats=1, warmup=0) as ranks:
            ends = ranks.ends()
        for end in ends:
            self.assertEqual(end["t"], "result", end)
        layer = ends[0]["numerics"][0]["layer"]
        self.assertEqual((layer["out"], layer["dx"]), (0, 0))
        self.assertRegex(layer["skipped"], "^no sequence has up to 8192 tokens and a reference of 4 layers that "
                                           r"takes up to 1e\+03 FLOPs$")

    def test_half_precision(self) -> None:
        of = pipeline()
        of["job"]["dtype"] = "bf16"
        result, lines = self.run_plans([of])
        numerics = result["numerics"][0]
        for errors, names, limit in ((numerics, ("out", "dq", "dk", "dv"), 1e-2),
                                     (numerics["layer"], ("out", "dx"), 8e-2)):
            self.assertAlmostEqual(errors["limit"], limit, 12)
            for name in names:
                self.assertGreater(errors[name], 1e-5)
        waits = [x["bytes_in"] for x in lines if x.get("op") == "stage_wait" and (x["rank"], x["mb"]) == (1, 0)]
        self.assertEqual(set(waits), {21 * MODEL["hidden"] * 2})

    def test_a_rank_without_a_stage(self) -> None:
        """It has no spans, is there at every end, and judges the others. With heads of 64, dq and dk of a single
        token are not zero, but as small as rounding makes them."""
        of = pipeline(head_dim=64)
        of["ranks"].append({"rank": 3, "device": "torch_cpu:1"})
        for stage in of["stages"]:
            stage["ranks"] = [r + 1 for r in stage["ranks"]]
        result, lines = self.run_plans([of])
        want = expected_stages(pipeline_of(of, 4), MODEL["hidden"])
        self.assertEqual(result["exact"][0]["bytes"], sum(want.bytes.values()))
        self.assertGreater(result["numerics"][0]["layer"]["dx"], 0)
        self.assertEqual([x["t"] for x in lines if x["rank"] == 0], ["step"] * 2)
        for rank in range(1, 4):
            mine = [x for x in lines if (x["block"], x["rank"]) == (1, rank)]
            self.check_spans(mine, pipeline_of(of, 4), rank)


def passes(p: Pipeline, rank: int) -> Any:
    """(mb, layer, dir, again, op) of a rank's step, blocks of attention and their merging in one. Layers that are
    computed again are the stage's first ones."""
    s, _ = p.seat(rank)
    stage = p.stages[s]

    def layer(k: int, i: int, direction: str, again: bool) -> Any:
        ops = ["linear_in", "a2a_in", "attn", "a2a_out", "linear_out"]
        if not p.positions(rank, k):
            ops = ops[1:-1]
        if direction == "bwd":
            ops = [{"linear_in": "linear_out", "linear_out": "linear_in"}.get(op, op) for op in ops]
        return [(k, stage.first + i, direction, again, op) for op in ops]

    for k, back in stage.order:
        if not back:
            if s:
                yield k, stage.first, "fwd", False, "stage_wait"
            for i in range(stage.layers):
                yield from layer(k, i, "fwd", False)
            continue
        if s + 1 < len(p.stages):
            yield k, stage.first + stage.layers - 1, "bwd", False, "stage_wait"
        for i in reversed(range(stage.layers)):
            if i < stage.again[k]:
                yield from layer(k, i, "fwd", True)
            yield from layer(k, i, "bwd", False)


class TestFailures(unittest.TestCase):
    def errors(self, changed: dict[int, str], kind: str, of: list[int], **options: Any) -> list[dict[str, Any]]:
        """The last frames of some ranks, which are errors of a kind."""
        with Ranks([pipeline()], 3, changed, repeats=1, warmup=0, **options) as ranks:
            ends = ranks.ends()
        for r in of:
            self.assertEqual((ends[r]["t"], ends[r].get("class")), ("error", kind), f"rank {r}: {ends[r]}")
        return [ends[r] for r in of]

    def test_a_wrong_kernel(self) -> None:
        """All hear whose results are wrong: a rank of two has its part of the heads of all tokens of the stage."""
        off = CHANGED.format(do="out, lse = run(self, *args); return out * 1.001, lse")
        for end in self.errors({2: off}, "numerics", [0, 1, 2]):
            self.assertRegex(end["msg"], "^plan 0 attention: rank [02]: out is off by .* one device")
            self.assertEqual(end["at"].split(",")[0], "numerics")

    def test_wrong_gradients_of_a_context(self) -> None:
        """What later slices leave for those before is not right on one rank."""
        change = "from evenkeel.chunk import ChunkRun\nrun = ChunkRun.{name}\nChunkRun.{name} = lambda self, {do}"
        for name, do, wrong in (
            ("_leave", "p, dk, dv: run(self, p, dk, dv * 1.01)", "dv"),
            ("_taken", "p: run(self, p).flip(2)", "dk"),
        ):
            with self.subTest(name, do=do):
                for end in self.errors({1: change.format(name=name, do=do)}, "numerics", [0, 1, 2]):
                    self.assertRegex(end["msg"], f"^plan 0 attention: rank 1: {wrong} is off by")

    def test_a_wrong_layer(self) -> None:
        """Attention is right and what stages send is counted right, but a stage has another one's layers."""
        change = ("from evenkeel.whole import Layers\nrun = Layers.at\n"
                  "Layers.at = lambda self, first, n: run(self, first + 1, n)")
        for end in self.errors({1: change}, "numerics", [0, 1, 2]):
            self.assertRegex(end["msg"], "^plan 0 layers: rank 1: out is off by")

    def test_too_many_bytes(self) -> None:
        """What a rank sends to another stage is counted."""
        change = ("from evenkeel.port import Port\nrun = Port.post\n"
                  "def changed(self, phase, step, sends, receives):\n"
                  "    if 'send' in phase:\n        self._meter.message(self._meter.sent, phase, 0, 4)\n"
                  "    return run(self, phase, step, sends, receives)\n"
                  "Port.post = changed")
        end, = self.errors({2: change}, "bytes", [2])
        self.assertRegex(end["msg"], r"^plan 0: rank 2 sent to rank 0 in bwd.send: \d+ bytes, the closed form says")

    def test_a_rank_dies(self) -> None:
        """Its peers name it by its place in what they had to do with it, and whose places these are."""
        dies = THIRD.format(do="os.kill(os.getpid(), signal.SIGKILL)")
        stage, boundary = ((r"^stage 0, whose ranks 0 to 1 are those of the run 0, 2: rank 0: .*(from|to) rank 1"),
                           (r"^from stage \d to \d, whose ranks 0 to 2 are those of the run 0, 1, 2: rank {}: "
                            r"(fwd|bwd)\.send step \d: (from|to) rank {}"))
        of_stage, other = self.errors({2: dies}, "peer", [0, 1], check=False)
        self.assertRegex(of_stage["msg"], stage + "|" + boundary.format(0, 2))
        self.assertRegex(of_stage["at"], r"^block 0, plan 0, micro-batch \d, layer [01], (fwd|bwd) step \d \w+$")
        # Rank 1 waits for rank 2, or for rank 0 that gave up because of it and says so.
        self.assertRegex(other["msg"], stage + "|" + boundary.format("[01]", "[02]"))
        self.assertRegex(other["at"], r"^block 0, plan 0, micro-batch \d, layer \d, \w+ step 0 \w+$")


class TestWork(unittest.TestCase):
    def test_refused(self) -> None:
        world = rendezvous.World(0, 3, 0, "127.0.0.1", 1)
        more: dict[str, Any]
        for plans, more, said in (
            ([pipeline()], {"parts": "attention"}, "plan 0: parts: 'attention': stages send .* want 'layer' or 'loss'$"),
            ([pipeline()], {"docs_tokens": [71]}, r"plan 0: docs_tokens: \[71\]: .* want None$"),
            ([head(3), pipeline()], {"batches": [MICRO, None], "parts": "attention"}, "plan 1: parts: 'attention'"),
            ([pipeline(head_dim=16), pipeline()], {}, "plan 1: head_dim: 8: plan 0 has 16"),
            ([one_sequence(), pipeline(hidden=64)], {}, "plan 1: job.model: another model than that of plan 0"),
            ([{**pipeline(), "layers": 5}], {}, "plan 0: layers: 5: the stages have 4"),
            ([pipeline(activation="relu")], {}, "plan 0: job.model.activation: 'relu': "),
            ([{**pipeline(), "schema": "evenkeel.pipelineplan/v2"}], {}, "plan 0: schema: 'evenkeel.p.*/v2'"),
        ):
            asked = Request.of({"plans": plans, "trace": "t", **more})
            with self.subTest(said), self.assertRaisesRegex(Fault, "^" + said):
                replay._plans(asked, world)
        for dtype in (None, "fp8"):
            of = pipeline()
            of["job"]["dtype"] = dtype
            with self.assertRaisesRegex(Fault, f"^plan 0: job.dtype: {dtype}: replay runs f32, bf16, f16"):
                replay._plans(Request.of({"plans": [of], "trace": "t"}), world)


if __name__ == "__main__":
    unittest.main()
