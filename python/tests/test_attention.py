"""The executor on real ranks over gloo, against dense float64 attention and the closed forms.

Run by path, or `python -m unittest discover -s tests`, with an interpreter that has torch.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
import unittest
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import torch

import dense
import evenkeel
from evenkeel.layout import Layout
from plans import DRAWS, chunked_example, chunked_plan, early_plan, late_groups, random_plan, times_begun
from plans import worked_example
from world import SixRanks, World

PLANS = [(seed, (2, 3, 4, 5, 4, 5)[seed % 6]) for seed in range(60)]
CHUNKED = [(seed, (2, 3, 4, 5, 6)[seed % 5]) for seed in range(60)]
EARLY = [(seed, (2, 3, 4, 5, 6, 5, 6)[seed % 7]) for seed in range(84)]


class TestRanks(SixRanks):
    """All tests share six ranks, but for those in which one dies."""

    def counts(self, plan: evenkeel.Plan, answers: list[Any], want: evenkeel.Expected) -> None:
        """Bytes and FLOPs are the closed forms', as integers."""
        sent = {(r, peer, phase): n for r, a in enumerate(answers) for phase, peer, n in a["sent"]}
        received = {(peer, r, phase): n for r, a in enumerate(answers) for phase, peer, n in a["received"]}
        flops = {(r, d): n for r, a in enumerate(answers) for d, n in a["flops"].items()}
        self.assertEqual(sent, want.bytes)
        self.assertEqual(received, want.bytes)
        self.assertEqual(flops, {key: n for key, n in want.flops.items() if n})

    def test_random_plans(self) -> None:
        worst = [0.0] * 4
        for seed, ranks in PLANS:
            with self.subTest(seed=seed, ranks=ranks):
                answers = self.answers(ranks, "compare", seed, ranks)
                document, docs = random_plan(seed, ranks)
                plan = evenkeel.load_plan(document)
                self.counts(plan, answers, evenkeel.expected(plan, docs=docs))
                for rank, answer in enumerate(answers):
                    self.assertLessEqual(max(answer["errors"]), 1e-5, f"rank {rank}: out, dq, dk, dv")
                    worst = [max(a, b) for a, b in zip(worst, answer["errors"])]
        print("worst relative errors of out, dq, dk, dv: " + ", ".join(f"{w:.1e}" for w in worst))

    def test_blocks_that_end_early(self) -> None:
        sent = {phase: [0, 0] for phase in ("fwd.ring", "bwd.ring", "bwd.ring_grad")}
        for seed, ranks in EARLY:
            with self.subTest(seed=seed, ranks=ranks):
                answers = self.answers(ranks, "poisoned", seed, ranks, "early")
                document, docs = early_plan(seed, ranks)
                plan = evenkeel.load_plan(document)
                want = evenkeel.expected(plan, docs=docs)
                self.counts(plan, answers, want)
                for rank, answer in enumerate(answers):
                    self.assertLessEqual(max(answer["errors"]), 1e-5, f"rank {rank}: out, dq, dk, dv")
                hops = dense.reach(_held(plan))
                since = [n - m + 1 if n else 0 for m, n in zip(dense.near(_held(plan)), hops)]
                for phase, sums in sent.items():
                    short = min(since if phase == "bwd.ring_grad" else hops) < len(plan.groups) - 1
                    short = short or dense.sent(_held(plan), plan.keep_tail) != list(map(len, _held(plan)))
                    n, full = sum(b for (_, _, p), b in want.bytes.items() if p == phase), _round(plan)
                    (self.assertLess if short else self.assertEqual)(n, full, phase)
                    sums[0], sums[1] = sums[0] + n, sums[1] + full
        said = ", ".join(f"{phase} {n / full:.0%}" for phase, (n, full) in sent.items())
        print(f"of the bytes of full rounds: {said}")

    def test_heads_in_chunks(self) -> None:
        worst = [0.0] * 4
        for seed, ranks in CHUNKED:
            with self.subTest(seed=seed, ranks=ranks):
                answers = self.answers(ranks, "poisoned", seed, ranks, "chunked")
                document, docs = chunked_plan(seed, ranks)
                plan = evenkeel.load_plan(document)
                self.counts(plan, answers, evenkeel.expected(plan, docs=docs))
                for rank, answer in enumerate(answers):
                    self.assertLessEqual(max(answer["errors"]), 1e-5, f"rank {rank}: out, dq, dk, dv")
                    worst = [max(a, b) for a, b in zip(worst, answer["errors"])]
        print("in chunks, worst of out, dq, dk, dv: " + ", ".join(f"{w:.1e}" for w in worst))

    def test_chunks_travel_meanwhile(self) -> None:
        """All chunks' messages in are posted before anything is computed, each of which waits for its own
        chunk alone, and those out of a chunk before the next one is computed. They hold the heads they
        should, and results do not depend on who is early."""
        for chunks in (1, 2, 3, 4):
            plan, heads = evenkeel.load_plan(chunked_example(chunks)), _by_chunk(chunks)
            answers = self.answers(4, "chunked", chunks)
            self.counts(plan, answers, evenkeel.expected(plan))
            for rank, answer in enumerate(answers):
                with self.subTest(chunks=chunks, rank=rank):
                    self.assertLessEqual(max(answer["errors"]), 1e-5)
                    self.assertTrue(answer["same"], "the same inputs gave other bits")
                    want = []
                    for number, direction in enumerate(("fwd", "bwd")):
                        posts = [_messages(plan, rank, direction, op, of)
                                 for op in ("a2a_in", "a2a_out") for of in heads]
                        want += posts[:chunks]
                        for c, of in enumerate(heads):
                            want += [["received", 2 * chunks * number + c], ["attn"], posts[chunks + c]]
                        want += [["received", 2 * chunks * number + chunks + c] for c in range(chunks)]
                    # A chunk has a block for each square and rectangle, or none without heads.
                    got = answer["events"]
                    got = [e for e, before in zip(got, [[], *got]) if e != ["attn"] or e != before]
                    there = iter(2 * [bool(of[rank][0]) for of in heads])
                    self.assertEqual(got, [e for e in want if e != ["attn"] or next(there)])
                    self.spans_of_chunks(answer, chunks, heads, rank, plan)

    def spans_of_chunks(self, answer: Any, chunks: int, heads: Any, rank: int, plan: evenkeel.Plan) -> None:
        """Spans say of which chunk they are, but for the first."""
        self.assertEqual(answer["chunk"], 0)
        self.assertNotIn(0, [s["chunk"] for s in answer["spans"] if "chunk" in s])
        for direction in ("fwd", "bwd"):
            mine = [s for s in answer["spans"] if s["dir"] == direction]
            got = [k for k, _ in itertools.groupby((s["op"], s["step"], s.get("chunk", 0)) for s in mine
                                                   if s["op"] not in ("attn", "merge"))]
            each = (("a2a_in", 0), ("ring_wait", 0), ("ring_wait", 1))
            want = [(*x, c) for c in range(chunks) for x in each] + [("a2a_out", 1, chunks - 1)]
            self.assertEqual(got, want)
            for c, of in enumerate(heads):
                attn = [s for s in mine if s["op"] == "attn" and s.get("chunk", 0) == c]
                merges = [s for s in mine if s["op"] == "merge" and s.get("chunk", 0) == c]
                here = [len(x) for x in of[rank]]
                self.assertEqual([[s["shape"]["q_heads"], s["shape"]["kv_heads"]] for s in attn],
                                 len(merges) * [here])
                self.assertEqual(bool(attn), bool(here[0]))
            self.assertEqual(sum(s["flops"] for s in mine), answer["flops"].get(direction, 0))
            for op, by_span in (("a2a_in", [[of] for of in heads]), ("a2a_out", [heads])):
                spans = [s for s in mine if s["op"] == op]
                for side, key in enumerate(("bytes_out", "bytes_in"), 1):
                    sums = [sum(n for of in ofs for _, n in _messages(plan, rank, direction, op, of)[side])
                            for ofs in by_span]
                    self.assertEqual([s[key] for s in spans], sums)

    def test_half_precision(self) -> None:
        for seed, drawn in itertools.product((4, 9, 22, 31), ("random", "chunked")):
            with self.subTest(seed=seed, drawn=drawn):
                answers = self.answers(5, "compare", seed, 5, "bfloat16", "Math", "cpu", drawn)
                document, docs = DRAWS[drawn](seed, 5)
                plan = evenkeel.load_plan(document)
                self.counts(plan, answers, evenkeel.expected(plan, 2, docs))
                for answer in answers:
                    self.assertLessEqual(max(answer["errors"]), 1e-2)

    def test_kernels_that_repeat_heads(self) -> None:
        for seed, drawn in itertools.product((0, 6, 14, 26, 38), ("random", "chunked")):
            with self.subTest(seed=seed, drawn=drawn):
                for answer in self.answers(4, "compare", seed, 4, "float32", "Even", "cpu", drawn):
                    self.assertLessEqual(max(answer["errors"]), 1e-5)

    def test_any_timing(self) -> None:
        """Buffers are reused only when nobody reads them, whoever is early."""
        for seed in range(200, 220):
            with self.subTest(seed=seed):
                for answer in self.answers(5, "compare", seed, 5, "float32", "Jittered"):
                    self.assertLessEqual(max(answer["errors"]), 1e-5)
        for seed in range(200, 232):
            for drawn in ("early", "chunked"):
                with self.subTest(seed=seed, drawn=drawn):
                    for answer in self.answers(6, "poisoned", seed, 6, drawn, "Jittered"):
                        self.assertLessEqual(max(answer["errors"]), 1e-5)

    def test_order_of_batches(self) -> None:
        for drawn, seeds in (("random", PLANS[::3]), ("early", EARLY[::2]), ("chunked", CHUNKED[::3])):
            for seed, ranks in seeds:
                with self.subTest(seed=seed, ranks=ranks, drawn=drawn):
                    for answer in self.answers(ranks, "inline", seed, ranks, drawn):
                        self.assertLessEqual(max(answer["errors"]), 1e-5)

    @unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
    def test_on_one_gpu(self) -> None:
        """All ranks on one GPU with its own kernels, messages through the host."""
        for seed, drawn in itertools.product(range(100, 130), ("random", "chunked")):
            with self.subTest(seed=seed, drawn=drawn):
                for answer in self.answers(5, "compare", seed, 5, "bfloat16", "default", "cuda", drawn):
                    self.assertLessEqual(max(answer["errors"]), 1e-2)

    def test_worked_example(self) -> None:
        self.twice(worked_example(), False)

    def test_late_groups(self) -> None:
        self.twice(late_groups(), True)

    def twice(self, document: Any, late: bool) -> None:
        """Four ranks ran a plan twice, as it should be."""
        plan = evenkeel.load_plan(document)
        for own_last in (False, True):
            with self.subTest(own_last=own_last):
                answers = self.answers(4, "example", late, own_last)
                self.counts(plan, answers, evenkeel.expected(plan))
                for answer in answers:
                    self.assertLessEqual(max(answer["errors"]), 1e-5)
                    self.assertTrue(answer["same"], "the same inputs gave other bits")

    def test_gradients_go_home_meanwhile(self) -> None:
        """Where the own block is the last, what the others wait for does not wait for it, and what has come
        home is added to its gradient and not lost."""
        for late in (False, True):
            with self.subTest(late=late):
                for answer in self.answers(4, "overtaken", late):
                    self.assertGreater(answer["sent"], 0)
                    self.assertLessEqual(max(answer["errors"]), 1e-5)

    def test_first_hop_leaves_early(self) -> None:
        """Where the own block is the last, the first keys and values are posted once, before the output's
        gradient or when the backward is begun; else all is as ever."""
        ring, a2a, here = ["bwd.ring", 0], ["bwd.a2a_in", 0], ["backward", 0]
        for late, own_last, begun in itertools.product((False, True), (False, True), (0, 1, 2)):
            with self.subTest(late=late, own_last=own_last, begun=begun):
                want = [here, a2a, ring]
                if own_last:
                    want = [ring, here, a2a] if begun else [here, ring, a2a]
                for answer in self.answers(4, "ordered", late, own_last, begun):
                    self.assertEqual([e for e in answer["events"] if e in want], 2 * want)
                    self.assertEqual(answer["asked"], 2 * 4, "hooks may give a saved tensor only once")
                    self.assertTrue(answer["same"])

    def test_first_hop_travels_beside_the_mlp(self) -> None:
        """Layers begin the attention's backward before their own, ranks without tokens too."""
        begin, ring, a2a, mlp = ["begin", 0], ["bwd.ring", 0], ["bwd.a2a_in", 0], ["bwd.linear_out span", 0]
        for own_last, recompute in itertools.product((False, True), (False, True)):
            with self.subTest(own_last=own_last, recompute=recompute):
                for rank, answer in enumerate(self.answers(4, "stacked", own_last, recompute)):
                    order = [begin, ring, mlp, a2a] if own_last else [begin, mlp, a2a, ring]
                    there = {0: order, 1: [begin, ring, a2a] if own_last else [begin, a2a, ring], 2: order}
                    want = 2 * there.get(rank, [begin])
                    self.assertEqual([e for e in answer["events"] if e in order], want, f"rank {rank}")
                    self.assertEqual(answer["tokens"] > 0, rank in (0, 2))
                    self.assertTrue(answer["same"], "begun before, other bits")

    def test_two_layers(self) -> None:
        for answer in self.answers(3, "layers"):
            self.assertLessEqual(answer, 1e-5)

    def test_trace(self) -> None:
        for own_last in (False, True):
            with self.subTest(own_last=own_last):
                self.traced(False, own_last)

    def test_trace_of_blocks_that_end_early(self) -> None:
        """All steps are there. Nobody else needs the late group's block: nothing comes to rank 3 at step 1
        and to rank 0 at step 2."""
        for own_last in (False, True):
            for rank, answer in enumerate(self.traced(True, own_last)):
                for direction in ("fwd", "bwd"):
                    nothing = [s["step"] for s in answer["spans"] if not s["bytes_in"]
                               and (s["dir"], s["op"]) == (direction, "ring_wait")]
                    self.assertEqual(sorted(nothing), {0: [0, 2, 3], 3: [0, 1, 3]}.get(rank, [0, 3]))

    def traced(self, late: bool, own_last: bool) -> list[Any]:
        """The answers of four ranks that traced a known plan, with spans as they should be."""
        answers = self.answers(4, "traced", late, own_last)
        groups = 3 if late else 2
        for rank, answer in enumerate(answers):
            spans = answer["spans"]
            for direction in ("fwd", "bwd"):
                mine = [s for s in spans if s["dir"] == direction]
                self.assertEqual({s["op"] for s in mine}, {"a2a_in", "ring_wait", "attn", "merge", "a2a_out"})
                self.assertEqual(sum(s["flops"] for s in mine), answer["flops"][direction])
                order = list(range(groups))
                if own_last and direction == "bwd":
                    order = order[1:] + order[:1]
                waits = [s["step"] for s in mine if s["op"] == "ring_wait"]
                self.assertEqual(waits, [*order, groups])
                for op in ("attn", "merge"):
                    steps = [t for t, _ in itertools.groupby(s["step"] for s in mine if s["op"] == op)]
                    self.assertEqual(steps, [t for t in order if t in steps])
                    self.assertIn(0, steps)
                ring = [s["bytes_in"] for s in mine if s["op"] == "ring_wait"]
                got = [n for phase, _, n in answer["received"] if phase == direction + ".ring"]
                self.assertEqual(sum(ring), sum(got))
                for op in ("a2a_in", "a2a_out"):
                    for key, side in (("bytes_out", "sent"), ("bytes_in", "received")):
                        want = sum(n for phase, _, n in answer[side] if phase == f"{direction}.{op}")
                        self.assertEqual(sum(s[key] for s in mine if s["op"] == op), want)
            ends = 0
            for s in sorted(spans, key=lambda s: s["t0_ns"]):
                self.assertEqual((s["rank"], s["mb"]), (rank, 0))
                self.assertGreaterEqual(s["t0_ns"], ends, "spans of one rank do not overlap")
                ends = s["t0_ns"] + s["dur_ns"]
        return answers


