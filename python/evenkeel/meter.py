"""What the executor really did: bytes and FLOPs counted, and spans of time."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Iterator, Optional, Sequence

import torch


class Meter:
    """Counters of one rank, over all calls it is given to.

    sent, received: bytes by (phase, peer), phases as closed.PHASES. flops: by "fwd" and "bwd".
    """

    def __init__(self) -> None:
        self.sent: dict[tuple[str, int], int] = {}
        self.received: dict[tuple[str, int], int] = {}
        self.flops: dict[str, int] = {}
        self._lock = threading.Lock()

    def message(self, counter: dict[tuple[str, int], int], phase: str, peer: int, n: int) -> None:
        """Adds a message of n bytes to sent or received; they are counted by two threads."""
        with self._lock:
            counter[phase, peer] = counter.get((phase, peer), 0) + n

    def add(self, other: "Meter", ranks: Sequence[int]) -> None:
        """Adds what another has counted, whose peers are places among some ranks of the run."""
        for mine, theirs in ((self.sent, other.sent), (self.received, other.received)):
            for (phase, peer), n in theirs.items():
                self.message(mine, phase, ranks[peer], n)
        for direction, n in other.flops.items():
            self.work(direction, n)

    def work(self, direction: str, flops: int) -> None:
        """Adds the FLOPs of a block."""
        self.flops[direction] = self.flops.get(direction, 0) + flops


@dataclass
class Span:
    """A stretch of time of one rank: t0_ns after the trace's zero. Bytes and FLOPs are of what was waited for
    or computed, shape are the axes of an attn block. Ops beside those of an attention and of a layer: meet of a plan
    of batches, stage_wait of pipelines and tasks, grad_wait of tasks and of whole steps, and of steps param_wait,
    embed, loss and optimizer."""

    direction: str
    step: int
    op: str  # a2a_in, ring_wait, attn, merge, a2a_out; linear_in and linear_out of a whole layer
    t0_ns: int = 0
    dur_ns: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    flops: int = 0
    shape: dict[str, Any] = field(default_factory=dict)


class Trace:
    """Spans of one rank, in order. Call zero() behind a barrier and then read spans() or write a file.

    On a GPU the times are of events on the stream that computes; reading them waits for the stream. mb and
    layer are the micro-batch and layer that the spans belong to, again says that a forward pass is made a
    second time for the backward; they may be changed between calls. A sequence of begin_attention keeps the mb
    and layer of when it began, for all its spans. chunk is that of the heads in plans with head_chunks, which
    the attention sets; spans of the first one leave it out.
    """

    def __init__(self, rank: int, device: Optional[torch.device] = None) -> None:
        self.rank, self.mb, self.layer, self.again = rank, 0, 0, False
        self.chunk = 0
        self._cuda = device is not None and device.type == "cuda"
        self._spans: list[tuple[dict[str, Any], Span, Any, Any]] = []
        self._zero: Any = self._now()

    def zero(self) -> None:
        """Forgets what was recorded; times count from now."""
        self._spans, self._zero = [], self._now()

    @contextlib.contextmanager
    def span(self, span: Span) -> Iterator[Span]:
        """Records what happens inside; bytes, FLOPs and shape may still be filled in there."""
        of: dict[str, Any] = {"rank": self.rank, "mb": self.mb, "layer": self.layer}
        if self.again:
            of["again"] = True
        if self.chunk:
            of["chunk"] = self.chunk
        begin = self._now()
        yield span
        self._spans.append((of, span, begin, self._now()))

    def spans(self) -> list[dict[str, Any]]:
        """The spans as objects of a recording."""
        if self._cuda:
            torch.cuda.synchronize()
        out = []
        for of, s, begin, end in self._spans:
            t0, dur = self._between(self._zero, begin), self._between(begin, end)
            out.append({
                **of, "dir": s.direction, "step": s.step, "op": s.op, "t0_ns": t0,
                "dur_ns": dur, "bytes_out": s.bytes_out, "bytes_in": s.bytes_in, "flops": s.flops,
                "shape": s.shape,
            })
        return out

    def write(self, path: str) -> None:
        """Writes the spans, one JSON object a line."""
        with open(path, "w", encoding="utf-8") as file:
            for s in self.spans():
                file.write(json.dumps(s) + "\n")

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, begin: Any, end: Any) -> int:
        return int(begin.elapsed_time(end) * 1e6 if self._cuda else end - begin)


@contextlib.contextmanager
def timed(
    trace: Optional[Trace], direction: str, step: int, op: str, flops: int = 0,
    shape: Optional[dict[str, Any]] = None,
) -> Iterator[Span]:
    """A span of a trace that may be wanted or not."""
    span = Span(direction, step, op, flops=flops, shape=shape or {})
    if trace is None:
        yield span
        return
    with trace.span(span):
        yield span
