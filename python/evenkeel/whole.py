"""A whole pre-norm transformer layer around the attention of a plan, as training frameworks run it.

Fused norm and SwiGLU nodes, one product for q, k and v and one for gate and up: the ops that a cost model
charges a layer by, so that a step of these layers is what it predicts. The layer is cut at the attention:
each part is a graph of autograd of its own, so that the times of their backward passes are what is between
two calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional, Sequence

import torch
from torch import Tensor

from .drawn import Drawn
from .executor import begin_backward
from .meter import Trace, timed
from .nodes import EPS, FusedSwiGLU, Turn, rms
from .plan import PlanError

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # of a layer, by its number among a stack's


@dataclass(frozen=True)
class Model:
    """A layer's axes and kind, as the plan's job.model has them."""

    hidden: int
    ffn: int
    q_heads: int
    kv_heads: int
    head_dim: int
    rotary: int  # elements of a head that positions turn, 0 where positions are learned
    gated: bool
    layer_norm: bool
    shared_norm: bool
    qk_norm: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool

    @property
    def qkv(self) -> int:
        """Outputs of the first product."""
        return (self.q_heads + 2 * self.kv_heads) * self.head_dim

    @property
    def up(self) -> int:
        """Outputs of the MLP's first product."""
        return self.ffn * (2 if self.gated else 1)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the parameters, [inputs, outputs]."""
        h, d, out = self.hidden, self.head_dim, self.q_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "norm1": (h,), "qkv": (h, self.qkv), "out": (out, h), "up": (h, self.up), "down": (self.ffn, h),
        }
        for there, more in (
            (not self.shared_norm, {"norm2": (h,)}), (self.layer_norm, {"norm1_bias": (h,)}),
            (self.layer_norm and not self.shared_norm, {"norm2_bias": (h,)}),
            (self.qk_norm, {"q_norm": (d,), "k_norm": (d,)}), (self.qkv_bias, {"qkv_bias": (self.qkv,)}),
            (self.out_bias, {"out_bias": (h,)}), (self.mlp_bias, {"up_bias": (self.up,), "down_bias": (h,)}),
        ):
            if there:
                shapes.update(more)
        return shapes

    def flops(self, tokens: int, before: bool) -> int:
        """Of the products of one part forward, two a multiply-add; backward they are twice as many."""
        first = self.hidden * self.qkv
        rest = self.q_heads * self.head_dim * self.hidden + self.hidden * self.up + self.ffn * self.hidden
        return 2 * tokens * (first if before else rest)


def model_of(document: Mapping[str, Any]) -> Model:
    """The model of a plan document. PlanError names what this layer does not have."""
    return model_in(document["job"]["model"], "job.model.", "; replay this plan with --parts attention")


def model_in(m: Any, at: str, way_out: str = "") -> Model:
    """A model, an object as documents have it, whose fields are named after `at`. way_out: what to do with one that
    replay's layer is not."""
    gated, activation = bool(m.get("gated_mlp")), m.get("activation") or ""
    own = "silu" if gated else "gelu"
    if activation not in ("", own):
        raise PlanError(f"{at}activation: {activation!r}: replay has silu with a gate and gelu without{way_out}")
    sizes = {}
    for name in ("hidden", "ffn", "q_heads", "kv_heads", "head_dim"):
        n = sizes[name] = m.get(name)
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise PlanError(f"{at}{name}: {n!r}: want a whole number from 1 on")
    rotary = 0 if m.get("position_rows") else m.get("rotary_dim") or sizes["head_dim"]
    if not isinstance(rotary, int) or not 0 <= rotary <= sizes["head_dim"] or rotary % 2:
        raise PlanError(f"{at}rotary_dim: {rotary!r}: want an even number up to head_dim{way_out}")
    kinds = {name: bool(m.get(name)) for name in
             ("layer_norm", "shared_norm", "qk_norm", "qkv_bias", "out_bias", "mlp_bias")}
    return Model(rotary=rotary, gated=gated, **sizes, **kinds)


def angles(at: Tensor, rotary: int, dtype: torch.dtype, device: Any) -> tuple[Tensor, Tensor]:
    """cos and sin of the positions `at`, base 10000, both [tokens, 1, rotary / 2]."""
    half = rotary // 2
    frequency = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / max(1, half))
    angle = at.double().cpu()[:, None, None] * frequency
    cos, sin = (t.to(device=device, dtype=dtype) for t in (angle.cos(), angle.sin()))
    return cos, sin


