"""Where a target is not finite: poles, logarithms of what is not positive, roots of what is negative.

The domain is bisected in balls. A box where the enclosure is finite is done; one that stays without a finite enclosure
however small it gets is a singularity, and the innermost subexpression that fails there names it. A formula that is
finite only as a limit, as sin(x)/x at 0, is refused too: it cannot be evaluated there. A finite enclosure of a formula
without jumps, and jumps are refused where it is read, is that of a continuous function. On a side that is infinite
boxes go to where the target is known to follow its tail, which is finite, or as far as is looked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal

from flint import arb, ctx

from anchorhead.enclosure.balls import enclose
from anchorhead.enclosure.boxes import FAR, box, cover
from anchorhead.enclosure.tails import tail
from anchorhead.errors import SingularityError
from anchorhead.expression.graph import Node, ordered, variables_of

PRECISION = 128
NARROW = 2.0**-40
MOST_BOXES = 20_000

_REASONS = {
    "div": "the formula divides by {1}, an interval around 0 there",
    "reciprocal": "the formula divides by {0}, an interval around 0 there",
    "log": "{0} is not positive there",
    "log2": "{0} is not positive there",
    "log10": "{0} is not positive there",
    "rsqrt": "{0} is not positive there",
    "log1p": "{0} is not above -1 there",
    "sqrt": "{0} is negative there",
    "asin": "{0} is not between -1 and 1 there",
    "acos": "{0} is not between -1 and 1 there",
    "atanh": "{0} is not strictly between -1 and 1 there",
    "acosh": "{0} is below 1 there",
    "tan": "{0} passes an odd multiple of pi/2 there",
    "pow": "the power of {0} is not defined or not finite there",
}
_WHERE = {
    "log": "{0} > 0",
    "log2": "{0} > 0",
    "log10": "{0} > 0",
    "rsqrt": "{0} > 0",
    "log1p": "{0} > -1",
    "sqrt": "{0} >= 0",
    "asin": "-1 <= {0} <= 1",
    "acos": "-1 <= {0} <= 1",
    "atanh": "-1 < {0} < 1",
    "acosh": "{0} >= 1",
}
"""Where functions are defined that are so on a part of the line."""


def singularities(node: Node, variable: str, low: float, high: float) -> None:
    """Nothing when the target is finite on all of [low, high]; a SingularityError with the place when it is not."""
    with ctx.workprec(PRECISION):
        ends = _seen_to(node, variable, -1, low, high), _seen_to(node, variable, 1, high, low)
        stack = cover(*ends)[::-1] or [(low, high)]
        span = max(right - left for left, right in stack)
        for _ in range(MOST_BOXES):
            if not stack:
                _check_ends(node, variable, low, high)
                return
            left, right = stack.pop()
            if enclose(node, {variable: box(left, right)}).is_finite():
                continue
            middle = left / 2 + right / 2
            size = span if left <= 0 <= right else max(abs(left), abs(right))  # beside zero a box can be far smaller
            if right - left <= NARROW * size or not left < middle < right:
                _report(node, variable, left, right)
            stack += [(middle, right), (left, middle)]
    raise SingularityError.because(
        f"{_short(node)} could not be shown to be finite for {variable} from {low:g} to {high:g} within {MOST_BOXES} "
        "boxes", "; give a smaller domain, or write the formula so that it cancels less."
    )  # fmt: skip


def _seen_to(node: Node, variable: str, sign: int, end: float, other: float) -> float:
    """The end, if it is finite; else the first power of two past the other end beyond which there is a tail, or that
    far."""
    if math.isfinite(end):
        return end
    size = 1.0
    while size <= sign * other < math.inf or (size < FAR and tail(node, variable, sign, size) is None):
        size *= 2
    return sign * size


def singularities_in_box(node: Node, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Nothing when a target of several variables is finite on all of a bounded box, its longest sides halved until that
    is seen; a SingularityError with the place when it is not."""
    names = variables_of([node])
    if len(names) == 1:
        singularities(node, names[0], *ranges[names[0]])
        return
    span = {name: ranges[name][1] - ranges[name][0] for name in names}
    with ctx.workprec(PRECISION):
        stack = [{name: ranges[name] for name in names}]
        for _ in range(MOST_BOXES):
            if not stack:
                return
            part = stack.pop()
            if enclose(node, {name: box(*pair) for name, pair in part.items()}, ends=True).is_finite():
                continue
            if not names:
                _report_corner(node, part)
            widest = max(names, key=lambda name: (part[name][1] - part[name][0]) / span[name])
            left, right = part[widest]
            if right - left <= NARROW * span[widest]:
                _report_corner(node, part)
            middle = left / 2 + right / 2
            stack += [part | {widest: (middle, right)}, part | {widest: (left, middle)}]
    raise SingularityError(
        f"{_short(node)} could not be shown to be finite on the whole box within {MOST_BOXES} boxes; give a smaller "
        "box, or write the formula so that it cancels less."
    )


