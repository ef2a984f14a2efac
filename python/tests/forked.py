"""Processes of tests that need torch: forks of one that has imported it, and what is run, which takes a second of a
core and more each time.

What a process starts with otherwise, such as the program that evenkeel starts a rank with, the tests of
evenkeel itself run."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import sys
from multiprocessing.connection import Connection
from typing import Any, Callable, Mapping, Optional
from unittest import mock

_HERE = os.path.dirname(os.path.abspath(__file__))
# Read by libraries when they are loaded, so before there are forks: a rank has one thread. And where modules are: the
# process that is forked knows only of this.
_ENV = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [_HERE, os.path.dirname(_HERE), os.environ.get("PYTHONPATH")]))}

_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(["torch.distributed", "preloaded"])


class Forked:
    """A process that calls a function, with a pipe as its stdin and one that it writes to by a descriptor."""

    def __init__(self, answers: int, env: Mapping[str, str], call: Callable[..., None], *args: Any) -> None:
        """answers: the descriptor that the function writes to; its other end is self.answers."""
        asked, stdin = os.pipe()
        self.answers, written = os.pipe()
        self.stdin = open(stdin, "w", encoding="utf-8", buffering=1)
        theirs = [Connection(asked, writable=False), Connection(written, readable=False)]
        self._process = _forking.Process(target=_run, args=(*theirs, answers, dict(env), call, args),
                                         daemon=True)
        with mock.patch.dict(os.environ, _ENV):
            multiprocessing.forkserver.ensure_running()
        self._process.start()
        for end in theirs:
            end.close()

    @property
    def pid(self) -> Optional[int]:
        return self._process.pid

    def wait(self, limit_s: Optional[float] = None) -> Optional[int]:
        """The exit status, negative after a signal; None if there is none by then."""
        self._process.join(limit_s)
        return self._process.exitcode

    def end(self) -> None:
        self._process.kill()
        self.wait()
        with contextlib.suppress(OSError):  # what was not read by then is lost
            self.stdin.close()
        os.close(self.answers)


def _run(asked: Connection, written: Connection, answers: int, env: dict[str, str], call: Callable[..., None],
         args: tuple[Any, ...]) -> None:
    ends = [os.dup(end.fileno()) for end in (asked, written)]  # neither is a number that the other shall have
    asked.close()
    written.close()
    for end, number in zip(ends, (0, answers)):
        if end != number:
            os.dup2(end, number)
            os.close(end)
    os.environ.update(env)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    call(*args)
