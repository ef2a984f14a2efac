"""What a worker does with each request."""

from __future__ import annotations

import gc
import os
import socket
import sys

import torch

import faults
import ring
from attention_ops import Attention
from beside import Beside
from collectives import OPS as COLLECTIVES
from comm import Comm
from device import Device, cpu_vendor
from errors import Failure, axis
from gauge import KINDS, Gauges
from kernels import Kernels
from layer import LayerOp
from ops import GELU, GEMM, AdamW, CEChunk, Copy, LSEMerge, Norm, Rope, SwiGLU
from pool import Pool
from sampling import Prepared, WaitMeter
from wire import Heart
from work import Op

PROTO = 1
ATTENTION = ("attn_fwd", "attn_bwd", "attn_varlen_fwd", "attn_varlen_bwd")


class Service:
    """One device and what is prepared on it. Every answer_* method takes a request and returns its result's
    fields."""

    def __init__(self, heart: Heart):
        self._heart = heart
        self._device: Device | None = None
        self._prepared: Prepared | None = None
        self._gauge: tuple[str, dict, int] | None = None
        self._beside: Beside | None = None
        self._collective = ""
        self._verified: set[tuple[str, str]] = set()
        torch.set_grad_enabled(False)

    def answer(self, request: dict) -> dict:
        """The answer's fields beside t and id. Failure(internal) for an unknown request, or any before
        hello."""
        kind = str(request.get("t"))
        method = getattr(self, "answer_" + kind, None)
        if method is None:
            raise Failure("internal", f"unknown request {kind!r}")
        if self._device is None and kind != "hello":
            raise Failure("internal", f"{kind} before hello")
        return method(request)

    def answer_hello(self, request: dict) -> dict:
        """Sets the device up and tells what it can do."""
        if request.get("proto") != PROTO:
            raise Failure("unsupported", f"proto {request.get('proto')!r}: this worker speaks {PROTO}")
        if not _new_enough(torch.__version__):
            raise Failure(
                "unsupported", f"torch {torch.__version__} in {sys.executable}: needs torch >= 1.13"
            )
        faults.at_start()
        asked = {"threads": 0, "sms": 0, "sharing": 1, **request}
        self._device = device = Device(
            str(request.get("device", "cpu")), axis(asked, "threads", 0), axis(asked, "sms", 0),
            axis(asked, "sharing")
        )
        self._kernels = Kernels(device)
        self._ops, self._pool = ops_of(device, self._kernels), Pool(device)
        self._gauges = Gauges(device, self._kernels, self._ops)
        self._comm, self._guard = Comm(device), _guard(device)
        return {**versions(), "device": device.describe(), **self._abilities(), **self._guards()}

    def _abilities(self) -> dict:
        refused = {kind: op.refusal() for kind, op in self._ops.items()}
        refused.update({kind: self._gauges.refusal(kind) for kind in KINDS})
        if self._device.kind == "cpu" and self._comm.availability()["gloo"]["ok"]:
            refused["overlap"] = ""  # of attention beside messages between ranks
        refused.update({kind: "" for kind in self._comm.ops()})
        refused.update(self._comm.refused())
        return {
            "kernels": self._kernels.describe(), "default_kernel": self._kernels.default(),
            "comm": self._comm.availability(),
            "dtypes": self._device.dtypes(),
            "ops": [kind for kind, why in refused.items() if not why],
            "refused": {kind: why for kind, why in refused.items() if why},
        }

    def _guards(self) -> dict:
        why = self._guard.why if self._guard else "no accelerator"
        busy = [] if why else self._guard.busy()
        return {"nvml": not why, "nvml_why": why, "busy": busy, "clock_policy": "observe"}

    def answer_prepare(self, request: dict) -> dict:
        """Verifies a variant the first time, then makes inputs and binds the kernel."""
        kind, shape, seed = _call(request)
        self._drop()
        self._make_way(kind)
        if kind in COLLECTIVES:
            result = self._comm.prepare(kind, shape, seed, str(request.get("group", "")))
            self._collective = kind
            return result
        if kind == "overlap" and shape.get("comm") == "send_recv":
            self._beside = Beside(self._device, self._ops, self._comm, shape, seed, str(request.get("group", "")))
            return {}
        if kind in KINDS:
            self._gauges.check(kind, shape)
            self._gauge = (kind, shape, seed)
            return {}
        op = self._op(kind)
        result = self._verify_once(op, shape)
        self._device.wake()
        self._prepared = Prepared(op, shape, seed, self._pool)
        return {**result, "work_bytes": self._prepared.work_bytes}

    def _make_way(self, kind: str) -> None:
        """Leaves the memory that row-wise ops share to what is measured next, as far as that may need it."""
        op = self._ops.get(kind)
        if op is None or not op.windowed:
            most = self._pool.turn_bytes if self._device.kind == "cpu" and kind not in KINDS else 0
            self._pool.trim(most)
            self._device.release()

    def _op(self, kind: str) -> Op:
        op = self._ops.get(kind)
        if op is None:
            raise Failure("unsupported", f"unknown op {kind!r}")
        if op.refusal():
            raise Failure("unsupported", f"{kind}: {op.refusal()}")
        return op

    def _verify_once(self, op: Op, shape: dict) -> dict:
        """rel_err of the op's variant if it was not verified before. A kernel that is wrong is never
        timed."""
        key = (op.kind, op.variant(shape))
        if key in self._verified:
            return {}
        worst = max(op.check(small, 1) for small in op.odd(shape))
        self._verified.add(key)
        return {"rel_err": worst, "verified": True}

    def answer_run(self, request: dict) -> dict:
        """Samples of what is prepared, in nanoseconds, with what was seen of the device meanwhile."""
        inner, n = axis(request, "inner"), axis(request, "n")
        if self._collective:
            faults.at_run(self._collective)
            return self._observed(lambda: self._comm.run(inner, n, self._heart.progress))
        if self._prepared is None:
            raise Failure("internal", "run: nothing that can be timed is prepared")
        faults.at_run(self._prepared.kind)
        return self._observed(lambda: self._prepared.sample(inner, n, self._heart.progress))

    def _observed(self, sample) -> dict:
        device = self._device
        if self._guard is None:
            meter = WaitMeter(device)
            samples = sample()
            return {"samples_ns": samples, "wait_share": meter.share(), "peak_bytes": 0}
        torch.cuda.reset_peak_memory_stats(device.torch)
        self._guard.begin()
        samples = sample()
        seen = self._guard.end()
        device.used()
        peak = torch.cuda.max_memory_allocated(device.torch)
        return {"samples_ns": samples, "wait_share": 0.0, "peak_bytes": peak, "gpu": seen}

    def answer_gauge(self, request: dict) -> dict:
        """The prepared quantity that is no time."""
        if self._beside is not None:
            faults.at_run("overlap")
            return {"ratio": self._beside.measure()}
        if self._gauge is None:
            raise Failure("internal", "gauge: nothing that can be gauged is prepared")
        kind, shape, seed = self._gauge
        faults.at_run(kind)
        return self._gauges.measure(kind, shape, seed)

    def answer_verify(self, request: dict) -> dict:
        """Relative errors of every output at exactly this shape; nothing is timed."""
        kind, shape, seed = _call(request)
        self._drop()
        if kind in COLLECTIVES:
            return {"errors": self._comm.verify(kind, shape, str(request.get("group", "")))}
        faults.at_run(kind)
        if "cuts" in request:
            errors = ring.errors(self._kernels, self._device, shape, request["cuts"], seed)
        else:
            errors = self._op(kind).errors(shape, seed)
        bad = [name for name, error in errors.items() if not error < float("inf")]
        if bad:
            raise Failure("wrong", f"{kind} {bad[0]}: holds values that are not finite, or has another shape")
        return {"errors": errors}

    def answer_serve(self, request: dict) -> dict:
        """Opens the store of a new world."""
        return self._comm.serve(request)

    def answer_join(self, request: dict) -> dict:
        """Joins a world; what was prepared in an earlier one is dropped."""
        self._drop()
        return self._comm.join(request)

    def leave(self) -> None:
        """Says goodbye to the other ranks."""
        if self._device is not None:
            self._comm.leave()

    def recover(self, failure: Failure) -> None:
        """Drops every tensor after a request that ran out of memory."""
        if failure.cls == "oom":
            # Tensors of a half-built graph may hang in a cycle of references.
            gc.collect()
            if self._device is not None:
                self._pool.trim()
            self._drop()

    def _drop(self) -> None:
        self._prepared, self._gauge, self._beside, self._collective = None, None, None, ""
        if self._device is not None:
            self._device.release()


