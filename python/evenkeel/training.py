"""A whole training step of a plan, at one of its members: in each micro-batch embedding, layers, loss and their
backward passes, and behind the last one AdamW; among them the exchange of gradients and parameters by the job's stage
of ZeRO.

A plan of one sequence is one micro-batch. Of several, gradients are added up: by stages 0 and 1 at the weights, which
they leave in the last one's backward pass; by stages 2 and 3 in the optimizer's float32, once they are reduced in every
one's. Stage 3 gathers parameters in every one. All members call the same collectives in the same order, those without
tokens or without a part in a micro-batch too, whose gradients are then zero.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, Optional, Protocol, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from .drawn import DTYPES, Drawn
from .kernels import Kernel
from .loss import Learning
from .meter import Trace, timed
from .parts import Lost, Part, Training, Work
from .shares import Coming, Shares
from .tokens import positions
from .units import Shapes, Units
from .whole import Around, Attend, Layer, Layers, Model, Stack, angles

REST = 0  # the unit of what is in no layer; layer i is unit i + 1

Alive = Callable[[], None]  # says that work goes on


def unit_shapes(model: Model, lost: Lost, training: Training, layers: int) -> list[Shapes]:
    """Of the weights of every unit."""
    rest: list[tuple[bool, str, tuple[int, ...]]] = [
        (True, "table", (lost.vocab, model.hidden)),
        (training.position_rows > 0, "positions", (training.position_rows, model.hidden)),
        (True, "norm", (model.hidden,)), (model.layer_norm, "norm_bias", (model.hidden,)),
        (not training.tied, "head", (model.hidden, lost.vocab)), (training.vocab_bias, "vocab_bias", (lost.vocab,)),
    ]
    return [{name: shape for there, name, shape in rest if there}, *[model.shapes()] * layers]


class Watching(Protocol):
    """Who is told what a step comes to."""

    def stays(self, unit: int) -> None:
        """A unit's backward pass is over, and its gradients stay at the weights."""

    def before(self, unit: int, piece: Tensor) -> None:
        """The same, and they leave: those of this rank alone."""

    def after(self, unit: int, grad: Tensor) -> None:
        """Those of all members and of the whole step, of what this rank updates."""


