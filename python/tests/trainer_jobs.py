"""What the ranks of a test's world do with evenkeel.TaskRuns."""

from __future__ import annotations

import math
import os
from typing import Any, Mapping, Optional

import torch
import torch.distributed as dist
from torch import Tensor, nn

import evenkeel
from evenkeel.drawn import DTYPES
from evenkeel.tasks import Tasks
from task_plans import Document, document, model, module, random_tasks


def solved(planned: Document) -> Document:
    """A plan as solve writes it."""
    def of(m: Document) -> Document:
        sizes = {n: m["model"][n] for n in ("hidden", "ffn", "q_heads", "kv_heads", "head_dim")}
        shape = {"seq_len_tokens": m["seq_len_tokens"], **sizes}
        return {**{k: v for k, v in m.items() if k not in ("model", "seq_len_tokens", "causal")}, "shape": shape}

    ranks = [r["rank"] for r in planned["ranks"]]
    devices = [{"device": "a", "ranks": [ranks[1::2]]}, {"device": "b", "ranks": [[r] for r in ranks[::2]]}]
    return {**{k: v for k, v in planned.items() if k not in ("job", "ranks")}, **planned["job"],
            "modules": [of(m) for m in planned["modules"]], "devices": [d for d in devices if d["ranks"] != [[]]]}


class Block(nn.Module):
    """A layer that mixes the tokens of a sample."""

    def __init__(self, hidden: int, seq_len: int) -> None:
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(hidden), nn.Linear(hidden, hidden)
        self.mix = nn.Parameter(torch.randn(seq_len, seq_len) / seq_len)
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(hidden), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix @ torch.tanh(self.wide(self.norm(x))) * self.frozen


class Enter(nn.Module):
    """Samples of its own, and those of the modules that are needed, each by a layer of its own."""

    def __init__(self, data: Tensor, sources: Mapping[str, int]) -> None:
        super().__init__()
        self.data, hidden = data, data.shape[-1]
        self.own = nn.Linear(hidden, hidden)
        self.others = nn.ModuleDict({name: nn.Linear(theirs, hidden) for name, theirs in sources.items()})

    def forward(self, samples: range, needed: Mapping[str, evenkeel.Needed]) -> Tensor:
        assert needed.keys() == set(self.others)
        x = self.own(self.data[list(samples)])
        for name, of in needed.items():
            assert len(of.x) == len(of.samples) == len(of.to) and of.x.dim() == 3
            weight = torch.tensor([1.0 + s for s in of.samples], dtype=x.dtype)[:, None, None]
            x = x.index_add(0, of.to, (self.others[name](of.x.mean(1, keepdim=True)) * weight).expand(-1, *x.shape[1:]))
        return x


class Loss(nn.Module):
    """Of every sample another one."""

    def __init__(self, hidden: int, batch: int) -> None:
        super().__init__()
        self.head, self.batch = nn.Linear(hidden, 2), batch

    def forward(self, samples: range, y: Tensor) -> Tensor:
        weight = torch.tensor([1.0 + s for s in samples], dtype=y.dtype)[:, None, None]
        return (torch.tanh(self.head(y)) * weight).square().sum() / self.batch


def modules_of(tasks: Tasks, every: bool) -> dict[str, evenkeel.TaskModule]:
    """Those of a plan, whole, the same everywhere. every: with a loss of each module, else of those that nobody
    needs."""
    out, dtype = {}, DTYPES[tasks.dtype]
    needed = {n for m in tasks.modules for n in m.needs}
    for i, m in enumerate(tasks.modules):
        torch.manual_seed(i)
        hidden = m.model.hidden
        data = torch.randn(m.batch, m.seq_len, hidden, dtype=dtype)
        blocks = nn.ModuleList(Block(hidden, m.seq_len) for _ in range(m.layers))
        enter = Enter(data, {tasks.modules[n].name: tasks.modules[n].model.hidden for n in m.needs})
        loss = Loss(hidden, m.batch) if every or i not in needed else None
        for of in (blocks, enter, loss):
            if of is not None:
                of.to(dtype)
        out[m.name] = evenkeel.TaskModule(blocks, enter, loss)
    return out


