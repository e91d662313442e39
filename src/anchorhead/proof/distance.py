"""The largest difference of two curves, enclosed: boxes from above, a point from below (docs/mathematics.md 4.7).

The box whose bound is largest is cut in the middle, and so on, until that bound is within `tol` of the largest
difference that was seen at a point, or as small as balls of this precision can tell from zero. So boxes are small only
where the difference is nearly largest, and a spike between any samples is found, since a box that holds it has a large
bound until it is cut to the spike's own width. On an unbounded side the boxes end where the tails (`difference.py`)
are below what was seen, and on a bounded one that is as far out the last box begins there. Boxes double away from zero
where the domain is wide, and are cut at the geometric mean while their ends are of different sizes: a domain of many
scales has as many boxes.

A head runs in floating point: what its rounding adds is bounded on the same boxes (`rounding_on.py`).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from anchorhead.enclosure.precision import PRECISION, precision
from anchorhead.errors import InputError, ToleranceError
from anchorhead.proof.curve import Curve, Formula, HeadCurve
from anchorhead.proof.difference import Difference
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.proof.rounding import Rounding
from anchorhead.proof.rounding_on import rounding_on

MOST_BOXES = 40_000
MOST_MARKS = 1 << 17
STARTS = [1.5**k for k in range(1, 50)]
"""Where tails may take over from boxes."""
NOTHING = 2.0 ** (36 - PRECISION)
"""A difference that is smaller than this part of the functions' size is not told from zero."""
MOST_BITS = 1 << 12
"""Of balls, where the functions cancel."""

WIDE = 6
"""A bounded domain is cut at powers of two from this one on."""
SCALES = 4.0
"""Ends of a box that are this many times apart are of different sizes."""

Progress = Callable[[str], None]


class Found(NamedTuple):
    """An enclosure of the largest difference, and the edges of the boxes that prove it."""

    lower: float
    upper: float
    at: float
    edges: list[float]
    size: float
    """Of the two functions."""
    bits: int = PRECISION


