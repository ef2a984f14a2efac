"""The loss behind a model's last layer, as training frameworks run it: the final norm, the projection to the
vocabulary and cross-entropy, so many tokens at a time, and their backward passes at once.

The ops that a cost model charges it by: of a chunk's logits there is one matrix, float32, which becomes their
gradient in its place. Below float32 there are two casts of it more, which no price has.
"""

from __future__ import annotations

import functools
from typing import Any, Optional, Sequence

import torch
from torch import Tensor

from . import reference
from .compare import Checking
from .drawn import DTYPES, Drawn
from .judge import AFFORDABLE, LAYER, LIMITS, Found, Judge
from .meter import Trace, timed
from .nodes import EPS, rms
from .parts import Lost
from .task_weights import Picks
from .whole import Model


# FLOPs of the loss's reference.
_REFERENCE = AFFORDABLE["cpu"] // 10


class Loss:
    """With weights of size 1/sqrt(inputs), and targets, that are the same on all ranks. Gradients of weights are
    made and dropped, as no price of layers has adding them up; Learning keeps them."""

    def __init__(self, of: Lost, model: Model, device: torch.device) -> None:
        self.of, self.model, dtype = of, model, DTYPES[of.dtype]
        self._norm: list[Tensor] = []
        for name, about in (("norm", 1.0), *((("bias", 0.0),) if model.layer_norm else ())):
            w = Drawn(of.seed, f"loss {name}").filled(model.hidden, dtype=torch.float32, scale=0.1)
            self._norm.append((w + about).to(device=device, dtype=dtype).requires_grad_())
        self._head, self._bias = self._projection(device)

    def gradient(self, x: Tensor, trace: Optional[Trace] = None, chunk: int = 0) -> Tensor:
        """Of the sum of the losses of x [tokens, hidden], by x. chunk: tokens at a time, if not as many as
        usual."""
        if not len(x):
            return x
        flops = 6 * len(x) * self.model.hidden * self.of.vocab
        with timed(trace, "fwd", 0, "loss", flops, {"tokens": len(x)}):
            return self._gradient(x, chunk or self.of.chunk)

    def _gradient(self, x: Tensor, chunk: int) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            y = _normed(leaf, self._norm)
        inside = y.detach()
        dy = torch.empty_like(inside)
        for lo in range(0, len(x), chunk):
            rows = inside[lo:lo + chunk]
            fall = _fall(self._logits(rows).float(), _targets(len(rows), self.of.vocab, x.device)).to(x.dtype)
            torch.matmul(fall, self._head.t(), out=dy[lo:lo + len(rows)])
            self._learn(rows, fall, lo == 0)
        y.backward(dy)
        self._learned()
        assert leaf.grad is not None
        return leaf.grad

    def learnt(self) -> list[Tensor]:
        """The gradients of weights that the last one has left, which are taken away: of the norm, the projection
        [hidden, vocab] and its bias."""
        return []

    def wants(self, x: Tensor, chunk: int, learn: bool = False) -> list[Tensor]:
        """The gradient of x by autograd in float64, on the host, and if `learn` those of the weights, as learnt has
        them."""
        leaf, head, *norm = (t.detach().cpu().double() for t in (x, self._head, *self._norm))
        bias = self._bias.detach().cpu().double() if self._bias is not None else None
        leaves = [leaf, *(t for t in (*norm, head, bias) if t is not None and learn)]
        for t in leaves:
            t.requires_grad_()
        if len(norm) == 2:
            y = torch.nn.functional.layer_norm(leaf, leaf.shape[-1:], norm[0], norm[1], EPS)
        else:
            y = leaf * (leaf.square().mean(-1, keepdim=True) + EPS).rsqrt() * norm[0]
        chunks = [min(chunk, len(x) - lo) for lo in range(0, len(x), chunk)]
        targets = torch.cat([_targets(n, self.of.vocab, leaf.device)[:, 0] for n in chunks])
        logits = y @ head if bias is None else y @ head + bias
        return list(torch.autograd.grad(
            torch.nn.functional.cross_entropy(logits, targets, reduction="sum"), leaves))

    def _projection(self, device: torch.device) -> tuple[Tensor, Optional[Tensor]]:
        """To the vocabulary [hidden, vocab], and its bias."""
        n = self.model.hidden
        return Drawn(self.of.seed, "loss head").filled(
            n, self.of.vocab, dtype=DTYPES[self.of.dtype], device=device, scale=n ** -0.5), None

    def _logits(self, rows: Tensor) -> Tensor:
        return rows @ self._head if self._bias is None else torch.addmm(self._bias, rows, self._head)

    def _learn(self, rows: Tensor, fall: Tensor, first: bool) -> None:
        """The gradients of the projection's weights, of a chunk."""
        torch.matmul(rows.t(), fall)

    def _learned(self) -> None:
        """All gradients of weights are there."""
        for w in self._norm:
            w.grad = None


