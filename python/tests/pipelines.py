"""Pipelines for tests, and what the ranks of a test's world do with them."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from typing import Any, Iterator, Optional
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

import evenkeel
import jobs
from evenkeel import reference
from evenkeel.flow import Flow, process_groups
from evenkeel.plan import Segment
from evenkeel.port import Batch, Message, Port
from evenkeel.stages import SCHEMA, Pipeline, pipeline_of
from evenkeel.whole import Layer, Model

Document = dict[str, Any]
F, B = False, True  # of a pass: backward


def document(
    lengths: list[int], chunks: list[tuple[Optional[tuple[int, int, int]], list[int]]],
    stages: list[tuple[list[int], int]], orders: list[list[tuple[int, bool]]], again: list[list[int]],
    heads: tuple[int, int, int] = (12, 4, 8), dtype: str = "f32",
) -> Document:
    """A plan document as the rank program takes it. chunks: of (sequence, context, tokens) of a slice or None, and
    whole sequences; stages: of ranks and a number of layers."""
    listed = []
    for of, whole in chunks:
        x: dict[str, Any] = {"sequence": -1}
        if of:
            x = {"sequence": of[0], "context_tokens": of[1], "slice_tokens": of[2]}
        listed.append({**x, **({"whole": whole} if whole else {})})
    ranks = [r for of, _ in stages for r in of]
    model = dict(zip(("q_heads", "kv_heads", "head_dim"), heads), hidden=24, ffn=40, gated_mlp=True)
    return {
        "schema": SCHEMA, "job": {"model": model, "dtype": dtype}, "layers": sum(n for _, n in stages),
        "ranks": [{"rank": r, "device": "torch_cpu:1"} for r in range(max(ranks) + 1)], "lengths_tokens": lengths,
        "stages": [{"ranks": of, "layers": n} for of, n in stages], "chunks": listed, "recomputed_layers": again,
        "orders": [[{"chunk": k, **({"backward": True} if back else {})} for k, back in of] for of in orders],
    }


def random_pipeline(seed: int, ranks: int) -> Document:
    """Stages of 1 to 4 of the ranks, whose order is any; sequences in slices, packed, or both; every stage has a
    random order of its own in which nothing waits for itself."""
    r = random.Random(f"pipeline {seed}")
    lengths = [r.randint(1, 30) for _ in range(r.randint(1, 5))]
    chunks = _chunks(r, lengths)
    crews, left = [], r.sample(range(ranks), ranks)
    while left:
        n = r.choice([n for n in (1, 2, 3, 4) if n <= len(left)])
        crews.append(sorted(left[:n]))
        left = left[n:]
    stages = [(crew, r.randint(1, 3)) for crew in crews]
    again = [[r.choice([0, n, r.randint(0, n)]) for _ in chunks] for _, n in stages]
    heads = r.choice([(12, 4, 8), (12, 12, 4), (12, 1, 6), (12, 3, 8)])
    return document(lengths, chunks, stages, _orders(r, chunks, len(stages)), again, heads)


def _chunks(r: random.Random, lengths: list[int]) -> list[tuple[Optional[tuple[int, int, int]], list[int]]]:
    slices: list[list[Any]] = []  # by sequence, in their order
    whole: list[int] = []
    for i, n in enumerate(lengths):
        if n < 2 or r.random() < 0.4:
            whole.append(i)
            continue
        cuts = sorted({0, n, *(r.randint(0, n) for _ in range(r.randint(1, 3)))})
        slices.append([(i, a, b - a) for a, b in zip(cuts, cuts[1:])])
    chunks: list[Any] = []
    while any(slices):
        of = r.choice([x for x in slices if x])
        chunks.append((of.pop(0), []))
    while whole:
        n = r.randint(1, len(whole))
        if chunks and r.random() < 0.5:
            r.choice(chunks)[1].extend(whole[:n])
        else:
            chunks.insert(r.randint(0, len(chunks)), (None, whole[:n]))
        whole = whole[n:]
    return chunks


def _orders(r: random.Random, chunks: list[Any], stages: int) -> list[list[tuple[int, bool]]]:
    """Plays a step in which a random stage does a random pass that may begin."""
    done: list[list[tuple[int, bool]]] = [[] for _ in range(stages)]

    def may(s: int, k: int, back: bool) -> bool:
        of, mine = chunks[k][0], done[s]
        if (k, back) in mine or back and (k, False) not in mine:
            return False
        for j, (other, _) in enumerate(chunks):
            if of and other and other[0] == of[0] and (other[1] > of[1] if back else other[1] < of[1]):
                if (j, back) not in mine:
                    return False
        source = s + 1 if back else s - 1
        return not 0 <= source < stages or (k, back) in done[source]

    while True:
        passes = [(k, b) for k in range(len(chunks)) for b in (False, True)]
        free = [(s, k, b) for s in range(stages) for k, b in passes if may(s, k, b)]
        if not free:
            return done
        s, k, b = r.choice(free)
        done[s].append((k, b))


MODELS = {
    "gated": {}, "plain": {"gated": False, "layer_norm": True, "mlp_bias": True, "rotary": 0},
}


def model_of(pipeline: Pipeline, kind: str) -> Model:
    off = dict.fromkeys(("layer_norm", "shared_norm", "qk_norm", "qkv_bias", "out_bias", "mlp_bias"), False)
    return Model(**{
        "hidden": 24, "ffn": 40, "q_heads": pipeline.q_heads, "kv_heads": pipeline.kv_heads,
        "head_dim": pipeline.head_dim, "rotary": pipeline.head_dim, "gated": True, **off, **MODELS[kind],
    })


_made: list[Any] = []  # the process groups of the last plan


def fresh(keys: Any) -> dict[Any, Any]:
    """Process groups of a plan, by all ranks of the world. Those of the plan before end: each has connections, and
    threads of which gloo wakes one every 10 ms, and a world has many plans."""
    for group in _made:
        dist.destroy_process_group(group)
    made = {key: dist.new_group(list(key[1])) for key in dict.fromkeys(keys)}
    _made[:] = made.values()
    return made


class Stepped:
    """A rank's place in a pipeline, ready for steps; inputs and weights are the same everywhere."""

    def __init__(self, rank: int, of: Any, ranks: int, kind: str, kernel: evenkeel.Kernel) -> None:
        """of: a document, or a seed of a random one. All ranks of the world make this, also those beyond the
        pipeline's."""
        self.plan = pipeline_of(of if isinstance(of, dict) else random_pipeline(of, ranks), ranks)
        self.made = fresh(process_groups(self.plan))
        self.rank, self.stage = rank, self.plan.stage_of(rank)
        self.kind, self.kernel = kind, kernel
        self.inputs = [[torch.randn(n, 24, generator=torch.Generator().manual_seed(10 * i + j)) for j in range(2)]
                       for i, n in enumerate(self.plan.lengths)]

    def layers(self, first: int, n: int) -> list[Layer]:
        model = model_of(self.plan, self.kind)
        return [Layer(model, 5, first + i, torch.float32, torch.device("cpu")) for i in range(n)]

    def flow(self, trace: Optional[evenkeel.Trace] = None) -> Flow:
        stage = self.plan.stages[self.stage]
        return Flow(self.plan, self.rank, self.layers(stage.first, stage.layers), self.kernel, self.made,
                    torch.device("cpu"), trace)

    def own(self, whole: list[Tensor], chunk: int) -> Tensor:
        """The rank's rows of a chunk, of all sequences' tokens."""
        at = self.plan.positions(self.rank, chunk)
        return torch.cat([whole[0][:0], *(whole[q][lo:hi] for q, lo, hi in at)])

    def run(self, flow: Flow) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """A step: what its stage ends with, by chunk."""
        got: tuple[dict[int, Tensor], dict[int, Tensor]] = {}, {}
        given = [lambda k, of=of: self.own([x[of] for x in self.inputs], k) for of in range(2)]
        flow.run(given[0], given[1], got[0].__setitem__, got[1].__setitem__)
        return got


