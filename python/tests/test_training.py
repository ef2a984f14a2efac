"""Whole training steps of plans on unequal ranks: against one process that trains the same model."""

from __future__ import annotations

import itertools
import os
import sys
import unittest
from typing import Any
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import torch

from evenkeel import adamw, reference
from evenkeel.drawn import Drawn
from plans import document
from test_replay import complete
from world import SixRanks

ZEROS = ("zero0", "zero1", "zero2", "zero3")


def unequal() -> dict[str, Any]:
    """Three ranks of two groups: one has heads but no tokens."""
    segments: list[list[tuple[int, int]]] = [[(0, 9), (30, 41)], [], [(9, 30)]]
    return document(segments, [[(0, 1), (1, 3)], [(2, 4)]], 4, 2, 8)


def left_out() -> dict[str, Any]:
    """Of four ranks the first takes no part; another has tokens but no heads."""
    segments: list[list[tuple[int, int]]] = [[], [(0, 5), (29, 37)], [(5, 20)], [(20, 29)]]
    return document(segments, [[(2, 4), (1, 0)], [(3, 4)]], 4, 2, 8)


def trained(
    of: dict[str, Any], zero: str = "", overlap: bool = False, recompute: str = "none", dtype: str = "f32",
    **model: Any
) -> dict[str, Any]:
    """A plan of a small model. An empty zero is none in the document."""
    plan = complete(of, recompute, dtype, **{"hidden": 24, "ffn": 20, "vocab": 31, **model})
    if zero:
        plan["job"]["zero"] = zero
    if overlap:
        plan["job"]["overlap_zero"] = True
    return plan


GPT2 = {"gated_mlp": False, "layer_norm": True, "qkv_bias": True, "out_bias": True, "mlp_bias": True,
        "position_rows": 50, "tied_embeddings": True}
PLAIN = {"tied_embeddings": False, "vocab_bias": True, "qk_norm": True}


# Moments are sums of gradients and of their squares. What a parameter changes by is near the gradient's sign, which
# rounding turns where a gradient is nearly zero. Without rotary positions those of the biases of keys are zero but for
# rounding, and so their changes are any.
LIMITS = {
    ("f32", False): {"moment1": 5e-6, "moment2": 5e-6, "change": 1e-3, "has": 2e-7},
    ("f32", True): {"moment1": 5e-6, "moment2": 5e-6, "change": 0.2, "has": 2e-4},
    ("bf16", False): {"moment1": 5e-2, "moment2": 7e-2, "change": 0.3, "has": 2e-3},
    ("bf16", True): {"moment1": 5e-2, "moment2": 7e-2, "change": 0.3, "has": 2e-3},
}


def learned(of: unittest.TestCase, plan: dict[str, Any], answers: list[Any], members: list[int]) -> list[Any]:
    """All members have learned what one process has: their answers."""
    of.assertEqual([r for r, x in enumerate(answers) if x is not None], members)
    for x in filter(None, answers):
        for name, limit in LIMITS[plan["job"]["dtype"], bool(plan["job"]["model"].get("position_rows"))].items():
            of.assertLess(x[name], limit, (name, x))
        of.assertEqual((x["steps"], x["left"]), (2, 0))
    return [x for x in answers if x is not None]


