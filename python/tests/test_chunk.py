"""The attention of chunks on a stage of one rank, which needs no others: what it holds, and for how long."""

from __future__ import annotations

import os
import sys
import unittest
import weakref
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import torch
from torch import Tensor

import dense
import evenkeel
from evenkeel.chunk import ChunkRun, Stores, chunk_attention
from evenkeel.stages import Pipeline, pipeline_of
from pipelines import B, F, document

Q, KV, DIM = 6, 2, 8


def four_chunks() -> Pipeline:
    """A sequence of 24 tokens in slices of 10, 8 and 6, with whole ones of 5 behind the first slice and of 3 behind
    the last, and one of 4 alone."""
    chunks = [((0, 0, 10), [1]), ((0, 10, 8), []), ((0, 18, 6), [2]), (None, [3])]
    order = [(0, F), (1, F), (2, F), (3, F), (2, B), (3, B), (1, B), (0, B)]
    return pipeline_of(document([24, 5, 3, 4], chunks, [([0], 1)], [order], [[0] * 4], (Q, KV, DIM)), 1)


class Passes:
    """The four chunks, forward and backward by hand."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.plan = four_chunks()
        source = torch.Generator().manual_seed(3)
        self.whole = [[torch.randn(n, h, DIM, generator=source).to(dtype) for h in (Q, KV, KV, Q)]
                      for n in self.plan.lengths]
        self.stores: Stores = {}
        self.leaves: dict[int, list[Tensor]] = {}
        self.outs: dict[int, Tensor] = {}

    def own(self, chunk: int, side: int) -> Tensor:
        return torch.cat([self.whole[q][side][lo:hi] for q, lo, hi in self.plan.positions(0, chunk)])

    def forward(self, chunk: int, kernel: Any = None) -> ChunkRun:
        if torch.is_grad_enabled():
            self.leaves[chunk] = [self.own(chunk, i).requires_grad_() for i in range(3)]
        out = chunk_attention(self.plan.plan(0, chunk), 0, self.leaves[chunk], self.plan.chunks[chunk], self.stores,
                              kernel=kernel or evenkeel.Math())
        if torch.is_grad_enabled():
            self.outs[chunk] = out
        return getattr(out.grad_fn, "run", None)

    def backward(self, chunk: int) -> None:
        self.outs.pop(chunk).backward(self.own(chunk, 3))


def held(*tensors: Tensor) -> int:
    """Bytes of the memory that is behind some tensors."""
    return sum({x.storage().data_ptr(): len(x.storage()) * x.element_size() for x in tensors}.values())


class TestChunks(unittest.TestCase):
    def test_right_however_often_forward(self) -> None:
        """Also where a forward pass is only made for what comes of it, and once more before its backward."""
        of = Passes()
        for k in range(4):
            of.leaves[k] = [of.own(k, i) for i in range(3)]
            with torch.no_grad():
                of.forward(k)
        grads: dict[int, list[Tensor]] = {}
        outs = {}
        for k in (2, 3, 1, 0):
            of.forward(k)
            outs[k] = of.outs[k].detach()
            of.backward(k)
            grads[k] = [x.grad for x in of.leaves[k]]
        for i, sides in enumerate(of.whole):
            wants = dense.with_gradients(*sides, None)
            for j, want in enumerate(wants):
                got = []
                for k in range(4):
                    at = 0
                    for q, lo, hi in of.plan.positions(0, k):
                        if q == i:
                            got.append((outs[k] if j == 0 else grads[k][j - 1])[at:at + hi - lo])
                        at += hi - lo
                self.assertLess(dense.error(torch.cat(got), want, float(want.norm())), 1e-6, f"sequence {i}, {j}")

    def test_keys_and_values_are_held_once(self) -> None:
        """Those of all slices but the last in one place, which there is from the first one on; of each other piece
        its own, and never also where they came in."""
        of, one = Passes(), 2 * KV * DIM * 4  # bytes of a token
        runs = [of.forward(k) for k in range(4)]
        store = of.stores[0].kv
        assert store is not None
        self.assertEqual((list(of.stores), held(store)), ([0], 18 * one))
        for run, tokens in zip(runs, ([10, 5], [8], [6, 3], [4])):
            self.assertEqual([x.shape[2] for x in run._keys], tokens)
        kept = [x for run in runs for x in run._keys]
        came = [run._held.kv for run in runs]
        self.assertEqual(held(store, *kept, *came), (24 + 5 + 3 + 4) * one)
        self.assertEqual([runs[0]._keys[0].storage().data_ptr(), runs[1]._keys[0].storage().data_ptr()],
                         [store.storage().data_ptr()] * 2)

    def test_gradients_of_a_context(self) -> None:
        """They are there from the last slice's backward pass on, in float32 whatever the activations are, and gone
        with keys and values when the first slice's is over."""
        of = Passes(torch.bfloat16)
        runs = [of.forward(k) for k in range(4)]
        store = of.stores[0]
        assert store.kv is not None
        self.assertEqual((store.kv.dtype, store.kv.shape, store.grads), (torch.bfloat16, (KV, 2, 18, DIM), None))
        of.backward(3)
        self.assertIsNone(store.grads)
        of.backward(2)
        assert store.grads is not None
        self.assertEqual((store.grads.dtype, store.grads.shape), (torch.float32, (KV, 2, 18, DIM)))
        left = store.grads.clone()
        of.backward(1)
        self.assertTrue(torch.equal(store.grads[:, :, 10:], left[:, :, 10:]))
        self.assertFalse(torch.equal(store.grads[:, :, :10], left[:, :, :10]))
        gone = [weakref.ref(x) for x in (store, store.kv, store.grads)]
        del store
        of.backward(0)
        self.assertEqual((of.stores, [ref() for ref in gone]), ({}, [None] * 3))
        for run in runs:
            self.assertEqual((run._keys, run._held), ([], None))

    def test_blocks(self) -> None:
        """Of a piece its own square first, then a rectangle with all of its context; scores of packed sequences or
        of later tokens are never computed."""
        of, seen = Passes(), []

        class Noting(evenkeel.Math):
            def forward(self, q: Tensor, k: Tensor, v: Tensor, shared: Any, causal: bool) -> Any:
                seen.append((q.shape[1], k.shape[1], causal))
                return super().forward(q, k, v, shared, causal)

        for k in range(4):
            of.forward(k, Noting())
        self.assertEqual(seen, [(10, 10, True), (5, 5, True), (8, 8, True), (8, 10, False), (6, 6, True),
                                (6, 18, False), (3, 3, True), (4, 4, True)])


if __name__ == "__main__":
    unittest.main()
