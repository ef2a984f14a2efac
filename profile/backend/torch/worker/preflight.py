"""What the workers of a world must know of each other before a communication library starts.

Libraries of different versions or vendors do not refuse each other cleanly: they hang or truncate messages.
So every worker puts a description of itself into the store, and all come to the same verdict.
"""
from __future__ import annotations

import json
import os
import re
import socket
import time
from typing import Any, Optional

import torch

from errors import Failure

Info = dict[str, Any]

# How often the store is asked for workers that have not arrived.
POLL_S = 0.02
# From this compute capability on NCCL keeps its LL128 protocol on mixed GPUs (tuning.cc of NCCL 2.30).
LL128_CAPABILITY = (9, 0)


def inspect(device: Any) -> Info:
    """Describes this worker. Fields that cannot be read are None."""
    cuda = device.kind == "cuda"
    return {
        "host": socket.gethostname(),
        "torch": torch.__version__,
        "nccl": _nccl_version() if cuda else None,
        "vendor": ("amd" if torch.version.hip else "nvidia") if cuda else "cpu",
        "cpu_vendor": _proc_field("/proc/cpuinfo", r"vendor_id\s*:\s*(\S+)"),
        "driver": driver_version(),
        "capability": list(torch.cuda.get_device_capability(device.torch)) if cuda else None,
        "hcas": _hca_count(),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES") if cuda else None,
    }


def _nccl_version() -> Optional[str]:
    try:
        version = torch.cuda.nccl.version()
    except (AttributeError, RuntimeError):
        return None
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def driver_version(path: str = "/proc/driver/nvidia/version") -> Optional[str]:
    """NVIDIA's, which the open kernel modules tell after an architecture with digits of its own: "Open Kernel
    Module for x86_64  580.95.05"."""
    return _proc_field(path, r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)")


def _proc_field(path: str, pattern: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = re.search(pattern, file.read())
    except OSError:
        return None
    return found.group(1) if found else None


def _hca_count() -> Optional[int]:
    try:
        return len(os.listdir("/sys/class/infiniband"))
    except FileNotFoundError:
        return 0
    except OSError:
        return None


def gather(store: Any, rank: int, size: int, timeout_s: float, info: Info) -> list[Info]:
    """Every worker's description, by rank. Raises a fatal Failure naming the ranks missing after timeout_s.

    A `get` that times out leaves an answer in the client's socket for the next request to read. So arrival is
    polled with counters, which answer at once, and only what is there is fetched.
    """
    store.set(f"preflight/info/{rank}", json.dumps(info))
    store.add(f"preflight/here/{rank}", 1)
    missing = set(range(size))
    deadline = time.monotonic() + timeout_s
    while True:
        missing = {r for r in missing if store.add(f"preflight/here/{r}", 0) == 0}
        if not missing:
            return [json.loads(store.get(f"preflight/info/{r}")) for r in range(size)]
        if time.monotonic() > deadline:
            ranks = ", ".join(map(str, sorted(missing)))
            said = f"rank {rank}: not all {size} ranks joined within {timeout_s:g} s, missing: {ranks}"
            raise Failure("internal", said, fatal=True)
        time.sleep(POLL_S)


def judge(infos: list[Info], comm: str) -> list[str]:
    """Warnings about a world's workers; raises Failure "unsupported" where they must not talk to each other.

    infos: one a rank, as of `inspect`; comm: "gloo" or "nccl".
    """
    _require_equal(infos, "torch", "torch")
    if comm != "nccl":
        return []
    _require_equal(infos, "vendor", "GPU vendor")
    _require_equal(infos, "nccl", "NCCL")
    _require_own_gpus(infos)
    warnings = (
        _capabilities(infos),
        _differs(infos, "hcas", CARDS_WARNING),
        _differs(infos, "cpu_vendor", CPU_WARNING),
        _differs(infos, "driver", DRIVER_WARNING),
    )
    return [w for w in warnings if w]


CPU_WARNING = "CPU vendor {a} on {ha}, {b} on {hb}: older NCCL chooses inconsistent algorithms on such hosts"
CARDS_WARNING = (
    "{a} network adapters (HCAs) on {ha}, {b} on {hb}: "
    "set NCCL_IGNORE_NET_MISMATCH=0, or this can hang silently"
)
DRIVER_WARNING = "driver {a} on {ha}, {b} on {hb}"


def _odd_one(infos: list[Info], key: str) -> Optional[tuple[int, int]]:
    """The first rank and the first that differs from it, of those whose field could be read."""
    known = [r for r, info in enumerate(infos) if info[key] is not None]
    return next(((known[0], r) for r in known if infos[r][key] != infos[known[0]][key]), None)


def _require_equal(infos: list[Info], key: str, what: str) -> None:
    odd = _odd_one(infos, key)
    if odd:
        a, b = odd
        where = [f"{infos[r][key]} on rank {r} ({infos[r]['host']})" for r in (a, b)]
        way_out = "use comm gloo" if key == "vendor" else "install the same on all"
        raise Failure("unsupported", f"{what} {where[0]}, {where[1]}: {way_out}")


def _require_own_gpus(infos: list[Info]) -> None:
    """Refuses two ranks on one GPU, and MIG instances, between which there is no peer access."""
    seen: dict[tuple[str, str], int] = {}
    for rank, info in enumerate(infos):
        visible = info["visible"] or ""
        if visible.startswith("MIG-"):
            said = f"rank {rank} is on a MIG instance: no NCCL between instances; use comm gloo"
            raise Failure("unsupported", said)
        first = seen.setdefault((info["host"], visible), rank)
        if visible and first != rank and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1":
            said = f"ranks {first} and {rank} share GPU {visible} of {info['host']}: NCCL refuses that"
            way_out = "use comm gloo, or NCCL_MULTI_RANK_GPU_ENABLE=1 with NCCL >= 2.30"
            raise Failure("unsupported", f"{said}; {way_out}")


def _capabilities(infos: list[Info]) -> str:
    found = sorted({tuple(info["capability"]) for info in infos if info["capability"]})
    if len(found) < 2:
        return ""
    names = ", ".join(f"{major}.{minor}" for major, minor in found)
    ll128 = "LL128 off; " if found[0] < LL128_CAPABILITY else ""
    way_out = "set NCCL_IGNORE_NET_MISMATCH=0, so that unequal networks are an error and not a hang"
    return f"compute capabilities {names}: {ll128}NCCL tunes for the lowest; {way_out}"


def _differs(infos: list[Info], key: str, text: str) -> str:
    odd = _odd_one(infos, key)
    if not odd:
        return ""
    a, b = infos[odd[0]], infos[odd[1]]
    return text.format(a=a[key], ha=a["host"], b=b[key], hb=b["host"])
