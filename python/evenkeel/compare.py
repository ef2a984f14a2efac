"""Whether a plan runs right: results against one device's, messages and FLOPs against the closed forms.

Every rank counts for itself. Results go to rank 0, which holds them against reference.py and lets all ranks
know.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence

import torch
from torch import Tensor

from . import reference
from .closed import expected
from .drawn import DTYPES, Drawn
from .frames import Fault, Frames
from .kernels import Kernel
from .meter import Meter
from .parts import Part, Work
from .plan import Plan, documents
from .rendezvous import Meeting, Wires
from .tokens import positions
from .twos import Heads, Nothing, Pair
from .whole import Layer, Model, Stack, angles

# Of the relative error in the 2-norm. A whole layer's result passes several roundings more.
LIMITS = {"f32": 1e-5, "bf16": 1e-2, "f16": 1e-2}
LAYER = 2.0  # times that
SAMPLED_ROWS = 256

# Work of a layer's reference that a rank 0 takes on, in FLOPs: about half a minute.
_AFFORDABLE = {"cpu": 4e11, "cuda": 1e14}

NAMES = ("out", "dq", "dk", "dv")


@dataclass(frozen=True)
class Sizes:
    """What is compared of a plan: query rows `at` (all of them if dense) and KV heads."""

    dense: bool
    at: Tensor
    kv_heads: tuple[int, ...]


def chosen(plan: Plan, sampled_above: int, seed: int) -> Sizes:
    """Everything up to so many tokens; above, rows and one KV head by seed."""
    if plan.seq_len <= sampled_above:
        return Sizes(True, torch.arange(plan.seq_len), tuple(range(plan.kv_heads)))
    source = random.Random(f"{seed} {plan.seq_len}")
    rows = sorted(source.sample(range(plan.seq_len), min(SAMPLED_ROWS, plan.seq_len)))
    return Sizes(False, torch.tensor(rows), (source.randrange(plan.kv_heads),))


class Inputs:
    """q, k, v, dout of the attention and x, dy of the layer, by global position."""

    def __init__(self, plan: Plan, seed: int, device: torch.device) -> None:
        self._plan, self._device, self._dtype = plan, device, DTYPES[plan.dtype]
        self._seed = seed
        self._drawn: dict[str, Drawn] = {}

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
            self._drawn[name] = Drawn(self._seed, name)
        return self._drawn[name]


def checked(
    number: int, work: Work, of: Callable[[Part], "Check"], layer: Optional[Layer]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entries of a plan in `numerics` and `exact`: the worst and the sum of its parts. Those of a
    micro-batch run side by side, as they are timed, and are then compared one after the other. Raises
    Fault(numerics), Fault(bytes) or Fault(flops)."""
    found: list[dict[str, Any]] = []
    counts: list[dict[str, Any]] = []
    layers: list[dict[str, Any]] = []
    for side in work.micro:
        checks = [of(part) for part in side]
        counts += [check.run() for check in checks]
        found += [check.compared() for check in checks]
        for check in checks if work.in_twos else []:
            check.run_in_twos()
        if layer is not None:
            for check in checks:
                check.run_layer(layer)
            layers += [check.compared_layer(layer) for check in checks]
    entry = {
        "plan": number, **{n: max(e[n] for e in found) for n in NAMES}, "limit": found[0]["limit"],
        "reference": "sampled" if any(e["rows"] for e in found) else "dense",
        "rows": sum(e["rows"] for e in found),
    }
    if layers:
        entry["layer"] = _worst(layers)
    return entry, {"plan": number, **{n: sum(c[n] for c in counts) for n in ("messages", "bytes", "flops")}}