class TestCorpus(unittest.TestCase):
    """The random plans hold what they are there for."""

    def test_kinds(self) -> None:
        kinds: dict[str, int] = {}
        for seed, ranks in PLANS:
            document, docs = random_plan(seed, ranks)
            plan = evenkeel.load_plan(document)
            for kind in _in_order(plan, _kinds(plan, docs) | {f"begun {times_begun(seed)}"}):
                kinds[kind] = kinds.get(kind, 0) + 1
        for kind, least in (("no tokens", 8), ("no heads", 8), ("cut KV head", 15), ("documents", 15),
                            ("idle", 3), ("mixed groups", 12), ("ring of 4 or more", 5), ("one group", 5),
                            ("own first", 20), ("own last", 20), ("own last, no heads", 4),
                            ("own last, cut KV head", 8), ("own last, documents", 5),
                            ("own last, mixed groups", 6), ("own last, one group", 2),
                            ("own last, begun 0", 5), ("own last, begun 1", 5), ("own last, begun 2", 5)):
            self.assertGreaterEqual(kinds.get(kind, 0), least, f"{kind}: {kinds}")

    def test_kinds_of_blocks_that_end_early(self) -> None:
        kinds: dict[str, int] = {}
        for seed, ranks in EARLY:
            document, docs = early_plan(seed, ranks)
            plan = evenkeel.load_plan(document)
            for kind in _in_order(plan, _kinds(plan, docs) | _ends(plan) | {f"begun {times_begun(seed)}"}):
                kinds[kind] = kinds.get(kind, 0) + 1
        for kind, least in (("no tokens", 8), ("no heads", 4), ("cut KV head", 15), ("documents", 15),
                            ("mixed groups", 12), ("ring of 4 or more", 20), ("ends early", 70),
                            ("nobody else's", 60), ("comes home across", 20), ("passed on unneeded", 25),
                            ("a place left out", 3), ("3 buffers or more", 12),
                            ("begins late, 2 buffers", 15), ("begins late, 3 buffers", 5),
                            ("begins behind another", 5), ("no gradient before", 3), ("adds nothing", 5),
                            ("own first", 30), ("own last", 30), ("own last, no heads", 2),
                            ("own last, documents", 8), ("own last, 3 buffers or more", 6),
                            ("own last, nobody else's", 25), ("own last, ends early", 30),
                            ("own last, comes home across", 8), ("own last, adds nothing", 3),
                            ("own last, begun 0", 8), ("own last, begun 1", 8), ("own last, begun 2", 8)):
            self.assertGreaterEqual(kinds.get(kind, 0), least, f"{kind}: {kinds}")


    def test_kinds_in_chunks(self) -> None:
        kinds: dict[str, int] = {}
        for seed, ranks in CHUNKED:
            document, docs = chunked_plan(seed, ranks)
            plan = evenkeel.load_plan(document)
            self.assertEqual(len(plan.groups), 1)
            widths = [len(m.kv) for m in Layout(plan).groups[0].members]
            more = {kind for kind, holds in (
                ("fewer KV heads than chunks", any(0 < w < plan.head_chunks for w in widths)),
                ("uneven chunks", any(w > plan.head_chunks and w % plan.head_chunks for w in widths)),
                ("several query heads to a KV head", plan.q_heads > plan.kv_heads),
            ) if holds}
            for kind in _kinds(plan, docs) | more | {f"{plan.head_chunks} chunks"}:
                kinds[kind] = kinds.get(kind, 0) + 1
        for kind, least in (("no tokens", 15), ("no heads", 10), ("cut KV head", 20), ("documents", 15),
                            ("idle", 1), ("fewer KV heads than chunks", 30), ("uneven chunks", 10),
                            ("several query heads to a KV head", 30),
                            ("2 chunks", 20), ("3 chunks", 20), ("4 chunks", 20)):
            self.assertGreaterEqual(kinds.get(kind, 0), least, f"{kind}: {kinds}")


