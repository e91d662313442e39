"""A target in ball arithmetic: rigorous ranges over boxes and Taylor coefficients over balls, at the working precision.

`enclose` gives a ball that holds f at every point of the box. `jet` gives c_0, c_1, .. such that c_j encloses
f^(j)(v)/j! for every v in the ball x; where a kink may lie in x it is cut to c_0, c_1 with all slopes in c_1, where the
slopes are not finite it is cut to c_0, and where f is not known to be defined it is [nan]. Neither raises for the
latter, so a caller bisects. At a point, a box of exact numbers, the rational parts are exact where that matters: x/3 at
3 is 1, of which there is an arcsine, and no ball around 1. Precision is flint.ctx.prec at the time of the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple, overload

from flint import arb, ctx

from anchorhead.enclosure import ranges, series
from anchorhead.enclosure.series import Series
from anchorhead.enclosure.taylor import TAYLOR, powers
from anchorhead.errors import ExpressionError
from anchorhead.expression.graph import Expression, Node, fold, ordered, rational_part
from anchorhead.expression.primitives import primitive

NAN = arb("nan")
MOST_BITS = 1 << 14
"""Of exact numbers, and of the precision to which a formula is evaluated where its terms cancel."""
CANCELLED = 10
"""Bits of a constant that may be lost."""


class Step(NamedTuple):
    """One primitive operation: its arguments are earlier steps."""

    op: str
    args: tuple[int, ...]
    value: Any


@lru_cache(maxsize=2048)
def steps(outputs: tuple[Node, ...]) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """The outputs as primitive steps and the places of their results; a part without variables is one step."""
    lowered = [primitive(output) for output in outputs]
    varying: set[Node] = set()
    for node in ordered(lowered):
        if node.op == "variable" or any(arg in varying for arg in node.args):
            varying.add(node)
    needed = {*lowered, *(arg for node in varying for arg in node.args)}
    nodes = [node for node in ordered(lowered) if node in needed]
    places = {node: place for place, node in enumerate(nodes)}
    listed = (
        Step(node.op, tuple(places[arg] for arg in node.args), node.value)
        if node in varying
        else Step("constant", (), node)
        for node in nodes
    )
    return tuple(listed), tuple(places[node] for node in lowered)


@lru_cache(maxsize=4096)
def _constant(node: Node, precision: int) -> arb:
    """The ball of a part without variables at the precision, which is the working one; where its terms cancel, as in
    sqrt(2)**2 - 2, from more bits."""
    found, bits = _at_point(node, {}), precision
    while found.rel_accuracy_bits() < precision - CANCELLED and bits < MOST_BITS:
        bits *= 2
        with ctx.workprec(bits):
            found = _at_point(node, {})
    return found


def _at_point(node: Node, values: Mapping[str, arb]) -> arb:
    """The ball of a node in primitives at exact values; of every part that is rational, the number itself."""

    def rule(part: Node, args: list[tuple[Fraction | None, arb]]) -> tuple[Fraction | None, arb]:
        step = Step(part.op, tuple(range(len(args))), part.value)
        if part.op == "variable":
            point = _given(values, step.value)
            return Fraction(int(point.fmpq().p), int(point.fmpq().q)), point
        exact = rational_part(part, [number for number, _ in args])
        return exact, _range(step, [ball for _, ball in args], values) if exact is None else ranges.exact(exact)

    return fold(node, rule)[1]


def _given(values: Mapping[str, arb], name: str) -> arb:
    if name not in values:
        raise ExpressionError(f"The expression uses {name}, and no ball was given for it; give one.")
    value = values[name]
    return value if isinstance(value, arb) else arb(value)


@overload
def enclose(target: Node, values: Mapping[str, arb], *, ends: bool = False) -> arb: ...
@overload
def enclose(target: Expression, values: Mapping[str, arb], *, ends: bool = False) -> Any: ...
def enclose(target: Expression | Node, values: Mapping[str, arb], *, ends: bool = False) -> arb | list[arb]:
    """Balls that hold the target over the box of values; a list when an expression has several outputs. ends: products
    by the ends of their factors, slower and tighter."""
    outputs = (target,) if isinstance(target, Node) else target.outputs
    listed, places = steps(outputs)
    balls: list[arb] = []
    for step in listed:
        balls.append(_range(step, balls, values, ends))
    results = [balls[place] if balls[place].is_finite() else NAN for place in places]
    if not all(result.is_finite() for result in results) and _may_be_defined(listed, balls, values):
        results = [_at_point(primitive(output), values) for output in outputs]
    return results[0] if len(results) == 1 else results


def _may_be_defined(listed: Sequence[Step], balls: Sequence[arb], values: Mapping[str, arb]) -> bool:
    """Whether what is not finite at a point may be so by rounding alone: functions end at whole numbers."""
    if not all(value.is_exact() and value.is_finite() for value in (_given(values, name) for name in values)):
        return False
    first = next((step for step, ball in zip(listed, balls, strict=True) if not ball.is_finite()), None)
    return first is not None and any(balls[arg].contains_integer() and not balls[arg].is_exact() for arg in first.args)


def _range(step: Step, balls: list[arb], values: Mapping[str, arb], ends: bool = False) -> arb:
    op, args, value = step
    if op == "variable":
        return _given(values, value)
    if op == "constant":
        return _constant(value, ctx.prec)
    if op == "pi":
        return arb.pi()
    u = balls[args[0]]
    if not u.is_finite():
        return NAN
    if op == "neg":
        return -u
    if op == "power":
        return ranges.power(u, value)
    if len(args) == 1:
        return ranges.RANGES[op](u)
    v = balls[args[1]]
    if op == "add":
        return u + v
    if op == "mul":
        return ranges.product(u, v) if ends and v.is_finite() else u * v
    if not v.is_finite():
        return NAN
    if op == "pow":
        return ranges.power(u, v)
    return ranges.largest(u, v) if op == "max" else ranges.smallest(u, v)


@contextmanager
def _longest(length: int) -> Iterator[None]:
    """Let flint's series hold this many coefficients; the setting is global, so it is put back."""
    before = ctx.cap
    ctx.cap = length
    try:
        yield
    finally:
        ctx.cap = before


