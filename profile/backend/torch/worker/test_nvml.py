"""Tests of nvml.py against a small library that is compiled here; skipped where there is no C compiler."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import nvml  # noqa: E402

# A management library with one GPU. Each reading of a clock or counter moves it on, so that before and after
# differ. NO_x leaves a function out, REFUSE_x makes it answer 3 (not supported), OLD has only the oldest
# names.
FAKE = r"""
#include <string.h>
#include <unistd.h>
typedef unsigned long long u64;
struct violation { u64 reference, violation; };
#ifdef DRIVER_535 /* its third version has a field more than the second, XuehaiPan/nvitop#79 */
struct process3 { unsigned pid; u64 used; unsigned gi, ci; u64 protected; };
#else
#define process3 process
#endif
struct process { unsigned pid; u64 used; unsigned gi, ci; };
static int gpu, started;
static unsigned mhz = 1980;
static u64 violated[2] = {1000, 5};

#ifdef OLD
#define INIT nvmlInit
#define REASONS nvmlDeviceGetCurrentClocksThrottleReasons
#define PROCESSES nvmlDeviceGetComputeRunningProcesses_v2
#else
#define INIT nvmlInit_v2
#define REASONS nvmlDeviceGetCurrentClocksEventReasons
#define PROCESSES nvmlDeviceGetComputeRunningProcesses_v3
#endif
#ifndef INIT_CODE
#define INIT_CODE 0
#endif
#ifndef COUNT
#define COUNT 2
#endif

int INIT(void) { started = !INIT_CODE; return INIT_CODE; }
#ifndef NO_WORDS
const char *nvmlErrorString(int code) { return code == 3 ? "Not Supported" : "Driver Not Loaded"; }
#endif
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    if (!started) return 1;
    if (strcmp(uuid, "GPU-a-b")) return 6;
    *device = &gpu;
    return 0;
}
#ifndef NO_CLOCK
int nvmlDeviceGetClockInfo(void *device, int type, unsigned *clock) {
    if (device != &gpu || type != 1) return 2;
#ifdef REFUSE_ALL
    return 3;
#endif
    *clock = mhz;
    mhz -= 15;
    return 0;
}
#endif
int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) {
#if defined(REFUSE_POWER) || defined(REFUSE_ALL)
    return 3;
#endif
    *mw = 612500;
    return device != &gpu;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
#ifdef REFUSE_ALL
    return 3;
#endif
    *celsius = 58;
    return device != &gpu || sensor;
}
int REASONS(void *device, u64 *reasons) {
#ifdef REFUSE_ALL
    return 3;
#endif
    *reasons = 0x100000004ull;
    return device != &gpu;
}
int nvmlDeviceGetViolationStatus(void *device, int policy, struct violation *v) {
#ifdef REFUSE_ALL
    return 3;
#endif
#ifdef REFUSE_THERMAL
    if (policy == 1) return 3;
#endif
    v->violation = violated[policy];
#ifdef RESET
    violated[policy] = 0;
#else
    violated[policy] += 7000000000ull * (1 - policy);
#endif
    return device != &gpu;
}
int PROCESSES(void *device, unsigned *count, struct process3 *p) {
#ifdef REFUSE_ALL
    return 3;
#endif
    unsigned i, room = *count;
    *count = COUNT;
    if (room < COUNT) return 7;
    for (i = 0; i < COUNT; i++) p[i].pid = i ? 4000000 + i : getpid();
    return device != &gpu;
}
#ifdef DRIVER_535
int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count, struct process *p) {
    *count = 2;
    p[0].pid = getpid();
    p[1].pid = 4000001;
    return device != &gpu;
}
#endif
"""
COMPILER = shutil.which("gcc") or shutil.which("cc")


@unittest.skipIf(COMPILER is None, "no C compiler on this machine to make a fake driver library with")
class Guards(unittest.TestCase):
    """Guards of the fake GPU."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.folder.cleanup()

    def guard(self, *macros: str, uuid: str = "GPU-a-b") -> nvml.Guard:
        """A guard on a library compiled with macros, each in its own file, or dlopen would share them."""
        path = os.path.join(self.folder.name, f"{self.id()}-{len(os.listdir(self.folder.name))}.so")
        command = [COMPILER, "-shared", "-fPIC", "-x", "c", "-", "-o", path]
        command += [f"-D{macro}" for macro in macros]
        subprocess.run(command, input=FAKE.encode(), check=True, timeout=60)
        return nvml.Guard(uuid, path)

    def test_everything_is_read_before_and_after(self) -> None:
        guard = self.guard()
        self.assertEqual(guard.why, "")
        guard.begin()
        self.assertEqual(guard.end(), {
            "sm_mhz": [1980, 1965], "power_w": 612.5, "temp_c": 58, "reasons": 0x100000004,
            "viol_ns": {"power": 7_000_000_000, "thermal": 0},
        })
        guard.begin()
        self.assertEqual(guard.end()["sm_mhz"], [1950, 1935])

    def test_an_older_driver_has_older_names(self) -> None:
        guard = self.guard("OLD")
        guard.begin()
        self.assertEqual(guard.end()["reasons"], 0x100000004)
        self.assertEqual(guard.busy(), [4000001])

    def test_fields_that_cannot_be_read_are_left_out(self) -> None:
        guard = self.guard("NO_CLOCK", "REFUSE_POWER", "REFUSE_THERMAL")
        guard.begin()
        left = {"temp_c": 58, "reasons": 0x100000004, "viol_ns": {"power": 7_000_000_000}}
        self.assertEqual(guard.end(), left)

    def test_a_counter_that_was_reset_tells_nothing(self) -> None:
        guard = self.guard("RESET")
        guard.begin()
        self.assertNotIn("viol_ns", guard.end())

    def test_nothing_readable_is_unknown_with_the_reason(self) -> None:
        guard = self.guard("REFUSE_ALL")
        guard.begin()
        self.assertEqual(guard.end(), {"unknown": "nvmlDeviceGetClockInfo: Not Supported"})
        self.assertEqual(guard.busy(), [])

    def test_a_library_that_does_not_start_or_know_the_gpu(self) -> None:
        self.assertEqual(self.guard("INIT_CODE=9").why, "nvmlInit_v2: Driver Not Loaded")
        self.assertEqual(self.guard("INIT_CODE=9", "NO_WORDS").why, "nvmlInit_v2: error 9")
        self.assertEqual(self.guard(uuid="GPU-other").why, "nvmlDeviceGetHandleByUUID: Driver Not Loaded")
        self.assertEqual(self.guard(uuid="a-b").why, "")

    def test_busy_lists_the_others(self) -> None:
        self.assertEqual(self.guard().busy(), [4000001])
        self.assertEqual(self.guard("COUNT=1").busy(), [])
        # More than the first buffer holds.
        self.assertEqual(self.guard("COUNT=200").busy(), [4000000 + i for i in range(1, 200)])
        # More than are worth listing.
        self.assertEqual(self.guard("COUNT=5000").busy(), [])

    def test_pids_are_right_where_the_third_version_has_another_struct(self) -> None:
        self.assertEqual(self.guard("DRIVER_535").busy(), [4000001])

    def test_a_thread_of_this_process_is_no_other(self) -> None:
        told: list[int] = []
        guard = self.guard()
        with mock.patch.object(guard, "_pids", lambda: told):
            ended, there = threading.Event(), threading.Thread(target=lambda: ended.wait())
            there.start()
            self.addCleanup(there.join)
            self.addCleanup(ended.set)
            for told, want in (([there.native_id or 0, 4000001], [4000001]), ([os.getpid(), 1], [1])):
                self.assertEqual(guard.busy(), want)

    def test_end_without_begin(self) -> None:
        self.assertEqual(self.guard().end(), {"unknown": "nothing was begun"})


