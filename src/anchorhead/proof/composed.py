"""What proved heads that stand together in one place keep: one bound, from their claims and the dtype around them.

For every argument u in the domain and every partner v (1 where there is none), with φ the function of the place,

    |computed - φ(u)·v| <= (error + rounding·(1 + |u|))·|v| + relative·|φ(u)·v| + least

*An activation*, φ(u), is one head h, which claims |h - φ| <= E and, computed, r(1 + |u|) more.

*A gate*, φ(u)·v, is the activation's own head with two channels of values, and a product. Let W_k be the weights and
h(u) = sum W_k (constant_k + gain_k u). Values constant_k·v and gain_k·v are linear in what the token holds, and give

    a = sum W_k constant_k v,   b = sum W_k gain_k v,   and  a + u·b = h(u)·v.

The product of u and b is an odd head, c·tanh(u/c)·b = u·b·(1 - θ) with 0 <= θ <= Θ for |u| <= R (`odd.py`). So the
network is h(u)·v - θ·u·b, and |u·b| <= G|u||v| with G the largest |gain|: beside E it errs by Θ·G·|u||v|. A head whose
gains are all zero, as one for sigmoid, needs no product.

*A square*, relu(u)², is relu(u)·u, a gate whose partner is u.

*Evaluation.* c·tanh(u/c) is u, to Θ, which `PRODUCT` chooses below the roundoff; so it is evaluated as u, and the gate
as h(u)·v, the fast evaluation of h once and a multiplication. That is away from the network by another Θ·G·|u||v|, by
r(1 + |u|)|v| and by the multiplication's rounding, ρ|h(u)·v|. What is computed so is in fact near φ(u)·v for every u,
also where |u| > R.

*A norm* is three heads (`norm_heads.py`): φ(u) = u^(-1/2), u the mean square plus eps, v what is normalised, times a
weight w, plus a bias b, as the formula of the place says. error and rounding are 0, and

    |computed - (φ(u)·v·w + b)| <= relative·(|φ(u)·v·w| + |b|) + least·max(1, |w|)

*Casts.* In a model of a dtype with unit roundoff ρ' > ρ, as bfloat16, a head's result is rounded to it, ρ'|φ|, and then
the product is, where torch rounds too. Numbers that are not normal err by ρ' times the least normal one, τ'; a head's
result does so before it is multiplied by v, so that for a gate ρ'τ' counts as rounding, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from flint import arb

from anchorhead.dtypes import LEAST_NORMAL, UNIT
from anchorhead.enclosure.precision import precision, upper
from anchorhead.errors import VerificationError
from anchorhead.expression.graph import Expression
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.proof.norm_heads import norm_bound
from anchorhead.proof.odd import is_odd

PRODUCT = 2.0**-27
"""The relative error of a product's head: an eighth of what float32 can tell apart."""
RAMP = "relu(x)"
WHOLE = (-math.inf, math.inf)
Claims = Mapping[str, HeadClaim]


@dataclass(frozen=True)
class Bound:
    """See the file: (error + rounding (1 + |u|)) |v| + relative |φ(u) v| + least, for u in the domain.

    function: φ, as a formula or a name.
    """

    function: str
    error: float
    rounding: float
    relative: float
    least: float
    domain: tuple[float, float]


@dataclass(frozen=True)
class HeadOf:
    """One head of a place: its role there, its function, and what is claimed of it alone."""

    role: str
    function: str
    keys: int
    error: float
    rounding: float
    dtype: str


def heads_of(claims: Claims) -> tuple[HeadOf, ...]:
    """The heads of a place, as a report lists them."""
    return tuple(
        HeadOf(role, _text(claim), claim.keys, claim.approximation, claim.rounding, claim.head.dtype)
        for role, claim in claims.items()
    )


def _text(claim: HeadClaim) -> str:
    return str(Expression((claim.function,), (claim.variable,)))


def composed(kind: str, claims: Claims, dtype: str, formula: str) -> Bound:
    """The bound of the heads, by their role, that stand in a place of some kind in a model of some dtype.

    formula: what is computed there; of a norm it says whether there is a bias, and what is added to its weight.
    """
    found = KINDS.get(kind)
    if found is None:
        raise VerificationError(f"{kind!r:.40} is no kind of place that heads stand in; there are {', '.join(KINDS)}.")
    with precision():
        return found(claims, dtype, formula)


def _activation(claims: Claims, dtype: str, formula: str) -> Bound:
    head = _only(claims, {"activation"})["activation"]
    return _rounded(head, arb(head.rounding), dtype, WHOLE, 0)


def _gate(claims: Claims, dtype: str, formula: str) -> Bound:
    head = _only(claims, {"activation"} if _straight(claims) else {"activation", "product"})["activation"]
    rounding, domain = arb(head.rounding), WHOLE
    if not _straight(claims):
        product = claims["product"]
        if not is_odd(product) or product.head.odd is None or product.head.odd.tilted:
            raise VerificationError("The product of a gate is not an odd head for u.")
        largest = max(abs(gain) for gain in head.head.gains)
        rounding, domain = rounding + 2 * arb(product.approximation) * largest, (product.low, product.high)
    return _rounded(head, rounding, dtype, domain, 1)


def _square(claims: Claims, dtype: str, formula: str) -> Bound:
    """relu(u)² is relu(u)·u."""
    found = _gate(claims, dtype, formula)
    if found.function != RAMP:
        raise VerificationError(f"The square of {found.function} is not its product with x, as that of {RAMP} is.")
    return replace(found, function=f"{RAMP}**2")


def _rounded(head: HeadClaim, rounding: arb, dtype: str, domain: tuple[float, float], products: int) -> Bound:
    """With roundings of the result: of products, and of casts to the dtype of the model, one more than products."""
    cast, unit = arb(UNIT[dtype]), arb(head.unit)
    if cast < unit:
        raise VerificationError(f"A head of {head.head.dtype} cannot keep its claim in a model of {dtype}.")
    short = cast > unit
    relative = (1 + unit) ** products * (1 + cast) ** ((1 + products) * short) - 1
    least = 2 * arb(LEAST_NORMAL[dtype]) * (products if not short else cast * (1 + products))
    rounding = rounding + products * short * cast * arb(LEAST_NORMAL[dtype])
    error, rounding = (1 + relative) * head.approximation, (1 + relative) * rounding
    return Bound(_text(head), _above(error), _above(rounding), _above(relative), _above(least), domain)


def _above(bound: arb) -> float:
    return upper(bound) if bound > 0 else 0.0


def _straight(claims: Claims) -> bool:
    """Whether a gate's activation has constant values, which carry a partner by themselves."""
    return "activation" in claims and claims["activation"].constant_values


def _only(claims: Claims, roles: set[str]) -> Claims:
    """The claims, once they are those of such roles, and the activation's is what it must be."""
    if set(claims) != roles:
        raise VerificationError(f"Heads for {', '.join(sorted(roles))} were expected, not {', '.join(sorted(claims))}.")
    head = claims["activation"]
    if head.relative or (head.low, head.high) != WHOLE:
        raise VerificationError("The head of an activation is not proved, absolutely, on all of R.")
    return claims


def _norm(claims: Claims, dtype: str, formula: str) -> Bound:
    relative, least, domain = norm_bound(claims, dtype, formula)
    return Bound("norm", 0.0, 0.0, relative, least, domain)


KINDS: dict[str, Callable[[Claims, str, str], Bound]] = {"activation": _activation, "gate": _gate, "square": _square,
                                                         "norm": _norm}  # fmt: skip
"""How the heads of each kind of place compose: the name stands in reports and folders."""
