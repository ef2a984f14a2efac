"""The attention kernels of a worker: which there are, which can be used, and which a shape gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable

import torch

from attention import SKIP, Block, Explicit, Grads, Kernel, Saved, Tensor, left_out
from attention_aten import CPU_FLASH, OPERATORS, Aten, Packed, dotted
from attention_packages import packages
from device import Device
from errors import Failure, classify, first_line
from inputs import Inputs
from reference import attention, attention_backward, rel_err


# Kernels that are tried at the start. The others compile for seconds at their first call or end the process
# when they fail, and nothing falls to them while one of these is left.
_PROBED = ("sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "varlen", "fa2")

# Heads as training has them, and lengths that are no multiples of a tile.
_SMALL = Block(70, 133, 6, 2, 64, "bf16", False)


class Kernels:
    """All attention kernels by name, and the order in which a shape without a wish is offered to them."""

    def __init__(self, device: Device):
        found = [cpu_kernel(device)] + [Aten(device, spec) for spec in OPERATORS]
        found += [Packed(device)] + packages(device)
        for kernel in found:
            kernel.why = left_out(kernel.name) or kernel.why
            if device.kind == "cuda" and not kernel.why and kernel.name in _PROBED:
                kernel.why = probe(kernel)
        self.by_name: dict[str, Kernel] = {k.name: k for k in found}
        self._order = [
            "cpu", "sdpa_flash", "sdpa_cudnn", "varlen", "fa2", "fa3", "sdpa_efficient", "fa4", "te"
        ]
        if device.capability[0] in (9, 10):
            # On Hopper and data-center Blackwell cuDNN's kernels are the faster ones of the two that come
            # with torch; on Ampere, Ada and workstation Blackwell not (huggingface/transformers#48163).
            self._order[1:3] = ["sdpa_cudnn", "sdpa_flash"]

    def pick(self, op: str, b: Block, wish: str | None) -> Kernel:
        """The wished kernel, or the first that takes the block; Failure(unsupported) gives the reasons."""
        if wish is not None and wish not in self.by_name:
            raise Failure("unsupported", f"shape.kernel: {wish!r}: the kernels are {', '.join(self.by_name)}")
        names = [wish] if wish is not None else self._order
        reasons = {n: self.by_name[n].refusal(op, b) for n in names}
        for name, reason in reasons.items():
            if not reason:
                return self.by_name[name]
        raise Failure("unsupported", f"{op}: " + "; ".join(f"{n} {r}" for n, r in reasons.items()))

    def default(self) -> str:
        """The kernel that a block without a wish is offered to first, "" if none can be used."""
        return next((n for n in self._order if not self.by_name[n].why), "")

    def has(self, op: str) -> bool:
        """Whether some kernel can run op at all."""
        return any(op in k.ops for k in self.by_name.values() if not k.why)

    def describe(self) -> dict:
        """hello's `kernels`."""
        return {name: k.describe() for name, k in self.by_name.items()}


def probe(kernel: Kernel) -> str:
    """Why a kernel that seems usable is not, "" if it is: a small forward and backward against the reference.

    A library may be there and have no code for this device ("no kernel image", "No valid execution plans
    built"); found out at a measured point, it would cost that point instead of leaving it to the next kernel.
    A failure that poisons the process is raised, and names the way to start without the kernel.
    """
    heads = _SMALL.q_heads if not kernel.native_gqa else _SMALL.kv_heads
    b = replace(_SMALL, kv_heads=heads, dtype="bf16" if kernel.device.capability >= (8, 0) else "f16")
    inputs, dtype = Inputs(kernel.device, 1), kernel.device.dtype(b.dtype)
    q, dout = (inputs.normal(b.q_len, b.q_heads, b.head_dim, dtype=dtype) for _ in range(2))
    k, v = (inputs.normal(b.kv_len, b.kv_heads, b.head_dim, dtype=dtype) for _ in range(2))
    try:
        saved = kernel.bind_forward(b, q, k, v)()
        grads = kernel.bind_backward(b, q, k, v, saved, dout)()
        got = [kernel.canonical(t) for t in (saved.out, *grads)]
        kernel.device.sync()
    except Exception as exc:
        failure = classify(exc)
        if failure.fatal:
            said = f"{kernel.name}: {failure.msg}: leave this kernel out with {SKIP}={kernel.name}"
            raise Failure(failure.cls, said, fatal=True) from exc
        return f"fails on this device: {first_line(exc)}"
    out, lse = attention(q, k, v, b.parts())
    want = (out, *attention_backward(q, k, v, out, lse, dout, b.parts()))
    worst = max(rel_err(g, w) for g, w in zip(got, want))
    return "" if worst <= 1e-2 else f"is wrong on this device: relative error {worst:.2g} in a small call"


