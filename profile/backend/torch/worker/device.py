"""The one device of a worker: what it is, its precisions, its clocks and its memory."""

from __future__ import annotations

import glob
import os
import platform
import threading
import time
from typing import Sequence

import torch

import confine
import vectors
from errors import Failure, first_line

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}

# Cache to flush and to outgrow where torch does not tell its size: at least that of any accelerator known so
# far (NVIDIA B200: 126 MB), so that a cold sample is cold.
_UNKNOWN_L2 = 128 << 20
# The same of a processor's last level.
_UNKNOWN_LAST = 64 << 20
# Environment variables, read when CUDA or NCCL starts or at the first product, under which times are not
# those of training: float32 products in TF32, a host that waits for each kernel or collective, an allocation
# in every call.
_DISTORTING = (
    "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUDA_LAUNCH_BLOCKING",
    "TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT", "PYTORCH_NO_CUDA_MEMORY_CACHING",
)
_IDLE_S = 5.0
_WARM_S = 1.0


class Device:
    """A CPU with a number of threads, or the one visible accelerator, or some multiprocessors of it.

    Attributes: kind "cpu" or "cuda"; torch the torch.device; l2_bytes of second-level cache (on a CPU, of all
    threads together), last_bytes of the last level; cores that a CPU's rank may use; sms streaming
    multiprocessors, or threads; card_sms, those of the whole accelerator; sharing, ranks that share it;
    capability (major, minor), (0, 0) on a CPU.

    sms: to be confined to so many, 0 for all; sharing: ranks that share the accelerator, each of which has an
    equal part of its memory.
    """

    def __init__(self, name: str, threads: int = 0, sms: int = 0, sharing: int = 1):
        self.torch = torch.device(name)
        self.kind = self.torch.type
        self.capability, self.card_sms, self.sharing = (0, 0), 0, 1
        if self.kind == "cpu":
            self._init_cpu(threads)
        elif self.kind == "cuda":
            self._init_cuda()
            self._share(sms, sharing)
        else:
            raise Failure("unsupported", f"device {name!r}: want cpu or cuda:N")
        self._dtypes = [n for n in DTYPES if self._multiplies(DTYPES[n])]
        if not self._dtypes:
            built = " ".join(torch.cuda.get_arch_list()) if self.kind == "cuda" else platform.machine()
            raise Failure(
                "unsupported", f"device {self.torch}: {self.name}, compute capability {self.capability}: "
                f"torch {torch.__version__} multiplies no matrices on it; it is built for {built}"
            )
        self._last_use = -_IDLE_S

    def _init_cpu(self, threads: int) -> None:
        self.cores = sorted(os.sched_getaffinity(0))
        self.sms = threads or len(self.cores)
        torch.set_num_threads(self.sms)
        spread(self.sms)
        self.name = _cpuinfo("model name") or platform.processor() or platform.machine()
        self.uuid, self.mig = "", None
        self.l2_bytes = _l2_bytes() * self.sms
        self.last_bytes = last_level(self.cores, self.sms) or _UNKNOWN_LAST
        self.mem_bytes = _host_memory()

    def _init_cuda(self) -> None:
        undistort()
        if not torch.cuda.is_available():
            raise Failure(
                "unsupported",
                f"device {self.torch}: this torch {torch.__version__} sees no accelerator: {unseen()}"
            )
        torch.cuda.set_device(self.torch)
        p = torch.cuda.get_device_properties(self.torch)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        self.name, self.sms, self.mem_bytes = p.name, p.multi_processor_count, p.total_memory
        self.capability = (p.major, p.minor)
        self.l2_bytes = self.last_bytes = int(getattr(p, "L2_cache_size", 0)) or _UNKNOWN_L2
        self.mig = p.name.partition("MIG ")[2] or (visible if visible.startswith("MIG-") else None)
        self.uuid = _uuid(visible.split(",")[0].strip(), str(getattr(p, "uuid", "")))  # torch 2.4 tells it
        # What the device offers before the first tensor; the context itself is already in it.
        self.free_at_start_bytes = torch.cuda.mem_get_info(self.torch)[0]

    def _share(self, sms: int, sharing: int) -> None:
        """Confines this process to its part of an accelerator."""
        self.card_sms = self.sms
        if sms:
            try:
                self.sms = confine.confine(sms, self.torch.index or 0).sms
            except confine.ConfineError as exc:
                raise Failure("unsupported", str(exc), fatal=True) from exc
        self.sharing = sharing
        self.mem_bytes //= sharing
        self.free_at_start_bytes //= sharing

    def _multiplies(self, dtype: torch.dtype) -> bool:
        """Whether this device has a matrix product of this precision; large enough for oneDNN, which torch
        does not ask about smaller ones."""
        try:
            a = torch.ones(32, 32, device=self.torch, dtype=dtype)
            torch.mm(a, a, out=torch.empty_like(a))
            return True
        except RuntimeError:
            return False

    def dtypes(self) -> list[str]:
        """The precisions this device can compute in, by the names shapes use."""
        return list(self._dtypes)

    def dtype(self, name: str) -> torch.dtype:
        """The torch precision behind a shape's word; Failure where this device has none."""
        if name not in self._dtypes:
            have = ", ".join(self._dtypes)
            raise Failure(
                "unsupported", f"dtype {name!r}: torch {torch.__version__} on {self.name} has {have}"
            )
        return DTYPES[name]

    def describe(self) -> dict:
        """The `device` object of hello."""
        own = {"vectors": vectors.describe(), "cores": self.cores} if self.kind == "cpu" else {}
        return {
            **own,
            "kind": self.kind, "name": self.name, "uuid": self.uuid, "sm": list(self.capability),
            "sms": self.sms, "card_sms": self.card_sms,
            "l2_bytes": self.l2_bytes, "mem_bytes": self.mem_bytes, "mig": self.mig,
        }

    def sync(self) -> None:
        """Returns once everything queued on the device is done."""
        if self.kind == "cuda":
            torch.cuda.synchronize(self.torch)

    def release(self) -> None:
        """Gives cached memory of dropped tensors back, the host's pinned memory too where torch can (2.5)."""
        if self.kind == "cuda":
            torch.cuda.empty_cache()
            getattr(torch._C, "_host_emptyCache", lambda: None)()

    def free_bytes(self) -> int:
        """Memory that new tensors may take now."""
        if self.kind == "cuda":
            free = torch.cuda.mem_get_info(self.torch)[0]
            return free + torch.cuda.memory_reserved(self.torch) - torch.cuda.memory_allocated(self.torch)
        return min(_meminfo("MemAvailable"), _cgroup_free())

    def wake(self) -> None:
        """Leaves the idle power state: a second of small GEMM on an accelerator that did nothing for 5 s.

        Of large ones a second takes all the power there is: an H100 and an H200 were at 690 W afterwards and
        at 1.35 to 1.6 instead of 1.98 GHz, and the first point took a fifth longer than ever again.
        """
        if self.kind == "cuda" and time.monotonic() - self._last_use > _IDLE_S:
            a = torch.randn(512, 512, device=self.torch, dtype=DTYPES["f16"])
            out, until = torch.empty_like(a), time.monotonic() + _WARM_S
            while time.monotonic() < until:
                for _ in range(8):
                    torch.mm(a, a, out=out)
                self.sync()
        self.used()

    def used(self) -> None:
        """Notes that the device has just worked."""
        self._last_use = time.monotonic()


