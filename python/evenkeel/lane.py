"""Running the messages of a ring beside the blocks that are computed.

What a rank sends in a ring is a program of its own: it waits for blocks to arrive, for buffers to be free and
for gradients to be computed, in an order that does not depend on times. The lane runs it so that it never
waits for the computing without need: in a thread of its own, or with NCCL, whose calls return at once, on a
stream of its own. Both sides meet at marks.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable, Iterator, Optional

import torch

from .confine import side_stream


class LaneError(RuntimeError):
    """The messages of a ring failed, or were given up because the computing did."""


class Mark:
    """A point that one side reaches and the other waits for; on a GPU the streams wait, not the host."""

    def __init__(self, lane: "Lane") -> None:
        self._lane, self._flag, self._event = lane, threading.Event(), None

    def set(self) -> None:
        """This side has come here."""
        if self._lane.cuda:
            event: Any = torch.cuda.Event()
            event.record()
            self._event = event
        self._flag.set()

    def wait(self) -> None:
        """Returns when the other side has come here; raises LaneError if it never will."""
        if self._lane.inline and not self._flag.is_set():
            self._lane.check()
            raise AssertionError("a mark is waited for before it is set: the program is out of order")
        self._flag.wait()
        self._lane.check()
        if self._event is not None:
            self._event.wait()

    def release(self) -> None:
        """Lets everyone who waits go on, to find out why."""
        self._flag.set()


class Lane:
    """Runs a program, which yields where the computing of the next step may be queued. Use as a context: an
    error inside gives the program up."""

    def __init__(self, device: torch.device, inline: bool) -> None:
        self.cuda, self.inline = device.type == "cuda", inline
        self._device = device
        self._marks: list[Mark] = []
        self._error: Optional[BaseException] = None
        self._thread: Optional[threading.Thread] = None
        self._program: Iterator[None] = iter(())
        self._stream: Any = None

    def marks(self, n: int) -> list[Mark]:
        """n new marks."""
        made = [Mark(self) for _ in range(n)]
        self._marks += made
        return made

    def ahead(self, call: Callable[[], None]) -> None:
        """Makes a call of the program before it starts, in this thread: it must wait for nothing. What the
        current stream holds by now comes before it."""
        self._follow()
        with self._place(), torch.no_grad():
            call()

    def start(self, program: Iterator[None]) -> None:
        """Begins to run the program; what the current stream holds by now comes before it."""
        self._program = program
        self._follow()
        if not self.inline:
            self._thread = threading.Thread(target=self._run, name="evenkeel-ring", daemon=True)
            self._thread.start()

    def advance(self) -> None:
        """Lets the program come to its next yield."""
        if self.inline:
            with self._place(), torch.no_grad():
                next(self._program, None)

    def finish(self) -> None:
        """Returns when the program is over; the current stream then comes after it."""
        if self.inline:
            with self._place(), torch.no_grad():
                for _ in self._program:
                    pass
        if self._thread is not None:
            self._thread.join()
        self.check()
        if self.cuda:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def check(self) -> None:
        """Raises LaneError if the program has failed."""
        if self._error is not None:
            raise LaneError(f"the ring stopped: {self._error}") from self._error

    def __enter__(self) -> "Lane":
        return self

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        if error is not None:
            self._stop(error)

    def _follow(self) -> None:
        if self.cuda:
            if self._stream is None:
                self._stream = side_stream(self._device)
            self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def _run(self) -> None:
        try:
            with self._place(), torch.no_grad():
                for _ in self._program:
                    pass
        except BaseException as error:  # whatever it is, the computing side must hear of it
            self._stop(error)

    def _stop(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        for mark in self._marks:
            mark.release()

    def _place(self) -> Any:
        return torch.cuda.stream(self._stream) if self.cuda else contextlib.nullcontext()
