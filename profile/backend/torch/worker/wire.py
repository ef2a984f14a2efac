"""Frames between agent and worker: JSON lines in on stdin, out on file descriptor 3, without buffering
layers."""

from __future__ import annotations

import json
import os
import select
import threading
import time
from typing import Iterator

from errors import Failure

MAX_FRAME = 1 << 20  # bytes of a frame, newline included
_OUT = 3
_BEAT_S = 1.0

_lock = threading.Lock()


def send(frame: dict) -> None:
    """Writes one frame. Raises ValueError for NaN and infinities, Failure for a frame above the limit."""
    data = json.dumps(frame, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    if len(data) > MAX_FRAME:
        raise Failure(
            "internal", f"an answer of {len(data)} bytes exceeds the {MAX_FRAME} of a frame: ask for less"
        )
    with _lock:
        while data:
            data = data[os.write(_OUT, data):]


def requests() -> Iterator[dict]:
    """The agent's requests until it closes stdin. A line that is no JSON object, or too long, ends the
    worker."""
    pending = b""
    while True:
        chunk = os.read(0, MAX_FRAME)
        if not chunk:
            return
        pending += chunk
        *lines, pending = pending.split(b"\n")
        if len(pending) > MAX_FRAME or any(len(line) >= MAX_FRAME for line in lines):
            raise Failure("internal", f"a request exceeds the frame limit of {MAX_FRAME} bytes")
        for line in lines:
            yield _parse(line)


def _parse(line: bytes) -> dict:
    try:
        request = json.loads(line)
    except ValueError as exc:
        raise Failure("internal", f"a request is no JSON: {exc}") from exc
    if not isinstance(request, dict):
        raise Failure("internal", f"a request is a JSON {type(request).__name__}: want an object")
    return request


class Heart(threading.Thread):
    """Beats once a second while a request is worked on, and ends the process when the agent is gone.

    The main thread only writes attributes: waking this thread for every request would cost more than a small
    request does.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._id = 0
        self._since = 0.0
        self._phase = ""
        self._n = 0

    def begin(self, request_id: int, phase: str) -> None:
        """A request is being worked on."""
        self._phase, self._n, self._since = phase, 0, time.monotonic()
        self._id = request_id

    def progress(self, n: int) -> None:
        """n samples of the request are done."""
        self._n = n

    def end(self) -> None:
        """The request is about to be answered: no beat may follow the answer."""
        self._id = 0

    def run(self) -> None:
        """The thread: the wait for the next beat is also the watch for the agent's end of the pipe."""
        gone = select.poll()
        gone.register(0, 0)
        while True:
            for _, event in gone.poll(_BEAT_S * 1000):
                if event & (select.POLLHUP | select.POLLERR):
                    os._exit(0)
            self._beat()

    def _beat(self) -> None:
        request_id, due = self._id, time.monotonic() - self._since >= _BEAT_S / 2
        if not request_id or not due:
            return
        frame = {"t": "beat", "id": request_id, "phase": self._phase, "n": self._n}
        data = json.dumps(frame).encode() + b"\n"
        with _lock:
            if self._id == request_id:
                os.write(_OUT, data)
