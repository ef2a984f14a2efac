"""Confines what this process computes on its GPU to some of the multiprocessors, by a green context.

A green context is a set of multiprocessors that the driver hands out (CUDA driver API, "Green Contexts";
driver 555 or later). Kernels queued on a stream of it run on these alone, whichever thread queues them: torch
runs a backward on the stream of its forward. Making such a stream torch's current one confines everything
that torch computes; no kernel knows of it, and no setting of the card changes. Memory bandwidth, the
second-level cache and the copy engines stay those of the whole card.

This file is the same in the worker that measures and in the package that replays.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Optional, Sequence

import torch

_SM = 1  # CU_DEV_RESOURCE_TYPE_SM
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING and CU_GREEN_CTX_DEFAULT_STREAM
_MOST_IDS = 4096  # numbers of multiprocessors, which may have gaps: GPUs of today have up to 160
_CYCLES = 100_000  # that a block of the check stays where it is: long against the start of the next
_ROUNDS = 3

# Notes where it runs and stays there for a while. PTX, which the driver compiles, as nvcc's absence must not
# matter.
_WHERE = b"""
.version 6.0
.target sm_70
.address_size 64
.visible .entry where(.param .u64 seen, .param .u64 cycles)
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [seen];
    ld.param.u64 %rd2, [cycles];
    mov.u32 %r1, %smid;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd1, %rd3;
    mov.u32 %r2, 1;
    st.volatile.global.u32 [%rd4], %r2;
    mov.u64 %rd5, %clock64;
