"""Softmax in fixed point, as accelerators compute it.

With t_k = s_k - max s: (i) t_k is rounded to a multiple of 2^-f; (ii) exp of it to a multiple of 1/(2^w - 1); (iii) the
sum of these whole numbers is divided by, exactly, or multiplied by a tabulated reciprocal: its leading r bits behind
the first choose one of 2^r entries of r + 2 bits.

*(i)* moves every score by at most d = 2^-(f+1) and what floats round. With h = sum p_k v_k the exact head, and
since sum p_k (v_k - h) = 0 and |e^t - cosh d| <= sinh d for |t| <= d,

    |h_1 - h| = |sum p_k (e^(t_k) - cosh d)(v_k - h)| / sum p_k e^(t_k) <= e^d sinh d · sum p_k |v_k - h|

and at most V tanh(d/2), V the values' span (the keys split into raised and lowered ones). *(ii)* adds a_k to u_k =
exp(t_k'), |a_k| <= a = 1/(2(2^w - 1)), and at most u_k since what is below a becomes 0; to the largest key nothing, its
argument is 0. So with S = sum u_k >= 1

    |h_2 - h_1| = |sum a_k (v_k - h_1)| / sum (u_k + a_k) <= sum |a_k| |v_k - h_1| / max(1, S - sum |a_k|)

and, since also h_2 - h_1 = sum a_k (v_k - h_2) / S, once T bounds it, by the larger of sum |a_k| |v_k - h_1 ± T| / S.
*(iii)* multiplies by 1 + c, |c| the table's worst product of a sum and its entry, less 1: it is read off the table.
All of it is bounded box by box, with the weights and h enclosed there. The span of the values decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from flint import arb

from anchorhead.enclosure.precision import ball
from anchorhead.enclosure.ranges import exact
from anchorhead.head.head import Head
from anchorhead.proof.curve import Part
from anchorhead.row_maps.row_map import MappedCurve, RowMap, require_whole, total

if TYPE_CHECKING:
    from torch import Tensor

TABULATED = {"reciprocal_bits": 12}


@dataclass(frozen=True)
class FixedPoint(RowMap):
    """argument_bits: f, behind the point. exp_bits: w. reciprocal_bits: r of a tabulated reciprocal; None divides.

    >>> scores = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    >>> [round(w, 4) for w in ah.row_maps.FixedPoint(argument_bits=8, exp_bits=8).weights(scores).tolist()]
    [0.0429, 0.1155, 0.8416]
    """

    argument_bits: int
    exp_bits: int
    reciprocal_bits: int | None = None
    name = "fixed_point"

    def __post_init__(self) -> None:
        require_whole(self, argument_bits=24, exp_bits=24, **({} if self.reciprocal_bits is None else TABULATED))

    def weights(self, scores: Tensor) -> Tensor:
        step, top = 2.0**self.argument_bits, 2.0**self.exp_bits - 1
        arguments = ((scores - scores.amax(-1, keepdim=True)) * step).round() / step
        whole = (arguments.exp() * top).round()
        sums = whole.sum(-1, keepdim=True)
        if self.reciprocal_bits is None:
            return whole / sums
        mantissas, exponents = sums.frexp()  # in [1/2, 1)
        cells = 2**self.reciprocal_bits
        index = ((2 * mantissas - 1) * cells).floor().long()
        table = sums.new_tensor([float(entry) for entry in self.table])
        return (whole * table[index]).ldexp(1 - exponents)

    @cached_property
    def table(self) -> list[Fraction]:
        """The reciprocals, of the middles of the cells of [1, 2), with r + 2 bits."""
        cells = 2 ** (self.reciprocal_bits or 0)
        middles = [1 + Fraction(2 * i + 1, 2 * cells) for i in range(cells)]
        return [Fraction(round(4 * cells / middle), 4 * cells) for middle in middles]

    @cached_property
    def reciprocal_error(self) -> Fraction:
        """The largest |m · entry - 1| for m in an entry's cell."""
        if self.reciprocal_bits is None:
            return Fraction(0)
        cells = len(self.table)
        ends = ((entry * (1 + Fraction(i + side, cells))) for i, entry in enumerate(self.table) for side in (0, 1))
        return max(abs(product - 1) for product in ends)

    def curve(self, head: Head) -> FixedPointCurve:
        return FixedPointCurve(head, self)


