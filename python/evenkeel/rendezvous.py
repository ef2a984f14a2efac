"""How the ranks of a replay find each other, and what they must have in common before they talk.

Libraries of different versions do not refuse each other cleanly: they hang, or compute something else. So
every rank puts a description of itself into a store first, and all of them come to the same verdict.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Callable, Mapping, Optional, Sequence

import torch
import torch.distributed as dist

from .frames import Fault
from .meter import Meter
from .port import Message, Port, warm_up

Info = dict[str, Any]

POLL_S = 0.02  # between questions to the store
MEET_S = 120.0  # beyond the timeout that ranks may come later than each other: importing torch takes its time
PATIENCE = 10  # with rank 0's comparison with one device, in timeouts
_KNOCK_S, _KNOCK_AGAIN_S = 5.0, 0.1  # that an answer at the store's port is waited for, and between tries
_ANOTHER = "MASTER_PORT, or EVENKEEL_MASTER=host:port, of all ranks"
_LEAVE_S = 5.0  # that the keeper of the store stays for the others after a refusal

# What is compared, in words, and the way out.
_ALIKE = (
    ("python", "python", "start all ranks with the same version"),
    ("torch", "torch", "install the same on all"),
    ("evenkeel", "the evenkeel package", "run the same evenkeel on all"),
    ("dtype", "dtype", "give all ranks the same plans"),
    ("plans", "plans", "give all ranks the same plans in the same order"),
    ("options", "options", "give all ranks the same options"),
)


@dataclass(frozen=True)
class World:
    """Who a rank is among the others, as torchrun tells it."""

    rank: int
    size: int
    local_rank: int
    host: str
    port: int

    @staticmethod
    def of(env: Mapping[str, str]) -> "World":
        """From the environment; Fault(usage) names a variable that is missing or no number."""
        def number(name: str) -> int:
            try:
                return int(env[name])
            except (KeyError, ValueError):
                said = f"{name}: {env.get(name)!r} in the environment: want a whole number, as of torchrun"
                raise Fault("usage", said) from None

        rank, size = number("RANK"), number("WORLD_SIZE")
        if not 0 <= rank < size:
            raise Fault("usage", f"RANK: {rank}: want 0 to WORLD_SIZE - 1, which is {size - 1}")
        host = env.get("MASTER_ADDR", "127.0.0.1")
        return World(rank, size, number("LOCAL_RANK"), host, number("MASTER_PORT"))


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, however it was written."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def package_hash() -> str:
    """SHA-256 over the names, sizes and contents of this package's modules."""
    folder, h = os.path.dirname(os.path.abspath(__file__)), hashlib.sha256()
    for name in sorted(n for n in os.listdir(folder) if n.endswith(".py")):
        with open(os.path.join(folder, name), "rb") as file:
            data = file.read()
        h.update(f"{name} {len(data)}\n".encode() + data)
    return h.hexdigest()


def describe(dtype: str, plans: Sequence[Any], options: Any, cores: Optional[Sequence[int]] = None) -> Info:
    """What this rank tells the others of itself."""
    return {
        "host": socket.gethostname(), "python": platform.python_version(), "torch": str(torch.__version__),
        "threads": torch.get_num_threads(), "cores": list(cores or []),
        "evenkeel": package_hash()[:12], "dtype": dtype, "plans": " ".join(digest(p)[:12] for p in plans),
        "options": json.dumps(options, sort_keys=True),
    }


