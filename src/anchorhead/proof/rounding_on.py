"""Rounding over all of a claim's boxes: the largest of what `rounding.py` bounds on each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from flint import arb

from anchorhead.enclosure.balls import jet
from anchorhead.enclosure.precision import ball, precision, upper
from anchorhead.proof.far import far
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.proof.literal_pieces import LiteralPieces
from anchorhead.proof.rounding import ROUNDING_PRECISION, Rounding

MOST_BOXES = 200_000
MOST_WORK = 1 << 22
"""Keys to look at, over all boxes."""
MOST_SHOWN = 64
"""How many places say what rounding there is."""
SMALL = 1e-3
"""Rounding of a staircase that is no larger, beside its approximation, need not be known better."""
MUCH = 0.05
"""Rounding that may be larger than this, beside the approximation, is worth smaller boxes."""


def evaluated(claim: HeadClaim, *, literal: bool, signed: bool = False) -> Rounding | LiteralPieces:
    """What bounds the rounding of a claim's evaluation: of the literal one that of joined pieces is another."""
    return LiteralPieces(claim) if literal and claim.head.joined else Rounding(claim, signed=signed)


class _Measured:
    """Rounding on a box, in the units of the claim: as it is, over |function| if relative, over 1 + |x| on R."""

    def __init__(self, claim: HeadClaim, *, literal: bool = False, signed: bool = False) -> None:
        self.claim, self.rounding = claim, evaluated(claim, literal=literal, signed=signed)

    def on_box(self, low: float, high: float, goal: float = 0.0) -> float:
        claim = self.claim
        if claim.relative:
            with precision(ROUNDING_PRECISION):
                size = jet(claim.function, claim.variable, ball(low, high), 0)[0].abs_lower()
                return upper(arb(self.rounding.on_box(low, high)) / size)
        found = self.rounding.on_box(low, high, goal)
        if claim.bounded:
            return found
        least = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
        return math.nextafter(found / (1 + least), math.inf)

    def at(self, places: Iterable[float]) -> float:
        """The largest bound at some points."""
        return max(self.on_box(place, place) for place in places)


def rounding_at(claim: HeadClaim, low: float, high: float) -> float:
    """The largest bound at some points of an interval: about what it is on all of it, and no more."""
    return _Measured(claim, signed=True).at(low + (high - low) * i / MOST_SHOWN for i in range(MOST_SHOWN + 1))


def rounding_on(claim: HeadClaim, edges: Sequence[float], *, literal: bool = False) -> float:
    """The largest bound over the boxes.

    On a wide box the weights are not known well and the bound is far too large, so boxes are cut until they are
    within half of what the worst of some of their middles shows; of a staircase no further than to a thousandth of the
    approximation. Where rounding is not small beside that, values are taken with signs.
    """
    measured = _Measured(claim, literal=literal)
    head = measured.rounding.head
    pairs = list(itertools.pairwise(edges))
    middles = [(a + b) / 2 for a, b in pairs[:: 1 + len(pairs) // MOST_SHOWN]]
    goal = 1.5 * measured.at(middles)
    if goal > MUCH * claim.approximation:
        measured = _Measured(claim, literal=literal, signed=True)
        goal = max(1.5 * measured.at(middles), SMALL * claim.approximation)
    if head.selects:
        goal = max(goal, SMALL * claim.approximation)
    worst, stack, boxes, work = 0.0, pairs, 0, 0
    while stack and boxes < MOST_BOXES and work < MOST_WORK:
        low, high = stack.pop()
        boxes, work = boxes + 1, work + len(head.near(low, high))
        found = measured.on_box(low, high, goal)
        middle = (low + high) / 2
        if found <= goal or not low < middle < high:
            worst = max(worst, found)
        else:
            goal = max(goal, 1.5 * measured.on_box(middle, middle))
            stack += [(low, middle), (middle, high)]
    return math.inf if stack else worst


def literal_rounding(claim: HeadClaim) -> float:
    """What evaluating the head as one literal softmax adds, on the claim's boxes and beyond them."""
    found, bounds = rounding_on(claim, claim.edges, literal=True), evaluated(claim, literal=True)
    for sign, end, edge in ((-1, claim.low, claim.edges[0]), (1, claim.high, claim.edges[-1])):
        if math.isinf(end):
            found = max(found, bounds.beyond(sign, abs(edge)) + far(claim, sign, abs(edge)).drift)
    return found
