"""What the ranks of a test's world do with evenkeel.TaskRuns."""

from __future__ import annotations

import math
import os
from typing import Any, Mapping, Optional
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

import evenkeel
from evenkeel import task_trainer
from evenkeel.drawn import DTYPES
from evenkeel.moves import Move
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
    runs.close()
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
        lambda m: setattr(m["a"], "blocks", [m["a"].blocks[0], Wrong(lambda x: (x,))]),
        lambda m: setattr(m["b"], "loss", Wrong(lambda *_: 3.0)),
        lambda m: setattr(m["b"], "loss", Wrong(lambda _, y: y)),
        lambda m: setattr(m["b"], "loss", Wrong(lambda *_: torch.zeros(()))),
        lambda m: setattr(m["a"], "loss", None), lambda m: m.update(b=nn.Linear(8, 8)),
        lambda m: setattr(m["a"], "blocks", nn.ModuleDict({"0": m["a"].blocks[0], "1": m["a"].blocks[1]})),
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
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(Dying.apply(x) if rank else x)

    modules["b"].blocks = [Last(modules["b"].blocks[0])]
    try:
        runs.step(modules)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def too_few(rank: int, groups: Any) -> str:
    """What is said of a plan for more ranks than there are."""
    try:
        evenkeel.TaskRuns(evenkeel.load_tasks(solved(document(
            7, [module("a", 1, 7, 1, model(8, 8, (1, 1, 8)))], [(0, 1, {r: 1 for r in range(7)})]))))
    except ValueError as error:
        return str(error)
    return ""


def chained(rank: int, groups: Any, n: int) -> str:
    """What is said over NCCL of a plan of n runs, in turns on two ranks."""
    of = module("a", n, 2, 4, model(8, 8, (1, 1, 8)))
    tasks = evenkeel.load_tasks(solved(document(2, [of], [(0, 1, {i % 2: 2}) for i in range(n)])))
    with mock.patch.object(task_trainer, "carrying", return_value=torch.device("cpu")):
        try:
            evenkeel.TaskRuns(tasks)
        except ValueError as error:
            return f"{type(error).__name__}: {error}"
    return ""


