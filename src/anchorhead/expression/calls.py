"""A function's name, arguments and keywords, as the one node that means it: the same rule for text and for torch.

Every spelling of a function gives the same node: defaults are filled in, keywords put in their place, aliases
replaced. What cannot be is refused with a sentence.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from fractions import Fraction

from anchorhead.errors import DiscontinuityError, ExpressionError
from anchorhead.expression.functions import ALIASES, DISCONTINUOUS, FUNCTIONS, Function, canonical
from anchorhead.expression.graph import Node, constant, rational

SMALLEST, LARGEST = Fraction(1, 10**300), Fraction(10**300)
"""Of parameters of functions, and of exponents."""


def call(name: str, arguments: Sequence[Node], named: Mapping[str, Node | str] | None = None,
         others: Sequence[str] = ()) -> Node:  # fmt: skip
    """The node of `name(*arguments, **named)`; others: names that are known beside those of functions."""
    if name in DISCONTINUOUS:
        raise DiscontinuityError(f"{name} cannot be approximated uniformly by continuous maps: {DISCONTINUOUS[name]}.")
    op = canonical(name)
    if op not in FUNCTIONS:
        near = difflib.get_close_matches(name, [*FUNCTIONS, *ALIASES, *others], 1)
        known = ", ".join(sorted((*FUNCTIONS, *others)))
        advice = f"did you mean {near[0]}?" if near else f"the known names are {known}"
        raise ExpressionError(f"{name} is not a function that is known ({advice}).")
    keywords = dict(named or {})
    if op == "gelu":
        op = _gelu(keywords)
    if op == "pow" and len(arguments) == 2 and not keywords:
        return power(*arguments)
    if op == "clip":
        return _clip(name, list(arguments), keywords)
    if op == "softplus" and ("threshold" in keywords or len(arguments) == 3):
        raise DiscontinuityError(
            "softplus with a threshold jumps there; leave the threshold out to get the function itself."
        )
    return _assemble(name, op, list(arguments), keywords)


def power(base: Node, exponent: Node) -> Node:
    """base**exponent, unless the exponent is a number that floating point cannot hold."""
    number = rational(exponent)
    if number is not None and number != 0 and not SMALLEST <= abs(number) <= LARGEST:
        raise ExpressionError("An exponent must be 0 or between 1e-300 and 1e300 in size; rewrite the power.")
    return Node("pow", (base, exponent))


def _assemble(name: str, op: str, arguments: list[Node], keywords: dict[str, Node | str]) -> Node:
    function = FUNCTIONS[op]
    most = None if function.most is None else function.most + len(function.parameters)
    if len(arguments) < function.least or (most is not None and len(arguments) > most):
        raise ExpressionError(f"{name} takes {_count(function)}, and {len(arguments)} were given.")
    given = arguments[: function.least] if function.parameters else arguments
    values = _parameters(name, function, arguments[len(given) :], keywords)
    if function.rule is not None and not function.rule(*values):
        raise ExpressionError(f"{name} was given {', '.join(map(str, values))}: {function.rule_text}.")
    return Node(op, (*given, *map(constant, values)))


def _parameters(
    name: str, function: Function, arguments: list[Node], keywords: dict[str, Node | str]
) -> list[Fraction]:
    values: list[Fraction] = []
    for place, parameter in enumerate(function.parameters):
        node: Node | str | None = arguments[place] if place < len(arguments) else None
        if parameter.name in keywords:
            if node is not None:
                raise ExpressionError(f"{name} was given {parameter.name} twice; give it once.")
            node = keywords.pop(parameter.name)
        if node is None:
            if parameter.default is None:
                raise ExpressionError(f"{name} needs the number {parameter.name}, as in {name}(x, 0.25).")
            values.append(parameter.default)
            continue
        value = rational(node) if isinstance(node, Node) else None
        if value is None:
            raise ExpressionError(
                f"{parameter.name} of {name} must be a plain number, and {node} is not one; write it in digits, as "
                "0.9 or 1/3."
            )
        if value != 0 and not SMALLEST <= abs(value) <= LARGEST:
            raise ExpressionError(
                f"{parameter.name} of {name} must be 0 or between 1e-300 and 1e300 in size, so that floating point can "
                "hold it; rescale the variable."
            )
        values.append(value)
    if keywords:
        known = ", ".join(parameter.name for parameter in function.parameters) or "none"
        raise ExpressionError(f"{name} has no keyword {next(iter(keywords))} (its keywords: {known}).")
    return values


def _gelu(keywords: dict[str, Node | str]) -> str:
    how = keywords.pop("approximate", "none")
    if how not in ("none", "tanh"):
        raise ExpressionError(f"gelu knows approximate='none' and approximate='tanh', and {how!r} is neither.")
    return "gelu_tanh" if how == "tanh" else "gelu"


def _clip(name: str, arguments: list[Node], keywords: dict[str, Node | str]) -> Node:
    """clip(x, low, high) with either bound by keyword; a bound given alone, by keyword, makes a max or a min."""
    given = {"min": keywords.pop("min", None), "max": keywords.pop("max", None)}
    alone = len(arguments) == 1
    for bound, node in zip(("min", "max"), arguments[1:3], strict=False):
        if given[bound] is None:
            given[bound] = node
        else:
            keywords[bound] = node
    low, high = given["min"], given["max"]
    if not keywords and 1 <= len(arguments) <= 3:
        if isinstance(low, Node) and isinstance(high, Node):
            return Node("clip", (arguments[0], low, high))
        if alone and isinstance(low, Node):
            return Node("max", (arguments[0], low))
        if alone and isinstance(high, Node):
            return Node("min", (arguments[0], high))
    raise ExpressionError(f"{name} takes x, a lower and an upper bound, as in {name}(x, -1, 1).")


def _count(function: Function) -> str:
    least, parameters = function.least, len(function.parameters)
    if function.most is None:
        return f"{least} or more arguments"
    most = function.most + parameters
    return f"{least} argument{'s' * (least > 1)}" if most == least else f"{least} to {most} arguments"
