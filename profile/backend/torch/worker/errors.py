"""Failures that a worker reports to its agent, and how an exception becomes one."""

from __future__ import annotations

import re

# Exit statuses that tell the agent why a worker left by itself.
EXIT_NO_TORCH = 3
EXIT_PROTOCOL = 64
EXIT_CUDA_FATAL = 70
EXIT_COLLECTIVE = 71

_OOM = re.compile(r"out of memory|can't allocate memory|not enough memory|ALLOC_FAILED", re.IGNORECASE)
_UNSUPPORTED = re.compile(
    r"not implemented for|not[ _](currently )?supported|unsupported|only supports?|no available kernel"
    r"|no (valid )?execution plans|cudnn[_ ]frontend|no kernel image|must be (a multiple of|divisible by) \d",
    re.IGNORECASE,
)
# After any of these the context of the process is poisoned: every later call fails too.
_FATAL = re.compile(
    r"illegal (memory access|instruction)|device-side assert|CUBLAS_STATUS|CUDNN_STATUS_(EXECUTION|INTERNAL)"
    r"|misaligned address|unspecified launch failure|CUDA error|HIP error",
    re.IGNORECASE,
)


class Failure(Exception):
    """A request that cannot be answered with a result.

    cls is one of oom, unsupported, wrong, cuda_fatal, throttled, budget and internal; fatal means that the
    worker leaves after reporting it.
    """

    def __init__(self, cls: str, msg: str, fatal: bool = False):
        super().__init__(msg)
        self.cls, self.msg, self.fatal = cls, msg, fatal


def classify(exc: BaseException) -> Failure:
    """The failure an exception stands for, by its type where that tells, else by its text.

    Only the text of a RuntimeError counts, which is what torch raises: Python's own "unsupported operand" is
    a bug.
    """
    if isinstance(exc, Failure):
        return exc
    name, text, first = type(exc).__name__, str(exc), first_line(exc)
    torchs = text if isinstance(exc, RuntimeError) else ""
    if isinstance(exc, MemoryError) or "OutOfMemory" in name or _OOM.search(torchs):
        return Failure("oom", first)
    # Packages in Python refuse what they have no kernel for by assertions (flash_attn/cute/interface.py).
    if isinstance(exc, (NotImplementedError, AssertionError)) or _UNSUPPORTED.search(torchs):
        return Failure("unsupported", first)
    if "AcceleratorError" in name or _FATAL.search(torchs):
        return Failure("cuda_fatal", first, fatal=True)
    return Failure("internal", f"{name}: {first}")


def first_line(exc: BaseException) -> str:
    """The first line of an exception's text, its type where it has none."""
    text = str(exc).strip()
    return text.splitlines()[0] if text else type(exc).__name__


def exit_status(failure: Failure) -> int:
    """The status with which a worker leaves after a fatal failure."""
    return EXIT_CUDA_FATAL if failure.cls == "cuda_fatal" else EXIT_COLLECTIVE


def axis(shape: dict, name: str, least: int = 1) -> int:
    """A whole-number axis of a shape; Failure names it when it is missing, no whole number or below
    `least`."""
    value = shape.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Failure("internal", f"shape.{name}: {value!r}: want a whole number of at least {least}")
    return value


def word(shape: dict, name: str, *choices: str) -> str:
    """An axis of a shape that is one of a few words."""
    value = shape.get(name)
    if value not in choices:
        raise Failure("internal", f"shape.{name}: {value!r}: want one of {', '.join(choices)}")
    return value
