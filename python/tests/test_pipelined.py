"""Stages of a pipeline for training loops."""

from __future__ import annotations

import unittest
from typing import Any

from world import SixRanks

import evenkeel
from pipelines import random_pipeline


class TestPipelineStage(SixRanks):
    jobs = "stage_jobs."

    def test_gradients_of_all_parameters(self) -> None:
        """They add up to those of one device, whatever is computed again, and nothing is left for the next step."""
        for seed in range(10):
            ranks = 1 + seed % 6
            for rank, answer in enumerate(self.answers(ranks, "trained", seed, ranks, 1 + seed % 2, 0)):
                self.exact(answer, f"seed {seed}, rank {rank}")

    def test_other_batches_on_the_same_stages(self) -> None:
        for seed in range(10):
            ranks = 2 + seed % 5
            for rank, answer in enumerate(self.answers(ranks, "trained", seed, ranks, seed % 2, 1 + seed % 3)):
                self.exact(answer, f"seed {seed}, rank {rank}")

    def exact(self, answer: dict[str, Any], of: str) -> None:
        with self.subTest(of):
            self.assertGreater(answer["layers"], 0)
            self.assertLess(max(answer["errors"]), 2e-5)
            self.assertLess(answer["loss"] or 0, 1e-5)

    def test_what_is_computed_again_is_the_same(self) -> None:
        for off, norm in self.answers(1, "again_alike")[0]:
            self.assertGreater(norm, 0.1)
            self.assertLess(off, 1e-6 * norm)

    def test_results_that_do_not_fit(self) -> None:
        """They are named before anything is sent; a step after one that failed is refused, and others go on."""
        spoilt = "an earlier step failed, "
        want = (
            r"chunk 0: what is given: shape torch.Size\(\[9, 10\]\): want torch.Size\(\[5, 10\]\), as the plan",
            spoilt, "chunk 0: what is given: dtype torch.float64: want torch.float32", spoilt,
            r"blocks\[1\]: its result: shape torch.Size\(\[5, 9\]\): want", spoilt,
            "blocks: 1: the stage has 2 layers", "$", "$", "$",
        )
        said = self.answers(1, "failing")[0]
        self.assertEqual(len(said), len(want))
        for text, pattern in zip(said, want):
            self.assertRegex(text, "^" + pattern)

    def test_other_stages_are_refused(self) -> None:
        """Whose layers, ranks or number are not those that process groups were made for; nothing is taken."""
        for said in self.answers(6, "refused", 3):
            wants = (
                r"pipeline: \d stages: want \d, as before: solve --stages-of ",
                r"pipeline: stages\[0\]: ranks \[.*\] with \d layers: want \[.*\] with \d, as before: solve ",
                r"pipeline: stages\[0\]: ranks \[.*, 9\] with ", r"pipeline: kv_heads: 2: want \d+, as before",
                "pipeline: dtype: 'bf16': want 'f32', as before",
            )
            self.assertEqual(len(said), len(wants))
            for text, want in zip(said, wants):
                self.assertRegex(text, "^" + want)


class TestLoadPipeline(unittest.TestCase):
    def test_refused(self) -> None:
        document = {**random_pipeline(3, 4), "devices": ["a"] * 4}
        sizes: dict[str, Any] = {"q_heads": 12, "kv_heads": 4, "head_dim": 8, "dtype": "f32"}
        self.assertEqual(len(evenkeel.load_pipeline(document, **sizes).chunks), len(document["chunks"]))
        for changed, options, said in (
            ({"devices": []}, sizes, "devices: want"), ({"schema": "x"}, sizes, "schema: 'x'"),
            ({}, {**sizes, "dtype": "f8"}, "dtype: 'f8'"), ({}, {**sizes, "kv_heads": 5}, "job.model.kv_heads: 5"),
            ({"devices": ["a"]}, sizes, r"stages\[\d\].ranks"),
        ):
            with self.assertRaisesRegex(evenkeel.PlanError, "^" + said):
                evenkeel.load_pipeline({**document, **changed}, **options)
        served = evenkeel.load_pipeline({**document, "schema": "evenkeel.servedpipeline/v1"}, **sizes)
        self.assertEqual(served, evenkeel.load_pipeline(document, **sizes))
        with self.assertRaises(OSError):
            evenkeel.load_pipeline("/no/such/plan.json", **sizes)


if __name__ == "__main__":
    unittest.main()
