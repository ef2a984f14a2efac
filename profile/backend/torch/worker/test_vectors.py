"""Tests of what limits a worker on processors: cores of its own, and vector units."""

import os
import sys
import threading
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402, F401  (loaded before tests that replace what loads libraries)

import vectors  # noqa: E402


def apart(call) -> int:
    """The exit status of a call in a process of its own, which may change what it may run on."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(call())
        except BaseException:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Cores(unittest.TestCase):
    def test_a_worker_keeps_to_its_cores_and_so_do_its_threads(self):
        cores = sorted(os.sched_getaffinity(0))

        def last() -> int:
            vectors.keep_to([len(cores) - 1])
            seen = []
            thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
            thread.start()
            thread.join()
            return 0 if os.sched_getaffinity(0) == seen[0] == {cores[-1]} else 1

        self.assertEqual(apart(last), 0)

    def test_nothing_asked_for_leaves_all_cores(self):
        before = os.sched_getaffinity(0)
        for nothing in (None, [], "0"):
            vectors.keep_to(nothing)
        self.assertEqual(os.sched_getaffinity(0), before)

    def test_cores_that_are_not_there_are_refused(self):
        n = len(os.sched_getaffinity(0))
        with self.assertRaisesRegex(ValueError, f"this process may use {n} cores"):
            vectors.keep_to([n])


class Units(unittest.TestCase):
    def test_the_libraries_say_what_they_use(self):
        said = vectors.describe()
        self.assertTrue(said["aten"])
        self.assertEqual(sorted(said), ["aten", "blas", "limits", "reference_blas"])

    def test_what_is_set_is_told(self):
        before = os.environ.get("ONEDNN_MAX_CPU_ISA")
        os.environ["ONEDNN_MAX_CPU_ISA"] = "SSE41"
        try:
            self.assertEqual(vectors.describe()["limits"]["ONEDNN_MAX_CPU_ISA"], "SSE41")
        finally:
            if before is None:
                del os.environ["ONEDNN_MAX_CPU_ISA"]
            else:
                os.environ["ONEDNN_MAX_CPU_ISA"] = before

    def test_a_reference_blas_is_told_from_an_optimised_one(self):
        plain, better = types.SimpleNamespace(), types.SimpleNamespace(openblas_get_corename=None)
        for library, want in ((plain, "/lib/libblas.so.3"), (better, "")):
            with mock.patch.object(vectors, "_loaded", lambda word: ["/lib/libblas.so.3"]), \
                    mock.patch.object(vectors.ctypes, "CDLL", lambda path, library=library: library), \
                    mock.patch("torch.backends.mkl.is_available", lambda: False):
                self.assertEqual(vectors._reference_blas(), want)

    def test_torch_with_mkl_needs_no_other_blas(self):
        with mock.patch("torch.backends.mkl.is_available", lambda: True), \
                mock.patch.object(vectors, "_loaded", lambda word: self.fail("looked at " + word)):
            self.assertEqual(vectors._reference_blas(), "")


if __name__ == "__main__":
    unittest.main()
