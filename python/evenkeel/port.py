"""Messages between the ranks of a plan, counted.

Everything travels as batches of point-to-point messages, the all-to-alls too: that is what NCCL makes of an
uneven all-to-all itself, it needs no communicator for every group of a plan, so plans may change from step to
step, and gloo has it in every version and precision. Both sides list the messages between them in the same
order.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from .meter import Meter


# A group of torch.distributed, None for all ranks. Older releases of torch do not declare its type.
ProcessGroup = Any


class Message(NamedTuple):
    """A tensor to or from a rank of the plan; contiguous."""

    peer: int
    tensor: Tensor


class ExchangeError(RuntimeError):
    """A message was not delivered. The text names this rank, the phase and step, and the other rank."""


class Call:
    """A call of the library under way, and what to say if it fails."""

    def __init__(self, work: Any, what: str) -> None:
        self._work, self._what, self._over = work, what, False

    @property
    def over(self) -> bool:
        """Whether it is known to be over."""
        return self._over or bool(self._work.is_completed())

    def wait(self) -> None:
        """Returns when it is over; with NCCL the current stream waits instead.

        Only the first time: gloo counts completions, so a second wait for a message would be for another one.
        """
        if self._over:
            return
        self._over = True
        try:
            self._work.wait()
        except RuntimeError as error:
            raise undelivered(self._what, error) from error


class Batch:
    """Messages on their way. Keeps their tensors alive until both waits are over."""

    def __init__(
        self, sends: list[Call], receives: list[Call], kept: list[Tensor], landed: list[tuple[Tensor, Tensor]]
    ) -> None:
        self._sends, self._receives, self._kept, self._landed = sends, receives, kept, landed

    @property
    def gone(self) -> bool:
        """Whether the sent tensors may be overwritten, as far as that shows."""
        return all(call.over for call in self._sends)

    def received(self) -> None:
        """Returns when everything has arrived; with NCCL the current stream waits instead."""
        for call in self._receives:
            call.wait()
        for place, host in self._landed:
            place.copy_(host)
        self._receives, self._landed = [], []

    def sent(self) -> None:
        """Returns when the sent tensors may be overwritten; with NCCL the current stream waits instead."""
        for call in self._sends:
            call.wait()
        self._sends, self._kept = [], []


class Port:
    """A rank's messages over one process group, whose ranks are those of the plan. Without torch.distributed
    it serves plans of a single rank, which have nothing to send."""

    def __init__(
        self, rank: int, ranks: int, group: ProcessGroup, meter: Meter, device: torch.device
    ) -> None:
        self._rank, self._group, self._meter = rank, group, meter
        self.nccl, self._peers = False, [0]
        if not (dist.is_available() and dist.is_initialized()):
            if ranks > 1:
                raise ValueError(f"the plan has {ranks} ranks: call init_process_group of torch.distributed")
            return
        if dist.get_world_size(group) != ranks or dist.get_rank(group) != rank:
            raise ValueError(f"rank {rank} of a plan of {ranks} ranks runs as rank {dist.get_rank(group)} "
                             f"of a process group of {dist.get_world_size(group)}")
        self.nccl = backend_of(group, device) == "nccl"
        self._peers = [_global_rank(group, r) for r in range(ranks)]

    def post(self, phase: str, step: int, sends: Sequence[Message], receives: Sequence[Message]) -> Batch:
        """Starts messages; empty ones do not exist on either side."""
        sends = [m for m in sends if m.tensor.numel()]
        receives = [m for m in receives if m.tensor.numel()]
        for counter, messages in ((self._meter.sent, sends), (self._meter.received, receives)):
            for m in messages:
                self._meter.message(counter, phase, m.peer, m.tensor.numel() * m.tensor.element_size())
        what = f"rank {self._rank}: {phase} step {step}"
        start = self._post_batch if self.nccl else self._post_each
        return start(what, sends, receives)

    def _post_batch(self, what: str, sends: Sequence[Message], receives: Sequence[Message]) -> Batch:
        """NCCL: one group of calls, so that no order of sends and receives can block."""
        calls = [(dist.isend, m) for m in sends] + [(dist.irecv, m) for m in receives]
        ops = [dist.P2POp(call, m.tensor, self._peers[m.peer], self._group) for call, m in calls]
        what += ": with ranks " + ", ".join(str(r) for r in sorted({m.peer for _, m in calls}))
        try:
            works = [Call(w, what) for w in (dist.batch_isend_irecv(ops) if ops else [])]
        except RuntimeError as error:
            raise undelivered(what, error) from error
        return Batch(works, works, [m.tensor for _, m in calls], [])

    def _post_each(self, what: str, sends: Sequence[Message], receives: Sequence[Message]) -> Batch:
        """gloo: every call returns at once. It moves host memory only, so a GPU's tensors go through
        copies."""
        kept: list[Tensor] = []
        landed: list[tuple[Tensor, Tensor]] = []

        def start(call: Any, host: Tensor, m: Message, side: str) -> Call:
            kept.append(host)
            try:
                return Call(call(host, self._peers[m.peer], self._group), f"{what}: {side} rank {m.peer}")
            except RuntimeError as error:
                raise undelivered(f"{what}: {side} rank {m.peer}", error) from error

        coming = []
        for m in receives:
            place = m.tensor
            if place.device.type != "cpu":
                place = torch.empty(place.shape, dtype=place.dtype)
                landed.append((m.tensor, place))
            coming.append(start(dist.irecv, place, m, "from"))
        going = [start(dist.isend, m.tensor.cpu(), m, "to") for m in sends]
        return Batch(going, coming, kept, landed)


def warm_up(group: ProcessGroup = None, device: Optional[torch.device] = None) -> None:
    """Connects the ranks of a process group; call it on all of them once, before the first attention.

    NCCL wants every rank of a group to take part in its first call, and not every rank of a plan has
    messages.
    """
    dist.all_reduce(torch.zeros(1, device=device), group=group)


def backend_of(group: ProcessGroup, device: torch.device) -> str:
    """What carries the tensors of a device: a group may have a backend for each kind, "cpu:gloo,cuda:nccl",
    as it does where none was named ("undefined")."""
    name = str(dist.get_backend(group))
    if name != "undefined" and ":" not in name:
        return name
    config = str(getattr(dist, "get_backend_config")(group))
    return dict(pair.split(":") for pair in config.split(","))[device.type]


def _global_rank(group: ProcessGroup, rank: int) -> int:
    if group is None:
        return rank
    find = getattr(dist, "get_global_rank", None) or getattr(dist.distributed_c10d, "_get_global_rank")
    return int(find(group, rank))


def undelivered(what: str, error: Exception) -> ExchangeError:
    """What to raise for an error of the library."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return ExchangeError(f"{what}: {lines[0]}")
