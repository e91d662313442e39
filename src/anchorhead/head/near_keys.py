"""Which keys of a large head matter on an interval, found without looking at all of them.

Scores are affine. So if at both ends of an interval key k scores below some key r by a gap G, it does so in between,
and its weight W_k is at most e^-G there: it is *far*. With F the far keys and h' the head of all others,

    h - h'  =  sum over F of  W_k (v_k - h'),        |h - h'|  <=  |F| e^-G · (largest value - least value)

since h' is a blend of values. No derivative enters, so a proof may take h' for h and add the right-hand side, once.

*Finding them.* A key that is far on an interval is far on every part of it. There is a list of keys for every dyadic
cell [i 2^e, (i + 1) 2^e], made from that of the cell twice as wide by leaving out what is far on the cell, with r the
key that leads in its middle; an interval begins with the smallest cell that holds it. Lists of one level have about
twice as many entries together as there are keys, wherever keys take turns in leading, and intervals that do not overlap
take about keys·log(keys) comparisons in all. Where keys do not, lists stay long, which is slow and never wrong.

*Certainly.* Comparisons are made in floats. With A and C bounding slopes and levels, a score at |u| <= s is off by at
most 3ρ(As + C) and an underflow, both sides of a comparison in all by less than 16ρ(As + C) + 1, ρ = 2^-53: by that
much more than G a far key must lie below. Where scores could overflow no key is far.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

MANY = 64
"""Heads of at most so many keys are looked at as a whole."""
GAP = 80.0
"""In exponents: a far key's weight is below 2e-35."""
FEW = 24
"""A list this short is not made shorter for smaller cells."""
LARGEST = 1e300
UNSURE = 2.0**-49
MOST_COMPARED = 1 << 26
MOST_STORED = 1 << 22
"""Comparisons and entries of lists, a hundred times what a head of 16,384 keys needs whose keys take turns; from there
on every key counts as near."""


class NearKeys:
    """lines: slope and level of every key's score, the nearest floats."""

    def __init__(self, lines: Sequence[tuple[float, float]]) -> None:
        self.slopes, self.levels = [a for a, _ in lines], [c for _, c in lines]
        self.all = tuple(sorted(range(len(lines)), key=self.slopes.__getitem__))
        """In the order of slopes, as all that is returned."""
        self.steep, self.level = (max(map(abs, part)) for part in (self.slopes, self.levels))
        self.top = max((math.frexp(place)[1] for place in self._meetings()), default=0)
        self.bottom = max(self.top - 64, -math.frexp(self.steep)[1])  # over 1/steep scores hardly change
        self.cells: dict[tuple[int, int], tuple[int, ...]] = {}
        self.compared = self.stored = 0

    def _meetings(self) -> list[float]:
        """How far from zero lines of neighbouring slopes meet, as far as floats say: beyond, one key leads."""
        found = []
        for j, k in itertools.pairwise(self.all):
            rise = self.slopes[k] - self.slopes[j]
            place = abs(self.levels[j] - self.levels[k]) / rise if rise > 0 else 0.0
            if place < LARGEST:
                found.append(place)
        return found

    def of(self, low: float, high: float) -> tuple[int, ...]:
        """The keys that are not far on [low, high]; at least the one that leads in its middle."""
        keys, e = self.all, self.top
        width = math.ldexp(1.0, e)
        if not max(abs(low), abs(high)) < 2**50 * width:
            return self._not_far(keys, low, high)
        i = math.floor(low / width)
        while len(keys) > FEW and e >= self.bottom and high <= (i + 1) * width:
            keys = self._of_cell(keys, e, i, width)
            e, width = e - 1, width / 2
            i = 2 * i + (low >= (2 * i + 1) * width)
        return self._not_far(keys, low, high)

    def _of_cell(self, keys: tuple[int, ...], e: int, i: int, width: float) -> tuple[int, ...]:
        found = self.cells.get((e, i))
        if found is None and self.stored < MOST_STORED:
            found = self._not_far(keys, i * width, (i + 1) * width)
            if 4 * len(found) > 3 * len(keys):
                found = keys
            self.cells[e, i] = found
            self.stored += 8 if found is keys else 8 + len(found)
        return keys if found is None else found

    def _not_far(self, keys: tuple[int, ...], low: float, high: float) -> tuple[int, ...]:
        slopes, levels = self.slopes, self.levels
        reach = self.steep * max(abs(low), abs(high)) + self.level
        if not reach < LARGEST or self.compared > MOST_COMPARED:
            return keys
        self.compared += len(keys)
        leader = self.leader(low, high, keys)
        gap = GAP + UNSURE * reach + 1
        left, right = (slopes[leader] * end + levels[leader] - gap for end in (low, high))
        return tuple([k for k in keys if slopes[k] * low + levels[k] > left or slopes[k] * high + levels[k] > right])

    def leader(self, low: float, high: float, keys: Sequence[int] | None = None) -> int:
        """The key that leads in the middle of [low, high], of some or of all, as far as floats say."""
        middle, slopes, levels = (low + high) / 2, self.slopes, self.levels
        return max(self.all if keys is None else keys, key=lambda k: slopes[k] * middle + levels[k])
