"""Gradients of weights on the ranks of a run, added up behind the backward passes of the layers before."""

from __future__ import annotations

import hashlib
from typing import Any, Callable, Sequence, Union

import torch
import torch.distributed as dist
from torch import Tensor

from .parts import Members, named
from .port import Call, ProcessGroup, backend_of, undelivered
from .tasks import Tasks

Key = Union[int, str]  # of what has gradients: a layer's number, or what else a module has, in words

GROUP = "gradients"  # the name of the process groups of exchanges, of which every set of ranks has one


class Exchange:
    """That of some ranks, at one of them. Ranks call the same methods in the same order, of all exchanges that they
    have in common."""

    def __init__(
        self, name: str, rank: int, ranks: Sequence[int], group: ProcessGroup, dtype: torch.dtype, device: torch.device
    ) -> None:
        """name: of what is exchanged, in words. dtype: in which gradients travel that are in no wider one. device:
        where they are."""
        self._name, self._rank, self._ranks = name, ranks.index(rank), ranks
        self._group, self._dtype, self._device = group, dtype, device
        self._calls: list[tuple[Key, Call, Tensor]] = []

    def alike(self, said: str) -> bool:
        """Whether all ranks say the same."""
        n = int.from_bytes(hashlib.sha256(said.encode()).digest()[:7], "big")
        most_least = torch.tensor([n, -n], device=self._device)
        self._begin("which parameters there are", lambda: dist.all_reduce(
            most_least, dist.ReduceOp.MAX, group=self._group))
        return bool(most_least[0] == -most_least[1])

    def spread(self, x: Tensor) -> None:
        """Gives all ranks what the first one has of a contiguous tensor, whose bytes travel: gloo of older releases does
        not know every precision."""
        self._begin("parameters", lambda: dist.broadcast(
            x.view(-1).view(torch.uint8), self._ranks[0], group=self._group))

    def post(self, key: Key, grads: Sequence[Tensor]) -> None:
        """Those of a layer, or of what else the module has, leave in one piece."""
        flat = torch.cat([g.reshape(-1) for g in grads])
        flat = flat.to(torch.promote_types(flat.dtype, self._dtype))
        of = f"layer {key}" if isinstance(key, int) else key
        call = self._begin(f"gradients of {of}", lambda: dist.all_reduce(flat, group=self._group, async_op=True))
        self._calls.append((key, call, flat))

    def wait(self) -> tuple[dict[Key, Tensor], int]:
        """The sums by what they are of, in one piece each, and their bytes."""
        calls, self._calls = self._calls, []
        with named(self._name, self._ranks):
            for _, call, _ in calls:
                call.wait()
        sums = {key: flat for key, _, flat in calls}
        return sums, sum(x.numel() * x.element_size() for x in sums.values())

    def clear(self) -> None:
        """Leaves nothing of a step."""
        self._calls = []

    def _begin(self, what: str, call: Callable[[], Any]) -> Call:
        """Calls the library, and names what it was at if that fails, now or while it is waited for."""
        said = _with_others(self._rank, len(self._ranks), what)
        with named(self._name, self._ranks):
            try:
                return Call(call(), said)
            except RuntimeError as error:
                raise undelivered(said, error) from error


def process_groups(tasks: Tasks) -> list[Members]:
    """Those of exchanges."""
    return [(GROUP, run.ranks) for run in tasks.runs if len(run.ranks) > 1]


# What gloo says of a precision that it does not know, on every rank alike.
_UNKNOWN = "invalid scalar type"


def carried(
    rank: int, ranks: Sequence[int], group: ProcessGroup, dtype: torch.dtype, device: torch.device
) -> torch.dtype:
    """In what a process group adds up numbers of a precision: gloo of older releases of torch does not know bf16,
    whose sums are then in float32. All ranks of the group ask."""
    if dtype == torch.float32 or backend_of(group, device) == "nccl":
        return dtype
    what = _with_others(ranks.index(rank), len(ranks), "a first sum")
    with named("gradients", ranks):
        try:
            dist.all_reduce(torch.zeros(1, dtype=dtype, device=device), group=group)
        except RuntimeError as error:
            if _UNKNOWN in str(error).lower():
                return torch.float32
            raise undelivered(what, error) from error
    return dtype


def _with_others(rank: int, ranks: int, what: str) -> str:
    """What a rank is at, by places in a process group."""
    others = ", ".join(str(r) for r in range(ranks) if r != rank)
    return f"rank {rank}: {what}: with ranks {others}"
