"""How far a head is from its target on a box, and on a bounded interval (docs/mathematics.md 4.3).

On a box with midpoint m and radius r, with head N/D and D >= 1 (`head/balls.py`), let g = f·D - N, so that
|f - h| = |g|/D. Taylor's theorem gives

    |g(x)| <= sum over j < J of |g_j(m)| r^j  +  |G_J| r^J

where g_j(m) is the j-th coefficient at m and G_J encloses the J-th coefficient at every point of the box.
The terms of f·D and N cancel at m to their difference, which is what makes the form tight; intervals
without it need a thousand times as many boxes. Where f has a kink inside the box only J = 1 is used, with
generalised slopes, and where it has an infinite slope J = 0.

*Across a kink* nothing cancels in an enclosure of f·D' + f'·D - N' over the box, if it is summed as it stands: its
terms are about |f| times the steepness β of the gate there. With l the key of piece p that leads in the middle, and
`ref` of all, E_k = E_l e_k for the keys of the piece, d_l = slope_l - slope_ref and s_k = slope_k - slope_l, the sum is

    g'  =  sum over p of  E_l ( d_l sum e_k (f - v_k)  +  sum e_k (f' - gain_k + s_k (f - v_k)) )

where f - v_k is enclosed first, and e_k, being of one piece, hardly moves. So sum e_k (f - v_k), which is as small as f
and the piece's head are near, is known to about the box's width, and g' to β times that: the box need only be small
beside 1/β, however far from zero it is and however many keys a piece has.
This is g' at almost every point of the box, all of it taken at that point: f is Lipschitz where its slopes are finite,
and their enclosure, Clarke's, holds f' wherever there is one. So |g(x) - g(m)|, the integral of g', is at most the
largest |g'| times r.

*At an infinite slope* the same is said of c·D - N too, for every number c of the range F of f on the box: at a point x
it is g(x) for c = f(x). So the coefficients are those of a constant, F, which leaves N and D their cancellation: large
values of keys that crowd at an end of a square root need it.

*Many keys.* Of a large head N and D have the keys that are near on the box, and what all others add to the head is
added to the bound (`head/near_keys.py`). The paper's head is a staircase of many keys: no polynomial follows it over a
step, and none is needed. With ranges F of the target and H of the head on the box

    |f - h|  <=  max(sup F - inf H, sup H - inf F)

H by `HeadBalls.over`, F the smaller of f's own enclosure and f(m) + f'(box)·[-r, r]. From an anchor to the place where
the next one takes over, which is h/2 away, both rise by what f does there: that is the theorem's bound, h/2 times the
slope. Where f is flat one box holds many anchors. So it takes two boxes an anchor or fewer.

A relative claim is about |f - h|/|f|: the same, over the least |f| on the box, which must not hold a zero of f.

The interval is bisected until every box is below the goal: first at cuts that are given, if there are many, then in the
middle. A midpoint at which the error certainly exceeds the goal ends the search at once: the head is refuted there.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flint import arb, ctx

from anchorhead.enclosure.balls import jet
from anchorhead.enclosure.precision import ball, below, precision, upper
from anchorhead.proof.head_claim import HeadClaim

ORDER = 8
TOO_STEEP = 128.0
"""Where scores of a staircase's keys draw apart by more than this over a box, no series is tried."""
MANY_MARKS = 256
"""With more cuts, as of a staircase, a box may hold several of them."""
MOST_LOOKS = 60_000
"""Boxes looked at, twice as many for a staircase; about half of them are kept."""
MOST_WORK = 1 << 21
"""Over the boxes of a proof, keys to look at and parts of the function."""


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


def box_error(claim: HeadClaim, low: float, high: float, goal: float = 0.0) -> float:
    """An upper bound of |target - head| on [low, high], over |target| if relative; infinity if none was found.

    goal: a bound that is enough.
    """
    head = claim.head.balls
    keys = head.near(low, high)
    found = _by_ranges(claim, low, high, keys) if head.selects else math.inf
    if found <= goal:
        return found
    leader = head.leader((low + high) / 2, keys)
    if head.selects and head.steepness(keys, leader) * (high - low) > TOO_STEEP:
        return found
    return min(found, _by_series(claim, low, high, keys, leader))


def box_work(claim: HeadClaim, low: float, high: float) -> int:
    """What a box costs: keys to look at and parts of the function."""
    return len(claim.head.balls.near(low, high)) + claim.parts


def _by_ranges(claim: HeadClaim, low: float, high: float, keys: Sequence[int]) -> float:
    """The bound from ranges of target and head, whose values are constants."""
    box, middle = ball(low, high), (arb(low) + arb(high)) / 2
    target, *slope = jet(claim.function, claim.variable, box, 1)
    if not target.is_finite():
        return math.inf
    least, most = target.lower(), target.upper()
    if slope and slope[0].is_finite():
        around = jet(claim.function, claim.variable, middle, 0)[0] + slope[0] * (box - middle)
        if around.is_finite():
            least, most = least.max(around.lower()), most.min(around.upper())
    head = claim.head.balls.over(low, high, keys)
    found = (most - head.lower()).max(head.upper() - least)
    return max(0.0, upper(found / target.abs_lower() if claim.relative else found))


