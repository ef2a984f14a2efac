"""Plans of tasks for training loops."""

from __future__ import annotations

import copy
import unittest
from typing import Any

from test_task_flow import spread
from world import SixRanks, World

import evenkeel
from task_plans import Document
from trainer_jobs import chain, solved


class TestTaskRuns(SixRanks):
    jobs = "trainer_jobs."

    def test_gradients_of_all_parameters(self) -> None:
        """They are those of one device on every rank that has them, and add up over steps."""
        for seed in range(18):
            self.right(seed, 1 + seed % 6, 1 + seed % 2, seed % 3 == 0)

    def test_modules_that_many_need(self) -> None:
        for every in (False, True):
            self.right(spread(), 6, 2, every)

    def test_half_precision(self) -> None:
        """Where gloo does not know bf16, gradients are added up in float32."""
        for seed in (20, 21):
            self.right(seed, 3, 1, True, "bf16", limit=0.25)

    def right(self, of: Any, ranks: int, *args: Any, limit: float = 1e-4) -> None:
        for rank, answer in enumerate(self.answers(ranks, "trained", of, ranks, *args)):
            with self.subTest(of=of if isinstance(of, int) else "", rank=rank):
                self.assertLess(answer["worst"], limit)
                self.assertEqual((answer["strangers"], answer["left"]), ([], 0))

    def test_what_is_computed_again_is_the_same(self) -> None:
        for off, norm in self.answers(1, "again_alike")[0]:
            self.assertGreater(norm, 0.1)
            self.assertLess(off, 1e-6 * norm)

    def test_what_does_not_fit(self) -> None:
        """Is named. Before a step is begun nothing is spoilt; a step after one that failed is refused."""
        spoilt = "an earlier step failed, "
        module = "want a torch.nn.Module, whose parameters' gradients are added up among ranks$"
        want = (
            (r"modules\['b'\]: missing: the rank has its layers 0$", "$"),
            (r"modules\['a'\].blocks: have no 1: the rank has layers 1$", "$"),
            (r"modules\['a'\].blocks\[1\]: .*: " + module, "$"), (r"modules\['b'\].enter: missing: " + module, "$"),
            (r"modules\['b'\].enter: function: " + module, "$"), (r"modules\['b'\].loss: missing: " + module, "$"),
            (r"modules\['a'\].loss: int: " + module, "$"),
            (r"modules\['b'\].enter: its result: shape torch.Size\(\[3, 3, 8\]\): want torch.Size\(\[3, 2, 8\]\)", spoilt),
            (r"modules\['b'\].enter: its result: dtype torch.float64: want torch.float32", spoilt),
            (r"blocks\[0\]: its result: shape", spoilt),
            (r"modules\['b'\].loss: its result: want a tensor of one number", spoilt),
            (r"modules\['b'\].loss: its result: want a tensor of one number", spoilt), ("$", "$"), ("$", "$"),
        )
        said = self.answers(1, "failing")[0]
        self.assertEqual(len(said), 2 * len(want))
        for text, pattern in zip(said, (p for pair in want for p in pair)):
            self.assertRegex(text, "^" + pattern)

    def test_too_few_ranks(self) -> None:
        for said in self.answers(6, "too_few"):
            self.assertEqual(said, "tasks: have rank 8, and the process group 6 ranks")


class TestLost(unittest.TestCase):
    def test_a_rank_dies(self) -> None:
        """The others hear of it, as of any error of a step."""
        for back in (False, True):
            with World(2) as world:
                (answer,) = world.run("trainer_jobs.left_alone", back, heard=[0])
            self.assertRegex(answer["ok"], "^ExchangeError: .*, whose ranks 0 to 1 are those of the run 0, 1: rank 0: ")


class TestLoadTasks(unittest.TestCase):
    def test_read(self) -> None:
        tasks = evenkeel.load_tasks(solved(chain(2, again=True)))
        self.assertTrue(tasks.recompute)
        self.assertEqual([(m.name, m.layers, m.batch, m.seq_len, m.model.hidden) for m in tasks.modules],
                         [("a", 2, 3, 4, 8), ("b", 1, 3, 2, 8)])
        self.assertEqual([(r.module, r.first, r.ranks, r.samples) for r in tasks.runs],
                         [(0, 0, (0,), (3,)), (0, 1, (0,), (3,)), (1, 0, (0, 1), (1, 2))])

    def test_refused(self) -> None:
        def shape(d: Document, **more: Any) -> None:
            d["modules"][1]["shape"].update(more)

        for said, change in (
            ("schema: 'x': want", lambda d: d.update(schema="x")), ("dtype: None: want", lambda d: d.pop("dtype")),
            ("dtype: 'f8'", lambda d: d.update(dtype="f8")), ("devices: want a list", lambda d: d.pop("devices")),
            (r"devices\[0\].ranks: want", lambda d: d["devices"][0].update(ranks=3)),
            (r"devices\[0\].ranks\[0\]: want", lambda d: d["devices"][0].update(ranks=[[-1]])),
            ("devices: want ranks from 0 on, each once", lambda d: d["devices"][0].update(ranks=[[2]])),
            ("devices: want ranks from 0 on, each once", lambda d: d["devices"][0].update(ranks=[[0]])),
            (r"modules\[1\].shape: missing: the module's time is a curve", lambda d: d["modules"][1].pop("shape")),
            (r"modules\[1\].shape: want an object", lambda d: d["modules"][1].update(shape=[])),
            (r"modules\[1\].shape.hidden: 0: want", lambda d: shape(d, hidden=0)),
            (r"modules\[1\].shape.seq_len_tokens: '4': want", lambda d: shape(d, seq_len_tokens="4")),
            (r"modules\[1\].after\[0\]: 'z'", lambda d: d["modules"][1].update(after=["z"])),
            (r"runs\[2\].ranks: \[0, 5\]: want", lambda d: d["runs"][2].update(ranks=[0, 5])),
        ):
            d = copy.deepcopy(solved(chain(2)))
            change(d)
            with self.subTest(said), self.assertRaisesRegex(evenkeel.PlanError, "^" + said):
                evenkeel.load_tasks(d)
        with self.assertRaises(OSError):
            evenkeel.load_tasks("/no/such/plan.json")


if __name__ == "__main__":
    unittest.main()
