"""Collectives between the workers of one job, through torch.distributed over gloo or NCCL.

A *world* is all the workers that joined one store; a *group* is a named subset of its ranks, in ascending
order. Buffers are float32 (sizes are bytes, four to an element): gloo refuses bf16 in half of its
collectives, and the time of a transfer does not depend on what the bytes mean. Only the portable subset is
used; an op that the library lacks is refused with the reason, unless a training framework would build it from
the same parts (ring shifts, pairs).

Each rank times itself and returns its own vector; clocks of different hosts are never subtracted.
"""
from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch import Tensor

import preflight
from collectives import FLOAT_BYTES, OPS, Shape, check_shape, expected, lengths, partner, small_shape, value
from errors import Failure
from sampling import spin

# A batch is queued without waiting for it, so that a sample does not start on an idle GPU.
BATCH_SAMPLES = 32
# What the host needs beside the calls between a spin and the end of a sample: a barrier and two events.
BARRIER_NS = 150_000
# The watchdog inside NCCL aborts the process without an answer, so our own deadline must come first.
WATCHDOG_GRACE_S = 60.0

Call = Callable[[], None]
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Group:
    """A group of this rank. ranks: of the world, ascending; rank: this one's place among them."""

    name: str
    ranks: tuple[int, ...]
    rank: int
    handle: Any

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def peer(self, offset: int) -> int:
        """World rank of the group's rank that is `offset` further round the ring."""
        return self.ranks[(self.rank + offset) % self.size]


@dataclass(frozen=True)
class Bound:
    """An op tied to its buffers. call: runs it once; result: the buffer that holds its answer afterwards."""

    group: Group
    op: str
    call: Call
    send: Tensor
    result: Tensor


