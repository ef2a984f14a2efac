"""Tests of confining a process to multiprocessors, against a stand-in of NVIDIA's driver.

Run by path: python3 -I -B test_confine.py
"""

from __future__ import annotations

import ctypes
import os
import sys
import types
import unittest
from typing import Any
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402

import confine  # noqa: E402
from confine import ConfineError, Resource  # noqa: E402
from device import Device  # noqa: E402
from errors import Failure  # noqa: E402

NOT_SUPPORTED = 801


class FakeDriver:
    """A card of 132 multiprocessors that hands them out in eights, as the driver's documentation says.

    leaky: kernels run anywhere all the same. missing: functions that an older driver lacks. failing: a function
    that refuses.
    """

    def __init__(self, leaky: bool = False, missing: str = "", failing: str = "", takes: int = 0):
        self._leaky, self._missing, self._failing = leaky, missing, failing
        self._takes = takes  # that a green context has, whatever was asked for
        self._parts: dict[int, int] = {}  # multiprocessors by descriptor, green context and stream
        self._memory: dict[int, Any] = {}
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu") or name == self._missing:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == self._failing:
                return NOT_SUPPORTED
            getattr(self, "_" + name)(*(getattr(a, "_obj", a) for a in arguments))
            return 0

        return call

    def _handle(self, out: Any, sms: int) -> None:
        out.value = 0x1000 + 16 * len(self._parts)
        self._parts[out.value] = sms

    def _cuGetErrorName(self, status: int, text: Any) -> None:
        text.value = b"CUDA_ERROR_NOT_SUPPORTED" if status == NOT_SUPPORTED else b""

    def _cuDeviceGet(self, device: Any, index: int) -> None:
        device.value = index

    def _cuDeviceGetDevResource(self, device: Any, card: Resource, kind: int) -> None:
        card.kind, card.sms = kind, 132

    def _cuDevSmResourceSplitByCount(self, part, groups, card, rest, flags, least) -> None:
        size = -(-least // 8) * 8
        groups.value = min(groups.value, card.sms // size)
        if groups.value:
            part.kind, part.sms = card.kind, size
        rest.kind, rest.sms = card.kind, card.sms - groups.value * size

    def _cuDevResourceGenerateDesc(self, out: Any, part: Resource, n: int) -> None:
        self._handle(out, part.sms)

    def _cuGreenCtxCreate(self, out: Any, described: Any, device: Any, flags: int) -> None:
        self._handle(out, self._takes or self._parts[described.value])

    def _cuGreenCtxGetDevResource(self, green: Any, has: Resource, kind: int) -> None:
        has.kind, has.sms = kind, self._parts[green.value]

    def _cuGreenCtxStreamCreate(self, out: Any, green: Any, flags: int, priority: int) -> None:
        self._handle(out, self._parts[green.value])

    def _cuLibraryLoadData(self, out: Any, code: bytes, *_: Any) -> None:
        if not code.endswith(b"\0") or b".entry where(" not in code:
            raise AssertionError("no program text that ends in a zero")
        out.value = 1

    def _cuLibraryGetKernel(self, out: Any, library: Any, name: bytes) -> None:
        out.value = 2

    def _cuMemAlloc_v2(self, out: Any, size: Any) -> None:
        out.value = 0x7000
        self._memory[out.value] = (ctypes.c_uint32 * (size.value // 4))(*[7] * (size.value // 4))

    def _cuMemsetD8_v2(self, at: Any, byte: int, size: Any) -> None:
        ctypes.memset(self._memory[at.value], byte, size.value)

    def _cuLaunchKernel(self, kernel, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra) -> None:
        at, cycles = (ctypes.c_uint64.from_address(arguments[i]).value for i in range(2))
        if gx < 2 * 132 or not cycles:
            raise AssertionError("too few blocks, or too short ones, to fill the card")
        for i in range(132 if self._leaky else self._parts[stream.value]):
            self._memory[at][2 * i] = 1  # numbers have gaps

    def _cuStreamSynchronize(self, stream: Any) -> None:
        pass

    def _cuMemcpyDtoH_v2(self, to: Any, at: Any, size: Any) -> None:
        ctypes.memmove(to, self._memory[at.value], size.value)

    def _cuMemFree_v2(self, at: Any) -> None:
        del self._memory[at.value]


class FakeCuda:
    """As much of torch.cuda as a process with one GPU uses before its first tensor.

    deaf: it keeps its stream. strict: its events are of another context than a green stream.
    """

    def __init__(self, deaf: bool = False, strict: bool = False):
        self._deaf, self._strict = deaf, strict
        self._stream = types.SimpleNamespace(cuda_stream=0)

    def Event(self, enable_timing: bool) -> Any:
        def record() -> None:
            if self._strict and self._stream.cuda_stream:
                raise RuntimeError("CUDA error: invalid resource handle\nCompile with TORCH_USE_CUDA_DSA")

        return types.SimpleNamespace(record=record, elapsed_time=lambda end: 0.001)

    def set_device(self, index: Any) -> None:
        pass

    def synchronize(self, index: Any) -> None:
        pass

    def ExternalStream(self, pointer: int, device: Any = None) -> Any:
        return types.SimpleNamespace(cuda_stream=pointer)

    def set_stream(self, stream: Any) -> None:
        if not self._deaf:
            self._stream = stream

    def current_stream(self, index: Any) -> Any:
        return self._stream


class Confining(unittest.TestCase):
    def setUp(self):
        self.addCleanup(confine._OF_THIS_PROCESS.clear)

    def refused(self, want: str, sms: int = 80, cuda: Any = None, **driver: Any) -> None:
        lib = FakeDriver(**driver)
        with self.assertRaises(ConfineError) as raised:
            confine.confine(sms, lib=lib, cuda=cuda or FakeCuda())
        self.assertIn(want, str(raised.exception))
        self.assertFalse(lib._memory, "device memory was not given back")

    def test_torch_computes_on_exactly_so_many(self):
        for sms in (8, 40, 80, 128, 132):
            lib, cuda = FakeDriver(), FakeCuda()
            got = confine.confine(sms, lib=lib, cuda=cuda)
            self.assertEqual((got.sms, got.card, got.numbers), (sms, 132, tuple(range(0, 2 * sms, 2))))
            self.assertEqual(cuda.current_stream(0).cuda_stream, got.stream.cuda_stream)
            self.assertNotEqual(got.side.cuda_stream, got.stream.cuda_stream)
            self.assertEqual({lib._parts[s.cuda_stream] for s in (got.stream, got.side)}, {sms})
            self.assertFalse(lib._memory, "device memory was not given back")
            self.assertEqual("cuDevSmResourceSplitByCount" in lib.calls, sms < 132)

    def test_a_confinement_without_effect_is_refused(self):
        self.refused("a kernel ran on 132 multiprocessors and not on the 80", leaky=True)
        self.refused("torch did not take the stream", cuda=FakeCuda(deaf=True))
        self.refused("a green context of 72 multiprocessors, not 80", takes=72)

    def test_a_stream_without_times_is_refused(self):
        want = "no events on a stream of a green context (CUDA error: invalid resource handle)"
        self.refused(want, cuda=FakeCuda(strict=True))

    def test_numbers_that_the_driver_does_not_give_are_refused_with_the_next(self):
        self.refused("sets no such number of 132 apart: name 80 or 88", sms=81)
        self.refused("want 1 to 132", sms=133)
        self.refused("name 128 or 132", sms=131)
        self.refused("name 8", sms=1)
        self.refused("name 132", failing="cuDevSmResourceSplitByCount")

    def test_the_sizes_that_the_driver_gives(self):
        self.assertEqual(confine.sizes(lib=FakeDriver(), cuda=FakeCuda()), [*range(8, 129, 8), 132])
        refusing = FakeDriver(failing="cuDevSmResourceSplitByCount")
        self.assertEqual(confine.sizes(lib=refusing, cuda=FakeCuda()), [132])

    def test_a_driver_without_green_contexts_is_named(self):
        late = "cuGreenCtxStreamCreate"
        self.refused(f"has no {late}: green contexts need driver 555", missing=late)
        self.refused("cuGreenCtxCreate: CUDA_ERROR_NOT_SUPPORTED", failing="cuGreenCtxCreate")
        self.refused("cuLibraryLoadData: CUDA_ERROR_NOT_SUPPORTED", failing="cuLibraryLoadData")
        self.refused("cuMemcpyDtoH_v2", failing="cuMemcpyDtoH_v2")
        with mock.patch.object(confine.ctypes, "CDLL", side_effect=OSError):
            with self.assertRaisesRegex(ConfineError, "only NVIDIA's driver has green contexts"):
                confine.confine(80, cuda=FakeCuda())

    def test_the_resource_is_laid_out_as_in_cuda_h(self):
        self.assertEqual((Resource.kind.offset, Resource.sms.offset), (0, 96))
        self.assertGreaterEqual(ctypes.sizeof(Resource), 144)


class Devices(unittest.TestCase):
    def device(self, sms: int, lib: Any) -> Device:
        properties = types.SimpleNamespace(
            name="GPU", multi_processor_count=132, total_memory=1000, major=9, minor=0
        )
        fakes = {
            "is_available": lambda: True, "get_device_properties": lambda _: properties,
            "mem_get_info": lambda _: (900, 1000),
            **{name: getattr(self.cuda, name) for name in
               ("set_device", "synchronize", "ExternalStream", "set_stream", "current_stream", "Event")},
        }
        with mock.patch.multiple(torch.cuda, create=True, **fakes), \
                mock.patch.object(confine, "_library", lambda: lib), \
                mock.patch.object(Device, "_multiplies", lambda *_: True):
            return Device("cuda:0", 0, sms, 2)

    def setUp(self):
        self.cuda = FakeCuda()
        self.addCleanup(confine._OF_THIS_PROCESS.clear)

    def test_a_part_of_a_gpu_has_its_multiprocessors_and_half_the_memory(self):
        device = self.device(80, FakeDriver())
        said = device.describe()
        self.assertEqual((said["sms"], said["card_sms"], said["mem_bytes"]), (80, 132, 500))
        self.assertEqual(device.free_at_start_bytes, 450)
        beside = self.cuda.current_stream(0).cuda_stream, confine.side_stream(device.torch).cuda_stream
        self.assertEqual(len(set(beside)), 2)
        self.assertEqual(self.device(0, FakeDriver()).describe()["sms"], 132)

    def test_it_is_never_measured_when_it_is_not_confined(self):
        with self.assertRaises(Failure) as raised:
            self.device(80, FakeDriver(leaky=True))
        self.assertEqual((raised.exception.cls, raised.exception.fatal), ("unsupported", True))


if __name__ == "__main__":
    unittest.main()
