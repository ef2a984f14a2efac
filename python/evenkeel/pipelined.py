"""A stage of a pipeline for a training loop: layers of any kind around the attention of the plan's chunks."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from .flow import Stages, Through, process_groups
from .graphs import Blocks
from .kernels import Kernel
from .parts import carrying, join
from .plan import PlanError, Source, check_schema, opened
from .port import ProcessGroup
from .stages import SCHEMA, Pipeline, pipeline_of
from .whole import Attend

SERVED = "evenkeel.servedpipeline/v1"  # the schema of what a server gives

# Of a layer: y [tokens, hidden] of x, of where its tokens are in their sequences (int64 [tokens]) and of its
# attention, which makes out [tokens, q_heads, head_dim] of q of that shape and of k, v [tokens, kv_heads, head_dim].
Block = Callable[[Tensor, Tensor, Callable[[Tensor, Tensor, Tensor], Tensor]], Tensor]

_SAME_STAGES = "solve --stages-of plans a batch on the stages of an earlier plan"

# (sequence, from, to): tokens of the batch that a rank has of a chunk, in its order.
Spans = Sequence[tuple[int, int, int]]


def load_pipeline(source: Source, *, q_heads: int, kv_heads: int, head_dim: int, dtype: str) -> Pipeline:
    """Reads a plan of `evenkeel solve --pipeline` from a file or a document already parsed, or one that `evenkeel
    serve --stages-of` gave, for a model with such heads. dtype: what travels between layers, f32, bf16 or f16.
    Raises PlanError, which names the field, for what cannot be run, and OSError for a file that cannot be read."""
    def read(document: Mapping[str, Any]) -> Pipeline:
        if dtype not in ("f32", "bf16", "f16"):
            raise PlanError(f"dtype: {dtype!r}: want f32, bf16 or f16")
        if document.get("schema") == SERVED:
            document = {**document, "schema": SCHEMA}
        check_schema(document, SCHEMA)
        devices = document.get("devices")
        if not isinstance(devices, list) or not devices:
            raise PlanError("devices: want a list with the device of every rank")
        model = {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim}
        ranks = [{"rank": r, "device": d} for r, d in enumerate(devices)]
        return pipeline_of({**document, "ranks": ranks, "job": {"model": model, "dtype": dtype}}, len(ranks))

    return opened(source, read)


class PipelineStage:
    """What this rank does of a pipeline. Every rank of the default process group makes one of the same plan, whose
    ranks are the group's, those in no stage too.

    layers: the numbers of the model's layers that this rank has, as a range; empty in no stage. first, last:
    whether it has the first of them, and the last. group: the process group of the stage's ranks, each of which
    has gradients of its own tokens only: what they have of a parameter adds up to its gradient.
    """

    def __init__(
        self, pipeline: Pipeline, *, hidden: int, device: Optional[torch.device] = None,
        kernel: Optional[Kernel] = None, timeout_s: float = 1800.0,
    ) -> None:
        """hidden: elements of a token between layers. timeout_s: how long a rank waits for another."""
        self._rank, size = dist.get_rank(), dist.get_world_size()
        ranks = {r for s in pipeline.stages for r in s.ranks}
        if max(ranks) >= size:
            raise ValueError(f"pipeline: has rank {max(ranks)}, and the process group {size} ranks")
        device = device or torch.device("cpu")
        self._groups = join(process_groups(pipeline), self._rank, size, timeout_s, carrying(device))
        self.pipeline, self._device, self._kernel, self._hidden = pipeline, device, kernel, hidden
        s = pipeline.stage_of(self._rank)
        self.layers, self.first, self.last = range(0), s == 0, s + 1 == len(pipeline.stages)
        self.group: ProcessGroup = None
        self._failed = False
        if s >= 0:
            of = pipeline.stages[s]
            self.layers, self.group = range(of.first, of.first + of.layers), self._groups["", of.ranks]
        self._stages = self._at_work()

    def take(self, pipeline: Pipeline) -> None:
        """Makes `pipeline` the plan of the steps from now on: of another batch, on the same stages, whose process
        groups and layers stay. Every rank takes the same one, between two steps; nothing is sent for it. Raises
        ValueError, which names what differs, for other stages or another model."""
        for name in ("q_heads", "kv_heads", "head_dim", "dtype"):
            has, other = (getattr(p, name) for p in (self.pipeline, pipeline))
            if other != has:
                raise ValueError(f"pipeline: {name}: {other!r}: want {has!r}, as before")
        had, stages = self.pipeline.stages, pipeline.stages
        if len(stages) != len(had):
            raise ValueError(f"pipeline: {len(stages)} stages: want {len(had)}, as before: {_SAME_STAGES}")
        for s, (has, other) in enumerate(zip(had, stages)):
            if (other.ranks, other.layers) != (has.ranks, has.layers):
                raise ValueError(f"pipeline: stages[{s}]: ranks {list(other.ranks)} with {other.layers} layers: want "
                                 f"{list(has.ranks)} with {has.layers}, as before: {_SAME_STAGES}")
        self.pipeline = pipeline
        self._stages = self._at_work()

    def step(
        self, blocks: Sequence[Block], embed: Callable[[Spans], Tensor], loss: Callable[[Spans, Tensor], Tensor]
    ) -> Optional[Tensor]:
        """All passes of a step, forward and backward: gradients are added to those of the parameters that blocks,
        embed and loss have. Every rank calls it.

        blocks: of the rank's layers. embed: asked on the first stage for x [tokens, hidden] of the tokens that the
        rank has of a chunk, which may be none. loss: on the last stage, of their y: its sum over all chunks and
        ranks is what is differentiated. Returns that of this rank on the last stage, None on others. An embedding
        that is the output projection, too, has a gradient on the first stage and one on the last. Raises ValueError
        for results of another shape, dtype or device. What a step has begun that failed cannot be ended: the next
        one raises RuntimeError.
        """
        if self._failed:
            raise RuntimeError("an earlier step failed, and messages of it may be under way: begin anew, in processes "
                               "of their own")
        if self._stages is None:
            return None
        if len(blocks) != len(self.layers):
            raise ValueError(f"blocks: {len(blocks)}: the stage has {len(self.layers)} layers")
        self._stages.blocks = blocks
        spans = [self.pipeline.positions(self._rank, k) for k in range(len(self.pipeline.chunks))]
        entries: dict[int, Tensor] = {}
        gradients: dict[int, Tensor] = {}
        total = torch.zeros((), device=self._device) if self.last else None

        def enter(chunk: int) -> Tensor:
            entries[chunk] = embed(spans[chunk])
            return entries[chunk].detach()

        def left(chunk: int, dx: Tensor) -> None:
            x = entries.pop(chunk)
            if x.requires_grad:
                x.backward(dx)

        def ended(chunk: int, y: Tensor) -> None:
            nonlocal total
            leaf = y.detach().requires_grad_()
            value = loss(spans[chunk], leaf)
            if value.requires_grad:  # else it is of no token
                value.backward()
            gradients[chunk] = torch.zeros_like(y) if leaf.grad is None else leaf.grad
            total = total + value.detach()

        self._failed = True
        self._stages.run(enter, lambda chunk: gradients.pop(chunk), ended, left)
        self._failed = False
        return total

    def _at_work(self) -> Optional[_Modules]:
        """What runs the plan on this rank, None where it is in no stage."""
        if not self.layers:
            return None
        return _Modules(self.pipeline, self._rank, self._kernel, self._groups, self._hidden, self._device)


class _Modules(Stages):
    """Stages of blocks with autograd."""

    blocks: Sequence[Block] = ()

    def through(self, chunk: int, attend: Attend) -> Through:
        """See Stages."""
        at = self.positions(chunk).to(self._device)

        def around(i: int) -> Callable[[Tensor], Tensor]:
            return lambda x: self.blocks[i](x, at, lambda q, k, v: attend(i, q, k, v))

        return Blocks([around(i) for i in range(len(self.blocks))], self.of.again[chunk])
