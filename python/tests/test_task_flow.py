"""Plans of tasks on real ranks against one device."""

from __future__ import annotations

from typing import Any

from test_pipeline import played
from world import SixRanks

import torch

from evenkeel.closed import expected_tasks
from evenkeel.kernels import Math
from evenkeel.taskflow import TaskFlow, module_layers
from evenkeel.tasks import Tasks, tasks_of
from evenkeel.whole import Layers
from task_plans import Document, document, model, module, random_tasks


def spread() -> Document:
    """Three modules that need another one, of more, fewer and as many samples, wider and narrower; their runs share
    ranks, and rank 4 has none."""
    wide, narrow = model(20, 24, (4, 2, 6)), model(12, 16, (3, 3, 4), gated=False)
    modules = [
        module("head", 3, 6, 5, wide), module("more", 2, 8, 3, narrow, ["head"], causal=True),
        module("fewer", 2, 4, 7, narrow, ["head"]),
        module("same", 1, 6, 5, wide, ["more", "head", "fewer"], causal=True),
    ]
    runs = [(0, 1, {0: 2, 1: 3, 2: 1}), (0, 2, {0: 3, 1: 1, 2: 2}), (1, 1, {1: 8}), (2, 2, {0: 1, 3: 3}),
            (1, 1, {0: 1, 1: 1, 2: 3, 5: 3}), (3, 1, {0: 1, 2: 2, 5: 3})]
    return document(6, modules, runs)


