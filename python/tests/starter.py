"""Ranks of a replay for tests, asked as evenkeel does it: file descriptor 3 for frames, a request on stdin."""

from __future__ import annotations

import json
import os
import select
import socket
import tempfile
import time
from typing import Any, Mapping, Optional, Sequence

from forked import Forked

LIMIT_S = 90.0  # that a run may take on a busy machine


class Ranks:
    """The ranks of one run. Use as a context: none is left behind."""

    def __init__(
        self, plans: Sequence[Mapping[str, Any]], size: int, changed: Optional[Mapping[int, str]] = None,
        **options: Any,
    ) -> None:
        """changed: by rank, Python text that runs first."""
        self._folder = tempfile.TemporaryDirectory()
        self.traces = [os.path.join(self._folder.name, f"trace.rank{r}.jsonl") for r in range(size)]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.processes: list[Forked] = []
        for r in range(size):
            more = (changed or {}).get(r, "")
            self._start(r, size, port, more)
            self.ask(r, {"t": "run", "plans": plans, "trace": self.traces[r], "threads": 1, **options})

    def _start(self, rank: int, size: int, port: int, more: str) -> None:
        env = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": str(port)}
        self.processes.append(Forked(3, env, _rank, more))

    def ask(self, rank: int, request: Mapping[str, Any]) -> None:
        """Sends a request."""
        self.processes[rank].stdin.write(json.dumps(request) + "\n")

    def frames(self, rank: int, until: str = "") -> list[dict[str, Any]]:
        """A rank's frames: all of them, or those up to the first of a phase."""
        data, deadline = b"", time.monotonic() + LIMIT_S
        while not until or f'"phase":"{until}"'.encode() not in data:
            left = deadline - time.monotonic()
            if left < 0 or not select.select([self.processes[rank].answers], [], [], left)[0]:
                raise AssertionError(f"rank {rank}: no end within {LIMIT_S} s, last: {data[-300:]!r}")
            chunk = os.read(self.processes[rank].answers, 1 << 16)
            if not chunk:
                break
            data += chunk
        return [json.loads(line) for line in data.split(b"\n") if line]

    def ends(self) -> list[dict[str, Any]]:
        """The last frame of every rank."""
        return [(self.frames(r) or [{"t": "nothing"}])[-1] for r in range(len(self.processes))]

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self.processes:
            process.end()
        self._folder.cleanup()


def _rank(more: str) -> None:
    exec(more, {})
    from evenkeel.replay import main

    main()
