"""Random tensors that every rank can make a part of, the same bits on every device and instruction set."""

from __future__ import annotations

import hashlib
import math
from typing import Any, Optional

import torch
from torch import Tensor

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}

# Values repeat after so many. A prime, so that no two of the first million rows of a tensor are alike.
_PERIOD = 1048573
_ROWS = 1 << 26  # elements that are looked up at a time


class Drawn:
    """Values of one tensor, by name and seed: near normal, of variance 1.

    Each is the sum of four integers of 12 bits about their mean, scaled by one multiplication: exact up to
    there, so that vector units of any width give the same bits. The functions of a normal generator do not.
    """

    def __init__(self, seed: int, name: str) -> None:
        self._salt = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:7], "big")
        self._values = torch.empty(0)

    def _first(self, n: int) -> Tensor:
        """At least the first n values, or all there are. A million take a tenth of a second: no more are drawn than
        are asked for, or where there are some already twice as many as those."""
        n = min(n, _PERIOD)
        if n > len(self._values):
            n = min(max(n, 2 * len(self._values)), _PERIOD)
            bits = torch.randint(1 << 48, (n,), generator=torch.Generator().manual_seed(self._salt))
            parts = torch.stack([(bits >> shift) & 4095 for shift in (0, 12, 24, 36)])
            self._values = (parts.sum(0) - 2 * 4095).float() * (math.sqrt(3.0) / 4096)
        return self._values

    def rows(
        self, at: Tensor, width: int, lo: int = 0, hi: Optional[int] = None, *, dtype: torch.dtype,
        device: Any = None,
    ) -> Tensor:
        """Rows `at` of the tensor [.., width], columns lo to hi: [len(at), hi - lo]."""
        columns = torch.arange(lo, width if hi is None else hi)
        out = torch.empty(len(at), len(columns), dtype=dtype, device=device)
        values = self._first((int(at.max()) + 1) * width if len(at) else 0)
        step = max(1, _ROWS // max(1, len(columns)))
        for a in range(0, len(at), step):
            index = (at[a:a + step, None] * width + columns).remainder_(_PERIOD)
            out[a:a + step] = values[index].to(dtype)
        return out

    def filled(self, *shape: int, dtype: torch.dtype, device: Any = None, scale: float = 1.0) -> Tensor:
        """The whole tensor, of any shape."""
        n = math.prod(shape)
        values = self._first(n)
        if n > _PERIOD:
            values = values.repeat(-(-n // _PERIOD))
        return (values[:n] * scale).view(shape).to(dtype=dtype, device=device)
