"""What all comparisons of a replay have in common: what is compared, the answers, and rank 0's verdict.

Every rank counts for itself. Results go to rank 0, which holds them against reference.py and lets all ranks
know.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Callable, Optional, Protocol, Sequence

import torch
from torch import Tensor

from . import reference
from .closed import Expected
from .frames import Fault, Frames
from .meter import Meter
from .plan import Segment
from .rendezvous import Meeting, Wires
from .whole import Model

# Of the relative error in the 2-norm. A whole layer's result passes several roundings more.
LIMITS = {"f32": 1e-5, "bf16": 1e-2, "f16": 1e-2}
LAYER = 2.0  # times that
SAMPLED_ROWS = 256

# Work of a layer's reference that a rank 0 takes on, in FLOPs: about half a minute.
AFFORDABLE = {"cpu": 4e11, "cuda": 1e14}

NAMES = ("out", "dq", "dk", "dv")

# Errors of every rank by name, their limit, and what else an entry tells.
Found = tuple[dict[str, list[float]], float, dict[str, Any]]


@dataclass(frozen=True)
class Sizes:
    """What is compared of a sequence: query rows `at` (all of them if dense) and KV heads."""

    dense: bool
    at: Tensor
    kv_heads: tuple[int, ...]


def chosen(seq_len: int, kv_heads: int, sampled_above: int, seed: int) -> Sizes:
    """Everything up to so many tokens; above, rows and one KV head by seed."""
    if seq_len <= sampled_above:
        return Sizes(True, torch.arange(seq_len), tuple(range(kv_heads)))
    source = random.Random(f"{seed} {seq_len}")
    rows = sorted(source.sample(range(seq_len), min(SAMPLED_ROWS, seq_len)))
    return Sizes(False, torch.tensor(rows), (source.randrange(kv_heads),))


class Take(Protocol):
    """Inputs of a sequence."""

    def __call__(self, name: str, at: Tensor, lo: int = 0, hi: Optional[int] = None) -> Tensor:
        """[len(at), heads lo to hi, head_dim] of q, k, v or dout at some positions."""


def attention_wants(
    take: Take, seq_len: int, docs: Sequence[Segment], q_heads: int, kv_heads: int, s: Sizes,
    tick: reference.Tick, causal: bool = True,
) -> list[Tensor]:
    """out and dq of the chosen rows and heads' dk and dv, from one device."""
    of, everywhere = reference.Attention(seq_len, docs, tick, causal), torch.arange(seq_len)
    if s.dense:
        return list(reference.gradients(of, *(take(n, everywhere) for n in ("q", "k", "v", "dout"))))
    out, dq = (take("q", s.at).double() for _ in range(2))
    each, grads = q_heads // kv_heads, []
    for j in range(kv_heads):
        k, v = (take(n, everywhere, j, j + 1)[:, 0] for n in ("k", "v"))
        for h in range(j * each, (j + 1) * each):
            rows = (take(n, s.at, h, h + 1)[:, 0] for n in ("q", "dout"))
            q, dout = rows
            out[:, h], dq[:, h] = of.rows(s.at, q, k, v, dout)[:2]
        if j in s.kv_heads:
            whole = [take(n, everywhere, j * each, (j + 1) * each) for n in ("q", "dout")]
            grads = list(reference.gradients(of, whole[0], k[:, None], v[:, None], whole[1])[2:])
    return [out, dq, *grads]


def layer_work(model: Model, tokens: int, pairs: int) -> int:
    """FLOPs of a layer forward and backward, of so many tokens whose attention has so many pairs, none masked."""
    products = model.flops(tokens, True) + model.flops(tokens, False)
    return 3 * products + 16 * pairs * model.q_heads * model.head_dim


def counted(name: str, rank: int, meter: Meter, want: Expected, times: int = 1) -> None:
    """Every pair's bytes by phase and this rank's FLOPs are the closed form's so many times, as integers; else
    Fault(bytes) or Fault(flops)."""
    sent = {(p, peer): times * n for (i, peer, p), n in want.bytes.items() if i == rank}
    came = {(p, i): times * n for (i, peer, p), n in want.bytes.items() if peer == rank}
    for word, got, due in (("sent to", meter.sent, sent), ("received from", meter.received, came)):
        for phase, peer in sorted(got.keys() | due.keys()):
            a, b = got.get((phase, peer), 0), due.get((phase, peer), 0)
            if a != b:
                raise Fault("bytes", f"{name}: rank {rank} {word} rank {peer} in {phase}: {a} bytes, "
                                     f"the closed form says {b}")
    for direction in ("fwd", "bwd"):
        a, b = meter.flops.get(direction, 0), times * want.flops.get((rank, direction), 0)
        if a != b:
            raise Fault("flops", f"{name}: rank {rank} computed {a} FLOPs {direction}, the closed "
                                 f"form says {b}")


class Judge:
    """Rank 0's verdicts on a plan, and the others' waiting for them."""

    def __init__(self, name: str, meeting: Meeting, wires: Wires, frames: Frames) -> None:
        self._name, self._meeting, self._wires, self._frames = name, meeting, wires, frames
        self._rank, self._size = meeting.world.rank, meeting.world.size

    def judged(
        self, what: str, mine: list[Tensor], rows: Callable[[int], Sequence[int]],
        errors: Callable[[list[list[Tensor]]], Found], against: str = "one device in float64",
    ) -> dict[str, Any]:
        """Rank 0 hears all ranks and judges: an entry of `numerics`, or Fault(numerics) on all. mine: what this
        rank has to show. rows: how many rows a rank's tensors have, which are otherwise as rank 0's."""
        name = f"{self._name} {what}"
        if self._rank:
            for x in mine:
                self._wires.send("results", x)
            said: Callable[[int], None] = lambda n: setattr(self._frames.place, "step", n)
            verdict = self._meeting.await_news(name, said)
        else:
            parts = [mine] + [self._theirs(r, mine, rows(r)) for r in range(1, self._size)]
            verdict = _verdict(name, errors(parts), against)
            self._meeting.publish(name, verdict, bool(verdict["fault"]))
        if verdict["fault"]:
            raise Fault("numerics", verdict["fault"])
        entry: dict[str, Any] = verdict["entry"]
        return entry

    def tick(self, *whats: str) -> None:
        """Tells those who wait for rank 0's verdict on any of these that it is being worked on."""
        self._frames.place.step += 1
        for what in whats:
            self._meeting.advance(f"{self._name} {what}")

    def _theirs(self, rank: int, like: list[Tensor], rows: Sequence[int]) -> list[Tensor]:
        """Results from a rank."""
        parts = [self._wires.receive("results", rank, (k, *x.shape[1:]), x.dtype) for k, x in zip(rows, like)]
        return [x.to(self._wires.device) for x in parts]


def _verdict(of: str, found: Found, against: str) -> dict[str, Any]:
    errors, limit, more = found
    for name, by_rank in errors.items():
        worst = max(by_rank)
        if not worst <= limit:
            said = f"{of}: rank {by_rank.index(worst)}: {name} is off by {worst:.1e} of its norm"
            return {"fault": said + f" against {against}, the limit is {limit:g}"}
    return {"fault": "", "entry": {**{n: max(e) for n, e in errors.items()}, **more}}