class Meeting:
    """The store of a world, and later its process group."""

    def __init__(self, world: World, timeout_s: float) -> None:
        self.world, self._timeout_s, self._meet_s = world, timeout_s, timeout_s + MEET_S
        # torchrun keeps a store on the port that it names; else rank 0 does.
        keeper = world.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        if not keeper:
            _await_store(world, self._meet_s)
        try:
            store = dist.TCPStore(world.host, world.port, is_master=keeper, wait_for_workers=False,
                                  timeout=timedelta(seconds=self._meet_s))
        except (RuntimeError, ValueError, OSError) as error:
            said = f"rank {world.rank}: no store at {world.host}:{world.port}: {_first_line(error)}"
            if keeper:
                said += f"; if another program has the port, set another: {_ANOTHER}"
            raise Fault("peer", said) from error
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.store: Any = dist.PrefixStore(f"evenkeel/{again}", store)

    def agree(self, info: Info) -> list[Info]:
        """Every rank's description, by rank. Fault(versions) names every rank that is unlike rank 0."""
        try:
            return self._agreed(info)
        except RuntimeError as error:  # the store's keeper is gone, or was none of ours
            w = self.world
            said = f"rank {w.rank}: the store at {w.host}:{w.port} does not answer: {_first_line(error)}"
            raise Fault("peer", said) from error

    def _agreed(self, info: Info) -> list[Info]:
        rank, size = self.world.rank, self.world.size
        self.store.set(f"info/{rank}", json.dumps(info))
        self.store.add(f"here/{rank}", 1)
        missing = self._missing("here", self._meet_s)
        if missing:
            raise Fault("peer", f"rank {rank}: not all {size} ranks came within {self._meet_s:g} s, "
                                "missing: " + ", ".join(map(str, missing)))
        infos = [json.loads(self.store.get(f"info/{r}")) for r in range(size)]
        unlike = differences(infos)
        self.store.add(f"read/{rank}", 1)
        if unlike:
            if rank == 0:
                self._missing("read", _LEAVE_S)
            raise Fault("versions", unlike)
        return infos

    def _missing(self, name: str, timeout_s: float) -> list[int]:
        """Waits until all ranks have added to a counter of theirs; returns those that have not by then."""
        missing, deadline = set(range(self.world.size)), time.monotonic() + timeout_s
        while True:
            missing = {r for r in missing if self.store.add(f"{name}/{r}", 0) == 0}
            if not missing or time.monotonic() > deadline:
                return sorted(missing)
            time.sleep(POLL_S)

    def connect(self, backend: str, device: torch.device) -> "Wires":
        """Makes the process group of all ranks."""
        try:
            dist.init_process_group(
                backend, store=dist.PrefixStore("world", self.store), rank=self.world.rank,
                world_size=self.world.size, timeout=timedelta(seconds=self._timeout_s),
            )
            if self.world.size > 1:
                warm_up(device=device if backend == "nccl" else None)
            return Wires(self.world, device)
        except (RuntimeError, ValueError) as error:
            said = f"rank {self.world.rank}: joining over {backend}: {_first_line(error)}"
            raise Fault("peer", said) from error

    def publish(self, name: str, value: Any, last: bool) -> None:
        """Lets the others have a value; see await_news. After the last one this rank, which may keep the
        store, will leave: it waits until they have it."""
        self.store.set(f"news/{name}", json.dumps(value))
        self.store.add(f"out/{name}", 1)
        if last:
            self.store.add(f"heard {name}/{self.world.rank}", 1)
            self._missing(f"heard {name}", _LEAVE_S)

    def advance(self, name: str) -> None:
        """Tells those who await the value that it is being worked on."""
        self.store.add(f"progress/{name}", 1)

    def await_news(self, name: str, said: Callable[[int], None]) -> Any:
        """What rank 0 publishes under a name. said is given the progress whenever there is some; a rank 0
        that makes none for long is a Fault(peer)."""
        patience_s = PATIENCE * self._timeout_s
        seen, deadline = -1, time.monotonic() + patience_s
        try:
            while not self.store.add(f"out/{name}", 0):
                now = self.store.add(f"progress/{name}", 0)
                if now != seen:
                    seen, deadline = now, time.monotonic() + patience_s
                    said(now)
                if time.monotonic() > deadline:
                    raise RuntimeError(f"no progress for {patience_s:g} s")
                time.sleep(POLL_S)
            news = json.loads(self.store.get(f"news/{name}"))
            self.store.add(f"heard {name}/{self.world.rank}", 1)
            return news
        except RuntimeError as error:
            said_last = f"rank {self.world.rank}: waiting for rank 0's {name}: {_first_line(error)}"
            raise Fault("peer", said_last) from error

    def first_cause(self, said: str) -> str:
        """said, why this rank lost a peer, and if others lost one earlier what the first of them said: that
        peer is the one to look at, the others merely left."""
        try:
            if self.store.add("lost", 1) == 1:
                self.store.set("cause", said)
                return said
            return f"{said}; before that, {self.store.get('cause').decode()}"
        except RuntimeError:  # the store's keeper is gone
            return said