class FixedPointCurve(MappedCurve):
    """A head whose softmax is one in fixed point: the head, with what the map changes as slack."""

    def __init__(self, head: Head, row_map: FixedPoint) -> None:
        super().__init__(head, row_map)
        self.map = row_map

    def parts(self, low: float, high: float) -> Sequence[Part]:
        (part,) = super().parts(low, high)
        return (part._replace(slack=(part.slack + self.change(low, high)).upper()),)

    def change(self, low: float, high: float) -> arb:
        """A bound of |h' - h| on a box."""
        values, h = self.values(low, high), self._over(low, high)
        gaps = [v - h for v in values]
        away = [abs(gap).upper() for gap in gaps]
        span = self._span(values, low, high)
        moved = arb(max(map(float, self.moved(low, high)))) * 2
        d = arb(2) ** -(self.map.argument_bits + 1) + moved
        raw, largest, least = self._exponentials(low, high)
        whole = total(raw)
        spread = total([(e / whole).upper().min(arb(1)) * far for e, far in zip(raw, away, strict=True)])
        first = (d.exp() * d.sinh() * spread).min(span * (d / 2).tanh()).upper()
        second = self._second(raw, (largest, least), d, first, gaps)
        size = (abs(h) + first + second).upper()
        return (first + second + exact(self.map.reciprocal_error) * size).upper()

    def _over(self, low: float, high: float) -> arb:
        """The head over a box: from its middle by its slope, or as it is."""
        (part,) = super().parts(low, high)
        middle = arb((low + high) / 2)
        wide = part.jet(ball(low, high), 1)
        near = part.jet(middle, 0)[0] + wide[1] * (ball(low, high) - middle)
        found = near if float(near.rad()) < float(wide[0].rad()) else wide[0]
        return found + arb(0, part.slack.upper())

    def _span(self, values: list[arb], low: float, high: float) -> arb:
        """The values' span: it is largest at an end of the box, since values are affine."""
        head = self.head
        ends = []
        for x in (low, high):
            at = [arb(c) + arb(g) * x for c, g in zip(head.constants, head.gains, strict=True)]
            ends.append(max(v.upper() for v in at) - min(v.lower() for v in at))
        return max(ends).upper()

    def _exponentials(self, low: float, high: float) -> tuple[list[arb], arb, arb]:
        """exp of the scores over a box, relative to the leader at its middle; bounds of the largest one."""
        balls = self.head.balls
        raw = balls.weights(ball(low, high), balls.leader((low + high) / 2, balls.every), balls.every)
        return raw, max(e.upper() for e in raw), max(e.lower() for e in raw)

    def _roundings(self, raw: list[arb], least: arb, d: arb) -> list[arb]:
        """What each key's exponential may be off by."""
        step = 1 / (2 * (arb(2) ** self.map.exp_bits - 1)) + 5 * self.unit
        return [((e / least).upper().min(arb(1)) * _loose(d)).min(step).upper() for e in raw]

    def _second(self, raw: list[arb], bounds: tuple[arb, arb], d: arb, first: arb, gaps: list[arb]) -> arb:
        """What the rounding of exponentials adds, t = h_2 - h_1; and once more, with a bound of t known."""
        largest, least = bounds
        off = self._roundings(raw, least, d)
        leads = [k for k, e in enumerate(raw) if not (e.upper() * _loose(d) < least)]

        def cost(moved: arb) -> arb:
            costs = [a * (abs(gap - moved) + first) for a, gap in zip(off, gaps, strict=True)]
            return (total(costs) - min((costs[k].lower() for k in leads), key=float)).upper()

        whole = max(arb(1), (total(raw).lower() / largest / _loose(d)).lower())
        room = max(arb(1), (whole - total(off)).lower())
        found = (cost(arb(0)) / room).upper()
        return max((cost(t) / whole).upper() for t in (found, -found)).min(found).upper()

    def rounding(self, low: float, high: float) -> arb:
        """Of the quotients, values and sums; the scores' is in `change`."""
        largest = max(abs(v).upper() for v in self.values(low, high))
        return 2 * (2 * self.head.keys + 8) * self.unit * largest + self.least


def _loose(d: arb) -> arb:
    """By which factor exponentials of rounded arguments may be larger, and a little more for ties."""
    return (2 * d).exp() * (1 + arb(2) ** -20)
