"""What evaluating one piece of a head adds in floating point: the first half of the derivation in `rounding.py`."""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import TYPE_CHECKING

from flint import arb

from anchorhead.enclosure.precision import upper

if TYPE_CHECKING:
    from anchorhead.proof.rounding import Rounding


class Part:
    """One piece over a box: its weights, what rounding within it costs, and how its blend differs from another's.

    total: its normaliser, relative to its leader. error: rounding of its blend. slack: its normaliser's relative error.
    lost: weight that rounding may take away. output: bound on |blend|. slope: bound on |blend'|.
    """

    def __init__(self, rounding: Rounding, keys: Sequence[int], x: arb, low: float, high: float) -> None:
        self.rounding, self.keys = rounding, keys
        head, unit = rounding.head, rounding.unit
        self.leader = leader = max(keys, key=lambda k: rounding.score(k, (low + high) / 2))
        leads = [rounding.lead(k, leader, x) for k in keys]
        relative = [lead.exp() for lead in leads]
        self.total = sum(relative[1:], relative[0])
        least = self.total.lower()
        weights = [w.upper() / least for w in relative]
        size = abs(x).upper()
        most = arb(max(upper(d + 2 * unit * rounding.score_size(k, size)) for d, k in zip(leads, keys, strict=True)))
        sizes = [abs(head.constants[k] + head.gains[k] * x).upper() for k in keys]
        gaps = [self._gap(k, x) for k in keys]
        apart = [abs(gap).upper() for gap in gaps]
        blend = sum((w * s for w, s in zip(weights, apart, strict=True)), arb(0))
        if rounding.signed:
            blend = smaller(abs(sum(map(mul, relative, gaps), arb(0)) / self.total).upper(), blend)
        whole = sum((w * s for w, s in zip(weights, sizes, strict=True)), arb(0))
        self.output = abs(head.constants[leader] + head.gains[leader] * x).upper() + blend
        self.error = 4 * rounding.least * (1 + sum(sizes[1:], sizes[0]))
        self.slack, self.lost, self.slope = arb(0), arb(0), arb(0)
        for k, lead, weight, far, big in zip(keys, leads, weights, apart, sizes, strict=True):
            slack = rounding.weight_error(k, abs(lead).upper() + most, size, low, high)
            self.error += weight * slack * (far + blend)
            value = rounding.constants[k] + rounding.gains[k] * size
            self.error += 3 * unit * weight * value
            if rounding.stored.horner:
                self.error += weight * rounding.apart(k, low, high) * (value + self.output)
            self.slack += weight * slack
            self.lost += weight * smaller(slack, arb(1))
            steep = abs(head.slopes[k] - head.slopes[leader])
            self.slope += weight * (rounding.gains[k] + 2 * steep * (far + blend))
            if k != leader:
                self.error += smaller(unit * whole, 2 * weight * big)
                self.error += smaller(unit, 2 * weight) * self.output

    def _gap(self, k: int, x: arb) -> arb:
        """By how much its value is above the leader's."""
        head, leader = self.rounding.head, self.leader
        return head.constants[k] - head.constants[leader] + (head.gains[k] - head.gains[leader]) * x

    def blend_at(self, place: float) -> arb:
        """The piece's blend at a point."""
        head, x = self.rounding.head, arb(place)
        relative = [self.rounding.relative_weight(k, self.leader, x) for k in self.keys]
        values = [w * (head.constants[k] + head.gains[k] * x) for w, k in zip(relative, self.keys, strict=True)]
        return sum(values[1:], values[0]) / sum(relative[1:], relative[0])

    def distance(self, other: Part, middle: float, radius: float) -> arb:
        """A bound of |blend - other's blend| over the box."""
        if other is self:
            return arb(0)
        gap = abs(self.blend_at(middle) - other.blend_at(middle)).upper()
        return gap + (self.slope + other.slope) * arb(radius)


def grown(error: arb) -> arb:
    """A relative error of the exponent as one of the exponential."""
    return error if error < 1e-3 else error.expm1()


def smaller(a: arb, b: arb) -> arb:
    """The smaller of two numbers, where that is certain; else the second."""
    return a if a < b else b
