"""The recording of one rank, kept on disk block by block, and all ranks' recordings brought to rank 0."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from typing import Any, Iterator, Optional

import torch

from .frames import Fault, Frames
from .meter import Span, Trace
from .rendezvous import Wires

# Spans in which nobody is waited for.
COMPUTING = ("linear_in", "attn", "merge", "linear_out", "loss", "embed", "optimizer")


class Recorder(Trace):
    """A trace that also says where the rank is, and with `turns` lets one rank of the host compute at a time:
    waiting for its turn is in no span."""

    def __init__(self, rank: int, device: torch.device, frames: Frames, turns: bool = False) -> None:
        super().__init__(rank, device)
        self._frames, self._device = frames, device
        # Any folder that all ranks of a host have will do, and leaves no file behind. One on a network disk, as
        # torch's own may be, takes no such lock.
        self._turn = os.open(tempfile.gettempdir(), os.O_RDONLY) if turns else -1

    def alive(self) -> None:
        """See Frames."""
        self._frames.alive()

    @contextlib.contextmanager
    def span(self, span: Span) -> Iterator[Span]:
        """See Trace."""
        place = self._frames.place
        place.layer, place.direction, place.step, place.op = self.layer, span.direction, span.step, span.op
        if place.mb >= 0:  # two that go together take turns
            place.mb = self.mb
        with self._in_turn(span.op), super().span(span) as inner:
            yield inner

    @contextlib.contextmanager
    def _in_turn(self, op: str) -> Iterator[None]:
        if self._turn < 0 or op not in COMPUTING:
            yield
            return
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        try:
            yield
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)


class Journal:
    """Lines of a recording in a file of their own, block after block."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = open(path, "wb")
        self._ends: list[int] = []

    def step(self, block: int, plan: int, trace: Trace, dur_ns: int) -> None:
        """Writes what a step left in the trace."""
        of: dict[str, Any] = {"block": block, "plan": plan}
        lines: list[dict[str, Any]] = [{"t": "span", **of, **span} for span in trace.spans()]
        lines.append({"t": "step", **of, "rank": trace.rank, "dur_ns": dur_ns})
        data = b"".join(json.dumps(x, separators=(",", ":")).encode() + b"\n" for x in lines)
        with _writing(self._path):
            self._file.write(data)

    def end_block(self) -> None:
        """All steps of a block are written."""
        self._ends.append(self._file.tell())

    def blocks(self) -> Iterator[bytes]:
        """The lines of every block."""
        with _writing(self._path):
            self._file.flush()
        with open(self._path, "rb") as file:
            begin = 0
            for end in self._ends:
                yield file.read(end - begin)
                begin = end

    def remove(self) -> None:
        """Deletes the file."""
        self._file.close()
        os.unlink(self._path)


@contextlib.contextmanager
def _writing(path: str) -> Iterator[None]:
    """Names the folder whose disk is full, which is not that of the trace."""
    try:
        yield
    except OSError as error:
        said = f"{path}: {error.strerror}: what is recorded lies there until the end"
        raise Fault("disk", said + "; free space, or name another folder with TMPDIR") from error


def gather(journal: Journal, wires: Wires, path: str) -> Optional[dict[str, Any]]:
    """Writes all ranks' lines to a file at rank 0, block by block and in it rank by rank; returns how many
    steps and spans they are, None on other ranks."""
    if wires.world.rank:
        for data in journal.blocks():
            wires.send_bytes("recording", data)
        return None
    steps = spans = 0
    with _writing(path), open(path, "wb") as file:
        for data in journal.blocks():
            for r in range(wires.world.size):
                part = wires.receive_bytes("recording", r) if r else data
                steps += part.count(b'{"t":"step"')
                spans += part.count(b'{"t":"span"')
                file.write(part)
    return {"steps": steps, "spans": spans}
