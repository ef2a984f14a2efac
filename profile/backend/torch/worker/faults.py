"""Faults on demand, so that an agent's handling of every kind of failure can be tested.

The environment variable EVENKEEL_FAULT holds a comma-separated list; without it nothing here does anything.

    hang:OP             when OP is run, it never returns; heartbeats go on
    stop:OP             SIGSTOP, so that heartbeats stop too
    segv:OP, exit:OP    a segmentation fault, exit status 9
    oom:OP              an out-of-memory failure
    print:OP            prints to stdout, which must not corrupt the frames
    torn:OP             half a frame, then exit status 9
    nan:OP              the outputs of OP are poisoned, so its verification fails
    slow-start:SECONDS  hello is answered that much later

A fault with "@N" strikes the Nth time only. "once-file=PATH" lets one fault strike once over all restarts:
whoever creates PATH strikes.
"""

from __future__ import annotations

import os
import signal
import time

from errors import Failure

_seen: dict[str, int] = {}


def _due(kind: str, arg: str | None) -> str | None:
    """The argument of a listed fault of this kind that strikes now, or None; arg None matches any."""
    spec = os.environ.get("EVENKEEL_FAULT", "")
    if not spec:
        return None
    entries = spec.split(",")
    once = next((e.split("=", 1)[1] for e in entries if e.startswith("once-file=")), None)
    for entry in entries:
        name, _, rest = entry.partition(":")
        target, _, nth = rest.partition("@")
        if name != kind or (arg is not None and target != arg):
            continue
        _seen[entry] = _seen.get(entry, 0) + 1
        if (not nth or _seen[entry] == int(nth)) and (once is None or _first(once)):
            return target
    return None


def _first(path: str) -> bool:
    """Whether this call created the file at path."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return True
    except FileExistsError:
        return False


def at_start() -> None:
    """slow-start, before hello is answered."""
    seconds = _due("slow-start", None)
    if seconds:
        time.sleep(float(seconds))


def at_run(op: str) -> None:
    """Everything that strikes while op is being run."""
    if "EVENKEEL_FAULT" not in os.environ:
        return
    if _due("print", op):
        print('a stray line {"t":"result"}', flush=True)
    if _due("oom", op):
        raise Failure("oom", "out of memory: injected fault")
    if _due("stop", op):
        os.kill(os.getpid(), signal.SIGSTOP)
    if _due("segv", op):
        os.kill(os.getpid(), signal.SIGSEGV)
    if _due("exit", op):
        os._exit(9)
    if _due("torn", op):
        os.write(3, b'{"t":"result","id":')
        os._exit(9)
    if _due("hang", op):
        while True:
            time.sleep(3600)


def poisoned(op: str) -> bool:
    """Whether the outputs of op are to be made wrong before they are compared."""
    return _due("nan", op) is not None