def undistort() -> None:
    """Makes float32 mean float32, and calls what they are in training; before anything is computed.

    NVIDIA's containers switch to TF32 through the environment, and torch 1.13 does so whatever precision is
    asked for afterwards.
    """
    for name in _DISTORTING:
        os.environ.pop(name, None)
    torch.set_float32_matmul_precision("highest")


def _uuid(shown: str, told: str) -> str:
    """A GPU's as NVML has it, of what shows it and what torch tells of it; "" where neither has one.

    The environment may name a GPU by the first digits, which NVML does not take, and only the environment
    names a MIG instance.
    """
    whole = "GPU-" + told if told else ""
    return shown if shown.startswith(("GPU-", "MIG-")) and not whole.startswith(shown) else whole


def unseen() -> str:
    """Why torch sees no accelerator, in the words of its own start where that fails."""
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return "it is built for processors: install one built for CUDA, or name another interpreter"
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None and not shown.strip():
        return "CUDA_VISIBLE_DEVICES is set and empty, which hides all"
    try:
        torch.cuda.init()
    except Exception as exc:
        return first_line(exc)
    return f"it counts {torch.cuda.device_count()} of them, CUDA_VISIBLE_DEVICES is {shown!r}"


def spread(threads: int) -> None:
    """One core for the main thread and one for each thread of a pool, where this process has its cores to
    itself.

    Threads that sleep between calls are otherwise woken on the core of their waker, and two share one while
    another is idle: SwiGLU on 2 cores took 2.3 ms instead of 1.2. A worker with fewer threads than cores
    shares those cores with other workers and is left to the system.
    """
    cores = sorted(os.sched_getaffinity(0))
    if threads < 2 or threads != len(cores):
        return
    a = torch.ones(512, 512)
    torch.mm(a, a).exp_()  # starts the pools
    python = {t.native_id for t in threading.enumerate()}
    pool = sorted(int(t) for t in os.listdir("/proc/self/task") if int(t) not in python)
    for i, thread in enumerate(pool):
        os.sched_setaffinity(thread, {cores[1 + i % (threads - 1)]})
    os.sched_setaffinity(threading.main_thread().native_id, {cores[0]})


