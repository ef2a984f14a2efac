"""Running the messages of a ring beside the blocks that are computed.

What a rank sends in a ring is a program of its own: it waits for blocks to arrive, for buffers to be free and
for gradients to be computed, in an order that does not depend on times. The lane runs it so that it never
waits for the computing without need: in a thread of its own, or with NCCL, whose calls return at once, on a
stream of its own. Both sides meet at marks. Rings that take turns step by step are in one lane, where their
programs take turns too, so that the messages of all of them have one order.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable, Iterator, Optional, Sequence

import torch

from .confine import side_stream

OVER = object()  # what next() is to say of an iterator that has ended


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
        if self._lane.inline and not self.reached:
            self._lane.check()
            raise AssertionError("a mark is waited for before it is set: the program is out of order")
        self._flag.wait()
        self._lane.check()
        if self._event is not None:
            self._event.wait()

    @property
    def reached(self) -> bool:
        """Whether it is set."""
        return self._flag.is_set()

    def release(self) -> None:
        """Lets everyone who waits go on, to find out why."""
        self._flag.set()


def in_turns(all_of: Sequence[Iterator[None]]) -> Iterator[None]:
    """One iterator of several: a turn of each, one after the other, as long as any goes on."""
    left = list(all_of)
    while left:
        for one in tuple(left):
            if next(one, OVER) is OVER:
                left.remove(one)
            yield


class Lane:
    """Runs the programs of rings, which yield where the computing of the next step may be queued: a turn of each
    after the other. Use as a context: an error inside gives them up."""

    def __init__(self, device: torch.device, inline: bool) -> None:
        self.cuda, self.inline = device.type == "cuda", inline
        self._device = device
        self._marks: list[Mark] = []
        self._error: Optional[BaseException] = None
        self._thread: Optional[threading.Thread] = None
        self._programs: list[Iterator[None]] = []
        self._places: list[object] = []
        self._rings = 0  # not finished yet
        self._all: Optional[Iterator[None]] = None
        self._stream: Any = None

    def marks(self, n: int) -> list[Mark]:
        """n new marks."""
        made = [Mark(self) for _ in range(n)]
        self._marks += made
        return made

    def add(self, program: Iterator[None], places: object) -> None:
        """Takes the program of one more ring, before any starts. places: what messages leave from and come to;
        it is kept until all rings are over."""
        self._programs.append(program)
        self._places.append(places)
        self._rings += 1

    def ahead(self, call: Callable[[], None]) -> None:
        """Makes a call of a program before any starts, in this thread: it must wait for nothing. What the
        current stream holds by now comes before it."""
        self._follow()
        with self._place(), torch.no_grad():
            call()

    def start(self) -> None:
        """Begins to run the programs, unless they run; what the current stream holds by now comes before them."""
        if self._all is not None:
            return
        self._all, self._programs = in_turns(self._programs), []
        self._follow()
        if not self.inline:
            self._thread = threading.Thread(target=self._run, name="evenkeel-ring", daemon=True)
            self._thread.start()

    def advance(self) -> None:
        """Lets the next program come to its next yield."""
        if self.inline:
            assert self._all is not None
            with self._place(), torch.no_grad():
                next(self._all, None)

    def finish(self, over: Mark) -> None:
        """A ring is computed. Returns when its program has set `over` or, if it is the last one, when all programs
        have ended; the current stream then comes after that."""
        self._rings -= 1
        if self.inline:
            self._go_on(lambda: self._rings > 0 and over.reached)
        if self._rings:
            over.wait()
            return
        if self._thread is not None:
            self._thread.join()
        self.check()
        if self.cuda:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._places = []

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

    def _go_on(self, enough: Callable[[], bool]) -> None:
        """Runs the programs from yield to yield, until that is so or all are over."""
        assert self._all is not None
        with self._place(), torch.no_grad():
            while not enough() and next(self._all, OVER) is not OVER:
                pass

    def _run(self) -> None:
        try:
            self._go_on(lambda: False)
        except BaseException as error:  # whatever it is, the computing side must hear of it
            self._stop(error)

    def _stop(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        for mark in self._marks:
            mark.release()

    def _place(self) -> Any:
        return torch.cuda.stream(self._stream) if self.cuda else contextlib.nullcontext()
