"""A plan of tasks for a training loop: modules of any kind, on the ranks and with the samples that the plan says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence, Union

import torch
import torch.distributed as dist
from torch import Tensor, nn

from . import exchange, fields, moves
from .drawn import DTYPES
from .exchange import Key
from .graphs import Blocks, back, fitting
from .parts import Members, carrying, few_groups, join
from .plan import PlanError, Source, check_schema, opened
from .port import ProcessGroup
from .task_runs import Got, Runs
from .tasks import SCHEMA, Link, Tasks, tasks_of


Grads = list[Optional[Tensor]]  # of parameters, None of those that a pass does not come by


class Needed(NamedTuple):
    """What a rank has of the results of a module that another one needs.

    x [samples, seq_len, hidden]: of some samples of the module's batch, with autograd. samples: which ones. to: int64,
    as many: by each, for which of the rank's own samples it is, from 0 on.
    """

    x: Tensor
    samples: range
    to: Tensor


@dataclass
class TaskModule:
    """A module's layers, as a trainer has them, and what is around them; as far as the rank needs them. All of it is
    nn.Module, whose parameters' gradients are added up among ranks.

    blocks: by a layer's number, y of x, both [samples, seq_len, hidden] of the module. enter: of (samples, needed), the
    first layer's x: of the range of samples of the batch that the rank has, and by name a Needed for each module whose
    results this one needs; where a module's first layer is. loss: of (samples, y), a number, which is added to those of
    other samples and modules; where its last layer is. A module whose results nobody needs has one.
    """

    blocks: Union[Mapping[int, nn.Module], Sequence[nn.Module], nn.ModuleList, nn.ModuleDict]
    enter: Optional[nn.Module] = None
    loss: Optional[nn.Module] = None

    def block(self, layer: int) -> nn.Module:
        """A layer's; a ModuleDict has its number as text. LookupError where there is none."""
        block: nn.Module = self.blocks[str(layer)] if isinstance(self.blocks, nn.ModuleDict) else self.blocks[layer]
        return block


@dataclass(frozen=True)
class TaskRun:
    """Layers of a module that a rank has, with its samples. first, last: whether the module's first layer is among
    them, and its last one. ranks: those that have these layers too, each with samples of its own, itself included;
    group: their process group, None where it is one rank."""

    module: str
    layers: range
    samples: range
    first: bool
    last: bool
    ranks: tuple[int, ...]
    group: ProcessGroup


def load_tasks(source: Source, *, dtype: Optional[str] = None) -> Tasks:
    """Reads a plan of `evenkeel solve --tasks` from a file or a document already parsed. dtype: what travels between
    layers and modules, f32, bf16 or f16; by default what the plan was made for. Raises PlanError, which names the
    field, for what cannot be run, and OSError for a file that cannot be read."""
    def read(document: Mapping[str, Any]) -> Tasks:
        check_schema(document, SCHEMA)
        if dtype is not None:
            document = {**document, "dtype": dtype}
        if document.get("dtype") not in DTYPES:
            raise PlanError(f"dtype: {document.get('dtype')!r}: want {', '.join(DTYPES)}; plans from before it was "
                            "written down are made again by solve --tasks")
        ranks = sorted(r for i, of in enumerate(fields.objects(document, "devices"))
                       for r in fields.nodes(of, "ranks", f"devices[{i}]."))
        if ranks != list(range(len(ranks))):
            raise PlanError("devices: want ranks from 0 on, each once")
        modules = [{**m, **_sized(m, f"modules[{i}].")} for i, m in enumerate(fields.objects(document, "modules"))]
        job = {name: document[name] for name in ("dtype", "recompute") if name in document}
        return tasks_of({**document, "job": job, "modules": modules, "ranks": [{"rank": r} for r in ranks]}, len(ranks))

    return opened(source, read)