class Wires:
    """What the ranks of a replay tell each other beside the attention's messages."""

    def __init__(self, world: World, device: torch.device) -> None:
        self.world, self.device = world, device
        self._port = Port(world.rank, world.size, None, Meter(), device)
        self._staged = device if self._port.nccl else torch.device("cpu")
        self._others = [r for r in range(world.size) if r != world.rank]
        self._out = torch.ones(1, dtype=torch.uint8, device=self._staged)
        self._in = [torch.zeros_like(self._out) for _ in self._others]

    def sync(self) -> None:
        """Returns when everything queued on the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        """Returns when all ranks have come here. Each tells every other one, so that whoever is gone is named
        by all."""
        self.sync()
        sends = [Message(r, self._out) for r in self._others]
        receives = [Message(r, x) for r, x in zip(self._others, self._in)]
        self._over(self._port.post("barrier", 0, sends, receives))

    def send(self, what: str, x: torch.Tensor) -> None:
        """Sends a tensor to rank 0."""
        self._over(self._port.post(what, 0, [Message(0, x.to(self._staged).contiguous())], []))

    def receive(self, what: str, rank: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor from another rank; on rank 0."""
        x = torch.empty(tuple(shape), dtype=dtype, device=self._staged)
        self._over(self._port.post(what, 0, [], [Message(rank, x)]))
        return x

    def send_bytes(self, what: str, data: bytes) -> None:
        """Sends bytes, however many, to rank 0."""
        self.send(what, torch.tensor([len(data)]))
        if data:
            self.send(what, torch.frombuffer(bytearray(data), dtype=torch.uint8))

    def receive_bytes(self, what: str, rank: int) -> bytes:
        """Bytes from another rank; on rank 0."""
        n = int(self.receive(what, rank, [1], torch.int64))
        data = bytearray(n)
        if n:
            torch.frombuffer(data, dtype=torch.uint8).copy_(self.receive(what, rank, [n], torch.uint8))
        return bytes(data)

    def _over(self, batch: Any) -> None:
        batch.received()
        batch.sent()
        self.sync()


def differences(infos: Sequence[Info]) -> str:
    """In what ranks are unlike rank 0, "" if in nothing that matters."""
    said = []
    for key, what, way_out in _ALIKE:
        first = infos[0][key]
        odd = [f"rank {r} has {what} {i[key]}" for r, i in enumerate(infos) if i[key] != first]
        if odd:
            said.append(", ".join(odd) + f", rank 0 has {first}: {way_out}")
    return "; ".join(said)


def _await_store(world: World, timeout_s: float) -> None:
    """Returns when something listens at the store's port. torch 1.13 waits for it with the GIL held: nothing
    would tell the starter that this rank is alive."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((world.host, world.port), timeout=_KNOCK_S).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                said = (f"rank {world.rank}: no store at {world.host}:{world.port} within {timeout_s:g} s: "
                        f"{_first_line(error)}; is rank 0 started there? Another port is set by {_ANOTHER}")
                raise Fault("peer", said) from error
        time.sleep(_KNOCK_AGAIN_S)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
