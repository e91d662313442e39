"""A target with kinks as smooth pieces: where each abs, min or max switches, and what it is in between.

Each of these operations has a switch function: u for abs(u), a - b for max(a, b) and min(a, b). Its roots are isolated
by bisection in balls: a box is done when the switch function is not 0 on it, or when its slope is not 0 there, so that
it has at most one root, found from the signs at the ends. Beside a root where slopes vanish too, as of x - sin(x), the
terms of a slope cancel in any ball: there it is enclosed by its Taylor form, c_j those in the middle of the box and c_n
that of the box, f'(m + h) = sum of j c_j h^(j-1) for j < n, and n c_n h^(n-1). (Far out on an unbounded domain, where
exp fills any ball, a box may be settled by the signs at its ends alone.) Between neighbouring roots every operation
keeps to one branch, read off at a point inside. Pieces that come out as the same formula are joined, so a switch that
changes nothing (max(x, x - 1), or x**2 touching 0) leaves no kink. A kink is reported as a float: the short decimal
number next to the root where the switch function vanishes there, and otherwise the nearest float.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from flint import arb, ctx

from anchorhead.enclosure import ranges
from anchorhead.enclosure.balls import enclose, jet
from anchorhead.enclosure.boxes import FAR, box, cover
from anchorhead.enclosure.singularities import singularities
from anchorhead.errors import ExpressionError
from anchorhead.expression.graph import Expression, Node, number_of, ordered
from anchorhead.expression.primitives import minus, primitive, rebuild, sub

__all__ = ["Piece", "kinks", "pieces", "singularities"]

PRECISION = 128
FINE = 512
"""Bits where terms cancel."""
MOST_BOXES = 100_000
MOST_WORK = 3_000_000
"""Operations evaluated to find kinks and pieces: some seconds."""
REBUILDING = 20
"""Evaluations that rebuilding an operation costs."""
MOST_KINKS = 2_000
NARROW = 2.0**-44
PLAIN = 200
"""So many boxes are looked at by balls alone."""
ORDER = 8
"""Of Taylor forms of slopes: a root of this order is found."""
FURTHEST = 2.0**60


class Piece(NamedTuple):
    """The target is `node`, without abs, min or max, for low <= variable <= high."""

    low: float
    high: float
    node: Node


def kinks(node: Node, variable: str, low: float, high: float) -> list[float]:
    """The points in (low, high) where the target changes from one smooth formula to another, in order."""
    return [piece.low for piece in pieces(node, variable, low, high)[1:]]


def pieces(node: Node, variable: str, low: float, high: float) -> list[Piece]:
    """The smooth pieces of the target from low to high (either may be infinite), in order."""
    lowered, low, high = primitive(node), float(low), float(high)
    work = _Work()
    with ctx.workprec(PRECISION):
        roots: set[float] = set()
        for switch in switches(lowered):
            roots.update(_Roots(switch, variable, work).between(low, high))
        ends = [low, *sorted(root for root in roots if low < root < high), high]
        branches = _Branches(lowered, variable, work)
        joined: list[Piece] = []
        for left, right in pairwise(ends):
            formula = branches.between(left, right)
            if joined and joined[-1].node is formula:
                joined[-1] = Piece(joined[-1].low, right, formula)
            else:
                joined.append(Piece(left, right, formula))
    return joined


def switches(lowered: Node) -> list[Node]:
    """The switch functions of a node in primitives, each once."""
    found = {_switch(part): None for part in ordered([lowered]) if part.op in ("abs", "max", "min")}
    return [switch for switch in found if switch.op != "constant"]


def _switch(part: Node) -> Node:
    return part.args[0] if part.op == "abs" else sub(part.args[0], part.args[1])


class _Work:
    """Counts operations, and ends a search that would take minutes."""

    def __init__(self) -> None:
        self.done = 0

    def add(self, operations: int) -> None:
        self.done += operations
        if self.done > MOST_WORK:
            raise ExpressionError(
                f"The kinks of the target, where an abs, min or max switches, take more than {MOST_WORK:,} operations "
                "to find; give a smaller domain, or write the target with fewer of them, and what they compare so that "
                "terms do not cancel."
            )


class _Roots:
    """The places where one switch function changes its sign."""

    def __init__(self, switch: Node, variable: str, work: _Work) -> None:
        self.switch = switch
        self.variable = variable
        self.work = work
        self.size = len(ordered([switch]))
        self.boxes = 0

    def between(self, low: float, high: float) -> list[float]:
        found: list[float] = []
        covering = cover(low, high, FURTHEST)
        stack = covering[::-1]
        span = max((right - left for left, right in covering if abs(left) < FAR), default=0.0)
        while stack:
            left, right = stack.pop()
            self._count(found, left)
            if self._settled(left, right, found):
                continue
            middle = left / 2 + right / 2
            size = max(abs(left), abs(right))
            narrow = right - left <= (size / 8 if size > max(FAR, span) else NARROW * max(size, min(span, 1.0)))
            if narrow or not left < middle < right:
                if self._sign(left) * self._sign(right) < 0:
                    found.append(self._root(left, right))
                continue
            if self._sign(middle) == 0:  # a root on the cut itself shows as a change of sign on neither side
                found.append(self._snapped(middle, middle))
            stack += [(middle, right), (left, middle)]
        return found + [end for _, end in covering if self._sign(end) == 0]

    def _settled(self, left: float, right: float, found: list[float]) -> bool:
        """Whether the box has no root, or one that is now found, or is one where both branches agree."""
        self.work.add(2 * self.size)
        coefficients = jet(self.switch, self.variable, box(left, right), 1)
        value = coefficients[0]
        if not value.is_finite():
            return False
        if value > 0 or value < 0:
            return True
        if len(coefficients) > 1 and (coefficients[1] > 0 or coefficients[1] < 0 or coefficients[1].is_zero()):
            if self._sign(left) * self._sign(right) < 0:
                found.append(self._root(left, right))
            return True
        if self.boxes > PLAIN and self._is_steep(left, right):
            if self._sign(left) * self._sign(right) < 0:
                found.append(self._root(left, right))
            return True
        return all(self._sign(left + share * (right - left)) == 0 for share in (0.3718, 0.6113, 0.8419))

    def _is_steep(self, left: float, right: float) -> bool:
        """Whether the Taylor form of the slope has one sign on the box."""
        self.work.add(2 * ORDER * self.size)
        middle = left / 2 + right / 2
        with ctx.workprec(FINE):
            there = jet(self.switch, self.variable, arb(middle), ORDER - 1)
            over = jet(self.switch, self.variable, box(left, right), ORDER)
            if len(there) < ORDER or len(over) <= ORDER:
                return False
            h = box(left, right) - middle
            slope = sum((j * c * ranges.power(h, j - 1) for j, c in enumerate([*there, over[-1]]) if j), arb(0))
        return bool(slope > 0 or slope < 0)

    def _count(self, found: list[float], place: float) -> None:
        self.boxes += 1
        if len(found) > MOST_KINKS:
            raise ExpressionError(
                f"The kinks of the target where {self.switch} changes its sign are too many to be found (over "
                f"{MOST_KINKS} so far); give a smaller domain."
            )
        if self.boxes > MOST_BOXES:
            raise ExpressionError(
                f"Where {self.switch} changes its sign, at a kink of the target, could not be told near "
                f"{self.variable} = {place:.6g} within {MOST_BOXES:,} boxes ({len(found)} such places were found). "
                "Give a domain that ends before, or write it so that terms do not cancel."
            )

    def _sign(self, point: float) -> int:
        """With more bits where few do not tell."""
        for bits in (PRECISION, FINE):
            self.work.add(self.size)
            with ctx.workprec(bits):
                value = enclose(self.switch, {self.variable: arb(point)})
            if not value.contains(0) or value.is_zero():
                break
        return _sign(value)

    def _root(self, left: float, right: float) -> float:
        sign = self._sign(left)
        while True:
            middle = left / 2 + right / 2
            if not left < middle < right:
                return self._snapped(left, right)
            here = self._sign(middle)
            if here == 0:
                return self._snapped(middle, middle)
            left, right = (middle, right) if here == sign else (left, middle)

    def _snapped(self, left: float, right: float) -> float:
        """The shortest decimal number that is a root as far as the balls can tell, else the end nearer to the root."""
        for digits in range(1, 17):
            short = float(f"{left:.{digits}g}")
            if abs(short - left) <= 4 * math.ulp(left) and self._sign(short) == 0:
                return short
        values = [abs(enclose(self.switch, {self.variable: arb(end)})) for end in (left, right)]
        return left if values[0] <= values[1] else right


class _Branches:
    """The target with each abs, min and max replaced by the branch that is active between two points."""

    def __init__(self, lowered: Node, variable: str, work: _Work) -> None:
        self.parts = ordered([lowered])
        self.choices = {part: _switch(part) for part in self.parts if part.op in ("abs", "max", "min")}
        self.switches = switches(lowered)
        self.variable = variable
        self.work = work
        self.known: dict[tuple[Node, int, tuple[Node, ...]], Node] = {}
        """What parts became, by the branch and the arguments; most are the same in the next piece."""

    def between(self, left: float, right: float) -> Node:
        signs = self._signs(_inside(left, right))
        built: dict[Node, Node] = {}
        for part in self.parts:
            args = tuple([built[arg] for arg in part.args])
            switch = self.choices.get(part)
            sign = 0 if switch is None else signs[switch] if switch in signs else _sign(number_of(switch))
            key = part, sign, args
            if key not in self.known:
                self.work.add(REBUILDING)
                self.known[key] = rebuild(part, args) if switch is None else _branch(part.op, sign, args)
            built[part] = self.known[key]
        return built[self.parts[-1]]

    def _signs(self, points: list[float]) -> dict[Node, int]:
        """The sign of each switch function, from the first of the points where it can be told."""
        signs = dict.fromkeys(self.switches, 0)
        for point in points:
            unknown = [switch for switch, sign in signs.items() if sign == 0]
            if not unknown:
                break
            self.work.add(len(self.parts))
            found = enclose(Expression(unknown), {self.variable: arb(point)})
            signs |= {s: _sign(v) for s, v in zip(unknown, found if len(unknown) > 1 else [found], strict=True)}
        return signs


def _branch(op: str, sign: int, args: tuple[Node, ...]) -> Node:
    """What an abs, max or min is where its switch function has that sign."""
    if op == "abs":
        return args[0] if sign >= 0 else minus(args[0])
    return args[0] if (sign >= 0) == (op == "max") else args[1]


def _sign(value: arb | Fraction) -> int:
    return 1 if value > 0 else -1 if value < 0 else 0


def _inside(left: float, right: float) -> list[float]:
    """Points of the open interval, the middle first."""
    if math.isinf(left) and math.isinf(right):
        return [0.5, -0.7, 3.1]
    if math.isinf(left):
        size = 1 + abs(right)
        return [right - size, right - 0.3 * size, right - 2.1 * size]
    if math.isinf(right):
        size = 1 + abs(left)
        return [left + size, left + 0.3 * size, left + 2.1 * size]
    return [left + (right - left) * share for share in (0.5, 0.37, 0.81, 0.13)]