def local_memory_bytes() -> Optional[int]:
    """Memory that this host can still give, None where /proc does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type when it says nothing."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def end_world(backend: str) -> None:
    """Drops all communicators of this process; nothing is in flight.

    From torch 2.6 on destroying waits until every rank of an NCCL communicator destroys it too
    (pytorch/pytorch#141510), but workers leave one after the other: aborting does not wait.
    """
    abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
    if backend == "nccl" and abort is not None:
        abort()
    else:
        dist.destroy_process_group()


def find_scatter(size: int, place: torch.device) -> tuple[Optional[Callable[..., Any]], str]:
    """The library's own reduce-scatter of one tensor into another, or None and why it is missing.

    Tried in the whole world, of `size` ranks, because no version of torch tells in advance.
    """
    tensor_op = getattr(dist, "reduce_scatter_tensor", None) or getattr(dist, "_reduce_scatter_base", None)

    def by_list(out: Tensor, whole: Tensor, group: Any = None) -> None:
        dist.reduce_scatter(out, list(whole.split(out.numel())), group=group)

    why = ""
    for call in filter(None, (tensor_op, by_list)):
        try:
            call(torch.zeros(1, device=place), torch.ones(size, device=place))
            return call, ""
        except (RuntimeError, NotImplementedError, ValueError) as error:
            if not any(sign in str(error) for sign in ("support", "implement")):
                raise
            why = f"torch {torch.__version__}: {first_line(error)}"
    return None, why


class Comm:
    """The worker's side of a world. One instance a process, used by one thread.

    device: the worker's Device. Gloo groups use CPU memory whatever the device: that is how replay stages
    through the host.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self.rank = -1
        self._served: Optional[dist.TCPStore] = None
        self._store: Optional[dist.TCPStore] = None
        self._backend = ""
        self._timeout_s = 60.0
        self._groups: dict[str, Group] = {}
        self._neighbours = 1
        self._scatter: Optional[Callable[..., Any]] = None
        self._scatter_why = ""
        self._verified: set[tuple[str, str]] = set()
        self._bound: Optional[Bound] = None
        self._launch_ns: Optional[int] = None
        self._probe: Optional[str] = None

    # What can be done, before any world exists.

    def availability(self) -> dict[str, dict[str, Any]]:
        """hello's "comm": for gloo and nccl, whether this worker can use it and why not."""
        why = {"gloo": self._gloo_why(), "nccl": self._nccl_why()}
        return {name: {"ok": False, "why": said} if said else {"ok": True} for name, said in why.items()}

    def _gloo_why(self) -> str:
        if not dist.is_available():
            return "torch was built without torch.distributed"
        usable = getattr(dist, "is_gloo_available", lambda: hasattr(dist, "ProcessGroupGloo"))()
        return "" if usable else "torch was built without gloo"

    def _nccl_why(self) -> str:
        if self.device.kind != "cuda":
            return "no accelerator"
        if not dist.is_available():
            return "torch was built without torch.distributed"
        return "" if dist.is_nccl_available() else "torch was built without NCCL"

    def ops(self) -> list[str]:
        """Collectives that some available library can run."""
        refused = self.refused()
        return [op for op in OPS if op not in refused]

    def refused(self) -> dict[str, str]:
        """Collectives that no available library can run, with the reason."""
        available = self.availability()
        if not any(entry["ok"] for entry in available.values()):
            return {op: available["gloo"]["why"] for op in OPS}
        if available["nccl"]["ok"]:
            return {}
        if self._probe is None:
            self._probe = self._probe_gloo()
        return {"reduce_scatter": self._probe} if self._probe else {}

    def _probe_gloo(self) -> str:
        """Why gloo here has no reduce_scatter, "" if it has: tried in a world of this process alone."""
        if dist.is_initialized():
            return self._scatter_why
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            return find_scatter(1, torch.device("cpu"))[1]
        finally:
            dist.destroy_process_group()

    # Worlds.

    def serve(self, req: dict[str, Any]) -> dict[str, int]:
        """Opens the store of a new world on a free port of this host; rank 0 only."""
        self._served = None
        self._served = dist.TCPStore(req["host"], 0, is_master=True, wait_for_workers=False)
        return {"port": self._served.port}

    def join(self, req: dict[str, Any]) -> dict[str, Any]:
        """Enters a world and makes its groups; every rank gets the same request but for `rank`.

        Returns {} or {"warnings": [..]}. Raises Failure: unsupported when the workers may not talk to each
        other, internal and fatal when a rank is missing for `timeout_s`.
        """
        self.leave()
        self.rank, self._backend, self._timeout_s = req["rank"], req["comm"], float(req.get("timeout_s", 60))
        unknown = {"why": "no such library; known are gloo and nccl"}
        why = self.availability().get(self._backend, unknown).get("why")
        if why:
            raise Failure("unsupported", f"comm {self._backend}: {why}")
        check_groups(req["groups"], req["size"])
        try:
            return self._join(req)
        except Failure:
            raise
        except (RuntimeError, ValueError, OSError) as error:
            said = f"rank {self.rank}: joining {req['host']}:{req['port']}: {first_line(error)}"
            raise Failure("internal", said, fatal=True) from error

    def _join(self, req: dict[str, Any]) -> dict[str, Any]:
        size = req["size"]
        self._store = self._connect(req)
        mine = preflight.inspect(self.device)
        infos = preflight.gather(self._store, self.rank, size, self._timeout_s, mine)
        warnings = preflight.judge(infos, self._backend)
        self._neighbours = sum(info["host"] == socket.gethostname() for info in infos)
        if self._backend == "nccl":
            torch.cuda.set_device(self.device.torch)
        limit = timedelta(seconds=self._timeout_s + (WATCHDOG_GRACE_S if self._backend == "nccl" else 0))
        store = dist.PrefixStore("world", self._store)
        dist.init_process_group(self._backend, store=store, rank=self.rank, world_size=size, timeout=limit)
        for name in sorted(req["groups"]):
            self._make_group(name, tuple(req["groups"][name]), limit)
        self._scatter, self._scatter_why = find_scatter(size, self._place())
        self._settle()
        return {"warnings": warnings} if warnings else {}

    def _connect(self, req: dict[str, Any]) -> dist.TCPStore:
        limit = timedelta(seconds=self._timeout_s)
        if self._served is not None and self._served.port == req["port"]:
            self._served.set_timeout(limit)
            return self._served
        return dist.TCPStore(req["host"], req["port"], is_master=False, timeout=limit, wait_for_workers=False)

    def _make_group(self, name: str, ranks: tuple[int, ...], limit: timedelta) -> None:
        """Every rank calls this for every group. The all_reduce makes the connections: batched point-to-point
        calls need all ranks of a group when they are its first."""
        handle = dist.new_group(list(ranks), timeout=limit, backend=self._backend)
        if self.rank not in ranks:
            return
        group = Group(name, ranks, ranks.index(self.rank), handle)
        self._groups[name] = group
        dist.all_reduce(torch.zeros(1, device=self._place()), group=handle)
        self._settle()

    def leave(self) -> None:
        """Leaves the world, if there is one; a store that was served but not yet joined stays."""
        self._bound, self._groups = None, {}
        self._verified.clear()
        if dist.is_available() and dist.is_initialized():
            end_world(self._backend)
        if self._store is self._served:
            self._served = None
        self._store, self.rank = None, -1

    # One op.

    def prepare(self, op: str, shape: Shape, seed: int, group: str) -> dict[str, Any]:
        """Ties an op to buffers of random numbers, after checking its answer the first time in this group.

        Returns work_bytes, and verified and rel_err when it was checked. Every rank of the group calls it.
        """
        self._bound, self._launch_ns = None, None
        member = self._member(op, shape, group)
        answer: dict[str, Any] = {}
        if (op, group) not in self._verified:
            self._check(op, small_shape(op, member.size), member)
            self._verified.add((op, group))
            answer = {"verified": True, "rel_err": 0.0}
        sent, received = lengths(op, shape, member.size, member.rank)
        work_bytes = FLOAT_BYTES * (sent + received)
        self._afford(op, work_bytes)
        self._bound = self._bind(op, shape, member, self._noise(sent, seed), self._empty(received))
        return {**answer, "work_bytes": work_bytes}

    def run(self, inner: int, n: int, progress: Progress) -> list[int]:
        """n samples of `inner` calls back to back, in ns of this rank's clock, a barrier before each."""
        if self._bound is None:
            raise Failure("internal", "run: no collective is prepared")
        sample = self._sample_events if self._place().type == "cuda" else self._sample_clock
        return self._guarded(self._bound.op, lambda: sample(self._bound, inner, n, progress))

    def verify(self, op: str, shape: Shape, group: str) -> dict[str, float]:
        """Runs an op at this very shape against the known answer; {"out": relative error in the 2-norm}."""
        got, want = self._compute(op, shape, self._member(op, shape, group))
        norm = float(want.norm())
        return {"out": float((got - want).norm()) / norm if norm else float((got - want).norm())}

    def _member(self, op: str, shape: Shape, group: str) -> Group:
        member = self._groups.get(group)
        if member is None:
            known = ", ".join(sorted(self._groups)) or "none"
            raise Failure("internal", f"{op}: rank {self.rank} is in no group {group!r} of the last join "
                                      f"(it is in: {known})")
        check_shape(op, shape, member.size)
        if op == "reduce_scatter" and self._scatter is None:
            raise Failure("unsupported", f"reduce_scatter: {self._scatter_why}")
        return member

    def _check(self, op: str, shape: Shape, group: Group) -> None:
        got, want = self._compute(op, shape, group)
        differing = (got != want).nonzero()
        if len(differing):
            at = int(differing[0])
            raise Failure("wrong", f"{op}: rank {group.rank} of group {group.name} got {float(got[at])} "
                                   f"at element {at}, want {float(want[at])}: not timed")

    def _compute(self, op: str, shape: Shape, group: Group) -> tuple[Tensor, Tensor]:
        """One call on buffers whose answer is known; returns (got, want), float64 on the CPU."""
        sent, received = lengths(op, shape, group.size, group.rank)
        send = value(group.rank, torch.arange(sent)).to(self._place(), torch.float32)
        bound = self._bind(op, shape, group, send, self._empty(received).fill_(float("nan")))

        def once() -> Tensor:
            bound.call()
            self._settle()
            return bound.result.to("cpu", torch.float64)

        return self._guarded(op, once), expected(op, shape, group.size, group.rank)

    def _bind(self, op: str, shape: Shape, group: Group, send: Tensor, out: Tensor) -> Bound:
        make = getattr(self, "_bind_" + op)
        # Sums in place grow with each call; scaling them back would cost time that is not the collective's,
        # and infinities add as fast as other numbers.
        result = send if op == "all_reduce" else out
        return Bound(group, op, make(shape, group, send, out), send, result)

    def _bind_all_reduce(self, _: Shape, group: Group, send: Tensor, __: Tensor) -> Call:
        return lambda: dist.all_reduce(send, group=group.handle)

    def _bind_all_gather(self, _: Shape, group: Group, send: Tensor, out: Tensor) -> Call:
        if self._backend == "nccl":
            into = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
            return lambda: into(out, send, group=group.handle)
        parts = list(out.chunk(group.size))
        return lambda: dist.all_gather(parts, send, group=group.handle)

    def _bind_reduce_scatter(self, _: Shape, group: Group, send: Tensor, out: Tensor) -> Call:
        scatter = self._scatter
        return lambda: scatter(out, send, group=group.handle)

    def _bind_all_to_all(self, _: Shape, group: Group, send: Tensor, out: Tensor) -> Call:
        return lambda: dist.all_to_all_single(out, send, group=group.handle)

    def _bind_all_to_all_v(self, shape: Shape, group: Group, send: Tensor, out: Tensor) -> Call:
        matrix = shape["matrix_bytes"]
        sent = [b // FLOAT_BYTES for b in matrix[group.rank]]
        received = [row[group.rank] // FLOAT_BYTES for row in matrix]
        return lambda: dist.all_to_all_single(out, send, received, sent, group=group.handle)

    def _bind_send_recv(self, _: Shape, group: Group, send: Tensor, out: Tensor) -> Call:
        return self._exchange(group, group.peer(1), group.peer(-1), send, out)

    def _bind_send_recv_pairs(self, shape: Shape, group: Group, send: Tensor, out: Tensor) -> Call:
        other = partner(shape, group.size, group.rank)
        if other is None:
            return lambda: None
        return self._exchange(group, group.ranks[other], group.ranks[other], send, out)

    @staticmethod
    def _exchange(group: Group, to: int, source: int, send: Tensor, out: Tensor) -> Call:
        """Sends to one world rank and receives from another at once."""
        def call() -> None:
            for work in start(group, to, source, send, out):
                work.wait()

        return call

    def shift(self, size_bytes: int, seed: int, name: str) -> tuple[Group, Callable[[], list[Any]]]:
        """A group of this rank and a ring shift in it, which every call starts without waiting for it."""
        group = self._member("send_recv", {"group": len(self._groups[name].ranks) if name in self._groups else 0,
                                           "bytes": size_bytes}, name)
        sent, received = lengths("send_recv", {"bytes": size_bytes}, group.size, group.rank)
        self._afford("send_recv", FLOAT_BYTES * (sent + received))
        send, out = self._noise(sent, seed), self._empty(received)
        return group, lambda: start(group, group.peer(1), group.peer(-1), send, out)

    def guarded(self, op: str, work: Callable[[], Any]) -> Any:
        """Runs what talks to other ranks; see _guarded."""
        return self._guarded(op, work)

    # Time.

    def _sample_clock(self, bound: Bound, inner: int, n: int, progress: Progress) -> list[int]:
        samples = []
        for i in range(n):
            dist.barrier(group=bound.group.handle)
            begin = time.perf_counter_ns()
            for _ in range(inner):
                bound.call()
            samples.append(time.perf_counter_ns() - begin)
            progress(i + 1)
        return samples

    def _sample_events(self, bound: Bound, inner: int, n: int, progress: Progress) -> list[int]:
        """On a GPU: events around the calls, queued in batches behind spins, lest launch gaps count."""
        token = torch.zeros(1, device=self._place())
        if self._launch_ns is None:
            self._launch_ns = self._time_launch(bound)
        samples: list[int] = []
        while len(samples) < n:
            pairs = []
            for _ in range(min(BATCH_SAMPLES, n - len(samples))):
                spin(2 * self._launch_ns * inner + BARRIER_NS)
                dist.all_reduce(token, group=bound.group.handle)  # the barrier
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                for _ in range(inner):
                    bound.call()
                end.record()
                pairs.append((begin, end))
            self._settle()
            samples += [round(begin.elapsed_time(end) * 1e6) for begin, end in pairs]  # ms to ns
            progress(len(samples))
        return samples

    def _time_launch(self, bound: Bound) -> int:
        """Nanoseconds in which the host queues a call, after one that lets NCCL connect what this size needs.

        Not when it is prepared: a rank that runs out of memory there would leave the others waiting for it.
        """
        bound.call()
        self._settle()
        start = time.perf_counter_ns()
        bound.call()
        took = time.perf_counter_ns() - start
        self._settle()
        return took

    def _settle(self) -> None:
        """Waits for the GPU's queue, at most the world's timeout: a collective whose peer died never ends."""
        if self._place().type != "cuda":
            return
        done = torch.cuda.Event()
        done.record()
        deadline = time.monotonic() + self._timeout_s
        while not done.query():
            if time.monotonic() > deadline:
                raise RuntimeError(f"not finished after {self._timeout_s:g} s: a peer is gone or hangs")
            time.sleep(50e-6)

    def _guarded(self, op: str, work: Callable[[], Any]) -> Any:
        """Runs collectives; a failure poisons the world, so it is fatal and names this rank."""
        try:
            return work()
        except Failure:
            raise
        except (RuntimeError, ValueError, OSError) as error:
            text = first_line(error)
            # Gloo words one event in three ways; the agent should not have to know them.
            if "reset by peer" in text or "Broken pipe" in text:
                text += " (connection closed by peer)"
            raise Failure("internal", f"rank {self.rank}: {op}: {text}", fatal=True) from error

    # Memory.

    def _place(self) -> torch.device:
        return self.device.torch if self._backend == "nccl" else torch.device("cpu")

    def _empty(self, n: int) -> Tensor:
        return torch.empty(n, dtype=torch.float32, device=self._place())

    def _noise(self, n: int, seed: int) -> Tensor:
        """n normal numbers, [n] float32; a block is repeated: drawing 1 GiB takes longer than sending it."""
        block = min(n, 1 << 20)
        source = torch.Generator().manual_seed((seed + self.rank) % 2**63)
        drawn = torch.randn(block, generator=source).to(self._place())
        return drawn.repeat(-(-n // block))[:n].contiguous() if n > block else drawn

    def _afford(self, op: str, work_bytes: int) -> None:
        """Refuses buffers for which the kernel would kill this process: memory is promised but not kept."""
        free = local_memory_bytes() if self._place().type == "cpu" else None
        if free is not None and work_bytes * self._neighbours > free:
            said = f"{op}: {work_bytes} bytes of buffers in each of {self._neighbours} ranks on this host"
            raise Failure("oom", f"{said}, which has {free} bytes left")


def start(group: Group, to: int, source: int, send: Tensor, out: Tensor) -> list[Any]:
    """Begins to send to one world rank and to receive from another; what is returned is to be waited for."""
    return dist.batch_isend_irecv([
        dist.P2POp(dist.isend, send, to, group.handle),
        dist.P2POp(dist.irecv, out, source, group.handle),
    ])


def check_groups(groups: dict[str, list[int]], size: int) -> None:
    """Refuses groups that torch would sort or reject halfway, with some ranks already inside."""
    for name, ranks in groups.items():
        if not ranks or any(b <= a for a, b in zip(ranks, ranks[1:])) or ranks[0] < 0 or ranks[-1] >= size:
            raise Failure("internal", f"group {name!r}: ranks {ranks}: want ascending, 0 to {size - 1}")