def cpu_kernel(device: Device) -> Kernel:
    """The kernel named cpu: torch's fused CPU operator if it takes grouped heads and is right, else
    Explicit."""
    if device.kind != "cpu":
        unused = Explicit(device, [])
        unused.why = "this worker has an accelerator"
        return unused
    fused = FusedCPU(device)
    return Explicit(device, device.dtypes()) if fused.why else fused


# First torch release whose fused CPU operator takes fewer KV than query heads (pytorch/pytorch#157893). Earlier
# ones count by query heads, and would read and write KV heads that do not exist: they are not even tried.
GROUPED = (2, 9)


def release(version: str) -> tuple:
    """(2, 9) for 2.9.1+cpu. What was built on the way to a release may lack what that has: it counts as the one
    before."""
    major, minor, rest = (version.split(".", 2) + ["0", "0"])[:3]
    return int(major), int(minor) - (1 if "a" in rest.split("+")[0] or "dev" in rest else 0)


class FusedCPU(Aten):
    """torch's fused CPU operator; packed documents are run one after the other."""

    def __init__(self, device: Device, namespace=None):
        super().__init__(device, CPU_FLASH, namespace)
        self.ops = ("attn_fwd", "attn_bwd", "attn_varlen_fwd", "attn_varlen_bwd")
        self.dtypes = tuple(d for d in self.dtypes if d in device.dtypes())
        if namespace is None and release(str(torch.__version__)) < GROUPED:
            self.why = self.why or f"needs torch >= {dotted(GROUPED)} for grouped heads, this is {torch.__version__}"
        self.why = self.why or self._probe()

    def _documents(self, b: Block) -> list[tuple[slice, Block]]:
        """The rows of each document, and its block."""
        squares = [replace(b, q_len=n, kv_len=n, docs=()) for n in b.docs]
        return [(slice(p[0], p[1]), square) for p, square in zip(b.parts(), squares)]

    def bind_forward(self, b: Block, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Saved]:
        """Results of documents are joined along the tokens."""
        if not b.docs:
            return super().bind_forward(b, q, k, v)
        calls = [super(FusedCPU, self).bind_forward(d, q[s], k[s], v[s]) for s, d in self._documents(b)]

        def forward() -> Saved:
            each = [call() for call in calls]
            return Saved(torch.cat([e.out for e in each], 2), torch.cat([e.lse for e in each], 2), {})

        return forward

    def bind_backward(
        self, b: Block, q: Tensor, k: Tensor, v: Tensor, saved: Saved, dout: Tensor
    ) -> Callable[[], Grads]:
        """Likewise."""
        if not b.docs:
            return super().bind_backward(b, q, k, v, saved, dout)
        calls = []
        for s, d in self._documents(b):
            mine = Saved(saved.out[:, :, s], saved.lse[:, :, s].contiguous(), {})
            calls.append(super().bind_backward(d, q[s], k[s], v[s], mine, dout[s]))
        return lambda: tuple(torch.cat(grads, 2) for grads in zip(*(call() for call in calls)))

    def _probe(self) -> str:
        """A small grouped call against the reference. An operator that takes equal heads only is not used at
        all: two implementations under one name would be two laws in one fit."""
        b = Block(5, 7, 4, 2, 32, "f32", False)
        q, k, v = torch.randn(5, 4, 32), torch.randn(7, 2, 32), torch.randn(7, 2, 32)
        try:
            saved, dout = self.bind_forward(b, q, k, v)(), torch.randn(5, 4, 32)
            grads = [self.canonical(g) for g in self.bind_backward(b, q, k, v, saved, dout)()]
        except Exception as exc:
            return f"takes no grouped heads: {first_line(exc)}"
        out, lse = attention(q, k, v, b.parts())
        right = rel_err(self.canonical(saved.out), out) < 1e-5 and [g.shape for g in grads] == [
            q.shape, k.shape, v.shape
        ]
        wants = attention_backward(q, k, v, out, lse, dout, b.parts())
        right = right and all(rel_err(g, w) < 1e-4 for g, w in zip(grads, wants))
        return "" if right else "computes grouped heads wrongly"
