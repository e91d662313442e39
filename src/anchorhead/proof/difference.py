"""How far two curves are apart: on a box from above, at a point from below, and far out.

On a box with midpoint m and radius r, with d = f - g, or d = (f - g)/g where the distance is relative, Taylor's theorem
gives

    |d(x)| <= sum over j < J of |d_j(m)| r^j + |D_J| r^J

with D_J the J-th coefficient over the box; so does the range of f less that of g. Near the largest |d| the slope d_1
is small, and so the bound is off by a multiple of r^2 only. Of two formulas that share addends, as 1/x and 1/x + 1e-20,
the same is said of what is left when these have cancelled (`expression/collect.py`). Where g has a zero c in the box
the quotient is no series; if f is zero there too, then (f - g)/g is the quotient of the slopes of f - g and of g
towards c.

Far out f and g are lines and what is left of them decays (`enclosure/tails.py`): if the lines are parallel, |f - g| is
at most the distance of the lines and the two remainders, and tends to that distance. Otherwise it is unbounded. Over
|g|, which rises, f and g may part: with a, b the distance of the slopes and of the rest, |g| >= cy - d at distance y,
(ay + b)/(cy - d) falls with y, to a/c. A box
that reaches from one place far out to another of twice its distance or more, or further, is bounded so too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from flint import arb

from anchorhead.enclosure.balls import jet
from anchorhead.enclosure.precision import ball, below, upper
from anchorhead.enclosure.series import divide
from anchorhead.enclosure.tails import Tail
from anchorhead.errors import InputError
from anchorhead.expression.collect import difference as collected
from anchorhead.expression.graph import ordered
from anchorhead.expression.primitives import primitive
from anchorhead.proof.curve import Curve, Formula, Part

ORDER = 6


class Far(NamedTuple):
    """Beyond a place on one side the difference is at most `error`, and tends to something that is at least `limit`."""

    error: float
    limit: float


@dataclass(frozen=True)
class Difference:
    """f - g for two curves, over g if relative."""

    f: Curve
    g: Curve
    relative: bool

    def on_box(self, low: float, high: float) -> float:
        """An upper bound of its size on a box; infinity if none was found."""
        pairs = [(p, q) for p in self.f.parts(low, high) for q in self.g.parts(low, high)]
        found = max(self._bound(p, q, low, high) for p, q in pairs)
        least, most = sorted((abs(low), abs(high)))
        if least < 1 or most < 2 * least or low < 0 < high:
            return found
        return min(found, self.settled(1 if low > 0 else -1, least))

    @cached_property
    def left(self) -> Part | None:
        """What is left of f - g without the addends that the two share, if there are any; of formulas."""
        if not (isinstance(self.f, Formula) and isinstance(self.g, Formula)) or self.f.variable != self.g.variable:
            return None
        node, variable = collected(self.f.node, self.g.node), self.f.variable
        parts = [len(ordered(nodes)) for nodes in ([node], [primitive(self.f.node), primitive(self.g.node)])]
        return Part(lambda x, order: jet(node, variable, x, order)) if parts[0] < parts[1] else None

    def near(self, low: float, high: float, place: float) -> float:
        """A lower bound of its size at a point of a box; 0 where the box lies across a break, and what is not known."""
        fs, gs = self.f.parts(low, high), self.g.parts(low, high)
        if len(fs) > 1 or len(gs) > 1:
            return 0.0
        found = self._at(fs[0], gs[0], arb(place))
        return max(0.0, below(found)) if found.is_finite() else 0.0

    def at_end(self, place: float) -> tuple[float, float]:
        """Bounds of its size at an end of the domain, from below and above: all pieces that meet there count."""
        x, found = arb(place), []
        for p in self.f.parts(place, place):
            for q in self.g.parts(place, place):
                found.append(self._at(p, q, x))
        if not all(value.is_finite() for value in found):  # g may be zero; of one pair the box beside it tells
            return 0.0, 0.0 if len(found) == 1 else math.inf
        return max(0.0, *map(below, found)), max(map(upper, found))

    def _at(self, p: Part, q: Part, x: arb) -> arb:
        """Its size at a point."""
        apart = abs(_at(p, x) - _at(q, x) if self.left is None else _at(self.left, x))
        return apart / abs(_at(q, x)) if self.relative else apart

    def size(self, place: float) -> float:
        """How large the two are at a point, about; 1 for what is measured in units of g."""
        values = [_at(part, arb(place)) for curve in (self.f, self.g) for part in curve.parts(place, place)]
        return 1.0 if self.relative else max((abs(float(v)) for v in values if v.is_finite()), default=1.0)

    def _bound(self, p: Part, q: Part, low: float, high: float) -> float:
        box, middle, radius = ball(low, high), (arb(low) + arb(high)) / 2, (arb(high) - arb(low)) / 2
        wide_p, wide_q = p.jet(box, ORDER), q.jet(box, ORDER)
        ranges = [part.over if part.over is not None else wide[0] for part, wide in ((p, wide_p), (q, wide_q))]
        if not all(r.is_finite() for r in ranges):
            return math.inf
        slack = p.slack + q.slack
        apart = abs(ranges[0] - ranges[1]) + slack
        if self.left is not None:
            apart = apart.upper().min(arb(self._of_left(self.left, box, middle, radius)))
        if not self.relative:
            return min(upper(apart), self._by_series(p, q, wide_p, wide_q, middle, radius, slack))
        least = ranges[1].abs_lower() - q.slack
        if not least > 0:
            return self._towards_zero(p, q, wide_p, wide_q, low, high)
        found = self._by_series(p, q, wide_p, wide_q, middle, radius, arb(0))
        return min(upper(apart / least), upper(arb(found) + slack * (1 + found) / least) if found < 1e300 else math.inf)

    def _by_series(self, p: Part, q: Part, wide_p: Sequence[arb], wide_q: Sequence[arb], middle: arb, radius: arb,
                   slack: arb) -> float:  # fmt: skip
        """The bound from Taylor coefficients."""
        wide = self._series(wide_p, wide_q)
        order = len(wide) - 1
        here = self._series(p.jet(middle, order - 1), q.jet(middle, order - 1)) if order else []
        return _taylor_bound(wide, here, radius, slack)

    def _series(self, f: Sequence[arb], g: Sequence[arb]) -> list[arb]:
        """The coefficients of the difference, as many as are finite."""
        apart = [a - b for a, b in zip(f, g, strict=False)]
        return _finite(divide(apart, g) if self.relative else apart)

    @staticmethod
    def _of_left(left: Part, box: arb, middle: arb, radius: arb) -> float:
        """A bound of what is left when shared addends have cancelled."""
        wide = _finite(left.jet(box, ORDER))
        here = _finite(left.jet(middle, len(wide) - 2)) if len(wide) > 1 else []
        return min(upper(abs(wide[0])), _taylor_bound(wide, here, radius, arb(0)))

    def _towards_zero(self, p: Part, q: Part, wide_p: Sequence[arb], wide_q: Sequence[arb], low: float, high: float
                      ) -> float:  # fmt: skip
        """The relative bound on a box with a common zero: at 0 or at an end, where both are zero for certain."""
        if min(len(wide_p), len(wide_q)) < 2 or not (p.slack.is_zero() and q.slack.is_zero()):
            return math.inf
        for place in {0.0, low, high}:
            x = arb(place)
            if low <= place <= high and _at(p, x) == 0 and _at(q, x) == 0:
                least = wide_q[1].abs_lower()
                return upper(abs(wide_p[1] - wide_q[1]) / least) if least > 0 else math.inf
        return math.inf

    def settled(self, sign: int, start: float) -> float:
        """An upper bound on the side `sign` beyond |x| = start; infinity where none is known."""
        f, g = self.f.tail(sign, start), self.g.tail(sign, start)
        known = self._beyond(f, g, start) if f is not None and g is not None else None
        return math.inf if known is None else known.error

    def beyond(self, sign: int, start: float) -> Far | None:
        """What is known on the side `sign` beyond |x| = start; None where nothing is."""
        f, g = self.f.tail(sign, start), self.g.tail(sign, start)
        if f is None or g is None:
            return None
        slope = arb(f.slope - g.slope)
        if slope != 0 and not (self.relative and arb(g.slope) != 0):
            side = "right" if sign > 0 else "left"
            raise InputError(
                f"Far on the {side} {self.f.name} rises by {float(f.slope):.6g} and {self.g.name} by "
                f"{float(g.slope):.6g}, so that their distance is not bounded; give a bounded domain."
            )
        return self._beyond(f, g, start)

    def _beyond(self, f: Tail, g: Tail, start: float) -> Far | None:
        """Of two that approach parallel lines; any lines, where g rises and the distance is over it."""
        apart, rest = abs(arb(f.intercept - g.intercept)), f.sup() + g.sup()
        parting = abs(arb(f.slope - g.slope))
        if not (parting.is_zero() or (self.relative and arb(g.slope) != 0)):
            return None  # of a ball around zero neither is certain
        if not self.relative:
            return Far(upper(apart + rest), max(0.0, below(apart)))
        rise, level = abs(arb(g.slope)), abs(arb(g.intercept))
        least = rise * start - level - g.sup() if rise > 0 else level - g.sup()
        if not least > 0:
            return None
        limit = parting / rise if rise > 0 else apart / level
        return Far(upper((parting * start + apart + rest) / least), max(0.0, below(limit)))


def _finite(coefficients: Sequence[arb]) -> list[arb]:
    """The first ones, as many as are finite."""
    found = list(itertools.takewhile(arb.is_finite, coefficients))
    return found or [arb("nan")]


def _taylor_bound(wide: Sequence[arb], here: Sequence[arb], radius: arb, slack: arb) -> float:
    """The bound on a box from coefficients on all of it and in the middle."""
    order = len(wide) - 1
    if order and len(here) < order:
        return math.inf
    total = abs(wide[order]) * radius**order + slack
    for j in range(order):
        total += abs(here[j]) * radius**j
    return upper(total)


def _at(part: Part, x: arb) -> arb:
    """The part's value at a point, with what it leaves out."""
    value = part.jet(x, 0)[0]
    return value if part.slack.is_zero() else value + arb(0, part.slack.upper())
