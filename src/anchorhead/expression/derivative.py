"""The derivative of an expression as an expression, by the chain rule over primitives.

Written so that nothing cancels where the function itself does not: sigmoid' = sigmoid(u) sigmoid(-u), and log(cosh u)'
is tanh(u), which is no quotient of large numbers. The derivatives of abs, min and max jump at their kinks, and are
refused; but those of abs(u)**k, max(u, 0)**k and min(u, 0)**k do not for k >= 2: with r the one that is raised, they
are k r**(k - 1) u', and of abs k u r**(k - 2) u'.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from anchorhead.errors import ExpressionError
from anchorhead.expression.graph import Node, constant, number_of, ordered, with_differences
from anchorhead.expression.primitives import (
    ONE,
    PI,
    ZERO,
    add,
    function,
    general_power,
    minus,
    mul,
    power,
    primitive,
    scale,
    sub,
)

_RULES: dict[str, Callable[[Node], Node]] = {
    "exp": lambda u: function("exp", u),
    "expm1": lambda u: function("exp", u),
    "log": lambda u: power(u, -1),
    "log1p": lambda u: power(add(ONE, u), -1),
    "sin": lambda u: function("cos", u),
    "cos": lambda u: minus(function("sin", u)),
    "tan": lambda u: power(function("cos", u), -2),
    "asin": lambda u: power(sub(ONE, power(u, 2)), Fraction(-1, 2)),
    "acos": lambda u: minus(power(sub(ONE, power(u, 2)), Fraction(-1, 2))),
    "atan": lambda u: power(add(power(u, 2), ONE), -1),
    "sinh": lambda u: function("cosh", u),
    "cosh": lambda u: function("sinh", u),
    "tanh": lambda u: scale(4, mul(function("sigmoid", scale(2, u)), function("sigmoid", scale(-2, u)))),
    "asinh": lambda u: power(add(power(u, 2), ONE), Fraction(-1, 2)),
    "acosh": lambda u: power(add(power(u, 2), constant(-1)), Fraction(-1, 2)),
    "atanh": lambda u: power(sub(ONE, power(u, 2)), -1),
    "erf": lambda u: mul(_bell(), function("exp", minus(power(u, 2)))),
    "erfc": lambda u: minus(mul(_bell(), function("exp", minus(power(u, 2))))),
    "sigmoid": lambda u: mul(function("sigmoid", u), function("sigmoid", minus(u))),
    "softplus": lambda u: function("sigmoid", u),
}


def _bell() -> Node:
    """2/sqrt(pi)."""
    return scale(2, power(PI, Fraction(-1, 2)))


def derivative(node: Node, name: str) -> Node:
    """The partial derivative by that variable."""
    slopes: dict[Node, Node | None] = {}
    whole = primitive(node)
    for part in ordered([whole]):
        slopes[part] = _slope(part, slopes, name)
    return _known(whole, slopes)


def _known(part: Node, slopes: dict[Node, Node | None]) -> Node:
    """The derivative of a part that does not jump."""
    found = slopes[part]
    if found is None:
        raise ExpressionError(
            f"{with_differences(part)} has a kink, where its derivative jumps, and no network follows a jump; use a "
            "smooth loss, such as a softplus for a relu, or its square, or give the gradient itself: "
            "ah.in_context.Loss(gradient=...)."
        )
    return found


def _slope(part: Node, slopes: dict[Node, Node | None], name: str) -> Node | None:
    """None where it jumps."""
    if part.op == "variable":
        return ONE if part.value == name else ZERO
    if part.op in ("abs", "min", "max"):
        return ZERO if all(slopes[arg] is ZERO for arg in part.args) else None
    bent = _bent(part.args[0]) if part.op == "power" and number_of(part) >= 2 else None
    if bent is not None:
        exponent, raised = number_of(part), part.args[0]
        factor = mul(bent, power(raised, exponent - 2)) if raised.op == "abs" else power(raised, exponent - 1)
        return _times(_known(bent, slopes), scale(exponent, factor))
    inner = [_known(arg, slopes) for arg in part.args]
    if all(slope is ZERO for slope in inner):
        return ZERO
    if part.op == "add":
        return add(*inner)
    if part.op == "neg":
        return minus(inner[0])
    if part.op == "mul":
        left, right = part.args
        return add(_times(inner[0], right), _times(inner[1], left))
    if part.op == "power":
        exponent = number_of(part)
        return _times(inner[0], scale(exponent, power(part.args[0], exponent - 1)))
    if part.op == "pow":
        base, raised = part.args
        return _times(inner[0], mul(raised, general_power(base, sub(raised, ONE))))
    if part.op == "log" and part.args[0].op == "cosh":
        angle = part.args[0].args[0]
        return _times(_known(angle, slopes), function("tanh", angle))
    return _times(inner[0], _RULES[part.op](part.args[0]))


def _bent(part: Node) -> Node | None:
    """u of abs(u), max(u, 0) and min(u, 0)."""
    others = [arg for arg in part.args if arg is not ZERO]
    return others[0] if part.op == "abs" or (part.op in ("min", "max") and len(others) == 1) else None


def _times(slope: Node, factor: Node) -> Node:
    return ZERO if slope is ZERO else mul(slope, factor)