class Exchanging:
    """What of the units is under way between the members, and what was reduced."""

    def __init__(
        self, units: Units, training: Training, shares: Optional[Shares], trace: Optional[Trace], alive: Alive,
        number: int,
    ) -> None:
        """shares: None where there is one member. number: of micro-batches."""
        self._alive = alive
        self._units, self._shares, self.trace = units, shares, trace
        self._overlap, self._stage = training.overlap, training.stage if shares is not None else 0
        self._last = len(units.spans) - 1
        # Of several micro-batches a member has no room for all gradients that it does not update.
        self._adds, self._leaves = self._stage >= 2 and number > 1, True
        self._gathers: dict[int, Coming] = {}
        self._reductions: dict[int, Coming] = {}
        self._came: dict[int, Tensor] = {}
        self.watching: Optional[Watching] = None

    def clear(self) -> None:
        """Leaves nothing of a step."""
        self._gathers, self._reductions, self._came = {}, {}, {}

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Inside, nothing is gathered, and in micro-batches but the last no gradients leave."""
        stage, self._stage = self._stage, 0
        try:
            yield
        finally:
            self._stage = stage

    def begin(self, last: bool) -> None:
        """A micro-batch begins, maybe the step's last one: what is gathered of the parameters first. The rest is needed
        at both ends of the layers and stays for all of it, as frameworks keep the root unit."""
        self._leaves = last or self._stage >= 2
        if self._stage == 3:
            self._gather(REST)
            if self._overlap:
                self._gather(1)
            self._arrived("fwd", 0, [REST])

    def enter(self, layer: int, back: bool) -> None:
        """A layer is about to be run. What comes behind it is gathered meanwhile."""
        if self._stage < 3:
            return
        unit = layer + 1
        if unit not in self._gathers:
            self._gather(unit)
        self._arrived("bwd" if back else "fwd", layer, [unit])
        behind = unit - 1 if back else unit + 1
        if self._overlap and REST < behind <= self._last:
            self._gather(behind)

    def learned(self, unit: int) -> None:
        """A unit's backward pass is over: its gradients leave, unless those of later micro-batches are added first."""
        if not self._leaves:
            if self.watching is not None:
                self.watching.stays(unit)
            return
        units = self._units
        into = units.grad(unit)
        whole = units.spans[unit].padded
        travels = self._shares.travels if self._shares is not None else units.dtype
        # Where sums are in float32 and of everything they are made where the optimizer takes them.
        room = into if len(into) == whole and travels == into.dtype else into.new_empty(whole, dtype=travels)
        units.take(unit, room)
        if self.watching is not None:
            self.watching.before(unit, room)
        if self._shares is None:
            self._came[unit] = room
            return
        # What earlier micro-batches have left stays where the optimizer takes it.
        self._reductions[unit] = self._shares.reduce(_named(unit), room, into if unit not in self._came else None)
        if not self._overlap and unit != REST:
            self._settle(unit - 1)

    def settle(self) -> None:
        """A micro-batch ends: waits for what is still under way."""
        if self._reductions:
            self._settle(0)

    def end(self) -> dict[int, Tensor]:
        """Behind the last micro-batch: by unit the gradients of what this rank updates."""
        came, self._came = self._came, {}
        if self.watching is not None:
            for unit, grad in came.items():
                self.watching.after(unit, grad)
        return came

    def share(self) -> None:
        """Gives all members the parameters that each has updated, unless the next step gathers them."""
        if self._stage in (1, 2):
            for unit in range(self._last + 1):
                self._gather(unit)
            self._arrived("bwd", 0, range(self._last + 1))

    def _settle(self, layer: int) -> None:
        """Waits for all reductions, at a layer."""
        coming, self._reductions = self._reductions, {}
        with self._timed("bwd", layer, "grad_wait") as span:
            span.bytes_in = self._waited(coming.values())
        for unit, c in coming.items():
            grad = c.result
            if self._adds:
                grad = self._units.gain(unit, grad, unit not in self._came)
            self._came[unit] = grad

    def _gather(self, unit: int) -> None:
        assert self._shares is not None
        units = self._units
        self._gathers[unit] = self._shares.gather(_named(unit), units.held(unit), units.full(unit))

    def _arrived(self, direction: str, layer: int, units: Sequence[int]) -> None:
        with self._timed(direction, layer, "param_wait") as span:
            span.bytes_in = self._waited(self._gathers.pop(unit) for unit in units)

    def _waited(self, coming: Iterable[Coming]) -> int:
        """Waits for one after the other: the bytes of all."""
        n = 0
        for c in coming:
            n += c.wait()
            self._alive()
        return n

    def _timed(self, direction: str, layer: int, op: str) -> Any:
        if self.trace is not None:
            self.trace.layer, self.trace.again = layer, False
        return timed(self.trace, direction, 0, op)


@dataclass(frozen=True)
class Text:
    """A rank's tokens of a micro-batch, int64 [tokens]: which words they are, and their positions in their
    documents."""

    words: Tensor
    places: Tensor


def texts(work: Work, rank: int, vocab: int) -> list[Optional[Text]]:
    """By micro-batch what a rank trains on, None where it has no part. The sequences of all parts follow each other in
    one text, so that their words are not the same."""
    out: list[Optional[Text]] = [None] * len(work.micro)
    begin = 0
    for i, part in work.parts():
        if rank in part.ranks:
            seat = part.ranks.index(rank)
            at = positions(part.plan, seat) + begin
            out[i] = Text(words(at, vocab), positions(part.plan, seat, part.docs))
        begin += part.plan.seq_len
    return out


