"""Causal attention over ranks that own unequal numbers of tokens and heads, as a plan of evenkeel says.

    plan = evenkeel.load_plan("plan.json")
    out = evenkeel.attention(plan, rank, q, k, v)  # with autograd; every rank of the plan calls it

See README.md beside this package. torch is all it needs.
"""

from .closed import PHASES, Expected, expected
from .executor import attention
from .kernels import FlashAttention2, Kernel, Math, Repeating, TorchFlash
from .lane import LaneError
from .meter import Meter, Span, Trace
from .plan import SCHEMA, Plan, PlanError, Segment, Share, load_plan
from .port import ExchangeError, warm_up
from .tokens import positions, shard, unshard

__all__ = [
    "PHASES", "SCHEMA", "ExchangeError", "Expected", "FlashAttention2", "Kernel", "LaneError", "Math",
    "Meter", "Plan", "PlanError", "Repeating", "Segment", "Share", "Span", "TorchFlash", "Trace", "attention",
    "expected", "load_plan", "positions", "shard", "unshard", "warm_up",
]
__version__ = "0.1.0"
