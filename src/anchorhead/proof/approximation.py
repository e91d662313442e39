"""How far a head is from its target on a box, and on a bounded interval (docs/mathematics.md 4.3).

On a box with midpoint m and radius r, with head N/D and D >= 1 (`head/balls.py`), let g = f·D - N, so that
|f - h| = |g|/D. Taylor's theorem gives

    |g(x)| <= sum over j < J of |g_j(m)| r^j  +  |G_J| r^J

where g_j(m) is the j-th coefficient at m and G_J encloses the J-th coefficient at every point of the box.
The terms of f·D and N cancel at m to their difference, which is what makes the form tight; intervals
without it need a thousand times as many boxes. Where f has a kink inside the box only J = 1 is used, with
generalised slopes, and where it has an infinite slope J = 0.

A relative claim is about |f - h|/|f|: the same, over the least |f| on the box, which must not hold a zero of f.

The interval is bisected until every box is below the goal. A midpoint at which the error certainly exceeds
the goal ends the search at once: the head is refuted there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flint import arb, ctx

from anchorhead.enclosure.balls import jet
from anchorhead.enclosure.precision import ball, precision, upper
from anchorhead.proof.head_claim import HeadClaim

ORDER = 8
MOST_BOXES = 60_000


@dataclass(frozen=True)
class Proof:
    """Box edges from left to right, and the bound that every box between them keeps."""

    edges: list[float]
    bound: float


@dataclass(frozen=True)
class Refutation:
    """A place where the error exceeds the goal, or where no box could be proved."""

    place: float
    error: float
    certain: bool


def box_error(claim: HeadClaim, low: float, high: float) -> float:
    """An upper bound of |target - head| on [low, high], over |target| if relative; infinity if none was found."""
    middle, radius = (arb(low) + arb(high)) / 2, (arb(high) - arb(low)) / 2
    box = ball(low, high)
    wide_f = jet(claim.function, claim.variable, box, ORDER)
    if not all(c.is_finite() for c in wide_f):
        return math.inf
    order = len(wide_f) - 1
    head = claim.head.balls
    leader = head.leader((low + high) / 2)
    wide_d, wide_n = head.taylor(box, leader, order, ctx.prec)
    total = abs(_coefficient(wide_f, wide_d, wide_n, order)) * radius**order
    if order > 0:
        near_f = jet(claim.function, claim.variable, middle, order - 1)[:order]
        near_d, near_n = head.taylor(middle, leader, order - 1, ctx.prec)
        for j in range(len(near_f)):
            total += abs(_coefficient(near_f, near_d, near_n, j)) * radius**j
        if len(near_f) < order:
            return math.inf
    least = wide_d[0].lower()
    total = total / least if least > 1 else total
    return upper(total / wide_f[0].abs_lower() if claim.relative else total)


def point_error(claim: HeadClaim, place: float) -> tuple[float, float]:
    """Certain lower and upper bounds of |target - head| at a point; (0, inf) where the target is undefined."""
    x = arb(place)
    value = jet(claim.function, claim.variable, x, 0)[0]
    denominator, numerator = claim.head.balls.taylor(x, claim.head.balls.leader(place), 0, ctx.prec)
    error = abs(value - numerator[0] / denominator[0])
    if claim.relative:
        error = error / abs(value)
    if not error.is_finite():
        return 0.0, math.inf
    return max(0.0, float(error.lower())), upper(error)


def _coefficient(f: Sequence[arb], d: Sequence[arb], n: Sequence[arb], j: int) -> arb:
    total = -n[j]
    for i in range(j + 1):
        total += f[i] * d[j - i]
    return total


def prove(claim: HeadClaim, low: float, high: float, goal: float, cuts: Sequence[float] = ()) -> Proof | Refutation:
    """Bisects [low, high], first cut at `cuts`, until every box is at most `goal`."""
    marks = sorted({low, high, *(c for c in cuts if low < c < high)})
    edges, worst, count = [low], 0.0, 0
    with precision():
        stack = list(_reversed_boxes(marks))
        while stack:
            a, b = stack.pop()
            count += 1
            error = box_error(claim, a, b)
            if error <= goal:
                edges.append(b)
                worst = max(worst, error)
                continue
            middle = (a + b) / 2
            certain, possible = point_error(claim, middle)
            if certain > goal:
                return Refutation(middle, certain, True)
            if not a < middle < b or b - a < 1e-300 or count > MOST_BOXES:
                return Refutation(middle, possible, False)
            stack += [(middle, b), (a, middle)]
    return Proof(edges, worst)


def _reversed_boxes(marks: Sequence[float], pieces: int = 4) -> Iterator[tuple[float, float]]:
    for a, b in reversed(list(itertools.pairwise(marks))):
        steps = [a + (b - a) * i / pieces for i in range(pieces)] + [b]
        for i in reversed(range(pieces)):
            if steps[i] < steps[i + 1]:
                yield steps[i], steps[i + 1]
