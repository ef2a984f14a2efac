"""Ranks of a replay for tests, started as evenkeel does it: file descriptor 3 for frames, a request on
stdin."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, Mapping, Optional, Sequence

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)

LIMIT_S = 90.0  # that a run may take on a busy machine

# What a rank runs; more is put before main where a test wants a rank that is not as it should be.
_RUN = "import sys; sys.path.insert(0, {root!r})\n{more}\nfrom evenkeel.replay import main; main()"
_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


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
        self._frames: list[int] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        for r in range(size):
            more = (changed or {}).get(r, "")
            self._start(r, size, port, more)
            self.ask(r, {"t": "run", "plans": plans, "trace": self.traces[r], "threads": 1, **options})

    def _start(self, rank: int, size: int, port: int, more: str) -> None:
        ours, theirs = os.pipe()
        env = {**os.environ, **_THREADS, "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        # The shell puts the frames where a rank expects them, whatever number this process has for them.
        shell = f'exec 3>&{theirs} {theirs}>&-; exec "$0" -I -u -B -c "$1"' if theirs != 3 else \
            'exec "$0" -I -u -B -c "$1"'
        text = _RUN.format(root=ROOT, more=more)
        self.processes.append(subprocess.Popen(
            ["bash", "-c", shell, sys.executable, text], stdin=subprocess.PIPE, pass_fds=[theirs], env=env))
        os.close(theirs)
        self._frames.append(ours)

    def ask(self, rank: int, request: Mapping[str, Any]) -> None:
        """Sends a request."""
        stdin = self.processes[rank].stdin
        assert stdin is not None
        stdin.write(json.dumps(request).encode() + b"\n")
        stdin.flush()

    def frames(self, rank: int, until: str = "") -> list[dict[str, Any]]:
        """A rank's frames: all of them, or those up to the first of a phase."""
        data, deadline = b"", time.monotonic() + LIMIT_S
        while not until or f'"phase":"{until}"'.encode() not in data:
            left = deadline - time.monotonic()
            if left < 0 or not select.select([self._frames[rank]], [], [], left)[0]:
                raise AssertionError(f"rank {rank}: no end within {LIMIT_S} s, last: {data[-300:]!r}")
            chunk = os.read(self._frames[rank], 1 << 16)
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
        for process, frames in zip(self.processes, self._frames):
            process.kill()
            process.wait()
            os.close(frames)
            with contextlib.suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
        self._folder.cleanup()