class Layer:
    """The linear parts of one layer, with weights of size 1/sqrt(inputs) that are the same on all ranks."""

    def __init__(
        self, model: Model, seed: int, number: int, dtype: torch.dtype, device: torch.device, of: str = ""
    ) -> None:
        """of: whose layers are numbered, where there are several models."""
        self.model = model
        self.weights: dict[str, Tensor] = {}
        for name, shape in model.shapes().items():
            one = len(shape) == 1
            w = Drawn(seed, f"{of}layer {number} {name}").filled(
                *shape, dtype=torch.float32, scale=0.1 if one else shape[0] ** -0.5
            )
            if "norm" in name and "bias" not in name:
                w += 1
            self.weights[name] = w.to(device=device, dtype=dtype).requires_grad_()

    def clear(self) -> None:
        """Drops the gradients of the weights, so that none is accumulated."""
        for w in self.weights.values():
            w.grad = None

    def before(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v [tokens, heads, head_dim] of the input [tokens, hidden]."""
        m, w = self.model, self.weights
        both = self._product(self._norm(x, "norm1"), "qkv").view(len(x), m.qkv // m.head_dim, m.head_dim)
        q, k, v = both.split([m.q_heads, m.kv_heads, m.kv_heads], 1)
        if m.qk_norm:
            q, k = (rms(t.reshape(-1, m.head_dim), w[n]).view(t.shape)
                    for t, n in ((q, "q_norm"), (k, "k_norm")))
        if m.rotary:
            q, k = Turn.apply(q, cos, sin), Turn.apply(k, cos, sin)
        # v is copied out of the product as q and k are: else the whole product would be kept beside them.
        return q, k, v.contiguous()

    def after(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The layer's output, from its input and the attention's output [tokens, q_heads, head_dim]."""
        m = self.model
        mixed = mixed.reshape(len(x), m.q_heads * m.head_dim)
        base = self._residual(x, mixed, "out")
        inside = self._norm(x, "norm1") if m.shared_norm else self._norm(base, "norm2")
        up = self._product(inside, "up")
        if m.gated:
            act: Tensor = FusedSwiGLU.apply(up)
        else:
            act = torch.nn.functional.gelu(up, approximate="tanh")
        return self._residual(base, act, "down")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        w = self.weights
        if self.model.layer_norm:
            return torch.nn.functional.layer_norm(x, x.shape[-1:], w[name], w[name + "_bias"], EPS)
        return rms(x, w[name])

    def _product(self, x: Tensor, name: str) -> Tensor:
        bias = self.weights.get(name + "_bias")
        w = self.weights[name]
        return x @ w if bias is None else torch.addmm(bias, x, w)

    def _residual(self, x: Tensor, inside: Tensor, name: str) -> Tensor:
        """x and a product added up by the product."""
        bias = self.weights.get(name + "_bias")
        y = torch.addmm(x, inside, self.weights[name])
        return y if bias is None else y + bias


class Layers:
    """The layers of a model, by their number; each is made when it is first asked for."""

    def __init__(self, model: Model, seed: int, dtype: torch.dtype, device: torch.device, of: str = "") -> None:
        """of: see Layer."""
        self.model, self._seed, self._dtype, self._device, self._of = model, seed, dtype, device, of
        self._made: dict[int, Layer] = {}
        self._parts: dict[str, Layers] = {}

    def part(self, of: str, model: Model) -> "Layers":
        """Those of another model, whose numbers are its own; the same ones whenever they are asked for."""
        if of not in self._parts:
            self._parts[of] = Layers(model, self._seed, self._dtype, self._device, of)
        return self._parts[of]

    def at(self, first: int, n: int) -> list[Layer]:
        """n layers from the one numbered `first` on, which are kept."""
        for i in range(first, first + n):
            if i not in self._made:
                self._made[i] = self.alone(i)
        return [self._made[i] for i in range(first, first + n)]

    def alone(self, number: int) -> Layer:
        """One that is not kept, if it was not before."""
        return self._made.get(number) or self.fresh(number)

    def fresh(self, number: int) -> Layer:
        """One whose weights nobody else has."""
        return Layer(self.model, self._seed, number, self._dtype, self._device, self._of)


@dataclass
class Kept:
    """What the linear parts of a layer keep for their backward: inputs and outputs of their two graphs."""

    first: Tensor  # x, of the graph before the attention
    heads: Sequence[Tensor]  # q, k, v as they leave it
    second: Tensor  # x, of the graph after the attention
    mixed: Optional[Tensor] = None  # the attention's output, as it enters that graph
    y: Optional[Tensor] = None


class Linear:
    """The linear parts of layers over one rank's tokens of a plan, each with a span of its own. A rank without
    tokens has no linear work."""

    def __init__(
        self, layers: Sequence[Layer], tables: tuple[Tensor, Tensor], trace: Optional[Trace] = None
    ) -> None:
        self.layers, self._tables, self._trace = layers, tables, trace

    def before(self, i: int, x: Tensor) -> Kept:
        """q, k and v of a layer's input."""
        first, second = (x.detach().requires_grad_(torch.is_grad_enabled()) for _ in range(2))
        with self._timed("fwd", "linear_in", i, len(x)):
            heads = self.layers[i].before(first, *self._tables)
        return Kept(first, heads, second)

    def after(self, i: int, kept: Kept, out: Tensor) -> Tensor:
        """The layer's output, of the attention's."""
        kept.mixed = out.detach().requires_grad_(torch.is_grad_enabled())
        with self._timed("fwd", "linear_out", i, len(out)):
            kept.y = self.layers[i].after(kept.second, kept.mixed)
        return kept.y

    def after_back(self, i: int, kept: Kept, dy: Tensor) -> Tensor:
        """The gradient of the attention's output, of that of the layer's."""
        assert kept.mixed is not None and kept.y is not None
        with self._timed("bwd", "linear_out", i, len(dy)):
            if len(dy):
                torch.autograd.backward(kept.y, dy)
        return torch.zeros_like(kept.mixed) if kept.mixed.grad is None else kept.mixed.grad

    def before_back(self, i: int, kept: Kept, grads: Sequence[Tensor], dy: Tensor) -> Tensor:
        """The gradient of the layer's input, of those of q, k and v; dy as in after_back."""
        if not len(dy):
            return dy
        with self._timed("bwd", "linear_in", i, len(dy)):
            torch.autograd.backward(list(kept.heads), list(grads))
            assert kept.first.grad is not None and kept.second.grad is not None
            return kept.first.grad.add_(kept.second.grad)

    def traced(self, trace: Trace) -> None:
        """Spans are left there from now on."""
        self._trace = trace

    def clear(self, i: int) -> None:
        """Drops the gradients of a layer's weights."""
        self.layers[i].clear()

    def _timed(self, direction: str, op: str, layer: int, tokens: int) -> Any:
        trace = self._trace if tokens else None
        flops = self.layers[layer].model.flops(tokens, op == "linear_in") * (2 if direction == "bwd" else 1)
        return timed(trace, direction, 0, op, flops, {"tokens": tokens})


@dataclass
class Around:
    """What a layer keeps for its backward, the attention's graph included."""

    linear: Kept
    inner: Sequence[Tensor]  # q, k, v as they enter the attention
    out: Tensor
    y: Tensor


class Stack:
    """Layers one after the other over one rank's tokens of a plan, forward and then backward.

    A rank without tokens has no linear work and takes part in the attentions.
    """

    def __init__(
        self, layers: Sequence[Layer], attend: Attend, tables: tuple[Tensor, Tensor], again: int,
        trace: Optional[Trace] = None, first: int = 0,
    ) -> None:
        """again: of how many of the first layers the forward pass is run again in the backward. first: the number
        of the first layer in spans."""
        self._linear, self._attend = Linear(layers, tables, trace), attend
        self._again, self._trace, self._first = again, trace, first
        self._kept: list[Any] = []  # by layer: Around, or if it is run again the input

    def forward(self, x: Tensor) -> Tensor:
        """The last layer's output of x [tokens, hidden]."""
        self._kept = []
        for i in range(len(self._linear.layers)):
            self._enter(i, False)
            self._at(i, False)
            if i < self._again:
                self._kept.append(x)
                with torch.no_grad():
                    x = self._forward(i, x).y
            else:
                self._kept.append(self._forward(i, x))
                x = self._kept[-1].y.detach()
        return x

    def backward(self, dy: Tensor) -> Tensor:
        """The gradient of the first layer's input; those of the weights are at the weights."""
        for i in reversed(range(len(self._linear.layers))):
            self._enter(i, True)
            kept = self._kept.pop()
            if i < self._again:
                self._at(i, True)
                kept = self._forward(i, kept)
            self._at(i, False)
            dy = self._backward(i, kept, dy)
        return dy

    def clear(self) -> None:
        """Drops gradients and whatever a step has left."""
        self._kept = []
        for i in range(len(self._linear.layers)):
            self._linear.clear(i)

    def _forward(self, i: int, x: Tensor) -> Around:
        kept = self._linear.before(i, x)
        inner = [t.detach().requires_grad_(torch.is_grad_enabled()) for t in kept.heads]
        out = self._attend(i, *inner)
        return Around(kept, inner, out, self._linear.after(i, kept, out))

    def _backward(self, i: int, kept: Around, dy: Tensor) -> Tensor:
        self._begin(kept.out)
        torch.autograd.backward(kept.out, self._linear.after_back(i, kept.linear, dy))
        grads = [torch.zeros_like(t) if t.grad is None else t.grad for t in kept.inner]
        return self._linear.before_back(i, kept.linear, grads, dy)

    def _enter(self, i: int, back: bool) -> None:
        """A layer is about to be run, or its backward pass."""

    def _begin(self, out: Tensor) -> None:
        """A layer's backward begins, out of its attention: the first keys and values travel beside the MLP."""
        begin_backward(out)

    def _at(self, layer: int, again: bool) -> None:
        if self._trace is not None:
            self._trace.layer, self._trace.again = self._first + layer, again
