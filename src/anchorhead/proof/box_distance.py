"""The largest difference of two formulas in several variables over a box, enclosed.

On a box with middle m and half-sides r_i the mean value theorem gives, with partial derivatives enclosed over the box,

    |d(x)| <= |d(m)| + sum over i of |D_i| r_i,

and so does the range of d; if relative, over the least |g|. The box with the largest bound is cut along the side that
adds most to it. The cuts are the proof: a list that says, box by box in the order in which they are met, along which
side it is cut in the middle, or that it is not. So boxes that are read from a file cannot leave a gap.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from flint import arb

from anchorhead.enclosure.balls import enclose, gradient_enclosure
from anchorhead.enclosure.precision import ball, below, precision, upper
from anchorhead.errors import ToleranceError
from anchorhead.expression.collect import difference as collected
from anchorhead.expression.graph import Node
from anchorhead.proof.distance import NOTHING

MOST_BOXES = 20_000
LEAF = -1
Box = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class BoxDifference:
    """f - g in some variables, over g if relative."""

    f: Node
    g: Node
    variables: tuple[str, ...]
    relative: bool

    @cached_property
    def node(self) -> Node:
        """Their difference."""
        return collected(self.f, self.g)

    def on_box(self, box: Box) -> tuple[float, int]:
        """An upper bound of its size, and the side to cut."""
        balls = {name: ball(*side) for name, side in zip(self.variables, box, strict=True)}
        if not all(enclose(node, balls).is_finite() for node in (self.f, self.g)):
            return math.inf, max(range(len(box)), key=lambda i: box[i][1] - box[i][0])
        found = abs(enclose(self.node, balls))
        slopes = gradient_enclosure(self.node, balls)
        radii = [(arb(high) - arb(low)) / 2 for low, high in box]
        shares = [abs(slopes[name]) * radius for name, radius in zip(self.variables, radii, strict=True)]
        centre = {name: (arb(low) + arb(high)) / 2 for name, (low, high) in zip(self.variables, box, strict=True)}
        bounds = [found, sum(shares, abs(enclose(self.node, centre)))]
        worst = min((b.upper() for b in bounds if b.is_finite()), default=arb("inf"), key=float)
        if self.relative:
            worst = worst / abs(enclose(self.g, balls)).lower()
        sizes = [upper(s) if s.is_finite() else upper(r) * 1e300 for s, r in zip(shares, radii, strict=True)]
        return (upper(worst) if worst > 0 or worst.is_zero() else math.inf), sizes.index(max(sizes))

    def at(self, place: Sequence[float]) -> float:
        """A lower bound of its size at a point; 0 where it is not known."""
        point = {name: arb(value) for name, value in zip(self.variables, place, strict=True)}
        found = abs(enclose(self.node, point))
        if self.relative:
            found = found / abs(enclose(self.g, point))
        return max(0.0, below(found)) if found.is_finite() else 0.0


class FoundBox(NamedTuple):
    """An enclosure of the largest difference, and the cuts of the boxes that prove it."""

    lower: float
    upper: float
    at: tuple[float, ...]
    cuts: list[int]


def middle(box: Box) -> tuple[float, ...]:
    """Its middle, in floats."""
    return tuple(low / 2 + high / 2 for low, high in box)


def halves(box: Box, side: int) -> tuple[Box, Box]:
    """The box, cut in the middle of a side."""
    (low, high), cut = box[side], middle(box)[side]
    return (*box[:side], (low, cut), *box[side + 1 :]), (*box[:side], (cut, high), *box[side + 1 :])


def leaves(box: Box, cuts: Sequence[int]) -> Iterator[Box]:
    """The boxes that a list of cuts leaves; a ValueError if it is not one."""
    stack = [box]
    for side in cuts:
        if not stack or not LEAF <= side < len(box):
            raise ValueError("the cuts are not those of a box")
        here = stack.pop()
        if side == LEAF:
            yield here
        else:
            stack += reversed(halves(here, side))
    if stack:
        raise ValueError("the cuts end too early")


def enclose_box_distance(difference: BoxDifference, box: Box, tol: float,
                         progress: Callable[[str], None] | None = None) -> FoundBox:  # fmt: skip
    """Encloses the largest difference on the box to a part `tol` of it, or as well as so many boxes can."""
    with precision():
        seen, at = 0.0, middle(box)
        for corner in itertools.islice(itertools.product(*box), 64):
            if difference.at(corner) > seen:
                seen, at = difference.at(corner), corner
        boxes, children = [box], dict[int, tuple[int, int]]()
        bound, side = difference.on_box(box)
        heap = [(-bound, 0, side)]
        for count in range(MOST_BOXES):
            bound, index, side = heap[0]
            here = boxes[index]
            place = middle(here)
            value = difference.at(place)
            seen, at = (value, place) if value > seen else (seen, at)
            if -bound <= max(seen * (1 + tol), NOTHING) or not here[side][0] < place[side] < here[side][1]:
                break
            heapq.heappop(heap)
            children[index] = side, len(boxes)
            for half in halves(here, side):
                bound, cut = difference.on_box(half)
                heapq.heappush(heap, (-bound, len(boxes), cut))
                boxes.append(half)
            if progress is not None and count % 500 == 499:
                progress(f"{count + 1} boxes: between {seen:.6g} and {-heap[0][0]:.6g}")
        if math.isinf(heap[0][0]):
            places = zip(difference.variables, middle(boxes[heap[0][1]]), strict=True)
            worst = ", ".join(f"{name} = {value:.6g}" for name, value in places)
            raise ToleranceError(f"No finite bound of the difference was found near {worst}; give a domain without it.")
        return FoundBox(seen, -heap[0][0], at, _order(children))


def _order(children: dict[int, tuple[int, int]]) -> list[int]:
    """The cuts in the order in which `leaves` meets the boxes."""
    cuts, stack = [], [0]
    while stack:
        side, first = children.get(stack[-1], (LEAF, 0))
        stack.pop()
        cuts.append(side)
        if side != LEAF:
            stack += [first + 1, first]
    return cuts
