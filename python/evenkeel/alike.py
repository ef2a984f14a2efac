"""Whether the ranks of a process group go by the same plan.

A rank that goes by another one is not found out by messages: with other heads gloo ends the process, with other
tokens ranks wait until the timeout, and with other documents of as many tokens results are wrong.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, Mapping, Optional, Sequence, Union

import torch
import torch.distributed as dist
from torch import Tensor

from .batches import Batch
from .plan import Plan, PlanError
from .port import ProcessGroup, undelivered
from .rendezvous import digest
from .stages import Pipeline
from .tasks import Tasks

Agreed = Union[Plan, Batch, Pipeline, Tasks, Sequence[int], None]


def agree(*given: Agreed, group: ProcessGroup = None, device: Optional[torch.device] = None) -> None:
    """Raises PlanError on all ranks of a process group where they were not given the same.

    given: what load_plan, load_batch, load_pipeline and load_tasks returned, and lists of whole numbers such as docs
    and lengths. Every rank of the group calls it, with as new a plan as the others: once for a plan, for those of
    batches in each step. It is one exchange of 16 bytes. device: on GPUs with NCCL this rank's, as in warm_up. Also
    raises PlanError for a Plan or Batch of more or fewer ranks than the group has, TypeError for what is none of
    these, ValueError on ranks that are not in the group, and ExchangeError where a rank is gone.
    """
    joined = dist.is_available() and dist.is_initialized()
    if joined and dist.get_rank(group) < 0:
        raise ValueError(f"agree: rank {dist.get_rank()} is not in the process group: only its ranks call it")
    own = [_digest(f"argument {i}", x) for i, x in enumerate(given)]
    of = _gathered([len(own), _number(digest(own))], group, device)
    unlike = [r for r, x in enumerate(of) if x != of[0]]
    if unlike:
        if len({n for n, _ in of}) > 1:
            raise PlanError(f"agree: {', '.join(str(n) for n, _ in of)} arguments by rank: want as many on all")
        every = _gathered([_number(x) for x in own], group, device)
        i = next(i for i in range(len(own)) if any(x[i] != every[0][i] for x in every))
        others = ", ".join(str(r) for r, x in enumerate(every) if x[i] != every[0][i])
        raise PlanError(f"agree: argument {i}: {_named(given[i])} is another on rank {others} than on rank 0: give all "
                        "ranks the same file, or the same lengths in the same order")
    for i, x in enumerate(given):
        if isinstance(x, (Plan, Batch)) and x.ranks != len(of):
            has = f"the process group has {len(of)}" if joined else "call init_process_group of torch.distributed"
            raise PlanError(f"agree: argument {i}: {_named(x)} is of {x.ranks} ranks: {has}")


def _named(x: Agreed) -> str:
    return f"the {type(x).__name__}" if dataclasses.is_dataclass(x) else f"a list of {len(x or ())} numbers"


def _digest(at: str, x: Agreed) -> str:
    if x is None:
        return digest(None)
    if isinstance(x, (Plan, Batch, Pipeline, Tasks)):
        return digest(_plain(x))
    try:
        return digest([operator.index(n) for n in x])
    except TypeError as error:
        raise TypeError(f"agree: {at}: {type(x).__name__}: want a Plan, Batch, Pipeline or Tasks, or a list of whole "
                        f"numbers ({error})") from None


def _plain(x: Any) -> Any:
    """As JSON has it."""
    if dataclasses.is_dataclass(x):
        return [type(x).__name__, *(_plain(getattr(x, f.name)) for f in dataclasses.fields(x))]
    if isinstance(x, Mapping):
        return {str(k): _plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [_plain(v) for v in x]
    return x


def _number(text: str) -> int:
    """Of a digest, what an int64 holds."""
    return int(text[:15], 16)


def _gathered(own: Sequence[int], group: ProcessGroup, device: Optional[torch.device]) -> list[list[int]]:
    """What all ranks have, by rank."""
    if not (dist.is_available() and dist.is_initialized()):
        return [list(own)]
    mine = torch.tensor(own, dtype=torch.int64, device=device)
    places: list[Tensor] = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    try:
        dist.all_gather(places, mine, group=group)
    except RuntimeError as error:
        raise undelivered(f"rank {dist.get_rank(group)}: agree", error) from error
    return [[int(n) for n in x.cpu()] for x in places]
