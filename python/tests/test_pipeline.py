"""Pipelines on real ranks against one device."""

from __future__ import annotations

import unittest
from collections import deque
from typing import Any

from world import SixRanks

from evenkeel.closed import SENDS, expected_stages
from evenkeel.stages import Pipeline, pipeline_of
from pipelines import B, F, Document, document, random_pipeline


def cut_heads(kv_heads: int) -> Document:
    """12 query heads on stages of three, two and one rank, so that borders of ranks cut what reads a KV head: of 4
    KV heads in threes those of three ranks, of one all."""
    chunks = [((0, 0, 9), []), ((0, 9, 4), [1]), ((0, 13, 8), [])]
    orders = [[(0, F), (1, F), (2, F), (2, B), (1, B), (0, B)]] * 3
    again = [[0, 1, 0], [2, 0, 1], [0, 0, 1]]
    return document([21, 6], chunks, [([1, 3, 5], 1), ([0, 4], 2), ([2], 1)], orders, again, (12, kv_heads, 6))


def few_tokens() -> Document:
    """Chunks of 1, 2 and 3 tokens on stages of four ranks and of one, and rank 3 in none. A slice of one token is
    behind another one, and one before it."""
    chunks = [((0, 0, 1), []), ((0, 1, 1), [1]), ((0, 2, 3), [])]
    orders = [[(0, F), (1, F), (2, F), (2, B), (1, B), (0, B)]] * 2
    again = [[0, 1, 2], [0, 1, 0]]
    return document([5, 1], chunks, [([0, 2, 4, 5], 2), ([1], 1)], orders, again, (12, 4, 8))


class TestPipelines(SixRanks):
    jobs = "pipelines."

    def right(self, of: Any, ranks: int, kind: str, steps: int = 1, how: str = "Math") -> None:
        """All errors are small, nothing is left, and sent is what the closed form says."""
        doc = of if isinstance(of, dict) else random_pipeline(of, ranks)
        plan = pipeline_of(doc, ranks)
        want = {k: n for k, n in expected_stages(plan, 24).bytes.items() if k[2] in SENDS}
        for rank, answer in enumerate(self.answers(ranks, "whole", of, ranks, kind, steps, how)):
            with self.subTest(of=of if isinstance(of, int) else "", rank=rank, how=how):
                if plan.stage_of(rank) < 0:
                    self.assertIsNone(answer)
                    continue
                self.assertLess(max(answer["errors"], default=0), 2e-5)
                ends = [answer["chunks"] * end for end in answer["ends"]]
                self.assertEqual((answer["results"], answer["left"]), (ends, 0))
                self.assertEqual(answer["sent"], {f"{p} {b}": n for (a, b, p), n in want.items() if a == rank})
                self.assertEqual(answer["received"], {f"{p} {a}": n for (a, b, p), n in want.items() if b == rank})

    def test_random_pipelines(self) -> None:
        for seed in range(16):
            self.right(seed, 1 + seed % 6, ("gated", "plain")[seed % 2], 1 + seed % 3)

    def test_nothing_is_read_that_nobody_wrote(self) -> None:
        for seed in range(16, 24):
            self.right(seed, 2 + seed % 5, "gated", 2, "poisoned")

    def test_messages_that_come_early_and_late(self) -> None:
        for seed in range(24, 28):
            self.right(seed, 3 + seed % 4, "gated", 2, "Jittered")

    def test_batches_of_messages(self) -> None:
        for seed in range(28, 34):
            self.right(seed, 1 + seed % 6, "gated", 2, "inline")

    def test_heads_cut_by_borders_of_ranks(self) -> None:
        """Also by a kernel that wants as many query heads for every KV head."""
        for kv_heads, how in ((4, "poisoned"), (1, "Math"), (4, "Even"), (12, "Math")):
            self.right(cut_heads(kv_heads), 6, "gated", 1, how)

    def test_more_ranks_than_tokens(self) -> None:
        for how in ("poisoned", "inline"):
            self.right(few_tokens(), 6, "plain", 2, how)

    def test_same_bits(self) -> None:
        for of in (34, 35, cut_heads(4), few_tokens()):
            for rank, answer in enumerate(self.answers(6, "alike", of, 6)):
                if answer is not None:
                    self.assertEqual([name for name, same in answer.items() if not same], [], f"{of} rank {rank}")

    def test_no_rank_waits_for_itself(self) -> None:
        """As over NCCL, where the calls of a process group go one after the other on every rank: none begins before
        the one before is over, and one is over when all whom it sends to and receives from have begun theirs."""
        for of in (*range(40, 48), cut_heads(4), few_tokens()):
            with self.subTest(of=of if isinstance(of, int) else ""):
                plan = pipeline_of(of if isinstance(of, dict) else random_pipeline(of, 6), 6)
                calls = self.answers(6, "called", of, 6)
                played(calls)
                for rank, mine in enumerate(calls):
                    if mine:
                        self.orderly(mine, plan, plan.stage_of(rank))

    def orderly(self, calls: list[Any], plan: Pipeline, stage: int) -> None:
        """There is room for two messages from the stage before, before anything else is done, none from the one
        behind before a chunk has gone there, and nothing is left on its way."""
        before, posts = (stage > 0) * min(2, len(plan.chunks)), [call for call in calls if call[0] == "post"]
        self.assertEqual([call[2] for call in calls[:before]], [[]] * before)
        behind = set(plan.stages[stage + 1].ranks) if stage + 1 < len(plan.stages) else set()
        peers = [[{peer for peer, _ in side} & behind for side in call[2:4]] for call in posts]
        for i, (_, received) in enumerate(peers):
            if received:
                self.assertTrue(any(sent for sent, _ in peers[:i]), "a gradient is waited for before anything is sent")
        self.assertEqual({call[1] for call in calls if call[0] == "wait"}, set(range(len(posts))))


