"""Attention through packages that may be installed beside torch: flash-attn 2, 3 and 4, Transformer
Engine."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib import metadata
from typing import Any, Callable

import torch

from attention import Block, Grads, Kernel, Saved, Tensor, left_out
from attention_aten import dotted, ends
from binding import Callee
from device import Device
from errors import first_line


class Package(Kernel):
    """A kernel of an optional package; tensors are [1, tokens, heads, head_dim]."""

    module = ""  # module that is imported
    distribution = ""  # package whose version counts
    least = (8, 0)  # compute capability
    below = (99, 0)  # compute capability from which on it has no code

    def __init__(self, device: Device, name: str):
        super().__init__(name, device, head_dims=(8, 256))
        have = dotted(device.capability)
        if left_out(name):
            self.why = left_out(name)  # before its import, which may take long or the process with it
        elif device.kind != "cuda":
            self.why = f"needs an accelerator, this is a {device.kind}"
        elif device.capability < self.least:
            self.why = f"needs compute capability {dotted(self.least)}, this is {have}"
        elif device.capability >= self.below:
            self.why = f"needs compute capability below {dotted(self.below)}, this is {have}"
        elif not _installed(self.module):
            self.why = f"no module {self.module}"
        else:
            self._load()

    def _load(self) -> None:
        """Imports the package and looks its functions up; whatever goes wrong there is the reason not to use
        it."""
        try:
            self.attach(importlib.import_module(self.module))
            self.version = _version(self.distribution)
        except Exception as exc:  # a broken package must not take the worker with it
            self.why = f"module {self.module} does not load: {type(exc).__name__}: {first_line(exc)}"

    def attach(self, module: Any) -> None:
        """Takes the functions it needs from the imported module."""
        raise NotImplementedError

    def native(self, x: Tensor) -> Tensor:
        """A batch of one in front."""
        return x.unsqueeze(0)

    def canonical(self, x: Tensor) -> Tensor:
        """Without the batch."""
        return x.squeeze(0)


# Arguments of flash-attn 2 and 3 that switch features off, by every name they have had. A block that is not
# packed has no ends of sequences: flash-attn 3 of 2025 asks for them all the same, without a default or a type
# that says so.
_PLAIN = {
    "dropout_p": 0.0, "window_size": (-1, -1), "window_size_left": -1, "window_size_right": -1,
    "softcap": 0.0,
    "alibi_slopes": None, "return_softmax": False, "deterministic": False, "zero_tensors": False,
    "block_table": None,
    "attention_chunk": 0, "num_splits": 1, "pack_gqa": None, "sm_margin": 0, "rotary_interleaved": True,
    "k_new": None, "v_new": None, "qv": None, "out": None, "cu_seqlens_q": None, "cu_seqlens_k": None,
    "cu_seqlens_k_new": None, "max_seqlen_q": None, "max_seqlen_k": None, "seqused_q": None,
    "seqused_k": None, "sequed_q": None, "sequed_k": None, "page_table": None, "kv_batch_idx": None,
    "leftpad_k": None,
    "rotary_cos": None, "rotary_sin": None, "seqlens_rotary": None, "q_descale": None, "k_descale": None,
    "v_descale": None, "scheduler_metadata": None,
}


class Flash(Package):
    """flash-attn 2 and 3: a forward and a backward function, for packed sequences another pair or the
    same."""

    def __init__(
        self, device: Device, name: str, module: str, distribution: str, least: tuple, below: tuple = (99, 0)
    ):
        self.module, self.distribution, self.least, self.below = module, distribution, least, below
        super().__init__(device, name)

    def attach(self, module: Any) -> None:
        """The packed pair falls back to the plain one, which in flash-attn 3 takes packed sequences too."""
        plain = module._flash_attn_forward, module._flash_attn_backward
        packed = getattr(module, "_flash_attn_varlen_forward", plain[0]), getattr(
            module, "_flash_attn_varlen_backward", plain[1]
        )
        self._plain, self._packed = [Callee(f) for f in plain], [Callee(f) for f in packed]
        self.schema = self._plain[0].schema
        self.ops = ("attn_fwd", "attn_bwd", "attn_varlen_fwd", "attn_varlen_bwd")

    def _values(self, b: Block, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Any]:
        # One causal sequence is a square: the bottom-right alignment of these packages is the top-left one.
        values = {**_PLAIN, "softmax_scale": b.scale, "causal": b.causal, "is_causal": b.causal}
        if not b.docs:
            return {**values, "q": self.native(q), "k": self.native(k), "v": self.native(v)}
        cu, longest = ends(b.parts(), 1, q.device), max(b.docs)
        return {
            **values, "q": q, "k": k, "v": v, "cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": longest,
            "max_seqlen_k": longest,
        }

    def canonical(self, x: Tensor) -> Tensor:
        """Packed sequences have no batch to drop."""
        return x.squeeze(0) if x.dim() == 4 else x

    def bind_forward(self, b: Block, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Saved]:
        """Results are (out, lse, ...), the random state last where there is one."""
        call = (self._packed if b.docs else self._plain)[0].bind(self._values(b, q, k, v))

        def forward() -> Saved:
            out, lse, *rest = call()
            return Saved(out, lse, {"rng_state": rest[-1] if rest else None})

        return forward

    def bind_backward(
        self, b: Block, q: Tensor, k: Tensor, v: Tensor, saved: Saved, dout: Tensor
    ) -> Callable[[], Grads]:
        """The gradients are written into tensors allocated once."""
        values = self._values(b, q, k, v)
        grads = tuple(torch.empty_like(values[n]) for n in "qkv")
        values.update(dq=grads[0], dk=grads[1], dv=grads[2], dout=dout if b.docs else self.native(dout))
        values.update(out=saved.out, softmax_lse=saved.lse, **saved.rest)
        call = (self._packed if b.docs else self._plain)[1].bind(values)

        def backward() -> Grads:
            call()
            return grads

        return backward


class Differentiable(Package):
    """A package whose backward is reached through autograd alone: it always belongs to its own forward."""

    def __init__(self, device: Device, name: str):
        super().__init__(device, name)
        self.global_lse = False

    def apply(self, b: Block, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
        """Native out and, where the package tells it, the log-sum-exp."""
        raise NotImplementedError

    def bind_forward(self, b: Block, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Saved]:
        """Under no_grad, as the worker runs."""
        q, k, v = self.native(q), self.native(k), self.native(v)
        return lambda: Saved(*self.apply(b, q, k, v), {})

    def bind_backward(
        self, b: Block, q: Tensor, k: Tensor, v: Tensor, saved: Saved, dout: Tensor
    ) -> Callable[[], Grads]:
        """out.backward on a graph that is kept, gradients reset to None so that nothing is accumulated."""
        leaves = [self.native(t).detach().requires_grad_() for t in (q, k, v)]
        with torch.enable_grad():
            out, _ = self.apply(b, *leaves)
        grad = self.native(dout)

        def backward() -> Grads:
            for leaf in leaves:
                leaf.grad = None
            out.backward(grad, retain_graph=True)
            return tuple(leaf.grad for leaf in leaves)

        return backward

    def differentiable(self, b: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """It is one already."""
        return self.canonical(self.apply(b, self.native(q), self.native(k), self.native(v))[0])


class Flash4(Differentiable):
    """flash-attn 4, `flash_attn.cute`."""

    module, distribution, least = "flash_attn.cute", "flash-attn-4", (9, 0)

    def attach(self, module: Any) -> None:
        """Its public function."""
        self._call = Callee(module.flash_attn_func)
        self.schema = self._call.schema

    def apply(self, b: Block, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
        """(out, lse)."""
        values = {"q": q, "k": k, "v": v, "softmax_scale": b.scale, "causal": b.causal, "return_lse": True}
        raw = self._call.bind(values)()
        return (raw[0], raw[1]) if isinstance(raw, tuple) else (raw, None)


class TransformerEngine(Differentiable):
    """Transformer Engine's attention module, which chooses between its own backends; it tells no
    log-sum-exp."""

    module, distribution = "transformer_engine.pytorch", "transformer-engine"

    def attach(self, module: Any) -> None:
        """Its public module."""
        self._make, self._made = module.DotProductAttention, {}
        self.schema = "transformer_engine.pytorch.DotProductAttention(qkv_format='bshd')"

    def apply(self, b: Block, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
        """[1, tokens, heads * head_dim] is brought into shape. The module of the last block is kept: making
        one takes longer than many a call."""
        if b not in self._made:
            self._made = {b: self._make(
                b.q_heads, b.head_dim, num_gqa_groups=b.kv_heads, attention_dropout=0.0, qkv_format="bshd",
                attn_mask_type="causal" if b.causal else "no_mask", softmax_scale=b.scale,
            )}
        return self._made[b](q, k, v).view_as(q), None


def packages(device: Device) -> list[Kernel]:
    """Every package's kernel, usable or not."""
    return [
        Flash(device, "fa2", "flash_attn.flash_attn_interface", "flash-attn", (8, 0)),
        # Where it has no code it ends the process with exit(1) (hopper/cuda_check.h): it must not be tried.
        Flash(device, "fa3", "flash_attn_interface", "flash-attn-3", (9, 0), (10, 0)),
        Flash4(device, "fa4"),
        TransformerEngine(device, "te"),
    ]


def _installed(module: str) -> bool:
    """Whether a module can be found, without importing more than its parents.

    A parent that is there but does not load counts as found: why it does not is the better reason.
    """
    if module in sys.modules:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        return False
    except Exception:
        return True


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"