def jet(node: Node, variable: str, x: arb, order: int, others: Mapping[str, arb] | None = None) -> list[arb]:
    """Taylor coefficients of the node in the variable, valid at every point of the ball x; cut as described above."""
    listed, (place,) = steps((node,))
    length = order + 1
    results: list[Series] = []
    with _longest(length):
        for step in listed:
            results.append(_expand(step, results, variable, x, length, others or {}))
    coefficients = results[place].padded()
    for j, c in enumerate(coefficients):
        if not c.is_finite():
            return coefficients[:j] or [enclose(node, {variable: x, **(others or {})})]
    return coefficients


def _expand(step: Step, results: list[Series], variable: str, x: arb, length: int, others: Mapping[str, arb]) -> Series:
    op, args, value = step
    if op == "variable":
        known = [x, ranges.ONE][:length] if value == variable else [_given(others, value)]
        return Series(known, length)
    if op == "constant":
        return Series([_constant(value, ctx.prec)], length)
    if op == "pi":
        return Series([arb.pi()], length)
    u = results[args[0]]
    if op == "neg":
        return series.negate(u)
    if op == "add":
        return series.add(u, results[args[1]])
    if op == "mul":
        return series.multiply(u, results[args[1]])
    if op == "max":
        return _larger(u, results[args[1]])
    if op == "min":
        return series.negate(_larger(series.negate(u), series.negate(results[args[1]])))
    if op == "abs":
        return _larger(u, series.negate(u), ranges.absolute(u.coefficients[0]))
    if op == "pow":
        op, value = "power", results[args[1]].coefficients[0]
    centre = u.coefficients[0]
    if not centre.is_finite():
        return Series([NAN], 1)
    if len(u.coefficients) == 1:
        return _of_constant(op, centre, value, u.length)
    if op == "power":
        return series.compose(powers(centre, value, u.length - 1), u)
    return series.compose(TAYLOR[op](centre, u.length - 1), u)


def _of_constant(op: str, centre: arb, value: Any, length: int) -> Series:
    result = ranges.power(centre, value) if op == "power" else ranges.RANGES[op](centre)
    return Series([result], length) if result.is_finite() else Series([NAN], 1)


def _larger(u: Series, v: Series, value: arb | None = None) -> Series:
    """max(u, v): the larger where one is, else the hull of both slopes (Clarke's derivative) below the value."""
    a, b = u.coefficients[0], v.coefficients[0]
    if a > b:
        return u
    if b > a:
        return v
    if not (a.is_finite() and b.is_finite()):
        return Series([NAN], 1)
    length = min(u.length, v.length, 2)
    value = ranges.largest(a, b) if value is None else value
    if length == 1:
        return Series([value], 1)
    return Series([value, ranges.hull(_slope(u), _slope(v))], 2)


def _slope(series_: Series) -> arb:
    return series_.coefficients[1] if len(series_.coefficients) > 1 else ranges.ZERO


def gradient_enclosure(node: Node, values: Mapping[str, arb]) -> dict[str, arb]:
    """Enclosures of the partial derivatives over the box (Clarke's where there are kinks); nan where not finite."""
    partial: dict[str, arb] = {}
    for name, x in values.items():
        others = {other: ball for other, ball in values.items() if other != name}
        coefficients = jet(node, name, x, 1, others)
        partial[name] = coefficients[1] if len(coefficients) > 1 else NAN
    return partial
