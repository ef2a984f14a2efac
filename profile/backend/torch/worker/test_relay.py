"""Tests of relay.py: real relays of 3 tasks, a killed store, malformed requests. Skipped without torch."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import unittest
from typing import Any, Optional

FOLDER = os.path.dirname(os.path.abspath(__file__))
LIMIT_S = 60.0

if importlib.util.find_spec("torch"):
    sys.path.insert(0, FOLDER)
    import relay


class Task:
    """One relay process, driven as an agent drives it: lines to stdin, frames from descriptor 3."""

    def __init__(self, *args: str) -> None:
        read, write = os.pipe()
        command = [sys.executable, "-I", "-u", "-B", FOLDER, "relay", *args]
        # Descriptor 3 is open here in any case: a pipe takes the lowest free numbers.
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds={3, write},
            preexec_fn=lambda: os.dup2(write, 3),
        )
        os.close(write)
        self.out, self.pending = read, b""

    def send(self, **frame: Any) -> None:
        data = json.dumps(frame, ensure_ascii=False).encode() + b"\n"
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def receive(self) -> Optional[dict[str, Any]]:
        """The next frame that is no beat; None at the end."""
        while b"\n" not in self.pending:
            if not select.select([self.out], [], [], LIMIT_S)[0]:
                raise AssertionError(f"no frame within {LIMIT_S} s")
            chunk = os.read(self.out, 1 << 20)
            if not chunk:
                return None
            self.pending += chunk
        line, self.pending = self.pending.split(b"\n", 1)
        frame = json.loads(line)
        return self.receive() if frame["t"] == "beat" else frame

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        os.close(self.out)


def joined(relays: list[Task]) -> list[Task]:
    """Tasks that have become a job whose task 0 hosts the store on a free port."""
    request = {"t": "relay", "id": 1, "tasks": len(relays), "host": "127.0.0.1"}
    relays[0].send(**request, task=0, port=0, serve=True)
    port = relays[0].receive()["port"]
    for i, other in enumerate(relays[1:], 1):
        other.send(**request, task=i, port=port, serve=False)
        answer = other.receive()
        if answer != {"t": "result", "id": 1, "port": port}:
            raise AssertionError(answer)
    return relays


@unittest.skipIf(importlib.util.find_spec("torch") is None, "this interpreter has no torch")
class Messages(unittest.TestCase):
    """Three tasks on one store, for tests after which they are as before."""

    @classmethod
    def setUpClass(cls) -> None:
        tasks = [Task() for _ in range(3)]
        for task in tasks:
            cls.addClassCleanup(task.end)
        cls.tasks = joined(tasks)

    def test_messages_arrive_in_order_from_every_sender(self) -> None:
        zero, one, two = self.tasks
        for n in range(20):
            one.send(t="to", task=0, body=f"one {n}")
            two.send(t="to", task=0, body=f"two {n}")
            zero.send(t="to", task=2, body=f"zero {n}")
        got = [zero.receive() for _ in range(40)]
        for sender, name in ((1, "one"), (2, "two")):
            bodies = [frame["body"] for frame in got if frame["task"] == sender]
            self.assertEqual(bodies, [f"{name} {n}" for n in range(20)])
        self.assertEqual([two.receive() for _ in range(20)],
                         [{"t": "from", "task": 0, "body": f"zero {n}"} for n in range(20)])

    def test_a_large_message_of_any_text(self) -> None:
        zero, one, _ = self.tasks
        body = '\u00fc\u4e2d"\\\n\x01' * 60_000
        zero.send(t="to", task=1, body=body)
        self.assertEqual(one.receive()["body"], body)
        one.send(t="to", task=0, body="x" * ((1 << 20) - 60))
        self.assertEqual(len(zero.receive()["body"]), (1 << 20) - 60)

    def test_round_trip(self) -> None:
        zero, one, _ = self.tasks
        times = []
        for n in range(50):
            began = time.perf_counter()
            zero.send(t="to", task=1, body="ping")
            one.receive()
            one.send(t="to", task=0, body="pong")
            zero.receive()
            times.append(time.perf_counter() - began)
        # Typically a millisecond; a second means that somebody polls or waits for a timeout.
        self.assertLess(sorted(times)[25], 0.5)


@unittest.skipIf(importlib.util.find_spec("torch") is None, "this interpreter has no torch")
class Relays(unittest.TestCase):
    """Jobs that end, and tasks that never make one."""

    def task(self, *args: str) -> Task:
        task = Task(*args)
        self.addCleanup(task.end)
        return task

    def job(self, tasks: int = 3) -> list[Task]:
        return joined([self.task() for _ in range(tasks)])

    def test_a_message_sent_before_the_end_is_delivered(self) -> None:
        zero, one = self.job(2)
        for n in range(50):
            zero.send(t="to", task=1, body=str(n))
        zero.process.stdin.close()
        self.assertEqual([one.receive()["body"] for _ in range(50)], [str(n) for n in range(50)])
        self.assertEqual(zero.process.wait(LIMIT_S), 0)

    def test_a_killed_store_ends_every_task_with_72(self) -> None:
        zero, one, two = self.job()
        zero.process.kill()
        for other in (one, two):
            frame = other.receive()
            self.assertEqual((frame["t"], frame["id"]), ("error", 0))
            self.assertEqual((frame["class"], frame["fatal"]), ("internal", True))
            self.assertRegex(frame["msg"], r"^the store of task 0 at 127\.0\.0\.1:\d+ is gone: ")
            self.assertEqual(other.process.wait(LIMIT_S), 72)

    def test_an_abort_inside_torch_is_reported_like_a_lost_store(self) -> None:
        _, one = self.job(2)
        pid = one.process.pid
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
            os.kill(int(children.read().split()[0]), signal.SIGABRT)
        said = r"^the store of task 0 at 127\.0\.0\.1:\d+ is gone: its client ended with signal 6$"
        self.assertRegex(one.receive()["msg"], said)
        self.assertEqual(one.process.wait(LIMIT_S), 72)

    def test_the_end_of_stdin_ends_a_client_at_once(self) -> None:
        _, one = self.job(2)
        began = time.monotonic()
        one.process.stdin.close()
        self.assertEqual(one.process.wait(LIMIT_S), 0)
        self.assertLess(time.monotonic() - began, 2)

    def test_a_client_waits_for_a_store_that_comes_later(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        one, zero = self.task(), self.task()
        one.send(t="relay", id=4, task=1, tasks=2, host="127.0.0.1", port=port, serve=False)
        time.sleep(1.5)
        zero.send(t="relay", id=9, task=0, tasks=2, host="127.0.0.1", port=port, serve=True)
        self.assertEqual(zero.receive(), {"t": "result", "id": 9, "port": port})
        self.assertEqual(one.receive(), {"t": "result", "id": 4, "port": port})

    def test_a_store_of_the_launcher_is_joined_and_its_keys_left_alone(self) -> None:
        import torch.distributed as dist

        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        store.set("0/1/0", "the launcher's")
        relays = [self.task(), self.task()]
        request = {"t": "relay", "id": 1, "tasks": 2, "host": "127.0.0.1", "port": store.port, "job": "a.0"}
        for i, each in enumerate(relays):
            each.send(**request, task=i)
            self.assertEqual(each.receive()["t"], "result")
        relays[0].send(t="to", task=1, body="hello")
        self.assertEqual(relays[1].receive(), {"t": "from", "task": 0, "body": "hello"})
        self.assertEqual(store.get("0/1/0"), b"the launcher's")

    def test_a_taken_port_is_named(self) -> None:
        with socket.socket() as taken:
            taken.bind(("", 0))
            taken.listen()
            zero = self.task()
            port = taken.getsockname()[1]
            zero.send(t="relay", id=1, task=0, tasks=2, host="127.0.0.1", port=port, serve=True)
            frame = zero.receive()
        self.assertEqual(frame["id"], 1)
        self.assertIn(f"task 0 cannot open a store on port {port}: ", frame["msg"])
        self.assertEqual(zero.process.wait(LIMIT_S), 72)

    def test_malformed_requests_are_refused_by_name(self) -> None:
        good = {"t": "relay", "id": 1, "task": 0, "tasks": 2, "host": "127.0.0.1", "port": 0, "serve": True}
        zero = self.task()
        zero.send(t="hello", id=3)
        self.assertEqual(zero.receive()["msg"], "the first request is 'hello': want relay")
        self.assertEqual(zero.process.wait(LIMIT_S), 72)
        for change, want in (({"task": 2}, "relay: task 2: want 0 to 1"),
                             ({"tasks": None}, "relay.tasks: None: want a whole number of at least 1"),
                             ({"port": "80"}, "relay.port: '80': want a whole number of at least 0")):
            with self.subTest(want), self.assertRaises(relay.Failure) as caught:
                relay.Relay({**good, **change})
            self.assertEqual(caught.exception.msg, want)

    def test_a_message_that_cannot_be_sent_ends_the_relay(self) -> None:
        _, one, _ = self.job()
        one.send(t="to", task=2, body="")
        frame = one.receive()
        self.assertEqual((frame["id"], frame["msg"]), (0, "to: task 2: task 1 of 3 reaches only [0]"))
        self.assertEqual(one.process.wait(LIMIT_S), 72)

    def test_messages_that_are_too_long_or_unknown(self) -> None:
        zero = relay.Relay({"t": "relay", "task": 0, "tasks": 2, "port": 0, "serve": True})
        too_long = {"t": "to", "task": 1, "body": "x" * relay.wire.MAX_FRAME}
        for request, want in ((too_long, f"a message of {relay.wire.MAX_FRAME + 32} bytes exceeds the "),
                              ({"t": "run"}, "unknown request 'run': a relay takes to and bye")):
            with self.subTest(want), self.assertRaises(relay.Failure) as caught:
                zero.handle(request)
            self.assertTrue(caught.exception.msg.startswith(want), caught.exception.msg)


if __name__ == "__main__":
    unittest.main()
