"""Tests of comm.py and preflight.py: real gloo worlds of 2, 3 and 4 processes, a killed and a hung rank.

Run by path with an interpreter that has torch; skipped elsewhere. Run as `test_comm.py child` this file is
one rank: it reads [method, arguments] lines and answers {"ok": ..} or {"class": .., "msg": .., "fatal": ..}.
"""
from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from types import SimpleNamespace
from typing import Any, Callable, Optional
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

try:
    import torch

    import collectives
    import comm
    import preflight
    from errors import Failure
except ImportError as error:
    if getattr(error, "name", "") != "torch":
        raise
    torch = None

# No answer takes longer: four interpreters import torch on one busy core in about 10 s.
LIMIT_S = 90.0
CPU = SimpleNamespace(kind="cpu")


def child() -> None:
    """Serves one Comm until the end of stdin."""
    torch.set_num_threads(1)
    rank = comm.Comm(CPU)
    for line in sys.stdin:
        method, args = json.loads(line)
        try:
            if method == "run":
                counts: list[int] = []
                answer = {"ok": [rank.run(*args, counts.append), counts]}
            else:
                answer = {"ok": getattr(rank, method)(*args)}
        except Failure as failure:
            answer = {"class": failure.cls, "msg": failure.msg, "fatal": failure.fatal}
        print(json.dumps(answer), flush=True)


class Rank:
    """One child process."""

    def __init__(self) -> None:
        command = [sys.executable, "-B", os.path.abspath(__file__), "child"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1)

    def send(self, method: str, *args: Any) -> None:
        self.process.stdin.write(json.dumps([method, args]) + "\n")

    def receive(self) -> dict[str, Any]:
        if not select.select([self.process.stdout], [], [], LIMIT_S)[0]:
            raise AssertionError(f"no answer from pid {self.process.pid} within {LIMIT_S} s")
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"pid {self.process.pid} is gone")
        return json.loads(line)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def ask(
    ranks: list[Rank], method: str, *args: Any, each: Optional[Callable[[int], tuple]] = None
) -> list[dict[str, Any]]:
    """The same request to all ranks at once, or each rank's own arguments; their answers."""
    for i, rank in enumerate(ranks):
        rank.send(method, *(each(i) if each else args))
    return [rank.receive() for rank in ranks]


def joined(ranks: list[Rank], groups: dict[str, list[int]], timeout_s: float = 60) -> list[dict[str, Any]]:
    """A new world of the ranks; their answers to join."""
    ranks[0].send("serve", {"host": "127.0.0.1"})
    port = ranks[0].receive()["ok"]["port"]
    request = {"host": "127.0.0.1", "port": port, "size": len(ranks), "comm": "gloo", "timeout_s": timeout_s,
               "groups": groups}
    return ask(ranks, "join", each=lambda i: ({**request, "rank": i},))


