"""The slow-down of a compute op and a copy that run at once on two streams of one accelerator."""

from __future__ import annotations

import statistics

import torch

import confine
from device import Device
from errors import Failure, axis, word
from sampling import Prepared, spin
from work import Op

# What the compute side looks like at a number of tokens; its width hardly moves the ratio.
_HEADS = {"q_heads": 8, "kv_heads": 8, "head_dim": 128}
_WIDTH = 4096
_REPEATS = 11
# The longer side runs this much longer than the shorter, so that the shorter is overlapped to its end.
_MARGIN = 1.5
_MAX_CALLS = 2000
# The timed side is repeated up to this length: events resolve about half a microsecond.
_LONG_NS = 200_000


def compute_shape(op: str, tokens: int, dtype: str = "bf16") -> dict:
    """The compute side's shape: a FULL block of 8 heads of 128, or a GEMM of tokens x 4096 x 4096."""
    if op == "gemm":
        return {"pass": "fwd", "m": tokens, "n": _WIDTH, "k": _WIDTH, "dtype": dtype}
    return {"mask": "full", "q_len": tokens, "kv_len": tokens, **_HEADS, "dtype": dtype}


class Overlap:
    """Gauges T(a while b runs) / T(a alone)."""

    def __init__(self, device: Device, ops: dict[str, Op]):
        self.device, self._ops = device, ops

    def refusal(self) -> str:
        """A CPU has no copy engine that could run beside its cores."""
        return "" if self.device.kind == "cuda" else "no accelerator, so no copy engine beside the cores"

    def check(self, shape: dict) -> None:
        """Failure for a pair that one accelerator cannot run: collectives need other ranks."""
        word(shape, "compute", "attn_fwd", "attn_bwd", "gemm")
        word(shape, "slowed", "compute", "comm")
        axis(shape, "tokens")
        axis(shape, "bytes")
        if shape.get("comm") not in ("h2d", "d2h"):
            raise Failure(
                "unsupported", f"overlap with {shape.get('comm')}: one device overlaps with h2d and d2h only"
            )

    def measure(self, shape: dict, seed: int) -> float:
        """The ratio of medians of a checked shape; Failure(internal) if the longer side never outlasted the
        other."""
        sides = {
            "compute": Prepared(
                self._ops[shape["compute"]], compute_shape(shape["compute"], shape["tokens"]), seed
            ),
            "comm": Prepared(self._ops[shape["comm"]], {"bytes": shape["bytes"], "pinned": True}, seed + 1),
        }
        timed = sides.pop(shape["slowed"])
        (other,) = sides.values()
        alone = statistics.median(timed.sample(1, _REPEATS, lambda _: None))
        beside = statistics.median(other.sample(1, _REPEATS, lambda _: None))
        times = max(1, -(-_LONG_NS // max(1, int(alone))))
        loops = min(_MAX_CALLS, 1 + round(_MARGIN * 2 * alone * times / max(1, beside)))
        return self._ratio(timed, other, alone, times, loops)

    def _ratio(self, timed: Prepared, other: Prepared, alone: float, times: int, loops: int) -> float:
        times = min(times, _MAX_CALLS)
        side = confine.side_stream(self.device.torch)
        with torch.cuda.stream(side):
            # A stream has its own workspaces and cached memory, which are made in its first calls.
            for _ in range(3):
                other.call()
        self.device.sync()
        solo = [self._pair(timed, None, times, 0, side)[0] for _ in range(_REPEATS)]
        pairs = [self._pair(timed, other, times, loops, side) for _ in range(_REPEATS)]
        covered = [ns for ns, outlasted in pairs if outlasted]
        if not covered:
            raise Failure(
                "internal", f"overlap: {loops} calls beside {times} of {alone:.0f} ns ended first every time"
            )
        return statistics.median(covered) / statistics.median(solo)

    def _pair(
        self, timed: Prepared, other: Prepared | None, times: int, loops: int, side: torch.cuda.Stream
    ) -> tuple[float, bool]:
        """One pair: ns of the timed side, and whether the other, started first, ended last."""
        main = torch.cuda.current_stream()
        start, end, gate, last = (torch.cuda.Event(enable_timing=True) for _ in range(4))
        spin(2 * (times * timed.launch_ns + loops * (other.launch_ns if other else 0)))
        gate.record(main)
        if other is not None:
            side.wait_event(gate)
            with torch.cuda.stream(side):
                for _ in range(loops):
                    other.call()
                last.record(side)
        start.record(main)
        for _ in range(times):
            timed.call()
        end.record(main)
        self.device.sync()
        outlasted = other is None or end.elapsed_time(last) > 0
        return start.elapsed_time(end) * 1e6, outlasted
