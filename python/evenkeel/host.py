"""What a rank may use of its host: cores, threads, and how freed memory is kept."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Optional, Sequence

import torch

# Parameters of glibc's mallopt (malloc.h).
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8


def use(threads: int, cores: Optional[Sequence[int]]) -> None:
    """Takes so many threads, on these cores or wherever the system puts them."""
    if cores:
        for task in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(task), set(cores))
    if threads > 0:
        torch.set_num_threads(threads)
        _spread(threads)


def keep_freed_memory() -> bool:
    """Lets the process keep memory that tensors free, as a GPU's caching allocator does.

    Otherwise every large tensor of every step is mapped, filled with zeros by the kernel page by page and
    unmapped again, which the ops that a cost model is measured from, with their results in place, never are.
    One arena for all threads: the others hand large pieces back whatever is set. False where the C library
    has no such settings.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1))
    return all([mallopt(name, value) for name, value in settings])


def _spread(threads: int) -> None:
    """One core for the main thread and one for each thread of a pool, where the process has its cores to
    itself: threads that sleep between calls are otherwise woken on the core of their waker, and two share one
    while another is idle. The worker that measures does the same."""
    cores = sorted(os.sched_getaffinity(0))
    if threads < 2 or threads != len(cores):
        return
    a = torch.ones(512, 512)
    torch.mm(a, a).exp_()  # starts the pools
    python = {t.native_id for t in threading.enumerate()}
    pool = sorted(int(t) for t in os.listdir("/proc/self/task") if int(t) not in python)
    for i, thread in enumerate(pool):
        os.sched_setaffinity(thread, {cores[1 + i % (threads - 1)]})
    os.sched_setaffinity(threading.main_thread().native_id or 0, {cores[0]})
