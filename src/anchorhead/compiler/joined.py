"""Pieces joined by gates: a head for every piece of a target, each as small as the goal allows, in one softmax.

A target is cut at its kinks. Where one head for a piece would be large, or none is found, the piece is halved, and its
halves again, as long as that saves keys: narrow features, long oscillations and different scales at the two ends each
get the head that suits them. A joint where both sides are the same function costs nothing: the heads on both sides keep
the goal over the width in which the gate goes over from one to the other, and a blend of two such is one itself. So
every continuous target on a bounded interval is reached, by pieces that are short enough (docs/mathematics.md 2.4).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
from flint import arb

from anchorhead.arithmetic import log_of
from anchorhead.compiler.method import Fit, Goal
from anchorhead.compiler.piece import PieceFit
from anchorhead.compiler.target import Target
from anchorhead.enclosure.balls import jet
from anchorhead.enclosure.pieces import Piece
from anchorhead.head.head import Head
from anchorhead.head.kinked import Kink, kinked

GATE_SHARE = 0.3
"""The share of the tolerance that gates at kinks get where pieces need keys of their own."""
SPARE = 0.97
ROOM = 0.1
"""Over how much of the shorter piece a gate may go over from one side to the other."""
SMALL = 12
"""A piece with so many keys is not halved."""
LARGEST_PIECE = 28
MOST_LOOKS = 160
"""How many pieces are looked at before a target is given up."""


@dataclass(frozen=True)
class Part:
    """A piece, and how far past its ends its head is fitted."""

    piece: Piece
    before: float
    after: float


class Joined:
    """The pieces of one target, and their heads for a goal; each found once."""

    def __init__(self, target: Target, *, halving: bool, most: int) -> None:
        self.target, self.halving, self.most = target, halving, most
        self.heads: dict[tuple[Part, float, float, int], tuple[int, Head] | None] = {}
        self.counts: dict[tuple[Part, float], int | None] = {}
        self.fits: dict[Part, PieceFit] = {}

    def fit(self, name: str) -> Fit:
        pieces = self.target.pieces
        for piece in (pieces[0], pieces[-1]):
            PieceFit(self.target, piece)  # refuses an infinite side without an asymptote, before any size is looked at
        least = len(pieces)
        return Fit(name, least, self.most, self.build, self.cuts, size=self.size)

    def build(self, keys: int, goal: Goal) -> Head:
        """The head for a goal."""
        found = self._joined(goal)
        if found is None:
            raise FloatingPointError("no head was found for a piece")
        return found

    def cuts(self, head: Head) -> list[float]:
        """Each joint, and points around it at the scale of its gate."""
        found = []
        for (s, b), (t, c) in itertools.pairwise(zip(head.gate_slopes, head.gate_levels, strict=True)):
            if t == s:
                continue  # gates so close that the dtype has one slope for both
            place, scale = (b - c) / (t - s), 1 / (t - s)
            found += [place + scale * t for t in (-30.0, -4.0, 0.0, 4.0, 30.0)]
        return found

    def size(self, goal: Goal) -> int | None:
        """How many keys the goal takes; None if it is not reached."""
        found = self._joined(goal)
        return None if found is None else found.keys

    def _joined(self, goal: Goal) -> Head | None:
        pieces = self.target.pieces
        fits = [PieceFit(self.target, piece) for piece in pieces]
        curved = any(fit.affine is None for fit in fits)
        gate = goal.error * (GATE_SHARE if curved else 0.99)
        inner = replace(goal, error=goal.error * (SPARE - GATE_SHARE if len(pieces) > 1 else SPARE))
        self.rest = 30.0 + max(0.0, log_of(max(goal.limit, 1.0) * 1e-10 / goal.error))
        kinks = [kink_between(self.target, left, right) for left, right in itertools.pairwise(pieces)]
        sharp = {k.place: max(k.sharpness(gate * self._unit(k.place)), self._softest(a, b)) for k, (a, b) in
                 zip(kinks, itertools.pairwise(pieces), strict=True)}  # fmt: skip
        if self.halving:
            pieces = [part for piece in pieces for part in self._halved(piece, sharp, inner)]
            for a, b in itertools.pairwise(pieces):
                sharp.setdefault(b.low, self._softest(a, b))
            if any(self._count(self._part(piece, sharp), inner) is None for piece in pieces):
                return None  # before any of them is fitted
        heads = []
        for piece in pieces:
            found = self._head(self._part(piece, sharp), inner)
            if found is None:
                return None
            heads.append(found)
        places = [piece.low for piece in pieces[1:]]
        return heads[0] if not places else kinked(heads, places, [sharp[p] for p in places])

    def _unit(self, place: float) -> float:
        """What errors are measured in there."""
        return abs(float(self.target.function()(np.array([place]))[0])) if self.target.relative else 1.0

    def _softest(self, left: Piece, right: Piece) -> float:
        """The β of a gate that goes over within the room that both sides have."""
        lengths = [p.high - p.low for p in (left, right) if math.isfinite(p.high - p.low)]
        return self.rest / (ROOM * min(lengths, default=1.0))

    def _part(self, piece: Piece, sharp: dict[float, float]) -> Part:
        before, after = (self.rest / sharp[end] if end in sharp else 0.0 for end in (piece.low, piece.high))
        return Part(piece, before, after)

    def _halved(self, piece: Piece, sharp: dict[float, float], goal: Goal) -> list[Piece]:
        """The piece, or halves of it that take fewer keys together."""
        part = self._part(piece, sharp)
        count = self._count(part, goal)
        width = piece.high - piece.low
        if not math.isfinite(width) or (count is not None and count <= SMALL) or len(self.fits) > MOST_LOOKS:
            return [piece]
        middle = (piece.low + piece.high) / 2
        if not piece.low < middle < piece.high or width < 1e-9 * (self.target.high - self.target.low):
            return [piece]
        halves = [Piece(piece.low, middle, piece.node), Piece(middle, piece.high, piece.node)]
        inner = sharp | {middle: self._softest(*halves)}
        found = [p for half in halves for p in self._halved(half, inner, goal)]
        for a, b in itertools.pairwise(found):
            inner.setdefault(b.low, self._softest(a, b))
        counts = [self._count(self._part(p, inner), goal) for p in found]
        total = math.inf if None in counts else sum(c for c in counts if c is not None)
        return found if count is None or total < count else [piece]

    def _fit(self, part: Part) -> PieceFit:
        fit = self.fits.get(part)
        if fit is None:
            fit = self.fits[part] = PieceFit(self.target, part.piece)
            fit.extend(part.before, part.after)
        return fit

    def _count(self, part: Part, goal: Goal) -> int | None:
        """About how many keys a piece takes; None if too many."""
        key = part, goal.error
        if key not in self.counts:
            fit, keys = self._fit(part), self._fit(part).least
            while keys <= LARGEST_PIECE and fit.affine is None and not fit.estimate(keys, goal) <= goal.error:
                keys += max(1, keys // 5)
            self.counts[key] = keys if keys <= LARGEST_PIECE else None
        return self.counts[key]

    def _head(self, part: Part, goal: Goal) -> Head | None:
        """The smallest head of a piece that keeps the goal on samples."""
        key = part, goal.error, goal.limit, len(goal.extra)
        if key not in self.heads:
            self.heads[key] = self._searched(part, goal)
        found = self.heads[key]
        return None if found is None else found[1]

    def _searched(self, part: Part, goal: Goal) -> tuple[int, Head] | None:
        fit, keys = self._fit(part), self._count(part, goal)
        most = LARGEST_PIECE if self.halving else self.most
        keys = LARGEST_PIECE if keys is None else keys
        found: tuple[int, Head] | None = None
        errors: list[float] = []
        while fit.least <= keys <= most:
            head = fit.build(keys, goal)
            errors.append(fit.error(head, goal))
            if errors[-1] <= goal.error:
                found = keys, head
                keys -= 1
            elif found is not None or (keys >= LARGEST_PIECE and len(errors) > 2 and errors[-1] > errors[-3] / 2):
                break
            else:
                keys += max(1, keys // 8)
        return found


def kink_between(target: Target, left: Piece, right: Piece) -> Kink:
    """Where two pieces meet, and how much slope and curvature jump, read off their Taylor coefficients."""
    place = arb(right.low)
    before, after = (jet(p.node, target.variable, place, 2) for p in (left, right))
    if min(len(before), len(after)) < 3:
        return Kink(right.low, 1.0, 1.0)
    jumps = [abs(float((a - b).mid())) for a, b in zip(before, after, strict=False)]
    return Kink(right.low, jumps[1], 2 * jumps[2])
