"""Ranks for tests: processes that are started once, joined by gloo, and serve jobs given by name.

A rank reads [name, arguments] lines from stdin and answers {"ok": ..} or {"error": ..} on stdout. Jobs are
the functions of jobs.py, and of other modules by their name too.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import sys
import tempfile
import unittest
from datetime import timedelta
from typing import Any, Optional, Sequence

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

from forked import Forked

LIMIT_S = 120.0  # for an answer
TIMEOUT_S = 60  # of a call of gloo


class World:
    """`size` ranks on this host. Use as a context."""

    def __init__(self, size: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        store = os.path.join(self._folder.name, "store")
        self.ranks = [Rank(r, size, store) for r in range(size)]

    def run(self, name: str, *args: Any, heard: Optional[Sequence[int]] = None) -> list[Any]:
        """Calls a job on all ranks and returns their answers, or those of the ranks listed, in order."""
        for rank in self.ranks:
            rank.send(name, *args)
        return [rank.receive() for r, rank in enumerate(self.ranks) if heard is None or r in heard]

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_: Any) -> None:
        for rank in self.ranks:
            rank.end()
        self._folder.cleanup()


class Rank:
    """One child process."""

    def __init__(self, rank: int, size: int, store: str) -> None:
        self.process = Forked(1, {}, serve, rank, size, store)
        self._answers = open(self.process.answers, encoding="utf-8", closefd=False)

    def send(self, name: str, *args: Any) -> None:
        self.process.stdin.write(json.dumps([name, args]) + "\n")

    def receive(self) -> Any:
        if not select.select([self._answers], [], [], LIMIT_S)[0]:
            raise AssertionError(f"no answer from pid {self.process.pid} within {LIMIT_S} s")
        line = self._answers.readline()
        if not line:
            return {"error": "gone"}
        return json.loads(line)

    def end(self) -> None:
        self._answers.close()
        self.process.end()


class SixRanks(unittest.TestCase):
    """Tests that share six ranks."""

    world: World
    jobs = ""  # what names of jobs begin with: the module's, where it is not jobs.py

    @classmethod
    def setUpClass(cls) -> None:
        cls.world = World(6)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.world.__exit__()

    def answers(self, ranks: int, name: str, *args: Any) -> list[Any]:
        """What the ranks of a job answered, without errors."""
        out = self.world.run(self.jobs + name, *args)
        for rank, answer in enumerate(out):
            self.assertNotIn("error", answer, f"{name}{args} on rank {rank}")
        return [answer["ok"] for answer in out[:ranks]]


def serve(rank: int, size: int, store: str) -> None:
    """Joins the world and serves jobs until the end of stdin."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    limit = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=limit)
    groups = {n: dist.new_group(list(range(n)), timeout=limit) for n in range(2, size + 1)}
    for line in sys.stdin:
        name, args = json.loads(line)
        module, _, job = name.rpartition(".")
        try:
            answer = {"ok": getattr(importlib.import_module(module or "jobs"), job)(rank, groups, *args)}
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
            os._exit(1)  # as a trainer does; who waits for this rank then hears of it
        print(json.dumps(answer), flush=True)
