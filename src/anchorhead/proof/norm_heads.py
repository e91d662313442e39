"""A norm as three heads: v·(mean v² + eps)^(-1/2), with a relative error that does not depend on v
(docs/mathematics.md 3.10).

v_1, ..., v_d are the numbers of a token, centred before by an affine map where the norm is a layer norm.

    square   two odd keys for v², relative error at most Θ for |v| <= R (`odd.py`)
    coarse   S, keys in geometric progression with constant values: |S(u)·u^(1/2) - 1| <= δ for u in [low, high]
    fine     F, a few keys with constant values: |F(p)·p^(1/2) - 1| <= ε for p in an interval around 1

The network: u' = mean of the squares, plus eps. S carries u', and then what that gives: p = S(u')·S(u')·u', which lies
in [(1 - δ)², (1 + δ)²], where F is proved. S carries every v_i, and F carries that:

    y_i  =  F(p)·S(u')·v_i  =  (1 + ε')·p^(-1/2)·S(u')·v_i  =  (1 + ε')·v_i/sqrt(u')

*What S is cancels exactly*, so that it can be rough, and few keys reach over twenty decades. Squares, and so u' - eps,
are too small by a share of at most Θ; eps >= 0 makes it no more. The network errs by (1 + ε)(1 - Θ)^(-1/2) - 1 of y_i.
If high·d <= R², then no |v_i| is beyond R where u is at most high: the interval of u is all that has to be looked at.

*Evaluation* is in float64, of unit roundoff ρ. c·tanh(v/c) is v to within Θ, so v² is evaluated as v·v. Each v_i is
rounded where x was centred, by a factor 1 ± ρ. Sums of what is not negative, in any order, over d or times 1/d, plus
eps: u' is right to k = d + 3 factors 1 ± ρ, and two for v. The computed S(u') is one number, used three times, and so
cancels still; p is right to two factors, F(p) to its rounding; S·F and ·v_i are two more:

    |y_i/exact - 1|  <=  η  =  (1 + ε + rounding of F)(1 + ρ)³(1 - ρ)^(-k/2 - 2)(1 - Θ)^(-1/2) - 1

which holds with and without the Θ, so of the network and of what is computed.

*Weight and bias.* The result is w·y + b, w the weight or one plus that. In the model's dtype, of roundoff ρ', y is
rounded, its product with w is, and w = 1 + weight if it is made there: n = 2 or 3 roundings, so that the computed z is
within ((1 + η)(1 + ρ')^n - 1)|w·y| of w·y. Adding b rounds once more, by a factor 1 ± ρ':

    |(z + b)(1 ± ρ') - (w·y + b)|  <=  (1 + ρ')|z - w·y| + ρ'|w·y + b|  <=  ((1 + η)(1 + ρ')^(n + 1) - 1)|w·y| + ρ'|b|

So of a norm without a bias a share of the result is claimed, with n roundings, and of one with a bias that share, with
n + 1, of |w·y| + |b|, which is larger than the result where the two cancel. Where the dtype is shorter than float32 all
of this may be done in float32, and its result rounded once: up to four roundings of 2^-24 and one of ρ', which is less.

*Underflow.* What is below the least normal number τ may become zero, and a cast to a dtype shorter than float32 rounds
by ρ'τ' there: y by that, which w multiplies, the product, the sum, and the cast: 5 times that, and max(1, |w|).

*Literally*, as softmaxes in float64, S and F keep their digits. Squares lose cρ|v_i| times a few, absolutely
(`odd.py`): y moves by a share of a few cρ/sqrt(u), c about 2^15 R, and less where errors of many v_i average out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from flint import arb

from anchorhead.dtypes import LEAST_NORMAL, UNIT
from anchorhead.enclosure.precision import precision, upper
from anchorhead.errors import VerificationError
from anchorhead.expression.graph import Node, rational
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.proof.odd import is_odd

ROLES = ("square", "coarse", "fine")
HEADS = "float64"
"""The dtype of the heads, whatever the model's is."""
LONG = ("float64", "float32")
"""Dtypes in which a norm is weighted whatever the model's is; others may do it in float32."""
SHIFTED, BIASED = ", weight + ", ", bias"
"""What the formula of a norm says of its weight and bias."""


def norm_width(claims: Mapping[str, HeadClaim]) -> int:
    """How many numbers a norm with these heads may have at most."""
    return int(min(claims["square"].high ** 2 / claims["coarse"].high, 2.0**40))


def share_of(formula: str) -> str:
    """Of what a share is claimed of a norm."""
    return "|weight y| + |bias|" if BIASED in formula else "the result"


def norm_bound(claims: Mapping[str, HeadClaim], dtype: str, formula: str) -> tuple[float, float, tuple[float, float]]:
    """The error of a norm with these heads in a model of some dtype, as a share of what `share_of` says, what underflow
    may add to it for weights up to 1, and the interval of the mean square plus eps on which that holds."""
    square, coarse, fine = _checked(claims)
    roundings = 2 + (SHIFTED in formula) + (BIASED in formula)
    with precision():
        unit, cast = arb(UNIT[HEADS]), arb(UNIT[dtype])
        rough = arb(coarse.approximation) + coarse.rounding
        ends = (1 - rough) ** 2 * (1 - unit) ** 2, (1 + rough) ** 2 * (1 + unit) ** 2
        if not (ends[0] >= fine.low and ends[1] <= fine.high):
            raise VerificationError("The fine head of a norm is not proved where its coarse one may lead to.")
        sums = (1 - unit) ** (-(arb(norm_width(claims)) + 3) / 2 - 2)
        own = (1 + arb(fine.approximation) + fine.rounding) * (1 + unit) ** 3
        relative = own * sums * (1 - arb(square.approximation)).rsqrt() * (1 + cast) ** roundings - 1
        least = arb(LEAST_NORMAL[dtype])
        if dtype not in LONG:
            least = (cast * least).max(arb(LEAST_NORMAL["float32"]))
        return upper(relative), upper(5 * least), (coarse.low, coarse.high)


def _checked(claims: Mapping[str, HeadClaim]) -> tuple[HeadClaim, HeadClaim, HeadClaim]:
    """The three claims, once they are what the derivation needs."""
    if set(claims) != set(ROLES):
        raise VerificationError(f"A norm has heads for {', '.join(ROLES)}, not {', '.join(sorted(claims))}.")
    square, coarse, fine = (claims[role] for role in ROLES)
    odd = square.head.odd
    if not is_odd(square) or odd is None or not odd.tilted or square.low != -square.high:
        raise VerificationError("The square of a norm is not an odd head for a square.")
    for head in (coarse, fine):
        if not (head.relative and head.constant_values and head.low > 0 and _is_inverse_root(head.function)):
            raise VerificationError("A head of a norm is none for x**-0.5 with constant values and a relative error.")
    if any(claim.head.dtype != HEADS for claim in claims.values()) or not math.isfinite(fine.high):
        raise VerificationError(f"The heads of a norm are not of {HEADS}.")
    return square, coarse, fine


def _is_inverse_root(node: Node) -> bool:
    return node.op == "pow" and node.args[0].op == "variable" and rational(node.args[1]) == -0.5
