"""A message bus between the agents of one job, through torch's store, so that no agent opens a port itself.

One task hosts the store (or the launcher does). A message from task a to task b is the value of the key
evenkeel/<job>/<a>/<b>/<n>, n counting from 0, and is deleted by b once it is read. Task 0 listens to all
others and the others to task 0. Values are whole frames, so that a message is encoded and measured once, by
its sender.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import threading
import time
from datetime import timedelta
from functools import partial
from typing import Any, Callable

import wire
from errors import Failure

EXIT_STORE_LOST = 72
# How long the store of task 0 is waited for: schedulers start the nodes of a job minutes apart.
JOIN_S = 300
# A `get` that times out leaves its late answer in the socket for the next request to read, so none ever does.
NEVER = timedelta(days=365)
# How long a store outlives its agent for messages that others have not read yet.
DRAIN_S = 2.0
BEAT_S = 1.0
LOOPBACK = "127.0.0.1"
POLL_S = 0.005

_OUT = 3
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_lock = threading.Lock()


def run(args: list[str]) -> None:
    """Serves as the relay of one agent until the end of stdin; does not return.

    args: nothing yet. Leaves with 0, or with 72 after an error frame when the store is out of reach or lost.
    """
    if args:
        _fail(0, f"relay takes no arguments, got {' '.join(args)}")
    requests = wire.requests()
    first = next(requests, None)
    if first is None:
        os._exit(0)
    _supervise(f"{first.get('host')}:{first.get('port')}")
    try:
        relay = _join(first)
        for request in requests:
            relay.handle(request)
    except Failure as failure:
        _fail(0, failure.msg)
    relay.drain()
    os._exit(0)


def _supervise(address: str) -> None:
    """Returns in a child, which does the work, and reports here if that is killed by a signal.

    In torch 1.13 each client of a store has a C++ thread of its own, which may end the process with SIGABRT
    when the store dies. Only another process can then still say what happened.
    """
    parent = os.getpid()
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code < 0:
            _fail(0, f"the store of task 0 at {address} is gone: its client ended with signal {-code}")
        os._exit(code)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that took effect
        os._exit(0)


def _emit(frame: bytes) -> None:
    """Writes one whole frame; readers and the main thread share the descriptor."""
    with _lock:
        while frame:
            frame = frame[os.write(_OUT, frame):]


def _encode(frame: dict[str, Any]) -> bytes:
    # Text stays as it is: escaped to ASCII it could grow threefold, past the limit of a frame.
    return json.dumps(frame, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _fail(request_id: int, msg: str, status: int = EXIT_STORE_LOST) -> None:
    _emit(_encode({"t": "error", "id": request_id, "class": "internal", "msg": msg, "fatal": True}))
    os._exit(status)


def _join(request: Any) -> "Relay":
    """Opens or finds the store and answers the request; beats meanwhile, as a store may be minutes late."""
    number = request.get("id", 0)
    try:
        if request.get("t") != "relay":
            raise Failure("internal", f"the first request is {request.get('t')!r}: want relay")
        stop = threading.Event()
        threading.Thread(target=_beat, args=(number, stop), daemon=True).start()
        relay = Relay(request)
        stop.set()
    except Failure as failure:
        _fail(number, failure.msg)
    _emit(_encode({"t": "result", "id": number, "port": relay.port}))
    relay.listen()
    return relay


def _beat(number: int, stop: threading.Event) -> None:
    while not stop.wait(BEAT_S):
        _emit(_encode({"t": "beat", "id": number, "phase": "join", "n": 0}))


class Relay:
    """One task's end of the bus. port: where the store is."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.task, self.tasks = _count(request, "task", 0), _count(request, "tasks", 1)
        if self.task >= self.tasks:
            raise Failure("internal", f"relay: task {self.task}: want 0 to {self.tasks - 1}")
        self.host, self.port = str(request.get("host", "")), _count(request, "port", 0)
        # Not at the top: the process that supervises this one has no use for torch.
        from torch.distributed import TCPStore

        self._new_store = TCPStore
        self._prefix = f"evenkeel/{request.get('job') or 'job'}"
        self._sent: dict[int, int] = {}
        self._serving = bool(request.get("serve"))
        self._store = self._serve() if self._serving else self._connect()
        # All before the first answer, so that a store that is gone later was there for everybody.
        self._readers = {peer: self._connect() for peer in self.peers}

    @property
    def peers(self) -> list[int]:
        """The tasks that this one exchanges messages with."""
        return list(range(1, self.tasks)) if self.task == 0 else [0]

    def _serve(self) -> Any:
        """Opens the store. Its own client goes over loopback: a node need not know its own name."""
        try:
            store = self._new_store(
                LOOPBACK, self.port, is_master=True, wait_for_workers=False, timeout=NEVER
            )
        except (RuntimeError, ValueError) as error:
            said = f"task {self.task} cannot open a store on port {self.port}: {_first(error)}"
            raise Failure("internal", said + ": set MASTER_PORT to a free port") from error
        self.host, self.port = LOOPBACK, store.port
        return store

    def _connect(self) -> Any:
        """A client of the store; each thread has its own, since a client is one socket for one request."""
        try:
            limit = timedelta(seconds=JOIN_S)
            store = self._new_store(
                self.host, self.port, is_master=False, wait_for_workers=False, timeout=limit
            )
        except (RuntimeError, ValueError) as error:
            raise Failure("internal", f"no store of task 0 at {self.host}:{self.port} within {JOIN_S} s: "
                                      f"{_first(error)}") from error
        store.set_timeout(NEVER)
        return store

    def listen(self) -> None:
        """Starts one reader a peer; after the answer to the first request, which must be the first frame."""
        for peer, store in self._readers.items():
            read = partial(self._read, peer, store)
            threading.Thread(target=self._guard, args=(read,), daemon=True).start()

    def _read(self, peer: int, store: Any) -> None:
        n = 0
        while True:
            key = self._key(peer, self.task, n)
            frame = store.get(key)
            _emit(frame)
            store.delete_key(key)
            store.add(self._key(peer, self.task, "read"), 1)
            n += 1

    def handle(self, request: dict[str, Any]) -> None:
        """Sends one message of the agent on; nothing is answered."""
        kind = request.get("t")
        if kind == "bye":
            self.drain()
            os._exit(0)
        if kind != "to":
            raise Failure("internal", f"unknown request {kind!r}: a relay takes to and bye")
        to = _count(request, "task", 0)
        if to not in self.peers:
            said = f"to: task {to}: task {self.task} of {self.tasks} reaches only {self.peers}"
            raise Failure("internal", said)
        frame = _encode({"t": "from", "task": self.task, "body": str(request.get("body", ""))})
        if len(frame) > wire.MAX_FRAME:
            said = f"a message of {len(frame)} bytes exceeds the {wire.MAX_FRAME} of a frame"
            raise Failure("internal", said)
        self._guard(lambda: self._send(to, frame))

    def _send(self, to: int, frame: bytes) -> None:
        n = self._sent.get(to, 0)
        self._store.set(self._key(self.task, to, n), frame.decode())
        self._sent[to] = n + 1

    def drain(self) -> None:
        """Waits until the peers have read what was sent, if the store dies with this process."""
        deadline = time.monotonic() + DRAIN_S
        while self._serving and time.monotonic() < deadline and not self._guard(self._all_read):
            time.sleep(POLL_S)

    def _all_read(self) -> bool:
        return all(self._store.add(self._key(self.task, to, "read"), 0) >= n for to, n in self._sent.items())

    def _key(self, sender: int, receiver: int, n: Any) -> str:
        return f"{self._prefix}/{sender}/{receiver}/{n}"

    def _guard(self, work: Callable[[], Any]) -> Any:
        """Runs store calls; their failure means that the store is lost, and with it the bus."""
        try:
            return work()
        except (RuntimeError, ValueError, OSError) as error:
            _fail(0, f"the store of task 0 at {self.host}:{self.port} is gone: {_first(error)}")


def _first(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _count(request: dict[str, Any], name: str, least: int) -> int:
    value = request.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        said = f"{request.get('t')}.{name}: {value!r}: want a whole number of at least {least}"
        raise Failure("internal", said)
    return value
