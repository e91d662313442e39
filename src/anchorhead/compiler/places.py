"""Where a target needs samples, and where keys may crowd."""

from __future__ import annotations

import math

import numpy as np

from anchorhead.arithmetic import Array, log_of
from anchorhead.head.resolution import FIRST_CELLS, crowded, fine_points, resolved
from anchorhead.head.solve import Crowd, Function

MOST_NEEDED = 400
LOG10 = log_of(10.0)


class Places:
    """Of a function on a bounded interval, for an error; each decade of errors is looked at once."""

    def __init__(self, f: Function, low: float, high: float) -> None:
        self.f, self.low, self.high = f, low, high
        self._cells: dict[int, Array] = {}

    def cells(self, error: float) -> Array:
        """The ends of cells on which the function is smooth to about a tenth of the error."""
        decade = math.floor(log_of(max(error, 1e-300)) / LOG10) - 1
        if decade not in self._cells:
            self._cells[decade] = resolved(self.f, self.low, self.high, 10.0**decade)
        return self._cells[decade]

    def fine(self, error: float) -> Array:
        """Points in every cell."""
        return fine_points(self.cells(error))

    def needed(self, error: float) -> Array:
        """Points in the cells that are smaller than usual; some of them, where they are many."""
        small = np.diff(self.cells(error)) < 0.9 * (self.high - self.low) / FIRST_CELLS
        found = self.fine(error)[:-1][np.repeat(small, 5)]
        return found[:: len(found) // MOST_NEEDED + 1]

    def crowds(self, error: float) -> list[list[Crowd]]:
        """Where cells are smallest, together and one by one; both ends and where the function bends, at no scale."""
        found = [Crowd(*pair) for pair in crowded(self.cells(error))]
        together = [found] if len(found) > 1 else []
        width = self.high - self.low
        for place in self._bends():
            if all(abs(place - other.place) > 0.02 * width for other in found):
                found.append(Crowd(place, width))
        return together + [[crowd] for crowd in found]

    def _bends(self) -> list[float]:
        """Both ends, where f bends most, and the middle of where it bends."""
        u = np.linspace(self.low, self.high, 2001)
        with np.errstate(all="ignore"):
            bend = np.sqrt(np.abs(np.diff(self.f(u), 2)))
        if not np.isfinite(bend).all() or not bend.any():
            return [self.low, self.high]
        total = np.cumsum(bend)
        middle = float(u[1 + int(np.searchsorted(total, total[-1] / 2))])
        steep = float(u[1 + int(np.argmax(bend))])
        width = self.high - self.low
        inner = [c for c in dict.fromkeys((middle, steep)) if min(c - self.low, self.high - c) > 0.02 * width]
        if len(inner) == 2 and abs(inner[0] - inner[1]) < 0.01 * width:
            inner.pop()
        return [self.low, self.high, *inner]
