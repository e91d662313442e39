"""Intervals as balls, and the covering of a domain (the whole line too) by boxes to bisect.

A half-line is covered by boxes that double in size as far as asked; what a function does beyond belongs to `tails`.
"""

from __future__ import annotations

import math
from itertools import pairwise

from flint import arb

FAR = 2.0**12


def box(low: float, high: float) -> arb:
    """A ball that holds the interval; exact but for the rounding of the radius to 30 bits."""
    return arb(low).union(arb(high))


def cover(low: float, high: float, far: float = FAR) -> list[tuple[float, float]]:
    """Intervals from low to high in order, an infinite end replaced by doubling boxes as far as `far`."""
    points = {low, high, 0.0}
    if math.isinf(low) or math.isinf(high):
        size = 1.0
        while size <= far:
            points.update((-size, size))
            size *= 2
    inside = sorted(point for point in points if low <= point <= high and math.isfinite(point))
    return list(pairwise(inside))