class Learning(Loss):
    """That of a whole step, whose weights are leaves that learn: gradients stay at them, added to those that are there;
    the projection's are added up over the chunks."""

    def __init__(self, of: Lost, model: Model, device: torch.device, table: Optional[Tensor], biased: bool) -> None:
        """table: a leaf [vocab, hidden] that is the projection too, None where that is another matrix. biased: the
        projection has a bias."""
        self._table, self._biased = table, biased
        super().__init__(of, model, device)

    def weights(self) -> dict[str, Tensor]:
        """The leaves, without the table."""
        named = {**dict(zip(("norm", "norm_bias"), self._norm))}
        if self._table is None:
            named["head"] = self._leaf
        if self._biased:
            named["vocab_bias"] = self._bias_leaf
        return named

    def adopted(self) -> None:
        """The leaves have other storage than they had."""
        self._head, self._bias = self._views()

    def _projection(self, device: torch.device) -> tuple[Tensor, Optional[Tensor]]:
        if self._table is None:
            self._leaf = super()._projection(device)[0].requires_grad_()
        else:
            self._leaf = self._table
        n = self.of.vocab
        self._bias_leaf = Drawn(self.of.seed, "loss vocab_bias").filled(
            n, dtype=self._leaf.dtype, device=device, scale=0.1).requires_grad_()
        return self._views()

    def _views(self) -> tuple[Tensor, Optional[Tensor]]:
        head = self._leaf.detach()
        return head if self._table is None else head.t(), self._bias_leaf.detach() if self._biased else None

    def _learn(self, rows: Tensor, fall: Tensor, first: bool) -> None:
        fresh = first and self._leaf.grad is None
        if fresh:
            self._leaf.grad = torch.empty_like(self._leaf)
            self._bias_leaf.grad = torch.zeros_like(self._bias_leaf) if self._biased else None
        grad, bias = self._leaf.grad, self._bias_leaf.grad
        assert grad is not None
        (grad if self._table is None else grad.t()).addmm_(rows.t(), fall, beta=0 if fresh else 1)
        if bias is not None:
            bias.add_(fall.sum(0))

    def _learned(self) -> None:
        """See Loss: they stay."""

    def learnt(self) -> list[Tensor]:
        """See Loss."""
        leaves = [*self._norm, self._leaf, *([self._bias_leaf] if self._biased else [])]
        grads = [w.grad for w in leaves if w.grad is not None]
        assert len(grads) == len(leaves)
        for w in leaves:
            w.grad = None
        projection = len(self._norm)
        if self._table is not None:
            grads[projection] = grads[projection].t()
        return grads

    def shapes(self) -> list[tuple[int, ...]]:
        """Of those."""
        n, vocab = self.model.hidden, self.of.vocab
        norm: list[tuple[int, ...]] = [(n,)] * len(self._norm)
        return [*norm, (n, vocab), *([(vocab,)] if self._biased else [])]


@functools.lru_cache(maxsize=1)
def loss_of(of: Lost, model: Model, device: torch.device) -> Loss:
    """That of all plans of a run, which is the same."""
    return Loss(of, model, device)


def enough(of: Lost, model: Model) -> tuple[int, int]:
    """A chunk, smaller where the vocabulary is large, and so many tokens to compare that they begin another."""
    most = int(_REFERENCE) // (6 * model.hidden * of.vocab)
    chunk = max(1, min(of.chunk, most * 2 // 3))
    return chunk, chunk + (chunk + 1) // 2


def compared(
    lost: Lost, ranks: Sequence[int], of: Checking, learning: Optional[Learning] = None
) -> dict[str, Any]:
    """The entry's `loss`: how far its gradient is from that of one device on the ranks that have it, on how many
    rows. learning: of whole steps, whose weights' gradients are compared too. All ranks call this."""
    assert of.layers is not None
    model, rank, device = of.layers.model, of.meeting.world.rank, of.wires.device
    chunk, rows = enough(lost, model)
    x = of.inputs.wide("x", torch.arange(rows), model.hidden)
    loss = learning or loss_of(lost, model, device)
    picks = Picks(learning.shapes()) if learning is not None else None
    lengths = [rows] if picks is None else [rows, sum(picks.counts)]
    mine = [x[:0], *([torch.empty(0, device=device)] if picks is not None else [])]
    if rank in ranks:
        mine[0] = loss.gradient(x, chunk=chunk)
        mine[1:] = [picks.joined(loss.learnt())] if picks is not None else []

    def errors(parts: list[list[Tensor]]) -> Found:
        want, *weights = loss.wants(x, chunk, picks is not None)
        off = {"dx": [0.0] * len(parts), **({"dw": [0.0] * len(parts)} if picks is not None else {})}
        for r in ranks:
            off["dx"][r] = reference.error(parts[r][0].cpu(), want, float(want.norm()))
            if picks is not None:
                each = zip(parts[r][1].cpu().split(picks.counts), picks.of(weights))
                off["dw"][r] = max(reference.error(got, w, float(w.norm())) for got, w in each)
        limit = LAYER * LIMITS[lost.dtype]
        return off, limit, {"limit": limit, "rows": rows}

    judge = Judge(f"plan {of.number}", of.meeting, of.wires, of.frames)
    return judge.judged("loss", mine, lambda r: [n * (r in ranks) for n in lengths], errors)


def _normed(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    if len(weights) == 2:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weights[0], weights[1], EPS)
    return rms(x, weights[0])


def _targets(n: int, vocab: int, device: torch.device) -> Tensor:
    """[n, 1], each another word as far as there are so many."""
    return (torch.arange(n, device=device) % vocab).view(-1, 1)


def _fall(logits: Tensor, targets: Tensor) -> Tensor:
    """The gradient of the sum of the cross-entropies, in the logits' place. The losses, which training tells, are
    made beside it: of each row the log-sum-exp, from its largest logit and that one's probability."""
    top, place = torch.max(logits, -1, keepdim=True)
    losses = top - logits.gather(1, targets)
    torch.softmax(logits, -1, out=logits)
    losses.sub_(logits.gather(1, place).log_())
    return logits.scatter_add_(1, targets, torch.full_like(losses, -1.0))
