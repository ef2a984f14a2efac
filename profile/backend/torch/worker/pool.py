"""Memory that the row-wise ops of all points share. Their inputs are windows of it, so that a point is prepared
at once, and its calls find as little in the cache as those of a layer."""

from __future__ import annotations

import math
from collections import Counter
from typing import Callable

import torch

from device import Device
from inputs import Inputs, Tables
from work import Op

Tensor = torch.Tensor
Key = tuple  # use and precision

# How often the bytes that a rotation goes through exceed the last level of cache. In a layer an op finds little
# of its inputs there: weights and other activations went through it since.
_TIMES = {"cuda": 4, "cpu": 2}
# Sets of inputs in a rotation at most: a call on less than that of a cache is mostly dispatch, and each set
# takes 10 to 60 us to bind.
_SETS = 64
# Elements that windows start at multiples of: 256 bytes of float32, as in torch's own allocators.
_ALIGN = 64


class Pool:
    """Buffers by use and precision, filled once and made anew only for a point that needs a larger one.

    Uses: "read", which no call writes; "state", changed in place by calls, whose results serve the next ones as
    well as random numbers; "square", the same and never negative; "room" for results.
    """

    def __init__(self, device: Device):
        self.device = device
        self._buffers: dict[Key, Tensor] = {}
        self._tables: dict[tuple, Tables] = {}

    @property
    def turn_bytes(self) -> int:
        """What a rotation goes through at least before a set comes again, unless that takes too many sets."""
        return _TIMES[self.device.kind] * self.device.last_bytes

    @property
    def bytes(self) -> int:
        """Memory held, the tables of positions excepted."""
        return sum(map(_bytes, self._buffers.values()))

    def trim(self, most: int = 0) -> None:
        """Gives up every buffer of more than so many bytes, and the tables unless any are kept."""
        self._buffers = {key: b for key, b in self._buffers.items() if _bytes(b) <= most}
        if not most:
            self._tables.clear()

    def rotation(self, op: Op, shape: dict, seed: int) -> tuple[list[Callable], int]:
        """Calls of an op on one set of windows each, of which no two overlap, and the bytes of a set.

        Failure(oom) if a set cannot fit; seed: of numbers that are not there yet.
        """
        tally = _Tally(self)
        op.bind(shape, tally)
        sets = min(_SETS, max(1, -(-self.turn_bytes // max(1, tally.bytes))))
        self._reserve({key: sets * n for key, n in tally.elements.items()}, seed)
        windows = _Windows(self)
        return [op.bind(shape, windows).call for _ in range(sets)], tally.bytes

    def _reserve(self, needs: dict[Key, int], seed: int) -> None:
        """Buffers of so many elements; large ones of other uses go first."""
        self._buffers = {
            key: b for key, b in self._buffers.items()
            if len(b) >= needs.get(key, 0) and (key in needs or _bytes(b) <= self.turn_bytes)
        }
        for key, n in needs.items():
            if key not in self._buffers:
                # Four times as large, up to what a rotation goes through, so that it is not soon made again.
                whole = self.turn_bytes // torch.empty(0, dtype=key[1]).element_size()
                self._buffers[key] = _filled(Inputs(self.device, seed), *key, max(n, min(4 * n, whole)))

    def window(self, use: str, dtype: torch.dtype, at: int, n: int) -> Tensor:
        """Elements at to at + n of a buffer."""
        return self._buffers[use, dtype][at:at + n]

    def tables(self, key: tuple, rows: int, make: Callable[[], Tables]) -> Tables:
        """The first rows of tables that depend on nothing but their row; kept for later points."""
        if key not in self._tables or len(self._tables[key][0]) < rows:
            self._tables[key] = make()
        return tuple(t[:rows] for t in self._tables[key])


class _Carved(Inputs):
    """Inputs that are made by use."""

    def __init__(self, pool: Pool):
        super().__init__(pool.device, 0)
        self.pool = pool

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.carve("read", shape, dtype)

    def state(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.carve("state", shape, dtype)

    def squares(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.carve("square", shape, dtype)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.carve("room", shape, dtype)

    def carve(self, use: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor for a use."""
        raise NotImplementedError

    def tables(self, key: tuple, rows: int, make: Callable[[], Tables]) -> Tables:
        return self.pool.tables(key, rows, make)


class _Tally(_Carved):
    """Counts what a set takes, by use, on tensors without memory."""

    def __init__(self, pool: Pool):
        super().__init__(pool)
        self.elements: Counter = Counter()
        self._free += pool.bytes  # buffers make way for larger ones

    def carve(self, use: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self.expect(*shape, dtype=dtype)
        self.elements[use, dtype] += _aligned(shape)
        return torch.empty(*shape, dtype=dtype, device="meta")


class _Windows(_Carved):
    """Hands out one window after the other."""

    def __init__(self, pool: Pool):
        super().__init__(pool)
        self._next: Counter = Counter()

    def carve(self, use: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        at = self._next[use, dtype]
        self._next[use, dtype] += _aligned(shape)
        return self.pool.window(use, dtype, at, math.prod(shape)).view(*shape)


def _aligned(shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) // _ALIGN) * _ALIGN


def _bytes(t: Tensor) -> int:
    return t.numel() * t.element_size()


def _filled(inputs: Inputs, use: str, dtype: torch.dtype, n: int) -> Tensor:
    if use == "room":
        # Written once: no call shall be the first to touch a page.
        return inputs.empty(n, dtype=dtype).zero_()
    numbers = inputs.normal(n, dtype=dtype)
    return numbers.square_() if use == "square" else numbers
