"""The graph of a target: nodes that are shared and never change.

Nodes are hash-consed: building the same node twice gives the same object. So equality is identity, a hash costs
nothing, a subexpression that appears a thousand times is stored and evaluated once, and a graph with exponentially
many paths stays as small as its number of distinct nodes. Constants are exact: an int where the value is an integer,
a Fraction otherwise, so that 0.1 in a text is one tenth and not the nearest float.

Operations: "constant" and "variable" (with their value), "pi" and "e", "add", "sub", "mul", "div", "neg", "pow", and
the canonical names of `functions.FUNCTIONS`, parameters included as constant arguments.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from anchorhead.errors import ExpressionError
from anchorhead.expression.functions import check_names

Value = int | Fraction | str | None
Made = TypeVar("Made")

MOST_BITS = 6_600
"""Bits of the numbers above and below in a constant that is computed from others: beyond that it stays a formula."""

_known: WeakValueDictionary[tuple[Any, ...], Node] = WeakValueDictionary()
_lock = threading.Lock()


class Node:
    """One operation on the nodes `args`; `value` holds a constant's number or a variable's name."""

    __slots__ = ("__weakref__", "args", "op", "value")

    op: str
    args: tuple[Node, ...]
    value: Value

    def __new__(cls, op: str, args: Iterable[Node] = (), value: Value = None) -> Node:
        args = tuple(args)
        key = (op, args, value)
        with _lock:
            node = _known.get(key)
            if node is None:
                node = object.__new__(cls)
                object.__setattr__(node, "op", op)
                object.__setattr__(node, "args", args)
                object.__setattr__(node, "value", value)
                _known[key] = node
        return node

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a node of an expression never changes; build a new one")

    def __reduce__(self) -> tuple[Any, ...]:
        return Node, (self.op, self.args, self.value)

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        from anchorhead.expression.text import text

        return text(self)


def constant(number: int | float | Fraction) -> Node:
    """The exact number, whatever type it came in."""
    if isinstance(number, float) and not math.isfinite(number):
        raise ExpressionError(f"A constant of the expression is {number}; constants must be finite numbers.")
    exact = Fraction(number)
    return Node("constant", (), exact.numerator if exact.denominator == 1 else exact)


def variable(name: str) -> Node:
    return Node("variable", (), name)


def negate(node: Node) -> Node:
    """-node, with the sign taken into a constant so that each number has one form."""
    return constant(-number_of(node)) if node.op == "constant" else Node("neg", (node,))


def divide(above: Node, below: Node) -> Node:
    """above / below, where a quotient of two constants is again a constant, unless that is too long."""
    if above.op == "constant" and below.op == "constant" and below.value != 0:
        ratio = number_of(above) / number_of(below)
        if is_short(ratio):
            return constant(ratio)
    return Node("div", (above, below))


def value_of(node: Node) -> int | Fraction:
    """The exact number that a constant, or a power as its exponent, holds."""
    if not isinstance(node.value, int | Fraction):
        raise ExpressionError(f"{node} was taken for a number, and is not one.")
    return node.value


def number_of(node: Node) -> Fraction:
    """The same, as a fraction."""
    return Fraction(value_of(node))


def is_short(number: Fraction, bits: int = MOST_BITS) -> bool:
    """Whether exact arithmetic with the number stays cheap."""
    return max(number.numerator.bit_length(), number.denominator.bit_length()) <= bits


def rational(node: Node, bits: int = 4096) -> Fraction | None:
    """The exact value of a node made of constants by + - * / and integer powers; None when it is not, or too long."""
    return fold(node, lambda part, args: rational_part(part, args, bits))


def rational_part(node: Node, args: Sequence[Fraction | None], bits: int = 4096) -> Fraction | None:
    """The exact value of one operation on exact values."""
    if node.op == "constant":
        return number_of(node)
    given = [arg for arg in args if arg is not None]
    if len(given) != len(args) or not args:
        return None
    first, second = given[0], number_of(node) if node.op == "power" else given[-1]
    result: Fraction | None = None
    if node.op in _EXACT:
        result = _EXACT[node.op](first, second)
    elif node.op == "div" and second != 0:
        result = first / second
    elif node.op in ("pow", "power") and second.denominator == 1 and (first != 0 or second >= 0):
        size = max(first.numerator.bit_length(), first.denominator.bit_length())
        if size * abs(second) <= bits:
            result = first ** int(second)
    return result if result is not None and is_short(result, bits) else None


_EXACT: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "neg": lambda a, _: -a,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}


def ordered(outputs: Iterable[Node]) -> list[Node]:
    """Every node below the outputs once, arguments before what uses them, without recursion."""
    done: dict[Node, None] = {}
    stack: list[tuple[Node, Iterator[Node]]] = []
    opened: set[Node] = set()
    for output in outputs:
        if output in opened:
            continue
        opened.add(output)
        stack.append((output, iter(output.args)))
        while stack:
            node, rest = stack[-1]
            for arg in rest:
                if arg not in opened:
                    opened.add(arg)
                    stack.append((arg, iter(arg.args)))
                    break
            else:
                done[node] = None
                stack.pop()
    return list(done)


def fold(node: Node, rule: Callable[[Node, list[Made]], Made]) -> Made:
    """What the rule makes of a node from what it made of its arguments; each node below is asked about once."""
    made: dict[Node, Made] = {}
    for part in ordered([node]):
        made[part] = rule(part, [made[arg] for arg in part.args])
    return made[node]


def substituted(node: Node, values: Mapping[str, Node]) -> Node:
    """The node with variables replaced."""

    def rule(part: Node, args: list[Node]) -> Node:
        return values.get(str(part.value), part) if part.op == "variable" else Node(part.op, args, part.value)

    return fold(node, rule)


def with_differences(node: Node) -> Node:
    """The node with a - b for a + -b: the same numbers, as they would be written by hand."""

    def rule(part: Node, args: list[Node]) -> Node:
        taken = _opposite(args[1]) if part.op == "add" else None
        return Node(part.op, args, part.value) if taken is None else Node("sub", (args[0], taken))

    return fold(node, rule)


def _opposite(node: Node) -> Node | None:
    """What a minus sign is written before, if one is."""
    if node.op == "constant" and number_of(node) < 0:
        return constant(-number_of(node))
    first = _opposite(node.args[0]) if node.op == "mul" else None
    return node.args[0] if node.op == "neg" else None if first is None else Node("mul", (first, node.args[1]))


def variables_of(outputs: Iterable[Node]) -> tuple[str, ...]:
    """The names of the variables below the outputs, in order of first appearance."""
    return tuple(str(node.value) for node in ordered(outputs) if node.op == "variable")


@dataclass(frozen=True, init=False, repr=False)
class Expression:
    """A target with one or more outputs in named variables; equal graphs with equal variables are equal."""

    outputs: tuple[Node, ...]
    variables: tuple[str, ...]

    def __init__(self, outputs: Node | Iterable[Node], variables: Sequence[str] | None = None) -> None:
        nodes = (outputs,) if isinstance(outputs, Node) else tuple(outputs)
        if not nodes:
            raise ExpressionError("An expression without an output was asked for; give at least one.")
        found = variables_of(nodes)
        names = found if variables is None else tuple(variables)
        missing = [name for name in found if name not in names]
        if missing:
            raise ExpressionError(
                f"The expression uses {', '.join(missing)}, but its variables were given as "
                f"{', '.join(names) or 'none'}; add the missing names or correct the spelling."
            )
        check_names(names)  # else the text of the expression would say something else
        if len(set(names)) != len(names):
            raise ExpressionError(f"A variable is named twice in {', '.join(names)}; name each once.")
        object.__setattr__(self, "outputs", nodes)
        object.__setattr__(self, "variables", names)

    @property
    def text(self) -> list[str]:
        """Canonical text of each output; `parse(expression.text, expression.variables)` is this expression."""
        return [str(node) for node in self.outputs]

    def __str__(self) -> str:
        return self.text[0] if len(self.outputs) == 1 else "[" + ", ".join(self.text) + "]"

    def __repr__(self) -> str:
        return f"Expression({str(self)!r}, variables={self.variables!r})"

    @property
    def node(self) -> Node:
        """The output of an expression that has one."""
        if len(self.outputs) != 1:
            raise ExpressionError(f"One output was asked of an expression that has {len(self.outputs)}.")
        return self.outputs[0]

    @property
    def variable(self) -> str:
        """The variable of an expression that has at most one (x when it has none)."""
        if len(self.variables) > 1:
            raise ExpressionError(
                f"A function of one variable was asked for, but {self} has the variables {', '.join(self.variables)}."
            )
        return self.variables[0] if self.variables else "x"