@dataclass
class _Mine:
    """What a rank has of a micro-batch."""

    text: Text
    stack: _Learning


class Trained:
    """A member's part in the steps of a plan, which has weights and an optimizer's state of its own: several plans
    need the memory of each. All micro-batches go through the same layers."""

    def __init__(
        self, work: Work, rank: int, layers: Layers, number: int, kernel: Kernel, device: torch.device,
        trace: Optional[Trace] = None, alive: Alive = lambda: None,
    ) -> None:
        """number: of layers. alive: called now and then where that takes its time."""
        training, lost = work.training, work.lost
        assert training is not None and lost is not None
        self._trace, self._alive, self._layers = trace, alive, number
        model, dtype, members = layers.model, DTYPES[lost.dtype], training.members
        place = self.place = members.index(rank)
        shares = None
        if len(members) > 1:
            shares = Shares(rank, members, training.group, dtype, device, training.sharded)
        self.shares = shares
        self.units = Units(unit_shapes(model, lost, training, number), place, len(members), training.sharded, dtype,
                           device)
        self.ends = Ends(lost, training, model, device)
        self.units.adopt(REST, self.ends.weights())
        self.ends.loss.adopted()
        of = []
        for i in range(number):
            of.append(layers.fresh(i))
            self.units.adopt(i + 1, of[i].weights)
            alive()
        self.exchanging = Exchanging(self.units, training, shares, trace, alive, len(work.micro))

        def mine(part: Part, text: Text) -> _Mine:
            def attend(_: int, *heads: Tensor) -> Tensor:
                return part.attention(rank, heads, kernel, trace=self._trace)

            tables = angles(text.places, model.rotary, dtype, device)
            on = Text(text.words.to(device), text.places.to(device))
            return _Mine(on, _Learning(of, attend, tables, part, trace, self.exchanging, alive))

        both = zip(work.own(rank), texts(work, rank, lost.vocab))
        self._micro = [mine(part, text) if part and text else None for part, text in both]

    @property
    def texts(self) -> list[Optional[Text]]:
        """What it trains on, by micro-batch, on its device."""
        return [of.text if of else None for of in self._micro]

    def run(
        self, begin: Callable[[int], None] = lambda _: None, end: Callable[[int], None] = lambda _: None
    ) -> None:
        """One step. begin, end: called in front of every micro-batch and behind it, with its number."""
        moving = self.exchanging
        for i in range(len(self._micro)):
            begin(i)
            self._pass(i, i == len(self._micro) - 1)
            end(i)
        came = moving.end()
        with timed(self._at(0), "bwd", 0, "optimizer"):
            self.units.update(came)
        moving.share()

    def alone(self, i: int) -> None:
        """A micro-batch of which nothing is exchanged: its gradients are added to those at the weights. All parameters
        have to be there."""
        with self.exchanging.still():
            self._pass(i, False)

    def traced(self, trace: Trace) -> None:
        """Steps leave their spans there from now on."""
        self._trace = self.exchanging.trace = trace
        for of in filter(None, self._micro):
            of.stack.traced(trace)

    def clear(self) -> None:
        """Leaves nothing of the last step but what was learned."""
        for of in filter(None, self._micro):
            of.stack.clear()
        self.ends.clear()
        self.exchanging.clear()
        for unit in range(len(self.units.spans)):
            self.units.drop(unit)

    def _pass(self, i: int, last: bool) -> None:
        """Forward and backward of a micro-batch."""
        moving, of = self.exchanging, self._micro[i]
        moving.begin(last)
        if of is None:
            self._idle()
        else:
            y = of.stack.forward(self.ends.embedded(of.text, self._at(0)))
            dx = of.stack.backward(self.ends.loss.gradient(y, self._trace))
            self.ends.learn(dx, self._at(0))
        moving.learned(REST)
        moving.settle()

    def _idle(self) -> None:
        """What a rank that has no part takes part in all the same."""
        for i in range(self._layers):
            self._alive()
            self.exchanging.enter(i, False)
        for i in reversed(range(self._layers)):
            self._alive()
            self.exchanging.enter(i, True)
            self.exchanging.learned(i + 1)

    def _at(self, layer: int) -> Optional[Trace]:
        """The trace, at a layer."""
        if self._trace is not None:
            self._trace.layer, self._trace.again = layer, False
        return self._trace


