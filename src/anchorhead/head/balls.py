"""A head in ball arithmetic: Taylor coefficients of numerator and denominator over a box.

Scores are taken relative to a reference key, which multiplies numerator N and denominator D of the head by
the same exponential: with E_k(u) = exp((slope_k - slope_ref) u + intercept_k - intercept_ref),

    D(u) = sum E_k(u) >= 1,      N(u) = sum E_k(u) (constant_k + gain_k u),      h = N/D.

The j-th Taylor coefficient of E_k at x is E_k(x) d_k^j/j!, d_k the relative slope; evaluated on a ball x it
encloses the coefficient at every point of the ball. With the key that leads at the midpoint as reference,
keys with huge relative slopes have vanishing weight, and the coefficients stay small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flint import arb, arb_mat

from anchorhead.enclosure.precision import precision

if TYPE_CHECKING:
    from anchorhead.head.head import Head


class HeadBalls:
    """The exact numbers of a head as balls; a score's slope is the key's own plus its piece's gate."""

    def __init__(self, head: Head) -> None:
        with precision():
            own, gates = list(zip(head.slopes, head.intercepts, strict=True)), head.gates
            self.floats = [(s + g, c + b) for (s, c), (g, b) in zip(own, gates, strict=True)]
            self.slopes = [arb(s) + arb(g) for (s, _), (g, _) in zip(own, gates, strict=True)]
            self.intercepts = [arb(c) + arb(b) for (_, c), (_, b) in zip(own, gates, strict=True)]
            self.own = [(abs(arb(s)), abs(arb(c))) for s, c in own]
            self.gate_balls = [(arb(g), arb(b)) for g, b in gates]
            self.gates = [(abs(g), abs(b)) for g, b in self.gate_balls]
            """Sizes of the two parts of a score, the key's own and its piece's, for rounding."""
            self.constants, self.gains = [arb(v) for v in head.constants], [arb(g) for g in head.gains]
        self._derivatives: dict[tuple[int, int, int], arb_mat] = {}

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return len(self.slopes)

    def leader(self, x: float) -> int:
        """The key with the largest score at x, by floating point: any choice is sound, a good one is tight."""
        return max(range(self.keys), key=lambda k: self.floats[k][0] * x + self.floats[k][1])

    def _matrix(self, reference: int, order: int, precision: int) -> arb_mat:
        """d_k^j/j! as (keys, order + 1)."""
        found = self._derivatives.get((reference, order, precision))
        if found is None:
            rows = []
            for slope in self.slopes:
                entry, row = arb(1), []
                for j in range(order + 1):
                    row.append(entry)
                    entry = entry * (slope - self.slopes[reference]) / (j + 1)
                rows.append(row)
            found = self._derivatives[reference, order, precision] = arb_mat(rows)
        return found

    def weights(self, x: arb, reference: int) -> list[arb]:
        """E_k over the ball, relative to the reference key."""
        base = self.slopes[reference] * x + self.intercepts[reference]
        if x.rad() == 0:
            return [(s * x + c - base).exp() for s, c in zip(self.slopes, self.intercepts, strict=True)]
        top, level = self.slopes[reference], self.intercepts[reference]
        return [((s - top) * x + (c - level)).exp() for s, c in zip(self.slopes, self.intercepts, strict=True)]

    def taylor(self, x: arb, reference: int, order: int, precision: int) -> tuple[list[arb], list[arb]]:
        """Coefficients 0..order of D and of N over the ball x."""
        weights = self.weights(x, reference)
        valued = [w * (a + g * x) for w, a, g in zip(weights, self.constants, self.gains, strict=True)]
        gained = [w * g for w, g in zip(weights, self.gains, strict=True)]
        product = arb_mat([weights, valued, gained]) * self._matrix(reference, order, precision)
        denominator = [product[0, j] for j in range(order + 1)]
        numerator = [product[1, j] + (product[2, j - 1] if j else 0) for j in range(order + 1)]
        return denominator, numerator