def whole(
    rank: int, groups: Any, of: Any, ranks: int, kind: str, steps: int = 1, how: str = "Math"
) -> Optional[dict[str, Any]]:
    """A pipeline's step, or several: on every rank the errors of what its stage ends with, and what was sent. None
    on ranks beyond it and in no stage. how: a kernel, poisoned, or inline as in jobs.py."""
    with contextlib.ExitStack() as stack:
        kernel = jobs.Jittered() if how == "Jittered" else jobs.Even() if how == "Even" else evenkeel.Math()
        at = Stepped(rank, of, ranks, kind, kernel)
        if at.stage < 0:
            return None
        if how == "poisoned":
            stack.enter_context(jobs.poisoned_memory())
        if how == "inline":
            stack.enter_context(mock.patch("torch.distributed.get_backend", return_value="nccl"))
        flow = at.flow()
        stack.enter_context(mock.patch.object(Flow, "_backward", _watching()))
        for _ in range(steps):
            flow.clear()
            got = at.run(flow)
    left = sum(len(x) for x in flow._stores) + len(flow._under_way)
    left += sum(len(way._coming) + len(way._going) for way in flow._ways())
    everything = at.layers(0, at.plan.layers)
    wants = [_answer(model_of(at.plan, kind), everything, x, dy) for x, dy in at.inputs]
    errors = []
    for j, found in enumerate(got):
        for k, x in found.items():
            want = at.own([w[j] for w in wants], k)
            errors.append(reference.error(x, want, 1.0) if len(want) else 0.0)
    ends = [at.stage + 1 == len(at.plan.stages), at.stage == 0]
    meter = flow.sent()
    sent, received = ({f"{phase} {peer}": n // steps for (phase, peer), n in side.items()}
                      for side in (meter.sent, meter.received))
    return {"errors": errors, "results": [len(x) for x in got], "ends": ends, "left": left, "sent": sent,
            "received": received, "chunks": len(at.plan.chunks)}


def _watching() -> Any:
    """Flow._backward, after which nothing is kept of what the stage behind was sent of the chunk."""
    run = Flow._backward

    def backward(flow: Flow, chunk: int, *more: Any) -> None:
        run(flow, chunk, *more)
        way = flow._behind[0]
        assert way is None or chunk not in way._going, f"what was sent of chunk {chunk} is still kept"

    return backward


def alike(rank: int, groups: Any, of: Any, ranks: int) -> Optional[dict[str, bool]]:
    """Whether a step has the same bits a second time, whenever messages come, in batches of messages, and
    whatever is computed again."""
    at = Stepped(rank, of, ranks, "gated", evenkeel.Math())
    if at.stage < 0:
        return None
    flow = at.flow()
    once = at.run(flow)
    runs = {"once more": at.run(flow)}
    at.kernel = jobs.Jittered()
    runs["jittered"] = at.run(at.flow())
    at.kernel = evenkeel.Math()
    with mock.patch("torch.distributed.get_backend", return_value="nccl"):
        runs["inline"] = at.run(at.flow())
    n = len(at.plan.chunks)
    for name, again in (("none again", lambda s: (0,) * n), ("all again", lambda s: (s.layers,) * n)):
        stages = tuple(dataclasses.replace(s, again=again(s)) for s in at.plan.stages)
        at.plan = dataclasses.replace(at.plan, stages=stages)
        runs[name] = at.run(at.flow())
    return {name: all(a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) for a, b in zip(once, got))
            for name, got in runs.items()}


