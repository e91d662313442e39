"""Every operation written in a few primitives, so that balls, kinks and tails need rules for those alone.

Primitives: constant, variable, pi, add, mul, neg, power (with a rational exponent as its value), pow (to any other
exponent without variables, of what is not negative), exp, expm1, log, log1p, sin, cos, tan, asin, acos, atan, sinh,
cosh, tanh, asinh, acosh, atanh, erf, erfc, sigmoid, softplus, abs, min, max (of two). Each rewriting is an identity of
real functions, chosen so that nothing cancels: gelu by erfc rather than 1 + erf, (1 + tanh z)/2 as sigmoid(2z), log(1 +
exp x) as one primitive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache

from anchorhead.expression.functions import GELU_CUBIC, SELU_ALPHA, SELU_SCALE
from anchorhead.expression.graph import (
    Node,
    constant,
    fold,
    is_short,
    negate,
    number_of,
    ordered,
    rational,
    variables_of,
)

ZERO, ONE = constant(0), constant(1)
PI = Node("pi")


def defined_everywhere(node: Node) -> bool:
    """Whether every operation below is defined on the whole line, so that 0 times it is 0 at every point."""
    for part in ordered([node]):
        partial = part.op in ("pow", "log", "log1p", "tan", "asin", "acos", "acosh", "atanh")
        if partial or (part.op == "power" and not (isinstance(part.value, int) and part.value > 0)):
            return False
    return True


def add(left: Node, right: Node) -> Node:
    """left + right; a constant goes last and constants meet while they are short, and what cancels is gone."""
    if left.op == "constant":
        left, right = right, left
    if right.op == "constant":
        if right is ZERO:
            return left
        met = left if left.op == "constant" else left.args[1] if left.op == "add" else left
        if met.op == "constant" and is_short(total := number_of(met) + number_of(right)):
            return constant(total) if met is left else add(left.args[0], constant(total))
        return Node("add", (left, right))
    if left.op == "add" and left.args[1].op == "constant":
        return add(add(left.args[0], right), left.args[1])
    if right.op == "add" and right.args[1].op == "constant":
        return add(add(left, right.args[0]), right.args[1])
    if minus(left) is right and defined_everywhere(left):
        return ZERO
    return Node("add", (left, right))


def mul(left: Node, right: Node) -> Node:
    """left * right; a constant moves to the front, and constants meet while they are short: slopes stay exact."""
    if right.op == "constant":
        left, right = right, left
    if left.op == "constant":
        if left is ZERO and defined_everywhere(right):
            return ZERO
        if left is ONE:
            return right
        met = right if right.op == "constant" else right.args[0] if right.op == "mul" else right
        if met.op == "constant" and is_short(total := number_of(left) * number_of(met)):
            return constant(total) if met is right else mul(constant(total), right.args[1])
        if right.op == "neg":
            return mul(negate(left), right.args[0])
    if left.op == "neg":
        return minus(mul(left.args[0], right))
    if right.op == "neg":
        return minus(mul(left, right.args[0]))
    if left is right:
        return power(left, 2)
    if left.op == "power" and left.args[0] is right and isinstance(left.value, int) and left.value > 0:
        return power(right, left.value + 1)
    return Node("mul", (left, right))


def minus(node: Node) -> Node:
    """-node; the sign of a product goes into its constant, that of a sum with a constant into both terms."""
    if node.op == "neg":
        return node.args[0]
    if node.op == "mul" and node.args[0].op == "constant":
        return mul(negate(node.args[0]), node.args[1])
    if node.op == "add" and node.args[1].op == "constant":
        return add(minus(node.args[0]), negate(node.args[1]))
    return negate(node)


def sub(left: Node, right: Node) -> Node:
    return ZERO if left is right and defined_everywhere(left) else add(left, minus(right))


def scale(number: Fraction | int | str, node: Node) -> Node:
    return ZERO if number == 0 else mul(constant(Fraction(number)), node)


def power(node: Node, exponent: Fraction | int) -> Node:
    """node**exponent; 1/(1 + exp u) is sigmoid(-u), which stays accurate where exp u is huge."""
    exponent = Fraction(exponent)
    if exponent == 0:
        return ONE
    if exponent == 1:
        return node
    value = exponent.numerator if exponent.denominator == 1 else exponent
    if exponent == -1:
        if node.op == "constant" and node.value != 0:
            return constant(1 / number_of(node))
        if node.op == "add" and node.args[0].op == "exp" and node.args[1] is ONE:
            return function("sigmoid", minus(node.args[0].args[0]))
    return Node("power", (node,), value)


_ZERO_AT_ZERO = {"expm1", "log1p", "sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf", "abs"}
_ONE_AT_ZERO = {"exp", "cos", "cosh", "erfc"}


def function(op: str, node: Node) -> Node:
    """A function of one argument; log(1 + exp u) is softplus(u), which stays accurate where exp u is huge."""
    if node is ZERO and op in _ZERO_AT_ZERO:
        return ZERO
    if node is ZERO and op in _ONE_AT_ZERO:
        return ONE
    if op == "log" and node is ONE:
        return ZERO
    if op == "log1p" and node.op == "exp":
        return Node("softplus", node.args)
    if op == "log" and node.op == "add" and node.args[0].op == "exp" and node.args[1] is ONE:
        return Node("softplus", node.args[0].args)
    return Node(op, (node,))


def highest(left: Node, right: Node) -> Node:
    return left if left is right else Node("max", (left, right))


def lowest(left: Node, right: Node) -> Node:
    return left if left is right else Node("min", (left, right))


def _balanced(join: Callable[[Node, Node], Node], parts: Sequence[Node]) -> Node:
    """Neighbours joined, and again, so that what decides between two of many is as small as it can be."""
    while len(parts) > 1:
        pairs = [join(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = [*pairs, *parts[2 * len(pairs) :]]
    return parts[0]


def clip(node: Node, low: Node, high: Node) -> Node:
    return lowest(highest(node, low), high)


def general_power(base: Node, exponent: Node) -> Node:
    """base**exponent: an integer power of anything, a constant power of what is not negative, else exp(y log x)."""
    number = rational(exponent)
    if number is not None:
        return power(base, number)
    if base.op == "e":
        return function("exp", exponent)
    if not variables_of([exponent]):
        return Node("pow", (base, exponent))
    return function("exp", mul(exponent, function("log", base)))


def _ramps(u: Node, slope: Fraction) -> Node:
    """u above 0 and slope*u below."""
    return add(highest(u, ZERO), scale(slope, lowest(u, ZERO)))


def _softplus(u: Node, beta: Fraction) -> Node:
    return scale(1 / beta, function("softplus", scale(beta, u)))


def _exponential_below(u: Node, alpha: Fraction, width: Fraction) -> Node:
    """u above 0 and alpha*expm1(u/width) below: elu (width 1) and celu (width alpha)."""
    return add(highest(u, ZERO), scale(alpha, function("expm1", scale(1 / width, lowest(u, ZERO)))))


def _gelu(u: Node) -> Node:
    """u/2 * erfc(-u/sqrt(2))."""
    return mul(scale("0.5", u), function("erfc", mul(minus(power(constant(2), Fraction(-1, 2))), u)))


def _gelu_tanh(u: Node) -> Node:
    """u * sigmoid(2 sqrt(2/pi) (u + 0.044715 u^3)), as (1 + tanh z)/2 = sigmoid(2z)."""
    inner = add(u, scale(GELU_CUBIC, power(u, 3)))
    return mul(u, function("sigmoid", mul(power(scale("0.125", PI), Fraction(-1, 2)), inner)))


def _hard(u: Node) -> Node:
    return clip(scale(Fraction(1, 6), add(u, constant(3))), ZERO, ONE)


_UNARY: dict[str, Callable[[Node], Node]] = {
    "exp2": lambda u: function("exp", mul(function("log", constant(2)), u)),
    "log2": lambda u: mul(power(function("log", constant(2)), -1), function("log", u)),
    "log10": lambda u: mul(power(function("log", constant(10)), -1), function("log", u)),
    "sqrt": lambda u: power(u, Fraction(1, 2)),
    "rsqrt": lambda u: power(u, Fraction(-1, 2)),
    "square": lambda u: power(u, 2),
    "reciprocal": lambda u: power(u, -1),
    "relu": lambda u: highest(u, ZERO),
    "relu6": lambda u: clip(u, ZERO, constant(6)),
    "selu": lambda u: scale(SELU_SCALE, _exponential_below(u, SELU_ALPHA, Fraction(1))),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda u: mul(u, function("sigmoid", u)),
    "mish": lambda u: mul(u, function("tanh", function("softplus", u))),
    "softsign": lambda u: mul(u, power(add(ONE, function("abs", u)), -1)),
    "logsigmoid": lambda u: minus(function("softplus", minus(u))),
    "hardsigmoid": _hard,
    "hardswish": lambda u: mul(u, _hard(u)),
    "tanhshrink": lambda u: sub(u, function("tanh", u)),
}

_WITH_NUMBERS: dict[str, Callable[..., Node]] = {
    "leaky_relu": _ramps,
    "prelu": _ramps,
    "rrelu": lambda u, lower, upper: _ramps(u, (lower + upper) / 2),
    "elu": lambda u, alpha: _exponential_below(u, alpha, Fraction(1)),
    "celu": lambda u, alpha: _exponential_below(u, alpha, alpha),
    "softplus": _softplus,
    "softshrink": lambda u, lambd: sub(u, clip(u, constant(-lambd), constant(lambd))),
    "hardtanh": lambda u, low, high: clip(u, constant(low), constant(high)),
}

_SEVERAL: dict[str, Callable[..., Node]] = {
    "add": add,
    "sub": sub,
    "mul": mul,
    "div": lambda above, below: mul(above, power(below, -1)),
    "neg": minus,
    "pow": general_power,
    "clip": clip,
    "min": lambda *parts: _balanced(lowest, parts),
    "max": lambda *parts: _balanced(highest, parts),
}


def rebuild(node: Node, args: Sequence[Node]) -> Node:
    """The same operation on other arguments, both in primitives."""
    if node.op == "softplus" and len(args) == 1:
        return Node("softplus", args)
    if node.op == "power":
        return power(args[0], number_of(node))
    if node.op in _SEVERAL:
        return _SEVERAL[node.op](*args)
    if node.op in _UNARY:
        return _UNARY[node.op](*args)
    if node.op in _WITH_NUMBERS:
        return _WITH_NUMBERS[node.op](args[0], *(number_of(arg) for arg in node.args[1:]))
    if node.op == "e":
        return function("exp", ONE)
    if len(args) == 1:
        return function(node.op, args[0])
    return Node(node.op, args, node.value) if args else node


@lru_cache(maxsize=4096)
def primitive(node: Node) -> Node:
    """The node in primitives; a node that is already in primitives comes back as itself."""
    return fold(node, rebuild)