def _sized(module: Mapping[str, Any], at: str) -> dict[str, Any]:
    """A module's samples and model of its shape, whose layers are the trainer's."""
    if "shape" not in module:
        raise PlanError(f"{at}shape: missing: the module's time is a curve, which does not say what travels between "
                        "modules; state shapes")
    shape = fields.an_object(module, "shape", at)
    at += "shape."
    model = {name: fields.whole(shape, name, at, 1) for name in ("hidden", "ffn", "q_heads")}
    model["kv_heads"] = fields.whole(shape, "kv_heads", at, 1, model["q_heads"])
    model["head_dim"] = fields.whole(shape, "head_dim", at, 1, max(1, model["hidden"] // model["q_heads"]))
    return {"seq_len_tokens": fields.whole(shape, "seq_len_tokens", at, 1), "causal": shape.get("causal", False),
            "model": {**model, "position_rows": 1}}


class TaskRuns:
    """What this rank does of a plan of tasks. Every rank of the default process group makes one of the same plan, whose
    ranks are the group's, those that have no run too. runs: this rank's, in their order."""

    def __init__(self, tasks: Tasks, *, device: Optional[torch.device] = None, timeout_s: float = 1800.0) -> None:
        """timeout_s: how long a rank waits for another."""
        rank, size = dist.get_rank(), dist.get_world_size()
        most = max(r for run in tasks.runs for r in run.ranks)
        if most >= size:
            raise ValueError(f"tasks: have rank {most}, and the process group {size} ranks")
        device = device or torch.device("cpu")
        where = carrying(device)
        groups = [*moves.process_groups(tasks), *exchange.process_groups(tasks)]
        if where is not None:
            few_groups(groups, size, "take a plan")
        self._made = join(groups, rank, size, timeout_s, where)
        self.tasks, self.runs = tasks, [_run_of(tasks, i, rank, self._made) for i in tasks.own(rank)]
        self._work = _Training(tasks, rank, self._made, device)
        self._failed = self._alike = False

    def spread(self, modules: Mapping[str, TaskModule]) -> None:
        """Gives all ranks that have the same layers the parameters and buffers of the lowest of them: before the first
        step, where they were not drawn alike. Every rank calls it."""
        self._fit(modules)
        self._work.spread(modules)

    def close(self) -> None:
        """Ends the process groups, which have threads and connections. Every rank calls it, before it makes others for
        another plan."""
        for group in {id(g): g for g in self._made.values() if g is not None}.values():
            dist.destroy_process_group(group)
        self._made = {}

    def step(self, modules: Mapping[str, TaskModule]) -> Tensor:
        """All passes of a step, forward and backward, of modules by their names: as many as the rank has runs of. Every
        rank calls it. To the gradients of their parameters is added that of the sum of all losses, of all samples of
        the batch: ranks that have the same layers get the same. A parameter that several parts of modules have gets
        what is of those that this rank has.

        Returns by module, in the plan's order, the sum of the losses of this rank's samples: added up over all ranks
        they are what is differentiated. Raises ValueError for modules, results and losses that do not fit; before the
        first step on all ranks of a run, where their parameters differ. What a step has begun that failed cannot be
        ended: the next one raises RuntimeError.
        """
        if self._failed:
            raise RuntimeError("an earlier step failed, and messages of it may be under way: begin anew, in processes "
                               "of their own")
        self._agree(modules)
        self._failed = True
        losses = self._work.train(modules)
        self._failed = False
        return losses

    def _agree(self, modules: Mapping[str, TaskModule]) -> None:
        """_fit, of which all ranks of a run hear the first time, and of parameters that differ among them."""
        try:
            self._fit(modules)
        except ValueError:
            if not self._alike:
                self._work.unlike(None)
            raise
        if not self._alike:
            for i in self._work.unlike(modules):
                run = self.tasks.runs[i]
                layers = _listed(range(run.first, run.first + run.layers))
                raise ValueError(
                    f"modules[{self.tasks.module(i).name!r}]: ranks {', '.join(map(str, run.ranks))}, which all have its "
                    f"layers {layers}, differ in their parameters or one of them has not all it needs: want the same "
                    "names, shapes, dtypes, requires_grad and values in one order; spread() gives all those of the "
                    "first")
        self._alike = True

    def _fit(self, modules: Mapping[str, TaskModule]) -> None:
        """ValueError for what a rank needs and has not."""
        needed = {self.tasks.modules[n].name for m in self.tasks.modules for n in m.needs}
        for run in self.runs:
            at = f"modules[{run.module!r}]"
            if run.module not in modules:
                raise ValueError(f"{at}: missing: the rank has its layers {_listed(run.layers)}")
            of = modules[run.module]
            if not isinstance(of, TaskModule):
                raise ValueError(f"{at}: {type(of).__name__}: want a TaskModule")
            for i in run.layers:
                try:
                    block = of.block(i)
                except LookupError:
                    raise ValueError(f"{at}.blocks: have no {i}: the rank has layers {_listed(run.layers)}") from None
                _parameters(block, f"{at}.blocks[{i}]")
            if run.first:
                _parameters(of.enter, f"{at}.enter")
            if run.last and (of.loss is not None or run.module not in needed):
                _parameters(of.loss, f"{at}.loss")


def _run_of(tasks: Tasks, i: int, rank: int, groups: Mapping[Members, ProcessGroup]) -> TaskRun:
    run, (first, last) = tasks.runs[i], tasks.ends(i)
    share = run.share(rank)
    return TaskRun(tasks.module(i).name, range(run.first, run.first + run.layers), range(share.start, share.end), first,
                   last, run.ranks, groups.get((exchange.GROUP, run.ranks)))


def _parts(tasks: Tasks, i: int, modules: Mapping[str, TaskModule]) -> list[Optional[nn.Module]]:
    """All that a run's ranks have of its module."""
    run, of, (first, last) = tasks.runs[i], modules[tasks.module(i).name], tasks.ends(i)
    blocks: list[Optional[nn.Module]] = [of.block(n) for n in range(run.first, run.first + run.layers)]
    return blocks + [of.enter] * first + [of.loss] * last


def _signature(parts: Sequence[Optional[nn.Module]]) -> str:
    """What ranks that add up gradients have alike: parameters, and their bits."""
    return repr([[(name, tuple(w.shape), str(w.dtype), w.requires_grad, _checksum(w))
                  for name, w in part.named_parameters()] if part is not None else None for part in parts])


def _checksum(w: Tensor) -> int:
    """The sum of a tensor's elements as whole numbers, which is the same on any device."""
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32}.get(w.element_size(), torch.int64)
    return int(w.detach().contiguous().view(-1).view(kind).long().sum())


def _listed(layers: range) -> str:
    return f"{layers.start} to {layers.stop - 1}" if len(layers) > 1 else str(layers.start)


def _parameters(of: Any, at: str) -> list[nn.Parameter]:
    """Those of a module that have gradients."""
    if not isinstance(of, nn.Module):
        raise ValueError(f"{at}: {'missing' if of is None else type(of).__name__}: want a torch.nn.Module, whose "
                         "parameters' gradients are added up among ranks")
    return [w for w in of.parameters() if w.requires_grad]


class _Training(Runs):
    """Runs of a trainer's modules. Where several ranks have a run, what a backward pass finds is added up among them
    before it is added to gradients, which may be there from before."""

    def __init__(
        self, tasks: Tasks, rank: int, groups: Mapping[Members, ProcessGroup], device: torch.device
    ) -> None:
        """See Runs."""
        super().__init__(tasks, rank, groups, device)
        self._rank, self._device = rank, device

    def unlike(self, modules: Optional[Mapping[str, TaskModule]]) -> list[int]:
        """The runs whose ranks do not have the same parameters, of those that several have; None has none."""
        said = {i: "" if modules is None else _signature(_parts(self._tasks, i, modules)) for i in self._exchanges}
        alike = {i: among.alike(said[i]) for i, among in self._exchanges.items()}
        return [i for i, same in alike.items() if not same]

    def spread(self, modules: Mapping[str, TaskModule]) -> None:
        """Gives all ranks of a run the parameters and buffers of its first one."""
        for i, among in self._exchanges.items():
            for part in _parts(self._tasks, i, modules):
                for x in (*part.parameters(), *part.buffers()) if part is not None else ():
                    among.spread(x.detach())

    def train(self, modules: Mapping[str, TaskModule]) -> Tensor:
        """A step. Returns losses: see TaskRuns.step."""
        self._modules = [modules.get(m.name, TaskModule(())) for m in self._tasks.modules]
        self._losses = torch.zeros(len(self._modules), device=self._device)
        self._blocks: dict[int, Blocks] = {}  # of runs whose backward pass is to come
        self._entered: dict[int, tuple[Tensor, dict[Link, Tensor]]] = {}  # likewise, by a module's first run
        self._lost: dict[int, tuple[Tensor, Grads]] = {}  # of a result, and of the loss's parameters
        # Of what is being added up, parameters, and whether this rank has found a gradient of each.
        self._weights: dict[tuple[int, Key], list[tuple[nn.Parameter, bool]]] = {}
        self.step()
        return self._losses

    def enter(self, i: int, got: Got) -> Tensor:
        """See Runs."""
        run, of = self._tasks.runs[i], self._tasks.module(i)
        samples, needed, leaves = self._samples(i), dict[str, Needed](), dict[Link, Tensor]()
        for link, rows in got:
            source = self._tasks.module(link.source)
            taken = self._tasks.taken(link, self._rank)
            x = leaves[link] = rows.detach().view(-1, source.seq_len, source.model.hidden).requires_grad_()
            to = torch.arange(taken.start, taken.end, device=x.device) * of.batch // source.batch - samples.start
            needed[source.name] = Needed(x, range(taken.start, taken.end), to)
        enter = self._modules[run.module].enter
        assert enter is not None
        x = enter(samples, needed)
        like = torch.empty((), dtype=DTYPES[self._tasks.dtype], device=self._device)
        fitting(x, like.expand(len(samples), of.seq_len, of.model.hidden), f"modules[{of.name!r}].enter: its result")
        self._entered[i] = x, leaves
        return x.detach().flatten(0, 1)

    def forward(self, i: int, x: Tensor) -> Tensor:
        """See Runs."""
        run = self._tasks.runs[i]
        name, of = self._tasks.module(i).name, self._modules[run.module]
        blocks = [of.block(n) for n in range(run.first, run.first + run.layers)]

        def around(n: int, backward: Callable[[], None]) -> None:
            self._learned(i, run.first + n, blocks[n], backward)

        through = self._blocks[i] = Blocks(blocks, run.layers if self._tasks.recompute else 0, around,
                                           lambda n: f"modules[{name!r}].blocks[{run.first + n}]")
        return through.forward(self._by_sample(i, x)).flatten(0, 1)

    def ended(self, i: int, y: Tensor) -> None:
        """See Runs: the loss, forward and backward, so that nothing of it is kept but gradients."""
        m, of = self._tasks.runs[i].module, self._tasks.module(i)
        loss = self._modules[m].loss
        if loss is None:
            return
        leaf = self._by_sample(i, y).detach().requires_grad_()
        value = loss(self._samples(i), leaf)
        if not isinstance(value, Tensor) or value.dim():
            raise ValueError(f"modules[{of.name!r}].loss: its result: want a tensor without dimensions, the sum of the "
                             "samples' losses")
        weights = _parameters(loss, "loss")
        grads = _found(weights, partial(back, value))
        self._lost[i] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad, grads
        self._losses[m] += value.detach()

    def begin(self, i: int, got: Got) -> Tensor:
        """See Runs."""
        given = [x for _, x in got]
        if i in self._lost:
            dy, grads = self._lost.pop(i)
            loss = self._modules[self._tasks.runs[i].module].loss
            self._give_up(i, "the loss", _parameters(loss, "loss"), grads)
            given.append(dy.flatten(0, 1))
        out = given[0].clone() if len(given) > 1 else given[0]
        for x in given[1:]:
            out += x
        return out

    def backward(self, i: int, dy: Tensor) -> Tensor:
        """See Runs."""
        return self._blocks.pop(i).backward(self._by_sample(i, dy)).flatten(0, 1)

    def left(self, i: int, dx: Tensor) -> Callable[[Link], Tensor]:
        """See Runs."""
        x, leaves = self._entered.pop(i)
        enter = self._modules[self._tasks.runs[i].module].enter
        assert enter is not None
        self._learned(i, "what enters", enter, partial(back, x, self._by_sample(i, dx)))
        return lambda link: _gradient(leaves[link]).flatten(0, 1)

    def summed(self, i: int, key: Key, flat: Tensor) -> None:
        """See Runs."""
        weights = self._weights.pop((i, key))
        apart = len({w.dtype for w, _ in weights}) > 1  # a view of one would keep all the others' copies, too
        *grads, found = flat.split([*(w.numel() for w, _ in weights), len(weights)])
        for (w, own), grad, n in zip(weights, grads, found):
            if own or bool(n):  # else no rank has any, and an optimizer passes it over, as on one device
                _add(w, grad.view_as(w).to(w.dtype, copy=apart))

    def _learned(self, i: int, key: Key, of: nn.Module, backward: Callable[[], None]) -> None:
        """Runs a backward pass of some parameters."""
        if i in self._exchanges:
            weights = _parameters(of, "")
            self._give_up(i, key, weights, _found(weights, backward))
        else:
            backward()

    def _give_up(self, i: int, key: Key, weights: list[nn.Parameter], grads: Grads) -> None:
        """What was found of parameters is added up among a run's ranks, if it has several."""
        if i not in self._exchanges:
            for w, grad in zip(weights, grads):
                if grad is not None:
                    _add(w, grad)
        elif weights:
            own = [grad is not None for grad in grads]
            self._weights[i, key] = list(zip(weights, own))
            found = torch.tensor(own, dtype=weights[0].dtype, device=self._device)
            all_of = [torch.zeros_like(w) if grad is None else grad for w, grad in zip(weights, grads)]
            self._exchanges[i].post(key, [*all_of, found])

    def _samples(self, i: int) -> range:
        share = self._tasks.runs[i].share(self._rank)
        return range(share.start, share.end)

    def _by_sample(self, i: int, x: Tensor) -> Tensor:
        return x.reshape(-1, self._tasks.module(i).seq_len, x.shape[-1])


def _found(weights: list[nn.Parameter], backward: Callable[[], None]) -> Grads:
    """What a backward pass finds of parameters, whose gradients stay what they were."""
    had = [w.grad for w in weights]
    try:
        for w in weights:
            w.grad = None
        backward()
        grads = [w.grad for w in weights]
        if any(grad is not None and grad.is_sparse for grad in grads):
            raise ValueError("a sparse gradient: want dense ones of what several ranks have, as of "
                             "Embedding(sparse=False)")
        return grads
    finally:
        for w, grad in zip(weights, had):
            w.grad = grad


def _gradient(x: Tensor) -> Tensor:
    return torch.zeros_like(x) if x.grad is None else x.grad


def _add(w: nn.Parameter, grad: Tensor) -> None:
    if w.grad is None:
        w.grad = grad
    else:
        w.grad += grad
