"""What torch's elementwise operations mean for one number, by the names that torch.export gives them.

An operation receives its arguments by the names in torch's schema; those that the caller left at their defaults are
absent, and then the defaults of `functions` apply, as for text. Comparisons become `Comparison`s, which mean something
only to `where`: it is read when it is one of the continuous choices max, min, or p*u above 0 and q*u below, or one of
two functions of u that meet where it changes,

    f(u) for u > c and g(u) for u < c is f(max(u, c)) + g(min(u, c)) - f(c) if f(c) = g(c),

since one of the first two is that at c. Whether they meet is evaluated exactly: enclosures that overlap say nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn

from anchorhead.enclosure.exact import exact_value
from anchorhead.errors import DiscontinuityError, ExpressionError
from anchorhead.expression.calls import call
from anchorhead.expression.functions import ALIASES, DISCONTINUOUS, FUNCTIONS, canonical
from anchorhead.expression.graph import Node, constant, divide, fold, negate, number_of, variables_of

Arguments = Mapping[str, Any]
Rule = Callable[[Arguments], Any]


@dataclass(frozen=True, eq=False)
class Comparison:
    """above > below (or >=; at equality a continuous choice does not care), of nodes or of operands."""

    above: Any
    below: Any


ROUNDED_DIVISION = "A division that rounds its quotient jumps; divide without rounding_mode."
USED_AS_NUMBER = "A comparison is used as a number, which jumps."
JUMPING = {
    "argmax": "the place of the largest entry jumps",
    "argmin": "the place of the smallest entry jumps",
    "argsort": "the order of the entries jumps",
    "floor_divide": "a division that rounds jumps",
    "bucketize": "the number of a bucket jumps",
    "searchsorted": "the number of a place jumps",
    "one_hot": "it is a choice among whole numbers",
    **dict.fromkeys(("eq", "ne"), "whether two numbers are equal jumps"),
    **dict.fromkeys(("nonzero", "count_nonzero", "any", "all"), "whether a number is zero jumps"),
    **dict.fromkeys(("isnan", "isfinite", "isinf"), "whether a number is finite jumps"),
    **dict.fromkeys(
        ("bitwise_and", "bitwise_or", "logical_and", "logical_or", "__and__", "__or__"),
        "a combination of comparisons jumps",
    ),
}
SAME = tuple(
    """detach detach_ alias contiguous to _to_copy positive clone lift_fresh_copy lift_fresh type_as nan_to_num dropout
    feature_dropout alpha_dropout feature_alpha_dropout""".split()
)
"""What gives back the numbers that it is given; a conversion is looked at by its dtype."""


def meaning(name: str, given: Arguments) -> Any:
    """The node, or the comparison, that an operation makes of one number for each tensor."""
    if given.get("training") or given.get("train"):
        raise ExpressionError(f"torch's {name} in training is random")
    if name not in ON_COMPARISONS and any(isinstance(value, Comparison) for value in given.values()):
        raise DiscontinuityError(USED_AS_NUMBER)
    try:
        found = OPERATIONS[name]({key: value for key, value in given.items() if not isinstance(value, bool)})
    except (KeyError, AttributeError, TypeError):
        found = None
    if not isinstance(found, Node | Comparison):
        raise ExpressionError(f"this form of torch's {name} is not an elementwise operation that is known")
    return found


def same(given: Arguments) -> Any:
    if given.get("train"):
        raise ExpressionError("dropout in training is random")
    return given["input"] if "input" in given else given["self"]


def jumping(name: str) -> Rule:
    def refuse(given: Arguments) -> NoReturn:
        raise DiscontinuityError(f"torch's {name} cannot be approximated by continuous maps: {JUMPING[name]}")

    return refuse


def _function(name: str, *keywords: str) -> Rule:
    """A function of that name in text, whose parameters have torch's names."""
    parameters = FUNCTIONS[canonical(name)].parameters if canonical(name) in FUNCTIONS else ()
    names = [*keywords, *(parameter.name for parameter in parameters)]
    return lambda given: call(name, [given["self"]], {key: given[key] for key in names if key in given})


def _sum(op: str, first: str = "self", second: str = "other") -> Rule:
    """first + alpha * second, or minus."""

    def build(given: Arguments) -> Node:
        alpha = given.get("alpha", constant(1))
        right = given[second] if alpha is constant(1) else Node("mul", (alpha, given[second]))
        return Node(op, (given[first], right))

    return build


def _mul(given: Arguments) -> Node:
    left, right = given["self"], given["other"]
    if right is constant(1):
        return left
    return Node("mul", (right, left)) if right.op == "constant" else Node("mul", (left, right))


def _div(given: Arguments) -> Node:
    if given.get("rounding_mode") is not None:
        raise DiscontinuityError(ROUNDED_DIVISION)
    return divide(given["self"], given["other"])


def _elu(given: Arguments) -> Node:
    for key in ("scale", "input_scale"):
        if given.get(key, constant(1)) is not constant(1):
            raise ExpressionError(f"elu with {key} is not known; multiply by hand.")
    return _function("elu")(given)