def _by_series(claim: HeadClaim, low: float, high: float, keys: Sequence[int], leader: int) -> float:
    """The bound from Taylor coefficients."""
    middle, box = (arb(low) + arb(high)) / 2, ball(low, high)
    wide = jet(claim.function, claim.variable, box, ORDER)
    order = len(wide) - 1
    if not all(c.is_finite() for c in wide):
        return math.inf
    near = jet(claim.function, claim.variable, middle, order - 1)[:order] if order else []
    if len(near) < order:
        return math.inf
    pairs = [(near, wide)]
    if not order and not claim.head.balls.selects:
        constant = [*wide, *[arb(0)] * ORDER]
        pairs.append((constant[:ORDER], constant))
    found = arb(min(_series_error(claim, low, high, *pair, keys, leader) for pair in pairs))
    return upper(found / wide[0].abs_lower() if claim.relative else found)


def _series_error(
    claim: HeadClaim, low: float, high: float, near_f: list[arb], wide_f: list[arb], keys: Sequence[int], leader: int
) -> float:
    """The bound, not relative, from the target's coefficients at the middle and on the box."""
    middle, radius = (arb(low) + arb(high)) / 2, (arb(high) - arb(low)) / 2
    head, box, order = claim.head.balls, ball(low, high), len(near_f)
    wide_d, wide_n = head.taylor(box, leader, order, ctx.prec, keys)
    across = order == 1
    last = head.slope_apart(low, high, wide_f, leader, keys) if across else _coefficient(wide_f, wide_d, wide_n, order)
    total = abs(last) * radius**order
    if order > 0:
        near_d, near_n = head.taylor(middle, leader, order - 1, ctx.prec, keys)
        for j in range(order):
            total += abs(_coefficient(near_f, near_d, near_n, j)) * radius**j
    least = wide_d[0].lower()
    return upper((total / least if least > 1 else total) + head.left_out(box))


def point_error(claim: HeadClaim, place: float) -> tuple[float, float]:
    """Certain lower and upper bounds of |target - head| at a point; (0, inf) where the target is undefined."""
    x, head = arb(place), claim.head.balls
    value = jet(claim.function, claim.variable, x, 0)[0]
    keys = head.near(place, place)
    denominator, numerator = head.taylor(x, head.leader(place, keys), 0, ctx.prec, keys)
    error = abs(value - numerator[0] / denominator[0] + arb(0, head.left_out(x)))
    if claim.relative:
        error = error / abs(value)
    if not error.is_finite():
        return 0.0, math.inf
    return max(0.0, below(error)), upper(error)


def _coefficient(f: Sequence[arb], d: Sequence[arb], n: Sequence[arb], j: int) -> arb:
    total = -n[j]
    for i in range(j + 1):
        total += f[i] * d[j - i]
    return total


def prove(claim: HeadClaim, low: float, high: float, goal: float, cuts: Sequence[float] = ()) -> Proof | Refutation:
    """Bisects [low, high], cut at `cuts`, until every box is at most `goal`."""
    marks = sorted({low, high, *(c for c in cuts if low < c < high)})
    edges, worst, count, work = [low], 0.0, 0, 0
    most = 2 * MOST_LOOKS if claim.head.balls.selects else MOST_LOOKS
    with precision():
        whole = claim.head.balls.selects or len(marks) > MANY_MARKS
        stack = [(low, high)] if whole else list(_reversed_boxes(marks))
        while stack:
            a, b = stack.pop()
            count += 1
            error = box_error(claim, a, b, goal)
            if error <= goal:
                edges.append(b)
                worst = max(worst, error)
                work += box_work(claim, a, b)
                continue
            middle = _middle(marks, a, b)
            certain, possible = point_error(claim, middle)
            if certain > goal:
                return Refutation(middle, certain, True)
            if not a < middle < b or b - a < 1e-300 or count > most or work > MOST_WORK:
                return Refutation(middle, possible, False)
            stack += [(middle, b), (a, middle)]
    return Proof(edges, worst) if work <= MOST_WORK else Refutation(high, worst, False)


def _middle(marks: Sequence[float], a: float, b: float) -> float:
    """Where to bisect a box: at the middle one of the marks in it, or in its middle."""
    first, end = bisect.bisect_right(marks, a), bisect.bisect_left(marks, b)
    return marks[(first + end) // 2] if first < end else (a + b) / 2


def _reversed_boxes(marks: Sequence[float], pieces: int = 4) -> Iterator[tuple[float, float]]:
    for a, b in reversed(list(itertools.pairwise(marks))):
        steps = [a + (b - a) * i / pieces for i in range(pieces)] + [b]
        for i in reversed(range(pieces)):
            if steps[i] < steps[i + 1]:
                yield steps[i], steps[i + 1]