def _worst(layers: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the parts' layers; not known where one is not."""
    left_out = [e["skipped"] for e in layers if "skipped" in e]
    entry = {**{n: 0.0 if left_out else max(e[n] for e in layers) for n in ("out", "dx")},
             "limit": layers[0]["limit"]}
    if left_out:
        most = f"{len(left_out)} of {len(layers)} groups: " if len(layers) > 1 else ""
        entry["skipped"] = most + left_out[0]
    return entry


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

    def __init__(
        self, number: int, part: Part, kernel: Kernel, inputs: Inputs, meeting: Meeting, wires: Wires,
        frames: Frames, sampled_above: int, seed: int,
    ) -> None:
        self._number, self._part, self._kernel = number, part, kernel
        self._inputs, self._meeting, self._wires, self._frames = inputs, meeting, wires, frames
        self._rank, self._dense_to = meeting.world.rank, sampled_above
        self._plan, self._docs = part.everywhere(meeting.world.size), part.docs
        self._sizes = chosen(self._plan, sampled_above, seed)
        self._name = " ".join(x for x in (f"plan {number}", part.name) if x)
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
        return self._judged(f"{self._name} attention", self._picked(self._got), self._attention_errors)

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
        self._judged(f"{self._name} two micro-batches together", [off.to(self._wires.device)], self._apart,
                     "one micro-batch alone")

    def run_layer(self, layer: Layer) -> None:
        """Runs a whole layer, unless comparing it is too much."""
        model, plan = layer.model, self._plan
        if self._too_much(model):
            return
        x, dy = (self._inputs.wide(n, self._own, model.hidden) for n in ("x", "dy"))
        self._got = [torch.empty_like(x), torch.empty_like(dy)]
        if self._rank not in self._part.ranks:
            return
        at = positions(plan, self._rank, self._docs)
        tables = angles(at, model.rotary, DTYPES[plan.dtype], self._wires.device)
        stack = Stack(
            [layer], lambda *heads: self._part.attention(self._rank, heads, self._kernel), tables, False)
        with self._part.named():
            y = stack.forward(x)
            dx = stack.backward(dy)
        stack.clear()
        self._got = [y.detach(), dx.detach()]

    def compared_layer(self, layer: Layer) -> dict[str, Any]:
        """The entry's `layer`: errors of its output and of its input's gradient, or why they are unknown."""
        why = self._too_much(layer.model)
        if why:
            return {"out": 0.0, "dx": 0.0, "limit": LAYER * LIMITS[self._plan.dtype], "skipped": why}
        model = layer.model
        errors: Callable[[list[list[Tensor]]], Any] = lambda parts: self._layer_errors(parts, model, layer)
        return self._judged(f"{self._name} layer", self._got, errors)

    def _exact(self, meter: Meter, times: int = 1) -> dict[str, Any]:
        """Every pair's bytes by phase and this rank's FLOPs are the closed form's so many times, as integers."""
        want, r = expected(self._plan, None, self._docs), self._rank
        sent = {(p, peer): times * n for (i, peer, p), n in want.bytes.items() if i == r}
        came = {(p, i): times * n for (i, peer, p), n in want.bytes.items() if peer == r}
        for word, got, due in (("sent to", meter.sent, sent), ("received from", meter.received, came)):
            for phase, peer in sorted(got.keys() | due.keys()):
                a, b = got.get((phase, peer), 0), due.get((phase, peer), 0)
                if a != b:
                    raise Fault("bytes", f"{self._name}: rank {r} {word} rank {peer} in {phase}: {a} bytes, "
                                         f"the closed form says {b}")
        for direction in ("fwd", "bwd"):
            a, b = meter.flops.get(direction, 0), times * want.flops.get((r, direction), 0)
            if a != b:
                raise Fault("flops", f"{self._name}: rank {r} computed {a} FLOPs {direction}, the closed "
                                     f"form says {b}")
        return {"plan": self._number, "messages": len(want.bytes), "bytes": sum(want.bytes.values()),
                "flops": sum(want.flops.values())}

    def _judged(
        self, name: str, mine: list[Tensor], errors: Callable[[list[list[Tensor]]], Any],
        against: str = "one device in float64",
    ) -> dict[str, Any]:
        """Rank 0 hears all ranks and judges, the others wait for its verdict."""
        if self._rank:
            for x in mine:
                self._wires.send("results", x)
            said: Callable[[int], None] = lambda n: setattr(self._frames.place, "step", n)
            verdict = self._meeting.await_news(name, said)
        else:
            parts = [mine] + [self._theirs(r, mine) for r in range(1, self._plan.ranks)]
            verdict = self._verdict(name, errors(parts), against)
            self._meeting.publish(name, verdict, bool(verdict["fault"]))
        if verdict["fault"]:
            raise Fault("numerics", verdict["fault"])
        entry: dict[str, Any] = verdict["entry"]
        return entry

    def _verdict(
        self, of: str, found: tuple[dict[str, list[float]], float, dict[str, Any]], against: str
    ) -> dict[str, Any]:
        """found: errors of every rank by name, their limit, and what else the entry tells."""
        errors, limit, more = found
        for name, by_rank in errors.items():
            worst = max(by_rank)
            if not worst <= limit:
                said = f"{of}: rank {by_rank.index(worst)}: {name} is off by {worst:.1e} of its norm"
                return {"fault": said + f" against {against}, the limit is {limit:g}"}
        return {"fault": "", "entry": {**{n: max(e) for n, e in errors.items()}, **more}}

    def _tick(self) -> None:
        self._frames.place.step += 1
        self._meeting.advance(self._name + " attention")
        self._meeting.advance(self._name + " layer")

    def _rows(self, rank: int) -> tuple[Tensor, Tensor]:
        """Which of a rank's tokens, and which of the chosen rows, are the other's."""
        own = positions(self._plan, rank)
        here = torch.isin(own, self._sizes.at).nonzero()[:, 0]
        return here, torch.searchsorted(self._sizes.at, own[here])

    def _picked(self, got: Sequence[Tensor]) -> list[Tensor]:
        """What rank 0 compares of this rank's results."""
        here, heads = self._rows(self._rank)[0].to(got[0].device), list(self._sizes.kv_heads)
        return [x[here] for x in got[:2]] + [x[:, heads] for x in got[2:]]

    def _theirs(self, rank: int, like: list[Tensor]) -> list[Tensor]:
        """Results from a rank, of as many rows as it has."""
        n = self._plan.tokens(rank)
        rows = [n] * 2 if len(like) == 2 else [len(self._rows(rank)[0])] * 2 + [n] * 2
        if len(like) == 1:  # what run_in_twos has found
            rows = [len(like[0])]
        parts = [self._wires.receive("results", rank, (k, *x.shape[1:]), x.dtype) for k, x in zip(rows, like)]
        return [x.to(self._wires.device) for x in parts]

    def _attention_errors(self, parts: list[list[Tensor]]) -> Any:
        """Of out, dq, dk, dv, by rank."""
        wants = self._attention_wants()
        errors: dict[str, list[float]] = {n: [] for n in NAMES}
        for r, got in enumerate(parts):
            index = [self._rows(r)[1]] * 2 + [positions(self._plan, r)] * 2
            for name, x, want, rows in zip(NAMES, got, wants, index):
                errors[name].append(reference.error(x, want[rows.to(x.device)], float(want.norm())))
        s = self._sizes
        more = {"limit": LIMITS[self._plan.dtype], "reference": "dense" if s.dense else "sampled",
                "rows": 0 if s.dense else len(s.at)}
        return errors, LIMITS[self._plan.dtype], more

    def _attention_wants(self) -> list[Tensor]:
        """out and dq of the chosen rows and heads' dk and dv, from one device."""
        plan, take, s = self._plan, self._inputs.heads, self._sizes
        of = reference.Attention(plan.seq_len, documents(plan.seq_len, self._docs), self._tick)
        everywhere = torch.arange(plan.seq_len)
        if s.dense:
            return list(reference.gradients(of, *(take(n, everywhere) for n in ("q", "k", "v", "dout"))))
        out, dq = (take("q", s.at).double() for _ in range(2))
        each, grads = plan.q_heads // plan.kv_heads, []
        for j in range(plan.kv_heads):
            k, v = (take(n, everywhere, j, j + 1)[:, 0] for n in ("k", "v"))
            for h in range(j * each, (j + 1) * each):
                rows = (take(n, s.at, h, h + 1)[:, 0] for n in ("q", "dout"))
                q, dout = rows
                out[:, h], dq[:, h] = of.rows(s.at, q, k, v, dout)[:2]
            if j in s.kv_heads:
                whole = [take(n, everywhere, j * each, (j + 1) * each) for n in ("q", "dout")]
                grads = list(reference.gradients(of, whole[0], k[:, None], v[:, None], whole[1])[2:])
        return [out, dq, *grads]

    def _apart(self, parts: list[list[Tensor]]) -> Any:
        """Of out, dq, dk, dv, by rank, of what run_in_twos has found; as reference.error."""
        every = torch.stack([off for off, in parts]).cpu()
        norms = every[:, 1].norm(dim=0)
        scales = torch.where(norms > 0, norms, torch.ones_like(norms))
        scales = torch.where(every[:, 1] > 1e-6 * norms, every[:, 1], scales)
        found = torch.nan_to_num(every[:, 0] / scales, nan=math.inf)
        return {n: found[:, i].tolist() for i, n in enumerate(NAMES)}, LIMITS[self._plan.dtype], {}

    def _layer_errors(self, parts: list[list[Tensor]], model: Model, layer: Layer) -> Any:
        """Of the layer's output and its input's gradient, by rank."""
        plan = self._plan
        spans = documents(plan.seq_len, self._docs)
        of = reference.Attention(plan.seq_len, spans, self._tick)
        at = torch.cat([torch.arange(d.end - d.start) for d in spans])
        x, dy = (self._inputs.wide(n, torch.arange(plan.seq_len), model.hidden) for n in ("x", "dy"))
        wants = reference.layer(model, layer.weights, of, x, dy, at)
        errors: dict[str, list[float]] = {"out": [], "dx": []}
        for r, got in enumerate(parts):
            rows = positions(plan, r).to(x.device)
            for name, part, want in zip(errors, got, wants):
                errors[name].append(reference.error(part, want[rows], float(want.norm())))
        limit = LAYER * LIMITS[plan.dtype]
        return errors, limit, {"limit": limit}

    def _too_much(self, model: Model) -> str:
        """Why the layer's reference is left out, "" if it is not."""
        n = self._plan.seq_len
        if n > self._dense_to:
            return f"{n} tokens: a layer is compared up to {self._dense_to}"
        products = model.flops(n, True) + model.flops(n, False)
        work = 3 * products + 16 * n * n * model.q_heads * model.head_dim
        most = _AFFORDABLE[self._wires.device.type]
        return f"its reference takes {work:.1e} FLOPs: up to {most:.0e} are spent" if work > most else ""
