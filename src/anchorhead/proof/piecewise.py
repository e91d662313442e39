"""Other people's approximations: polynomials in pieces, and tables of values, with the numbers that they have.

Every number that is given is a float or a fraction and is taken as what it is. Of a table with n values the i-th
belongs to x_i = low + i (high - low)/(n - 1), exactly; linear interpolation is a polynomial of degree one between two
neighbours, the nearest value a constant from half-way to half-way. Where two pieces meet and differ, both count: a
largest difference is then that of one of them, as a limit from its side.

A place where pieces meet need not be a float. Boxes are therefore cut at the floats around it; the sliver in between
has two parts, each of which is a polynomial that goes on beyond its end.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from flint import arb

from anchorhead.enclosure.ranges import exact
from anchorhead.enclosure.tails import Tail
from anchorhead.errors import InputError, ShapeError
from anchorhead.proof.curve import Curve, Part

if TYPE_CHECKING:
    import numpy as np

MOST_PIECES = 1 << 16
MOST_COEFFICIENTS = 64
INTERPOLATIONS = ("linear", "nearest")


class Piecewise(Curve):
    """Polynomials on the intervals between neighbouring breaks.

    breaks: n + 1 numbers that rise; the first and the last may be infinite. coefficients: for each of the n pieces its
    coefficients c_0, c_1, .., of 1, x, x**2, ..; with `local` of the powers of x - (the piece's left break).

    >>> relu = ah.Piecewise([-4, 0, 4], [[0], [0, 1]])
    >>> relu
    Piecewise(2 pieces on [-4, 4], degree 1)
    >>> ah.distance(relu, "relu(x)").upper < 1e-20
    True
    """

    kind = "piecewise"

    def __init__(self, breaks: Iterable[Any], coefficients: Iterable[Iterable[Any]], *, local: bool = False) -> None:
        ends = [_real(b, "A break", infinite=True) for b in _listed(breaks, "breaks")]
        rows = [[_real(c, "A coefficient") for c in _listed(row, "a piece's coefficients")]
                for row in _listed(coefficients, "coefficients")]  # fmt: skip
        self._check(ends, rows, local)
        self.low, self.high = ends[0], ends[-1]
        self._given = ends, rows, local
        origins = [Fraction(e) if local else Fraction(0) for e in ends[:-1]]
        self._set([Fraction(e) for e in ends[1:-1]], origins, [[Fraction(c) for c in row] for row in rows])

    @staticmethod
    def _check(ends: list[float], rows: list[list[float]], local: bool) -> None:
        if len(ends) < 2 or len(rows) != len(ends) - 1:
            raise ShapeError(f"{len(ends)} breaks make {max(0, len(ends) - 1)} pieces, and coefficients of {len(rows)} "
                             "are given; give one more break than there are pieces.")  # fmt: skip
        if any(not a < b for a, b in itertools.pairwise(ends)):
            raise InputError("The breaks must rise, each above the one before; sort them, and leave doubles out.")
        if any(map(math.isinf, ends[1:-1])) or (local and math.isinf(ends[0])):
            raise InputError("Only the outermost breaks may be infinite, and with local=True not the first one.")
        if len(rows) > MOST_PIECES or any(not 1 <= len(row) <= MOST_COEFFICIENTS for row in rows):
            raise ShapeError(f"At most {MOST_PIECES:,} pieces of 1 to {MOST_COEFFICIENTS} coefficients can be read.")

    def _set(self, breaks: list[Fraction], origins: list[Fraction], rows: list[list[Fraction]]) -> None:
        self._breaks, self._origins, self._rows = breaks, origins, rows

    @classmethod
    def exactly(cls, breaks: list[Fraction], rows: list[list[Fraction]]) -> Piecewise:
        """Polynomials in x on all of R, between breaks that are fractions."""
        found = cls.__new__(cls)
        found._set(breaks, [Fraction(0)] * len(rows), rows)
        return found

    @property
    def name(self) -> str:
        return f"{len(self._rows)} polynomials of degree {self._degree}"

    @property
    def _degree(self) -> int:
        return max(map(len, self._rows)) - 1

    def __repr__(self) -> str:
        return f"Piecewise({len(self._rows)} pieces on [{self.low:g}, {self.high:g}], degree {self._degree})"

    def parts(self, low: float, high: float) -> Sequence[Part]:
        """Those of the pieces that share more than a point with the box, or that hold it, if it is a point."""
        point = low == high
        first = (bisect_left if point else bisect_right)(self._breaks, low)
        last = (bisect_right if point else bisect_left)(self._breaks, high)
        return [self._part(i) for i in range(first, last + 1)]

    def _part(self, index: int) -> Part:
        def expand(x: arb, order: int) -> Sequence[arb]:
            """The coefficients at x, by repeated division by (t - x); those beyond the degree are zero."""
            row = [exact(c) for c in self._rows[index]]
            at = x - exact(self._origins[index])
            result: list[arb] = []
            while row and len(result) <= order:
                for k in reversed(range(len(row) - 1)):
                    row[k] = row[k] + at * row[k + 1]
                result.append(row.pop(0))
            return result + [arb(0)] * (order + 1 - len(result))

        return Part(expand)

    def tail(self, sign: int, start: float) -> Tail | None:
        row = self._rows[0 if sign < 0 else -1]
        inside = not self._breaks or sign * (self._breaks[0] if sign < 0 else self._breaks[-1]) <= start
        if len(row) > 2 or not inside:
            return None
        slope, origin = (exact(row[1]) if len(row) > 1 else arb(0)), exact(self._origins[0 if sign < 0 else -1])
        return Tail(slope, exact(row[0]) - slope * origin, arb(0), arb(1), 0, arb(start), sign)

    def marks(self) -> Sequence[float]:
        found: set[float] = set()
        for place in self._breaks:
            near = float(place)
            found.add(near)
            if Fraction(near) != place:
                found.add(math.nextafter(near, math.inf if near < place else -math.inf))
        return sorted(found)

    def payload(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        import numpy as np

        ends, rows, local = self._given
        sides = [str(end) if math.isinf(end) else None for end in (ends[0], ends[-1])]
        finite = [end for end in ends if math.isfinite(end)]
        record = {"kind": self.kind, "local": local, "infinite": sides, "lengths": [len(row) for row in rows]}
        return record, {"breaks": np.array(finite), "coefficients": np.array([c for row in rows for c in row])}


class Table(Piecewise):
    """Values at evenly spaced places from low to high, both ends included, and how to read in between.

    interpolation: "linear", on the line through the two neighbours, or "nearest".

    >>> ah.Table(-8, 8, [0.0] * 63 + [8.0])
    Table(64 values on [-8, 8], linear)
    """

    kind = "table"

    def __init__(self, low: float, high: float, values: Iterable[Any], interpolation: str = "linear") -> None:
        self.low, self.high = _real(low, "The lower end of a table"), _real(high, "The upper end of a table")
        self.values = [_real(v, "A value of a table") for v in _listed(values, "values")]
        self.interpolation, count = interpolation, len(self.values)
        if interpolation not in INTERPOLATIONS:
            raise InputError(f"interpolation={interpolation!r:.40} must be one of {', '.join(INTERPOLATIONS)}.")
        if not self.low < self.high:
            raise InputError(f"A table from {self.low:g} to {self.high:g} is empty; give low below high.")
        if not 2 <= count <= MOST_PIECES:
            raise ShapeError(f"A table has 2 to {MOST_PIECES:,} values, and this one {count}.")
        step = (Fraction(self.high) - Fraction(self.low)) / (count - 1)
        places = [Fraction(self.low) + i * step for i in range(count)]
        exactly = [Fraction(v) for v in self.values]
        if interpolation == "nearest":
            self._set([p + step / 2 for p in places[:-1]], places, [[v] for v in exactly])
        else:
            lines = [[v, (w - v) / step] for v, w in itertools.pairwise(exactly)]
            self._set(places[1:-1], places[:-1], lines)

    @property
    def name(self) -> str:
        return f"a table of {len(self.values)} values, {self.interpolation}"

    def __repr__(self) -> str:
        return f"Table({len(self.values)} values on [{self.low:g}, {self.high:g}], {self.interpolation})"

    def payload(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        import numpy as np

        record = {"kind": self.kind, "low": self.low, "high": self.high, "interpolation": self.interpolation}
        return record, {"values": np.array(self.values)}


def _listed(values: Iterable[Any], name: str) -> list[Any]:
    """A sequence, an array or a tensor as a list."""
    found: Any = values.tolist() if hasattr(values, "tolist") else values
    try:
        return list(found)
    except TypeError:
        raise InputError(f"The {name} must be a sequence of numbers, and a {type(values).__name__} is none.") from None


def _real(value: Any, name: str, *, infinite: bool = False) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} is {value!r:.60}, which is not a number that floating point holds.") from None
    if math.isnan(number) or (math.isinf(number) and not infinite):
        raise InputError(f"{name} is {number}; give a finite number.")
    return number
