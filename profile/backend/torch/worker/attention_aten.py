"""Attention through torch's own fused operators, which PyTorch's ring attention calls too.

They are private, so arguments and results are matched by the names in the operator's schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch

from attention import Block, Grads, Kernel, Saved, Tensor
from binding import Callee
from device import Device

# What one release calls the result that another calls otherwise.
_SYNONYMS = {
    "output": "out", "log_sumexp": "logsumexp", "softmax_logsumexp": "logsumexp",
    "rng_state": "philox_seed", "unused": "philox_offset",
}


@dataclass(frozen=True)
class Operator:
    """Where a fused operator lives and what it is known to take."""

    kernel: str
    forward: str
    backward: str
    since: str  # first torch release that has it
    device: str = "cuda"
    least: tuple = (8, 0)  # compute capability
    dtypes: tuple = ("bf16", "f16")
    native_gqa: bool = True
    head_dims: tuple = (8, 256)


OPERATORS = (
    Operator(
        "sdpa_flash", "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
        "2.1"
    ),
    Operator(
        "sdpa_cudnn", "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward",
        "2.5"
    ),
    Operator(
        "sdpa_efficient", "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_efficient_attention_backward", "2.1", least=(5, 0),
        dtypes=("f32", "bf16", "f16"),
        native_gqa=False, head_dims=(8, 1 << 16),
    ),
)
CPU_FLASH = Operator(
    "cpu", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "2.1", device="cpu", least=(0, 0), dtypes=("f32", "bf16", "f16"), head_dims=(1, 1 << 16),
)
PACKED = Operator("varlen", "_flash_attention_forward", "_flash_attention_backward", "2.1")


class Aten(Kernel):
    """A pair of fused operators on [1, heads, tokens, head_dim]."""

    def __init__(self, device: Device, spec: Operator, namespace: Any = None):
        super().__init__(
            spec.kernel, device, version=torch.__version__, dtypes=spec.dtypes, native_gqa=spec.native_gqa,
            head_dims=spec.head_dims,
        )
        if spec.kernel == "sdpa_cudnn":
            self.head_dims = (8, cudnn_widest(device.capability, torch.backends.cudnn.version()))
        namespace = torch.ops.aten if namespace is None else namespace
        forward, backward = (getattr(namespace, n, None) for n in (spec.forward, spec.backward))
        if forward is None or backward is None:
            self.why = f"needs torch >= {spec.since}, this is {torch.__version__}"
        elif device.kind != spec.device:
            self.why = f"needs an accelerator, this is a {device.kind}"
        elif device.capability < spec.least:
            self.why = f"needs compute capability {dotted(spec.least)}, this is {dotted(device.capability)}"
        else:
            self._forward, self._backward = Callee(forward), Callee(backward)
            self.schema = self._forward.schema

    def native(self, x: Tensor) -> Tensor:
        """A view: heads before tokens, a batch of one in front, strided as training frameworks have it."""
        return x.unsqueeze(0).transpose(1, 2)

    def canonical(self, x: Tensor) -> Tensor:
        """A view, the other way round."""
        return x.squeeze(0).transpose(0, 1)

    def _values(self, b: Block, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Any]:
        """Every argument that some release of these operators takes, by name."""
        return {
            "query": self.native(q), "key": self.native(k), "value": self.native(v), "dropout_p": 0.0,
            "is_causal": b.causal, "return_debug_mask": False, "scale": b.scale, "attn_bias": None,
            "attn_mask": None,
            "compute_log_sumexp": True, "compute_logsumexp": True,
            "grad_input_mask": [True, True, True, False],
        }

    def bind_forward(self, b: Block, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Saved]:
        """The operator itself; its outputs come from torch's caching allocator, as in training."""
        call, results = self._forward.bind(self._values(b, q, k, v)), self._forward.results

        def forward() -> Saved:
            named = {_SYNONYMS.get(n, n): t for n, t in results(call()).items()}
            return Saved(named.pop("out"), named.pop("logsumexp"), named)

        return forward

    def bind_backward(
        self, b: Block, q: Tensor, k: Tensor, v: Tensor, saved: Saved, dout: Tensor
    ) -> Callable[[], Grads]:
        """The backward operator on saved tensors: neither autograd nor accumulation is in the time."""
        grad = self.native(dout)
        values = {**self._values(b, q, k, v), **saved.rest}
        values.update(grad_out=grad, grad_out_=grad, out=saved.out, logsumexp=saved.lse)
        # The packed operators of later releases keep the forward's names in their backward.
        values.update(rng_state=values.get("philox_seed"), unused=values.get("philox_offset"))
        call = self._backward.bind(values)
        return lambda: tuple(call()[:3])


class Packed(Aten):
    """Flash attention over packed sequences, [tokens, heads, head_dim]: what varlen_attn of torch >= 2.10
    calls.

    Its log-sum-exp is [heads, tokens]. A block is a pack of one, so FULL and DIAG run too.
    """

    def __init__(self, device: Device, spec: Operator = PACKED, namespace: Any = None):
        super().__init__(device, spec, namespace)
        self.ops = ("attn_fwd", "attn_bwd", "attn_varlen_fwd", "attn_varlen_bwd")

    def native(self, x: Tensor) -> Tensor:
        """As it is."""
        return x

    def canonical(self, x: Tensor) -> Tensor:
        """As it is."""
        return x

    def _values(self, b: Block, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Any]:
        parts = b.parts()
        longest_q, longest_k = max(p[1] - p[0] for p in parts), max(p[3] - p[2] for p in parts)
        return {
            **super()._values(b, q, k, v), "max_q": longest_q, "max_k": longest_k,
            "cum_seq_q": ends(parts, 1, q.device), "cum_seq_k": ends(parts, 3, q.device),
        }


def ends(parts: list[tuple], place: int, device: torch.device) -> Tensor:
    """int32 [parts + 1]: where each packed sequence ends, after a leading 0."""
    return torch.tensor([0] + [p[place] for p in parts], dtype=torch.int32, device=device)


def cudnn_widest(capability: tuple, cudnn: int | None) -> int:
    """The widest head of cuDNN's attention: 128, from cuDNN 9.10 on 256 on Hopper.

    That is what torch demands before it chooses cuDNN (check_cudnn_tensor_shapes in sdp_utils.cpp of torch
    2.8); the operator itself is called without that check.
    """
    return 256 if capability == (9, 0) and (cudnn or 0) >= 91000 else 128


def dotted(version: tuple) -> str:
    """9.0 for (9, 0)."""
    return ".".join(str(n) for n in version)
