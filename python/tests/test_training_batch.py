"""Whole training steps of plans of batches: against one process that trains the same model on all sequences."""

from __future__ import annotations

import copy
import itertools
import os
import sys
import unittest
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import torch

from evenkeel import training
from evenkeel.drawn import Drawn
from evenkeel.loss import Learning
from evenkeel.parts import Lost, work_of
from evenkeel.whole import model_of
from test_replay_batch import MICRO, RING, alone, head
from test_training import GPT2, PLAIN, ZEROS, learned
from world import SixRanks

Micro = list[list[dict[str, Any]]]

# Of five ranks 1 has no part in the second micro-batch, 0 and 2 have none in the last; 4 has none in any, and weights
# all the same; 3 is left out. One group recomputes.
RAGGED: Micro = [*MICRO, [alone(1, [9, 4])]]
LEFT = [3]


def batch(
    zero: str, overlap: bool = False, ranks: int = 5, left: Any = LEFT, dtype: str = "f32", **model: Any
) -> dict[str, Any]:
    """What a request has of such a plan, of a small model, beside its micro-batches."""
    of = head(ranks, **{"hidden": 24, "ffn": 20, "vocab": 31, **model})
    of["job"].update(zero=zero, dtype=dtype, **({"overlap_zero": True} if overlap else {}))
    return {**of, **({"left_out_ranks": left} if left else {})}


def in_dtype(micro: Micro, dtype: str) -> Micro:
    """The same in another precision."""
    micro = copy.deepcopy(micro)
    for part in itertools.chain(*micro):
        part["plan"]["job"]["dtype"] = dtype
    return micro


