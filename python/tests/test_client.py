"""The client of `evenkeel serve` and its example, against a server that plays back what a test wants."""

from __future__ import annotations

import http.server
import json
import os
import pickle
import re
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from typing import Any, Callable, Optional
from urllib.parse import unquote

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [ROOT, os.path.join(ROOT, "examples")]

from evenkeel import BatchPlan, Client, Interval, ServeError
import batch_sampler

Answer = tuple[int, Any]  # status, and a body: bytes as they are, else JSON

# Code and status of every refusal that openapi.yaml has.
REFUSALS = {
    "bad_request": 400, "bad_length": 400, "too_many_sequences": 400, "unauthorized": 401, "not_found": 404,
    "bad_method": 405, "timeout": 408, "conflict": 409, "too_large": 413, "queue_full": 429, "internal": 500, "journal": 500,
    "draining": 503,
}


def plan_of(lengths: list[int]) -> dict[str, Any]:
    """Two micro-batches: the first sequence on ranks 0 and 1 beside the second on rank 2; then the others on
    rank 0."""
    def group(ranks: list[int], sequences: list[int]) -> dict[str, Any]:
        return {"class": len(ranks) - 1, "sequences": sequences, "ranks": ranks, "time_s": 0.5,
                "length_tokens": sum(lengths[k] for k in sequences)}
    rest = list(range(2, len(lengths)))
    first = [group([0, 1], [0]), group([2], [1] if len(lengths) > 1 else [])]
    micros = [first, [group([0], rest)]]
    return {"micro_batches": [{"groups": groups, "time_s": 0.5} for groups in micros], "step_s": 1.0}