class Absent(unittest.TestCase):
    """Machines without the library, and pids seen from a container."""

    def test_no_gpu_no_library_and_mig(self) -> None:
        for uuid, library, want in ((None, nvml.LIBRARY, "no NVIDIA GPU"),
                                    ("", nvml.LIBRARY, "no NVIDIA GPU"),
                                    ("MIG-1", nvml.LIBRARY, "a MIG instance"),
                                    ("GPU-1", "/no.so", "no /no.so: ")):
            with self.subTest(uuid=uuid):
                guard = nvml.Guard(uuid, library)
                guard.begin()
                self.assertTrue(guard.why.startswith(want), guard.why)
                self.assertEqual(guard.end(), {"unknown": guard.why})
                self.assertEqual(guard.busy(), [])

    @unittest.skipUnless(ctypes.util.find_library("c"), "no C library to load")
    def test_a_library_that_is_another_one(self) -> None:
        other = nvml.Guard("GPU-1", ctypes.util.find_library("c"))
        self.assertEqual(other.why, "this driver has no nvmlInit_v2")

    def test_pids_of_another_namespace(self) -> None:
        here = {7, 9}.__contains__
        self.assertEqual(nvml.others([7, 9], 7, here), [9])
        self.assertEqual(nvml.others([5001], 7, here), [])
        self.assertEqual(nvml.others([5001, 5002], 7, here), [5002])
        self.assertEqual(nvml.others([9], 7, here), [9])
        self.assertEqual(nvml.others([], 7, here), [])


if __name__ == "__main__":
    unittest.main()
