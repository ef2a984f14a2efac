"""A whole pre-norm Llama block, forward and backward, as training frameworks run it: fused norm and SwiGLU
nodes, one GEMM for q, k and v and one for gate and up, products that add the residual, attention by the default
kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import torch

import reference
from attention import Block, Kernel
from errors import axis
from inputs import Inputs
from kernels import Kernels
from nodes import FusedSwiGLU, Turn, rms
from ops import angles
from work import Bound, Op

Tensor = torch.Tensor


@dataclass(frozen=True)
class Sizes:
    """A layer's axes: tokens, widths in elements, heads, and the precision's name."""

    tokens: int
    hidden: int
    ffn: int
    q_heads: int
    kv_heads: int
    head_dim: int
    dtype: str

    @property
    def block(self) -> Block:
        """Its causal attention."""
        n = self.tokens
        return Block(n, n, self.q_heads, self.kv_heads, self.head_dim, self.dtype, True)

    def weights(self) -> dict[str, tuple]:
        """Shapes of the parameters, [inputs, outputs]."""
        heads, d = self.q_heads + 2 * self.kv_heads, self.head_dim
        return {
            "norm1": (self.hidden,), "qkv": (self.hidden, heads * d), "out": (self.q_heads * d, self.hidden),
            "norm2": (self.hidden,), "gate_up": (self.hidden, 2 * self.ffn), "down": (self.ffn, self.hidden),
        }


def sizes_of(shape: dict) -> Sizes:
    """The sizes of a shape of layer_fwd, layer_bwd or mem_layer."""
    names = ("tokens", "hidden", "ffn", "q_heads", "kv_heads", "head_dim")
    return Sizes(*(axis(shape, n) for n in names), str(shape.get("dtype")))


class Layer:
    """A layer with random weights of size 1/sqrt(inputs), its angle tables and one input x [tokens,
    hidden]."""

    def __init__(self, sizes: Sizes, kernel: Kernel, inputs: Inputs):
        self.sizes, self.kernel = sizes, kernel
        dtype = inputs.device.dtype(sizes.dtype)
        self.weights: dict[str, Tensor] = {}
        for name, shape in sizes.weights().items():
            w = inputs.normal(*shape, dtype=dtype)
            w = w.mul_(0.1).add_(1) if len(shape) == 1 else w.mul_(shape[0] ** -0.5)
            self.weights[name] = w.requires_grad_()
        self.x = inputs.normal(sizes.tokens, sizes.hidden, dtype=dtype).requires_grad_()
        self.cos, self.sin = (t.unsqueeze(1) for t in angles(sizes.tokens, sizes.head_dim, inputs, dtype))

    def leaves(self) -> dict[str, Tensor]:
        """Everything that gets a gradient."""
        return {"x": self.x, **self.weights}

    def forward(self) -> Tensor:
        """y [tokens, hidden]; differentiable where gradients are enabled."""
        s, w = self.sizes, self.weights
        qkv = (rms(self.x, w["norm1"]) @ w["qkv"]).view(s.tokens, -1, s.head_dim)
        q, k, v = qkv.split([s.q_heads, s.kv_heads, s.kv_heads], 1)
        # v is copied out of the fused product as q and k are by their rotation: otherwise the whole product
        # would be kept for backward beside them.
        q, k, v = Turn.apply(q, self.cos, self.sin), Turn.apply(k, self.cos, self.sin), v.contiguous()
        mixed = self.kernel.differentiable(s.block, q, k, v).reshape(s.tokens, -1)
        y = torch.addmm(self.x, mixed, w["out"])
        return torch.addmm(y, FusedSwiGLU.apply(rms(y, w["norm2"]) @ w["gate_up"]), w["down"])

    def clear(self) -> None:
        """Gradients to None, so that none is accumulated."""
        for leaf in self.leaves().values():
            leaf.grad = None

    def reference(self) -> tuple[dict[str, Tensor], Callable[[], Tensor]]:
        """float64 copies of the leaves, and the float64 forward over them."""
        leaves = {n: t.detach().double().requires_grad_() for n, t in self.leaves().items()}
        cos, sin = self.cos[:, 0].double(), self.sin[:, 0].double()
        heads = self.sizes.q_heads, self.sizes.kv_heads
        return leaves, lambda: reference.layer(leaves["x"], leaves, cos, sin, *heads)


class LayerOp(Op):
    """layer_fwd and layer_bwd."""

    def __init__(self, kernels: Kernels, kind: str):
        super().__init__(next(iter(kernels.by_name.values())).device)
        self.kernels, self.kind = kernels, kind

    def pick(self, sizes: Sizes) -> Kernel:
        """The default kernel for this layer's backward, which has the harder demands."""
        return self.kernels.pick("attn_bwd", sizes.block, None)

    def variant(self, shape: dict) -> str:
        """Precision, head width, grouping."""
        s = sizes_of(shape)
        return f"{s.dtype} d{s.head_dim} {s.q_heads > s.kv_heads}"

    def odd(self, shape: dict) -> list[dict]:
        """A narrow layer on 70 tokens, with heads as wide as the shape's."""
        grouped = axis(shape, "q_heads") > axis(shape, "kv_heads")
        return [
            {**shape, "tokens": 70, "hidden": 96, "ffn": 144, "q_heads": 3, "kv_heads": 1 if grouped else 3}
        ]

    def limit(self, shape: dict) -> float:
        """Twice that of one kernel: a gradient passes about eight roundings on its way through the layer."""
        return 2 * super().limit(shape)

    def bind(self, shape: dict, inputs: Inputs) -> Bound:
        """Forward without a graph; backward of a graph that is built once and kept."""
        sizes = sizes_of(shape)
        layer = Layer(sizes, self.pick(sizes), inputs)
        if self.kind == "layer_fwd":
            return Bound(layer.forward, lambda: {"y": layer.reference()[1]().detach()}, lambda y: {"y": y})
        with torch.enable_grad():
            y = layer.forward()
        dy = inputs.normal(*y.shape, dtype=y.dtype)

        def call() -> None:
            layer.clear()
            y.backward(dy, retain_graph=True)

        def expected() -> dict[str, Tensor]:
            leaves, forward = layer.reference()
            grads = reference.grads_of(forward, list(leaves.values()), dy)
            return dict(zip(("d" + n for n in leaves), grads))

        return Bound(call, expected, lambda _: {"d" + n: t.grad for n, t in layer.leaves().items()})
