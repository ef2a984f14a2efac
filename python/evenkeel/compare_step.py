"""Whether whole steps of a plan run right: one of them, of which the sums of gradients are held against what the
ranks had, the update against AdamW in float64, and the parameters of every rank against those of whoever has updated
them. Before it, the embedding and its gradient. Of a plan of batches also what each micro-batch adds to a rank's
gradients, against the same micro-batch run alone, and nothing of ranks that have no part in it.

Of every weight some elements are compared, as task_weights.Picks has them. That layers and the loss compute the
right thing is checked apart.
"""

from __future__ import annotations

import math
from typing import Any, Mapping, Optional, Sequence

import torch
from torch import Tensor

from . import reference
from .compare import Checking
from .drawn import DTYPES
from .judge import LAYER, LIMITS, Found, Judge
from .parts import Training, Work
from .task_weights import Picks, apart
from .training import REST, Text, Trained, texts, unit_shapes
from .units import Shapes, Span

# Of |got - want| / |want - old|, of float32 parameters. An update changes a parameter by about the learning rate, 1e-4,
# and both its roundings are up to 6e-8 of a parameter near 1, such as a norm's: 5e-4 of the change. Weights of matrices
# are much smaller, and so is their error. What a wrong constant or a skipped element makes is 1e-2 and more.
_UPDATE = 1e-3

_FLOAT32 = 4  # bytes


class _Seen:
    """What a rank saw of a step, by unit: of its own gradients all picks, else of what it updates. added: how far what
    its micro-batches added to its gradients is off, at worst; infinite where not each did so once."""

    def __init__(
        self, at: "_At", trained: Trained, alone: Sequence[Sequence[Tensor]], chunks: Sequence[int]
    ) -> None:
        """alone: by micro-batch and unit, what that adds; empty where that is not compared. chunks: of the loss, by
        micro-batch."""
        self._at, self._units = at, trained.units
        self._place = trained.place
        self.own: dict[int, Tensor] = {}
        self.came: dict[int, Tensor] = {}
        self._alone, self._chunks, self._worst = alone, chunks, 0.0
        self._told = [0] * len(at.picks)
        self._there: dict[int, Tensor] = {}  # at the weights

    @property
    def added(self) -> float:
        """See the class."""
        each = len(self._alone)
        return self._worst if all(n == each for n in self._told) or not each else math.inf

    def stays(self, unit: int) -> None:
        """See training.Watching."""
        there = self._at.at_weights(unit, self._units.weights(unit))
        self._adds(unit, there)
        self._there[unit] = there

    def before(self, unit: int, piece: Tensor) -> None:
        """See training.Watching."""
        left = piece[self._at.picks[unit].to(piece.device)].float()
        self._adds(unit, left)
        self.own[unit] = self.own[unit] + left if unit in self.own else left

    def _adds(self, unit: int, there: Tensor) -> None:
        """Holds what has come to a unit's gradients, which are `there`, against that of the micro-batch alone. Its
        error is one beside the sum, less what rounding may make of that: half an eps a time, of both. A norm in front
        of both halves of a layer is added twice, the projection's gradient chunk by chunk and then the embedding's.
        Where a rank has nothing to add, to the bit nothing is added."""
        number = self._told[unit]
        self._told[unit] += 1
        if number >= len(self._alone):
            return
        was, counts, rounded = torch.zeros_like(there), self._at.counts[unit], 0.0
        if unit in self._there:
            was = self._there[unit]
            rounded = (self._chunks[number] + 1 if unit == REST else 2) * torch.finfo(self._units.dtype).eps
        due = self._alone[number][unit].to(there.device)
        nothing = not bool(due.any())
        for x, before, want in zip(*(of.double().split(counts) for of in (there, was, due))):
            off, scale = float((x - before - want).norm()), float(want.norm()) + float(before.norm())
            off = off / (scale or 1.0) - rounded if not nothing else math.inf if off else 0.0
            self._worst = max(self._worst, off if math.isfinite(off) else math.inf)

    def after(self, unit: int, grad: Tensor) -> None:
        """See training.Watching."""
        self.came[unit] = self.of_part(unit, grad).float()

    def of_part(self, unit: int, x: Tensor) -> Tensor:
        """Those of what this rank updates of a unit, of all that it does."""
        at = self._at.own(unit, self._place) - self._units.part(unit).start
        return x[at.to(x.device)].clone()


