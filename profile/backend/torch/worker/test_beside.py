"""Tests of how attention beside messages is timed, on a clock of the test's own, and of waiting for messages."""

from __future__ import annotations

import os
import sys
import time
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import beside  # noqa: E402
from beside import Beside, Watch  # noqa: E402
from errors import Failure  # noqa: E402

ALONE_NS = 4_000_000  # attention with nothing beside it
MESSAGE_NS = 2_000_000


class Clocked(Beside):
    """One of two ranks on a clock of its own. Attention beside messages takes slowed_ns; the other rank asks for
    others[i] messages when it is asked for the ith time, and then for as many as this one."""

    def __init__(self, slowed_ns: int, others: list[int] | None = None):
        self.now, self.ends, self.slowed_ns, self.others = 0, 0, slowed_ns, others or []
        self._compute = types.SimpleNamespace(call=self._attention)
        self.started: list[int] = []  # messages in flight beside each attention that had any

    def _attention(self) -> None:
        if self.ends > self.now:
            self.started.append((self.ends - self.now) // MESSAGE_NS)
            self.now += self.slowed_ns
        else:
            self.now += ALONE_NS

    def _start(self) -> list[types.SimpleNamespace]:
        self.ends = ends = max(self.ends, self.now) + MESSAGE_NS
        return [types.SimpleNamespace(wait=lambda: setattr(self, "now", max(self.now, ends)))]

    def _meet(self) -> None:
        pass

    def _most(self, n: int) -> int:
        return max(n, self.others.pop(0)) if self.others else n

    def ratio(self) -> float:
        """The slow-down of attention."""
        with mock.patch.object(beside.time, "perf_counter_ns", lambda: self.now):
            return self._slowed_compute()


class Slowed(unittest.TestCase):
    def test_messages_that_last_are_sent_once(self):
        rank = Clocked(2 * ALONE_NS)
        self.assertEqual(rank.ratio(), 2)
        self.assertEqual(set(rank.started), {7})

    def test_more_are_sent_until_they_outlast_attention_that_others_slow(self):
        rank = Clocked(9 * ALONE_NS)
        self.assertEqual(rank.ratio(), 9)
        self.assertEqual(list(dict.fromkeys(rank.started)), [7, 14, 28])

    def test_a_rank_sends_more_where_another_needs_more(self):
        rank = Clocked(2 * ALONE_NS, [7, 14, 28])
        self.assertEqual(rank.ratio(), 2)
        self.assertEqual(list(dict.fromkeys(rank.started)), [7, 14, 28])

    def test_attention_that_is_never_outlasted_is_an_error(self):
        rank = Clocked(5000 * ALONE_NS)
        with self.assertRaisesRegex(Failure, "overlap: 1000 messages beside 4000000 ns of compute ended first"):
            rank.ratio()


class Message:
    """A message that arrives after a while, or breaks."""

    def __init__(self, after_s: float, broken: bool = False):
        self.after_s, self.broken = after_s, broken

    def wait(self) -> None:
        time.sleep(self.after_s)
        if self.broken:
            raise RuntimeError("connection reset by peer")


class Watching(unittest.TestCase):
    def test_it_tells_when_the_last_message_arrived(self):
        begin = time.perf_counter_ns()
        watch = Watch([Message(0.02), Message(0.03)])
        self.assertIsNone(watch.at)
        self.assertGreaterEqual(watch.result() - begin, 45_000_000)

    def test_a_broken_message_is_raised(self):
        with self.assertRaisesRegex(RuntimeError, "reset by peer"):
            Watch([Message(0, broken=True)]).result()


if __name__ == "__main__":
    unittest.main()
