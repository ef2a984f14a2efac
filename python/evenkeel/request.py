"""What a rank of a replay is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Callable, Mapping, Optional, Sequence

import torch

from .frames import Fault
from .kernels import FlashAttention2, Kernel, Math, TorchCPU, TorchCudnn, TorchEfficient, TorchFlash

KERNELS: dict[str, Callable[[], Kernel]] = {
    "math": Math, "fa2": FlashAttention2, "sdpa_flash": TorchFlash, "sdpa_cudnn": TorchCudnn,
    "sdpa_efficient": TorchEfficient, "sdpa_cpu": TorchCPU,
}

# What a kernel that is not to be had lacks.
_NEEDS = {
    "fa2": "the flash-attn package, 2.7 or later", "sdpa_flash": "torch 2.1 or later",
    "sdpa_cudnn": "torch 2.5 or later",
    "sdpa_efficient": "torch 2.1 or later", "sdpa_cpu": "torch 2.2 or later",
}


@dataclass(frozen=True)
class Request:
    """What a rank is asked to do; plans are documents of `evenkeel solve`. batches: for each plan its
    micro-batches (see parts.py), None for one of a single sequence. docs_tokens: lengths of packed documents,
    the same in every plan. parts: attention, layer, loss, which is layers and the loss behind them, of loss_chunk
    tokens at a time, or step, a whole training step with that loss, of one sequence or of batches. device: cpu, or
    cuda:N; by default what the plan's device types say.
    sampled_above: beyond so many tokens results are compared by samples. turns: ranks of a host, which share
    a GPU, compute one at a time, so that their spans do not contend. sms: of the GPU's multiprocessors, those
    that this rank is confined to, 0: all; sms_in_all: those of all ranks on that GPU."""

    plans: Sequence[Mapping[str, Any]]
    trace: str
    batches: Optional[Sequence[Optional[Sequence[Any]]]] = None
    parts: str = "layer"
    layers: int = 1
    repeats: int = 10
    warmup: int = 2
    seed: int = 1
    backend: str = "gloo"
    kernel: str = "auto"
    docs_tokens: Optional[Sequence[int]] = None
    threads: int = 0
    cores: Optional[Sequence[int]] = None
    device: str = ""
    timeout_s: float = 60.0
    check: bool = True
    turns: bool = False
    sms: int = 0
    sms_in_all: int = 0
    sampled_above: int = 8192
    loss_chunk: int = 1024

    @staticmethod
    def of(frame: Mapping[str, Any]) -> "Request":
        """Fault(usage) names a field that is missing or wrong; unknown ones are ignored, empty ones are the
        default."""
        for name in ("plans", "trace"):
            if not frame.get(name):
                raise Fault("usage", f"{name}: missing")
        known = {f.name for f in fields(Request)}
        asked = Request(**{k: v for k, v in frame.items() if k in known and v not in (None, "")})
        for name, least in (("layers", 1), ("repeats", 0), ("warmup", 0), ("seed", 0), ("threads", 0),
                            ("sampled_above", 0), ("sms", 0), ("sms_in_all", 0), ("loss_chunk", 1)):
            value = getattr(asked, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise Fault("usage", f"{name}: {value!r}: want a whole number from {least} on")
        for name, choices in (("parts", ("layer", "loss", "step", "attention")), ("backend", ("gloo", "nccl")),
                              ("kernel", ("auto", *KERNELS))):
            if getattr(asked, name) not in choices:
                raise Fault("usage", f"{name}: {getattr(asked, name)!r}: want {', '.join(choices)}")
        if not isinstance(asked.timeout_s, (int, float)) or not asked.timeout_s > 0:
            raise Fault("usage", f"timeout_s: {asked.timeout_s!r}: want a number of seconds above 0")
        for name, least in (("cores", 0), ("docs_tokens", 1)):
            value = getattr(asked, name)
            if value is not None and not _whole_numbers(value, least):
                raise Fault("usage", f"{name}: {value!r}: want a list of whole numbers from {least} on")
        of = asked.batches
        if of is not None and not (isinstance(of, list) and len(of) == len(asked.plans)
                                   and all(b is None or isinstance(b, list) for b in of)):
            raise Fault("usage", "batches: want a list of micro-batches, or null, for each plan")
        return asked

    def batches_of(self, plan: int) -> Optional[Sequence[Any]]:
        """The micro-batches of a plan of batches, None of another."""
        return self.batches[plan] if self.batches is not None else None

    def shared(self) -> dict[str, Any]:
        """What all ranks must be asked alike."""
        own = ("plans", "batches", "trace", "threads", "cores", "device", "timeout_s", "sms")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in own}


def _whole_numbers(value: Any, least: int) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= least for n in value)


def kernel_named(name: str) -> Kernel:
    """An attention kernel; Fault(usage) where it is not installed."""
    try:
        return KERNELS[name]()
    except (ImportError, AttributeError) as error:
        need = f"needs {_NEEDS[name]}, this is torch {torch.__version__}"
        raise Fault("usage", f"kernel: {name}: {need}; leave --kernel out for the fastest there is") from error