class _At:
    """Which elements of units are compared."""

    def __init__(self, training: Training, shapes: Sequence[Shapes]) -> None:
        """shapes: of all units."""
        self._of = [Picks(x.values()) for x in shapes]
        self.training, self.counts = training, [x.counts for x in self._of]
        self.picks = [x.places() for x in self._of]
        self.spans = [Span.of(x, len(training.members)) for x in shapes]

    def at_weights(self, unit: int, weights: Mapping[str, Tensor]) -> Tensor:
        """Of the gradients at a unit's weights, zeros where there are none."""
        return self._of[unit].joined([torch.zeros_like(w) if w.grad is None else w.grad for w in weights.values()])

    def own(self, unit: int, place: int) -> Tensor:
        """Of what a member updates, rising."""
        part = self.spans[unit].part(place, self.training.sharded)
        picks = self.picks[unit]
        return picks[(picks >= part.start) & (picks < part.stop)]

    def within(self, unit: int, place: int) -> Tensor:
        """Where those are among the unit's."""
        return torch.searchsorted(self.picks[unit], self.own(unit, place))

    def lengths(self, rank: int, whole: bool) -> list[int]:
        """How many there are by unit: all, or of what a rank updates."""
        members = self.training.members
        if rank not in members:
            return [0] * len(self.picks)
        return [len(x) if whole else len(self.own(i, members.index(rank))) for i, x in enumerate(self.picks)]

    def parameters(self) -> int:
        """How many all units have, without padding."""
        return sum(span.size for span in self.spans)


