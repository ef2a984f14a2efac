"""The vector units and cores that a process on processors is limited to, as its libraries see them.

This file is the same in the worker that measures and in the package that replays.
"""

from __future__ import annotations

import ctypes
import os

# What the libraries under torch read when they are loaded: OpenBLAS, ATen, MKL, oneDNN.
LIMITS = ("OPENBLAS_CORETYPE", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")


def keep_to(own: object) -> None:
    """Keeps this thread, and those that it starts from now on, to some of the cores this process may use.

    own: their places among these cores in ascending order; an empty list or anything else leaves them all.
    ValueError where there are fewer.
    """
    if not isinstance(own, list) or not own:
        return
    cores = sorted(os.sched_getaffinity(0))
    if max(own) >= len(cores):
        raise ValueError(f"own_cores {own}: this process may use {len(cores)} cores")
    os.sched_setaffinity(0, {cores[i] for i in own})


def describe() -> dict:
    """The `vectors` object of hello: the words of ATen and OpenBLAS, the file of a reference BLAS, and what is
    set of the limits."""
    limits = {name: os.environ[name] for name in LIMITS if os.environ.get(name)}
    return {"aten": _aten(), "blas": _openblas(), "reference_blas": _reference_blas(), "limits": limits}


def _aten() -> str:
    """ATen's word, such as AVX2 or NO AVX; "" where torch has none."""
    import torch

    backend = getattr(torch.backends, "cpu", None)  # torch 2.1
    if backend is not None and hasattr(backend, "get_cpu_capability"):
        return str(backend.get_cpu_capability())
    for line in torch.__config__.show().splitlines():
        before, found, word = line.partition("CPU capability usage: ")
        if found:
            return str(word).strip()
    return ""


def _openblas() -> str:
    """The core type whose kernels OpenBLAS chose, "" where torch uses another library."""
    for path in _loaded("blas"):
        try:
            name = ctypes.CDLL(path).openblas_get_corename
        except (OSError, AttributeError):
            continue
        name.restype = ctypes.c_char_p
        return (name() or b"").decode(errors="replace")
    return ""


# A function that each optimised BLAS has beside the standard's: OpenBLAS, BLIS, ATLAS, MKL, NVPL, FlexiBLAS.
_OPTIMISED = (
    "openblas_get_corename", "bli_info_get_version_str", "ATL_buildinfo", "MKL_Get_Version", "nvpl_blas_get_version",
    "flexiblas_current_backend",
)


def _reference_blas() -> str:
    """The file of netlib's reference BLAS where torch multiplies with it, as Debian's does with nothing else
    installed; "" where it has a better one. A float32 product of 1,024 on one core ran at 3 GFLOP/s with it, at
    158 with OpenBLAS."""
    import torch

    if torch.backends.mkl.is_available():
        return ""
    for path in _loaded("libblas"):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        if not any(hasattr(library, name) for name in _OPTIMISED):
            return path
    return ""


def _loaded(word: str) -> list[str]:
    """Files of shared libraries in this process with a word in their name."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
            paths = {line.split(None, 5)[5].strip() for line in lines if len(line.split(None, 5)) == 6}
    except OSError:
        return []
    return sorted(p for p in paths if word in os.path.basename(p).lower() and ".so" in p)