def _report_corner(node: Node, part: Mapping[str, tuple[float, float]]) -> None:
    where = {name: box(*pair) for name, pair in part.items()}
    near = ", ".join(f"{name} = {0.0 if low <= 0 <= high else low:.6g}" for name, (low, high) in part.items())
    offender, reason = _offender(node, where)
    raise SingularityError(
        f"{_short(offender)} is not finite{f' near {near}' if near else ''}: {reason}. Choose a box that keeps away "
        "from there, or rewrite the formula."
    )


def _offender(node: Node, where: Mapping[str, arb]) -> tuple[Node, str]:
    """The innermost part that is not finite there, and why."""
    found = next(part for part in ordered([node]) if not enclose(part, where, ends=True).is_finite())
    reason = _REASONS.get(found.op, "it is not defined or not finite there")
    return found, reason.format(*(_short(arg) for arg in found.args))


def _check_ends(node: Node, variable: str, low: float, high: float) -> None:
    """A ball may hang over an end of the domain by a sliver that is forgiven; a point may not."""
    for end, other in ((low, high), (high, low)):
        if math.isfinite(end) and not enclose(node, {variable: arb(end)}).is_finite():
            inside = math.nextafter(end, other)
            if enclose(node, {variable: arb(inside)}).is_finite():
                _report_next(node, variable, end, inside)
            _report(node, variable, end, end)


def _report_next(node: Node, variable: str, end: float, inside: float) -> None:
    """An end that is outside by its last digit, as the float 0.3 is below three tenths."""
    offender, reason = _offender(node, {variable: arb(end)})
    raise SingularityError(
        f"{_short(offender)} is not finite at {variable} = {end!r}, which as a float is {Decimal(end):.20g}: {reason}. "
        f"Decimals in a formula are exact; give {inside!r} as the end of the domain, the next float inside."
    )


def _report(node: Node, variable: str, left: float, right: float) -> None:
    offender, reason = _offender(node, {variable: box(left, right)})
    place = 0.0 if left <= 0 <= right else left
    where = _defined(offender) or f"that keeps away from {place:.6g}"
    raise SingularityError.because(
        f"{_short(offender)} is not finite near {variable} = {place:.6g}: {reason}",
        f". Choose a domain for {variable} {where}, or rewrite the formula.",
    )


def _defined(part: Node) -> str:
    """On which values a function, or a power that is not whole, is defined; nothing where that is all but points."""
    where = _WHERE.get(part.op, "")
    if part.op == "pow" and not variables_of([part.args[1]]):
        exponent = enclose(part.args[1], {})
        where = "" if exponent.contains_integer() else "{0} >= 0" if exponent > 0 else "{0} > 0"
    return f"where {where.format(_short(part.args[0]))}" if where else ""


def _short(node: Node) -> str:
    text = str(node)
    return text if len(text) <= 80 else text[:77] + "..."
