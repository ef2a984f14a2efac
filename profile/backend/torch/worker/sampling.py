"""How a prepared call is timed: rotating inputs, cold caches, queued launches, and the thread's waiting
share."""

from __future__ import annotations

import os
import time
from typing import Callable

import torch

from device import Device
from inputs import Inputs
from pool import Pool
from work import Op

# Sets of inputs that are rotated at most: more memory buys nothing once they exceed four times the cache.
_SETS = 16
# Samples between two synchronisations: clocks and power are read there, never inside a sample.
_BATCH = 32
# Cycles a spin kernel runs a nanosecond: no accelerator so far is clocked above 3 GHz (a GeForce 2.9), and a
# longer spin only waits.
_CYCLES_PER_NS = 3.0
# What the host needs beside the calls between a spin and a sample's end: two events are made and recorded.
_EVENTS_NS = 50_000
_MAX_SPIN_NS = 20_000_000

Progress = Callable[[int], None]


class Prepared:
    """An op bound to enough inputs that a call does not find its own last ones in the cache. pool: of the
    device, for ops that can be timed on windows of it."""

    def __init__(self, op: Op, shape: dict, seed: int, pool: Pool | None = None):
        self.kind, self._device, self._next = op.kind, op.device, 0
        if pool is not None and op.windowed:
            self._calls, self.set_bytes = pool.rotation(op, shape, seed)
            self.work_bytes = len(self._calls) * self.set_bytes
        else:
            self._bind(op, shape, Inputs(op.device, seed))
        self._flush: torch.Tensor | None = None
        self.launch_ns = 0
        if op.device.kind == "cuda":
            # Before the first call: later it might take cached memory that the calls come back to.
            if self.set_bytes < 2 * op.device.l2_bytes:
                self._chill()
            self._settle()

    def _bind(self, op: Op, shape: dict, inputs: Inputs) -> None:
        """Sets of tensors of their own."""
        self._calls = [op.bind(shape, inputs).call]
        self.set_bytes = inputs.bytes
        sets = min(_SETS, max(1, -(-4 * op.device.l2_bytes // max(1, inputs.bytes))))
        self._calls += [op.bind(shape, inputs).call for _ in range(sets - 1)]
        self.work_bytes = inputs.bytes

    def _settle(self) -> None:
        """First calls load and tune kernels, and take the memory that each set of inputs keeps results in;
        the ones after tell how long the host takes to queue a call."""
        for _ in range(max(3, len(self._calls))):
            self.call()
        self._device.sync()
        took = []
        for _ in range(3):
            start = time.perf_counter_ns()
            self.call()
            took.append(time.perf_counter_ns() - start)
            self._device.sync()
        self.launch_ns = min(took)

    def call(self) -> None:
        """One call on the next set of inputs."""
        self._calls[self._next]()
        self._next = (self._next + 1) % len(self._calls)

    def sample(self, inner: int, n: int, progress: Progress) -> list[int]:
        """n samples of `inner` calls back to back, each in nanoseconds."""
        samples = self._clock if self._device.kind == "cpu" else self._events
        return samples(inner, n, progress)

    def _clock(self, inner: int, n: int, progress: Progress) -> list[int]:
        times = []
        for i in range(n):
            start = time.perf_counter_ns()
            for _ in range(inner):
                self.call()
            times.append(time.perf_counter_ns() - start)
            progress(i + 1)
        return times

    def _events(self, inner: int, n: int, progress: Progress) -> list[int]:
        times: list[int] = []
        while len(times) < n:
            batch = [self._queue(inner) for _ in range(min(_BATCH, n - len(times)))]
            self._device.sync()
            times += [round(a.elapsed_time(b) * 1e6) for a, b in batch]
            progress(len(times))
        return times

    def _queue(self, inner: int) -> tuple:
        """Queues one sample: [cold cache], spin, event, calls, event. The spin outlasts the queueing, so that
        the calls run back to back and a small op's time is not the host's."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if inner == 1 and self.set_bytes < 2 * self._device.l2_bytes:
            self._chill()
        spin(2 * self.launch_ns * inner + _EVENTS_NS)
        start.record()
        for _ in range(inner):
            self.call()
        end.record()
        return start, end

    def _chill(self) -> None:
        """Replaces what the cache holds."""
        if self._flush is None:
            self._flush = torch.empty(2 * self._device.l2_bytes, dtype=torch.uint8, device=self._device.torch)
        self._flush.zero_()


def spin(ns: int) -> None:
    """Keeps the accelerator's queue from starting for about ns nanoseconds."""
    sleep = getattr(torch.cuda, "_sleep", None)  # not every ROCm build has it
    if sleep is not None:
        sleep(int(min(ns, _MAX_SPIN_NS) * _CYCLES_PER_NS))


class WaitMeter:
    """The share of time that this process's threads were ready to run and did not get a processor."""

    def __init__(self, device: Device):
        self._threads = device.sms
        self._wall, self._delay = time.perf_counter_ns(), _run_delay_ns()

    def share(self) -> float:
        """Waiting since construction over wall time times threads, 0 to 1; 0 where the kernel does not count
        it."""
        wall = max(1, time.perf_counter_ns() - self._wall)
        return min(1.0, max(0.0, (_run_delay_ns() - self._delay) / (wall * self._threads)))


# The open schedstat of each thread: opening them anew would double the time of a small request.
_counters: dict[str, int] = {}


def _run_delay_ns() -> int:
    """Nanoseconds that all threads of this process have waited for a processor so far."""
    threads = os.listdir("/proc/self/task")
    for gone in _counters.keys() - set(threads):
        os.close(_counters.pop(gone))
    total = 0
    for thread in threads:
        try:
            if thread not in _counters:
                _counters[thread] = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)
            total += int(os.pread(_counters[thread], 128, 0).split()[1])
        except (OSError, IndexError):
            continue  # the thread has just ended, or the kernel keeps no such count
    return total
