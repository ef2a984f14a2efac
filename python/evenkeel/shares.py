"""Units of parameters gathered among the members of a plan, and their gradients reduced."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from .exchange import Exchange, carried
from .parts import named
from .port import Call, ProcessGroup, backend_of


class Coming:
    """What is under way. result: where it is once it has been waited for."""

    def __init__(
        self, call: Call, result: Tensor, n: int, land: Callable[[], None], inside: Callable[[], Any]
    ) -> None:
        """n: bytes of what is there then, this rank's own and padding included. land: what is to be done when it is over. inside: see parts.named."""
        self.result, self._bytes, self._call, self._land, self._inside = result, n, call, land, inside

    def wait(self) -> int:
        """Returns when it is there, with NCCL the current stream waits instead: how many bytes it is."""
        with self._inside():
            self._call.wait()
        self._land()
        return self._bytes


class Shares(Exchange):
    """That of a plan's members. travels: in which precision gradients are added up. scatters: whether the library
    gives a member its own part of a sum, where all else get the sum and take theirs."""

    def __init__(
        self, rank: int, ranks: Sequence[int], group: ProcessGroup, dtype: torch.dtype, device: torch.device,
        sharded: bool,
    ) -> None:
        """dtype: of the model. sharded: whether members update a share of each unit. All members make theirs at the
        same time."""
        self.travels = carried(rank, ranks, group, dtype, device)
        super().__init__("gradients and parameters", rank, ranks, group, self.travels, device)
        self._nccl, self._sharded = backend_of(group, device) == "nccl", sharded
        # gloo takes some calls for the host's memory only.
        self._staged = not self._nccl and device.type != "cpu"
        self._scatter = self._found() if sharded else None

    @property
    def kind(self) -> str:
        """What gradients are reduced by."""
        return "all_reduce" if self._scatter is None else "reduce_scatter"

    def reduce(self, of: str, piece: Tensor, into: Optional[Tensor]) -> Coming:
        """Adds up the pieces of all members. The result is the sum, or this member's part of it: in `into` where there
        is one, it has their precision and the library puts it there, else in the piece or beside."""
        what, host = f"gradients of {of}", piece.cpu() if self._staged else piece
        mine = slice(self._rank * len(piece) // len(self._ranks), (self._rank + 1) * len(piece) // len(self._ranks))
        if self._scatter is not None:
            scatter: Callable[..., Any] = self._scatter
            out = piece.new_empty(mine.stop - mine.start) if into is None or into.dtype != piece.dtype else into
            there = self._place(out)
            call = self._begin(what, lambda: scatter(there, host, group=self._group, async_op=True))
            return self._coming(call, out, there, _bytes(out))
        call = self._begin(what, lambda: dist.all_reduce(host, group=self._group, async_op=True))
        part = mine if self._sharded else slice(None)
        return self._coming(call, piece[part], host[part], _bytes(piece))

    def gather(self, of: str, mine: Tensor, full: Tensor) -> Coming:
        """Fills a unit with the shares of all members. Bytes travel: gloo of older releases does not know every
        precision."""
        what = f"parameters of {of}"
        sent, out = mine.view(torch.uint8), self._place(full.view(torch.uint8))
        sent = sent.cpu() if self._staged else sent
        if self._nccl:
            into: Any = getattr(dist, "all_gather_into_tensor", None) or getattr(dist, "_all_gather_base")
            call = self._begin(what, lambda: into(out, sent, group=self._group, async_op=True))
        else:
            parts = list(out.chunk(len(self._ranks)))
            call = self._begin(what, lambda: dist.all_gather(parts, sent, group=self._group, async_op=True))
        return self._coming(call, full, out.view(full.dtype), _bytes(full))

    def _place(self, x: Tensor) -> Tensor:
        """Where the library puts what is to be in a tensor."""
        return torch.empty_like(x, device="cpu") if self._staged else x

    def _coming(self, call: Call, result: Tensor, there: Tensor, n: int) -> Coming:
        def land() -> None:
            if self._staged:
                result.copy_(there)

        return Coming(call, result, n, land, lambda: named(self._name, self._ranks))

    def _found(self) -> Optional[Callable[..., Any]]:
        """The library's reduce-scatter of one tensor into another, tried by all members, because no release tells in
        advance. None where it has none, as gloo of torch 1.13."""
        def by_list(out: Tensor, whole: Tensor, group: Any = None, async_op: bool = False) -> Any:
            scatter: Any = dist.reduce_scatter
            return scatter(out, list(whole.split(out.numel())), group=group, async_op=async_op)

        place = torch.device("cpu") if self._staged else self._device
        whole = torch.ones(len(self._ranks), dtype=self.travels, device=place)
        tensor_op = getattr(dist, "reduce_scatter_tensor", None) or getattr(dist, "_reduce_scatter_base", None)
        calls: list[Callable[..., Any]] = [tensor_op, by_list] if tensor_op else [by_list]
        for call in calls:
            try:
                call(torch.zeros_like(whole[:1]), whole, group=self._group)
                return call
            except (RuntimeError, NotImplementedError, ValueError) as error:
                if not any(sign in str(error).lower() for sign in ("support", "implement", "invalid scalar type")):
                    raise
        return None


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()
