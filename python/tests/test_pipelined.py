"""Stages of a pipeline for training loops."""

from __future__ import annotations

import unittest

from world import SixRanks

import evenkeel
from pipelines import random_pipeline


class TestPipelineStage(SixRanks):
    jobs = "stage_jobs."

    def test_gradients_of_all_parameters(self) -> None:
        """They add up to those of one device, whatever is computed again, and nothing is left for the next step."""
        for seed in range(10):
            ranks = 1 + seed % 6
            for rank, answer in enumerate(self.answers(ranks, "trained", seed, ranks, 1 + seed % 2)):
                with self.subTest(seed=seed, rank=rank):
                    self.assertGreater(answer["layers"], 0)
                    self.assertLess(max(answer["errors"]), 2e-5)
                    self.assertLess(answer["loss"] or 0, 1e-5)


class TestLoadPipeline(unittest.TestCase):
    def test_refused(self) -> None:
        document = {**random_pipeline(3, 4), "devices": ["a"] * 4}
        sizes = {"q_heads": 12, "kv_heads": 4, "head_dim": 8}
        self.assertEqual(len(evenkeel.load_pipeline(document, **sizes).chunks), len(document["chunks"]))
        for changed, options, said in (
            ({"devices": []}, sizes, "devices: want"), ({"schema": "x"}, sizes, "schema: 'x'"),
            ({}, {**sizes, "dtype": "f8"}, "dtype: 'f8'"), ({}, {**sizes, "kv_heads": 5}, "job.model.kv_heads: 5"),
            ({"devices": ["a"]}, sizes, r"stages\[\d\].ranks"),
        ):
            with self.assertRaisesRegex(evenkeel.PlanError, "^" + said):
                evenkeel.load_pipeline({**document, **changed}, **options)
        with self.assertRaises(OSError):
            evenkeel.load_pipeline("/no/such/plan.json", **sizes)


if __name__ == "__main__":
    unittest.main()
