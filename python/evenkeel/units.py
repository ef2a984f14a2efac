"""The parameters of a plan that is trained, as frameworks shard them (Rajbhandari et al. 2020, ZeRO): in units, each a
layer's weights or the rest of the model's, of which every member has an equal share.

A unit is one flat tensor in the model's precision, padded to a multiple of the members, and its weights are views of
it. What of it a rank updates, all of it or its share, lies with that of the other units in one piece, so that an update
is one call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Mapping, Sequence

import torch
from torch import Tensor

from .adamw import AdamW

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Span:
    """Where a unit lies. size: elements without padding. share: those of one member. members: how many there are."""

    size: int
    share: int
    members: int

    @staticmethod
    def of(shapes: Shapes, members: int) -> "Span":
        """Of weights of some shapes."""
        size = sum(math.prod(shape) for shape in shapes.values())
        return Span(size, -(-size // members), members)

    @property
    def padded(self) -> int:
        """Elements with padding."""
        return self.share * self.members

    def part(self, place: int, sharded: bool) -> slice:
        """The elements that a member updates."""
        return slice(place * self.share, (place + 1) * self.share) if sharded else slice(0, self.padded)


class Units:
    """Of one rank. spans: of the units. sharded: whether it updates its share of each, and not all."""

    def __init__(
        self, shapes: Sequence[Shapes], place: int, members: int, sharded: bool, dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """place: the rank's among the members."""
        self.spans = [Span.of(of, members) for of in shapes]
        self.dtype, self.sharded = dtype, sharded
        self._parts = [span.part(place, sharded) for span in self.spans]
        whole = torch.zeros(sum(span.padded for span in self.spans), dtype=dtype, device=device)
        self._full: Sequence[Tensor] = whole.split([span.padded for span in self.spans])
        mine = sum(part.stop - part.start for part in self._parts)
        # What all have is what is updated; what one has is gathered into what all need.
        held = torch.zeros(mine, dtype=dtype, device=device) if sharded else whole
        master = held if dtype == torch.float32 else torch.zeros(mine, device=device)
        self.optimizer = AdamW(master, torch.zeros_like(master))
        self._held, self._flat = self.split(held), held
        self._masters, self._grads = self.split(master), self.split(self.optimizer.grads)
        self._weights: list[dict[str, Tensor]] = [{} for _ in shapes]

    def adopt(self, i: int, weights: dict[str, Tensor]) -> None:
        """Makes leaves the weights of a unit, with the values that they have. Their version stays when the unit is
        written: what a backward pass needs of them is there again when it comes to it."""
        at, full = 0, self._full[i]
        for w in weights.values():
            n = w.numel()
            place = full[at:at + n].view(w.shape)
            place.copy_(w.detach())
            w.data = place
            at += n
        assert at == self.spans[i].size
        self._weights[i] = weights
        for flat in (self._held[i], self._masters[i]):
            flat.copy_(full[self._parts[i]])

    def full(self, i: int) -> Tensor:
        """All elements of a unit."""
        return self._full[i]

    def held(self, i: int) -> Tensor:
        """What of it this rank updates, in the model's precision."""
        return self._held[i]

    def master(self, i: int) -> Tensor:
        """The same in float32."""
        return self._masters[i]

    def grad(self, i: int) -> Tensor:
        """The gradient of that, as the optimizer takes it."""
        return self._grads[i]

    def weights(self, i: int) -> Mapping[str, Tensor]:
        """The leaves of a unit."""
        return self._weights[i]

    def part(self, i: int) -> slice:
        """Which elements of the unit these are."""
        return self._parts[i]

    def take(self, i: int, room: Tensor) -> None:
        """Puts the gradients of a unit's weights into one flat piece, and leaves none at these. Zeros where there are
        none: of a rank without tokens."""
        grads = [w.grad for w in self._weights[i].values() if w.grad is not None]
        if not grads:
            room.zero_()
            return
        # Else those behind a missing one would be added up in its place.
        assert len(grads) == len(self._weights[i]), f"unit {i}: {len(grads)} of {len(self._weights[i])} gradients"
        pieces = [g.reshape(-1) for g in grads]
        pieces.append(pieces[0].new_zeros(len(room) - self.spans[i].size))
        if room.dtype == self.dtype:
            torch.cat(pieces, out=room)
        else:
            room.copy_(torch.cat(pieces))
        self.drop(i)

    def drop(self, i: int) -> None:
        """Leaves no gradients at a unit's weights."""
        for w in self._weights[i].values():
            w.grad = None

    def gain(self, i: int, grad: Tensor, first: bool) -> Tensor:
        """Adds a gradient of what this rank updates to that of the optimizer, or begins that with it; returns it."""
        into = self._grads[i]
        if not first:
            into.add_(grad)
        elif grad.data_ptr() != into.data_ptr():
            into.copy_(grad)
        return into

    def update(self, came: Mapping[int, Tensor]) -> None:
        """The optimizer's step. came: by unit the gradient of what this rank updates, where it is in no float32."""
        for i, grad in came.items():
            if grad.data_ptr() != self._grads[i].data_ptr():
                self._grads[i].copy_(grad)
        self.optimizer.step()
        if self.optimizer.params is not self._flat:
            self._flat.copy_(self.optimizer.params)

    def split(self, flat: Tensor) -> Sequence[Tensor]:
        """By unit, of one piece of all that this rank updates."""
        parts: Sequence[Tensor] = flat.split([part.stop - part.start for part in self._parts])
        return parts