class Two(nn.Module):
    """Parameters of one shape in one order or the other."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        for name in ("p", "q")[::-1 if turned else 1]:
            setattr(self, name, nn.Parameter(torch.ones(8)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.p + self.q


def differing(rank: int, groups: Any, how: str, spread: bool) -> str:
    """What a rank hears of a module b whose ranks do not have the same; spread: after they were given the same."""
    tasks = evenkeel.load_tasks(solved(chain(2)))
    runs, modules = evenkeel.TaskRuns(tasks), modules_of(tasks, True)
    b = modules["b"]
    b.blocks = [Two(how == "order" and rank == 1)]
    if how == "frozen":
        b.blocks[0].p.requires_grad_(rank == 1)
    if how == "value" and rank == 1:
        with torch.no_grad():
            b.blocks[0].p[3] = 7
            b.loss.head.bias += 1
    if how == "size" and rank < 2:
        b.blocks[0].q = nn.Parameter(torch.ones(8 - 7 * rank))
    if how == "loss" and rank == 1:
        b.loss.head.weight.requires_grad_(False)
    if how == "missing" and rank == 1:
        b.blocks = []
    try:
        if spread:
            runs.spread(modules)
        runs.step(modules)
    except ValueError as error:
        return str(error)
    finally:
        runs.close()
    return "" if float(b.blocks[0].p.detach().sum()) == 8 else "other values than the first rank's"


def used(rank: int, groups: Any, ranks: int) -> Optional[list[list[bool]]]:
    """Of a block and a loss on all ranks, whether a parameter that nobody uses has no gradient, and one that all do."""
    tasks = evenkeel.load_tasks(solved(chain(ranks)))
    runs, modules = evenkeel.TaskRuns(tasks), modules_of(tasks, True)
    b = modules["b"]
    b.loss.spare = nn.Parameter(torch.ones(2))
    runs.step(modules)
    runs.close()
    return [[b.blocks[0].unused.grad is None, b.loss.spare.grad is None],
            [b.blocks[0].mix.grad is None, b.loss.head.bias.grad is None]] if rank < ranks else None


class Given(nn.Module):
    """What enters, as it is."""

    def __init__(self, data: Tensor) -> None:
        super().__init__()
        self.data = data

    def forward(self, samples: range, needed: Any) -> Tensor:
        return self.data[list(samples)]


class Summed(nn.Module):
    """So many times the sum of a result."""

    def __init__(self, times: float) -> None:
        super().__init__()
        self.times = times

    def forward(self, samples: range, y: Tensor) -> Tensor:
        return (y.float() * self.times).square().sum() if self.times == 1 else (y.float() * self.times).sum()


def lone(ranks: int, dtype: str = "f32", again: bool = False) -> Tasks:
    """A module of one layer and three samples on a rank or two."""
    of = [module("a", 1, 3, 4, model(8, 8, (1, 1, 8)))]
    return evenkeel.load_tasks(solved(document(ranks, of, [(0, 1, {0: 1, 1: 2} if ranks > 1 else {0: 3})], dtype, again)))


def islands(rank: int, groups: Any) -> Optional[float]:
    """How far the gradient of a layer that computes in float32 within autocast is from what it is without a plan."""
    runs = evenkeel.TaskRuns(lone(1))
    if rank:
        return None
    torch.manual_seed(1)
    data = torch.randn(3, 4, 8)

    class Island(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", enabled=False):
                return super().forward(x)

    layer = Island(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        runs.step({"a": evenkeel.TaskModule([layer], Given(data), Summed(1))})
    got, layer.weight.grad = layer.weight.grad, None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = Summed(1)(range(3), layer(data))
    loss.backward()
    return float((got - layer.weight.grad).norm())


def wide(rank: int, groups: Any) -> Optional[list[float]]:
    """Of a float16 plan how far the gradient of a float32 parameter is off, of what a float16 one has beside it; and
    the bytes that the gradient of this one keeps, and those it has."""
    runs = evenkeel.TaskRuns(lone(2, "f16"))
    torch.manual_seed(0)
    data = torch.randn(3, 4, 8).half()

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.of, self.small = nn.Linear(8, 8), nn.Parameter(torch.ones(8).half())

        def forward(self, x: Tensor) -> Tensor:
            return (x.float() + self.of(x.float())).half() + self.small * 0

    layer, loss = Mixed(), Summed(16384.0)
    loss(range(3), layer(data)).backward()
    want, layer.of.bias.grad, layer.of.weight.grad, layer.small.grad = layer.of.bias.grad, None, None, None
    runs.step({"a": evenkeel.TaskModule([layer], Given(data), loss)})
    runs.close()
    if rank > 1:
        return None
    grad = layer.small.grad
    return [float((layer.of.bias.grad - want).norm() / want.norm()), float(grad.storage().nbytes()),
            float(grad.numel() * grad.element_size())]


def cut_off(rank: int, groups: Any, how: str, again: bool) -> Optional[list[Any]]:
    """Of a last module that lets no gradient through, the gradients before it, and whether it has any itself."""
    tasks = evenkeel.load_tasks(solved(chain(2, again)))
    runs, modules = evenkeel.TaskRuns(tasks), modules_of(tasks, False)

    class Frozen(Block):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                return super().forward(x)

    class Ignoring(Block):
        def forward(self, x: Tensor) -> Tensor:
            return self.norm.bias.expand_as(x)

    torch.manual_seed(0)
    last = (Frozen if how == "frozen" else Ignoring)(8, 2)
    modules["b"].blocks = [last]
    runs.step(modules)
    runs.close()
    if rank > 1:
        return None
    before = modules["a"].blocks[0].mix.grad if not rank else modules["b"].enter.own.weight.grad
    return [float(before.norm()), last.norm.bias.grad is not None]


def given(rank: int, groups: Any, of: Document) -> list[Any]:
    """Of a step, how many tensors that were given to others had changed at its end, and how many had a graph; and the
    order in which they were given and losses computed, by twos."""
    tasks = evenkeel.load_tasks(solved(of))
    runs, modules = evenkeel.TaskRuns(tasks), modules_of(tasks, True)
    seen: list[tuple[Tensor, Tensor]] = []
    order: list[str] = []
    give = Move.give

    def noted(move: Move, x: Tensor) -> None:
        seen.append((x, x.detach().clone()))
        order.append("give")
        give(move, x)

    for i in (i for i, run in enumerate(runs.runs) if run.last):
        later = [x for x in tasks.links if tasks.module(x.source).name == runs.runs[i].module]
        if later:
            modules[runs.runs[i].module].loss.register_forward_pre_hook(lambda *_: order.append("loss"))
    with mock.patch.object(Move, "give", noted):
        runs.step(modules)
    runs.close()
    forward = order[:1 + max((i for i, x in enumerate(order) if x == "loss"), default=-1)]
    pairs = ["loss give" for i, x in enumerate(forward) if x == "loss" and (not i or forward[i - 1] != "give")]
    return [sum(not torch.equal(x, was) for x, was in seen), sum(x.requires_grad for x, _ in seen), pairs]


def computed(rank: int, groups: Any) -> Optional[list[Any]]:
    """With and without recomputation, whether each call of a block has a graph; and whether losses have one."""
    out = []
    for again in (False, True):
        calls: list[bool] = []

        class Noting(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                calls.append(torch.is_grad_enabled())
                return x * 2

        tasks = evenkeel.load_tasks(solved(chain(1, again)))
        runs, modules = evenkeel.TaskRuns(tasks), modules_of(tasks, False)
        modules["a"].blocks = [Noting(), Noting()]
        losses = runs.step(modules)
        out.append(calls)
    return None if rank else [out, losses.requires_grad]