def ops_of(device: Device, kernels: Kernels) -> dict[str, Op]:
    """Every timed op of one device by its name."""
    ops: list[Op] = [Attention(kernels, kind) for kind in ATTENTION]
    ops += [
        GEMM(device), LSEMerge(device), Norm(device), Rope(device), SwiGLU(device), GELU(device),
        CEChunk(device), AdamW(device)
    ]
    ops += [
        Copy(device, "h2d"), Copy(device, "d2h"), LayerOp(kernels, "layer_fwd"), LayerOp(kernels, "layer_bwd")
    ]
    return {op.kind: op for op in ops}


def _guard(device: Device):
    """What watches an accelerator's clocks and power beside samples; None on a CPU, which has no NVML."""
    if device.kind == "cpu":
        return None
    from nvml import Guard

    return Guard(device.uuid or None)


def _new_enough(version: str) -> bool:
    """Whether a torch version such as 1.13.0a0 or 2.11.0+cu130 is 1.13 or later."""
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) >= (1, 13)


def versions() -> dict:
    """The software under the worker, as far as it tells itself."""
    cuda = torch.cuda.is_available()
    nccl = torch.cuda.nccl.version() if cuda and torch.distributed.is_nccl_available() else None
    return {
        "proto": PROTO, "pid": os.getpid(), "python": sys.version.split()[0], "torch": torch.__version__,
        "cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None),
        "cudnn": str(torch.backends.cudnn.version()) if cuda else None,
        "nccl": ".".join(map(str, nccl)) if isinstance(nccl, tuple) else nccl,
        "host": socket.gethostname(), "cpu_vendor": cpu_vendor(),
    }


def _call(request: dict) -> tuple[str, dict, int]:
    """op, shape and seed of a request."""
    shape = request.get("shape")
    if not isinstance(shape, dict):
        raise Failure("internal", f"shape: {shape!r}: want an object")
    return str(request.get("op")), shape, int(request.get("seed", 0)) & (2**63 - 1)
