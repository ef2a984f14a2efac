"""A client of `evenkeel serve`: plans for the batches of coming steps, fetched one step ahead of training.

    with Client("evenkeel.sock", job="mine") as plans:
        plans.submit({0: lengths_of_step_0, 1: lengths_of_step_1})
        plan = plans.fetch(0)

The standard library is all it needs: neither torch nor anything else is imported, so that data loaders and
launchers can use it. One Client is for one thread. A copy of it in a process that was forked, or to which it
was pickled, makes a connection of its own.
"""

from __future__ import annotations

import http.client
import json
import math
import operator
import os
import socket
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence, Type, Union
from urllib.parse import quote, urlsplit


_RESTARTING = ("draining", "unreachable")  # codes of a server that ends and starts again
_LARGE = 64 << 10  # bytes; less has left the client before a server can refuse it


class ServeError(RuntimeError):
    """What the server, or the way to it, refused. code is for programs: those of the server's openapi.yaml,
    "failed" for a batch that has no plan, "unreachable" where there is no server, and "bad_answer" where
    something else answers; field is what of the request is wrong; status the HTTP one, or 0."""

    def __init__(self, code: str, message: str, field: str = "", status: int = 0) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.code, self.message, self.field, self.status = code, message, field, status

    def __reduce__(self) -> tuple[Any, ...]:
        """So that it travels from a data loader's worker as it is."""
        return type(self), (self.code, self.message, self.field, self.status)


@dataclass(frozen=True)
class Group:
    """Ranks that train sequences together: sequences are places in the batch's lengths."""

    ranks: tuple[int, ...]
    sequences: tuple[int, ...]
    tokens: int
    time_s: float  # predicted
    kind: int  # place in the classes of setup()


@dataclass(frozen=True)
class Interval:
    """What a predicted time is with 90 % certainty, and what it rests on: "measured" to "assumed"."""

    lo_s: float
    hi_s: float
    source: str


@dataclass(frozen=True)
class BatchPlan:
    """The micro-batches of a step, one after the other, each of groups that run side by side; or, of a server
    that plans on the stages of a pipeline, none and the document that load_pipeline takes.

    gap is how much the predicted step may be longer than the best possible one, relative. stopped: the
    deadline came before planning was done, and this is the best until then. interval is that of step_s, None
    where the server's prices state no error and where the deadline came first.
    """

    step: int
    micro_batches: tuple[tuple[Group, ...], ...]
    step_s: float
    lower_bound_s: float
    gap: float
    planning_s: float
    cached: bool
    stopped: bool
    interval: Optional[Interval] = None
    pipeline: Optional[Mapping[str, Any]] = None

    def of_rank(self, rank: int) -> tuple[Optional[Group], ...]:
        """The group of a rank in each micro-batch, None where it has no work. ValueError for a pipeline's plan."""
        if self.pipeline is not None:
            raise ValueError("plan: of a pipeline, which has no groups: PipelineStage.take(load_pipeline(plan.pipeline, "
                             "...)) runs it")
        return tuple(next((g for g in groups if rank in g.ranks), None) for groups in self.micro_batches)


