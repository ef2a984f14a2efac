"""The slow-down of attention and a message that run at once on ranks whose processors do both.

A rank on a processor has no engine that copies beside its cores: gloo's thread moves bytes through sockets on
the cores that compute. So every rank of a group computes and sends at once, as ring attention does.
"""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any, Callable

import torch
import torch.distributed as dist

from comm import Comm
from device import Device
from errors import Failure, axis, word
from overlap import compute_shape
from sampling import Prepared
from work import Op

_REPEATS = 5
# Messages in flight last this much longer than the attention beside them, which they slow and are slowed by.
_MARGIN = 3.0
_MAX_MESSAGES = 1000
# A timed message is repeated up to this length, so that waking a thread does not count.
_LONG_NS = 20_000_000
# The end of the messages was still to come after the attention if waiting for it took this share of one.
_LEFT = 0.1


class Beside:
    """Gauges T(a while b runs) / T(a alone) on one rank of a group; all ranks gauge together.

    shape: of op overlap with comm send_recv; group: a group of the world that was joined last. Failure
    (unsupported) for a pair that nobody needs measured so.
    """

    def __init__(self, device: Device, ops: dict[str, Op], comm: Comm, shape: dict, seed: int, group: str):
        compute = word(shape, "compute", "attn_fwd", "attn_bwd", "gemm")
        self._side = word(shape, "slowed", "compute", "comm")
        tokens, size = axis(shape, "tokens"), axis(shape, "bytes")
        if device.kind != "cpu":
            raise Failure("unsupported", "overlap with send_recv: measured between ranks on processors only")
        self._comm, (self._group, self._start) = comm, comm.shift(size, seed, group)
        dtype = "f32" if "f32" in device.dtypes() else device.dtypes()[0]
        self._compute = Prepared(ops[compute], compute_shape(compute, tokens, dtype), seed + 1)

    def measure(self) -> float:
        """The ratio of medians on this rank; Failure(internal) if the longer side never outlasted the other."""
        gauge = self._slowed_compute if self._side == "compute" else self._slowed_message
        return self._comm.guarded("overlap", gauge)

    def _slowed_compute(self) -> float:
        alone = self._median(self._compute.call)
        message = self._median(lambda: wait(self._start()))
        loops = min(_MAX_MESSAGES, self._most(1 + round(_MARGIN * alone / max(1.0, message))))
        while True:
            times = self._outlasted(loops, message)
            # What else the machine does may slow the attention more than the messages: then more are sent, by
            # all ranks, also by those whose attention was outlasted.
            more = self._most(loops if times else min(_MAX_MESSAGES, 2 * loops))
            if more == loops:
                break
            loops = more
        if not times:
            raise Failure("internal", f"overlap: {loops} messages beside {alone:.0f} ns of compute ended first")
        return statistics.median(times) / alone

    def _outlasted(self, loops: int, message: float) -> list[int]:
        """Nanoseconds of the compute side in those of the repeats whose messages, of so long each, ended last."""
        times = []
        for _ in range(_REPEATS):
            self._meet()
            works = [work for _ in range(loops) for work in self._start()]
            took = timed(self._compute.call)
            if timed(lambda: wait(works)) > _LEFT * message:
                times.append(took)
        return times

    def _slowed_message(self) -> float:
        self._compute.call()
        once = self._median(lambda: wait(self._start()))
        loops = min(_MAX_MESSAGES, self._most(-(-_LONG_NS // max(1, int(once)))))
        alone = self._median(lambda: wait([work for _ in range(loops) for work in self._start()]))
        times = []
        for _ in range(_REPEATS):
            self._meet()
            begin = time.perf_counter_ns()
            works = [work for _ in range(loops) for work in self._start()]
            ended = Watch(works)
            while ended.at is None:
                self._compute.call()
            times.append(ended.result() - begin)
        return statistics.median(times) / alone

    def _median(self, call: Callable[[], Any]) -> float:
        """Median nanoseconds of a call that all ranks make at once, after one that warms."""
        call()
        times = []
        for _ in range(_REPEATS):
            self._meet()
            times.append(timed(call))
        return statistics.median(times)

    def _meet(self) -> None:
        dist.barrier(group=self._group.handle)

    def _most(self, n: int) -> int:
        """The largest of the ranks' numbers: as many messages are sent as are received."""
        number = torch.tensor([n])
        dist.all_reduce(number, op=dist.ReduceOp.MAX, group=self._group.handle)
        return int(number)


class Watch:
    """Waits for messages in a thread of its own. at: when they had arrived, None until then."""

    def __init__(self, works: list[Any]):
        self.at: int | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(works,), daemon=True)
        self._thread.start()

    def _run(self, works: list[Any]) -> None:
        try:
            wait(works)
        except RuntimeError as error:
            self._error = error
        self.at = time.perf_counter_ns()

    def result(self) -> int:
        """When the messages had arrived; raises what waiting for them raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self.at or 0


def wait(works: list[Any]) -> None:
    """Waits for messages."""
    for work in works:
        work.wait()


def timed(call: Callable[[], Any]) -> int:
    """Nanoseconds of a call."""
    begin = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - begin