def one_device(tasks: Tasks, every: bool) -> tuple[list[float], dict[str, evenkeel.TaskModule]]:
    """Losses by module, and modules with gradients, of one device that has all of it in float64."""
    modules = modules_of(tasks, every)
    results: dict[str, Tensor] = {}
    losses, left = [torch.zeros(())] * len(tasks.modules), list(range(len(tasks.modules)))
    while left:
        i = next(i for i in left if not set(tasks.modules[i].needs) & set(left))
        left.remove(i)
        m = tasks.modules[i]
        of = modules[m.name]
        needed = {}
        for n in m.needs:
            source = tasks.modules[n]
            to = torch.tensor([a * m.batch // source.batch for a in range(source.batch)])
            needed[source.name] = evenkeel.Needed(results[source.name], range(source.batch), to)
        for part in (of.enter, of.loss, of.blocks):
            if part is not None:
                part.double()
        of.enter.data = of.enter.data.double()
        x = of.enter(range(m.batch), needed)
        for n in range(m.layers):
            x = of.blocks[n](x)
        results[m.name] = x
        if of.loss is not None:
            losses[i] = of.loss(range(m.batch), x)
    sum(losses).backward()
    return [float(x) for x in losses], modules


def trained(
    rank: int, groups: Any, of: Any, ranks: int, steps: int, every: bool = False, dtype: str = "f32"
) -> Optional[dict[str, Any]]:
    """Steps of a plan, a document or a random one's seed, whose gradients nobody drops: how far losses and gradients
    of all that the rank has are from those of one device, the most; which parameters of others have any; how many runs
    it has; and what a step needs no longer when it is over."""
    tasks = evenkeel.load_tasks(solved(of if isinstance(of, dict) else random_tasks(of, ranks, dtype)))
    runs, modules = evenkeel.TaskRuns(tasks), modules_of(tasks, every)
    for _ in range(steps):
        losses = runs.step(modules)
    dist.all_reduce(losses)
    wants, answer = one_device(tasks, every)
    worst = max(abs(float(x) - want) / max(1e-6, abs(want)) for x, want in zip(losses, wants))
    strangers = []
    for name, m in modules.items():
        own = [run for run in runs.runs if run.module == name]
        parts = {f"blocks.{n}": b for n, b in enumerate(m.blocks)}
        has = {f"blocks.{n}" for run in own for n in run.layers}
        has |= {"enter"} if any(run.first for run in own) else set()
        has |= {"loss"} if any(run.last for run in own) and m.loss is not None else set()
        parts.update({n: x for n, x in (("enter", m.enter), ("loss", m.loss)) if x is not None})
        for n, part in parts.items():
            want = answer[name].blocks[int(n[7:])] if n.startswith("blocks") else getattr(answer[name], n)
            for (p, w), v in zip(part.named_parameters(), want.parameters()):
                if n not in has or not w.requires_grad:
                    strangers += [f"{name} {n} {p}"] if w.grad is not None else []
                else:
                    worst = max(worst, off(w.grad, v.grad, steps))
    work = runs._work
    left = [len(x) for x in (work._blocks, work._entered, work._lost, work._weights)] if rank < ranks else []
    left += [len(m._mail._coming) + len(m._mail._going) for m in work._moves.values() if m._mail is not None]
    for group in {id(g): g for g in runs._made.values() if g is not None}.values():
        dist.destroy_process_group(group)
    return {"worst": worst, "strangers": strangers, "left": sum(left), "runs": len(runs.runs)}


def off(got: Optional[Tensor], want: Optional[Tensor], times: int) -> float:
    """How far a gradient is from so many times one, in parts of that."""
    if got is None or want is None:
        return 0.0 if got is None or not bool(got.any()) else math.inf
    return float((got.double() / times - want).norm() / want.norm().clamp_min(1e-3))


def chain(ranks: int, again: bool = False, after: bool = True) -> Document:
    """Module a of 2 layers on rank 0 and, where there are two, b of one on all, which needs it."""
    of = model(8, 8, (1, 1, 8))
    modules = [module("a", 2, 3, 4, of), module("b", 1, 3, 2, of, ["a"] if after else [])]
    shares = {0: 1, 1: 2} if ranks > 1 else {0: 3}
    return document(ranks, modules, [(0, 1, {0: 3}), (0, 1, {0: 3}), (1, 1, shares)], again=again)


class Dropping(Block):
    """A layer with random numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.3)


def again_alike(rank: int, groups: Any) -> list[list[float]]:
    """Of layers with dropout and under autocast, how far the gradients of what is computed again are from those of
    what is not, and their norms."""
    out = []
    for casts in (False, True):
        grads = []
        for again in (False, True):
            tasks = evenkeel.load_tasks(solved(chain(1, again)))
            runs, modules = evenkeel.TaskRuns(tasks), modules_of(tasks, True)
            for m in modules.values():
                for i, block in enumerate(m.blocks):
                    m.blocks[i] = Dropping(8, len(block.mix))
            torch.manual_seed(17)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=casts):
                runs.step({n: CastLess.of(m) for n, m in modules.items()})
            if not rank:
                grads.append(torch.cat([w.grad.flatten() for m in modules.values() for w in m.blocks.parameters()
                                        if w.grad is not None]))
        if not rank:
            out.append([float((grads[0] - grads[1]).norm()), float(grads[0].norm())])
    return out


class CastLess(nn.Module):
    """A module whose result is in the precision of the plan, whatever it computes in."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any) -> Tensor:
        return self.inner(*args).float()

    @classmethod
    def of(cls, m: evenkeel.TaskModule) -> evenkeel.TaskModule:
        return evenkeel.TaskModule([cls(b) for b in m.blocks], cls(m.enter), cls(m.loss))


def failing(rank: int, groups: Any) -> list[str]:
    """What is said of modules that do not fit, and of the next step; rank 0 alone has work."""
    tasks = evenkeel.load_tasks(solved(chain(1)))
    said = []

    class Wrong(nn.Module):
        def __init__(self, of: Any) -> None:
            super().__init__()
            self.of = of

        def forward(self, *args: Any) -> Any:
            return self.of(*args)

    for change in (
        lambda m: m.pop("b"), lambda m: setattr(m["a"], "blocks", m["a"].blocks[:1]),
        lambda m: setattr(m["a"], "blocks", {0: m["a"].blocks[0], 1: torch.tanh}),
        lambda m: setattr(m["b"], "enter", None), lambda m: setattr(m["b"], "enter", lambda *_: torch.zeros(3, 2, 8)),
        lambda m: setattr(m["b"], "loss", None), lambda m: setattr(m["a"], "loss", 7),
        lambda m: setattr(m["b"], "enter", Wrong(lambda *_: torch.zeros(3, 3, 8))),
        lambda m: setattr(m["b"], "enter", Wrong(lambda *_: torch.zeros(3, 2, 8).double())),
        lambda m: setattr(m["b"], "blocks", [Wrong(lambda x: x[:, :1])]),
        lambda m: setattr(m["b"], "loss", Wrong(lambda *_: 3.0)),
        lambda m: setattr(m["b"], "loss", Wrong(lambda _, y: y)),
        lambda m: setattr(m["b"], "loss", Wrong(lambda *_: torch.zeros(()))),
        lambda m: setattr(m["a"], "loss", None),
    ):
        runs = evenkeel.TaskRuns(tasks)
        modules = modules_of(tasks, True)
        change(modules)
        if rank:
            continue
        for of in (modules, modules_of(tasks, True)):
            try:
                runs.step(of)
                said.append("")
            except (ValueError, RuntimeError) as error:
                said.append(str(error))
    return said


def left_alone(rank: int, groups: Any, back: bool) -> str:
    """What rank 0 hears when rank 1 dies in b, forward or backward."""
    tasks = evenkeel.load_tasks(solved(chain(2)))
    runs, modules = evenkeel.TaskRuns(tasks), modules_of(tasks, True)

    class Dying(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone() if back else os._exit(9)  # type: ignore[func-returns-value]

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Tensor:
            os._exit(9)

    class Last(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Dying.apply(x)

    if rank == 1:
        modules["b"].blocks = [Last()]
    try:
        runs.step(modules)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def too_few(rank: int, groups: Any) -> str:
    """What is said of a plan for more ranks than there are."""
    try:
        evenkeel.TaskRuns(evenkeel.load_tasks(solved(document(
            9, [module("a", 1, 9, 1, model(8, 8, (1, 1, 8)))], [(0, 1, {r: 1 for r in range(9)})]))))
    except ValueError as error:
        return str(error)
    return ""
