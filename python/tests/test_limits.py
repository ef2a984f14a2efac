"""What limits a rank of a replay: multiprocessors of a GPU it shares, and turns."""

from __future__ import annotations

import json
import os
import sys
import types
import unittest
from typing import Any
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import torch

from evenkeel import lane, replay
from evenkeel.confine import ConfineError
from evenkeel.frames import Fault
from evenkeel.request import Request
from plans import worked_example
from starter import Ranks
from test_replay import complete


class TestLimits(unittest.TestCase):
    def confined(self, asked: int, in_all: int, confine: Any, device: str = "cuda:0") -> Any:
        request = Request.of({"plans": [{}], "trace": "x", "sms": asked, "sms_in_all": in_all})
        with mock.patch.object(replay, "confine", confine):
            return replay._confined(request, torch.device(device))

    def test_a_rank_is_confined_or_says_why_not(self) -> None:
        calls: list[Any] = []

        def confine(*asked: Any) -> Any:
            calls.append(asked)
            return types.SimpleNamespace(sms=asked[0], card=132)

        def refuse(*_: Any) -> Any:
            raise ConfineError("a kernel ran on 132")

        self.assertIsNone(self.confined(0, 0, refuse))
        self.assertEqual(self.confined(80, 120, confine).sms, 80)
        self.assertEqual(calls, [(80, 0)])
        for want, arguments in (
            ("sms: a kernel ran on 132", (80, 120, refuse)),
            ("to have 160 multiprocessors, and it has 132", (80, 160, confine)),
            ("is on a cpu, not on a GPU", (80, 80, confine, "cpu")),
        ):
            with self.assertRaises(Fault) as raised:
                self.confined(*arguments)
            self.assertEqual(raised.exception.kind, "usage")
            self.assertIn(want, raised.exception.said)

    def test_messages_of_a_ring_are_handled_where_the_rank_is_confined(self) -> None:
        waited: list[Any] = []
        side = types.SimpleNamespace(wait_stream=waited.append)
        with mock.patch.object(lane, "side_stream", lambda device: side), \
                mock.patch.object(torch.cuda, "current_stream", lambda device: "main"):
            one = lane.Lane(torch.device("cuda:0"), inline=True)
            one.start()
        self.assertEqual(waited, ["main"])

    def test_ranks_that_take_turns_record_the_same_spans(self) -> None:
        counts = []
        for turns in (False, True):
            with Ranks([complete(worked_example())], 4, repeats=1, warmup=0, turns=turns, check=False) as ranks:
                ends = ranks.ends()
                self.assertEqual({e["t"] for e in ends}, {"result"}, ends)
                counts.append((ends[0]["steps"], ends[0]["spans"]))
        self.assertEqual(counts[0], counts[1])
        self.assertGreater(counts[0][1], 0)

    def test_a_rank_says_what_its_libraries_use(self) -> None:
        with Ranks([complete(worked_example())], 4, sms=8, repeats=1, check=False) as ranks:
            for r in range(4):
                self.assertIn("sms: 8: this rank is on a cpu", json.dumps(ranks.frames(r)[-1]))
        with Ranks([complete(worked_example())], 4, repeats=1, warmup=0, check=False) as ranks:
            hello = next(f for f in ranks.frames(0) if f["t"] == "hello")  # a busy rank may say before that it lives
        self.assertEqual((hello["t"], hello["sms"]), ("hello", 0))
        self.assertEqual(set(hello["vectors"]), {"aten", "blas", "limits", "reference_blas"})


if __name__ == "__main__":
    unittest.main()