class TestTrainingOfBatches(SixRanks):
    jobs = "training_jobs."

    def check(
        self, of: dict[str, Any], micro: Micro, layers: int = 2, chunk: int = 7, how: str = ""
    ) -> list[dict[str, Any]]:
        """All members have learned what one process has."""
        size, micro = len(of["ranks"]), in_dtype(micro, of["job"]["dtype"])
        answers = self.answers(size, "trains", of, layers, None, chunk, how, micro)
        return learned(self, of, answers, [r for r in range(size) if r not in of.get("left_out_ranks", ())])

    def test_stages(self) -> None:
        """Of ZeRO, with and without what goes beside, of a batch and of the same in another order: ranks that have no
        part in the first, in the last or in any micro-batch, one that is left out."""
        for i, (zero, overlap) in enumerate(itertools.product(ZEROS, (False, True))):
            for micro in (RAGGED, RAGGED[::-1]):
                with self.subTest(zero=zero, overlap=overlap):
                    self.check(batch(zero, overlap, **(PLAIN if (i // 2 + i) % 2 else {})), micro)

    def test_models(self) -> None:
        """A tied projection and learned positions, as many as the longest document has; a rank with heads but no
        tokens; a micro-batch in which nobody has a part, and one micro-batch alone."""
        for i, (model, micro) in enumerate(itertools.product(
                ({**GPT2, "position_rows": 60}, {"shared_norm": True, "qkv_bias": True}),
                ([RING[0], *RAGGED], [RAGGED[0], [], RAGGED[2], RING[0]], RING, [RAGGED[2]]))):
            with self.subTest(model=model, micro=len(micro)):
                self.check(batch(ZEROS[(i + i // 4) % 4], i % 3 == 0, **model), micro, 1 + i % 2, 4)

    def test_bf16(self) -> None:
        """Gradients are added up in float32 masters' precision by stages 2 and 3, else at the weights."""
        for i, zero in enumerate(ZEROS):
            with self.subTest(zero=zero):
                self.check(batch(zero, i % 2 == 0, dtype="bf16", **PLAIN), RAGGED)
                self.check(batch(zero, i % 2 == 1, dtype="bf16", **{**GPT2, "position_rows": 60}), RAGGED[::-1], 1)

    def test_other_libraries(self) -> None:
        """What a reduce-scatter puts where the optimizer takes it is not overwritten by the next micro-batch's."""
        for zero, (how, dtype) in itertools.product(ZEROS[1:], (
                ("scatter", "f32"), ("scatter", "bf16"), ("nccl", "f32"), ("staged", "f32"))):
            with self.subTest(zero=zero, how=how, dtype=dtype):
                for answer in self.check(batch(zero, zero != "zero2", dtype=dtype), RAGGED, 1, how=how):
                    self.assertEqual(answer["kind"], "all_reduce" if how == "staged" else "reduce_scatter")

    def test_one_member(self) -> None:
        """Which exchanges nothing, and adds up at its weights by any stage."""
        for zero in ("zero0", "zero2", "zero3"):
            of = batch(zero, True, 2, [0])
            (answer,) = self.check(of, [[alone(1, [22, 3])], [], [alone(1, [9], "full")], [alone(1, [31])]])
            self.assertEqual(answer["kind"], "")

    def test_order(self) -> None:
        """What is posted and waited for in every micro-batch, and what in the last one alone; by a rank without a part
        in the first one the same."""
        micro = [[alone(0, [20])], [alone(0, [8]), alone(1, [13])]]
        forward, lost, back = "fwd embed, fwd 0, fwd 1, ", "fwd loss, ", "bwd 1, bwd 0, bwd embed, "
        reduced = "bwd 1, reduce 1, bwd 0, reduce 0, bwd embed, reduce rest, "
        arrived = "wait reduce 1, wait reduce 0, wait reduce rest, "
        shared = "bwd optimizer, gather rest, gather 0, gather 1, wait gather rest, wait gather 0, wait gather 1"
        behind = "reduce 1, wait reduce 1, reduce 0, wait reduce 0, reduce rest, wait reduce rest, "
        gathered = "gather rest, gather 0, wait gather rest, fwd embed, wait gather 0, gather 1, fwd 0, " \
                   "wait gather 1, fwd 1, fwd loss, gather 1, wait gather 1, gather 0, bwd 1, reduce 1, " \
                   "wait gather 0, bwd 0, reduce 0, bwd embed, reduce rest, " + arrived
        for zero, overlap, want, idle in (
            ("zero0", True, forward + lost + back + forward + lost + reduced + arrived + "bwd optimizer", ""),
            ("zero1", True, forward + lost + back + forward + lost + reduced + arrived + shared, ""),
            ("zero2", True, 2 * (forward + lost + reduced + arrived) + shared,
             "reduce 1, reduce 0, reduce rest, " + arrived),
            ("zero2", False, 2 * (forward + lost + "bwd 1, reduce 1, wait reduce 1, bwd 0, reduce 0, wait reduce 0, "
                                  "bwd embed, reduce rest, wait reduce rest, ") + shared, behind),
            ("zero3", True, 2 * gathered + "bwd optimizer",
             "gather rest, gather 0, wait gather rest, wait gather 0, gather 1, wait gather 1, gather 1, "
             "wait gather 1, gather 0, reduce 1, wait gather 0, reduce 0, reduce rest, " + arrived
             + "gather rest, gather 0, wait gather rest, "),
        ):
            with self.subTest(zero=zero, overlap=overlap):
                first, second = self.answers(2, "ordered", batch(zero, overlap, 2, ()), 2, micro)
                self.assertEqual(", ".join(first), want)
                self.assertEqual("".join(f"{x}, " for x in second[:second.index("fwd embed")]), idle)
                posted, theirs = ([x for x in of if x[:3] not in ("fwd", "bwd")] for of in (first, second))
                self.assertEqual(theirs, posted)


class TestTexts(unittest.TestCase):
    def test_sequences_follow_each_other(self) -> None:
        """Words by a number that runs through all parts, positions in documents; none where a rank has no part."""
        work = work_of(batch("zero0"), RAGGED, None, 5)
        first, second, third = training.texts(work, 2, 31)
        assert first is not None and second is not None
        own = [*range(2, 4), *range(20, 50), *range(66, 68)]
        self.assertEqual(first.words.tolist(), [x * 40503 % 31 for x in own])
        self.assertEqual(first.places.tolist(), [2, 3, *range(14, 44), 0, 1])
        own = [*range(10, 25), 31]
        self.assertEqual(second.words.tolist(), [(68 + 44 + x) * 40503 % 31 for x in own])
        self.assertEqual(second.places.tolist(), [*range(10, 25), 0])
        self.assertIsNone(third)
        self.assertEqual(training.texts(work, 4, 31), [None, None, None])


class TestLearning(unittest.TestCase):
    def test_gradients_are_added_to_those_at_the_weights(self) -> None:
        """Of a projection and its bias, in chunks; and none of before where they were taken away."""
        model, of = model_of(head(1)), Lost(31, 4, 1, "f32")
        for table in (None, Drawn(2, "table").filled(31, model.hidden, dtype=torch.float32).requires_grad_()):
            loss = Learning(of, model, torch.device("cpu"), table, True)
            xs = [Drawn(3, name).filled(n, model.hidden, dtype=torch.float32) for name, n in (("a", 6), ("b", 9))]
            each = []
            for x in xs:
                loss.gradient(x)
                each.append(loss.learnt())
            for x in xs:
                loss.gradient(x)
            for both, *alone_ in zip(loss.learnt(), *each):
                want = sum(alone_[1:], alone_[0])
                self.assertLess(float((both - want).norm()), 1e-5 * float(want.norm()))


if __name__ == "__main__":
    unittest.main()
