"""The meeting of ranks, where rank 0 comes late, never, or finds its port taken."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

from evenkeel import rendezvous
from evenkeel.frames import Fault
from evenkeel.rendezvous import Meeting, World

LATE_S = 4.0

# Keeps a store until stdin ends, from some seconds after its start on.
KEEPER = """
import sys, time, torch.distributed as dist
time.sleep(float(sys.argv[2]))
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
sys.stdin.read()
"""


def _free() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class TestMeeting(unittest.TestCase):
    """Meeting, of ranks in processes of their own."""

    def test_a_rank_that_waits_for_rank_0_goes_on_beating(self) -> None:
        """As long as it waits, other threads of its process run: one of them tells its starter that it is
        alive."""
        port, worst, over = _free(), [0.0], threading.Event()

        def beats() -> None:
            last = time.monotonic()
            while not over.wait(0.05):
                worst[0], last = max(worst[0], time.monotonic() - last), time.monotonic()

        thread = threading.Thread(target=beats)
        keeper = subprocess.Popen([sys.executable, "-c", KEEPER, str(port), str(LATE_S)], stdin=subprocess.PIPE)
        thread.start()
        try:
            Meeting(World(1, 2, 1, "127.0.0.1", port), 1.0)
        finally:
            over.set()
            thread.join()
            keeper.communicate()
        self.assertLess(worst[0], LATE_S / 2)

    def test_a_rank_0_that_never_comes(self) -> None:
        """is asked for, by its address."""
        port = _free()
        with mock.patch.object(rendezvous, "MEET_S", 0.1), self.assertRaises(Fault) as raised:
            Meeting(World(1, 2, 1, "127.0.0.1", port), 0.2)
        self.assertIn(f"no store at 127.0.0.1:{port} within 0.3 s", raised.exception.said)
        self.assertIn("is rank 0 started there?", raised.exception.said)

    def test_a_port_that_is_taken(self) -> None:
        """is said with the way to another."""
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            with self.assertRaises(Fault) as raised:
                Meeting(World(0, 2, 0, "127.0.0.1", s.getsockname()[1]), 1.0)
        self.assertIn("set another: MASTER_PORT", raised.exception.said)


if __name__ == "__main__":
    unittest.main()
