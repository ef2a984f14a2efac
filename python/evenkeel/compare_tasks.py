"""Whether a plan of tasks runs right: the attention of every run, and all layers of all modules together, against one
device; the sums of weights' gradients against what ranks had; messages and FLOPs against the closed forms.
"""

from __future__ import annotations

import math
from typing import Any, Mapping, Optional, Sequence

import torch
from torch import Tensor

from . import reference
from .closed import Expected, expected_tasks
from .compare import Checking, Inputs
from .judge import AFFORDABLE, LAYER, LIMITS, NAMES, Found, Judge, Sizes, attention_wants, chosen, counted
from .meter import Meter
from .parts import Members
from .plan import Segment
from .port import ProcessGroup
from .samples import Samples
from .task_answer import Answer, positions
from .task_samples import attention_samples, own, whole_samples
from .task_weights import Sums
from .taskflow import TaskFlow, module_layers, named
from .tasks import Tasks


class CheckTasks:
    """The checks of a plan of tasks on one rank. All ranks call the same methods in the same order."""

    def __init__(self, tasks: Tasks, groups: Mapping[Members, ProcessGroup], of: Checking) -> None:
        assert of.layers is not None
        self._tasks, self._groups, self._of = tasks, groups, of
        self._layers = [module_layers(of.layers, tasks, m) for m in range(len(tasks.modules))]
        self._rank, self._size = of.meeting.world.rank, of.meeting.world.size
        self._name = f"plan {of.number}"
        self._judge = Judge(self._name, of.meeting, of.wires, of.frames)
        self._inputs = [module_inputs(of.inputs, tasks, m) for m in range(len(tasks.modules))]
        self._affordable = AFFORDABLE[of.wires.device.type]
        each = self._affordable / len(tasks.modules)
        self._sizes = [chosen(m.seq_len, m.model.kv_heads, of.sampled_above, of.seed) for m in tasks.modules]
        self._attended = [attention_samples(tasks, m, of.sampled_above, each, of.seed)
                          for m in range(len(tasks.modules))]
        self._ran = whole_samples(tasks, of.sampled_above, self._affordable, of.seed)
        self._all = all(len(s) == m.batch for s, m in zip(self._ran, tasks.modules))
        self._sums = Sums(tasks, self._rank)
        self._travels: Optional[torch.dtype] = None

    def run(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The plan's entries in `numerics` and `exact`."""
        found = self._judge.judged("attention", self._attention(), self._attention_rows, self._attention_errors)
        want = expected_tasks(self._tasks)
        got = self._step(want)
        exchange = self._sums.judged(self._judge, self._travels, self._of.wires.device)
        entry = {"plan": self._of.number, **found, **({"exchange": exchange} if exchange else {}),
                 "layer": self._whole(got)}
        return entry, {"plan": self._of.number, "messages": len(want.bytes), "bytes": sum(want.bytes.values()),
                       "flops": sum(want.flops.values())}

    def _attention(self) -> list[Tensor]:
        """Runs one layer's attention of every run, forward and then backward. Returns, of one run after the other, what
        is compared of out, dq, dk and dv."""
        out: list[Tensor] = []
        for i, run in enumerate(self._tasks.runs):
            module, s, share = self._tasks.module(i), self._sizes[run.module], run.share(self._rank)
            at = positions(module, range(share.start, share.end))
            take = self._inputs[run.module].heads
            leaves = [take(n, at).requires_grad_() for n in ("q", "k", "v")]
            results = [x.detach() for x in (leaves[0], *leaves)]
            if len(at):
                y = Samples(module, share.end - share.start, self._of.kernel)(*leaves)
                results = [y.detach(), *torch.autograd.grad(y, leaves, take("dout", at))]
            mine = [x - share.start for x in own(self._attended[run.module], self._tasks, i, self._rank)]
            by_sample = [x.view(-1, module.seq_len, *x.shape[1:])[mine] for x in results]
            out += [x[:, s.at.to(x.device)].flatten(0, 1) for x in by_sample[:2]]
            out += [x[:, :, list(s.kv_heads)].flatten(0, 1) for x in by_sample[2:]]
        return out

    def _attention_rows(self, rank: int) -> list[int]:
        out = []
        for i, run in enumerate(self._tasks.runs):
            n = len(own(self._attended[run.module], self._tasks, i, rank))
            out += [n * len(self._sizes[run.module].at)] * 2 + [n * self._tasks.module(i).seq_len] * 2
        return out

    def _attention_errors(self, parts: list[list[Tensor]]) -> Found:
        errors: dict[str, list[float]] = {n: [0.0] * self._size for n in NAMES}
        for m, samples in enumerate(self._attended):
            module, rows = self._tasks.modules[m], len(self._sizes[m].at)
            at = [(i, r, own(samples, self._tasks, i, r)) for i, run in enumerate(self._tasks.runs)
                  for r in run.ranks if run.module == m]
            places = [(i, r, len(mine), {s: k for k, s in enumerate(mine)}) for i, r, mine in at]
            for some in self._groups_of(m):
                wants = self._attention_wants(m, some)
                scale = max(float(x.norm()) for x in wants)  # of one token dq and dk are zero but for rounding
                each = [x.view(len(some), n, *x.shape[1:]) for x, n in zip(wants, [rows] * 2 + [module.seq_len] * 2)]
                for k, sample in enumerate(some):
                    for i, r, n, mine in (p for p in places if sample in p[3]):
                        for name, x, want in zip(NAMES, parts[r][4 * i:4 * i + 4], each):
                            got = x.view(n, -1, *x.shape[1:])[mine[sample]]
                            errors[name][r] = max(errors[name][r], reference.error(got, want[k], scale))
        sampled = [len(of) * len(s.at) for of, s, m in zip(self._attended, self._sizes, self._tasks.modules)
                   if len(of) < m.batch or not s.dense]
        limit = LIMITS[self._tasks.dtype]
        return errors, limit, {"limit": limit, "reference": "sampled" if sampled else "dense", "rows": sum(sampled)}

    def _groups_of(self, m: int) -> list[list[int]]:
        """The samples of a module that are compared, some at a time."""
        samples = self._attended[m]
        n = max(1, self._of.sampled_above // self._tasks.modules[m].seq_len)
        return [samples[i:i + n] for i in range(0, len(samples), n)]

    def _attention_wants(self, m: int, samples: Sequence[int]) -> list[Tensor]:
        """Of some samples one after the other; of one alone where its rows are sampled."""
        of, inputs = self._tasks.modules[m], self._inputs[m]
        there = positions(of, samples)
        docs = [Segment(i * of.seq_len, (i + 1) * of.seq_len) for i in range(len(samples))]

        def take(name: str, at: Tensor, lo: int = 0, hi: Any = None) -> Tensor:
            return inputs.heads(name, there[at], lo, hi)

        s = self._sizes[m]
        whole = Sizes(True, torch.arange(len(there)), s.kv_heads) if s.dense else s
        return attention_wants(take, len(there), docs, of.model.q_heads, of.model.kv_heads, whole,
                               lambda: self._judge.tick("attention"), of.causal)

    def _step(self, want: Expected) -> list[Tensor]:
        """Runs a step and compares what was counted. Returns what is compared: by module results and gradients of its
        inputs of the samples that the rank has, and by layer gradients of weights, where all samples are."""
        tasks, ends = self._tasks, [dict[int, Tensor](), dict[int, Tensor]()]
        sums, meter = self._sums, Meter()
        if tasks.own(self._rank):
            assert self._of.layers is not None
            flow = TaskFlow(tasks, self._rank, self._of.layers, self._of.kernel, self._groups, self._of.wires.device,
                            meter=meter)
            flow.run(self._given("x"), self._given("dy"), ends[0].__setitem__, ends[1].__setitem__,
                     sums.after, unsummed=sums.before)
            flow.clear()
            self._travels = flow.travels
            meter.add(flow.sent(), range(self._size))
        counted(self._name, self._rank, meter, want)
        out = []
        for m, of in enumerate(tasks.modules):
            like = self._inputs[m].wide("x", torch.arange(0), of.model.hidden)
            for end, found in enumerate(ends):
                i = self._end(m, end)
                mine = [s - tasks.runs[i].share(self._rank).start for s in own(self._ran[m], tasks, i, self._rank)]
                out.append(found[i].view(-1, of.seq_len, of.model.hidden)[mine].flatten(0, 1) if mine else like)
        weights = {(tasks.runs[i].module, n): x for (i, n), x in sums.sums.items()}
        nothing = torch.empty(0, device=self._of.wires.device)
        return [*out, *(weights.get(at, nothing) for at in self._weighed())]

    def _given(self, name: str) -> Any:
        return lambda i: drawn(self._tasks, self._of.inputs, name, i, self._rank)

    def _end(self, module: int, side: int) -> int:
        """The run that has a module's last layer, or its first one."""
        runs = [i for i, run in enumerate(self._tasks.runs) if run.module == module]
        return runs[0] if side else runs[-1]

    def _weighed(self) -> list[tuple[int, int]]:
        """Modules and layers whose gradients of weights are compared."""
        return [(m, n) for m, of in enumerate(self._tasks.modules) for n in range(of.layers)] if self._all else []

    def _whole(self, got: list[Tensor]) -> dict[str, Any]:
        """The entry's `layer`: errors of results, of gradients of inputs, and of those of weights; and of how many
        samples, and which modules are left out."""
        limit = LAYER * LIMITS[self._tasks.dtype] * self._tasks.depth()  # roundings go through all layers behind
        modules = self._tasks.modules
        of: dict[str, Any] = {"samples": sum(map(len, self._ran)), "of_samples": sum(m.batch for m in modules)}
        left = [m.name for m, samples in zip(modules, self._ran) if not samples]
        if left:
            of["left"] = left
        if not any(self._ran):
            said = (f"no sample has up to {self._of.sampled_above} tokens and a reference of all modules that need it "
                    f"or that it needs of up to {self._affordable:.0e} FLOPs")
            return {"out": 0.0, "dx": 0.0, "limit": limit, "skipped": said, **of}
        entry = self._judge.judged("layers", got, self._rows, lambda parts: self._errors(parts, limit))
        return {**{k: x for k, x in entry.items() if k != "dw" or self._all}, **of}

    def _rows(self, rank: int) -> list[int]:
        tasks, out = self._tasks, []
        for m, of in enumerate(tasks.modules):
            out += [len(own(self._ran[m], tasks, self._end(m, end), rank)) * of.seq_len for end in range(2)]
        for m, n in self._weighed():
            out.append(sum(self._sums.picks[m].counts) if self._has(rank, m, n) else 0)
        return out

    def _has(self, rank: int, module: int, layer: int) -> bool:
        return any(run.module == module and 0 <= layer - run.first < run.layers and rank in run.ranks
                   for run in self._tasks.runs)

    def _errors(self, parts: list[list[Tensor]], limit: float) -> Found:
        errors: dict[str, list[float]] = {n: [0.0] * self._size for n in ("out", "dx", "dw")}
        first = 2 * len(self._tasks.modules)
        places = {at: first + i for i, at in enumerate(self._weighed())}

        def learned(m: int, n: int, grads: dict[str, Tensor]) -> None:
            if (m, n) not in places:
                return
            wants = self._sums.picks[m].of(list(grads.values()))
            scale = math.hypot(*(float(x.norm()) for x in grads.values()))
            for r in (r for r in range(self._size) if self._has(r, m, n)):
                for x, want in zip(parts[r][places[m, n]].split([len(w) for w in wants]), wants):
                    errors["dw"][r] = max(errors["dw"][r], reference.error(x, want, scale))

        answer = Answer(self._tasks, self._ran, lambda m, n: self._layers[m].alone(n), self._drawn,
                        lambda: self._judge.tick("layers"), learned)
        for m, of in enumerate(self._tasks.modules):
            place = {s: k for k, s in enumerate(self._ran[m])}
            for side, (name, want) in enumerate((("out", answer.results[m]), ("dx", answer.input_gradients[m]))):
                for r, got in enumerate(parts):
                    at = [place[s] for s in own(self._ran[m], self._tasks, self._end(m, side), r)]
                    if at:
                        mine = want.view(-1, of.seq_len, of.model.hidden)[at].flatten(0, 1)
                        off = reference.error(got[2 * m + side], mine, float(want.norm()))
                        errors[name][r] = max(errors[name][r], off)
        return errors, limit, {"limit": limit}

    def _drawn(self, name: str, m: int, samples: Sequence[int]) -> Tensor:
        of = self._tasks.modules[m]
        return self._inputs[m].wide(name, positions(of, samples), of.model.hidden)


def module_inputs(inputs: Inputs, tasks: Tasks, module: int) -> Inputs:
    """Those of a module, the same in whatever plan it is."""
    return inputs.part(named(module), tasks.modules[module].like(tasks.dtype))


def drawn(tasks: Tasks, inputs: Inputs, name: str, run: int, rank: int) -> Tensor:
    """x or dy of a rank's samples of a run."""
    r, module = tasks.runs[run], tasks.module(run)
    share = r.share(rank)
    at = positions(module, range(share.start, share.end))
    return module_inputs(inputs, tasks, r.module).wide(name, at, module.model.hidden)
