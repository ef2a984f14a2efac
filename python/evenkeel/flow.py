"""One rank's stage of a pipeline at work: the passes of all chunks, in the plan's order.

A chunk's activations leave for the next stage when they are computed, and its gradients for the one before; they
travel while something else is computed. Each boundary between stages has a process group a direction, so that with
NCCL what goes one way never waits for what goes the other. Both sides have the messages of a direction in the
order in which the sender computes them; a receiver makes room for a few ahead of those that it has taken.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Protocol, Sequence

import torch
from torch import Tensor

from .chunk import Stores, chunk_attention
from .drawn import DTYPES
from .frames import Place
from .graphs import fitting
from .kernels import Kernel, default_kernel
from .mail import Mail, Room, cut
from .meter import Meter, Trace, timed
from .parts import Members, named
from .plan import Segment
from .port import ProcessGroup
from .stages import Pipeline
from .whole import Attend, Layer, Stack, angles

Given = Callable[[int], Tensor]  # of a chunk: the rank's rows [tokens, hidden]
Taken = Callable[[int, Tensor], None]


class Way(Mail):
    """Messages of one direction over one boundary, at one rank."""

    def __init__(
        self, pipeline: Pipeline, rank: int, source: int, target: int, group: ProcessGroup, like: Tensor
    ) -> None:
        """source, target: stages. group: the ranks of both, rising. like [0, hidden]: of the messages."""
        phase = "fwd.send" if source < target else "bwd.send"
        super().__init__(f"from stage {source} to {target}", phase, rank, both_of(pipeline, source, target), group,
                         like.device)
        self._plan, self._rank, self._like, self._stages = pipeline, rank, like, (source, target)
        self._order = [p.chunk for p in pipeline.stages[source].order if p.backward == (source > target)]
        self._room = Room(self._order, self._expect)

    def send(self, chunk: int, x: Tensor) -> None:
        """The rank's rows of a chunk leave for the ranks that have them in the next stage."""
        self.post(chunk, cut(x.contiguous(), *self._rows(chunk, *self._stages)))

    def arrived(self, chunk: int) -> tuple[Tensor, int]:
        """Waits for the rank's rows of a chunk; bytes that came for them."""
        self._room.take(chunk)
        x = self.take(chunk)
        return x, x.numel() * x.element_size()

    def end(self) -> None:
        """See Mail."""
        super().end()
        self._room.end()

    def begin(self) -> None:
        """Makes room for the first messages, where the rank receives some that need nothing of it."""
        if self._phase == "fwd.send" and self._rank in self._plan.stages[self._stages[1]].ranks:
            self._room.ready(self._order)

    def done(self, chunk: int) -> None:
        """The rank has done what a chunk's message needs of it."""
        self._room.ready([chunk])

    def _expect(self, chunk: int) -> None:
        mine, others = self._rows(chunk, *reversed(self._stages))
        x = self._like.new_empty(mine.end - mine.start, self._like.shape[1])
        self.expect(chunk, x, cut(x, mine, others))

    def _rows(self, chunk: int, own: int, other: int) -> tuple[Segment, list[tuple[int, Segment]]]:
        """This rank's rows, and those of the other stage's ranks with their places in the group."""
        stages = self._plan.stages
        mine = self._plan.rows(own, stages[own].ranks.index(self._rank), chunk)
        ranks = stages[other].ranks
        return mine, [(self._at.index(r), self._plan.rows(other, i, chunk)) for i, r in enumerate(ranks)]


class Through(Protocol):
    """The layers of a stage as one chunk goes through them."""

    def forward(self, x: Tensor) -> Tensor:
        """The last layer's output of x [tokens, hidden]."""

    def backward(self, dy: Tensor) -> Tensor:
        """The gradient of x."""


