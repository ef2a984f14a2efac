"""A batch sampler whose micro-batches are planned by `evenkeel serve`, in the form of
torch.utils.data.BatchSampler: iterating yields lists of indices into the data set.

    evenkeel serve --socket evenkeel.sock --costs flexsp-gpt-7b --devices 64 &
    python batch_sampler.py evenkeel.sock lengths.txt --batch 512 --rank 0 --steps 3

prints what rank 0 would train. lengths.txt has the tokens of one sample a line. Neither this file nor the
client needs torch.
"""

from __future__ import annotations

import argparse
import random
import sys
from typing import Iterator, List, Optional, Sequence

from evenkeel import Client, ServeError


class MicroBatch(List[int]):
    """Indices of the samples that this rank's group trains in one micro-batch, and who the group is.

    A rank without work gets an empty one and must still meet the others at the end of the micro-batch. A
    data loader hands it as it is to the data set's __getitems__ (torch 2.0 or later).
    """

    def __init__(self, samples: Sequence[int], ranks: Sequence[int], step: int, last: bool) -> None:
        super().__init__(samples)
        self.ranks = tuple(ranks)  # of the group, which share the sequences
        self.step = step
        self.last = last  # of its step: the optimizer's turn


class PlannedBatchSampler:
    """Global batches of batch_size samples, shuffled alike on every rank, each cut into micro-batches and
    groups by its plan. The batch of the next step is submitted before the plan of this one is fetched.

    There is no __len__: how many micro-batches a step has is known when it is planned.
    """

    def __init__(
        self, lengths: Sequence[int], batch_size: int, rank: int, plans: Client, *, seed: int = 0
    ) -> None:
        if not 1 <= batch_size <= len(lengths):
            raise ValueError(f"batch_size: {batch_size}: want 1 to {len(lengths)}, the number of samples")
        self.lengths, self.batch_size, self.rank, self.plans = lengths, batch_size, rank, plans
        self.seed, self.epoch = seed, 0
        self.steps = len(lengths) // batch_size  # of an epoch; what is left over is in no batch

    def set_epoch(self, epoch: int) -> None:
        """Shuffles anew, as with torch's DistributedSampler: before each epoch, on every rank."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[MicroBatch]:
        batches = self._batches()
        first = self.epoch * self.steps
        ahead = self.plans.ahead([[self.lengths[i] for i in b] for b in batches], first_step=first)
        for batch, (_, plan) in zip(batches, ahead):
            groups = plan.of_rank(self.rank)
            for micro, group in enumerate(groups, 1):
                samples = [batch[k] for k in group.sequences] if group else []
                yield MicroBatch(samples, group.ranks if group else (), plan.step, micro == len(groups))

    def _batches(self) -> list[list[int]]:
        order = list(range(len(self.lengths)))
        random.Random(f"{self.seed} {self.epoch}").shuffle(order)
        size = self.batch_size
        return [order[i * size : (i + 1) * size] for i in range(self.steps)]


def read_lengths(path: str) -> list[int]:
    """The tokens of every sample, one a line."""
    lengths = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            text = line.strip()
            if not text:
                continue
            try:
                lengths.append(int(text))
            except ValueError:
                raise ValueError(f"{path}:{number}: {text[:80]!r}: want the tokens of one sample, a whole number, "
                                 "on every line: no header and no other columns") from None
    return lengths


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Prints the first steps of a rank."""
    parser = argparse.ArgumentParser(description="Print what a rank would train.")
    parser.add_argument("server", help="a socket's path or http://host:port")
    parser.add_argument("lengths", help="a file with the tokens of one sample a line")
    parser.add_argument("--batch", type=int, default=512, help="samples of a global batch")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--job", default="example")
    given = parser.parse_args(arguments)
    lengths = read_lengths(given.lengths)
    with Client(given.server, job=given.job) as plans:
        for micro in PlannedBatchSampler(lengths, given.batch, given.rank, plans):
            if micro.step >= given.steps:
                break
            tokens = sum(lengths[i] for i in micro)
            with_whom = f"with ranks {','.join(map(str, micro.ranks))}" if micro.ranks else "no work"
            print(f"step {micro.step}: {len(micro)} sequences, {tokens} tokens, {with_whom}")
            if micro.last:
                print(f"step {micro.step} ends")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ServeError, ValueError) as error:
        sys.exit(f"batch_sampler.py: {error}")
