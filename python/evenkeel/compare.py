"""Whether a plan runs right: results against one device's, messages and FLOPs against the closed forms.

Of plans of one sequence and of batches; compare_stages.py is of pipelines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence

import torch
from torch import Tensor

from . import reference
from .closed import expected
from .drawn import DTYPES, Drawn
from .frames import Frames
from .judge import (
    AFFORDABLE, LAYER, LIMITS, NAMES, Found, Judge, attention_wants, chosen, counted, layer_work,
)
from .kernels import Kernel
from .meter import Meter
from .parts import Part, Work
from .plan import Plan, documents
from .rendezvous import Meeting, Wires
from .task_weights import Picks
from .tokens import positions
from .twos import Heads, Nothing, Pair
from .whole import Layer, Layers, Model, Stack, angles


class Inputs:
    """q, k, v, dout of the attention and x, dy of the layer, by global position."""

    def __init__(self, plan: Plan, seed: int, device: torch.device, of: str = "") -> None:
        """of: whose they are, where there are several."""
        self._plan, self._device, self._dtype = plan, device, DTYPES[plan.dtype]
        self._seed, self._named = seed, of
        self._drawn: dict[str, Drawn] = {}

    def part(self, of: str, plan: Plan) -> "Inputs":
        """Those of another plan, which are values of their own."""
        return Inputs(plan, self._seed, self._device, of)

    def heads(self, name: str, at: Tensor, lo: int = 0, hi: Optional[int] = None) -> Tensor:
        """[len(at), heads lo to hi, head_dim] of q, k, v or dout."""
        plan, d = self._plan, self._plan.head_dim
        n = plan.kv_heads if name in ("k", "v") else plan.q_heads
        hi = n if hi is None else hi
        rows = self._of(name).rows(at, n * d, lo * d, hi * d, dtype=self._dtype, device=self._device)
        return rows.view(len(at), hi - lo, d)

    def wide(self, name: str, at: Tensor, width: int) -> Tensor:
        """[len(at), width] of x or dy."""
        return self._of(name).rows(at, width, dtype=self._dtype, device=self._device)

    def _of(self, name: str) -> Drawn:
        if name not in self._drawn:
            self._drawn[name] = Drawn(self._seed, self._named + name)
        return self._drawn[name]


@dataclass(frozen=True)
class Checking:
    """What it takes to check a plan. number: of the plan; layers: None where attention alone is run."""

    number: int
    kernel: Kernel
    inputs: Inputs
    meeting: Meeting
    wires: Wires
    frames: Frames
    sampled_above: int
    seed: int
    layers: Optional[Layers]


def checked(work: Work, of: Checking) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entries of a plan in `numerics` and `exact`: the worst and the sum of its parts. Those of a
    micro-batch run side by side, as they are timed, and are then compared one after the other. Raises
    Fault(numerics), Fault(bytes) or Fault(flops)."""
    found: list[dict[str, Any]] = []
    counts: list[dict[str, Any]] = []
    layers: list[dict[str, Any]] = []
    layer = of.layers.at(0, 1)[0] if of.layers is not None else None
    for side in work.micro:
        checks = [Check(part, of, work.training is not None) for part in side]
        counts += [check.run() for check in checks]
        found += [check.compared() for check in checks]
        for check in checks if work.in_twos else []:
            check.run_in_twos()
        if layer is not None:
            for check in checks:
                check.run_layer(layer)
            layers += [check.compared_layer(layer) for check in checks]
    entry = {
        "plan": of.number, **{n: max(e[n] for e in found) for n in NAMES}, "limit": found[0]["limit"],
        "reference": "sampled" if any(e["rows"] for e in found) else "dense",
        "rows": sum(e["rows"] for e in found),
    }
    if layers:
        entry["layer"] = _worst(layers)
    return entry, {"plan": of.number, **{n: sum(c[n] for c in counts) for n in ("messages", "bytes", "flops")}}