class CheckStep:
    """The check of one rank. All ranks run it, also those that take no part in the plan."""

    def __init__(self, work: Work, layers: int, trained: Optional[Trained], of: Checking) -> None:
        training, lost = work.training, work.lost
        assert of.layers is not None and training is not None and lost is not None
        self._work, self._training, self._trained, self._dtype = work, training, trained, lost.dtype
        self._at = _At(training, unit_shapes(of.layers.model, lost, training, layers))
        self._texts = texts(work, of.meeting.world.rank, lost.vocab)
        self._chunks = [-(-len(x.words) // lost.chunk) if x is not None else 0 for x in self._texts]
        self._wires, self._size, self._inputs = of.wires, of.meeting.world.size, of.inputs
        self._device = of.wires.device
        self._judge = Judge(f"plan {of.number}", of.meeting, of.wires, of.frames)

    def run(self) -> dict[str, Any]:
        """The plan's entries `exchange`, where there are several members, and `update`."""
        self._embedding()
        alone = self._alone() if self._work.batched else []
        tensors = [torch.empty(0, device=self._device)] * 10
        if self._trained is not None:
            tensors = self._step(self._trained, alone)
        else:
            for i in range(len(self._work.micro)):
                self._meets(i)
        added, own, came, means, old, *after, full, held = tensors
        entry: dict[str, Any] = {}
        several = len(self._training.members) > 1
        if self._work.batched:
            self._added(added)
        if several:
            entry["exchange"] = self._exchange([own, came, means])
        entry["update"] = self._update([came, old, *after])
        if several:
            # Of stage 3 the next step gathers what was updated: this one has had what was there before.
            self._alike([old if self._training.stage == 3 else after[0], full, after[0], held])
        return entry

    def _embedding(self) -> None:
        """Fault(numerics) unless a rank's tokens of every micro-batch are looked up right, and gradients of that go to
        their rows."""
        mine = torch.zeros(0)
        if self._trained is not None:
            each = [self._looked_up(self._trained, of, due) for of, due in zip(self._trained.texts, self._texts)
                    if due is not None]
            mine = torch.tensor([max(of) for of in zip(*each)] if each else [0.0, 0.0])

        def errors(parts: list[list[Tensor]]) -> Found:
            limit = LAYER * LIMITS[self._dtype]
            of = [x.tolist() or [0.0, 0.0] for x, in parts]
            return {"what is looked up": [x[0] for x in of], "the tables' gradient": [x[1] for x in of]}, limit, {}

        self._judge.judged("embedding", [mine.to(self._device)],
                           lambda r: [2 * (r in self._training.members)], errors, "the tables' rows")

    def _looked_up(self, trained: Trained, of: Optional[Text], due: Text) -> tuple[float, float]:
        """How far the embedding of a micro-batch's tokens and its tables' gradients are off. of: what is trained on,
        due: what is to be."""
        assert of is not None
        ends, own = trained.ends, []
        out = ends.embedded(of, None)
        dx = self._inputs.wide("dy", torch.arange(len(out)), out.shape[1])
        ends.learn(dx, None)
        want = torch.zeros(len(due.words), out.shape[1], dtype=torch.float64, device=out.device)
        for name, at in (("table", due.words), ("positions", due.places)):
            if name in ends.tables:
                table, rows = ends.tables[name], at.to(out.device)
                want += table.detach().double()[rows]
                grad = torch.zeros_like(table, dtype=torch.float64).index_add_(0, rows, dx.double())
                own.append(0.0 if table.grad is None and not len(out) else reference.error(
                    table.grad if table.grad is not None else torch.zeros_like(table), grad, float(grad.norm())))
                table.grad = None
        return reference.error(out, want, float(want.norm())), max(own)

    def _alone(self) -> list[list[Tensor]]:
        """By micro-batch and unit, the gradients of this rank, on the host and in the precision that they have. All
        ranks meet behind each, so that nobody waits for another's micro-batches of a whole step."""
        out, trained = [], self._trained
        for i in range(len(self._work.micro)):
            if trained is not None:
                trained.alone(i)
                weights = [trained.units.weights(unit) for unit in range(len(self._at.picks))]
                out.append([self._at.at_weights(unit, of).to("cpu", trained.units.dtype)
                            for unit, of in enumerate(weights)])
                trained.clear()
            self._wires.barrier()
        return out

    def _meets(self, i: int) -> None:
        """All ranks between a micro-batch and the next, as when steps are timed."""
        if i < len(self._work.micro) - 1:
            self._wires.barrier()

    def _added(self, mine: Tensor) -> None:
        """Fault(numerics) unless every micro-batch adds to a rank's gradients what it has alone, once."""
        limit = LAYER * LIMITS[self._dtype]

        def errors(parts: list[list[Tensor]]) -> Found:
            return {"what a micro-batch adds": [max(x.tolist(), default=0.0) for x, in parts]}, limit, {}

        self._judge.judged("gradients", [mine], lambda r: [1 * (r in self._training.members)], errors,
                           "that micro-batch alone")

    def _step(self, trained: Trained, alone: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Runs one, and returns what is compared."""
        seen = _Seen(self._at, trained, alone, self._chunks)
        units, number = trained.units, range(len(self._at.picks))

        def part(of: Any) -> Tensor:
            return torch.cat([seen.of_part(i, of(i)) for i in number]).float()

        def begin(_: int) -> None:
            if self._training.stage == 3 and trained.shares is not None:
                for i in number:  # what a micro-batch does not gather is not there
                    units.full(i).fill_(math.nan)

        old = part(units.master)
        trained.exchanging.watching = seen
        trained.run(begin, self._meets)
        trained.exchanging.watching = None
        trained.clear()
        moments = [units.split(x) for x in (units.optimizer.moment1, units.optimizer.moment2)]
        after = [part(units.master), *(part(x.__getitem__) for x in moments)]
        full = torch.cat([units.full(i)[self._at.picks[i].to(self._device)] for i in number]).float()
        means = torch.zeros(0)
        if trained.shares is not None:
            travels = torch.empty(0, dtype=trained.shares.travels).element_size()
            means = torch.tensor([travels, trained.shares.kind == "reduce_scatter"], dtype=torch.float32)
        joined = [torch.cat([of[i] for i in number]) for of in (seen.own, seen.came)]
        added = torch.tensor([seen.added], device=self._device)
        return [added, *joined, means.to(self._device), old, *after, full, part(units.held)]

    def _rows(self, rank: int, *whole: bool) -> list[int]:
        return [sum(self._at.lengths(rank, of)) for of in whole]

    def _exchange(self, mine: list[Tensor]) -> dict[str, Any]:
        """The entry: how far sums are off, in which precision gradients were added up, and by what."""
        members = self._training.members
        entry = self._judge.judged("exchange", mine, lambda r: [*self._rows(r, True, False), 2 * (r in members)],
                                   self._exchange_errors, "what the ranks had, added up in float64")
        return {"sum": entry.pop(_SUM), **entry}

    def _exchange_errors(self, parts: list[list[Tensor]]) -> Found:
        """By rank, of the worst weight."""
        at, members = self._at, self._training.members
        own = {r: parts[r][0].split(at.lengths(r, True)) for r in members}
        came = {r: parts[r][1].split(at.lengths(r, False)) for r in members}
        worst = [0.0] * self._size
        for unit, counts in enumerate(at.counts):
            had = [own[r][unit].double() for r in members]
            weight = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
            for place, r in enumerate(members):
                within = at.within(unit, place)
                mine = [x[within.to(x.device)] for x in had]
                sizes = torch.bincount(weight[within], minlength=len(counts)).tolist()
                for got, *of in zip(came[r][unit].double().split(sizes), *(x.split(sizes) for x in mine)):
                    if len(got):
                        worst[r] = max(worst[r], apart(got, of))
            self._judge.tick("exchange")
        size, scatters = parts[members[0]][2].tolist()
        dtype = "f32" if size == _FLOAT32 else self._dtype
        more = {"limit": LIMITS[dtype], "dtype": dtype, "kind": "reduce_scatter" if scatters else "all_reduce"}
        return {_SUM: worst}, LIMITS[dtype], more

    def _update(self, mine: list[Tensor]) -> dict[str, Any]:
        """The entry: how far float32 parameters are off what AdamW makes of the gradients that each rank had."""
        entry = self._judge.judged("update", mine, lambda r: self._rows(r, *[False] * 5), self._update_errors,
                                   "AdamW in float64")
        return {k: entry[k] for k in ("params", "limit", "parameters")}

    def _update_errors(self, parts: list[list[Tensor]]) -> Found:
        """By rank, of all elements together: those without a gradient change by a rounding."""
        errors: dict[str, list[float]] = {n: [0.0] * self._size for n in ("params", "moment1", "moment2")}
        for r in self._training.members:
            grad, old, *got = (x.double() for x in parts[r])
            zero = torch.zeros_like(old)
            wants = reference.adamw(old, zero, zero, grad, 1)
            for name, x, want, before in zip(errors, got, wants, (old, zero, zero)):
                errors[name][r] = reference.error(x - before, want - before, 1.0)
        return errors, _UPDATE, {"limit": _UPDATE, "parameters": self._at.parameters()}

    def _alike(self, mine: list[Tensor]) -> None:
        """Fault(numerics) unless every member has what the ranks have that update it, to the bit, and these have it in
        the model's precision. mine: that in float32, all there is, and both of what was updated."""
        self._judge.judged("parameters", mine, lambda r: self._rows(r, False, True, False, False), self._alike_errors,
                           "what the ranks have that update them")

    def _alike_errors(self, parts: list[list[Tensor]]) -> Found:
        at, members, dtype = self._at, self._training.members, DTYPES[self._dtype]
        masters = {r: parts[r][0].split(at.lengths(r, False)) for r in members}
        wants: list[Tensor] = []
        for unit, picks in enumerate(at.picks):
            want = torch.zeros(len(picks), device=self._device)
            for place, r in enumerate(members):
                want[at.within(unit, place).to(want.device)] = masters[r][unit].to(dtype).float()
            wants.append(want)
        has, sends, due = [0.0] * self._size, [0.0] * self._size, torch.cat(wants).double()
        for r in members:
            _, full, master, held = parts[r]
            has[r] = reference.error(full, due, 1.0)
            sends[r] = reference.error(held, master.to(dtype).double(), 1.0)
        return {"what it has": has, "what it sends": sends}, 0.0, {}


_SUM = "the sum of gradients"