def called(rank: int, groups: Any, of: Any, ranks: int) -> Optional[list[Any]]:
    """What a rank calls in a step as over NCCL, in order: see calls."""
    at = Stepped(rank, of, ranks, "gated", evenkeel.Math())
    if at.stage < 0:
        return None
    with calls(at.made) as (events, _):
        at.run(at.flow())
    return events


@contextlib.contextmanager
def calls(made: dict[Any, Any]) -> Iterator[tuple[list[Any], list[Any]]]:
    """Inside, as over NCCL, what is called is listed, in order: ["post", a process group, [rank, bytes] that it sends
    to, those that it receives from] and ["wait", which of these]; and what is under way of each post."""
    keys = list(made)
    events: list[Any] = []
    posted: list[Any] = []
    post, received, sent = Port.post, Batch.received, Batch.sent

    def note_post(port: Port, phase: str, step: int, sends: list[Message], receives: list[Message]) -> Batch:
        key = next(k for k in keys if made[k] is port._group)
        sides = [[[key[1][m.peer], m.tensor.numel() * 4] for m in x if m.tensor.numel()]
                 for x in (sends, receives)]
        events.append(["post", keys.index(key), *sides])
        posted.append(post(port, phase, step, sends, receives))
        return posted[-1]

    def noted(wait: Any) -> Any:
        def note_wait(batch: Batch) -> None:
            events.append(["wait", posted.index(batch)])
            wait(batch)

        return note_wait

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch("torch.distributed.get_backend", return_value="nccl"))
        stack.enter_context(mock.patch.object(Port, "post", note_post))
        stack.enter_context(mock.patch.object(Batch, "received", noted(received)))
        stack.enter_context(mock.patch.object(Batch, "sent", noted(sent)))
        yield events, posted


def _answer(model: Model, layers: list[Layer], x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    """The last layer's output and the first one's gradient of a sequence, on one device."""
    of = reference.Attention(len(x), (Segment(0, len(x)),), lambda: None)
    at, xs = torch.arange(len(x)), [x.double()]
    for layer in layers:
        xs.append(reference.layer(model, layer.weights, of, xs[-1], torch.zeros_like(x), at)[0])
    grad = dy.double()
    for layer, x in zip(reversed(layers), reversed(xs[:-1])):
        grad = reference.layer(model, layer.weights, of, x, grad, at)[1]
    return xs[-1], grad
