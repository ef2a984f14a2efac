"""A measured call with its inputs, and the interface of the ops that make them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch

import faults
from device import Device
from errors import Failure, axis
from inputs import Inputs
from reference import rel_err

Named = dict  # outputs by name


@dataclass
class Bound:
    """One set of inputs tied to a kernel. call is what is timed; expected, asked for before the call because
    some calls work in place, gives the float64 answers; outputs finds the kernel's answers in what call
    returned."""

    call: Callable[[], Any]
    expected: Callable[[], Named]
    outputs: Callable[[Any], Named]


class Op:
    """One kind of op on one device."""

    kind = ""
    # Whether it is timed on windows of a pool. Then bind runs on meta tensors too, and everything that a call
    # changes is of inputs.state, squares or empty, or its own.
    windowed = False

    def __init__(self, device: Device):
        self.device = device

    def refusal(self) -> str:
        """Why this device cannot run the op at any shape, or ""."""
        return ""

    def variant(self, shape: dict) -> str:
        """What selects the kernel; each variant is verified once."""
        return str(shape.get("dtype", ""))

    def odd(self, shape: dict) -> list[dict]:
        """Small shapes of the same variant, no sizes multiples of 64, on which it is verified."""
        raise NotImplementedError

    def bind(self, shape: dict, inputs: Inputs) -> Bound:
        """Inputs made and a kernel tied to them."""
        raise NotImplementedError

    def limit(self, shape: dict) -> float:
        """Largest relative error of a right kernel: 1e-5 in float32, 1e-2 in 16-bit precisions."""
        return 1e-2 if shape.get("dtype") in ("bf16", "f16") else 1e-5

    def check(self, shape: dict, seed: int) -> float:
        """The worst error of a call; Failure(wrong) when it is above the limit, or no number at all."""
        errors = self.errors(shape, seed)
        name = max(errors, key=lambda n: errors[n])
        worst, most = errors[name], self.limit(shape)
        if not worst <= most:
            error = f"relative error {worst:.2g} against the float64 reference, limit {most:g}"
            raise Failure("wrong", f"{self.kind} {name}: {error}: not timed")
        return worst

    def errors(self, shape: dict, seed: int) -> dict[str, float]:
        """Relative error in the 2-norm of every output of one call, against float64."""
        bound = self.bind(shape, Inputs(self.device, seed))
        want = bound.expected()
        got = bound.outputs(bound.call())
        if faults.poisoned(self.kind):
            for t in got.values():
                t.fill_(float("nan"))
        return {name: rel_err(got[name], want[name]) for name in got}


class Rowwise(Op):
    """An op on `tokens` rows of `width` elements."""

    windowed = True

    def odd(self, shape: dict) -> list[dict]:
        """37 rows of 192 elements: three heads of rope."""
        return [{"tokens": 37, "width": 192, "dtype": shape.get("dtype")}]

    def sizes(self, shape: dict) -> tuple[int, int, torch.dtype]:
        """tokens, width, precision."""
        return axis(shape, "tokens"), axis(shape, "width"), self.device.dtype(str(shape.get("dtype")))
