"""How far a curve with slack is from a function: what a head keeps under another row map than softmax.

Boxes are cut where the bound is largest, until it is near the largest bound at a point: with slack, that is all that
boxes can tell (`distance.py` does the cutting). What rounding adds is bounded on the same boxes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flint import arb

from anchorhead.enclosure.precision import precision, upper
from anchorhead.proof.curve import Curve
from anchorhead.proof.difference import Difference
from anchorhead.proof.distance import enclose_distance

TIGHT = 4e-3
"""How near the bound is to the largest at a point, as a part of it."""
MOST_BOXES = 5_000


@dataclass(frozen=True)
class Bound(Difference):
    """A difference of which bounds are compared with bounds at points."""

    def near(self, low: float, high: float, place: float) -> float:
        return self.on_box(place, place)


@dataclass(frozen=True)
class Proved:
    """The bound in exact arithmetic, what rounding adds, and the edges of the boxes."""

    approximation: float
    rounding: float
    edges: tuple[float, ...]


def prove_mapped(curve: Curve, target: Curve, rounding: Callable[[float, float], arb], low: float, high: float
                 ) -> Proved:  # fmt: skip
    """The proof that a curve is near a target on a bounded interval."""
    found = enclose_distance(Bound(curve, target, False), low, high, TIGHT, most=MOST_BOXES)
    edges = tuple(found.edges)
    return Proved(found.upper, worst_rounding(rounding, edges), edges)


def worst_error(curve: Curve, target: Curve, edges: Sequence[float]) -> float:
    """The bound that boxes with these edges prove."""
    difference = Difference(curve, target, False)
    with precision():
        return max(difference.on_box(a, b) for a, b in itertools.pairwise(edges))


def worst_rounding(rounding: Callable[[float, float], arb], edges: Sequence[float]) -> float:
    """What rounding adds on these boxes."""
    with precision():
        return max((upper(rounding(a, b)) for a, b in itertools.pairwise(edges)), default=math.inf)
