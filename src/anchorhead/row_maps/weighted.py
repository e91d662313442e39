"""Heads whose weights are a smooth function of each key's own score: Taylor coefficients of sums, and their rounding.

    h'(x) = scale · sum over k of  w(s_k) v_k,        or that sum over  sum over k of w(s_k)

Each term is a power series in x, since s_k and v_k are affine in it. Evaluated in floats with unit roundoff u, a score
errs by e_k (`MappedCurve.moved`), so that w errs by |w'| e_k and by 8u|w| of its own (assumed: 4 units in the last
place); values and products add 4u, sums of n terms nu, the scale or the quotient 3u, all relative to sum |w_k v_k|.
Under a quotient the denominator's errors come to the numerator's, times |h'|. What is of second order is below the
factor 2 by which all is multiplied, where errors are below a tenth; where they are not, there is no bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flint import arb, arb_series, ctx

from anchorhead.enclosure.precision import ball
from anchorhead.enclosure.series import divide
from anchorhead.head.head import Head
from anchorhead.proof.curve import Part
from anchorhead.row_maps.row_map import MappedCurve, RowMap, total

Weight = Callable[[Any], Any]
"""Of a power series, or of a ball."""
ASSUMED = "sigmoid and whole powers are accurate to 4 units in the last place"


class WeightedCurve(MappedCurve):
    """See the file. scale: of an unnormalised sum; None where it is divided by the sum of weights."""

    def __init__(self, head: Head, row_map: RowMap, weight: Weight, scale: arb | None) -> None:
        super().__init__(head, row_map)
        self.weight, self.scale = weight, scale
        balls = head.balls
        middle = [total(part) / head.keys for part in (balls.slopes, balls.intercepts)]
        shift = [arb(0), arb(0)] if scale is not None else middle
        """Normalised weights are functions of the scores' differences to their mean."""
        self.lines = [(s - shift[0], c - shift[1]) for s, c in zip(balls.slopes, balls.intercepts, strict=True)]

    def parts(self, low: float, high: float) -> Sequence[Part]:
        return (Part(self._jet),)

    def _sums(self, x: arb, order: int) -> tuple[list[arb], list[arb]]:
        """Coefficients of the sum of weights times values, and of that of weights."""
        before, ctx.cap = ctx.cap, order + 1
        try:
            above, below = arb_series([0], order + 1), arb_series([0], order + 1)
            balls = self.head.balls
            for (s, c), constant, gain in zip(self.lines, balls.constants, balls.gains, strict=True):
                weight = self.weight(arb_series([s * x + c, s], order + 1))
                above, below = above + weight * arb_series([constant + gain * x, gain], order + 1), below + weight
            return [above[j] for j in range(order + 1)], [below[j] for j in range(order + 1)]
        finally:
            ctx.cap = before

    def _jet(self, x: arb, order: int) -> Sequence[arb]:
        try:
            above, below = self._sums(x, order)
        except ValueError:  # flint's for a quotient by what may be zero: so wide a box tells nothing
            return [arb("nan")] * (order + 1)
        return divide(above, below) if self.scale is None else [self.scale * c for c in above]

    def own_error(self, score: arb) -> arb:
        """What the weight of a score errs by beside what the score does."""
        return 8 * self.unit * abs(self.weight(score))

    def rounding(self, low: float, high: float) -> arb:
        x, keys = ball(low, high), self.head.keys
        if not self._jet(x, 0)[0].is_finite():
            return arb("inf")
        moved, values = self.moved(low, high), [abs(v).upper() for v in self.values(low, high)]
        if self.scale is None:  # the mean's own rounding, and the difference to it
            most = max(moved, key=float)
            moved = [2 * e + most + (keys + 2) * self.unit * abs(s * x + c).upper()
                     for e, (s, c) in zip(moved, self.lines, strict=True)]  # fmt: skip
        errors, sizes = [], []
        for (s, c), e in zip(self.lines, moved, strict=True):
            at = s * x + c + arb(0, e.upper())
            series = self.weight(arb_series([at, 1], 2))
            sizes.append(abs(series[0]).upper())
            own = self.own_error(at) + (keys + 7) * self.unit * sizes[-1]
            errors.append((abs(series[1]) * e + own + self.least).upper())
        worst = total([e * v for e, v in zip(errors, values, strict=True)])
        if self.scale is not None:
            return 2 * self.scale * worst
        above, below = self._sums(x, 0)
        least = (below[0].lower() - total(errors)).lower()
        if not least > 0:
            return arb("inf")
        return (2 * (worst + abs(above[0] / below[0]) * total(errors)) / least).upper()
