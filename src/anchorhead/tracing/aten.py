"""What torch's elementwise operations mean as nodes of a graph, by the names that torch.export gives them.

An operation receives its arguments by the names in torch's schema; those that the caller left at their defaults are
absent, and then the defaults of `functions` apply, as for text. Comparisons become `Comparison`s, which mean something
only to `where`: it is read when it is one of the continuous choices max, min, or p*u above 0 and q*u below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from anchorhead.errors import DiscontinuityError, ExpressionError
from anchorhead.expression.calls import call
from anchorhead.expression.graph import Node, constant, divide, negate, number_of

Arguments = Mapping[str, Any]


class Comparison(NamedTuple):
    """above > below (or >=; at equality a continuous choice does not care)."""

    above: Node
    below: Node


ALIAS = {"detach", "detach_", "alias", "contiguous", "to", "_to_copy", "dropout", "positive"}
COPY = {"clone", "lift_fresh_copy", "lift_fresh"}

_SAME_NAME = """sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh arcsin arccos arctan arcsinh arccosh arctanh
exp expm1 exp2 log log1p log2 log10 sqrt rsqrt square reciprocal erf erfc abs absolute relu relu6 selu silu mish sigmoid
hardsigmoid hardswish""".split()

_OTHER_NAME = {
    "log_sigmoid": "logsigmoid",
    "special_expit": "sigmoid",
    "special_erf": "erf",
    "special_erfc": "erfc",
    "special_exp2": "exp2",
    "special_expm1": "expm1",
    "special_log1p": "log1p",
}

_REFUSED = {"hardshrink", "sign", "sgn", "floor", "ceil", "round", "trunc", "fix", "frac", "fmod", "remainder"}


def _unary(name: str) -> Callable[[Arguments], Node]:
    return lambda given: call(name, [given["self"]])


def _with_numbers(name: str, *parameters: str) -> Callable[[Arguments], Node]:
    def build(given: Arguments) -> Node:
        return call(name, [given["self"]], {key: given[key] for key in parameters if key in given})

    return build


def _scaled(given: Arguments, key: str) -> Node:
    """alpha * other, as add and sub have it."""
    alpha = given.get("alpha")
    return given[key] if alpha is None or alpha is constant(1) else Node("mul", (alpha, given[key]))


def _add(given: Arguments) -> Node:
    return Node("add", (given["self"], _scaled(given, "other")))


def _sub(given: Arguments) -> Node:
    return Node("sub", (given["self"], _scaled(given, "other")))


def _reversed_sub(given: Arguments) -> Node:
    return Node("sub", (given["other"], _scaled(given, "self")))


def _mul(given: Arguments) -> Node:
    left, right = given["self"], given["other"]
    if right is constant(1):
        return left
    return Node("mul", (right, left)) if right.op == "constant" else Node("mul", (left, right))


def _div(given: Arguments) -> Node:
    if given.get("rounding_mode") is not None:
        raise DiscontinuityError("A division that rounds its quotient jumps; divide without rounding_mode.")
    return divide(given["self"], given["other"])


def _pow(given: Arguments) -> Node:
    return Node("pow", (given["self"], given["exponent"]))


def _clamp(given: Arguments) -> Node:
    return call("clip", [given["self"]], {key: given[key] for key in ("min", "max") if given.get(key) is not None})


def _elu(given: Arguments) -> Node:
    for key in ("scale", "input_scale"):
        if given.get(key, constant(1)) is not constant(1):
            raise ExpressionError(f"elu with {key} is not known; multiply by hand.")
    return _with_numbers("elu", "alpha")(given)


def _softplus(given: Arguments) -> Node:
    threshold = given.get("threshold")
    if threshold is not None and number_of(threshold) < 20:
        raise DiscontinuityError(
            f"softplus with the threshold {threshold} jumps there; leave the threshold at its default."
        )
    return _with_numbers("softplus", "beta")(given)


def _rrelu(given: Arguments) -> Node:
    return _with_numbers("rrelu", "lower", "upper")(given)


def _gelu(given: Arguments) -> Node:
    return call("gelu", [given["self"]], {"approximate": given.get("approximate", "none")})


def _threshold(given: Arguments) -> Node:
    if given["threshold"] is not given["value"]:
        return call("threshold", [given["self"]])
    return Node("max", (given["self"], given["value"]))


def _choice(op: str) -> Callable[[Arguments], Node]:
    return lambda given: Node(op, (given["self"], given["other"]))


def _filled(value: int) -> Callable[[Arguments], Node]:
    return lambda given: constant(value)


def _logaddexp(given: Arguments) -> Node:
    """log(exp a + exp b) = a + softplus(b - a)."""
    left, right = given["self"], given["other"]
    return Node("add", (left, call("softplus", [Node("sub", (right, left))])))


def _where(given: Arguments) -> Node:
    condition, yes, no = given["condition"], given["self"], given["other"]
    if isinstance(condition, Comparison):
        above, below = condition
        if (yes, no) == (above, below):
            return Node("max", (above, below))
        if (yes, no) == (below, above):
            return Node("min", (above, below))
        for u, rising, falling in ((above, yes, no), (below, no, yes)):
            zero = below if u is above else above
            p, q = _multiple(rising, u), _multiple(falling, u)
            if zero is constant(0) and p is not None and q is not None:
                return _two_slopes(u, p, q)
    raise DiscontinuityError(
        "torch.where may jump where its condition changes, and this one is not a max, a min or two slopes that meet "
        "at 0; write it with torch.maximum, torch.minimum, torch.abs, torch.clamp or torch.relu."
    )


def _multiple(node: Node, u: Node) -> Fraction | None:
    """The number p such that the node is p*u."""
    if node is u:
        return Fraction(1)
    if node is constant(0):
        return Fraction(0)
    if node.op == "neg" and node.args[0] is u:
        return Fraction(-1)
    if node.op == "mul" and node.args[0].op == "constant" and node.args[1] is u:
        return number_of(node.args[0])
    return None


def _two_slopes(u: Node, p: Fraction, q: Fraction) -> Node:
    if (p, q) == (1, 0):
        return call("relu", [u])
    if (p, q) == (1, -1):
        return call("abs", [u])
    if p == 1:
        return call("leaky_relu", [u, constant(q)])
    high, low = Node("max", (u, constant(0))), Node("min", (u, constant(0)))
    return Node("add", (Node("mul", (constant(p), high)), Node("mul", (constant(q), low))))


def _compare(reverse: bool) -> Callable[[Arguments], Comparison]:
    if reverse:
        return lambda given: Comparison(given["other"], given["self"])
    return lambda given: Comparison(given["self"], given["other"])


OPERATIONS: dict[str, Callable[[Arguments], Node | Comparison]] = (
    {name: _unary(name) for name in [*_SAME_NAME, *_REFUSED]}
    | {theirs: _unary(ours) for theirs, ours in _OTHER_NAME.items()}
    | {
        "neg": lambda given: negate(given["self"]),
        "negative": lambda given: negate(given["self"]),
        "add": _add,
        "sub": _sub,
        "subtract": _sub,
        "rsub": _reversed_sub,
        "mul": _mul,
        "multiply": _mul,
        "div": _div,
        "divide": _div,
        "true_divide": _div,
        "pow": _pow,
        "clamp": _clamp,
        "clip": _clamp,
        "clamp_min": _clamp,
        "clamp_max": _clamp,
        "gelu": _gelu,
        "elu": _elu,
        "celu": _with_numbers("celu", "alpha"),
        "leaky_relu": _with_numbers("leaky_relu", "negative_slope"),
        "prelu": _with_numbers("prelu", "weight"),
        "rrelu": _rrelu,
        "softplus": _softplus,
        "softshrink": _with_numbers("softshrink", "lambd"),
        "hardtanh": _with_numbers("hardtanh", "min_val", "max_val"),
        "threshold": _threshold,
        "maximum": _choice("max"),
        "minimum": _choice("min"),
        "max": _choice("max"),
        "min": _choice("min"),
        "logaddexp": _logaddexp,
        "ones_like": _filled(1),
        "zeros_like": _filled(0),
        "where": _where,
        "gt": _compare(False),
        "ge": _compare(False),
        "lt": _compare(True),
        "le": _compare(True),
    }
)
