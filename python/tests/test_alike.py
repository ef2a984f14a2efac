"""Ranks that were given the same plan, and others."""

from __future__ import annotations

import os
import sys
import unittest
from typing import Any, Optional

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import evenkeel
from batch_jobs import loaded, random_batch
from evenkeel.stages import pipeline_of
from pipelines import random_pipeline
from plans import document, worked_example
from world import World


def given(name: str, rank: int) -> list[Any]:
    """What a rank is given; with a number behind the name, rank 1 is given something else."""
    other = rank == 1
    return {
        "same": [evenkeel.load_plan(_plan(0)), None, [5, 7], loaded(random_batch(1, 3)), _pipeline(1)],
        "heads": [evenkeel.load_plan(_plan(2 * other)), [5, 7]],
        "docs": [evenkeel.load_plan(_plan(0)), [7, 5] if other else [5, 7]],
        "batch": [loaded(random_batch(2 if other else 1, 3))],
        "pipeline": [_pipeline(2 if other else 1)],
        "fewer": [[5, 7]] if other else [[5, 7], [12]],
        "ranks": [evenkeel.load_plan(worked_example())],
    }[name]


def _plan(heads: int) -> Any:
    own = [[(0, 6)], [(6, 9)], [(9, 12)]]
    return document(own, [[(0, 2 + heads), (1, 4 - heads)], [(2, 6)]], 6, 2, 8)


def _pipeline(seed: int) -> Any:
    return pipeline_of(random_pipeline(seed, 3), 3)


def told(rank: int, groups: Any, name: str) -> Optional[str]:
    """What a rank's call of agree said."""
    try:
        evenkeel.agree(*given(name, rank))
    except (evenkeel.PlanError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def of_two(rank: int, groups: Any) -> Optional[str]:
    """What a call says of a group of two ranks."""
    try:
        evenkeel.agree([rank // 2], group=groups[2])
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return None


class TestAgree(unittest.TestCase):
    def test_all_ranks_hear_of_one_that_goes_by_another_plan(self) -> None:
        file = "give all ranks the same file, or the same lengths in the same order"
        for name, want in (
            ("same", None),
            ("heads", f"PlanError: agree: argument 0: the Plan is another on rank 1 than on rank 0: {file}"),
            ("docs", f"PlanError: agree: argument 1: a list of 2 numbers is another on rank 1 than on rank 0: {file}"),
            ("batch", f"PlanError: agree: argument 0: the Batch is another on rank 1 than on rank 0: {file}"),
            ("pipeline", f"PlanError: agree: argument 0: the Pipeline is another on rank 1 than on rank 0: {file}"),
            ("fewer", "PlanError: agree: 2, 1, 2 arguments by rank: want as many on all"),
            ("ranks", "PlanError: agree: argument 0: the Plan is of 4 ranks: the process group has 3"),
        ):
            with self.subTest(name):
                self.assertEqual([a.get("ok", a) for a in self.world.run("test_alike.told", name)], [want] * 3)

    def test_only_ranks_of_the_group_call_it(self) -> None:
        want = [None, None, "ValueError: agree: rank 2 is not in the process group: only its ranks call it"]
        self.assertEqual([a.get("ok", a) for a in self.world.run("test_alike.of_two")], want)
        with self.assertRaisesRegex(evenkeel.PlanError, "the Plan is of 3 ranks: call init_process_group of torch"):
            evenkeel.agree(evenkeel.load_plan(_plan(0)))

    def test_it_is_of_plans_and_numbers(self) -> None:
        for x in ("docs", 3, [1.5]):
            with self.assertRaisesRegex(TypeError, "agree: argument 0: .*want a Plan, Batch, Pipeline or Tasks"):
                evenkeel.agree(x)  # type: ignore[arg-type]

    @classmethod
    def setUpClass(cls) -> None:
        cls.world = World(3)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.world.__exit__()


if __name__ == "__main__":
    unittest.main()
