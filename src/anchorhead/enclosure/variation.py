"""How large a function of one variable gets on an interval, how steep, how far it moves: by boxes, in ball arithmetic.

One ball over a wide interval overestimates both. The interval is cut where the estimate of a box exceeds what the
boxes' middles show, until the whole is within a twentieth of it or there are enough boxes; every box counts, so the
result holds whatever the number of boxes. The first cuts are at multiples of a power of two, so that the many intervals
on which the neurons of a layer look at one function have most of their boxes in common, which are kept.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from functools import lru_cache

from anchorhead.enclosure.balls import enclose, jet
from anchorhead.enclosure.precision import ball, precision
from anchorhead.expression.graph import Node, rational

Pair = tuple[float, float]
MOST_BOXES = 200
CLOSE = 0.05
NONNEGATIVE = frozenset("abs square exp exp2 sqrt rsqrt relu relu6 sigmoid softplus cosh erfc hardsigmoid".split())


@lru_cache(maxsize=20_000)
def value_range(function: Node, low: float, high: float) -> tuple[float, float] | None:
    """Floats around all values of the function of u on [low, high]; None where it is not finite."""
    if function.op == "variable":
        return low, high

    with precision():
        least = _largest(lambda a, b: _values(function, a, b)[0], low, high)
        most = _largest(lambda a, b: _values(function, a, b)[1], low, high)
    if not (math.isfinite(most) and math.isfinite(least)):
        return None
    return (max(-least, 0.0) if _is_nonnegative(function) else -least), most


@lru_cache(maxsize=20_000)
def _values(function: Node, low: float, high: float) -> Pair:
    """Of one ball: at least -function and at least function there."""
    value = enclose(function, {"u": ball(low, high)})
    if not value.is_finite():
        return math.inf, math.inf
    least, most = (math.nextafter(float(end.upper()), math.inf) for end in (-value, value))
    return least, most


@lru_cache(maxsize=20_000)
def _slope(function: Node, low: float, high: float) -> float:
    """Of one ball: at least |function'| there."""
    found = jet(function, "u", ball(low, high), 1)
    if len(found) < 2 or not found[1].is_finite():
        return math.inf
    return math.nextafter(float(abs(found[1]).upper()), math.inf)


def _is_nonnegative(function: Node) -> bool:
    """Whether the outermost operation has no negative values; a ball's radius is rounded and may hang below 0."""
    if function.op == "pow":
        exponent = rational(function.args[1])
        return exponent is not None and exponent.denominator == 1 and exponent.numerator % 2 == 0
    return function.op in NONNEGATIVE


@lru_cache(maxsize=20_000)
def steepest(function: Node, low: float, high: float) -> float:
    """An upper bound of |function'| on [low, high], infinite where there is none (Clarke's slopes at kinks)."""
    with precision():
        return _largest(lambda a, b: _slope(function, a, b), low, high)


@lru_cache(maxsize=20_000)
def moved(function: Node, low: float, high: float, distance: float, variable: str = "u") -> float:
    """An upper bound of |function(u) - function(v)| for u, v in [low, high] with |u - v| <= distance.

    Finite also where slopes are not, as at the end of a square root: with u in a box and v at most `distance` further
    on, two values differ by the slope there times the distance at most, and by all that the function varies there.
    """

    def bound(a: float, b: float) -> float:
        near = a, min(high, math.nextafter(b + distance, math.inf))
        value = enclose(function, {variable: ball(*near)})
        if not value.is_finite():
            return math.inf
        found = jet(function, variable, ball(*near), 1)
        varies = value.upper() - value.lower()
        slope = abs(found[1]) * distance if len(found) > 1 and found[1].is_finite() else varies
        return math.nextafter(float(min(varies.upper(), slope.upper())), math.inf)

    with precision():
        return _largest(bound, low, high)


def _largest(bound: Callable[[float, float], float], low: float, high: float) -> float:
    """An upper bound of sup over [low, high], from a bound on every box."""
    if low == high:
        return bound(low, high)
    shown, whole = max(bound(x, x) for x in (low, high, (low + high) / 2)), bound(low, high)
    if whole <= shown + CLOSE * abs(shown):
        return whole
    marks = _marks(low, high)
    shown = max(shown, *(bound(x, x) for x in marks))
    heap = [(-bound(a, b), a, b) for a, b in itertools.pairwise(marks)]
    heapq.heapify(heap)
    for _ in range(MOST_BOXES):
        worst, a, b = heap[0]
        middle = a / 2 + b / 2
        if -worst <= shown + CLOSE * abs(shown) or not a < middle < b:
            break
        shown = max(shown, bound(middle, middle))
        heapq.heapreplace(heap, (-bound(a, middle), a, middle))
        heapq.heappush(heap, (-bound(middle, b), middle, b))
    return -heap[0][0]


def _marks(low: float, high: float) -> list[float]:
    """The ends, and between them the multiples of a power of two, of which there are eight or more."""
    step = 2.0 ** (math.frexp(high - low)[1] - 4)
    first, last = math.floor(low / step) + 1, math.ceil(high / step)
    inner = [k * step for k in range(first, last)] if max(abs(first), abs(last)) < 2**50 else []
    return [low, *(x for x in inner if low < x < high), high]
