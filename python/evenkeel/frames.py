"""Frames from a rank to its starter, JSON lines on file descriptor 3, heartbeats among them; and the watch
for the starter's end, which is the end of stdin."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass
from typing import Any

OUT = 3  # file descriptor of the frames
STEP_S = 0.2  # news of progress come at most this often
BEAT_S = 1.0  # and something comes at least this often

_CHUNK = 1 << 16


class Fault(Exception):
    """Why a rank gives up. kind is one of usage, versions, numerics, bytes, flops, disk, peer and
    internal."""

    def __init__(self, kind: str, said: str) -> None:
        super().__init__(said)
        self.kind, self.said = kind, said


@dataclass
class Place:
    """Where a rank is. The thread that works writes it, the heartbeat reads it."""

    phase: str = "start"
    plan: int = 0
    block: int = 0
    layer: int = 0
    direction: str = ""
    step: int = 0
    op: str = ""
    mb: int = -1  # micro-batch, where a step has several

    def frame(self) -> dict[str, Any]:
        """The frame that tells it."""
        return {"t": "at", "phase": self.phase, "plan": self.plan, "block": self.block, "layer": self.layer,
                "mb": max(0, self.mb), "dir": self.direction, "step": self.step, "op": self.op}

    def __str__(self) -> str:
        """In words: block 3, plan 1, layer 0, fwd step 2 ring_wait."""
        words = [self.phase if self.phase != "block" else f"block {self.block}"]
        if self.phase == "warmup":
            words[0] += f" block {self.block}"
        if self.phase in ("numerics", "warmup", "block"):
            words.append(f"plan {self.plan}")
        if self.mb >= 0:
            words.append(f"micro-batch {self.mb}")
        if self.direction:
            words += [f"layer {self.layer}", f"{self.direction} step {self.step} {self.op}".rstrip()]
        return ", ".join(words)


class Frames:
    """The rank's end of the pipe to its starter, and the heartbeat, which begins with start()."""

    def __init__(self, out: int = OUT) -> None:
        self.place = Place()
        self._out, self._lock = out, threading.Lock()
        self._said: dict[str, Any] = {}
        self._said_s = 0.0
        self._over = False

    def start(self) -> None:
        """Starts the heartbeat and the watch for the starter's end."""
        for work in (self._beats, self._watch):
            threading.Thread(target=work, name=f"evenkeel{work.__name__}", daemon=True).start()

    def send(self, frame: dict[str, Any], last: bool = False) -> None:
        """Writes one frame; ends the process if nobody reads them. No beat follows the last one."""
        data = json.dumps(frame, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if self._over:
                return
            self._over = last
            try:
                while data:
                    data = data[os.write(self._out, data):]
            except BrokenPipeError:
                os._exit(1)

    def enter(self, phase: str, plan: int = 0, block: int = 0) -> None:
        """The rank goes on to another phase, plan or block. A phase is told at once."""
        news, place = phase != self.place.phase, self.place
        place.phase, place.plan, place.block = phase, plan, block
        place.layer, place.direction, place.step, place.op, place.mb = 0, "", 0, "", -1
        if news:
            self._tell()

    def alive(self) -> None:
        """What has no place of its own goes on."""
        self.place.step += 1

    def _tell(self) -> None:
        self._said, self._said_s = self.place.frame(), time.monotonic()
        self.send(self._said)

    def _beats(self) -> None:
        while True:
            time.sleep(STEP_S)
            since = time.monotonic() - self._said_s
            if since >= BEAT_S or since >= STEP_S and self.place.frame() != self._said:
                self._tell()

    def _watch(self) -> None:
        """Nothing follows the request but the end of stdin: the starter is gone, however it went."""
        while os.read(0, _CHUNK):
            pass
        os._exit(1)


def read_request() -> dict[str, Any]:
    """The one line of stdin. Fault(usage) for anything that is no JSON object."""
    pending = b""
    while b"\n" not in pending:
        chunk = os.read(0, _CHUNK)
        if not chunk:
            os._exit(1)  # the starter ended before it asked for anything
        pending += chunk
    try:
        request = json.loads(pending.split(b"\n", 1)[0])
    except (ValueError, RecursionError) as error:
        raise Fault("usage", f"the request is no JSON: {error}") from error
    if not isinstance(request, dict) or request.get("t") != "run":
        raise Fault("usage", 'the request is no object with "t":"run"')
    return request