def cpu_vendor() -> str:
    """The CPU's vendor as it names itself, such as AuthenticAMD; the architecture where it does not."""
    return _cpuinfo("vendor_id") or platform.machine()


def _cpuinfo(key: str) -> str:
    for line in _lines("/proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def _l2_bytes() -> int:
    """Second-level cache of one core in bytes, 0 if the system does not tell."""
    return next((size for level, _, size in _caches(0) if level == 2), 0)


def last_level(cores: Sequence[int], threads: int) -> int:
    """Bytes of last-level cache that threads on these cores can fill, each cache once; 0 if the system does
    not tell."""
    found = {max(_caches(core), default=(0, "", 0)) for core in cores}
    return sum(sorted(size for _, _, size in found)[-threads:])


def _caches(core: int) -> list[tuple[int, str, int]]:
    """(level, cores that share it, bytes) of a core's caches."""
    units = {"K": 1 << 10, "M": 1 << 20}
    found = []
    for index in glob.glob(f"/sys/devices/system/cpu/cpu{core}/cache/index*"):
        level, shared, size = (_first_line(f"{index}/{n}") for n in ("level", "shared_cpu_list", "size"))
        if level.isdigit() and size.rstrip("KM").isdigit():
            found.append((int(level), shared, int(size.rstrip("KM")) * units.get(size[-1], 1)))
    return found


def _host_memory() -> int:
    """Bytes of memory this process may use at most: the machine's, or its control group's."""
    return min(_meminfo("MemTotal"), _cgroup("memory.max", "memory/memory.limit_in_bytes"))


def _cgroup_free() -> int:
    limit = _cgroup("memory.max", "memory/memory.limit_in_bytes")
    return limit - _cgroup("memory.current", "memory/memory.usage_in_bytes", absent=0)


def _cgroup(v2: str, v1: str, absent: int = 1 << 62) -> int:
    for path in (v2, v1):
        value = _first_line("/sys/fs/cgroup/" + path)
        if value.isdigit():
            return int(value)
    return absent


def _meminfo(key: str) -> int:
    for line in _lines("/proc/meminfo"):
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    return 1 << 62


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read().splitlines()
    except OSError:
        return []


def _first_line(path: str) -> str:
    return next(iter(_lines(path)), "").strip()