class Ends:
    """What is in front of a model's layers and behind them, at one rank: the embedding and the loss."""

    def __init__(self, lost: Lost, training: Training, model: Model, device: torch.device) -> None:
        tables = {"table": lost.vocab, **({"positions": training.position_rows} if training.position_rows else {})}
        self.tables = {name: self._table(name, rows, lost, model, device) for name, rows in tables.items()}
        self.loss = Learning(lost, model, device, self.tables["table"] if training.tied else None,
                             training.vocab_bias)
        self._out: Optional[Tensor] = None

    def weights(self) -> dict[str, Tensor]:
        """The leaves, in the order of unit_shapes."""
        return {**self.tables, **self.loss.weights()}

    def embedded(self, of: Text, trace: Optional[Trace]) -> Tensor:
        """What the first layer begins with [tokens, hidden]."""
        if not len(of.words):
            return self.tables["table"].detach()[:0]
        with timed(trace, "fwd", 0, "embed", shape={"tokens": len(of.words)}), torch.enable_grad():
            out = functional.embedding(of.words, self.tables["table"])
            if "positions" in self.tables:
                out = out + functional.embedding(of.places, self.tables["positions"])
            self._out = out
        return out.detach()

    def learn(self, dx: Tensor, trace: Optional[Trace]) -> None:
        """Of the gradient of that, the tables' ones, which are added to those that are there. They are dense, as
        frameworks have them; that of a table that is the projection too is added to the loss's."""
        if self._out is not None:
            with timed(trace, "bwd", 0, "embed", shape={"tokens": len(dx)}):
                self._out.backward(dx)
        self._out = None

    def clear(self) -> None:
        """Leaves nothing of a step."""
        self._out = None

    def _table(self, name: str, rows: int, lost: Lost, model: Model, device: torch.device) -> Tensor:
        return Drawn(lost.seed, f"embedding {name}").filled(
            rows, model.hidden, dtype=DTYPES[lost.dtype], device=device, scale=model.hidden ** -0.5).requires_grad_()


def words(at: Tensor, vocab: int) -> Tensor:
    """The token at some positions, any but the same on all ranks; far from each other, as a text's are."""
    return at * 40503 % vocab


class _Learning(Stack):
    """Layers around a part's attention, whose weights come before each pass where they are sharded, and whose gradients
    leave after the backward one."""

    def __init__(
        self, layers: Sequence[Layer], attend: Attend, tables: tuple[Tensor, Tensor], part: Part,
        trace: Optional[Trace], exchanging: Exchanging, alive: Alive,
    ) -> None:
        super().__init__(layers, attend, tables, len(layers) if part.recompute else 0, trace)
        self._part, self._exchanging, self._alive = part, exchanging, alive

    def traced(self, trace: Trace) -> None:
        """See Trained."""
        self._trace = trace
        self._linear.traced(trace)

    def _enter(self, i: int, back: bool) -> None:
        """See Stack."""
        self._alive()
        self._exchanging.enter(i, back)

    def _forward(self, i: int, x: Tensor) -> Around:
        with self._part.named():
            return super()._forward(i, x)

    def _backward(self, i: int, kept: Around, dy: Tensor) -> Tensor:
        with self._part.named():  # and not what other units have under way, whose ranks are all members
            dx = super()._backward(i, kept, dy)
        self._exchanging.learned(i + 1)
        return dx


def _named(unit: int) -> str:
    """For messages."""
    return "embeddings, last norm and projection" if unit == REST else f"layer {unit - 1}"
