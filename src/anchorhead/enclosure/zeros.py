"""Whether a function of one variable has a zero on an interval: by boxes, in ball arithmetic."""

from __future__ import annotations

from anchorhead.enclosure.balls import enclose
from anchorhead.enclosure.precision import ball, precision
from anchorhead.expression.graph import Node

MOST_BOXES = 20_000


def zero(function: Node, variable: str, low: float, high: float) -> float | None:
    """A place where it is zero, or where no box was found that keeps it away from zero; None where there is none."""
    stack = [(low, high)]
    with precision():
        for _ in range(MOST_BOXES):
            if not stack:
                return None
            a, b = stack.pop()
            if not enclose(function, {variable: ball(a, b)}).contains(0):
                continue
            middle = a / 2 + b / 2
            if not a < middle < b or enclose(function, {variable: ball(middle, middle)}).contains(0):
                return middle
            stack += [(middle, b), (a, middle)]
    return stack[-1][0]
