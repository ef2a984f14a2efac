"""Ops whose quantity is no time: memory of a device and of a layer, and the slow-down of two ops that
overlap."""

from __future__ import annotations

from dataclasses import replace

import torch

from device import Device
from errors import Failure
from inputs import Inputs
from kernels import Kernels
from layer import Layer, LayerOp, Sizes, sizes_of
from overlap import Overlap
from work import Op

# A layer of ordinary proportions: warms every library a step uses.
_WARM = {"tokens": 1024, "hidden": 1024, "ffn": 2816, "q_heads": 16, "kv_heads": 4, "head_dim": 64}

KINDS = ("mem_capacity", "mem_reserve", "mem_layer", "overlap")


class Gauges:
    """The gauges of one device."""

    def __init__(self, device: Device, kernels: Kernels, ops: dict[str, Op]):
        self.device, self._layers = device, LayerOp(kernels, "layer_bwd")
        self._overlap = Overlap(device, ops)

    def refusal(self, kind: str) -> str:
        """Why this device alone cannot gauge, or ""."""
        if kind == "mem_reserve" and self.device.sharing > 1:
            # The card's free memory is all that can be asked, and the others' tensors are in it too.
            n = self.device.sharing
            return f"{n} ranks share the accelerator, which does not tell what each of them holds"
        return self._overlap.refusal() if kind == "overlap" else ""

    def check(self, kind: str, shape: dict) -> None:
        """Failure if the shape cannot be gauged."""
        if self.refusal(kind):
            raise Failure("unsupported", f"{kind}: {self.refusal(kind)}")
        if kind == "mem_layer":
            sizes = sizes_of(shape)
            self.device.dtype(sizes.dtype)
            self._layers.pick(sizes)
        if kind == "overlap":
            self._overlap.check(shape)

    def measure(self, kind: str, shape: dict, seed: int) -> dict:
        """size_bytes or ratio of a checked shape."""
        if kind == "overlap":
            return {"ratio": self._overlap.measure(shape, seed)}
        sizes = {"mem_capacity": self._capacity, "mem_reserve": self._reserve}
        return {"size_bytes": sizes[kind]() if kind in sizes else self._layer(shape, seed)}

    def _capacity(self) -> int:
        """What an accelerator had free before the first tensor; on a CPU all that the process may use, as
        hello tells it, because other processes come and go."""
        return self.device.free_at_start_bytes if self.device.kind == "cuda" else self.device.mem_bytes

    def _reserve(self) -> int:
        """Memory in use beyond tensors after a warm step: context, kernels, workspaces; on a CPU, the
        resident memory that the step left behind."""
        # On a processor in what it computes with: bf16 needs instructions that not every one has.
        dtype = "bf16" if self.device.kind == "cuda" and "bf16" in self.device.dtypes() else "f32"
        self._layer({**_WARM, "dtype": dtype}, 1)
        self.device.sync()
        self.device.release()
        if self.device.kind == "cpu":
            return _resident()
        # Nothing of the step is left but workspaces, cuBLAS's among them, which torch takes from the same
        # cache as tensors: only what that cache holds unused does not count.
        return torch.cuda.mem_get_info(self.device.torch)[1] - self.device.free_bytes()

    def _layer(self, shape: dict, seed: int) -> int:
        """Bytes that a layer's forward keeps for its backward, its input among them: what every further layer
        of a model adds. An accelerator's allocator tells, rounding included; on a CPU what autograd saves is
        counted."""
        sizes = sizes_of(shape)
        if self.device.kind == "cuda":
            self._step(replace(sizes, tokens=min(sizes.tokens, _WARM["tokens"])), seed)
        before = torch.cuda.memory_allocated(self.device.torch) if self.device.kind == "cuda" else 0
        layer = Layer(sizes, self._layers.pick(sizes), Inputs(self.device, seed))
        if self.device.kind == "cpu":
            return kept_bytes(layer)
        with torch.enable_grad():
            y = layer.forward()
        self.device.sync()
        kept = torch.cuda.memory_allocated(self.device.torch) - before
        # The output is the next layer's input and counts there.
        others = [*layer.weights.values(), layer.cos, layer.sin, y]
        return max(0, kept - sum(t.numel() * t.element_size() for t in others))

    def _step(self, sizes: Sizes, seed: int) -> None:
        """A forward and a backward, after which every workspace is there that a step needs: cuBLAS makes one
        for each thread and stream, autograd's thread included, in the memory that tensors are counted in."""
        layer = Layer(sizes, self._layers.pick(sizes), Inputs(self.device, seed))
        with torch.enable_grad():
            y = layer.forward()
        y.backward(torch.randn_like(y))
        self.device.sync()


def kept_bytes(layer: Layer) -> int:
    """Bytes that a layer's forward keeps for backward: every storage once, parameters and angle tables left
    out.

    The input counts: the layer before has to keep it for this one.
    """
    constants = [*layer.weights.values(), layer.cos, layer.sin]
    seen: dict[int, int] = {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        seen[_storage(t).data_ptr()] = _storage(t).nbytes()
        return t

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = layer.forward()  # alive, so that no storage's address is used twice
    for t in constants:
        seen.pop(_storage(t).data_ptr(), None)
    del y
    return sum(seen.values())


def _storage(t: torch.Tensor):
    """The memory behind a tensor; torch 2 renamed what torch 1 calls storage."""
    return t.untyped_storage() if hasattr(t, "untyped_storage") else t.storage()


def _resident() -> int:
    with open("/proc/self/status", encoding="ascii") as f:
        line = next(line for line in f if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024