def enclose_finely(difference: Difference, low: float, high: float, tol: float,
                   progress: Progress | None = None) -> Found:  # fmt: skip
    """`enclose_distance` in as many bits as it takes, where the two cancel to less than the usual ones tell."""
    found = enclose_distance(difference, low, high, tol, progress)
    if found.upper <= found.lower * (1 + tol) or found.upper > NOTHING * found.size:
        return found
    with precision(MOST_BITS):
        ends = [end for end in (low, high) if math.isfinite(end)]
        seen = max(difference.near(place, place, place) for place in (*_sample(low, high), *ends))
    bits = PRECISION
    while bits < MOST_BITS and seen and 2.0 ** (36 - bits) * found.size > tol * seen / 4:
        bits = min(2 * bits, MOST_BITS)
    if bits == PRECISION:  # the two are the same, for all that can be seen
        return found
    return enclose_distance(difference, low, high, tol, progress, MOST_BOXES * PRECISION // bits, bits)


def enclose_distance(difference: Difference, low: float, high: float, tol: float,
                     progress: Progress | None = None, most: int = MOST_BOXES, bits: int = PRECISION
                     ) -> Found:  # fmt: skip
    """Encloses the largest difference on [low, high] to a part `tol` of it, or as well as `most` boxes of balls with so
    many bits can."""
    with precision(bits):
        search = _Search(difference, low, high, tol, bits)
        ends = search.ends()
        search.fill(*ends)
        return search.run(progress, most)


class _Search:
    def __init__(self, difference: Difference, low: float, high: float, tol: float, bits: int) -> None:
        self.difference, self.low, self.high, self.tol, self.bits = difference, low, high, tol, bits
        self.seen, self.at, self.far = 0.0, low if math.isfinite(low) else 0.0, 0.0
        self.heap: list[tuple[float, float, float]] = []
        self.size = 1.0
        self.inner = low, high
        """The part of the domain outside of which one box serves on each side, by tails."""

    def ends(self) -> tuple[float, float]:
        """Where the boxes end: at the domain's ends, or where tails take over; looks at some points on the way."""
        for place in _sample(self.low, self.high):
            self._look(place, place, place)
            self.size = max(self.size, self.difference.size(place))
        for end in (self.low, self.high):
            if math.isfinite(end):
                least, most = self.difference.at_end(end)
                self.far = max(self.far, most)
                if least > self.seen:
                    self.seen, self.at = least, end
        low, high = (self._end(-1, self.low), self._end(1, self.high))
        self.inner = (self._settles(-1, low) if math.isfinite(self.low) else low,
                      self._settles(1, high) if math.isfinite(self.high) else high)  # fmt: skip
        return low, high

    def _settles(self, sign: int, end: float) -> float:
        """The first place from which on tails say as little as was seen, on a bounded side; the end, where none do."""
        for start in STARTS:
            if not start < sign * end:
                break
            if self.low < sign * start < self.high and self.difference.settled(sign, start) <= max(
                self.seen * (1 + self.tol / 2), self.nothing
            ):
                return sign * start
        return end

    @property
    def nothing(self) -> float:
        """What is not told from zero."""
        return 2.0 ** (36 - self.bits) * self.size

    def _end(self, sign: int, end: float) -> float:
        if math.isfinite(end):
            return end
        other = self.high if sign < 0 else self.low
        first = max(1.0, -sign * end if math.isfinite(end) else 1.0, sign * other if math.isfinite(other) else 1.0)
        best: tuple[float, float, float] | None = None
        for start in STARTS:
            known = self.difference.beyond(sign, start) if start > first else None
            if known is None:
                continue
            if best is None or known.error < best[0]:
                best = known.error, start, known.limit
            if known.error <= max(self.seen, known.limit) * (1 + self.tol / 2) or known.error < self.nothing:
                break
        if best is None or not math.isfinite(best[0]):
            side = "right" if sign > 0 else "left"
            raise ToleranceError(
                f"What {self.difference.f.name} or {self.difference.g.name} does far on the {side} is not known: it is "
                "not seen to approach a line there that both share. Give a bounded domain."
            )
        error, start, limit = best
        self.far = max(self.far, error)
        if limit > self.seen:
            self.seen, self.at = limit, sign * math.inf
        return sign * start

    def fill(self, low: float, high: float) -> None:
        """The first boxes: cut at the marks, and at powers of two, on a bounded domain at large ones only."""
        marks = {m for curve in (self.difference.f, self.difference.g) for m in curve.marks() if low < m < high}
        bounded = math.isfinite(self.low) and math.isfinite(self.high)
        marks |= {low, high, *(end for pair in cover_out(*self.inner, WIDE if bounded else -1) for end in pair)}
        if len(marks) > MOST_MARKS:
            raise InputError(
                f"The two have {len(marks):,} pieces together, above {MOST_MARKS:,}; give a smaller domain."
            )
        for a, b in itertools.pairwise(sorted(marks)):
            self._add(a, b)

    def _add(self, a: float, b: float) -> None:
        for place in (a, b):
            self._look(a, b, place)
        heapq.heappush(self.heap, (-self.difference.on_box(a, b), a, b))

    def _look(self, a: float, b: float, place: float) -> None:
        error = self.difference.near(a, b, place)
        if error > self.seen:
            self.seen, self.at = error, place

    def run(self, progress: Progress | None, most: int) -> Found:
        """Cuts the worst box until it is good enough."""
        kept: list[tuple[float, float, float]] = []
        for count in range(most):
            bound, a, b = self.heap[0]
            middle = _middle(a, b)
            if -bound <= self.seen * (1 + self.tol) or -bound <= self.far or -bound <= self.nothing:
                break
            heapq.heappop(self.heap)
            if not a < middle < b:
                kept.append((bound, a, b))
                if not self.heap or math.isinf(bound):
                    break
                continue
            self._look(a, b, middle)
            self._add(a, middle)
            self._add(middle, b)
            if progress is not None and count % 500 == 499:
                progress(f"{count + 1} boxes: between {self.seen:.6g} and {-self.heap[0][0]:.6g}")
        boxes = kept + self.heap
        upper = max(self.far, *(-bound for bound, _, _ in boxes))
        if math.isinf(upper):
            self._refuse(min(boxes))
        edges = sorted({a for _, a, _ in boxes} | {b for _, _, b in boxes})
        if math.isfinite(self.at):  # as seen from the boxes that are kept
            self.seen = seen_at(self.difference, [(a, b) for _, a, b in boxes], self.at, self.low, self.high)
        return Found(self.seen, upper, self.at, edges, self.size, self.bits)

    def _refuse(self, worst: tuple[float, float, float]) -> None:
        f, g, place = self.difference.f.name, self.difference.g.name, worst[1]
        if self.difference.relative:
            raise ToleranceError(
                f"The distance relative to {g} has no bound near {place:.6g}: {g} has a zero there, or comes too near "
                "one to tell. Give a domain without it, or leave relative out."
            )
        raise ToleranceError(
            f"No finite bound of |({f}) - ({g})| was found near {place:.6g}; give a domain without it."
        )


def seen_at(difference: Difference, boxes: Sequence[tuple[float, float]], at: float, low: float, high: float) -> float:
    """What the difference is for certain at a place, seen from the boxes that hold it, or as an end of the domain."""
    found = [difference.near(a, b, at) for a, b in boxes if a <= at <= b]
    return max([*found, difference.at_end(at)[0] if at in (low, high) else 0.0])


def _middle(a: float, b: float) -> float:
    """Where to cut a box: in its middle, or at the geometric mean of ends of different sizes."""
    if a * b > 0 and max(abs(a), abs(b)) > SCALES * min(abs(a), abs(b)):
        return math.copysign(math.sqrt(abs(a)) * math.sqrt(abs(b)), a)
    return a / 2 + b / 2


def cover_out(low: float, high: float, first: int) -> list[tuple[float, float]]:
    """Boxes from low to high that double in size away from zero, from a power of two on."""
    points = {low, high, *(s * 2.0**k for s in (-1, 1) for k in range(first, 1024)), 0.0}
    return list(itertools.pairwise(sorted(p for p in points if low <= p <= high)))


def _sample(low: float, high: float) -> Sequence[float]:
    """Some points of the domain, to begin with."""
    if math.isfinite(low) and math.isfinite(high):
        even = [low + (high - low) * i / 64 for i in range(1, 64)]
        if max(abs(low), abs(high)) <= 2.0**WIDE:
            return even
        return [*even, *(s * 1.3**k for s in (-1, 1) for k in range(-12, 20) if low < s * 1.3**k < high)]
    centre = low if math.isfinite(low) else high if math.isfinite(high) else 0.0
    reach = [centre + s * 1.3**k for s in (-1, 1) for k in range(-12, 14)]
    return [place for place in reach if low < place < high]


def rounding_of(
    curve: Curve, reference: Curve, edges: Sequence[float], low: float, high: float, relative: bool
) -> float:
    """What running a head adds to an error on the boxes: nothing for what is not a head."""
    if not isinstance(curve, HeadCurve):
        return 0.0
    if relative and not isinstance(reference, Formula):
        raise InputError("A relative distance of a model is one from a formula; give the formula second.")
    function, variable = (reference.node, reference.variable) if isinstance(reference, Formula) else _nothing()
    claim = HeadClaim(function, variable, low, high, curve.head, "", tuple(edges), 0.0, relative=relative)
    with precision():
        found = rounding_on(claim, edges)
        for sign, end, edge in ((-1, low, edges[0]), (1, high, edges[-1])):
            if math.isinf(end):
                found = max(found, Rounding(claim).beyond(sign, abs(edge)))
    return found


def _nothing() -> tuple[Any, str]:
    from anchorhead.expression.parse import parse

    return parse("x").outputs[0], "x"
