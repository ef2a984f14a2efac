"""What the GPU did while samples were taken: clocks, power, temperature and throttling, read through NVML.

The driver's library is called directly: nvidia-ml-py is a wrapper of the same calls that may be absent.
Everything is read only. Whatever cannot be read (containers and sandboxes hide some of it) is left out and
never raises: a measurement must not fail because its guard is blind.
"""

from __future__ import annotations

import ctypes
import os
from functools import partial
from typing import Any, Callable, Optional

LIBRARY = "libnvidia-ml.so.1"

# Constants of nvml.h.
_SUCCESS, _INSUFFICIENT_SIZE = 0, 7
_CLOCK_SM, _SENSOR_GPU = 1, 0
_VIOLATIONS = {"power": 0, "thermal": 1}
# Processes on a GPU beyond which only their number, not each of them, would matter.
_MAX_PROCESSES = 1024


class _Violation(ctypes.Structure):
    """nvmlViolationTime_t: since when (us) and for how long (ns) a limit has held the clock back."""

    _fields_ = [("reference_us", ctypes.c_ulonglong), ("violation_ns", ctypes.c_ulonglong)]


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t of the second and third version of the call."""

    _fields_ = [("pid", ctypes.c_uint), ("used_bytes", ctypes.c_ulonglong), ("gpu_instance", ctypes.c_uint),
                ("compute_instance", ctypes.c_uint)]


class _Refused(Exception):
    """A field that cannot be read, and why."""


class Guard:
    """Watches one GPU. why: "" if it can, else what is in the way.

    uuid: of the GPU, with or without "GPU-"; None or "" where there is no NVIDIA GPU.
    """

    def __init__(self, uuid: Optional[str], library: str = LIBRARY) -> None:
        self.why = ""
        self._lib: Any = None
        self._handle = ctypes.c_void_p()
        self._begun: Optional[dict[str, Any]] = None
        try:
            self._open(uuid, library)
        except _Refused as refused:
            self.why = str(refused)

    def _open(self, uuid: Optional[str], library: str) -> None:
        if not uuid:
            raise _Refused("no NVIDIA GPU")
        if uuid.startswith("MIG-"):
            raise _Refused("a MIG instance: clocks, power and temperature are those of the whole GPU")
        try:
            self._lib = ctypes.CDLL(library)
        except OSError as error:
            raise _Refused(f"no {library}: {error}") from error
        self._call(("nvmlInit_v2", "nvmlInit"))
        full = uuid if uuid.startswith("GPU-") else "GPU-" + uuid
        self._call(("nvmlDeviceGetHandleByUUID",), full.encode(), ctypes.byref(self._handle))

    def _call(self, names: tuple[str, ...], *args: Any, accept: tuple[int, ...] = (_SUCCESS,)) -> int:
        """Calls the first of some functions that this library has; returns its code if that is accepted."""
        for name in names:
            # A missing symbol is an AttributeError here, not the death of the process.
            function = getattr(self._lib, name, None)
            if function is None:
                continue
            code = function(*args)
            if code not in accept:
                raise _Refused(f"{name}: {self._words(code)}")
            return code
        raise _Refused(f"this driver has no {names[0]}")

    def _words(self, code: int) -> str:
        function = getattr(self._lib, "nvmlErrorString", None)
        if function is None:
            return f"error {code}"
        function.restype = ctypes.c_char_p
        return (function(code) or b"").decode(errors="replace") or f"error {code}"

    def _number(self, kind: Any, names: tuple[str, ...], *args: Any) -> int:
        value = kind()
        self._call(names, self._handle, *args, ctypes.byref(value))
        return value.value

    def _sm_mhz(self) -> int:
        return self._number(ctypes.c_uint, ("nvmlDeviceGetClockInfo",), _CLOCK_SM)

    def _power_w(self) -> float:
        return self._number(ctypes.c_uint, ("nvmlDeviceGetPowerUsage",)) / 1000  # from mW

    def _temp_c(self) -> int:
        return self._number(ctypes.c_uint, ("nvmlDeviceGetTemperature",), _SENSOR_GPU)

    def _reasons(self) -> int:
        # Renamed in driver 535; the old name stays for now.
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        return self._number(ctypes.c_ulonglong, names)

    def _violation_ns(self, policy: int) -> int:
        status = _Violation()
        self._call(("nvmlDeviceGetViolationStatus",), self._handle, policy, ctypes.byref(status))
        return status.violation_ns

    def _violations_ns(self) -> dict[str, int]:
        found = {name: self._try(partial(self._violation_ns, p))[0] for name, p in _VIOLATIONS.items()}
        return {name: ns for name, ns in found.items() if ns is not None}

    @staticmethod
    def _try(read: Callable[[], Any]) -> tuple[Any, str]:
        """A value, or None and why it cannot be read."""
        try:
            return read(), ""
        except _Refused as refused:
            return None, str(refused)

    def begin(self) -> None:
        """Notes clock and violation counters before a batch of samples."""
        if not self.why:
            self._begun = {"sm_mhz": self._try(self._sm_mhz)[0], "viol_ns": self._violations_ns()}

    def end(self) -> dict[str, Any]:
        """What happened since begin: the "gpu" object of a result, {"unknown": why} if nothing can be read.

        sm_mhz: [before, after]; power_w, temp_c and the bits `reasons` are those of this moment; viol_ns:
        time since begin for which power and heat held the clock back. What cannot be read is left out.
        """
        if self.why:
            return {"unknown": self.why}
        if self._begun is None:
            return {"unknown": "nothing was begun"}
        begun, self._begun = self._begun, None
        reads = {
            "sm_mhz": self._sm_mhz,
            "power_w": self._power_w,
            "temp_c": self._temp_c,
            "reasons": self._reasons,
        }
        values = {name: self._try(read) for name, read in reads.items()}
        gpu = {name: value for name, (value, _) in values.items() if value is not None}
        if begun["sm_mhz"] is None:
            gpu.pop("sm_mhz", None)
        elif "sm_mhz" in gpu:
            gpu["sm_mhz"] = [begun["sm_mhz"], gpu["sm_mhz"]]
        gpu.update(self._violated(begun["viol_ns"]))
        whys = [why for _, why in values.values() if why]
        return gpu or {"unknown": whys[0] if whys else "the clock could not be read before the samples"}

    def _violated(self, before: dict[str, int]) -> dict[str, dict[str, int]]:
        after = self._violations_ns()
        # A counter that went backwards was reset, by a driver that was reloaded; it tells nothing then.
        deltas = {name: after[name] - ns for name, ns in before.items() if after.get(name, -1) >= ns}
        return {"viol_ns": deltas} if deltas else {}

    def busy(self) -> list[int]:
        """Process ids of the others that compute on this GPU; empty where they cannot be read."""
        if self.why:
            return []
        pids = self._try(self._pids)[0] or []
        # In a container driver 560 gives the number of a thread for its process (Project-HAMi/HAMi-core#112).
        own = [pid for pid in pids if os.path.exists(f"/proc/self/task/{pid}")]
        return others(pids, own[0] if own else os.getpid(), lambda pid: os.path.exists(f"/proc/{pid}"))

    def _pids(self) -> list[int]:
        # The first version has a smaller struct; no driver of a GPU of interest lacks the second. The third
        # has that of the second, but in drivers 535.43 to 535.86 a larger one (XuehaiPan/nvitop#79).
        names = ("nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3")
        room = 16
        while room <= _MAX_PROCESSES:
            count, processes = ctypes.c_uint(room), (_Process * room)()
            code = self._call(names, self._handle, ctypes.byref(count), processes,
                              accept=(_SUCCESS, _INSUFFICIENT_SIZE))
            if code == _SUCCESS:
                return [processes[i].pid for i in range(min(count.value, room))]
            room = max(2 * room, count.value + 4)  # more may start meanwhile
        raise _Refused(f"more than {_MAX_PROCESSES} processes")


def others(pids: list[int], own: int, visible: Callable[[int], bool]) -> list[int]:
    """The pids that are not this process.

    NVML tells the host's numbers. In a container our own is another one, which this process cannot know; one
    number that is no process here is then taken for it, or every container would look busy with itself.
    """
    rest = list(pids)
    unseen = [pid for pid in rest if not visible(pid)]
    if own in rest:
        rest.remove(own)
    elif unseen:
        rest.remove(unseen[0])
    return rest