class Stages:
    """A rank's stage, for any number of steps. What its layers compute is a subclass's."""

    def __init__(
        self, pipeline: Pipeline, rank: int, kernel: Optional[Kernel], groups: Mapping[Members, ProcessGroup],
        hidden: int, device: torch.device, trace: Optional[Trace] = None,
    ) -> None:
        """groups: those of process_groups. kernel: of attention, the fastest there is by default. hidden: elements of
        a token between layers."""
        self.pipeline, self._rank, self._device, self._trace = pipeline, rank, device, trace
        s, self._place = pipeline.seat(rank)
        self._stage, self.of = s, pipeline.stages[s]
        self._group = groups["", self.of.ranks]
        like = self._like = torch.empty(0, hidden, dtype=DTYPES[pipeline.dtype], device=device)
        self._kernel = kernel or default_kernel(like.new_empty(0, 0, pipeline.head_dim))

        def way(source: int, target: int) -> Optional[Way]:
            if min(source, target) < 0 or max(source, target) == len(pipeline.stages):
                return None
            group = groups[direction(source, target), both_of(pipeline, source, target)]
            return Way(pipeline, rank, source, target, group, like)

        self._before, self._behind = (way(s - 1, s), way(s, s - 1)), (way(s, s + 1), way(s + 1, s))
        self._stores: list[Stores] = []
        self._under_way: dict[int, Through] = {}

    def through(self, chunk: int, attend: Attend) -> Through:
        """The stage's layers for a chunk; attend is their attention."""
        raise NotImplementedError

    def positions(self, chunk: int) -> Tensor:
        """Where the rank's tokens of a chunk are in their sequences."""
        of = [torch.arange(lo, hi) for _, lo, hi in self.pipeline.positions(self._rank, chunk)]
        return torch.cat([torch.arange(0), *of])

    def run(
        self, first_input: Given, last_gradient: Given, output: Optional[Taken] = None,
        input_gradient: Optional[Taken] = None, place: Optional[Place] = None,
    ) -> None:
        """All passes of one step. first_input, last_gradient: what the first stage takes, and what the last one
        begins its backward with; output, input_gradient: who gets what these end with, if anybody."""
        self._stores, self._under_way = [{} for _ in range(self.of.layers)], {}
        ways = self._ways()
        for w in ways:
            w.begin()
        for p in self.of.order:
            if self._trace is not None:
                self._trace.mb = p.chunk
            if place is not None:
                place.mb = p.chunk
            if p.backward:
                self._backward(p.chunk, last_gradient, input_gradient)
            else:
                self._forward(p.chunk, first_input, output)
        for w in ways:
            w.end()

    def sent(self) -> Meter:
        """What went to other stages and came from them, in all steps so far."""
        meter = Meter()
        for way in self._ways():
            way.count(meter)
        return meter

    def _ways(self) -> list[Way]:
        return [w for w in (*self._before, *self._behind) if w]

    def _forward(self, chunk: int, given: Given, output: Optional[Taken]) -> None:
        x = self._arrived("fwd", self.of.first, self._before[0], chunk, given)
        plan, pieces = self.pipeline.plan(self._stage, chunk), self.pipeline.chunks[chunk]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return chunk_attention(plan, self._place, (q, k, v), pieces, self._stores[layer], group=self._group,
                                   kernel=self._kernel, trace=self._trace)

        through = self._under_way[chunk] = self.through(chunk, attend)
        with self._named():
            y = through.forward(x).detach()
        _passed(self._behind[0], output, chunk, y)
        if self._behind[1] is not None:
            self._behind[1].done(chunk)

    def _backward(self, chunk: int, given: Given, input_gradient: Optional[Taken]) -> None:
        dy = self._arrived("bwd", self.of.first + self.of.layers - 1, self._behind[1], chunk, given)
        if self._behind[0] is not None:
            self._behind[0].answered(chunk)
        through = self._under_way.pop(chunk)
        with self._named():
            dx = through.backward(dy)
        _passed(self._before[1], input_gradient, chunk, dx)

    def _named(self) -> Any:
        return named(f"stage {self._stage}", self.of.ranks)

    def _arrived(self, direction: str, layer: int, way: Optional[Way], chunk: int, given: Given) -> Tensor:
        """What comes from the stage before, or behind."""
        if way is None:
            rows = self.pipeline.rows(self._stage, self._place, chunk)
            x = given(chunk)
            fitting(x, self._like.new_empty(rows.end - rows.start, self._like.shape[1]), f"chunk {chunk}: what is given")
            return x
        if self._trace is not None:
            self._trace.layer, self._trace.again = layer, False
        with timed(self._trace, direction, 0, "stage_wait") as span:
            x, span.bytes_in = way.arrived(chunk)
        return x


class Flow(Stages):
    """A rank's stage of the layers that replay runs. Gradients of weights are dropped after each pass, as no price
    has adding them up."""

    def __init__(
        self, pipeline: Pipeline, rank: int, layers: Sequence[Layer], kernel: Kernel,
        groups: Mapping[Members, ProcessGroup], device: torch.device, trace: Optional[Trace] = None,
    ) -> None:
        """layers: the stage's."""
        model, self._layers = layers[0].model, layers
        super().__init__(pipeline, rank, kernel, groups, model.hidden, device, trace)
        self._tables = [angles(self.positions(k), model.rotary, DTYPES[pipeline.dtype], device)
                        for k in range(len(pipeline.chunks))]

    def through(self, chunk: int, attend: Attend) -> Through:
        """See Stages."""
        of = self.of
        return _Dropping(self._layers, attend, self._tables[chunk], of.again[chunk], self._trace, of.first)

    def clear(self) -> None:
        """Leaves nothing of the last step."""
        self._stores, self._under_way = [], {}
        for layer in self._layers:
            layer.clear()


class _Dropping(Stack):
    def backward(self, dy: Tensor) -> Tensor:
        """See Stack."""
        dx = super().backward(dy)
        self.clear()
        return dx


def direction(source: int, target: int) -> str:
    """The name of the process group for what one stage sends to another."""
    return f"{source} to {target}"


def both_of(pipeline: Pipeline, a: int, b: int) -> tuple[int, ...]:
    """The ranks of two stages."""
    return tuple(sorted((*pipeline.stages[a].ranks, *pipeline.stages[b].ranks)))


def process_groups(pipeline: Pipeline) -> list[Members]:
    """Those that a pipeline needs: of every stage, and of every boundary in either direction."""
    out = [("", s.ranks) for s in pipeline.stages]
    for i in range(len(pipeline.stages) - 1):
        out += [(direction(*ends), both_of(pipeline, *ends)) for ends in ((i, i + 1), (i + 1, i))]
    return out


def _passed(way: Optional[Way], taken: Optional[Taken], chunk: int, x: Tensor) -> None:
    if way is not None:
        way.send(chunk, x)
    elif taken is not None:
        taken(chunk, x)
