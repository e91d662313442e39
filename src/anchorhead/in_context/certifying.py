"""The certificate of in-context gradient descent: errors of heads and roundings to the deviation of w_T."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from anchorhead.certify.certificate import Certificate
from anchorhead.certify.rounding import ASSUMPTIONS
from anchorhead.errors import InputError
from anchorhead.in_context.bounds import Bounds
from anchorhead.in_context.labels import LabelHead
from anchorhead.in_context.shrinking import Shrink
from anchorhead.in_context.stability import UNIT, Spread, deviations, gamma
from anchorhead.in_context.terms import Gradient

if TYPE_CHECKING:
    from anchorhead.in_context.gradient_descent import Algorithm


CONVEX = 1e-6
"""A least slope above minus this times the largest is zero but for the balls' radii; the bound uses it as it is."""


@dataclass(frozen=True)
class Proof:
    """The certificate, the deviation bound of every iterate, and the bounds with the curvature that they need."""

    certificate: Certificate
    deviations: list[float]
    bounds: Bounds


@dataclass(frozen=True)
class StepError:
    """A coordinate's error in one step: by the heads' approximation and rounding, and by the arithmetic around them."""

    heads: float
    rounding: float


def certify(algorithm: Algorithm, gradient: Gradient, declared: Bounds, labels: LabelHead | None,
            shrink: Shrink | None, dtype: str) -> Proof:  # fmt: skip
    """Bounds every iterate's distance from the algorithm's; refuses a learning rate that no prompt could bear."""
    slope = slope_of(gradient, declared)
    bounds = replace(declared, curvature=_curvature(algorithm, slope, declared))
    spread = spread_of(algorithm, slope, bounds.curvature, quadratic=is_quadratic(gradient))
    error = step_error(algorithm, gradient, bounds, labels, shrink, dtype)
    size = math.sqrt(algorithm.features)
    found = [
        deviations(algorithm.steps, size * part, spread, algorithm.rate, algorithm.momentum)
        for part in (error.heads, error.rounding)
    ]
    total = [a + b for a, b in zip(*found, strict=True)]
    certificate = Certificate(
        expression=f"w after {algorithm.steps} steps of {algorithm.rate:g} on the loss {algorithm.loss.name}",
        domain=((-bounds.x, bounds.x), (-bounds.y, bounds.y), (-bounds.w, bounds.w)),
        dtype=dtype,
        level="proved",
        approximation=found[0][-1],
        rounding=found[1][-1],
        boxes=0,
        assumptions=(*ASSUMPTIONS, *_conditions(algorithm, bounds)),
        variables=("x", "y", "w"),
    )
    return Proof(certificate, total, bounds)


def slope_of(gradient: Gradient, bounds: Bounds) -> tuple[float, float]:
    """The range of d²l/ds²."""
    low = high = 0.0
    for term in gradient.terms:
        p, q = term.carry
        factors = (p - abs(q) * bounds.y, p + abs(q) * bounds.y)
        ends = [f * s for f in factors for s in term.facts.slope]
        low, high = low + min(ends), high + max(ends)
    return low, high


def is_quadratic(gradient: Gradient) -> bool:
    """Whether the gradient is affine in w, so that the Hessian is the same in all steps."""
    return all(term.facts.slope[0] == term.facts.slope[1] and term.carry[1] == 0 for term in gradient.terms)


def spread_of(algorithm: Algorithm, slope: tuple[float, float], curvature: float, *, quadratic: bool) -> Spread:
    """Eigenvalues of the Hessian with its l2 part."""
    low, high = min(slope[0], 0.0) * curvature + min(algorithm.l2), max(slope[1], 0.0) * curvature + max(algorithm.l2)
    return Spread(low, high, quadratic and not any(algorithm.l1))


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
            f"is stable only while the largest eigenvalue of X^T X/n is at most {max(most, 0):.3g} ({whose}). Use a "
            f"learning rate of at most {2 * (1 + algorithm.momentum) / (slope[1] * wanted + l2):.3g}, or "
            f"{2 / (slope[1] * implied + l2):.3g}, which every prompt with {declared.described} bears."
        )
    return most


def _conditions(algorithm: Algorithm, bounds: Bounds) -> list[str]:
    found = [
        f"the iterates stay within |w| <= {bounds.w:g} and |w·x| <= {bounds.s:g}, which every run checks",
        "distances are Euclidean; the algorithm's iterates are those of exact arithmetic",
    ]
    if bounds.curvature < algorithm.features * bounds.x**2:
        found.append(f"the largest eigenvalue of X^T X/n is at most {bounds.curvature:.4g}, which every run checks")
    return found


def step_error(algorithm: Algorithm, gradient: Gradient, bounds: Bounds, labels: LabelHead | None,
               shrink: Shrink | None, dtype: str) -> StepError:  # fmt: skip
    """What one step of the network may err in a coordinate, at an iterate within the bounds."""
    unit, d, n = UNIT[dtype], algorithm.features, algorithm.examples
    off = 0.0 if labels is None else labels.error
    heads, rounding = abs(gradient.on_label) * off * bounds.x, 0.0
    size = (abs(gradient.constant) + abs(gradient.on_label) * bounds.y) * bounds.x
    for term in gradient.terms:
        facts, (p, q) = term.facts, term.carry
        carried = (abs(p) + abs(q) * bounds.y) * bounds.x
        heads += facts.error * carried + facts.size * abs(q) * off * bounds.x
        steep = max(map(abs, facts.slope))
        moved = steep * gamma(d + 1, unit) * d * bounds.x * bounds.w + 4 * unit * facts.steep + unit * facts.size
        rounding += moved * carried
        size += facts.size * carried
    rounding += gamma(n + 8, unit) * size
    rate, l2 = algorithm.rate, max(algorithm.l2)
    reach = bounds.w + rate * (size + l2 * bounds.w) + 2 * algorithm.momentum * bounds.w
    rounding = rate * rounding + 8 * unit * reach
    shrunk = 0.0 if shrink is None else shrink.error(reach) + 2 * unit * reach
    return StepError((rate * heads + shrunk) * (1 + 1e-6), rounding * (1 + 1e-6))
