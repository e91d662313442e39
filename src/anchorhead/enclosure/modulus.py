"""How far a continuous function can move over a short distance: its modulus of continuity ω, by boxes.

The interval is cut into boxes. Over a part of length t of box I the function moves by at most s_I t, s_I a bound on its
slope, and on all of the box by at most c_I, the width of its range; both in ball arithmetic. A box counts as *steep*
where c_I is much less than s_I w_I, w_I its width, as where a root begins and s_I is infinite: what it adds is then c_I
as soon as it is touched. Everywhere else it is s_I times the length. So over a distance δ the function moves by at most

    ω(δ)  <=  max over x of  sum over boxes of  (c_I if steep and touched by [x, x + δ], else s_I |I ∩ [x, x + δ]|)

which is linear in x between the points where an end of [x, x + δ] meets an end of a box. Boxes are cut in two, those
that add most first, while they add much and the two bounds differ by much. For a smooth function 256 boxes are about
enough, and ω(δ) <= max s_I · δ.
"""

from __future__ import annotations

import heapq
import itertools
import math

import numpy as np

from anchorhead.arithmetic import Array
from anchorhead.enclosure.balls import jet
from anchorhead.enclosure.precision import ball
from anchorhead.expression.graph import Node

Box = tuple[float, float, float, float, float]
FIRST_BOXES = 256
MOST_BOXES = 8192
ALIKE = 1.1
"""By how much the two bounds on what a box adds may differ."""
FINE = 16
"""A box that adds less than this part of the error in question is not cut."""


class Modulus:
    """ω of a function of one variable on [low, high], as fine as errors of that size need it."""

    def __init__(self, function: Node, variable: str, low: float, high: float, error: float) -> None:
        self.function, self.variable = function, variable
        ends = np.linspace(low, high, FIRST_BOXES + 1).tolist()
        done: list[Box] = []
        heap = [self._box(a, b) for a, b in itertools.pairwise(ends)]
        heapq.heapify(heap)
        while heap:
            adds, a, b, slope, change = box = heapq.heappop(heap)
            middle = (a + b) / 2
            close = slope * (b - a) <= ALIKE * change < math.inf
            if close or -adds <= error / FINE or len(heap) + len(done) > MOST_BOXES or not a < middle < b:
                done.append(box)
            else:
                for half in ((a, middle), (middle, b)):
                    heapq.heappush(heap, self._box(*half))
        _, self.lows, self.highs, slopes, changes = np.array(sorted(done, key=lambda box: box[1])).T
        uncut = (changes > error / FINE) & np.isfinite(slopes)
        steep = (ALIKE * changes < slopes * (self.highs - self.lows)) & ~uncut
        self.slopes = np.where(steep, 0.0, slopes)
        self.smooth = _before(self.slopes * (self.highs - self.lows))
        self.jumps = _before(np.where(steep, changes, 0.0))

    def _box(self, a: float, b: float) -> Box:
        """What it adds at most, negated, its ends, and the bounds on slope and change."""
        value, *slopes = jet(self.function, self.variable, ball(a, b), 1)
        change = 2 * float(value.rad()) if value.is_finite() else math.inf
        slope = float(abs(slopes[0]).upper()) if slopes and slopes[0].is_finite() else math.inf
        return -min(change, slope * (b - a)), a, b, slope, change

    def __call__(self, distance: float) -> float:
        """ω(distance), or more."""
        low, high = self.lows[0], self.highs[-1]
        ends = np.append(self.lows, high)
        starts = np.clip(np.concatenate([ends, ends - distance]), low, max(low, high - distance))
        stops = np.minimum(starts + distance, high)
        touched = np.searchsorted(self.lows, stops, side="right")
        left = np.searchsorted(self.highs, starts, side="left")
        moved = self._smooth_before(stops) - self._smooth_before(starts) + self.jumps[touched] - self.jumps[left]
        return float(moved.max())

    def _smooth_before(self, places: Array) -> Array:
        box = np.searchsorted(self.lows, places, side="right") - 1
        return self.smooth[box] + self.slopes[box] * (places - self.lows[box])

    def distance(self, error: float) -> float:
        """About the largest distance over which the function moves by at most `error`; zero if none was found."""
        enough, too_far = 0.0, self.highs[-1] - self.lows[0]
        if self(too_far) <= error:
            return float(too_far)
        for _ in range(60):
            middle = (enough + too_far) / 2
            enough, too_far = (middle, too_far) if self(middle) <= error else (enough, middle)
        return enough


def _before(parts: Array) -> Array:
    """Sums of all parts before each, and of all, in a fixed order."""
    return np.array(list(itertools.accumulate(parts.tolist(), initial=0.0)))