class Fake:
    """A server at a socket that keeps batches, and answers as `instead` says where that is not None."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.batches: dict[tuple[str, int], list[int]] = {}
        self.log: list[str] = []
        self.connections = 0
        self.closing = False  # each connection after its answer, without saying so
        self.instead: Optional[Callable[[str, str, Any], Optional[Answer]]] = None
        self.authorization: Optional[str] = None
        self.open: list[socket.socket] = []
        self._start()

    def _start(self) -> None:
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                fake.connections += 1
                fake.open.append(self.request)
                super().setup()

            def log_message(self, *_: Any) -> None:
                pass

            def answer(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                fake.authorization = self.headers.get("Authorization")
                status, body = fake.answer(self.command, self.path, json.loads(data) if data else None)
                text = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
                self.close_connection = fake.closing

            do_GET = do_POST = do_DELETE = answer

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass  # clients that went away

        self.server = Server(self.path, Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        for connection in self.open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # ended already
        os.unlink(self.path)

    def again(self) -> None:
        """Starts anew with what the journal holds."""
        self.open = []
        self._start()

    def answer(self, method: str, path: str, body: Any) -> Answer:
        self.log.append(f"{method} {path.split('?')[0]}" + (
            " " + ",".join(str(b["step"]) for b in body["batches"]) if body and "batches" in body else ""))
        other = self.instead(method, path, body) if self.instead else None
        if other is not None:
            return other
        if path == "/v1/setup":
            return 200, {"tool": "evenkeel", "classes": []}
        if path == "/v1/plan":
            return 200, self.done("", 0, body["lengths_tokens"])
        match = re.fullmatch(r"/v1/jobs/([^/]+)/(batches|plans/(\d+))(\?.*)?", path)
        assert match, path
        job = unquote(match[1])
        if method == "POST":
            for b in body["batches"]:
                self.batches[job, b["step"]] = b["lengths_tokens"]
            return 202, {"job": job, "steps": [b["step"] for b in body["batches"]]}
        key = job, int(match[3])
        if key not in self.batches:
            return 404, {"code": "not_found", "field": "step", "message": "never submitted"}
        if method == "DELETE":
            del self.batches[key]
            return 204, None
        return 200, self.done(*key, self.batches[key])

    @staticmethod
    def done(job: str, step: int, lengths: list[int]) -> dict[str, Any]:
        return {"job": job, "step": step, "state": "done", "plan": plan_of(lengths), "lower_bound_s": 0.8,
                "interval": {"lo_s": 0.9, "mid_s": 1.0, "hi_s": 1.2, "source": "interpolated"}, "gap": 0.25,
                "planning_s": 0.01}


class Case(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.fake = Fake(os.path.join(folder.name, "s"))
        self.addCleanup(self.stop)
        self.client = Client(self.fake.path, job="mine", timeout_s=5.0)
        self.addCleanup(self.client.close)

    def stop(self) -> None:
        if os.path.exists(self.fake.path):
            self.fake.stop()

    def refused(self, ask: Callable[[], Any]) -> ServeError:
        with self.assertRaises(ServeError) as caught:
            ask()
        return caught.exception


class Methods(Case):
    def test_submit_fetch_drop(self) -> None:
        self.client.submit({7: [30, 20, 10], 2**53 + 1: [5]}, deadline_s=0.5)
        plan = self.client.fetch(7)
        self.assertEqual((plan.step, plan.step_s, plan.lower_bound_s, plan.gap), (7, 1.0, 0.8, 0.25))
        self.assertEqual(plan.interval, Interval(lo_s=0.9, hi_s=1.2, source="interpolated"))
        self.assertFalse(plan.cached or plan.stopped)
        first, second = plan.of_rank(0)
        assert first and second
        self.assertEqual((first.ranks, first.sequences, first.tokens, first.kind), ((0, 1), (0,), 30, 1))
        self.assertEqual((second.ranks, second.sequences), ((0,), (2,)))
        self.assertEqual([g and g.ranks for g in plan.of_rank(2)], [(2,), None])
        self.assertEqual(self.client.fetch(2**53 + 1).step, 2**53 + 1)
        self.client.drop(7)
        self.assertEqual(self.refused(lambda: self.client.fetch(7)).code, "not_found")
        self.assertEqual(self.fake.connections, 1)

    def test_plan_and_setup(self) -> None:
        self.assertIsInstance(self.client.plan([4, 3]), BatchPlan)
        self.assertEqual(self.client.setup()["tool"], "evenkeel")

    def test_a_plan_that_takes_long(self) -> None:
        """It is waited for as long as the caller says, and one that takes longer is told from a server that is
        not there."""
        def slow(*_: Any) -> Optional[Answer]:
            time.sleep(0.8)
            return None
        self.fake.instead = slow
        client = Client(self.fake.path, timeout_s=0.2)
        self.addCleanup(client.close)
        error = self.refused(lambda: client.plan([4, 3], wait_s=0.1))
        self.assertEqual(error.code, "unreachable")
        self.assertIn("no answer within 0.3 s: wait_s or timeout_s may be longer", str(error))
        self.assertIsInstance(client.plan([4, 3], wait_s=30), BatchPlan)

    def test_a_pipeline(self) -> None:
        """Of a server that plans on stages: the document that load_pipeline takes, and no groups."""
        staged = {"schema": "evenkeel.servedpipeline/v1", "devices": ["a"], "lengths_tokens": [4, 3], "layers": 2,
                  "stages": [{"ranks": [0], "layers": 2}], "chunks": [{"sequence": -1, "whole": [0, 1]}],
                  "recomputed_layers": [[0]], "orders": [[{"chunk": 0}, {"chunk": 0, "backward": True}]],
                  "step_s": 0.7}
        self.fake.instead = lambda *_: (200, {"step": 0, "state": "done", "pipeline": staged, "lower_bound_s": 0.5,
                                              "gap": 0.4, "planning_s": 0.01})
        plan = self.client.plan([4, 3])
        self.assertEqual((plan.micro_batches, plan.step_s, plan.gap), ((), 0.7, 0.4))
        with self.assertRaisesRegex(ValueError, "of a pipeline, which has no groups"):
            plan.of_rank(0)
        assert plan.pipeline is not None
        self.assertEqual(dict(plan.pipeline), staged)

    def test_what_is_no_whole_number(self) -> None:
        for bad in (1.5, float("nan"), "8", None):
            for ask in (lambda: self.client.plan([4, bad]), lambda: self.client.submit({1: [4, bad]})):
                with self.assertRaisesRegex(TypeError, r"lengths\[1\]: .*want a whole number of tokens"):
                    ask()
        for bad in (1.5, float("nan"), "8", None):
            for ask in (lambda: self.client.fetch(bad), lambda: self.client.drop(bad),
                        lambda: self.client.submit({bad: [4]})):
                with self.assertRaisesRegex(TypeError, "step: .*want a whole number"):
                    ask()
        self.assertIsInstance(self.client.plan([4, 3]), BatchPlan)
        self.assertEqual(self.fake.connections, 1)

    def test_what_is_no_time(self) -> None:
        nan = float("nan")
        for name, ask in (
            ("wait_s: nan", lambda: self.client.fetch(1, wait_s=nan)),
            ("deadline_s: nan", lambda: self.client.plan([4], deadline_s=nan)),
            ("wait_s: nan", lambda: self.client.plan([4], wait_s=nan)),
            ("deadline_s: inf", lambda: self.client.submit({1: [4]}, deadline_s=float("inf"))),
            ("patience_s: nan", lambda: self.client.submit({1: [4]}, patience_s=nan)),
        ):
            with self.assertRaisesRegex(ValueError, f"{name}: want a number of seconds"):
                ask()
        self.assertEqual(self.fake.connections, 0)

    def test_names_and_tokens(self) -> None:
        for job in ("a/b", "..", "é ?#%", "."):
            with Client(self.fake.path, job=job, token="secret") as client:
                client.submit({1: [4]})
                self.assertEqual(client.fetch(1).step, 1)
            self.assertIn((job, 1), self.fake.batches)
            self.assertEqual(self.fake.authorization, "Bearer secret")
            self.assertNotRegex(self.fake.log[-1], r"/\.{1,2}/")
        for bad in (lambda: Client(self.fake.path, job=""), lambda: Client("https://x")):
            self.assertRaises(ValueError, bad)

    def test_tcp(self) -> None:
        class Setup(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'{"tool": "over tcp"}')

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Setup)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        with Client(f"http://127.0.0.1:{server.server_address[1]}") as client:
            self.assertEqual(client.setup()["tool"], "over tcp")
            self.assertEqual(client.setup()["tool"], "over tcp")  # the server closed the connection: HTTP/1.0

    def test_ahead(self) -> None:
        batches = [[9, 1], [8, 2], [7, 3], [6, 4]]
        got = []
        for lengths, plan in self.client.ahead(batches, first_step=10):
            self.fake.log.append(f"train {plan.step}")
            got.append(lengths)
        self.assertEqual(got, batches)
        submit = ["POST /v1/jobs/mine/batches %d" % s for s in range(10, 14)]
        fetch = ["GET /v1/jobs/mine/plans/%d" % s for s in range(10, 14)]
        train = ["train %d" % s for s in range(10, 14)]
        want = submit[:1]
        for i in range(4):  # the batch behind is with the server before this one's plan is waited for
            want += submit[i + 1:i + 2] + [fetch[i], train[i]]
        self.assertEqual(self.fake.log, want)

    def test_ahead_of_several_ranks(self) -> None:
        other = Client(self.fake.path, job="mine")
        self.addCleanup(other.close)
        batches = [[9, 1], [8, 2]]
        one, two = [[p for _, p in c.ahead(batches, steps=5)] for c in (self.client, other)]
        self.assertEqual(one, two)


class Refusals(Case):
    def test_every_code(self) -> None:
        for code, status in REFUSALS.items():
            self.fake.instead = lambda *_: (status, {"code": code, "field": "f", "message": "m"})
            for ask in (lambda: self.client.submit({1: [4]}), lambda: self.client.fetch(1, wait_s=0),
                        lambda: self.client.plan([4]), lambda: self.client.drop(1), self.client.setup):
                error = self.refused(ask)
                got = error.code, error.field, error.status, str(error)
                self.assertEqual(got, (code, "f", status, "f: m"))
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((again.code, str(again)), (error.code, str(error)))

    def test_codes_are_those_described(self) -> None:
        description = os.path.join(os.path.dirname(ROOT), "serve", "openapi.yaml")
        with open(description, encoding="utf-8") as file:
            found = re.search(r"code:\n(?: +(?:type|description): .*\n)* +enum: \[([^]]*)]", file.read())
        assert found
        self.assertEqual(set(found[1].split(", ")), set(REFUSALS))

    def test_a_batch_without_plan(self) -> None:
        self.fake.instead = lambda *_: (200, {"step": 3, "state": "failed", "error": "too long"})
        self.assertEqual(str(self.refused(lambda: self.client.fetch(3))), "step 3: too long")
        self.assertEqual(self.refused(lambda: self.client.plan([3])).code, "failed")

    def test_not_made_in_time(self) -> None:
        self.fake.instead = lambda *_: (202, {"step": 3, "state": "planning"})
        with self.assertRaisesRegex(TimeoutError, "step 3 is planning after 0.05 s"):
            self.client.fetch(3, wait_s=0.05)

    def test_something_else_answers(self) -> None:
        answers = (200, b"<html>"), (307, b""), (502, b"bad gateway"), (400, {"no": "code"}), (200, b"[]")
        for status, body in answers:
            self.fake.instead = lambda *_: (status, body)
            error = self.refused(self.client.setup)
            self.assertEqual((error.code, error.status), ("bad_answer", status))

    def test_a_body_that_is_refused_midway(self) -> None:
        path = os.path.join(self.folder, "early")
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.bind(path)
        listener.listen()

        def refuse() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                connection.recv(1000)
                body = b'{"code": "too_large", "message": "fewer"}'
                head = b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: %d" % len(body)
                connection.sendall(head + b"\r\n\r\n" + body)
                connection.close()

        threading.Thread(target=refuse, daemon=True).start()
        with Client(path) as client:
            for _ in range(2):
                error = self.refused(lambda: client.submit({1: [1000] * 1_000_000}))
                self.assertEqual((error.code, error.status), ("too_large", 413))


class Connections(Case):
    def test_idle_ones_are_closed(self) -> None:
        self.fake.closing = True
        for step in range(3):
            self.client.submit({step: [4]})
        self.assertEqual((len(self.fake.log), self.fake.connections), (3, 3))

    def test_it_is_tried_again_only_once(self) -> None:
        self.client.setup()

        def vanish(*_: Any) -> Optional[Answer]:
            # The one that asks: an earlier one was cut before the client made it.
            self.fake.open[-1].shutdown(socket.SHUT_RDWR)
            return None

        self.fake.instead = vanish
        self.assertEqual(self.refused(self.client.setup).code, "unreachable")
        self.assertEqual(self.fake.log, ["GET /v1/setup"] * 3)
        self.assertEqual(self.fake.connections, 2)

    def test_a_server_that_starts_again(self) -> None:
        self.client.submit({1: [4]})
        self.fake.stop()
        self.fake.again()
        self.assertEqual(self.client.fetch(1).step, 1)
        self.fake.stop()
        later = threading.Timer(0.2, self.fake.again)
        later.start()
        self.assertEqual(self.client.fetch(1, wait_s=10).step, 1)
        later.join()
        self.fake.stop()
        later = threading.Timer(0.2, self.fake.again)
        later.start()
        self.client.submit({2: [4]}, patience_s=10)
        later.join()

    def test_no_server(self) -> None:
        with Client(os.path.join(self.folder, "none")) as client:
            began = time.monotonic()
            error = self.refused(lambda: client.fetch(1, wait_s=30))
            self.assertLess(time.monotonic() - began, 5)
        self.assertEqual((error.code, error.status), ("unreachable", 0))
        self.assertIn("none: ", str(error))
        self.assertIn("start one with: evenkeel serve", str(error))

    def test_a_server_that_never_answers(self) -> None:
        free = threading.Event()
        self.addCleanup(free.set)
        self.fake.instead = lambda *_: (free.wait(30), None)[1]
        with Client(self.fake.path, timeout_s=0.2) as client:
            began = time.monotonic()
            error = self.refused(client.setup)
            self.assertLess(time.monotonic() - began, 5)
            self.assertEqual(error.code, "unreachable")
            self.assertIn("timed out", str(error))
        self.assertEqual(len(self.fake.log), 1)  # it was not asked again

    def test_a_full_queue(self) -> None:
        full = (429, {"code": "queue_full", "message": "wait"})
        answers = [full, full, full]
        self.fake.instead = lambda *_: answers.pop() if answers else None
        self.client.submit({1: [4]}, patience_s=10)
        self.assertEqual(len(self.fake.log), 4)
        self.fake.instead = lambda *_: full
        self.assertEqual(self.refused(lambda: self.client.submit({1: [4]})).code, "queue_full")
        began = time.monotonic()
        error = self.refused(lambda: self.client.submit({1: [4]}, patience_s=0.2))
        self.assertEqual(error.code, "queue_full")
        self.assertGreaterEqual(time.monotonic() - began, 0.2)

    def test_copies_have_their_own(self) -> None:
        self.client.submit({1: [4]})
        with pickle.loads(pickle.dumps(self.client)) as copy:
            self.assertEqual(copy.fetch(1).step, 1)
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if self.client.fetch(1).step == 1 else 1)
            finally:
                os._exit(2)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(self.client.fetch(1).step, 1)
        self.assertEqual(self.fake.connections, 3)

    def test_no_torch(self) -> None:
        program = ("import sys; from evenkeel import Client; import batch_sampler; "
                   "bad = {'torch', 'numpy'} & set(sys.modules); assert not bad, bad")
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([ROOT, os.path.join(ROOT, "examples")])}
        subprocess.run([sys.executable, "-B", "-c", program], env=env, check=True)


class Sampler(Case):
    LENGTHS = [100 + i for i in range(10)]

    def sampler(self, rank: int) -> batch_sampler.PlannedBatchSampler:
        return batch_sampler.PlannedBatchSampler(self.LENGTHS, 4, rank, self.client)

    def test_ranks_share_a_batch(self) -> None:
        samplers = [self.sampler(r) for r in range(3)]
        for epoch in range(2):
            seen: dict[tuple[int, int], list[batch_sampler.MicroBatch]] = {}
            for s in samplers:
                s.set_epoch(epoch)
                micros = list(s)
                self.assertEqual([m.step for m in micros], [2 * epoch + k for k in (0, 0, 1, 1)])
                self.assertEqual([m.last for m in micros], [False, True] * 2)
                for i, m in enumerate(micros):
                    seen.setdefault((m.step, i % 2), []).append(m)
            samples = []
            for (_, micro), of_ranks in seen.items():
                zero, one, two = of_ranks
                if micro == 0:
                    self.assertEqual((zero, zero.ranks, one.ranks, two.ranks), (one, (0, 1), (0, 1), (2,)))
                    samples += zero + two
                else:
                    self.assertEqual((zero.ranks, one, one.ranks, two), ((0,), [], (), []))
                    samples += zero
            self.assertEqual(len(set(samples)), 8)  # two batches of 4, no sample twice
        again = pickle.loads(pickle.dumps(zero))
        self.assertEqual((again, again.ranks, again.step), (zero, zero.ranks, zero.step))

    def test_it_asks_one_step_ahead(self) -> None:
        micros = iter(self.sampler(0))
        next(micros)
        self.assertEqual(self.fake.log, [
            "POST /v1/jobs/mine/batches 0", "POST /v1/jobs/mine/batches 1", "GET /v1/jobs/mine/plans/0"])

    def test_a_data_loader_takes_it(self) -> None:
        try:
            from torch.utils.data import DataLoader
        except ImportError:
            self.skipTest("no torch")
        sampler = self.sampler(0)
        data: Any = self.LENGTHS
        loader: Any = DataLoader(data, batch_sampler=sampler, collate_fn=list)
        self.assertEqual(list(loader), [[self.LENGTHS[i] for i in m] for m in self.sampler(0)])

    def test_bad_batch_size(self) -> None:
        self.assertRaisesRegex(ValueError, "batch_size: 11: want 1 to 10", batch_sampler.PlannedBatchSampler,
                               self.LENGTHS, 11, 0, self.client)

    def test_the_script(self) -> None:
        lengths = os.path.join(self.folder, "lengths.txt")
        with open(lengths, "w", encoding="utf-8") as file:
            file.writelines(f"{n}\n" for n in [50, 50, 50, 50, 50, 50])
        script = os.path.join(ROOT, "examples", "batch_sampler.py")

        def run(*more: str) -> "subprocess.CompletedProcess[str]":
            return subprocess.run([sys.executable, "-B", script, *more], text=True, capture_output=True,
                                  env={**os.environ, "PYTHONPATH": ROOT}, check=False)

        done = run(self.fake.path, lengths, "--batch", "3", "--steps", "1")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout.splitlines(), [
            "step 0: 1 sequences, 50 tokens, with ranks 0,1", "step 0: 1 sequences, 50 tokens, with ranks 0",
            "step 0 ends"])
        failed = run(os.path.join(self.folder, "none"), lengths, "--batch", "3")
        self.assertEqual(failed.returncode, 1)
        self.assertRegex(failed.stderr, r"^batch_sampler.py: .*none: .*No such file")
        with open(lengths, "w", encoding="utf-8") as file:
            file.write("\nn_tokens\n50\n")
        failed = run(self.fake.path, lengths, "--batch", "1")
        self.assertEqual(failed.returncode, 1)
        self.assertRegex(failed.stderr, r"^batch_sampler.py: .*lengths.txt:2: 'n_tokens': want the tokens of one sample")


if __name__ == "__main__":
    unittest.main()