class TestPlaying(unittest.TestCase):
    def test_what_would_wait(self) -> None:
        """That playing notices it: each of two ranks first receives, in one process group."""
        ahead = [["post", 0, [], [[1, 4]]], ["post", 0, [[1, 4]], []], ["wait", 0]]
        behind = [["post", 0, [], [[0, 4]]], ["wait", 0], ["post", 0, [[0, 4]], []], ["wait", 1]]
        with self.assertRaisesRegex(AssertionError, "0 waits"):
            played([ahead, behind])
        apart = [[[*e[:1], 1 if e[2] else 0, *e[2:]] if e[0] == "post" else e for e in ahead],
                 [[*e[:1], 0 if e[2] else 1, *e[2:]] if e[0] == "post" else e for e in behind]]
        played(apart)
        with self.assertRaisesRegex(AssertionError, "bytes"):
            played([[["post", 0, [[1, 4]], []]], [["post", 0, [], [[0, 8]]]]])


def played(calls: list[Any]) -> None:
    """Plays what ranks call. A rank goes on until it waits; its calls of a process group begin one after the other.
    The n-th message from one rank to another in a group is the n-th that the other one receives."""
    ranks = [r for r, of in enumerate(calls) if of]
    at = {r: 0 for r in ranks}
    lines: dict[tuple[int, int], deque[int]] = {}  # by rank and group what is not over; the first has begun
    posts: dict[int, list[Any]] = {r: [] for r in ranks}
    over: dict[int, list[bool]] = {r: [] for r in ranks}
    count: dict[tuple[Any, ...], int] = {}
    ends: dict[tuple[Any, ...], tuple[int, int, int]] = {}  # of a message at one rank: rank, which post, bytes

    def post(r: int, group: int, sends: Any, receives: Any) -> None:
        keys = []
        for side, messages in (("to", sends), ("from", receives)):
            for peer, size in messages:
                pair = (group, r, peer) if side == "to" else (group, peer, r)
                n = count[pair + (side,)] = count.get(pair + (side,), -1) + 1
                keys.append((*pair, n, side))
                ends[keys[-1]] = r, len(posts[r]), size
        posts[r].append((group, keys))
        over[r].append(not keys)
        if keys:
            lines.setdefault((r, group), deque()).append(len(posts[r]) - 1)

    def ended(r: int, i: int) -> bool:
        for key in posts[r][i][1]:
            other = ends.get((*key[:-1], "from" if key[-1] == "to" else "to"))
            if other is None:
                return False
            peer, j, size = other
            assert size == ends[key][2], f"{key}: {size} and {ends[key][2]} bytes"
            if not over[peer][j] and lines[peer, key[0]][0] != j:
                return False
        return True

    moved = True
    while moved:
        moved = False
        for r in ranks:
            while at[r] < len(calls[r]):
                what, *rest = calls[r][at[r]]
                if what == "wait" and not over[r][rest[0]]:
                    break
                if what == "post":
                    post(r, *rest)
                at[r] += 1
                moved = True
        for (r, _), line in lines.items():
            if line and ended(r, line[0]):
                over[r][line.popleft()] = moved = True
    for r in ranks:
        assert at[r] == len(calls[r]), f"{r} waits at {calls[r][at[r]]}"
        assert all(over[r]), f"{r}: a message is never delivered"


if __name__ == "__main__":
    unittest.main()
