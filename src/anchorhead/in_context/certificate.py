"""The certificate of in-context gradient descent: errors of heads and roundings to the deviation of w_T.

*A step's rounding.* A coordinate of w_{t+1} is a sum of monomials: for every example and term φ·(p + q y)·x/n times η,
then w, η l2 w, μ w and μ w_{t-1}. Each passes some number of roundings, k, so that it is off by at most γ_k of its
absolute value (γ_k = kρ/(1 - kρ)). Of the gradient's monomials, with n examples and m terms: the casts of φ, of p or q,
of the label, of 1/n, of the constants and of η (6), their products (6), the sum over examples (n), the sum over terms
(m), and the sums of what a head carries, into the gradient and into w (4): k = n + m + 16. Of the others: the casts of
l2, η and μ, their products and sums, at most 10. What is smaller than the least normal number may be lost, `LEAST` for
each operation, times whatever it is multiplied with afterwards.

*What is stored.* Coefficients are floats, and `Facts.astray` says how far they are from the loss's: that, times what
they are multiplied with, is part of the error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from flint import arb

from anchorhead.digits import Down, Up
from anchorhead.dtypes import LEAST_NORMAL, UNIT
from anchorhead.enclosure.precision import above, below, precision, upper
from anchorhead.errors import InputError
from anchorhead.in_context.bounds import SLACK, Bounds
from anchorhead.in_context.heads import PAIRS, Clip, InnerHead
from anchorhead.in_context.losses import LABELS
from anchorhead.in_context.network import stated
from anchorhead.in_context.stability import Spread, deviations, gamma
from anchorhead.in_context.terms import AROUND, Gradient
from anchorhead.proof.certificate import Certificate
from anchorhead.proof.rounding import LARGEST

if TYPE_CHECKING:
    from anchorhead.in_context.gradient_descent import Algorithm


CONVEX = 1e-6
"""A least slope above minus this times the largest counts as zero when the learning rate is judged; proofs use it as it
is."""
MARGINS = tuple(2.0**-k for k in (20, 14, 10, 9, 8, 7, 6, 5, 4, 2, 0))
"""How far beyond |w·x| <= s slopes are known, in units of s; see `stability.py`."""


@dataclass(frozen=True)
class StepError:
    """A coordinate's error in one step: by the heads' approximation and rounding, and by the arithmetic around them."""

    heads: float
    rounding: float


@dataclass(frozen=True)
class Proof:
    """The certificate, the bounds with the curvature that they need, and what the deviations follow from.

    deviations: for every iterate, where it is proved and smaller than the `diameter`, else that.
    slope: range of d²l/ds² over the margin, within which the algorithm's predictions stay as long as D_t <= near.
    """

    certificate: Certificate
    deviations: list[float]
    bounds: Bounds
    slope: tuple[float, float]
    near: float
    error: StepError
    diameter: float


def certify(algorithm: Algorithm, gradient: Gradient, declared: Bounds, labels: InnerHead | None,
            shrink: Clip | None, dtype: str) -> Proof:  # fmt: skip
    """Bounds every iterate's distance from the algorithm's; refuses a learning rate that no prompt could bear."""
    narrow = slope_of(gradient, declared, MARGINS[0])
    bounds = replace(declared, curvature=_curvature(algorithm, narrow, declared))
    error = step_error(algorithm, gradient, bounds, labels, shrink, dtype)
    root = arb(algorithm.features).sqrt()
    diameter = upper(2 * root * bounds.w * (1 + SLACK))
    for margin in MARGINS:
        slope = slope_of(gradient, declared, margin)
        near = below(arb(margin) * bounds.s / (root * bounds.x * (1 + SLACK)))
        spread = spread_of(algorithm, slope, bounds.curvature, quadratic=gradient.quadratic)
        parts = [_recursion(algorithm, part, spread) for part in (error.heads, error.rounding)]
        found = [above(arb(a) + b) for a, b in zip(*parts, strict=True)]
        if max(found[:-1]) <= near or found[-1] > diameter:
            break
    total = within_diameter(found, near, diameter)
    proved = total[-1] == found[-1]
    certificate = stated(
        f"w after {algorithm.steps} steps of {algorithm.rate:g} on the loss {algorithm.loss.name}",
        {"x": bounds.x, "y": bounds.y, "w": bounds.w},
        dtype,
        parts[0][-1] if proved else diameter,
        parts[1][-1] if proved else 0.0,
        _conditions(algorithm, bounds, proved),
        "proved" if proved else "trivial",
    )
    x, y, w = certificate.domain
    domain = (x, PAIRS.get(algorithm.loss.labels, y), w)
    certificate = replace(certificate, domain=domain, condition=_curved(algorithm, bounds))
    return Proof(certificate, total, bounds, slope, near, error, diameter)


def _recursion(algorithm: Algorithm, error: float, spread: Spread) -> list[float]:
    size = upper(arb(algorithm.features).sqrt() * error)
    return deviations(algorithm.steps, size, spread, algorithm.rate, algorithm.momentum)


def proved_for(proof: Proof, algorithm: Algorithm, gradient: Gradient, curvature: float) -> list[float]:
    """The deviation bounds for prompts of a curvature that is at most what the bounds allow."""
    spread = spread_of(algorithm, proof.slope, curvature, quadratic=gradient.quadratic)
    found = _recursion(algorithm, above(arb(proof.error.heads) + proof.error.rounding), spread)
    return within_diameter(found, proof.near, proof.diameter)


def within_diameter(found: list[float], near: float, diameter: float) -> list[float]:
    """The deviations as far as their recursion holds and says more than that two iterates lie within the bounds."""
    total, holds = [], True
    for value in found:
        total.append(value if holds and value < diameter else diameter)
        holds = holds and value <= near
    return total


def slope_of(gradient: Gradient, bounds: Bounds, margin: float) -> tuple[float, float]:
    """The range of d²l/ds² for |w·x| up to the bounds and a margin, in units of s; over labels of two kinds, which
    every run checks, that at each of them."""
    with precision():
        y = bounds.y * AROUND
        s = above(arb(bounds.s) * AROUND * (1 + arb(margin)) + gradient.off)
        slopes = [term.law.slopes(s, y) for term in gradient.terms]
        if not all(math.isfinite(v) for pair in slopes for v in pair):
            return -math.inf, math.inf
        found = [_slope_at(gradient, slopes, label) for label in map(arb, gradient.kinds)]
        found = found or [_slope_at(gradient, slopes, arb(0, y))]
        return min(low for low, _ in found), max(high for _, high in found)


def _slope_at(gradient: Gradient, slopes: list[tuple[float, float]], label: arb) -> tuple[float, float]:
    """Of the terms' own slopes, at a label; within `precision`."""
    low = high = arb(0)
    for term, own in zip(gradient.terms, slopes, strict=True):
        p, q = (arb(c, off) for c, off in zip(term.carry, term.facts.astray, strict=True))
        factor = p + q * label
        ends = [factor.lower() * v for v in own] + [factor.upper() * v for v in own]
        low, high = low + reduce(arb.min, ends), high + reduce(arb.max, ends)
    return below(low), above(high)


