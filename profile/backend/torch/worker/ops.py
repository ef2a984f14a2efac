"""Row-wise ops, the optimizer, matrix products, the log-sum-exp merge and copies, as in costmodel/op.

Results go into tensors allocated beforehand, so that no allocation is in a time.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

import reference
from binding import Callee
from device import Device
from errors import Failure, axis, word
from inputs import Inputs
from work import Bound, Op, Rowwise

Tensor = torch.Tensor

HEAD_DIM = 64  # of rope's angle tables


class Norm(Rowwise):
    """RMSNorm forward, y = x * w / sqrt(mean(x^2) + eps)."""

    kind = "norm"

    def bind(self, shape: dict, inputs: Inputs) -> Bound:
        """The fused operator on an accelerator whose torch has one; else three passes, the sum in float32."""
        tokens, width, dtype = self.sizes(shape)
        x, w = inputs.normal(tokens, width, dtype=dtype), inputs.normal(width, dtype=dtype)
        fused = fused_norm() if self.device.kind == "cuda" else None
        if fused is not None:
            call: Callable[[], Tensor] = lambda: fused(x, [width], w, reference.EPS)[0]
        else:
            call = _norm(x, w, inputs.empty(tokens, width, dtype=dtype))
        return Bound(call, lambda: {"y": reference.norm(x, w)}, lambda y: {"y": y})


def fused_norm(namespace: Any = None) -> Callable | None:
    """torch's fused RMSNorm (input, normalized_shape, weight, eps) -> (y, reciprocal root), or None.

    Before it had this signature, torch 2.7 had another operator of the same name for one vendor's devices.
    """
    fused = getattr(namespace or torch.ops.aten, "_fused_rms_norm", None)
    return fused if fused is not None and "normalized_shape" in Callee(fused).names else None


def _norm(x: Tensor, w: Tensor, y: Tensor) -> Callable[[], Tensor]:
    row = torch.empty(x.shape[0], 1, device=x.device)

    def call() -> Tensor:
        torch.linalg.vector_norm(x, 2, -1, keepdim=True, dtype=torch.float32, out=row)
        row.square_().div_(x.shape[1]).add_(reference.EPS).rsqrt_()
        return torch.mul(x, row, out=y).mul_(w)

    return call


def angles(tokens: int, head_dim: int, inputs: Inputs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of rope's angles (base 10000), both [tokens, head_dim / 2]."""
    half = head_dim // 2

    def make() -> tuple[Tensor, ...]:
        frequency = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(tokens, dtype=torch.float64)[:, None] * frequency
        return tuple(t.to(device=inputs.device.torch, dtype=dtype) for t in (angle.cos(), angle.sin()))

    return inputs.tables(("angles", half, dtype), tokens, make)  # type: ignore[return-value]


