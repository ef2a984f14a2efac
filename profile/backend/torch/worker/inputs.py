"""Tensors for measured calls: random by a seed, counted, and refused before they exhaust the memory."""

from __future__ import annotations

import torch

from device import Device
from errors import Failure


class Inputs:
    """Makes the tensors of one prepared op. Values are standard normal, never zeros: hardware is faster on
    zeros."""

    def __init__(self, device: Device, seed: int):
        self.device = device
        self.bytes = 0  # device memory handed out so far
        self._generator = torch.Generator(device=device.torch)
        self._generator.manual_seed(seed)
        self._free = device.free_bytes()

    def expect(self, *shape: int, dtype: torch.dtype = torch.float32) -> None:
        """Counts a tensor that is about to be made; Failure(oom) if it cannot fit."""
        size = torch.empty(0, dtype=dtype).element_size()
        for n in shape:
            size *= n
        self.bytes += size
        # Linux hands out memory it does not have and then kills the process, so a CPU refuses by itself.
        if self.device.kind == "cpu" and self.bytes > 0.9 * self._free:
            raise Failure("oom", f"needs {self.bytes} bytes of tensors or more, {self._free} are free")

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Standard normal values; on a CPU, whose generator knows few precisions, rounded from float32."""
        self.expect(*shape, dtype=dtype)
        drawn = torch.float32 if self.device.torch.type == "cpu" else dtype
        return torch.randn(*shape, generator=self._generator, device=self.device.torch, dtype=drawn).to(dtype)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Room for a result."""
        self.expect(*shape, dtype=dtype)
        return torch.empty(*shape, device=self.device.torch, dtype=dtype)

    def count(self, *tensors: torch.Tensor) -> None:
        """Counts tensors that something else has made."""
        self.bytes += sum(t.numel() * t.element_size() for t in tensors)
