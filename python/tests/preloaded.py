"""What is imported before processes of tests are forked; see forked.py."""

from __future__ import annotations

import gc

import evenkeel.replay
import jobs
import starter
import world

__all__ = ["evenkeel", "jobs", "starter", "world"]

# Forks leave it alone then: collecting garbage writes to each object, and a fork would copy the memory of all modules.
gc.collect()
gc.freeze()