class Rope(Rowwise):
    """Rotary position embedding out of the product for queries, keys and values, [tokens, heads, 64], whose
    first heads are turned. Rows are half as wide again as these, as with four query heads to a KV head."""

    kind = "rope"

    def bind(self, shape: dict, inputs: Inputs) -> Bound:
        """A layer's four passes; Failure(unsupported) for a width that is not whole heads."""
        tokens, width, dtype = self.sizes(shape)
        if width % HEAD_DIM:
            raise Failure(
                "unsupported", f"shape.width: {width}: rope wants a multiple of {HEAD_DIM}, the head's width"
            )
        heads = width // HEAD_DIM
        x = inputs.normal(tokens, heads + -(-heads // 2), HEAD_DIM, dtype=dtype)[:, :heads]
        cos, sin = (t.unsqueeze(1) for t in angles(tokens, HEAD_DIM, inputs, dtype))
        y = inputs.empty(tokens, heads, HEAD_DIM, dtype=dtype)
        (a, b), (left, right) = x.chunk(2, -1), y.chunk(2, -1)

        def call() -> Tensor:
            torch.mul(a, cos, out=left).addcmul_(b, sin, value=-1)
            torch.mul(b, cos, out=right).addcmul_(a, sin)
            return y

        return Bound(call, lambda: {"y": reference.rope(x, cos, sin)}, lambda y: {"y": y})


class SwiGLU(Rowwise):
    """out = silu(gate) * up of the halves of one product [tokens, 2 width]."""

    kind = "swiglu"

    def bind(self, shape: dict, inputs: Inputs) -> Bound:
        """Two passes through one output."""
        tokens, width, dtype = self.sizes(shape)
        gate, up = inputs.normal(tokens, 2 * width, dtype=dtype).chunk(2, -1)
        out = inputs.empty(tokens, width, dtype=dtype)
        return Bound(
            lambda: torch.ops.aten.silu.out(gate, out=out).mul_(up),
            lambda: {"out": reference.swiglu(gate, up)}, lambda y: {"out": y},
        )


class GELU(Rowwise):
    """GELU in its tanh form, the activation of an MLP without a gate."""

    kind = "gelu"

    def bind(self, shape: dict, inputs: Inputs) -> Bound:
        """torch's fused operator."""
        tokens, width, dtype = self.sizes(shape)
        x, out = inputs.normal(tokens, width, dtype=dtype), inputs.empty(tokens, width, dtype=dtype)
        return Bound(
            lambda: torch.ops.aten.gelu.out(x, approximate="tanh", out=out),
            lambda: {"out": reference.gelu(x)}, lambda y: {"out": y},
        )


class CEChunk(Rowwise):
    """Cross-entropy of a chunk of logits: losses, and the gradient softmax - onehot in place.

    After the first call the logits are a gradient, small numbers of which the next call makes others; their
    cost does not change.
    """

    kind = "ce_chunk"

    def odd(self, shape: dict) -> list[dict]:
        """A vocabulary too: softmax has another kernel for rows as wide as that."""
        return [*super().odd(shape), {"tokens": 5, "width": 33001, "dtype": shape.get("dtype")}]

    def bind(self, shape: dict, inputs: Inputs) -> Bound:
        """The log-sum-exp is recovered from the largest logit and its probability, which cannot underflow."""
        tokens, width, dtype = self.sizes(shape)
        logits = inputs.state(tokens, width, dtype=dtype)
        targets = (torch.arange(tokens, device=logits.device) % width).view(-1, 1)
        top, losses = inputs.empty(tokens, 1, dtype=dtype), inputs.empty(tokens, 1)
        place = inputs.empty(tokens, 1, dtype=torch.int64)
        minus = torch.full((tokens, 1), -1.0, device=logits.device, dtype=dtype)

        def call() -> None:
            torch.max(logits, -1, keepdim=True, out=(top, place))
            losses.copy_(top).sub_(logits.gather(1, targets))
            torch.softmax(logits, -1, out=logits)
            losses.sub_(logits.gather(1, place).float().log_())
            logits.scatter_add_(1, targets, minus)

        def expected() -> dict[str, Tensor]:
            grad, loss = reference.ce_chunk(logits, targets[:, 0])
            return {"grad": grad, "loss": loss}

        return Bound(call, expected, lambda _: {"grad": logits, "loss": losses[:, 0]})


class AdamW(Op):
    """One AdamW update in place, float32."""

    kind, windowed = "adamw", True

    def odd(self, shape: dict) -> list[dict]:
        """1001 parameters."""
        return [{"params": 1001}]

    def bind(self, shape: dict, inputs: Inputs) -> Bound:
        """torch's fused update where there is one for this device, else five passes."""
        n = axis(shape, "params")
        p, m, v, g = inputs.state(n), inputs.state(n), inputs.squares(n), inputs.normal(n)
        call = _fused_adamw(p, m, v, g, self.device.torch) or _plain_adamw(p, m, v, g, inputs.empty(n))

        def expected() -> dict[str, Tensor]:
            return dict(zip(("param", "moment1", "moment2"), reference.adamw(p, m, v, g)))

        return Bound(call, expected, lambda _: {"param": p, "moment1": m, "moment2": v})


def _plain_adamw(p: Tensor, m: Tensor, v: Tensor, g: Tensor, room: Tensor) -> Callable[[], None]:
    h = reference.ADAMW
    unbias1 = 1 / (1 - h["beta1"] ** h["step"])
    unbias2 = 1 / (1 - h["beta2"] ** h["step"])

    def call() -> None:
        m.lerp_(g, 1 - h["beta1"])
        v.mul_(h["beta2"]).addcmul_(g, g, value=1 - h["beta2"])
        torch.sqrt(v, out=room).mul_(unbias2**0.5).add_(h["eps"])
        p.mul_(1 - h["lr"] * h["weight_decay"]).addcdiv_(m, room, value=-h["lr"] * unbias1)

    return call


def _fused_adamw(
    p: Tensor, m: Tensor, v: Tensor, g: Tensor, device: torch.device
) -> Callable[[], None] | None:
    fused = getattr(torch, "_fused_adamw_", None)
    if fused is None:
        return None
    h = reference.ADAMW
    constants = {n: h[n] for n in ("lr", "beta1", "beta2", "weight_decay", "eps")}

    def on(*tensors: Tensor) -> Callable[[], None]:
        step = torch.tensor(float(h["step"]), device=tensors[0].device)
        lists = [[t] for t in tensors]
        return lambda: fused(*lists, [], [step], amsgrad=False, maximize=False, **constants)

    try:  # on a few elements first, because a failure half way would leave the state changed
        on(*(torch.ones(4, device=device) for _ in range(4)))()
    except (RuntimeError, TypeError):
        return None
    return on(p, g, m, v)


class GEMM(Op):
    """The three products of a linear layer: C = X W, dX = dC W^T, dW = X^T dC with X [m, k], W [k, n], C [m,
    n]."""

    kind = "gemm"

    def variant(self, shape: dict) -> str:
        """Pass and precision."""
        return f"{shape.get('pass')} {shape.get('dtype')}"

    def odd(self, shape: dict) -> list[dict]:
        """Nothing a multiple of a tile."""
        return [{**shape, "m": 130, "n": 67, "k": 93}]

    def bind(self, shape: dict, inputs: Inputs) -> Bound:
        """Transposed operands are views, as in a training framework."""
        m, n, k = axis(shape, "m"), axis(shape, "n"), axis(shape, "k")
        dtype = self.device.dtype(str(shape.get("dtype")))
        sides = {"fwd": ((m, k), (k, n)), "dgrad": ((m, n), (k, n)), "wgrad": ((m, k), (m, n))}
        which = word(shape, "pass", *sides)
        a, b = (inputs.normal(*size, dtype=dtype) for size in sides[which])
        if which == "dgrad":
            b = b.t()
        if which == "wgrad":
            a = a.t()
        c = inputs.empty(a.shape[0], b.shape[1], dtype=dtype)
        return Bound(
            lambda: torch.mm(a, b, out=c), lambda: {"c": a.double() @ b.double()}, lambda y: {"c": y}
        )


class LSEMerge(Op):
    """Adds a partial attention into another in place, float32: out += sigmoid(lse2 - lse) (out2 - out),
    lse = log(exp(lse) + exp(lse2)). Repeated, the log-sum-exp grows by at most log 2 a call."""

    kind, windowed = "lse_merge", True

    def odd(self, shape: dict) -> list[dict]:
        """37 tokens of 3 heads."""
        return [{**shape, "tokens": 37, "q_heads": 3}]

    def variant(self, shape: dict) -> str:
        """Rows of another width are another loop."""
        return f"d{shape.get('head_dim')}"

    def bind(self, shape: dict, inputs: Inputs) -> Bound:
        """Weights are computed once a row."""
        rows, dim = axis(shape, "tokens") * axis(shape, "q_heads"), axis(shape, "head_dim")
        out, other, other_lse = inputs.state(rows, dim), inputs.normal(rows, dim), inputs.normal(rows)
        # Of its own: what grows with the number of calls must not become another op's input.
        lse = inputs.normal(rows).clone()
        inputs.count(lse)
        weight = inputs.empty(rows)

        def call() -> None:
            torch.sub(other_lse, lse, out=weight).sigmoid_()
            out.lerp_(other, weight[:, None])
            torch.logaddexp(lse, other_lse, out=lse)

        def expected() -> dict[str, Tensor]:
            return dict(zip(("out", "lse"), reference.lse_merge(out, lse, other, other_lse)))

        return Bound(call, expected, lambda _: {"out": out, "lse": lse})


class Copy(Op):
    """A copy between host and device memory."""

    def __init__(self, device: Device, kind: str):
        super().__init__(device)
        self.kind = kind

    def refusal(self) -> str:
        """A CPU has no second memory."""
        return "" if self.device.kind == "cuda" else "no accelerator"

    def variant(self, shape: dict) -> str:
        """Pinned and pageable memory take different paths."""
        return "pinned" if shape.get("pinned") else "pageable"

    def odd(self, shape: dict) -> list[dict]:
        """100,003 bytes."""
        return [{**shape, "bytes": 100_003}]

    def bind(self, shape: dict, inputs: Inputs) -> Bound:
        """Copies are queued on the stream; events on it tell their time."""
        n = axis(shape, "bytes")
        far = torch.randint(0, 256, (n,), dtype=torch.uint8, device=self.device.torch)
        # Drawing a GiB on one core takes seconds. Every byte differs: a copy that moves nothing shows.
        near = torch.empty(n, dtype=torch.uint8, pin_memory=bool(shape.get("pinned"))).copy_(far ^ 255)
        inputs.count(far)
        source, target = (near, far) if self.kind == "h2d" else (far, near)
        return Bound(
            lambda: target.copy_(source, non_blocking=True),
            lambda: {"copy": source}, lambda y: {"copy": self._settled(y)},
        )

    def _settled(self, target: Tensor) -> Tensor:
        self.device.sync()
        return target.clone()