def _worst(layers: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the parts' layers; not known where one is not."""
    left_out = [e["skipped"] for e in layers if "skipped" in e]
    names = [n for n in ("out", "dx", "dw") if n in layers[0]]
    entry = {**{n: 0.0 if left_out else max(e[n] for e in layers) for n in names}, "limit": layers[0]["limit"]}
    if left_out:
        most = f"{len(left_out)} of {len(layers)} groups: " if len(layers) > 1 else ""
        entry["skipped"] = most + left_out[0]
    return entry


def _weights_error(picks: Picks, parts: Sequence[Tensor], wants: Sequence[Tensor]) -> float:
    """Of the worst weight, whose gradients of all ranks make one device's."""
    scale = math.hypot(*(float(want.norm()) for want in wants))
    got = torch.stack([x.double() for x in parts]).sum(0).split(picks.counts)
    return max(reference.error(x, want, scale) for x, want in zip(got, picks.of(wants)))


class Noting(Nothing):
    """Keeps out, dq, dk and dv of either."""

    def __init__(self) -> None:
        self.got: list[list[Tensor]] = []

    def after(self, i: int, kept: Heads, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See twos.Ends."""
        self.got.append([out])
        return super().after(i, kept, out)

    def before_back(self, i: int, kept: Heads, grads: Sequence[Tensor], dy: Tensor) -> Tensor:
        """See twos.Ends."""
        next(x for x in self.got if len(x) == 1).extend(grads)
        return super().before_back(i, kept, grads, dy)


class Check:
    """The checks of one part on one rank. All ranks call the same methods in the same order, also those that
    have no work in it."""

    def __init__(self, part: Part, of: Checking, trained: bool = False) -> None:
        """trained: whether gradients of the layer's weights are compared too, added up over the ranks."""
        self._picks: Optional[Picks] = None
        if trained and of.layers is not None:
            self._picks = Picks(of.layers.model.shapes().values())
        self._part, self._kernel, self._inputs, self._wires = part, of.kernel, of.inputs, of.wires
        self._rank, self._dense_to = of.meeting.world.rank, of.sampled_above
        self._plan, self._docs = part.everywhere(of.meeting.world.size), part.docs
        self._sizes = chosen(self._plan.seq_len, self._plan.kv_heads, of.sampled_above, of.seed)
        self._name = " ".join(x for x in (f"plan {of.number}", part.name) if x)
        self._judge = Judge(self._name, of.meeting, of.wires, of.frames)
        self._own = positions(self._plan, self._rank)
        self._got: list[Tensor] = []

    def run(self) -> dict[str, Any]:
        """Runs the attention, and compares what was counted: the entry of `exact`."""
        meter = Meter()
        leaves = [self._inputs.heads(n, self._own).requires_grad_() for n in ("q", "k", "v")]
        out = torch.empty_like(leaves[0])
        if self._rank in self._part.ranks:
            with self._part.named():
                out = self._part.attention(self._rank, leaves, self._kernel, meter)
                out.backward(self._inputs.heads("dout", self._own))
        self._got = [out.detach(), *(x.grad if x.grad is not None else torch.zeros_like(x) for x in leaves)]
        return self._exact(self._part.counted(meter))

    def compared(self) -> dict[str, Any]:
        """The entry of `numerics`, of what was run."""
        def rows(r: int) -> list[int]:
            return [len(self._rows(r)[0])] * 2 + [self._plan.tokens(r)] * 2

        return self._judge.judged("attention", self._picked(self._got), rows, self._attention_errors)

    def run_in_twos(self) -> None:
        """Runs the attention of two micro-batches together, and compares them with the one that was run: A is
        the same, and B has values of the other sign, so that neither passes for the other."""
        meter, ends = Meter(), Noting()
        if self._rank in self._part.ranks:
            q, k, v, dout = (self._inputs.heads(n, self._own) for n in ("q", "k", "v", "dout"))
            pair = Pair(1, ends, lambda *heads: self._part.steps(self._rank, heads, self._kernel, meter), False)
            with self._part.named():
                pair.forward((q, k, v), (q, k, -v))
                pair.backward(dout, dout)
        self._exact(self._part.counted(meter), 2)
        off = torch.zeros(2, len(NAMES), dtype=torch.float64)  # differences and norms
        off[1] = torch.tensor([float(x.double().norm()) for x in self._got])
        for results, signs in zip(ends.got, ((1, 1, 1, 1), (-1, -1, -1, 1))):
            each = [float((sign * x.double() - one).norm()) for x, sign, one in zip(results, signs, self._got)]
            off[0] = torch.maximum(off[0], torch.tensor(each, dtype=off.dtype))  # which keeps what is not a number
        self._judge.judged("two micro-batches together", [off.to(self._wires.device)], lambda _: [len(off)],
                           self._apart, "one micro-batch alone")

    def run_layer(self, layer: Layer) -> None:
        """Runs a whole layer, unless comparing it is too much."""
        model, plan = layer.model, self._plan
        if self._too_much(model):
            return
        x, dy = (self._inputs.wide(n, self._own, model.hidden) for n in ("x", "dy"))
        self._got = [torch.empty_like(x), torch.empty_like(dy), *self._learned(layer)]
        if self._rank not in self._part.ranks:
            return
        at = positions(plan, self._rank, self._docs)
        tables = angles(at, model.rotary, DTYPES[plan.dtype], self._wires.device)
        stack = Stack(
            [layer], lambda _, *heads: self._part.attention(self._rank, heads, self._kernel), tables, again=0)
        with self._part.named():
            y = stack.forward(x)
            dx = stack.backward(dy)
        self._got = [y.detach(), dx.detach(), *self._learned(layer)]
        stack.clear()

    def compared_layer(self, layer: Layer) -> dict[str, Any]:
        """The entry's `layer`: errors of its output and of its input's gradient, or why they are unknown."""
        why = self._too_much(layer.model)
        if why:
            return {"out": 0.0, "dx": 0.0, "limit": LAYER * LIMITS[self._plan.dtype], "skipped": why}
        model = layer.model
        errors: Callable[[list[list[Tensor]]], Found] = lambda parts: self._layer_errors(parts, model, layer)
        learned = [sum(self._picks.counts)] if self._picks is not None else []
        return self._judge.judged("layer", self._got, lambda r: [self._plan.tokens(r)] * 2 + learned, errors)

    def _learned(self, layer: Layer) -> list[Tensor]:
        """What is compared of this rank's gradients of weights, if anything is: zeros where it has none."""
        if self._picks is None:
            return []
        return [self._picks.joined([torch.zeros_like(w) if w.grad is None else w.grad for w in layer.weights.values()])]

    def _exact(self, meter: Meter, times: int = 1) -> dict[str, Any]:
        """The entry of `exact`, if the counts are the closed form's so many times."""
        want = expected(self._plan, None, self._docs)
        counted(self._name, self._rank, meter, want, times)
        return {"messages": len(want.bytes), "bytes": sum(want.bytes.values()),
                "flops": sum(want.flops.values())}

    def _tick(self) -> None:
        self._judge.tick("attention", "layer")

    def _rows(self, rank: int) -> tuple[Tensor, Tensor]:
        """Which of a rank's tokens, and which of the chosen rows, are the other's."""
        own = positions(self._plan, rank)
        here = torch.isin(own, self._sizes.at).nonzero()[:, 0]
        return here, torch.searchsorted(self._sizes.at, own[here])

    def _picked(self, got: Sequence[Tensor]) -> list[Tensor]:
        """What rank 0 compares of this rank's results."""
        here, heads = self._rows(self._rank)[0].to(got[0].device), list(self._sizes.kv_heads)
        return [x[here] for x in got[:2]] + [x[:, heads] for x in got[2:]]

    def _attention_errors(self, parts: list[list[Tensor]]) -> Found:
        """Of out, dq, dk, dv, by rank."""
        plan = self._plan
        wants = attention_wants(self._inputs.heads, plan.seq_len, documents(plan.seq_len, self._docs), plan.q_heads,
                                plan.kv_heads, self._sizes, self._tick)
        errors: dict[str, list[float]] = {n: [] for n in NAMES}
        for r, got in enumerate(parts):
            index = [self._rows(r)[1]] * 2 + [positions(self._plan, r)] * 2
            for name, x, want, rows in zip(NAMES, got, wants, index):
                errors[name].append(reference.error(x, want[rows.to(x.device)], float(want.norm())))
        s = self._sizes
        more = {"limit": LIMITS[self._plan.dtype], "reference": "dense" if s.dense else "sampled",
                "rows": 0 if s.dense else len(s.at)}
        return errors, LIMITS[self._plan.dtype], more

    def _apart(self, parts: list[list[Tensor]]) -> Found:
        """Of out, dq, dk, dv, by rank, of what run_in_twos has found; as reference.error."""
        every = torch.stack([off for off, in parts]).cpu()
        norms = every[:, 1].norm(dim=0)
        scales = torch.where(norms > 0, norms, torch.ones_like(norms))
        scales = torch.where(every[:, 1] > 1e-6 * norms, every[:, 1], scales)
        found = torch.nan_to_num(every[:, 0] / scales, nan=math.inf)
        return {n: found[:, i].tolist() for i, n in enumerate(NAMES)}, LIMITS[self._plan.dtype], {}

    def _layer_errors(self, parts: list[list[Tensor]], model: Model, layer: Layer) -> Found:
        """Of the layer's output and its input's gradient, by rank; of those of weights their sum's, named at rank 0."""
        plan = self._plan
        spans = documents(plan.seq_len, self._docs)
        of = reference.Attention(plan.seq_len, spans, self._tick)
        at = torch.cat([torch.arange(d.end - d.start) for d in spans])
        x, dy = (self._inputs.wide(n, torch.arange(plan.seq_len), model.hidden) for n in ("x", "dy"))
        picks = self._picks
        if picks is None:
            y, dx = reference.layer(model, layer.weights, of, x, dy, at)
            weighed: dict[str, Tensor] = {}
        else:
            y, dx, weighed = reference.layer_whole(model, layer.weights, of, x, dy, at)
        errors: dict[str, list[float]] = {"out": [], "dx": []}
        for r, got in enumerate(parts):
            rows = positions(plan, r).to(x.device)
            for name, part, want in zip(errors, got, (y, dx)):
                errors[name].append(reference.error(part, want[rows], float(want.norm())))
        if picks is not None:
            errors["dw"] = [_weights_error(picks, [got[2] for got in parts], list(weighed.values()))]
        limit = LAYER * LIMITS[plan.dtype]
        return errors, limit, {"limit": limit}

    def _too_much(self, model: Model) -> str:
        """Why the layer's reference is left out, "" if it is not."""
        n = self._plan.seq_len
        if n > self._dense_to:
            return f"{n} tokens: a layer is compared up to {self._dense_to}"
        work, most = layer_work(model, n, n * n), AFFORDABLE[self._wires.device.type]
        return f"its reference takes {work:.1e} FLOPs: up to {most:.0e} are spent" if work > most else ""
