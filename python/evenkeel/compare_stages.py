"""Whether a pipeline runs right: the attention of every stage over all chunks, and all layers together, against
one device; messages and FLOPs against the closed forms.
"""

from __future__ import annotations

import math
import random
from typing import Any, Callable, Mapping, Sequence

import torch
from torch import Tensor

from . import reference
from .chunk import Stores, chunk_attention
from .closed import SENDS, Expected, expected_stages
from .compare import Checking
from .flow import Flow
from .judge import (
    AFFORDABLE, LAYER, LIMITS, NAMES, Found, Judge, Sizes, attention_wants, chosen, counted, layer_work,
)
from .meter import Meter
from .parts import Members, named
from .plan import Segment
from .port import ProcessGroup
from .stages import Pipeline


class CheckStages:
    """The checks of a pipeline on one rank. All ranks call the same methods in the same order."""

    def __init__(self, pipeline: Pipeline, groups: Mapping[Members, ProcessGroup], of: Checking) -> None:
        assert of.layers is not None
        self._plan, self._groups, self._of, self._model = pipeline, groups, of, of.layers.model
        self._rank, self._size = of.meeting.world.rank, of.meeting.world.size
        self._name = f"plan {of.number}"
        self._judge = Judge(self._name, of.meeting, of.wires, of.frames)
        self._stage = pipeline.stage_of(self._rank)
        self._starts = [sum(pipeline.lengths[:i]) for i in range(len(pipeline.lengths))]
        self._sizes = [chosen(n, pipeline.kv_heads, of.sampled_above, of.seed) for n in pipeline.lengths]
        self._want = expected_stages(pipeline, self._model.hidden)
        self._ran = self._affordable()

    def run(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The plan's entries in `numerics` and `exact`."""
        found = self._judge.judged("attention", self._attention(), self._attention_rows, self._attention_errors)
        got = self._layers()
        entry = {"plan": self._of.number, **found, "layer": self._whole(got)}
        return entry, {"plan": self._of.number, "messages": len(self._want.bytes),
                       "bytes": sum(self._want.bytes.values()), "flops": sum(self._want.flops.values())}

    def _attention(self) -> list[Tensor]:
        """Runs one layer's attention of all chunks, forward and then backward, on every stage for itself. Returns,
        of one sequence after the other, what is compared of out, dq, dk and dv."""
        kept: list[tuple[list[Tensor], Tensor]] = []
        meter, whole = Meter(), Meter()
        if self._stage >= 0:
            ranks = self._plan.stages[self._stage].ranks
            with named(f"stage {self._stage}", ranks):
                kept = self._one_layer(meter)
            whole.add(meter, ranks)
        counted(self._name, self._rank, whole, _without(self._want, SENDS))
        chunks = [[out.detach(), *(x.grad for x in leaves)] for leaves, out in kept]
        return self._picked(chunks)

    def _one_layer(self, meter: Meter) -> list[tuple[list[Tensor], Tensor]]:
        """By chunk q, k and v with their gradients, and out, of a rank in a stage."""
        kept: list[tuple[list[Tensor], Tensor]] = []
        stores: Stores = {}
        ranks, (_, place) = self._plan.stages[self._stage].ranks, self._plan.seat(self._rank)
        at = [self._at(self._rank, k) for k in range(len(self._plan.chunks))]
        for k, pieces in enumerate(self._plan.chunks):
            leaves = [self._of.inputs.heads(n, at[k]).requires_grad_() for n in ("q", "k", "v")]
            plan = self._plan.plan(self._stage, k)
            out = chunk_attention(plan, place, leaves, pieces, stores, group=self._groups["", ranks],
                                  kernel=self._of.kernel, meter=meter)
            kept.append((leaves, out))
        for k in reversed(range(len(kept))):
            kept[k][1].backward(self._of.inputs.heads("dout", at[k]))
        return kept

    def _picked(self, chunks: list[list[Any]]) -> list[Tensor]:
        like = self._of.inputs.heads("q", torch.arange(0)), self._of.inputs.heads("k", torch.arange(0))
        out = []
        for i, s in enumerate(self._sizes):
            at = self._positions(self._rank, i)
            own = [torch.cat([like[j > 1], *(x[j][rows] for x, rows in zip(chunks, self._rows(self._rank, i)))])
                   for j in range(4)]
            here = torch.isin(at, s.at).to(own[0].device)
            out += [x[here] for x in own[:2]] + [x[:, list(s.kv_heads)] for x in own[2:]]
        return out

    def _attention_rows(self, rank: int) -> list[int]:
        out = []
        for i, s in enumerate(self._sizes):
            at = self._positions(rank, i)
            out += [int(torch.isin(at, s.at).sum())] * 2 + [len(at)] * 2
        return out

    def _attention_errors(self, parts: list[list[Tensor]]) -> Found:
        errors: dict[str, list[float]] = {n: [0.0] * self._size for n in NAMES}
        answers = [self._attention_wants(i, s) for i, s in enumerate(self._sizes)]
        # Over all sequences: dq and dk of one with a single token are zero but for rounding.
        scales = [math.hypot(*(float(x.norm()) for x in side)) for side in zip(*answers)]
        for i, (s, wants) in enumerate(zip(self._sizes, answers)):
            for r, got in enumerate(parts):
                at = self._positions(r, i)
                rows = torch.searchsorted(s.at, at[torch.isin(at, s.at)])
                of = zip(NAMES, got[4 * i:4 * i + 4], wants, [rows] * 2 + [at] * 2, scales)
                for name, x, want, index, scale in of:
                    off = reference.error(x, want[index.to(want.device)], scale)
                    errors[name][r] = max(errors[name][r], off)
        sampled = sum(len(s.at) for s in self._sizes if not s.dense)
        limit = LIMITS[self._plan.dtype]
        return errors, limit, {"limit": limit, "reference": "sampled" if sampled else "dense", "rows": sampled}

    def _attention_wants(self, sequence: int, s: Sizes) -> list[Tensor]:
        n, start = self._plan.lengths[sequence], self._starts[sequence]

        def take(name: str, at: Tensor, lo: int = 0, hi: Any = None) -> Tensor:
            return self._of.inputs.heads(name, at + start, lo, hi)

        return attention_wants(take, n, (Segment(0, n),), self._plan.q_heads, self._plan.kv_heads, s,
                               lambda: self._judge.tick("attention"))

    def _layers(self) -> list[Tensor]:
        """Runs a step, and compares what stages send. Returns output and gradient of the input of the sequences
        that are compared whole, one after the other, as far as the rank has them."""
        like = self._of.inputs.wide("x", torch.arange(0), self._model.hidden)
        sent, found = Meter(), [dict[int, Tensor](), dict[int, Tensor]()]
        if self._stage >= 0:
            stage = self._plan.stages[self._stage]
            assert self._of.layers is not None
            flow = Flow(self._plan, self._rank, self._of.layers.at(stage.first, stage.layers), self._of.kernel,
                        self._groups, self._of.wires.device)
            given = [self._given(name) for name in ("x", "dy")]
            flow.run(given[0], given[1], found[0].__setitem__, found[1].__setitem__)
            flow.clear()
            sent = flow.sent()
        want = Expected({k: n for k, n in self._want.bytes.items() if k[2] in SENDS})
        counted(self._name, self._rank, sent, want)
        out = []
        for i in self._ran:
            pieces = self._rows(self._rank, i)
            for of in found:
                out.append(torch.cat([like, *(of[k][rows] for k, rows in enumerate(pieces) if k in of)]))
        return out

    def _given(self, name: str) -> Callable[[int], Tensor]:
        return lambda k: self._of.inputs.wide(name, self._at(self._rank, k), self._model.hidden)

    def _whole(self, got: list[Tensor]) -> dict[str, Any]:
        """The entry's `layer`: errors of the last layer's output and of the first one's gradient."""
        # Each layer's roundings go through all behind it.
        limit = LAYER * LIMITS[self._plan.dtype] * self._plan.layers
        if not self._ran:
            most = AFFORDABLE[self._of.wires.device.type]
            said = (f"no sequence has up to {self._of.sampled_above} tokens and a reference of "
                    f"{self._plan.layers} layers that takes up to {most:.0e} FLOPs")
            return {"out": 0.0, "dx": 0.0, "limit": limit, "skipped": said}
        ends = len(self._plan.stages) - 1, 0

        def rows(rank: int) -> list[int]:
            s = self._plan.stage_of(rank)
            return [len(self._positions(rank, i)) * (s == end) for i in self._ran for end in ends]

        return self._judge.judged("layers", got, rows, lambda parts: self._layer_errors(parts, ends, limit))

    def _layer_errors(self, parts: list[list[Tensor]], ends: Sequence[int], limit: float) -> Found:
        errors: dict[str, list[float]] = {"out": [0.0] * self._size, "dx": [0.0] * self._size}
        for j, i in enumerate(self._ran):
            wants = self._answer(i)
            for r, got in enumerate(parts):
                at = self._positions(r, i)
                for side, (name, want) in enumerate(zip(errors, wants)):
                    if self._plan.stage_of(r) == ends[side]:
                        off = reference.error(got[2 * j + side], want[at.to(want.device)], float(want.norm()))
                        errors[name][r] = max(errors[name][r], off)
        return errors, limit, {"limit": limit}

    def _answer(self, sequence: int) -> tuple[Tensor, Tensor]:
        """The last layer's output and the gradient of the first one's input, of one device."""
        assert self._of.layers is not None
        n = self._plan.lengths[sequence]
        of = reference.Attention(n, (Segment(0, n),), lambda: self._judge.tick("layers"))
        at = torch.arange(n)
        x, dy = (self._of.inputs.wide(name, at + self._starts[sequence], self._model.hidden).double()
                 for name in ("x", "dy"))
        inputs = [x]
        for i in range(self._plan.layers):
            layer = self._of.layers.alone(i)
            inputs.append(reference.layer(self._model, layer.weights, of, inputs[-1], torch.zeros_like(x), at)[0])
        out = inputs.pop()
        for i in reversed(range(self._plan.layers)):
            dy = reference.layer(self._model, self._of.layers.alone(i).weights, of, inputs.pop(), dy, at)[1]
        return out, dy

    def _affordable(self) -> list[int]:
        """The sequences whose reference of all layers is made: in an order by seed, those in slices first, as
        many as there is time for."""
        sliced = {p.sequence for pieces in self._plan.chunks for p in pieces if p.last}
        order = list(range(len(self._plan.lengths)))
        random.Random(self._of.seed).shuffle(order)
        left, out = AFFORDABLE[self._of.wires.device.type], []
        for i in sorted(order, key=lambda i: i not in sliced):
            n = self._plan.lengths[i]
            # Forward twice, for the backward needs what goes into every layer.
            work = 2 * self._plan.layers * layer_work(self._model, n, n * n)
            if n <= self._of.sampled_above and work <= left:
                left -= work
                out.append(i)
        return sorted(out)

    def _at(self, rank: int, chunk: int) -> Tensor:
        """Where the inputs of a rank's tokens of a chunk are: sequences lie one behind the other."""
        of = self._plan.positions(rank, chunk)
        return torch.cat([torch.arange(0), *(torch.arange(lo, hi) + self._starts[q] for q, lo, hi in of)])

    def _rows(self, rank: int, sequence: int) -> list[slice]:
        """By chunk, which of a rank's rows are a sequence's."""
        out = []
        for k in range(len(self._plan.chunks)):
            at, rows = 0, slice(0, 0)
            for q, lo, hi in self._plan.positions(rank, k):
                if q == sequence:
                    rows = slice(at, at + hi - lo)
                at += hi - lo
            out.append(rows)
        return out

    def _positions(self, rank: int, sequence: int) -> Tensor:
        """Which of a sequence's tokens a rank has, rising."""
        of = [x for k in range(len(self._plan.chunks)) for x in self._plan.positions(rank, k)]
        return torch.cat([torch.arange(0), *(torch.arange(lo, hi) for q, lo, hi in of if q == sequence)])


def _without(want: Expected, phases: Sequence[str]) -> Expected:
    return Expected({k: n for k, n in want.bytes.items() if k[2] not in phases}, want.flops)
