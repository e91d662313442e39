"""Third pass: round a head to the dtype and prove what is left of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from anchorhead.arithmetic import decades, geometric
from anchorhead.compiler.target import Target
from anchorhead.dtypes import UNIT
from anchorhead.errors import InputError
from anchorhead.head.head import Head
from anchorhead.proof.approximation import Refutation, prove
from anchorhead.proof.certificate import Certificate
from anchorhead.proof.far import far
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.proof.rounding import ASSUMPTIONS, Rounding
from anchorhead.proof.rounding_on import rounding_at, rounding_on

FAR = geometric(2.0, 8e8, 110).tolist()
"""Where a proof by boxes may hand over to a proof by asymptotes."""
MOST_SAMPLES = 20_000
"""Between cuts, if there are many."""
SAMPLED = 2.0**-50
"""What samples of target and head may round by, as a share of them: over 1 + |u| that is no approximation error."""


def sampled_error(target: Target, head: Head, cuts: Sequence[float], goal: float) -> float:
    """The largest error on a sample that is fine enough for a goal, relative if the target's is: what a proof can hope
    for."""
    low, high = target.window
    near = (high - low) * geometric(1e-8, 1.0, 300)
    centre = min(max(0.0, low), high)
    points = [np.linspace(low, high, 4001), centre + near, centre - near, target.places.fine(goal)]
    if target.relative:
        points.append(decades(low, high, 2001))
    if len(cuts) > 1:
        marks = np.sort(cuts)
        points.append(np.linspace(marks[:-1], marks[1:], min(200, max(8, MOST_SAMPLES // len(cuts)))).T.reshape(-1))
    u = np.concatenate(points)
    u = u[(u >= target.low) & (u <= target.high)]
    exact = target.function()(u)
    errors = np.abs(head(u) - exact)
    if not (target.bounded or target.relative) and errors.max() > goal:
        left, right = (_drift(target, head, sign) for sign in (-1, 1))
        errors = errors - np.where(u < 0, left, right) * np.abs(u) - SAMPLED * np.abs(exact)
    return float((errors / np.abs(exact) if target.relative else errors).max())


def _drift(target: Target, head: Head, sign: int) -> float:
    """What the dtype's nearest slope is off by on an infinite side, for each unit: that counts as rounding."""
    bounded = math.isfinite(target.high if sign > 0 else target.low)
    return 0.0 if bounded else far(_claim(target, head, ""), sign, FAR[-1]).drift


def prove_head(
    target: Target, head: Head, goal: float, cuts: Sequence[float], method: str = ""
) -> HeadClaim | Refutation:
    """Proves |target - head| <= goal, times |target| if relative, for these numbers: as tightly as samples show.

    Of a staircase not quite: two boxes an anchor are enough for the theorem's bound, h/2 times the slope, and it would
    take ten to show what samples do, about four fifths of that.
    """
    if len(head.sizes) == 1 and (head.gate_slopes, head.gate_levels) != ((0.0,), (0.0,)):
        raise InputError("A head of one piece has no gate; leave gate_slopes and gate_levels out.")
    claim = _claim(target, head, method)
    sampled = sampled_error(target, head, cuts, goal)
    if not sampled <= goal:
        return Refutation(math.nan, sampled, True)
    aim = min(goal, 1.3 * sampled if head.balls.selects else 1.05 * sampled + 0.01 * goal)
    left, right = (_hand_over(claim, sign, aim) for sign in (-1, 1))
    if left is None or right is None:
        return Refutation(math.inf, math.inf, False)
    low = -left if math.isinf(target.low) else target.low
    high = right if math.isinf(target.high) else target.high
    found = prove(claim, low, high, aim, cuts)
    if isinstance(found, Refutation) and aim < goal:
        found = prove(claim, low, high, goal, cuts)
    if isinstance(found, Refutation):
        return found
    sides = [s for s, end in ((-1, target.low), (1, target.high)) if math.isinf(end)]
    distant = [far(claim, sign, abs(low if sign < 0 else high)) for sign in sides]
    approximation = max([found.bound, *(d.error for d in distant)])
    claim = replace(claim, edges=tuple(found.edges), approximation=approximation)
    rounding = rounding_on(claim, claim.edges)
    for sign, d in zip(sides, distant, strict=True):
        rounding = max(rounding, Rounding(claim).beyond(sign, abs(low if sign < 0 else high)) + d.drift)
    return replace(claim, rounding=rounding)


def shown_rounding(target: Target, head: Head) -> float:
    """What evaluating the head may round at some points of a bounded target: about what a proof will find."""
    return rounding_at(_claim(target, head, ""), target.low, target.high) if target.bounded else 0.0


def offset_rounding(target: Target, dtype: str) -> float:
    """About what scores round on a narrow domain far from zero, however small slopes are.

    Scores s·x round by ρ s|x|, and to bend by b over a width w values lie at least b/(s w) apart: ρ b|x|/w.
    """
    low, high = target.window
    f = target.function()(np.linspace(low, high, 129))
    bend = np.abs(f - f[0] - (f[-1] - f[0]) * np.linspace(0, 1, 129))
    return 0.1 * UNIT[dtype] * float(bend.max()) * max(abs(low), abs(high)) / (high - low)


def _claim(target: Target, head: Head, method: str) -> HeadClaim:
    """What is said of the head, before anything is proved."""
    return HeadClaim(target.node, target.variable, target.low, target.high, head, method, relative=target.relative,
                     evaluation=target.evaluation)  # fmt: skip


def certificate(target: Target, claim: HeadClaim) -> Certificate:
    """What a proved head's claim says of the target."""
    return Certificate(
        expression=str(target.expression),
        domain=((target.low, target.high),),
        dtype=claim.head.dtype,
        level="proved",
        approximation=claim.approximation,
        rounding=claim.rounding,
        boxes=len(claim.edges) - 1,
        assumptions=(*ASSUMPTIONS, *target.assumptions),
        variables=(target.variable,),
        relative=claim.relative,
        evaluation=claim.evaluation,
    )


def _hand_over(claim: HeadClaim, sign: int, aim: float) -> float | None:
    """The nearest start beyond which asymptotes prove `aim` on that side; 0 if it is bounded, None if there is none."""
    if math.isfinite(claim.high if sign > 0 else claim.low):
        return 0.0
    return next((start for start in FAR if far(claim, sign, start).error <= aim), None)
