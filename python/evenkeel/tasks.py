"""The plan of tasks that `evenkeel solve --tasks` writes, as far as running it needs it.

Modules are stretches of identical layers of one shape each, over a batch of samples; some need the results of others.
Runs have consecutive layers of a module, on ranks that have shares of the samples, in their order. Every rank takes
its runs in their order forward, and in the reverse one backward.
"""

from __future__ import annotations

from dataclasses import dataclass, fields as fields_of
from functools import cached_property
from typing import Any, Mapping, NamedTuple, Optional, Sequence

from . import fields
from .plan import Plan, PlanError, Segment, Share, check_schema
from .whole import Model, model_in

SCHEMA = "evenkeel.taskplan/v1"


@dataclass(frozen=True)
class Module:
    """Layers of a model over samples of so many tokens. needs: the modules whose results it takes. causal: else
    tokens see their whole sample."""

    name: str
    layers: int
    batch: int  # samples
    needs: tuple[int, ...]
    seq_len: int
    causal: bool
    model: Model

    def like(self, dtype: str) -> Plan:
        """A plan with its heads and precision, of one sample on one rank."""
        m = self.model
        return Plan(
            seq_len=self.seq_len, q_heads=m.q_heads, kv_heads=m.kv_heads, head_dim=m.head_dim, ring_buffers=2,
            dtype=dtype, segments=((Segment(0, self.seq_len),),), groups=((Share(0, m.q_heads),),),
        )


@dataclass(frozen=True)
class Run:
    """A module's layers first to first + layers - 1, and which ranks have how many of its samples."""

    module: int
    first: int
    layers: int
    ranks: tuple[int, ...]
    samples: tuple[int, ...]

    def share(self, rank: int) -> Segment:
        """A rank's samples, none of a rank that is not in the run."""
        if rank not in self.ranks:
            return Segment(0, 0)
        i = self.ranks.index(rank)
        start = sum(self.samples[:i])
        return Segment(start, start + self.samples[i])


class Link(NamedTuple):
    """Two runs, of which the second one needs results of the first."""

    source: int
    target: int


