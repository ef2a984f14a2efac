"""Pipelines on real ranks against one device."""

from __future__ import annotations

import unittest

from world import SixRanks


class TestPipelines(SixRanks):
    jobs = "pipelines."

    def test_random_pipelines(self) -> None:
        for seed in range(16):
            ranks = 1 + seed % 6
            kind = ("gated", "plain")[seed % 2]
            for rank, answer in enumerate(self.answers(ranks, "whole", seed, ranks, kind, 1 + seed % 3)):
                with self.subTest(seed=seed, rank=rank):
                    self.assertLess(max(answer["errors"], default=0), 2e-5)
                    want = [answer["chunks"] * end for end in answer["ends"]]
                    self.assertEqual((answer["results"], answer["left"]), (want, 0))


if __name__ == "__main__":
    unittest.main()