def spread_of(algorithm: Algorithm, slope: tuple[float, float], curvature: float, *, quadratic: bool) -> Spread:
    """Eigenvalues of the Hessian with its l2 part."""
    with precision():
        low = min(slope[0], 0.0) * arb(curvature) + min(algorithm.l2)
        high = max(slope[1], 0.0) * arb(curvature) * (1 + 3 * SLACK) + max(algorithm.l2)
        return Spread(below(low), above(high), quadratic and not any(algorithm.l1))


def _curvature(algorithm: Algorithm, slope: tuple[float, float], declared: Bounds) -> float:
    """The largest eigenvalue of X^T X/n that the learning rate bears, if that is less than what the bounds allow."""
    rate, l2 = algorithm.rate, max(algorithm.l2)
    most = (2 * (1 + algorithm.momentum) / rate - l2) / slope[1] if slope[1] > 0 else math.inf
    implied = algorithm.features * declared.x**2
    if slope[0] < -CONVEX * slope[1] or most >= declared.curvature:
        return declared.curvature
    if declared.curvature < implied or most < min(1.0, implied):
        wanted = declared.curvature if declared.curvature < implied else 1.0
        whose = "the declared curvature" if declared.curvature < implied else "standardised data has 1 or more"
        raise InputError(
            f"learning_rate={rate:g} is too large for the declared bounds: gradient descent on {algorithm.loss.name} "
            f"is stable only while the largest eigenvalue of X^T X/n is at most {Down(max(most, 0)):.3g} ({whose}). "
            f"Use a learning rate of at most {Down(2 * (1 + algorithm.momentum) / (slope[1] * wanted + l2)):.3g}, or "
            f"{Down(2 / (slope[1] * implied + l2)):.3g}, which every prompt with {declared.described} bears. The "
            f"gradient's slope reaches {Up(slope[1]):.3g}: smaller bounds, that of s among them, allow larger rates."
        )
    return most


