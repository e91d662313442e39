"""Odd heads: two keys that compute u, or u², with an error and a rounding relative to it (docs/mathematics.md 3.3).

Keys with scores ±su and values ±c, or ±cu, blend to  c tanh(su), or  cu tanh(su)  (`Head.odd`).

*Approximation.* With t = su, 1 - t²/3 <= tanh(t)/t <= 1. So for |u| <= R the head is  cs(1 - θ)  times u, or u², with
0 <= θ <= (sR)²/3, and its relative error is at most  |cs - 1| + cs (sR)²/3: with s = 1/c as small as one likes, and
the same for whatever partner the values carry.

*Rounding.* Evaluated as c·tanh(s·u) nothing cancels. A relative error δ of t is one of at most δ of tanh(t), since the
derivative of log tanh(t) by log t is 2t/sinh(2t) <= 1. So with tanh right to 2 ulp, which is 4ρ, there are as many ρ as
roundings: one for s·u and one for c·, unless these are powers of two, and one for ·u. What may underflow, s·u or tanh,
is below τ, the least normal number, and so is what becomes of it: an absolute error of at most (2c + 1)(1 + |u|)τ.

*Literally*, as a softmax, weights near 1/2 err by some ρ and values of size c cancel: cρ times a few, absolutely. That
is what `proof/rounding.py` bounds, and what the literal form of a head that is proved here has instead of a relative
rounding; its approximation is the same.
"""

from __future__ import annotations

import math

from flint import arb

from anchorhead.dtypes import UNIT
from anchorhead.enclosure.precision import precision, upper
from anchorhead.expression.graph import Node, rational
from anchorhead.head.head import Odd
from anchorhead.proof.head_claim import HeadClaim

TANH = 4
"""The roundings that tanh counts for: 2 units in the last place."""


def is_odd(claim: HeadClaim) -> bool:
    """Whether a claim is that of an odd head for u or u², relative to it, evaluated fast."""
    odd = claim.head.odd
    if odd is None or not (claim.relative and claim.evaluation == "fast" and claim.bounded):
        return False
    return _power(claim) == (2 if odd.tilted else 1)


def _power(claim: HeadClaim) -> int:
    """1 for the variable, 2 for its square, 0 for anything else."""
    node = claim.function
    if node.op == "variable":
        return 1
    return 2 if node.op == "pow" and _is_variable(node.args[0]) and rational(node.args[1]) == 2 else 0


def _is_variable(node: Node) -> bool:
    return node.op == "variable"


def odd_bounds(claim: HeadClaim) -> tuple[float, float]:
    """Approximation and rounding, both relative, of a claim that `is_odd`."""
    odd = claim.head.odd
    if odd is None:
        return math.inf, math.inf
    reach = max(abs(claim.low), abs(claim.high))
    with precision():
        slope = arb(odd.rate) * odd.height
        bound = abs(slope - 1) + abs(slope) * (arb(odd.rate) * reach) ** 2 / 3
        return upper(bound), upper(relative_rounding(odd, claim.head.dtype) * abs(slope).max(arb(1)))


def relative_rounding(odd: Odd, dtype: str) -> arb:
    """What evaluating an odd head adds, over its absolute value, underflow apart (`HeadClaim.least`)."""
    inexact = sum(abs(math.frexp(number)[0]) != 0.5 for number in (odd.rate, odd.height))
    return (TANH + inexact + odd.tilted) * arb(UNIT[dtype]) * 1001 / 1000