def _softplus(given: Arguments) -> Node:
    threshold = given.get("threshold")
    if threshold is not None and number_of(threshold) < 20:
        raise DiscontinuityError(
            f"softplus with the threshold {threshold} jumps there; leave the threshold at its default."
        )
    return _function("softplus")(given)


def _threshold(given: Arguments) -> Node:
    if given["threshold"] is not given["value"]:
        return call("threshold", [given["self"]])
    return Node("max", (given["self"], given["value"]))


def _choice(op: str) -> Callable[[Arguments], Node]:
    return lambda given: Node(op, (given["self"], given["other"]))


def _logaddexp(given: Arguments) -> Node:
    """log(exp a + exp b) = a + softplus(b - a)."""
    left, right = given["self"], given["other"]
    return Node("add", (left, call("softplus", [Node("sub", (right, left))])))


def _where(given: Arguments) -> Node:
    condition, yes, no = given["condition"], given["self"], given["other"]
    if isinstance(condition, Comparison):
        above, below = condition.above, condition.below
        if (yes, no) == (above, below):
            return Node("max", (above, below))
        if (yes, no) == (below, above):
            return Node("min", (above, below))
        for u, rising, falling in ((above, yes, no), (below, no, yes)):
            zero = below if u is above else above
            p, q = _multiple(rising, u), _multiple(falling, u)
            if zero is constant(0) and p is not None and q is not None:
                return _two_slopes(u, p, q)
        found = _meeting(above, below, yes, no) or _meeting(below, above, no, yes)
        if found is not None:
            return found
    raise DiscontinuityError(
        "torch.where may jump where its condition changes. It is read where that compares a number u with a constant, "
        "both sides are functions of u, and exactly equal there; write others with torch.maximum, torch.minimum, "
        "torch.abs, torch.clamp or torch.relu."
    )


def _meeting(u: Node, c: Node, right: Node, left: Node) -> Node | None:
    """The choice of one function of u above a constant and another below, as the top of this file says; None if they
    are not seen to meet."""
    sides = [_with(side, u, c) for side in (right, left)]
    values = [None if variables_of([c, side]) else exact_value(side) for side in sides]
    if values[0] is None or values[0] != values[1]:
        return None
    parts = [_with(side, u, Node(op, (u, c))) for side, op in ((right, "max"), (left, "min"))]
    moving = [part for part, side in zip(parts, (right, left), strict=True) if part is not side]
    if len(moving) < 2:
        return moving[0] if moving else right
    total = Node("add", moving)
    return total if values[0] == 0 else Node("sub", (total, constant(values[0])))


def _with(node: Node, u: Node, other: Node) -> Node:
    """The node with another one for u."""
    return fold(node, lambda part, args: other if part is u else Node(part.op, args, part.value))


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


def _compare(above: str, below: str) -> Rule:
    return lambda given: Comparison(given[above], given[below])


_ONE_NUMBER = [name for name in [*FUNCTIONS, *ALIASES] if FUNCTIONS[canonical(name)].most == 1]
_NEGATION = ("bitwise_not", "logical_not")

OPERATIONS: dict[str, Rule] = (
    {name: _function(name) for name in [*_ONE_NUMBER, *DISCONTINUOUS]}
    | {f"special_{name}": _function(name) for name in _ONE_NUMBER}
    | {name: jumping(name) for name in JUMPING}
    | dict.fromkeys(SAME, same)
    | dict.fromkeys(("neg", "negative"), lambda given: negate(given["self"]))
    | dict.fromkeys(("add", "__add__"), _sum("add"))
    | dict.fromkeys(("sub", "subtract"), _sum("sub"))
    | dict.fromkeys(("mul", "multiply"), _mul)
    | dict.fromkeys(("div", "divide", "true_divide"), _div)
    | dict.fromkeys(("clamp", "clip", "clamp_min", "clamp_max"), _function("clip", "min", "max"))
    | dict.fromkeys(("maximum", "max"), _choice("max"))
    | dict.fromkeys(("minimum", "min"), _choice("min"))
    | dict.fromkeys(("gt", "ge"), _compare("self", "other"))
    | dict.fromkeys(("lt", "le"), _compare("other", "self"))
    | dict.fromkeys(_NEGATION, lambda given: Comparison(given["self"].below, given["self"].above))
    | {
        "rsub": _sum("sub", "other", "self"),
        "pow": lambda given: Node("pow", (given["self"], given["exponent"])),
        "log_sigmoid": _function("logsigmoid"),
        "gelu": _function("gelu", "approximate"),
        "elu": _elu,
        "softplus": _softplus,
        "threshold": _threshold,
        "logaddexp": _logaddexp,
        "ones_like": lambda given: constant(1),
        "zeros_like": lambda given: constant(0),
        "full_like": lambda given: given["fill_value"],
        "where": _where,
    }
)
ON_COMPARISONS = frozenset(("where", *_NEGATION, *SAME, *JUMPING))