stay:
    mov.u64 %rd6, %clock64;
    sub.s64 %rd7, %rd6, %rd5;
    setp.lt.u64 %p1, %rd7, %rd2;
    @%p1 bra stay;
    ret;
}
\0"""


_OF_THIS_PROCESS: list["Confinement"] = []  # at most one


class ConfineError(RuntimeError):
    """The process cannot be confined, and why; nothing may be measured as if it were."""


class RefusedError(ConfineError):
    """A function of the driver said no."""


class Resource(ctypes.Structure):
    """CUdevResource of cuda.h: its kind, private bytes, and a union that for multiprocessors begins with
    their number. 144 bytes up to CUDA 13; the rest is room for later ones, as no arrays of it are used."""

    _fields_ = [("kind", ctypes.c_int), ("private", ctypes.c_ubyte * 92), ("sms", ctypes.c_uint),
                ("more", ctypes.c_ubyte * 28), ("rest", ctypes.c_uint64 * 16)]


@dataclass(frozen=True)
class Confinement:
    """sms multiprocessors of those of the card, by their numbers; two streams that queue there."""

    sms: int
    card: int
    numbers: tuple[int, ...]
    stream: Any
    side: Any


def confine(sms: int, index: int = 0, lib: Any = None, cuda: Any = None) -> Confinement:
    """Confines torch on a GPU of this process to so many multiprocessors, and proves it by a kernel that says
    where it ran.

    The calling thread's current stream becomes one that queues there; `side` is a second such stream, for
    what runs beside it. lib and cuda: libcuda and torch.cuda, or what stands in for them.
    """
    cuda = torch.cuda if cuda is None else cuda
    cuda.set_device(index)
    cuda.synchronize(index)  # makes the context that torch computes in; a green one shares its memory
    driver = _Driver(_library() if lib is None else lib)
    device, card = _card(driver, index)
    green = _green(driver, device, _part(driver, card, sms))
    main, side = _stream(driver, green), _stream(driver, green)
    numbers = _where(driver, main, card.sms)
    if len(numbers) != sms:
        raise ConfineError(f"a kernel ran on {len(numbers)} multiprocessors and not on the {sms} that it was "
                           "confined to: green contexts have no effect here, measure the whole GPU")
    streams = [cuda.ExternalStream(s.value, device=index) for s in (main, side)]
    cuda.set_stream(streams[0])
    if cuda.current_stream(index).cuda_stream != main.value:
        raise ConfineError("torch did not take the stream of the green context: kernels would run anywhere")
    _timed(cuda, index)
    made = Confinement(sms, card.sms, numbers, *streams)
    _OF_THIS_PROCESS[:] = [made]
    return made


def _timed(cuda: Any, index: int) -> None:
    """Refuses a stream on which no times can be taken: torch makes its events in the device's own context, and
    the driver wants an event and its stream to be of one context, which a green one counts as or not."""
    try:
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        end.record()
        cuda.synchronize(index)
        begin.elapsed_time(end)
    except RuntimeError as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfineError(f"no events on a stream of a green context ({said}): measure the whole GPU, or take "
                           "a newer driver") from error


def side_stream(device: torch.device) -> Any:
    """A stream beside the current one, on the multiprocessors that this process is confined to, if it is."""
    return _OF_THIS_PROCESS[0].side if _OF_THIS_PROCESS else torch.cuda.Stream(device)


def _part(driver: "_Driver", card: Resource, sms: int) -> Resource:
    """So many multiprocessors of a card; all of them need no splitting."""
    if not 0 < sms <= card.sms:
        raise ConfineError(f"{sms} multiprocessors: this GPU has {card.sms}, want 1 to {card.sms}")
    if sms == card.sms:
        return card
    part = _split(driver, card, sms)
    if part is None or part.sms != sms:
        fit = _sizes(driver, card)
        near = {max((n for n in fit if n < sms), default=fit[0]), min(n for n in fit if n > sms)}
        raise ConfineError(f"{sms} multiprocessors: the driver sets no such number of {card.sms} apart: "
                           "name " + " or ".join(map(str, sorted(near))))
    return part


def _split(driver: "_Driver", card: Resource, sms: int) -> Optional[Resource]:
    """What the driver sets apart for so many multiprocessors, perhaps more or fewer; None for nothing."""
    part, rest, groups = Resource(), Resource(), ctypes.c_uint(1)
    try:
        driver("cuDevSmResourceSplitByCount", ctypes.byref(part), ctypes.byref(groups), ctypes.byref(card),
               ctypes.byref(rest), 0, sms)
    except RefusedError:
        return None
    return part if groups.value == 1 else None


def _sizes(driver: "_Driver", card: Resource) -> list[int]:
    """Every number of multiprocessors that can be set apart exactly; all of them need no splitting."""
    parts = {n: _split(driver, card, n) for n in range(1, card.sms)}
    return [n for n, part in parts.items() if part is not None and part.sms == n] + [card.sms]


def sizes(index: int = 0, lib: Any = None, cuda: Any = None) -> list[int]:
    """The numbers of multiprocessors of a GPU that a process can be confined to, all of them last."""
    cuda = torch.cuda if cuda is None else cuda
    cuda.synchronize(index)
    driver = _Driver(_library() if lib is None else lib)
    return _sizes(driver, _card(driver, index)[1])


def _card(driver: "_Driver", index: int) -> tuple[ctypes.c_int, Resource]:
    """A GPU of this process and all its multiprocessors."""
    device, card = ctypes.c_int(), Resource()
    driver("cuDeviceGet", ctypes.byref(device), index)
    driver("cuDeviceGetDevResource", device, ctypes.byref(card), _SM)
    return device, card


def _green(driver: "_Driver", device: ctypes.c_int, part: Resource) -> ctypes.c_void_p:
    """The green context of these multiprocessors. It lives as long as the process."""
    described, green, has = ctypes.c_void_p(), ctypes.c_void_p(), Resource()
    driver("cuDevResourceGenerateDesc", ctypes.byref(described), ctypes.byref(part), 1)
    driver("cuGreenCtxCreate", ctypes.byref(green), described, device, _NON_BLOCKING)
    driver("cuGreenCtxGetDevResource", green, ctypes.byref(has), _SM)
    if has.sms != part.sms:
        raise ConfineError(f"the driver made a green context of {has.sms} multiprocessors, not {part.sms}")
    return green


def _stream(driver: "_Driver", green: ctypes.c_void_p) -> ctypes.c_void_p:
    stream = ctypes.c_void_p()
    driver("cuGreenCtxStreamCreate", ctypes.byref(stream), green, _NON_BLOCKING, 0)
    return stream


def _where(driver: "_Driver", stream: ctypes.c_void_p, card: int) -> tuple[int, ...]:
    """The numbers of the multiprocessors that kernels of a stream run on: more blocks than the card can hold
    at once, each of which stays for a while."""
    library, kernel, seen = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    size, found = ctypes.c_size_t(4 * _MOST_IDS), (ctypes.c_uint32 * _MOST_IDS)()
    driver("cuLibraryLoadData", ctypes.byref(library), _WHERE, None, None, 0, None, None, 0)
    driver("cuLibraryGetKernel", ctypes.byref(kernel), library, b"where")
    driver("cuMemAlloc_v2", ctypes.byref(seen), size)
    try:
        driver("cuMemsetD8_v2", seen, 0, size)
        cycles = ctypes.c_uint64(_CYCLES)
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(seen), ctypes.addressof(cycles))
        for _ in range(_ROUNDS):
            driver("cuLaunchKernel", kernel, 4 * card, 1, 1, 1024, 1, 1, 0, stream, arguments, None)
        driver("cuStreamSynchronize", stream)
        driver("cuMemcpyDtoH_v2", found, seen, size)
    finally:
        driver("cuMemFree_v2", seen)
    return tuple(i for i, n in enumerate(found) if n)


class _Driver:
    """Calls libcuda's functions; each returns a status."""

    def __init__(self, lib: Any) -> None:
        self._lib = lib

    def __call__(self, name: str, *arguments: Any) -> None:
        function: Optional[Any] = getattr(self._lib, name, None)
        if function is None:
            raise ConfineError(f"this driver has no {name}: green contexts need driver 555 or later")
        status = function(*arguments)
        if status:
            raise RefusedError(f"{name}: {self._word(status)}")

    def _word(self, status: int) -> str:
        """CUDA_ERROR_NOT_SUPPORTED for 801."""
        text = ctypes.c_char_p()
        name = getattr(self._lib, "cuGetErrorName", None)
        if name is None or name(status, ctypes.byref(text)) or not text.value:
            return f"error {status}"
        return text.value.decode(errors="replace")


def _library(names: Sequence[str] = ("libcuda.so.1", "libcuda.so")) -> Any:
    """NVIDIA's driver library."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise ConfineError(f"no {names[0]}: only NVIDIA's driver has green contexts")
