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
            (r"modules\['b'\].enter: its result: dtype torch.float64: want torch.float32, .*; its loader takes another dtype", spoilt),
            (r"modules\['b'\].blocks\[0\]: its result: shape", spoilt),
            (r"modules\['a'\].blocks\[1\]: its result: tuple: want a tensor", spoilt),
            (r"modules\['b'\].loss: its result: want a tensor without dimensions", spoilt),
            (r"modules\['b'\].loss: its result: want a tensor without dimensions", spoilt),
            ("$", "$"), ("$", "$"), (r"modules\['b'\]: Linear: want a TaskModule", "$"), ("$", "$"),
        )
        said = self.answers(1, "failing")[0]
        self.assertEqual(len(said), 2 * len(want))
        for text, pattern in zip(said, (p for pair in want for p in pair)):
            self.assertRegex(text, "^" + pattern)

    def test_too_few_ranks(self) -> None:
        for said in self.answers(6, "too_few"):
            self.assertEqual(said, "tasks: have rank 6, and the process group 6 ranks")

    def test_too_many_process_groups(self) -> None:
        """Over NCCL, of a chain of runs."""
        for said in self.answers(6, "chained", 40):
            self.assertRegex(said, "^PlanError: runs: rank 0 sends and adds up in 78 process groups: .*: take a plan of "
                                   "fewer runs, as of solve --take sequential$")

    def test_ranks_that_are_not_alike(self) -> None:
        """All ranks of a run hear of it before anything is sent; spread makes values alike, and nothing else."""
        differ = r"^modules\['b'\]: ranks 0, 1, which all have its layers 0, differ in their parameters or one of them "
        for how in ("order", "frozen", "value", "loss", "size"):
            for said in self.answers(2, "differing", how, False):
                self.assertRegex(said, differ, how)
        for said in self.answers(2, "differing", "value", True):
            self.assertEqual(said, "")
        mine, other = self.answers(2, "differing", "missing", False)
        self.assertRegex(mine, differ)
        self.assertRegex(other, r"^modules\['b'\].blocks: have no 0: the rank has layers 0$")

    def test_parameters_that_nobody_uses(self) -> None:
        """Have no gradient, on however many ranks, which an optimizer would take for zero."""
        for ranks in (1, 2):
            for unused, used in self.answers(ranks, "used", ranks):
                self.assertEqual((unused, used), ([True, True], [False, False]))

    def test_precision_of_backward_passes(self) -> None:
        """Is that of the forward passes, within autocast too."""
        self.assertEqual(self.answers(1, "islands"), [0.0])

    def test_gradients_in_a_wider_precision(self) -> None:
        """Than that of what travels between modules: of float16, sums beyond 65504; and parts of one precision do not
        keep those of others."""
        for off, kept, alone in self.answers(2, "wide"):
            self.assertLess(off, 1e-6)
            self.assertEqual(kept, alone)

    def test_blocks_without_a_graph(self) -> None:
        """Those that compute without gradients, or whose result is not of their input, let through none."""
        for how in ("frozen", "ignoring"):
            for again in (False, True):
                for before, own in self.answers(2, "cut_off", how, again):
                    self.assertEqual((before, own), (0.0, how == "ignoring"), f"{how}, {again}")

    def test_what_is_given_away_stays_as_it_is(self) -> None:
        """Until the step is over; it has no graph; and results leave before a loss of them is computed."""
        for changed, graphs, order in self.answers(6, "given", spread()):
            self.assertEqual((changed, graphs), (0, 0))
            self.assertNotIn("loss give", order)

    def test_what_is_computed_again(self) -> None:
        """Is computed without a graph first; losses have none."""
        self.assertEqual(self.answers(1, "computed")[0], [[[True] * 2, [False] * 2 + [True] * 2], False])


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

    def test_another_dtype(self) -> None:
        """A plan of bf16 is trained by in f32, as under autocast, where results between layers are f32."""
        planned = {**solved(chain(2)), "dtype": "bf16"}
        self.assertEqual([evenkeel.load_tasks(planned, dtype=d).dtype for d in (None, "f32", "f16")], ["bf16", "f32", "f16"])
        with self.assertRaisesRegex(evenkeel.PlanError, "^dtype: 'f8': want "):
            evenkeel.load_tasks(planned, dtype="f8")

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