@dataclass(frozen=True)
class Tasks:
    """Modules, and runs in their order. recompute: layers are computed again in the backward pass."""

    modules: tuple[Module, ...]
    runs: tuple[Run, ...]
    dtype: str
    recompute: bool

    def own(self, rank: int) -> list[int]:
        """The numbers of a rank's runs."""
        return [i for i, run in enumerate(self.runs) if rank in run.ranks]

    def module(self, run: int) -> Module:
        """A run's."""
        return self.modules[self.runs[run].module]

    def ends(self, run: int) -> tuple[bool, bool]:
        """Whether a run has its module's first layer, and its last one."""
        r = self.runs[run]
        return r.first == 0, r.first + r.layers == self.modules[r.module].layers

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """By target; of one whose module needs several, in the order in which it names them."""
        out, last = [], dict[int, int]()  # by module its last run so far
        for i, run in enumerate(self.runs):
            needed = self.modules[run.module].needs if run.first == 0 else (run.module,)
            out += [Link(last[m], i) for m in needed]
            last[run.module] = i
        return tuple(out)

    def within(self, link: Link) -> bool:
        """Whether it is between runs of one module."""
        return self.runs[link.source].module == self.runs[link.target].module

    def taken(self, link: Link, rank: int) -> Segment:
        """The samples of the source's module that a rank of the target needs: sample a of n goes to sample
        a * m // n of m."""
        n, m = self.module(link.source).batch, self.module(link.target).batch
        of = self.runs[link.target].share(rank)
        return Segment(-(-of.start * n // m), -(-of.end * n // m))

    def depth(self) -> int:
        """Layers that the last result has gone through, by the longest way."""
        at: list[int] = [0] * len(self.modules)
        for run in self.runs:
            if run.first == 0:
                m = self.modules[run.module]
                at[run.module] = m.layers + max((at[n] for n in m.needs), default=0)
        return max(at)

    def unlike(self, other: "Tasks") -> Optional[str]:
        """What differs from another plan's modules and precision, None if nothing does: plans that are run in turn
        have the same layers."""
        if self.dtype != other.dtype:
            return f"job.dtype: {self.dtype}: plan 0 has {other.dtype}"
        if len(self.modules) != len(other.modules):
            return f"modules: {len(self.modules)} of them: plan 0 has {len(other.modules)}"
        for i, (a, b) in enumerate(zip(self.modules, other.modules)):
            for f in fields_of(Module):
                if getattr(a, f.name) != getattr(b, f.name):
                    return f"modules[{i}].{_FIELDS.get(f.name, f.name)}: not what plan 0 has"
        return None


_FIELDS = {"batch": "batch_samples", "needs": "after", "seq_len": "seq_len_tokens"}  # in documents


def tasks_of(document: Mapping[str, Any], ranks: int) -> Tasks:
    """A plan document with the modules' models and the job added, for so many ranks. Raises PlanError, which names
    the field."""
    check_schema(document, SCHEMA)
    job = fields.an_object(document, "job", "")
    again = job.get("recompute", "none")
    if again not in ("none", "full"):
        raise PlanError(f"job.recompute: {again!r}: want full, none or no such field")
    for i, of in enumerate(fields.objects(document, "ranks")):
        if of.get("rank") != i:
            raise PlanError(f"ranks[{i}].rank: {of.get('rank')!r}: want {i}")
    if len(document["ranks"]) != ranks:
        raise PlanError(f"ranks: {len(document['ranks'])} of them: {ranks} ranks were started")
    modules = _modules(document)
    return Tasks(modules, _runs(document, modules, ranks), str(job.get("dtype")), again == "full")


def _modules(document: Mapping[str, Any]) -> tuple[Module, ...]:
    of = fields.objects(document, "modules")
    names: list[Any] = [x.get("name") for x in of]
    out = []
    for i, x in enumerate(of):
        at = f"modules[{i}]."
        if not isinstance(names[i], str) or not names[i] or names.index(names[i]) != i:
            raise PlanError(f"{at}name: {names[i]!r}: want a name of its own")
        layers, batch, seq_len = (fields.whole(x, n, at, 1) for n in ("layers", "batch_samples", "seq_len_tokens"))
        causal = fields.flag(x, "causal", at)
        model = model_in(fields.an_object(x, "model", at), f"{at}model.")
        if model.q_heads % model.kv_heads:
            raise PlanError(f"{at}model.kv_heads: {model.kv_heads}: must divide q_heads {model.q_heads}")
        out.append(Module(names[i], layers, batch, _needs(x, at, names), seq_len, causal, model))
    return tuple(out)


def _needs(of: Mapping[str, Any], at: str, names: Sequence[Any]) -> tuple[int, ...]:
    after = of.get("after", [])
    if not isinstance(after, list):
        raise PlanError(f"{at}after: want a list of names of modules")
    for i, name in enumerate(after):
        if name not in names or name == of["name"] or after.index(name) != i:
            raise PlanError(f"{at}after[{i}]: {name!r}: want names of other modules, each once")
    return tuple(names.index(name) for name in after)


def _runs(document: Mapping[str, Any], modules: Sequence[Module], ranks: int) -> tuple[Run, ...]:
    done, out = [0] * len(modules), []
    for i, x in enumerate(fields.objects(document, "runs")):
        at = f"runs[{i}]."
        m = fields.whole(x, "module", at, 0)
        if m >= len(modules):
            raise PlanError(f"{at}module: {m}: want 0 to {len(modules) - 1}")
        for need in modules[m].needs:
            if done[need] < modules[need].layers:
                raise PlanError(f"{at}module: {modules[m].name} begins before all layers of {modules[need].name}, "
                                "which it needs")
        layers, left = fields.whole(x, "layers", at, 1), modules[m].layers - done[m]
        if layers > left:
            raise PlanError(f"{at}layers: {layers}: the runs before leave {left} of {modules[m].name}")
        out.append(Run(m, done[m], layers, *_shares(x, at, modules[m], ranks)))
        done[m] += layers
    for m, n in enumerate(done):
        if n < modules[m].layers:
            raise PlanError(f"runs: have {n} of the {modules[m].layers} layers of {modules[m].name}")
    return tuple(out)


def _shares(of: Mapping[str, Any], at: str, module: Module, ranks: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    mine, samples = fields.numbers(of, "ranks", at, 0), fields.numbers(of, "samples", at, 1)
    if max(mine) >= ranks or any(a >= b for a, b in zip(mine, mine[1:])):
        raise PlanError(f"{at}ranks: {list(mine)}: want rising ones of 0 to {ranks - 1}")
    if len(samples) != len(mine):
        raise PlanError(f"{at}samples: {len(samples)} of them: want one for each of {len(mine)} ranks")
    if sum(samples) != module.batch:
        raise PlanError(f"{at}samples: {sum(samples)} together: want batch_samples of {module.name}, {module.batch}")
    return mine, samples