class Client:
    """A connection to a server at a Unix socket's path or, where one was asked for, at http://host:port.

    timeout_s is for the connection and each answer beyond what a request waits for. A connection that broke,
    as when it was idle for long, is made anew once; submitting twice changes nothing. Errors are ServeError.
    """

    def __init__(
        self, address: Union[str, "os.PathLike[str]"], *, job: str = "default", token: str = "",
        timeout_s: float = 10.0,
    ) -> None:
        self._address, self._token, self._timeout = os.fspath(address), token, timeout_s
        if "://" in self._address and not self._address.startswith("http://"):
            raise ValueError(f"address: {self._address!r}: want a socket's path or http://host:port")
        if not job:
            raise ValueError("job: empty: want a name for the batches of this training job")
        # Dots too: a path's parts "." and ".." are not taken for names.
        self._job = quote(job, safe="").replace(".", "%2E")
        self._connection: Optional[http.client.HTTPConnection] = None
        self._process = 0  # that made the connection

    def __getstate__(self) -> dict[str, Any]:
        """A pickled copy makes a connection of its own."""
        return {**self.__dict__, "_connection": None}

    def submit(
        self, batches: Mapping[int, Sequence[int]], *, deadline_s: float = 0.0, patience_s: float = 0.0
    ) -> None:
        """Asks for plans of batches, by step: lengths in tokens, in the order in which they will be wanted.
        All are accepted or none. deadline_s is for planning each; 0 is the server's own. patience_s is how
        long it is tried again while the queue is full, or a server that was reached before starts again."""
        deadline_s = _seconds("deadline_s", deadline_s)
        body = {"batches": [
            {"step": _step(s), "lengths_tokens": _whole(lengths), "deadline_s": deadline_s}
            for s, lengths in batches.items()
        ]}
        until = time.monotonic() + _seconds("patience_s", patience_s, endless=True)
        while True:
            try:
                self._ask("POST", f"/v1/jobs/{self._job}/batches", body)
                return
            except ServeError as error:
                if not self._may_pass(error, "queue_full") or time.monotonic() >= until:
                    raise
            time.sleep(0.05)

    def fetch(self, step: int, *, wait_s: float = 30.0) -> BatchPlan:
        """The plan of a step, waited for up to wait_s. Raises TimeoutError if it is not made by then, and
        ServeError with code "failed" if there is none to be had. A server that this client reached before
        may end and start again meanwhile: with a journal it has the plan then."""
        until, step = time.monotonic() + _seconds("wait_s", wait_s, endless=True), _step(step)
        while True:
            wait = max(0.0, min(until - time.monotonic(), 25.0))
            path = f"/v1/jobs/{self._job}/plans/{step}?wait_s={wait:.3f}"
            try:
                answer = self._ask("GET", path, extra_s=wait)
            except ServeError as error:
                if not self._may_pass(error) or time.monotonic() >= until:
                    raise
                time.sleep(0.05)
                continue
            if answer["state"] == "done":
                return _plan_of(answer)
            if answer["state"] == "failed":
                raise ServeError("failed", str(answer.get("error", "")), f"step {step}")
            if time.monotonic() >= until:
                raise TimeoutError(f"step {step} is {answer['state']} after {wait_s} s")

    def drop(self, step: int) -> None:
        """Lets the server forget a plan that was fetched; it would forget it sooner or later anyway."""
        self._ask("DELETE", f"/v1/jobs/{self._job}/plans/{_step(step)}")

    def plan(self, lengths: Sequence[int], *, deadline_s: float = 0.0, wait_s: float = 30.0) -> BatchPlan:
        """Plans one batch now and waits for it, up to wait_s or the deadline, whichever is later: as long as
        `serve --max-planning` and the batches before it may take. A ServeError tells that it took longer."""
        body = {"lengths_tokens": _whole(lengths), "deadline_s": _seconds("deadline_s", deadline_s)}
        answer = self._ask("POST", "/v1/plan", body, extra_s=max(deadline_s, _seconds("wait_s", wait_s)))
        if answer["state"] != "done":
            raise ServeError("failed", str(answer.get("error", "")))
        return _plan_of(answer)

    def setup(self) -> dict[str, Any]:
        """The devices, the kinds of groups and the limits that plans are made for."""
        return self._ask("GET", "/v1/setup")

    def ahead(
        self, batches: Iterable[Sequence[int]], *, steps: int = 1, first_step: int = 0
    ) -> Iterator[tuple[Sequence[int], BatchPlan]]:
        """Each batch with its plan, submitted `steps` batches before it is wanted, so that planning runs
        while the step before trains. Every rank of a job may do so with the same batches: the first one's
        submission counts, and all get the same plans. Plans are not dropped: other ranks may want them."""
        waiting: list[tuple[int, Sequence[int]]] = []
        for step, lengths in enumerate(batches, first_step):
            self.submit({step: lengths}, patience_s=30.0)
            waiting.append((step, lengths))
            if len(waiting) > steps:
                wanted, its = waiting.pop(0)
                yield its, self.fetch(wanted)
        for step, lengths in waiting:
            yield lengths, self.fetch(step)

    def close(self) -> None:
        """Ends the connection; the next request makes another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def _may_pass(self, error: ServeError, *codes: str) -> bool:
        """Where no server was ever reached, the address is wrong rather than the moment."""
        return error.code in codes or error.code in _RESTARTING and self._process != 0

    def _ask(self, method: str, path: str, body: Any = None, extra_s: float = 0.0) -> dict[str, Any]:
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        if self._process != os.getpid():
            self.close()  # a forked one: the connection is the parent's
        for again in (False, True):
            fresh = self._connection is None or self._connection.sock is None
            try:
                return self._once(method, path, data, extra_s)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                # A server closes connections that were idle for a while; one just made is no such.
                if again or fresh or isinstance(error, socket.timeout):
                    why = str(error) or type(error).__name__
                    if isinstance(error, socket.timeout):
                        why += f"; no answer within {self._timeout + extra_s:g} s: wait_s or timeout_s may be longer"
                    if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
                        why += "; start one with: evenkeel serve"
                    raise ServeError("unreachable", f"{self._address}: {why}") from error
        raise AssertionError("not reached")

    def _once(self, method: str, path: str, data: Optional[bytes], extra_s: float) -> dict[str, Any]:
        if self._connection is None or self._connection.sock is None:  # the server may ask to close it
            self._connection = self._connect()
            self._connection.connect()
            self._process = os.getpid()
        headers = {"Content-Type": "application/json"} if data else {}
        if self._token:
            headers["Authorization"] = "Bearer " + self._token
        self._connection.sock.settimeout(self._timeout + extra_s)
        try:
            self._connection.request(method, path, data, headers)
        except (BrokenPipeError, ConnectionResetError):
            # A server that takes no more of a large request has answered: say why, not that it broke off.
            if not data or len(data) < _LARGE:
                raise
        response = self._connection.getresponse()
        return self._answer_of(response.status, response.read())

    def _answer_of(self, status: int, text: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(text) if text else {}
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or 300 <= status < 400 or status >= 400 and "code" not in answer:
            self.close()
            raise ServeError("bad_answer", f"{self._address}: HTTP {status}: {text[:200]!r}", status=status)
        if status >= 400:
            field, message = str(answer.get("field", "")), str(answer.get("message", ""))
            raise ServeError(str(answer["code"]), message, field, status)
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        if self._address.startswith("http://"):
            return http.client.HTTPConnection(urlsplit(self._address).netloc, timeout=self._timeout)
        return _UnixConnection(self._address, self._timeout)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """See HTTPConnection."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _whole(lengths: Sequence[int]) -> list[int]:
    """As plain integers, of whatever type they are. What is none is named: int() would cut off its fraction."""
    whole = []
    for k, n in enumerate(lengths):
        try:
            whole.append(operator.index(n))
        except TypeError:
            raise TypeError(f"lengths[{k}]: {n!r}: want a whole number of tokens") from None
    return whole