class TestTraining(SixRanks):
    jobs = "training_jobs."

    def check(self, plan: dict[str, Any], layers: int, *args: Any) -> list[dict[str, Any]]:
        """See learned."""
        answers = self.answers(len(plan["ranks"]), "trains", plan, layers, *args)
        return learned(self, plan, answers, sorted(m["rank"] for g in plan["groups"] for m in g))

    def test_stages(self) -> None:
        """Of ZeRO, with and without what goes beside, tied and not."""
        for i, (zero, overlap) in enumerate(itertools.product(ZEROS, (False, True))):
            with self.subTest(zero=zero, overlap=overlap):
                self.check(trained(unequal(), zero, overlap, **(PLAIN if (i // 2 + i) % 2 else {})), 2)

    def test_models(self) -> None:
        """A rank that takes no part, one without heads, learned positions, norms with biases, documents, recomputation,
        one layer, and stages and overlap where the document does not say."""
        for i, (model, recompute, docs) in enumerate(itertools.product(
                (GPT2, PLAIN, {"shared_norm": True, "qkv_bias": True}), ("none", "full"), (None, [7, 30]))):
            with self.subTest(model=model, recompute=recompute, docs=docs):
                zero, overlap = ("", "zero0", "zero1", "zero3")[i % 4], i % 3 == 0
                self.check(trained(left_out(), zero, overlap, recompute, **model), 1 + i % 3, docs, 4)

    def test_bf16(self) -> None:
        """Float32 masters. gloo of torch 1.13 adds up no bf16, so sums are in float32."""
        for zero in ZEROS:
            with self.subTest(zero=zero):
                self.check(trained(unequal(), zero, zero == "zero3", dtype="bf16", **PLAIN), 2)
                self.check(trained(unequal(), zero, zero == "zero1", dtype="bf16", **GPT2), 1)

    def test_order(self) -> None:
        """What is posted beside layers, and what is waited for before them."""
        plan = document([[(0, 20)], [(20, 33)]], [[(0, 4)], [(1, 4)]], 4, 2, 8)
        for zero, overlap, want in (
            ("zero3", True,
             "gather rest, gather 0, wait gather rest, fwd embed, wait gather 0, gather 1, fwd 0, wait gather 1, "
             "gather 2, fwd 1, wait gather 2, fwd 2, fwd loss, gather 2, wait gather 2, gather 1, bwd 2, reduce 2, "
             "wait gather 1, gather 0, bwd 1, reduce 1, wait gather 0, bwd 0, reduce 0, bwd embed, reduce rest, "
             "wait reduce 2, wait reduce 1, wait reduce 0, wait reduce rest, bwd optimizer"),
            ("zero3", False,
             "gather rest, wait gather rest, fwd embed, gather 0, wait gather 0, fwd 0, gather 1, wait gather 1, "
             "fwd 1, gather 2, wait gather 2, fwd 2, fwd loss, gather 2, wait gather 2, bwd 2, reduce 2, "
             "wait reduce 2, gather 1, wait gather 1, bwd 1, reduce 1, wait reduce 1, gather 0, wait gather 0, "
             "bwd 0, reduce 0, wait reduce 0, bwd embed, reduce rest, wait reduce rest, bwd optimizer"),
            ("zero1", True,
             "fwd embed, fwd 0, fwd 1, fwd 2, fwd loss, bwd 2, reduce 2, bwd 1, reduce 1, bwd 0, reduce 0, bwd embed, "
             "reduce rest, wait reduce 2, wait reduce 1, wait reduce 0, wait reduce rest, bwd optimizer, gather rest, "
             "gather 0, gather 1, gather 2, wait gather rest, wait gather 0, wait gather 1, wait gather 2"),
        ):
            for events in self.answers(2, "ordered", trained(plan, zero, overlap), 3):
                self.assertEqual(", ".join(events), want)
            del plan["job"]["zero"]
            plan["job"].pop("overlap_zero", None)

    def test_one_member(self) -> None:
        """Which exchanges nothing."""
        for zero, dtype in (("zero0", "f32"), ("zero3", "f32"), ("", "bf16")):
            plan = trained(document([[(0, 33)], []], [[(0, 4)]], 4, 2, 8), zero, True, dtype=dtype)
            (answer,) = self.check(plan, 2)
            self.assertEqual(answer["kind"], "")

    def test_other_libraries(self) -> None:
        """gloo of torch 1.13 has no reduce-scatter: members take their parts of whole sums. NCCL has, and gathers into
        one tensor. Tensors of a GPU go through the host over gloo."""
        for zero, (how, dtype) in itertools.product(ZEROS, (
                ("scatter", "f32"), ("scatter", "bf16"), ("nccl", "f32"), ("staged", "f32"), ("staged", "bf16"))):
            with self.subTest(zero=zero, how=how, dtype=dtype):
                plan = trained(unequal(), zero, zero != "zero1", dtype=dtype, **PLAIN)
                for answer in self.check(plan, 2, None, 5, how):
                    scatters = how != "staged" and zero != "zero0"
                    self.assertEqual(answer["kind"], "reduce_scatter" if scatters else "all_reduce")


class TestAdamW(unittest.TestCase):
    def test_updates(self) -> None:
        """Four of them, by five passes and by the library's update where it has one that works, against the
        reference."""
        calls: list[float] = []

        def fused(p: Any, g: Any, m: Any, v: Any, most: Any, steps: Any, *, lr: float, beta1: float, beta2: float,
                  weight_decay: float, eps: float, amsgrad: bool, maximize: bool) -> None:
            self.assertEqual((lr, beta1, beta2, weight_decay, eps, amsgrad, maximize, most),
                             (1e-4, 0.9, 0.95, 0.1, 1e-8, False, False, []))
            calls.append(float(steps[0]))
            for x, new in zip((p[0], m[0], v[0]), reference.adamw(p[0], m[0], v[0], g[0], int(steps[0]))):
                x.copy_(new)

        def none(*_: Any, **__: Any) -> None:
            raise RuntimeError("not for this device")

        for update in (None, none, fused):
            with mock.patch.object(torch, "_fused_adamw_", update, create=True):
                params, grads = (
                    Drawn(1, name).filled(1001, dtype=torch.float32, scale=0.1) for name in ("p", "g"))
                begun = params.double()
                optimizer, wants = adamw.AdamW(params, grads), [begun, *torch.zeros(2, 1001).double()]
                for step in range(1, 5):
                    grads.mul_(-1.5)
                    optimizer.step()
                    wants = list(reference.adamw(wants[0], wants[1], wants[2], grads, step))
            gots = (params - begun, optimizer.moment1, optimizer.moment2)
            for got, want, limit in zip(gots, (wants[0] - begun, *wants[1:]), (1e-3, 1e-6, 1e-6)):
                self.assertLess(float((got - want).norm() / want.norm()), limit)
        self.assertEqual(calls, [1, 1, 2, 3, 4])  # the first is a trial


if __name__ == "__main__":
    unittest.main()
