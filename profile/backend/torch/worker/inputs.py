"""Tensors for measured calls: random by a seed, counted, and refused before they exhaust the memory."""

from __future__ import annotations

import math
from typing import Callable

import torch

from device import Device
from errors import Failure

Tables = tuple  # of tensors whose rows belong together

# Numbers that a CPU draws for one tensor; see Inputs.normal.
_BLOCK = 1048573


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
        """Standard normal values; rounded from float32 where the generator knows no such precision.

        On a CPU a large tensor repeats a block of them, which takes 0.4 of the time: making the inputs of a
        row-wise op took four times as long as sampling it. The block's length is a prime, so that no two rows
        are alike.
        """
        self.expect(*shape, dtype=dtype)
        if self.device.kind != "cpu" or math.prod(shape) <= _BLOCK:
            return self._draw(*shape).to(dtype)
        out = torch.empty(*shape, dtype=dtype)
        block, flat = self._draw(_BLOCK).to(dtype), out.view(-1)
        for a in range(0, len(flat), _BLOCK):
            part = flat[a:a + _BLOCK]
            part.copy_(block[: len(part)])
        return out

    def state(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """As normal, for a call that changes them in place."""
        return self.normal(*shape, dtype=dtype)

    def squares(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """As state, squared: what a call keeps free of negative numbers."""
        return self.normal(*shape, dtype=dtype).square_()

    def _draw(self, *shape: int) -> torch.Tensor:
        return torch.randn(
            *shape, generator=self._generator, device=self.device.torch, dtype=torch.float32
        )

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Room for a result."""
        self.expect(*shape, dtype=dtype)
        return torch.empty(*shape, device=self.device.torch, dtype=dtype)

    def tables(self, key: tuple, rows: int, make: Callable[[], Tables]) -> Tables:
        """What make returns, tensors of so many rows. key says what they are beside their length: a row depends
        on its number alone."""
        made = make()
        self.count(*made)
        return made

    def count(self, *tensors: torch.Tensor) -> None:
        """Counts tensors that something else has made."""
        self.bytes += sum(t.numel() * t.element_size() for t in tensors)
