"""Beyond the boxes: a head and its target on a side that extends to infinity.

Say the side is the right one, u >= T > 0 (the left one is its mirror image). The key e with the largest slope
has value v_e(u) = constant_e + gain_e u. Relative to it, key k has weight at most exp(-κ_k u + b_k) with
κ_k = slope_e - slope_k > 0 and b_k = intercept_k - intercept_e, so

    |h(u) - v_e(u)|  <=  sum over k of exp(b_k - κ_k u) (|constant_k - constant_e| + |gain_k - gain_e| u)

and u exp(-κu) decreases from u = 1/κ on. The target is slope·u + intercept + r(u) with |r| bounded by its
`Tail`. What is left is |constant_e - intercept| and, where the slope cannot be represented in the dtype, a drift
|gain_e - slope|·|u|, which counts as rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flint import arb

from anchorhead.enclosure.precision import precision, upper
from anchorhead.enclosure.tails import tail
from anchorhead.proof.head_claim import HeadClaim


@dataclass(frozen=True)
class Far:
    """On this side beyond `start`: |target - head| <= error + drift·|u|."""

    error: float
    drift: float


def far(claim: HeadClaim, sign: int, start: float) -> Far:
    """The bound on the side `sign` (+1 or -1) beyond |u| >= start; infinite where the target has no asymptote."""
    with precision():
        asymptote = tail(claim.function, claim.variable, sign, start)
        if asymptote is None:
            return Far(math.inf, 0.0)
        head = claim.head.balls
        slopes = [sign * s for s in head.slopes]
        gains = [sign * g for g in head.gains]
        leader = max(range(head.keys), key=lambda k: sign * head.floats[k][0])
        total = abs(head.constants[leader] - asymptote.intercept) + asymptote.sup()
        begin = arb(start)
        for k in range(head.keys):
            if k == leader:
                continue
            rate = slopes[leader] - slopes[k]
            if not rate > 0:
                return Far(math.inf, 0.0)
            level = (head.intercepts[k] - head.intercepts[leader]).exp()
            total += level * abs(head.constants[k] - head.constants[leader]) * (-rate * begin).exp()
            total += level * abs(gains[k] - gains[leader]) * decreasing(begin, rate, 1)
        drift = abs(head.gains[leader] - asymptote.slope)
        return Far(upper(total), 0.0 if drift == 0 else upper(drift))


def decreasing(start: arb, rate: arb, power: int) -> arb:
    """An upper bound of u^power exp(-rate·u) over u >= start: its value at start, or at its peak power/rate."""
    if rate * start > power:
        return start**power * (-rate * start).exp()
    return (arb(power) / rate) ** power * arb(-power).exp()
