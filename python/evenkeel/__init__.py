"""Causal attention over ranks that own unequal numbers of tokens and heads, as a plan of evenkeel says.

    plan = evenkeel.load_plan("plan.json")
    out = evenkeel.attention(plan, rank, q, k, v)  # with autograd; every rank of the plan calls it

And the client of `evenkeel serve`, which plans batches of unequal sequences. See README.md beside this
package. torch is all it needs, and the client not even that: a name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .alike import agree
    from .batches import Batch, BatchPart, load_batch
    from .client import BatchPlan, Client, Group, Interval, ServeError
    from .closed import PHASES, Expected, expected
    from .executor import attention, begin_backward
    from .kernels import (
        FlashAttention2, Kernel, Math, Repeating, TorchCPU, TorchCudnn, TorchEfficient, TorchFlash,
    )
    from .lane import LaneError
    from .meter import Meter, Span, Trace
    from .pipelined import PipelineStage, load_pipeline
    from .plan import SCHEMA, Plan, PlanError, Segment, Share, load_plan
    from .port import ExchangeError, warm_up
    from .split import SplitAttention, begin_attention
    from .task_trainer import Needed, TaskModule, TaskRun, TaskRuns, load_tasks
    from .tokens import positions, shard, unshard

_PLACES = {
    "alike": ("agree",),
    "batches": ("Batch", "BatchPart", "load_batch"),
    "client": ("BatchPlan", "Client", "Group", "Interval", "ServeError"),
    "closed": ("PHASES", "Expected", "expected"),
    "executor": ("attention", "begin_backward"),
    "kernels": ("FlashAttention2", "Kernel", "Math", "Repeating", "TorchCPU", "TorchCudnn", "TorchEfficient",
                "TorchFlash"),
    "lane": ("LaneError",),
    "meter": ("Meter", "Span", "Trace"),
    "pipelined": ("PipelineStage", "load_pipeline"),
    "plan": ("SCHEMA", "Plan", "PlanError", "Segment", "Share", "load_plan"),
    "port": ("ExchangeError", "warm_up"),
    "split": ("SplitAttention", "begin_attention"),
    "task_trainer": ("Needed", "TaskModule", "TaskRun", "TaskRuns", "load_tasks"),
    "tokens": ("positions", "shard", "unshard"),
}

__all__ = [
    "PHASES", "SCHEMA", "Batch", "BatchPart", "BatchPlan", "Client", "ExchangeError", "Expected", "FlashAttention2",
    "Group", "Interval", "Kernel", "LaneError", "Math", "Meter", "Needed", "PipelineStage", "Plan", "PlanError",
    "Repeating", "Segment", "ServeError", "Share", "Span", "SplitAttention", "TaskModule", "TaskRun", "TaskRuns",
    "TorchCPU", "TorchCudnn", "TorchEfficient", "TorchFlash", "Trace", "agree", "attention", "begin_attention",
    "begin_backward", "expected", "load_batch", "load_pipeline", "load_plan", "load_tasks", "positions", "shard",
    "unshard", "warm_up",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Imports the module that a public name is in."""
    for module, names in _PLACES.items():
        if name in names:
            value = getattr(import_module("." + module, __name__), name)
            # A function may be called as the module that it is in: the name must not be the module's.
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