def shape(op: str, n: int, size_bytes: int = 4096) -> dict[str, Any]:
    """A shape of an op on n ranks; the uneven one has zeros, a rank that sends nothing, and a diagonal."""
    if op == "all_to_all_v":
        matrix = [[size_bytes * ((i + 2 * j) % 3) for j in range(n)] for i in range(n)]
        matrix[0] = [0] * n
        return {"matrix_bytes": matrix}
    extra = {"pairs": max(1, n // 2)} if op == "send_recv_pairs" else {}
    return {"group": n, "bytes": size_bytes, **extra}


@unittest.skipIf(torch is None, "this interpreter has no torch")
class Worlds(unittest.TestCase):
    """Worlds of live processes, which are started once and join again for each test."""

    ranks: list[Rank] = []

    @classmethod
    def setUpClass(cls) -> None:
        cls.ranks = [Rank() for _ in range(4)]

    @classmethod
    def tearDownClass(cls) -> None:
        for rank in cls.ranks:
            rank.end()

    def world(self, n: int) -> list[Rank]:
        ranks = self.ranks[:n]
        self.assertEqual(joined(ranks, {"all": list(range(n))}), [{"ok": {}}] * n)
        return ranks

    def supported(self) -> list[str]:
        return ask(self.ranks[:1], "ops")[0]["ok"]

    def test_every_op_on_2_3_and_4_ranks(self) -> None:
        for n in (2, 3, 4):
            ranks = self.world(n)
            for op in self.supported():
                with self.subTest(op=op, ranks=n):
                    self.check_op(ranks, op, shape(op, n))

    def check_op(self, ranks: list[Rank], op: str, s: dict[str, Any]) -> None:
        first = ask(ranks, "prepare", op, s, 7, "all")
        self.assertTrue(all(a["ok"]["verified"] for a in first), first)
        for answer in ask(ranks, "run", 3, 5):
            samples, counts = answer["ok"]
            self.assertEqual((len(samples), counts), (5, [1, 2, 3, 4, 5]))
            self.assertGreater(min(samples), 0)
        again = ask(ranks, "prepare", op, s, 7, "all")
        self.assertTrue(all(set(a["ok"]) == {"work_bytes"} for a in again), again)
        self.assertEqual(ask(ranks, "verify", op, s, "all"), [{"ok": {"out": 0.0}}] * len(ranks))

    def test_groups_inside_a_world_work_at_once(self) -> None:
        ranks = self.ranks
        joined(ranks, {"low": [0, 1], "odd": [1, 3], "all": [0, 1, 2, 3]})
        answers = ask([ranks[1], ranks[3]], "prepare", "send_recv", shape("send_recv", 2), 1, "odd")
        self.assertTrue(all(a["ok"]["verified"] for a in answers), answers)
        ranks[2].send("prepare", "send_recv", shape("send_recv", 2), 1, "odd")
        outside = ranks[2].receive()
        self.assertEqual(outside["class"], "internal")
        self.assertIn("rank 2 is in no group 'odd' of the last join (it is in: all)", outside["msg"])

    def test_a_missing_op_is_refused_with_the_librarys_reason(self) -> None:
        refused = ask(self.ranks[:1], "refused")[0]["ok"]
        ranks = self.world(2)
        for op, why in refused.items():
            for answer in ask(ranks, "prepare", op, shape(op, 2), 1, "all"):
                self.assertEqual((answer["class"], answer["fatal"]), ("unsupported", False))
                self.assertIn(why, answer["msg"])
        self.assertEqual(set(refused) | set(self.supported()), set(collectives.OPS))

    def test_pairs_leave_the_others_waiting_only(self) -> None:
        ranks = self.world(4)
        one_pair = {"group": 4, "pairs": 1, "bytes": 4000}
        answers = ask(ranks, "prepare", "send_recv_pairs", one_pair, 1, "all")
        self.assertEqual([a["ok"]["work_bytes"] for a in answers], [8000, 0, 8000, 0])
        self.assertTrue(all(len(a["ok"][0]) == 2 for a in ask(ranks, "run", 1, 2)))

    def test_a_shape_of_another_size_is_refused(self) -> None:
        ranks = self.world(2)
        for answer in ask(ranks, "prepare", "all_reduce", {"group": 4, "bytes": 64}, 1, "all"):
            self.assertEqual(answer["msg"], "all_reduce: a shape for 4 ranks on a group of 2")
        two_pairs = {"group": 2, "pairs": 2, "bytes": 64}
        for answer in ask(ranks, "prepare", "send_recv_pairs", two_pairs, 1, "all"):
            self.assertEqual(answer["msg"], "send_recv_pairs: pairs 2: want 1 to 1 on 2 ranks")

    def test_buffers_larger_than_memory_are_refused_and_the_world_lives_on(self) -> None:
        ranks = self.world(2)
        for answer in ask(ranks, "prepare", "all_reduce", {"group": 2, "bytes": 1 << 50}, 1, "all"):
            self.assertEqual((answer["class"], answer["fatal"]), ("oom", False))
        self.check_op(ranks, "send_recv", shape("send_recv", 2))

    def test_run_needs_a_prepared_op(self) -> None:
        ranks = self.world(2)
        self.assertEqual(ask(ranks, "run", 1, 1)[0]["msg"], "run: no collective is prepared")

    def test_groups_must_ascend(self) -> None:
        answer = joined(self.ranks[:1], {"g": [1, 0]})[0]
        self.assertEqual(answer["msg"], "group 'g': ranks [1, 0]: want ascending, 0 to 0")

    def test_nccl_is_refused_without_an_accelerator(self) -> None:
        request = {"host": "127.0.0.1", "port": 1, "size": 1, "rank": 0, "comm": "nccl", "groups": {}}
        answer = ask(self.ranks[:1], "join", request)[0]
        self.assertEqual((answer["class"], answer["msg"]), ("unsupported", "comm nccl: no accelerator"))


@unittest.skipIf(torch is None, "this interpreter has no torch")
class Losses(unittest.TestCase):
    """A peer that dies or hangs ends in a fatal failure within the timeout."""

    def setUp(self) -> None:
        self.ranks = [Rank(), Rank()]
        self.addCleanup(lambda: [rank.end() for rank in self.ranks])

    def prepared(self, timeout_s: float) -> None:
        joined(self.ranks, {"all": [0, 1]}, timeout_s)
        for op in ("all_reduce", "send_recv"):
            answers = ask(self.ranks, "prepare", op, shape(op, 2), 1, "all")
            self.assertTrue(all("ok" in a for a in answers), answers)

    def test_a_killed_rank(self) -> None:
        self.prepared(60)
        self.ranks[1].process.kill()
        self.ranks[1].process.wait()
        began = time.monotonic()
        self.ranks[0].send("run", 1, 3)
        answer = self.ranks[0].receive()
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual((answer["class"], answer["fatal"]), ("internal", True))
        self.assertRegex(answer["msg"], r"^rank 0: send_recv: .*[Cc]onnection closed by peer")

    def test_a_hung_rank(self) -> None:
        self.prepared(3)
        self.ranks[1].process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        self.ranks[0].send("run", 1, 3)
        answer = self.ranks[0].receive()
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual((answer["class"], answer["fatal"]), ("internal", True))
        self.assertRegex(answer["msg"], r"^rank 0: send_recv: .*[Tt]imed out")

    def test_a_rank_that_never_joins_is_named(self) -> None:
        self.ranks[0].send("serve", {"host": "127.0.0.1"})
        port = self.ranks[0].receive()["ok"]["port"]
        self.ranks[0].send("join", {"host": "127.0.0.1", "port": port, "rank": 0, "size": 3, "comm": "gloo",
                                    "timeout_s": 1, "groups": {"all": [0, 1, 2]}})
        answer = self.ranks[0].receive()
        self.assertTrue(answer["fatal"])
        self.assertEqual(answer["msg"], "rank 0: not all 3 ranks joined within 1 s, missing: 1, 2")

    def test_no_store_at_the_address(self) -> None:
        request = {"host": "127.0.0.1", "port": 9, "rank": 1, "size": 2, "comm": "gloo", "timeout_s": 2,
                   "groups": {}}
        answer = ask(self.ranks[1:], "join", request)[0]
        self.assertTrue(answer["fatal"])
        self.assertTrue(answer["msg"].startswith("rank 1: joining 127.0.0.1:9: "), answer)


@unittest.skipIf(torch is None, "this interpreter has no torch")
class Answers(unittest.TestCase):
    """The known answers, worked out by hand, and what is said when they are not met."""

    def test_expected_uneven(self) -> None:
        # Rank 1 gets elements 1..2 of rank 0 (after the one for rank 0) and element 0 of rank 1.
        matrix = [[4, 8], [0, 4]]
        got = collectives.expected("all_to_all_v", {"matrix_bytes": matrix}, 2, 1)
        self.assertEqual(got.tolist(), [1.0, 2.0, 257.0])

    def test_expected_sums_and_shifts(self) -> None:
        s = {"group": 3, "bytes": 24, "pairs": 1}
        # Ranks 0, 1, 2 hold i, 257+i and 514+i at element i.
        self.assertEqual(collectives.expected("all_reduce", s, 3, 0)[:2].tolist(), [771.0, 774.0])
        self.assertEqual(collectives.expected("reduce_scatter", s, 3, 2).tolist(), [783.0, 786.0])
        self.assertEqual(collectives.expected("all_gather", s, 3, 1).tolist(), [0, 1, 257, 258, 514, 515])
        self.assertEqual(collectives.expected("all_to_all", s, 3, 1).tolist(), [2, 3, 259, 260, 516, 517])
        self.assertEqual(collectives.expected("send_recv", s, 3, 0)[:1].tolist(), [514.0])
        self.assertEqual([collectives.partner(s, 3, r) for r in range(3)], [1, 0, None])

    def test_sums_over_1024_ranks_are_exact_in_float32(self) -> None:
        largest = max(float(collectives.value(r, torch.arange(257)).max()) for r in range(61))
        self.assertLess(1024 * largest, 2**24)

    def test_a_wrong_answer_names_rank_element_got_and_want(self) -> None:
        rank = comm.Comm(CPU)
        group = comm.Group("g", (0, 1), 0, None)
        # A reduction that forgets the other rank.
        forgets = mock.patch.object(comm.dist, "all_reduce", lambda *_, **__: None)
        with forgets, self.assertRaises(Failure) as caught:
            rank._check("all_reduce", collectives.small_shape("all_reduce", 2), group)
        self.assertEqual(caught.exception.cls, "wrong")
        said = "all_reduce: rank 0 of group g got 0.0 at element 0, want 257.0: not timed"
        self.assertEqual(caught.exception.msg, said)

    def test_an_unknown_op(self) -> None:
        with self.assertRaises(Failure) as caught:
            collectives.check_shape("broadcast", {}, 2)
        self.assertIn("op 'broadcast' is no collective", caught.exception.msg)

    def test_malformed_shapes_name_the_field(self) -> None:
        for op, bad, field in (("all_reduce", {"group": 2}, "shape.bytes"),
                               ("all_reduce", {"bytes": 4}, "shape.group"),
                               ("send_recv_pairs", {"group": 2, "bytes": 4}, "shape.pairs"),
                               ("all_to_all_v", {"matrix_bytes": [[0, 4]]}, "want a square list"),
                               ("all_to_all_v", {"matrix_bytes": [[0, -4], [4, 0]]}, "0 or more")):
            with self.subTest(op=op, field=field), self.assertRaises(Failure) as caught:
                collectives.check_shape(op, bad, 2)
            self.assertIn(field, caught.exception.msg)


class FakeEvent:
    """A CUDA event of a queue in which each recorded event is 2 us after the one before."""

    recorded = 0
    finished = True

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0

    def record(self) -> None:
        FakeEvent.recorded += 1
        self.at = FakeEvent.recorded

    def query(self) -> bool:
        return FakeEvent.finished

    def elapsed_time(self, later: FakeEvent) -> float:
        return (later.at - self.at) * 0.002


@unittest.skipIf(torch is None, "this interpreter has no torch")
class Events(unittest.TestCase):
    """How a GPU is timed, on a queue of fake events: no GPU is needed to count batches and convert units."""

    def setUp(self) -> None:
        self.spins = mock.Mock()
        cuda = mock.patch.multiple(comm.torch.cuda, Event=FakeEvent, _sleep=self.spins, create=True)
        place = mock.patch.object(comm.Comm, "_place", lambda self: SimpleNamespace(type="cuda"))
        token = mock.patch.object(comm.torch, "zeros", lambda *_, **__: None)
        self.barriers = mock.Mock()
        barrier = mock.patch.object(comm.dist, "all_reduce", self.barriers)
        for patch in (cuda, place, token, barrier):
            patch.start()
            self.addCleanup(patch.stop)
        FakeEvent.recorded, FakeEvent.finished = 0, True
        self.calls = mock.Mock()
        self.rank = comm.Comm(CPU)
        self.rank._bound = comm.Bound(comm.Group("g", (0, 1), 0, None), "all_reduce", self.calls, None, None)

    def test_batches_of_32_with_a_barrier_before_each_sample(self) -> None:
        progress: list[int] = []
        self.assertEqual(self.rank.run(3, 70, progress.append), [2000] * 70)
        self.assertEqual(progress, [32, 64, 70])
        # Two calls more: one connects, one tells how long the host takes for a call.
        self.assertEqual((self.barriers.call_count, self.calls.call_count), (70, 212))
        self.rank.run(3, 1, progress.append)
        self.assertEqual(self.calls.call_count, 215)

    def test_the_spin_outlasts_the_queueing_of_a_sample(self) -> None:
        self.calls.side_effect = lambda: time.sleep(0.002)
        self.rank.run(2, 1, lambda _: None)
        # Twice two calls of 2 ms or more, at any clock up to 3 GHz.
        self.assertGreater(self.spins.call_args[0][0], 2 * 2 * 2_000_000 * 3)

    def test_a_queue_that_never_ends_is_a_fatal_failure(self) -> None:
        FakeEvent.finished, self.rank._timeout_s, self.rank.rank = False, 0.05, 1
        with self.assertRaises(Failure) as caught:
            self.rank.run(1, 1, print)
        self.assertTrue(caught.exception.fatal)
        said = "rank 1: all_reduce: not finished after 0.05 s: a peer is gone or hangs"
        self.assertEqual(caught.exception.msg, said)


@unittest.skipIf(torch is None, "this interpreter has no torch")
class Leaving(unittest.TestCase):
    """torch 2.6 waits in destroy_process_group for ranks that may leave later (pytorch/pytorch#141510)."""

    def ends(self, backend: str, **functions: Any) -> str:
        log: list[str] = []
        names = {**functions, "destroy_process_group": lambda: log.append("destroyed")}
        names["distributed_c10d"] = SimpleNamespace(**{k: lambda: log.append("aborted") for k in functions})
        with mock.patch.object(comm, "dist", SimpleNamespace(**names)):
            comm.end_world(backend)
        return " ".join(log)

    def test_nccl_is_aborted_where_it_can_be_and_gloo_never(self) -> None:
        self.assertEqual(self.ends("nccl", _abort_process_group=True), "aborted")
        self.assertEqual(self.ends("nccl"), "destroyed")
        self.assertEqual(self.ends("gloo", _abort_process_group=True), "destroyed")


def workers(**changes: list[Any]) -> list[dict[str, Any]]:
    """Two equal GPU workers on two hosts, but for the fields given as [rank 0's, rank 1's]."""
    base = {"torch": "2.8", "nccl": "2.27.3", "vendor": "nvidia", "cpu_vendor": "AuthenticAMD",
            "driver": "580.95", "capability": [9, 0], "hcas": 8, "visible": "GPU-a"}
    return [{**base, "host": f"h{r}", **{k: v[r] for k, v in changes.items()}} for r in range(2)]


@unittest.skipIf(torch is None, "this interpreter has no torch")
class Preflight(unittest.TestCase):
    """Verdicts about workers that this machine has not got."""

    def refusal(self, backend: str = "nccl", **changes: list[Any]) -> str:
        with self.assertRaises(Failure) as caught:
            preflight.judge(workers(**changes), backend)
        self.assertEqual(caught.exception.cls, "unsupported")
        return caught.exception.msg

    def test_the_driver_is_read_of_either_kind_of_kernel_module(self) -> None:
        # Lines of /proc/driver/nvidia/version as people post them.
        for line, want in (
            ("NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", "535.104.05"),
            ("NVIDIA UNIX Open Kernel Module for x86_64  580.126.09  Release Build  (dvs-builder)", "580.126.09"),
            ("NVIDIA UNIX Open Kernel Module for aarch64  570.00  Release Build", "570.00"),
        ):
            with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
                file.write(f"NVRM version: {line}\nGCC version:  gcc version 12.3.0\n")
                file.flush()
                self.assertEqual(preflight.driver_version(file.name), want)
        self.assertIsNone(preflight.driver_version("/no/such/file"))

    def test_equal_workers_pass_without_a_word(self) -> None:
        self.assertEqual(preflight.judge(workers(), "nccl"), [])

    def test_unequal_versions_and_vendors_are_refused_by_name(self) -> None:
        for key, what, values in (("torch", "torch", ["2.8", "2.9"]), ("nccl", "NCCL", ["2.27.3", "2.26.2"]),
                                  ("vendor", "GPU vendor", ["nvidia", "amd"])):
            with self.subTest(key):
                said = self.refusal(**{key: values})
                start = f"{what} {values[0]} on rank 0 (h0), {values[1]} on rank 1 (h1): "
                self.assertTrue(said.startswith(start), said)

    def test_gloo_joins_vendors_but_not_versions_of_torch(self) -> None:
        mixed = workers(vendor=["nvidia", "amd"], nccl=["2.27.3", "2.22.3"])
        self.assertEqual(preflight.judge(mixed, "gloo"), [])
        self.assertIn("torch 2.8", self.refusal("gloo", torch=["2.8", "2.9"]))

    def test_mixed_capabilities_warn_and_ll128_depends_on_the_lowest(self) -> None:
        (old,) = preflight.judge(workers(capability=[[8, 0], [9, 0]]), "nccl")
        self.assertIn("8.0, 9.0: LL128 off", old)
        self.assertIn("NCCL_IGNORE_NET_MISMATCH=0", old)
        (new,) = preflight.judge(workers(capability=[[9, 0], [10, 0]]), "nccl")
        self.assertNotIn("LL128", new)

    def test_unequal_hosts_warn(self) -> None:
        (cards,) = preflight.judge(workers(hcas=[8, 4]), "nccl")
        self.assertTrue(cards.startswith("8 network adapters (HCAs) on h0, 4 on h1"), cards)
        (cpus,) = preflight.judge(workers(cpu_vendor=["AuthenticAMD", "GenuineIntel"]), "nccl")
        self.assertTrue(cpus.startswith("CPU vendor AuthenticAMD on h0, GenuineIntel on h1"), cpus)
        self.assertEqual(preflight.judge(workers(hcas=[8, None]), "nccl"), [])

    def test_one_gpu_twice_and_mig_instances_are_refused(self) -> None:
        self.assertIn("ranks 0 and 1 share GPU GPU-a of h", self.refusal(host=["h", "h"]))
        self.assertIn("rank 0 is on a MIG instance", self.refusal(visible=["MIG-1", "MIG-2"]))
        with mock.patch.dict(os.environ, {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}):
            self.assertEqual(preflight.judge(workers(host=["h", "h"]), "nccl"), [])

    def test_this_machine_is_described(self) -> None:
        info = preflight.inspect(CPU)
        self.assertEqual((info["torch"], info["vendor"]), (torch.__version__, "cpu"))
        self.assertIsNone(info["capability"])
        json.dumps(info, allow_nan=False)


if __name__ == "__main__":
    if sys.argv[1:] == ["child"]:
        child()
    else:
        unittest.main()