def _by_chunk(chunks: int) -> list[dict[int, tuple[list[int], list[int]]]]:
    """By chunk and rank of the known plan, the query and KV heads."""
    out: list[dict[int, tuple[list[int], list[int]]]] = []
    for c in range(chunks):
        of = {}
        for rank, lo, hi in ((0, 0, 5), (2, 5, 5), (1, 5, 11), (3, 11, 12)):
            kv = sorted({h // 3 for h in range(lo, hi)})
            kv = [j for i, j in enumerate(kv) if c * len(kv) <= i * chunks < (c + 1) * len(kv)]
            of[rank] = [h for h in range(lo, hi) if h // 3 in kv], kv
        out.append(of)
    return out


def _messages(plan: evenkeel.Plan, rank: int, direction: str, op: str, of: Any) -> list[Any]:
    """[phase, messages to, messages from others] of a chunk of the known plan, as [peer, bytes]."""
    def width(r: int) -> int:
        keys = (direction == "fwd") == (op == "a2a_in")
        return len(of[r][0]) + (2 * len(of[r][1]) if keys else 0)

    def size(a: int, b: int) -> int:
        n = plan.tokens(a) * width(b) if op == "a2a_in" else plan.tokens(b) * width(a)
        return n * plan.head_dim * 4

    others = [r for r in (0, 2, 1, 3) if r != rank]
    return [f"{direction}.{op}", [[r, size(rank, r)] for r in others if size(rank, r)],
            [[r, size(r, rank)] for r in others if size(r, rank)]]


def _in_order(plan: evenkeel.Plan, kinds: set[str]) -> set[str]:
    """A plan's kinds, and again those that it has with its own blocks last."""
    if not plan.own_last:
        return kinds | {"own first"}
    return kinds | {"own last"} | {f"own last, {kind}" for kind in kinds}


def _held(plan: evenkeel.Plan) -> list[list[int]]:
    """By group, the positions of its tokens."""
    return [[p for m in g for s in plan.segments[m.rank] for p in range(*s)] for g in plan.groups]


def _round(plan: evenkeel.Plan) -> int:
    """Bytes of all blocks that go round the whole ring, in float32."""
    slots = sum(len(m.slots) for m in Layout(plan).groups[0].members)
    return (len(plan.groups) - 1) * plan.seq_len * slots * 2 * plan.head_dim * 4


def _ends(plan: evenkeel.Plan) -> set[str]:
    """How the blocks of a plan end early, and their gradients begin late."""
    held, n, b = _held(plan), len(plan.groups), plan.ring_buffers
    near, reach, seen = dense.near(held), dense.reach(held), dense.seen(held)
    comes = [[t <= reach[(g - t) % n] for t in range(n)] for g in range(n)]
    begins = [[t == near[(g - t) % n] for t in range(n)] for g in range(n)]
    grads = [[0 < near[(g - t) % n] <= t <= reach[(g - t) % n] for t in range(n)] for g in range(n)]
    out = {kind for kind, holds in (
        ("ends early", min(reach) < n - 1), ("nobody else's", 0 in reach),
        ("comes home across", any(0 < x < n - 1 for x in reach)), ("3 buffers or more", 2 < b < n),
        ("passed on unneeded", any(max(held[(k + d) % n]) < min(held[k])
                                   for k in range(n) for d in range(1, reach[k]))),
        ("a place left out", any(c[t] and not c[t + b] and c[t + 2 * b]
                                 for c in comes for t in range(1, n - 2 * b))),
        (f"begins late, {b} buffers", max(near) > 1),
        ("begins behind another", any(x[t + b] and any(y[t::-b]) for x, y in zip(begins, grads)
                                      for t in range(1, n - b))),
        ("no gradient before", any(c[t] and not y[t] and y[t + b] for c, y in zip(comes, grads)
                                   for t in range(1, n - b))),
        ("adds nothing", any(set(range(near[k], reach[k])) - set(seen[k]) for k in range(n) if reach[k])),
    ) if holds}
    return out


def _kinds(plan: evenkeel.Plan, docs: Any) -> set[str]:
    each, out = plan.q_heads // plan.kv_heads, set()
    seated = [m for g in plan.groups for m in g]
    borders = [sum(m.q_heads for m in g[:i]) for g in plan.groups for i in range(len(g))]
    for kind, holds in (
        ("no tokens", any(not plan.tokens(m.rank) for m in seated)),
        ("no heads", any(not m.q_heads for m in seated)),
        ("cut KV head", any(b % each for b in borders)), ("documents", docs is not None),
        ("idle", len(seated) < plan.ranks), ("ring of 4 or more", len(plan.groups) > 3),
        ("mixed groups", len({len(g) for g in plan.groups}) > 1), ("one group", len(plan.groups) == 1),
    ):
        if holds:
            out.add(kind)
    return out


class TestFailures(unittest.TestCase):
    def test_a_rank_dies(self) -> None:
        with World(4) as world:
            begin = time.monotonic()
            answers = world.run("leave")
            self.assertEqual(answers[2], {"error": "gone"})
            for rank in (0, 1, 3):
                self.heard(rank, answers[rank])
            self.assertLess(time.monotonic() - begin, 60, "that is when gloo gives up by itself")

    def test_a_rank_stands_still(self) -> None:
        with World(4) as world:
            for rank, answer in zip((0, 2, 3), world.run("stall", 5, 300, heard=(0, 2, 3))):
                self.heard(rank, answer)

    def heard(self, rank: int, answer: Any) -> None:
        """The rank says whom it waited for, and when."""
        said = answer.get("error", "nothing")
        self.assertRegex(said, rf"rank {rank}: (fwd|bwd)\.\w+ step \d: (from|to) rank \d: .")


if __name__ == "__main__":
    unittest.main()
