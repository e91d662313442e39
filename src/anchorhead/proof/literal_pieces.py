"""What evaluating a head of several pieces as one literal softmax adds in floating point (docs/mathematics.md 5).

The literal form adds a key's own score to its piece's gate, which may be a million times as steep: the sum keeps no
more digits of the key's own score than the gate leaves. So the bound of the fast evaluation, piece by piece, is not
one of the literal form. With ρ the unit roundoff, s_k = (slope_k + gate) x + intercept_k + level computed in any order,
or from sums that were rounded when they were stored, errs by at most

    e_k = 5ρ(|slope_k x| + |intercept_k| + |gate x| + |level|)

three products and sums, and two roundings of what is stored. Relative to the leading key l the weight W_k errs by
expm1(δ_k), δ_k = e_k + e_l + ρ|s_k - s_l| + 8ρ: the difference to the largest score is rounded, and exp errs by 4ρ in
both. An error of W_k moves h by W_k expm1(δ_k)|v_k - h|, over one minus what weights may lose together, and all errors
of scores move it by V tanh(max δ_k / 2) at most, V the span of the values. Values, products and sums of K terms and the
quotient add (2K + 8)ρ of sum W_k|v_k|, twice to cover terms of second order.

*Far out*, y = |x| >= b, the end key e leads. Computed weights of others are at most exp(-D_k - r_k(y - b)) with the
rate r_k = |σ_e - σ_k| - 10ρ(sizes of both slopes), and D_k the same of the scores at b. |v_k - v_e| <= A + By, and
where r_k b >= 1 the product of both is largest at b: the head and its evaluation are within its sum over k of v_e.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from flint import arb

from anchorhead.dtypes import LEAST_NORMAL
from anchorhead.enclosure.precision import ball, precision, upper
from anchorhead.proof.head_claim import HeadClaim

SCORE, OTHERS = 5, 8


class LiteralPieces:
    """Bounds |computed - exact| of the literal form of a claim's head, in pieces or not."""

    def __init__(self, claim: HeadClaim) -> None:
        self.head, self.unit = claim.head.balls, arb(claim.unit)
        self.least, self.reach = arb(LEAST_NORMAL[claim.head.dtype]), claim.head.reach

    def on_box(self, low: float, high: float, goal: float = 0.0) -> float:
        """An upper bound over [low, high]; infinity if none was found."""
        if not 2 * max(abs(low), abs(high)) <= self.reach:
            return math.inf
        with precision():
            return upper(self._on_box(low, high))

    def _on_box(self, low: float, high: float) -> arb:
        head, x = self.head, ball(low, high)
        lead = head.leader((low + high) / 2, head.every)
        raw = head.weights(x, lead, head.every)
        whole = sum(raw, arb(0)).lower()
        weights = [(w.upper() / whole).min(arb(1)) for w in raw]
        values = [c + g * x for c, g in zip(head.constants, head.gains, strict=True)]
        apart = [abs(v - values[lead]).upper() for v in values]
        spread = _sum(w * far for w, far in zip(weights, apart, strict=True))
        moved = self._moved(x, lead)
        grown = [d.expm1() for d in moved]
        lost = _sum(w * d.min(arb(1)) for w, d in zip(weights, grown, strict=True))
        first = 2 * max(apart) * (max(moved, key=float) / 2).tanh()
        if lost < 0.5:
            each = _sum(w * d * (far + spread) for w, d, far in zip(weights, grown, apart, strict=True))
            first = first.min(each / (1 - lost))
        sizes = [abs(v).upper() for v in values]
        products = _sum(w * v for w, v in zip(weights, sizes, strict=True))
        rest = 2 * (2 * head.keys + OTHERS) * self.unit * products
        return first + rest + 4 * self.least * (1 + _sum(sizes))

    def _moved(self, x: arb, lead: int) -> list[arb]:
        """δ_k on a ball."""
        head, size = self.head, abs(x).upper()
        errors = [SCORE * self.unit * (slope * size + level) for slope, level in self._sizes()]
        gaps = [abs((s - head.slopes[lead]) * x + c - head.intercepts[lead]).upper()
                for s, c in zip(head.slopes, head.intercepts, strict=True)]  # fmt: skip
        return [(e + errors[lead] + self.unit * (gap + OTHERS) + self.least).upper()
                for e, gap in zip(errors, gaps, strict=True)]  # fmt: skip

    def _sizes(self) -> list[tuple[arb, arb]]:
        """|slope| + |gate| and |intercept| + |level| of every key."""
        return [(s + g, c + b) for (s, c), (g, b) in zip(self.head.own, self.head.gates, strict=True)]

    def beyond(self, sign: int, start: float) -> float:
        """An upper bound of |computed - exact|/(1 + |x|) on the side `sign` beyond |x| >= start."""
        if not 2 * abs(start) <= self.reach:
            return math.inf
        with precision():
            return upper(self._beyond(sign, arb(start)))

    def _beyond(self, sign: int, start: arb) -> arb:
        head, sizes = self.head, self._sizes()
        end = max(head.every, key=lambda k: sign * head.floats[k][0])
        near = arb(0)
        for k in head.every:
            if k == end:
                continue
            slack, offset = (2 * SCORE * self.unit * (sizes[k][i] + sizes[end][i]) for i in (0, 1))
            rate = (sign * (head.slopes[end] - head.slopes[k]) - slack).lower()
            gap = rate * start + head.intercepts[end] - head.intercepts[k] - offset - OTHERS * self.unit * (1 + start)
            if not rate * start >= 1:
                return arb("inf")
            far = abs(head.constants[k] - head.constants[end]) + abs(head.gains[k] - head.gains[end]) * start
            near += (-gap).exp() * far
        largest = abs(head.constants[end]).max(abs(head.gains[end]))
        rest = 2 * (2 * head.keys + OTHERS) * self.unit * (largest + near) + 4 * self.least * (1 + largest)
        return 4 * near / (1 + start) + rest


def _sum(terms: Iterable[arb]) -> arb:
    return sum(terms, arb(0))