def handed_on() -> Document:
    """Modules a, b and c on rank 0, and on rank 1 one that needs each."""
    of = model(12, 16, (3, 3, 4))
    modules = [module(n, 1, 2, 3, of) for n in "abc"] + [module(n.upper(), 1, 2, 3, of, [n]) for n in "abc"]
    return document(2, modules, [(i, 1, {i // 3: 2}) for i in range(6)])


class TestTasks(SixRanks):
    jobs = "task_jobs."

    def right(self, of: Any, ranks: int, steps: int = 1, how: str = "Math", dtype: str = "f32") -> None:
        """All errors are small, in half precision the larger the more layers there are, nothing is left, and what is
        sent and computed is what the closed form says."""
        doc = of if isinstance(of, dict) else random_tasks(of, ranks, dtype)
        plan = tasks_of(doc, ranks)
        want, limit = expected_tasks(plan), 1e-5 if dtype == "f32" else 0.02 * plan.depth()
        for rank, answer in enumerate(self.answers(ranks, "stepped", of, ranks, steps, how, dtype)):
            with self.subTest(of=of if isinstance(of, int) else "", rank=rank, how=how):
                self.assertLess(max(answer["errors"]), limit)
                runs = [run for run in plan.runs if rank in run.ranks]
                ends = [sum(run.first + run.layers == plan.modules[run.module].layers for run in runs),
                        sum(run.first == 0 for run in runs), sum(run.layers for run in runs)]
                self.assertEqual((answer["results"], answer["left"]), (ends, 0))
                self.assertEqual(answer["sent"], {f"{p} {b}": n for (a, b, p), n in want.bytes.items() if a == rank})
                self.assertEqual(answer["received"],
                                 {f"{p} {a}": n for (a, b, p), n in want.bytes.items() if b == rank})
                self.assertEqual(answer["flops"], {d: n for (r, d), n in want.flops.items() if r == rank})

    def test_random_tasks(self) -> None:
        for seed in range(24):
            self.right(seed, 1 + seed % 6, 1 + seed % 3)

    def test_nothing_is_read_that_nobody_wrote(self) -> None:
        for seed in range(24, 32):
            self.right(seed, 2 + seed % 5, 2, "poisoned")

    def test_messages_that_come_early_and_late(self) -> None:
        for seed in range(32, 36):
            self.right(seed, 3 + seed % 4, 2, "Jittered")

    def test_batches_of_messages(self) -> None:
        for seed in range(36, 42):
            self.right(seed, 1 + seed % 6, 2, "inline")

    def test_other_kernels(self) -> None:
        for seed, how in ((42, "Even"), (43, "Even"), (44, "default"), (45, "default")):
            self.right(seed, 4, 1, how)

    def test_half_precision(self) -> None:
        """Where gloo does not know bf16, gradients of weights are added up in float32."""
        for seed in range(46, 52):
            self.right(seed, 3, 1, "Math", "bf16")

    def test_modules_that_many_need(self) -> None:
        for how in ("poisoned", "inline"):
            self.right(spread(), 6, 2, how)

    def test_same_bits(self) -> None:
        for of in (52, 53, 54, spread()):
            for rank, answer in enumerate(self.answers(6, "alike", of, 6)):
                self.assertEqual([name for name, same in answer.items() if not same], [], f"{of} rank {rank}")

    def test_no_rank_waits_for_itself(self) -> None:
        """As over NCCL: see test_pipeline."""
        for of in (*range(60, 76), spread()):
            with self.subTest(of=of if isinstance(of, int) else ""):
                calls = self.answers(6, "called", of, 6)
                played(calls)
                for mine in calls:
                    posts = [call for call in mine if call[0] == "post"]
                    self.assertEqual({call[1] for call in mine if call[0] == "wait"}, set(range(len(posts))))

    def test_room_for_messages(self) -> None:
        """Rank 1 has room for what two modules need before it begins, and for the third when it takes the first. Rank 0
        makes none for gradients before it has done all modules, whose last one has its first."""
        forward = [(3 * 2 * 12 * 4)] * 3
        first, second = self.answers(2, "called", handed_on(), 2)
        posts = [("to" if call[2] else "from", [n for _, n in call[2] + call[3]]) if call[0] == "post" else call[1]
                 for call in second]
        sends = [("to", forward[:1]), ("from", forward[:1])]
        self.assertEqual(posts[:4], [sends[1]] * 3 + [0])
        self.assertEqual([call[0] for call in first[:5]], ["post"] * 5)
        self.assertEqual([bool(call[2]) for call in first[:5]], [True] * 3 + [False] * 2)

    def test_gradients_leave_in_the_order_of_the_prediction(self) -> None:
        """Those of d, on ranks 0 and 1, whose last source is b and whose first one is c, whatever it names first; and
        in each the highest rank's before the lower ones'."""
        of = model(12, 16, (3, 3, 4))
        runs = [(2, 1, {1: 2, 2: 2, 3: 2}), (0, 1, {2: 3, 3: 3}), (1, 1, {0: 1, 2: 1, 3: 4}), (3, 1, {0: 1, 1: 5})]
        for after in ("abc", "bca", "cba"):
            modules = [module(n, 1, 6, 3, of) for n in "abc"] + [module("d", 1, 6, 3, of, after)]
            sent = self.answers(4, "sent_backward", document(4, modules, runs), 4)
            self.assertEqual(sent, [
                [["run 3 to 1", 2], ["run 3 to 0", 1]],
                [["run 3 to 2", 3], ["run 3 to 2", 2], ["run 3 to 1", 3], ["run 3 to 1", 2], ["run 3 to 0", 3],
                 ["run 3 to 0", 2]], [], []], after)

    def test_no_pass_is_looked_at_twice(self) -> None:
        """A rank is told once of every pass for which something comes, and of no other one."""
        for of in (*range(86, 94), spread()):
            plan = tasks_of(of if isinstance(of, dict) else random_tasks(of, 6), 6)
            for rank, told in enumerate(self.answers(6, "readied", of, 6)):
                waits = [(i, d) for i, _, d, _, op in spans_of(plan, rank) if op == "stage_wait"]
                for keys, direction in zip(told, ("fwd", "bwd")):
                    self.assertEqual(sorted(keys), sorted(i for i, d in waits if d == direction))

    def test_a_missing_gradient(self) -> None:
        """Is not passed over."""
        of = document(1, [module("a", 2, 1, 3, model(12, 16, (3, 3, 4)))], [(0, 2, {0: 1})])
        plan = tasks_of(of, 1)
        layers = Layers(plan.modules[0].model, 5, torch.float32, torch.device("cpu"))
        module_layers(layers, plan, 0).at(1, 1)[0].weights["spare"] = torch.zeros(2, requires_grad=True)
        flow = TaskFlow(plan, 0, layers, Math(), {}, torch.device("cpu"))
        with self.assertRaisesRegex(AssertionError, "^layer 1: no gradient of spare$"):
            flow.run(*[lambda _: torch.ones(3, 12)] * 2)

    def test_spans(self) -> None:
        """Of a step, in their order."""
        for of in (*range(80, 86), spread()):
            doc = of if isinstance(of, dict) else random_tasks(of, 6)
            plan = tasks_of(doc, 6)
            for rank, spans in enumerate(self.answers(6, "traced", of, 6)):
                with self.subTest(of=of if isinstance(of, int) else "", rank=rank):
                    self.assertEqual([(s["mb"], s["layer"], s["dir"], s.get("again", False), s["op"]) for s in spans],
                                     list(spans_of(plan, rank)))
                    self.check_work(plan, rank, spans)

    def check_work(self, plan: Tasks, rank: int, spans: list[Any]) -> None:
        """Bytes, FLOPs and shapes."""
        want = expected_tasks(plan)
        for direction in ("fwd", "bwd"):
            of = [s for s in spans if s["dir"] == direction]
            self.assertEqual(sum(s["flops"] for s in of if s["op"] == "attn"), want.flops.get((rank, direction), 0))
            self.assertEqual(sum(s["bytes_in"] for s in of if s["op"] == "stage_wait"),
                             sum(n for (_, b, p), n in want.bytes.items() if (b, p) == (rank, direction + ".send")))
        for s in spans:
            module, share = plan.module(s["mb"]), plan.runs[s["mb"]].share(rank)
            model, n = module.model, share.end - share.start
            if s["op"].startswith("linear"):
                self.assertEqual(s["shape"], {"tokens": n * module.seq_len})
            if s["op"] == "attn":
                self.assertEqual(s["shape"], {
                    "mask": "diag" if module.causal else "full", "q_len": module.seq_len, "kv_len": module.seq_len,
                    "q_heads": n * model.q_heads, "kv_heads": n * model.kv_heads, "head_dim": model.head_dim})
            if s["op"] == "grad_wait":
                weights = sum(_numel(shape) for shape in model.shapes().values())
                self.assertEqual(s["bytes_in"], 4 * weights * plan.runs[s["mb"]].layers)


def _numel(shape: tuple[int, ...]) -> int:
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def spans_of(plan: Tasks, rank: int) -> Any:
    """(mb, layer, dir, again, op) of a rank's step. A pass waits if a sample that it needs is on another rank before:
    forward in the run that made it, and backward in one that needed it."""
    owner = [[r for r, n in zip(run.ranks, run.samples) for _ in range(n)] for run in plan.runs]
    links = []
    for i, run in enumerate(plan.runs):
        before = [j for j, other in enumerate(plan.runs[:i]) if other.module == run.module]
        last = {other.module: j for j, other in enumerate(plan.runs[:i])}
        links += [(before[-1], i)] if before else [(last[n], i) for n in plan.modules[run.module].needs]
    waits = set()
    for i, j in links:
        n, m = len(owner[i]), len(owner[j])
        for a, one in enumerate(owner[i]):
            other = owner[j][a * m // n]
            if one != other:
                waits |= {(j, "fwd", other), (i, "bwd", one)}
    own = [(i, run) for i, run in enumerate(plan.runs) if rank in run.ranks]
    forward = ["linear_in", "attn", "linear_out"]
    for i, run in own:
        if (i, "fwd", rank) in waits:
            yield i, run.first, "fwd", False, "stage_wait"
        for n in range(run.layers):
            yield from ((i, run.first + n, "fwd", False, op) for op in forward)
    for i, run in reversed(own):
        if (i, "bwd", rank) in waits:
            yield i, run.first + run.layers - 1, "bwd", False, "stage_wait"
        for n in reversed(range(run.layers)):
            if plan.recompute:
                yield from ((i, run.first + n, "fwd", True, op) for op in forward)
            yield from ((i, run.first + n, "bwd", False, op) for op in reversed(forward))
    for i, run in reversed(own):
        if len(run.ranks) > 1:
            yield i, run.first, "bwd", False, "grad_wait"