def _step(step: int) -> int:
    """As a plain integer; int() would make another step's number of a fraction."""
    try:
        return operator.index(step)
    except TypeError:
        raise TypeError(f"step: {step!r}: want a whole number") from None


def _seconds(name: str, value: float, endless: bool = False) -> float:
    """A time: waiting for NaN would never end, and JSON has neither that nor infinity."""
    if math.isnan(value) or not endless and math.isinf(value):
        raise ValueError(f"{name}: {value!r}: want a number of seconds")
    return float(value)


def _plan_of(answer: Mapping[str, Any]) -> BatchPlan:
    pipeline = answer.get("pipeline")
    plan = answer["plan"] if pipeline is None else {"micro_batches": (), "step_s": pipeline["step_s"]}
    return BatchPlan(
        step=int(answer["step"]), pipeline=pipeline,
        micro_batches=tuple(tuple(map(_group_of, m["groups"])) for m in plan["micro_batches"] or ()),
        step_s=float(plan["step_s"]), lower_bound_s=float(answer.get("lower_bound_s", 0.0)),
        gap=float(answer["gap"]), planning_s=float(answer["planning_s"]),
        cached=bool(answer.get("cached", False)), stopped=bool(answer.get("stopped", False)),
        interval=_interval_of(answer.get("interval")),
    )


def _interval_of(e: Optional[Mapping[str, Any]]) -> Optional[Interval]:
    if e is None:
        return None
    return Interval(lo_s=float(e["lo_s"]), hi_s=float(e["hi_s"]), source=str(e["source"]))


def _group_of(g: Mapping[str, Any]) -> Group:
    return Group(
        ranks=tuple(g["ranks"] or ()), sequences=tuple(g["sequences"] or ()), tokens=int(g["length_tokens"]),
        time_s=float(g["time_s"]), kind=int(g["class"]),
    )