def _conditions(algorithm: Algorithm, bounds: Bounds, proved: bool) -> list[str]:
    found = [
        f"the iterates stay within |w| <= {bounds.w:g} and |w·x| <= {bounds.s:g}, which every run checks, but for one "
        "inside torch.compile",
        "distances are Euclidean; the algorithm's iterates are those of exact arithmetic",
    ]
    if algorithm.loss.labels != "real":
        found.append(f"the labels are {LABELS[algorithm.loss.labels][0]}, which every run checks")
    if curved := _curved(algorithm, bounds):
        found.append(f"{curved}, which every run checks")
    if not proved:
        found.append(f"the algorithm's own iterates stay within |w| <= {bounds.w:g} too, which nothing checks")
    return found


def _curved(algorithm: Algorithm, bounds: Bounds) -> str:
    """What the learning rate asks of a prompt, if that is more than its bounds imply."""
    if bounds.curvature >= algorithm.features * bounds.x**2:
        return ""
    return f"the largest eigenvalue of X^T X/n is at most {Down(bounds.curvature):.4g}"


def gradient_parts(gradient: Gradient, bounds: Bounds, labels: InnerHead | None) -> tuple[arb, arb, arb, arb]:
    """Of the mean of dl/ds·x in a coordinate: the heads' error, what rounded arguments add, its size, and the sizes of
    its factors. Within `precision`."""
    x, y = (arb(limit) * (1 + arb(SLACK)) for limit in (bounds.x, bounds.y))
    off, wrong = arb(0 if labels is None else labels.error), gradient.astray
    heads = abs(arb(gradient.on_label)) * off + wrong[0] + wrong[1] * y
    size = abs(arb(gradient.constant)) + abs(arb(gradient.on_label)) * (y + off)
    moved, factors = arb(0), 1 + size
    for term in gradient.terms:
        facts, (p, q) = term.facts, (abs(arb(c)) for c in term.carry)
        carried = p + q * (y + off)
        heads += facts.error * carried + facts.size * (q * off + facts.astray[0] + facts.astray[1] * y)
        moved += facts.moved * carried
        seen = arb(facts.size) + facts.error + facts.moved
        size += seen * carried
        factors += seen * (1 + p + q)
    return heads * x, moved * x, size * x, factors


def step_error(algorithm: Algorithm, gradient: Gradient, bounds: Bounds, labels: InnerHead | None,
               shrink: Clip | None, dtype: str) -> StepError:  # fmt: skip
    """What one step of the network may err in a coordinate, at an iterate within the bounds; see the top."""
    with precision():
        x, w = (arb(limit) * (1 + arb(SLACK)) for limit in (bounds.x, bounds.w))
        parts = gradient_parts(gradient, bounds, labels)
        return _with_arithmetic(algorithm, len(gradient.terms), *parts, x, w, shrink, dtype)


def _with_arithmetic(algorithm: Algorithm, terms: int, heads: arb, moved: arb, size: arb, factors: arb, x: arb, w: arb,
                     shrink: Clip | None, dtype: str) -> StepError:  # fmt: skip
    """The gradient's error and size to those of the step."""
    unit, n, rate, l2 = UNIT[dtype], algorithm.examples, arb(algorithm.rate), arb(max(algorithm.l2))
    own = w * (1 + rate * l2 + 2 * arb(algorithm.momentum))
    if not (rate * size + own + factors + size) * (1 + x) < LARGEST[dtype]:
        raise InputError(
            f"{dtype} cannot hold a step of these numbers: the gradient may reach {Up(upper(size)):.3g}, and w "
            f"{Up(upper(own + rate * size)):.3g}. Use smaller bounds, or rescale the loss."
        )
    rounding = rate * (moved + gamma(n + terms + 16, unit) * size) + gamma(10, unit) * own
    rounding += LEAST_NORMAL[dtype] * (1 + rate) * (1 + x) * (1 + w) * (1 + l2) * factors * (n * (4 * terms + 5) + 16)
    if shrink is None:
        return StepError(upper(rate * heads), upper(rounding))
    reach = own + rate * (size + heads + moved) + rounding
    return StepError(upper(rate * heads + shrink.step_error(reach)), upper(rounding + 3 * arb(unit) * reach))
