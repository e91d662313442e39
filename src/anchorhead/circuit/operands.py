"""Operands: what a value is on the way to a circuit, a line or a function of one line that no step computes yet."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from anchorhead.circuit.apply import U
from anchorhead.circuit.line import Line
from anchorhead.enclosure.balls import enclose
from anchorhead.enclosure.exact import Number, as_ball, as_node, over, plus, times
from anchorhead.expression.graph import Node, constant, fold, ordered, rational
from anchorhead.expression.parse import parse
from anchorhead.expression.primitives import add, mul

LARGEST_FUNCTION = 150
"""Operations that a fused function may be written with: beyond that, it is better to have a head for each part."""


KINKED = frozenset(
    "abs relu relu6 leaky_relu prelu rrelu elu celu selu min max clip hardtanh hardsigmoid hardswish softshrink".split()
)


@dataclass(frozen=True)
class Pending:
    """function(argument), a function of the variable u that no step computes yet."""

    function: Node
    argument: Line
    label: str

    def __hash__(self) -> int:
        return hash((self.argument, self.function))


Operand = Line | Pending


def is_smooth(function: Node) -> bool:
    """Whether no operation below has a kink."""
    return not any(part.op in KINKED for part in ordered([function]))


def affine_parts(function: Node) -> tuple[Number, Number, Number, Node | None]:
    """(a, b, c, core) with function = a·u + b + c·core by its form; core is None where nothing is left."""
    slope: Number = 0
    bias: Number = 0
    rest: list[tuple[Number, Node]] = []
    stack: list[tuple[Number, Node]] = [(1, function)]
    while stack:
        c, node = stack.pop()
        left, right = (node.args[0], node.args[-1]) if node.args else (node, node)
        exact = rational(node)
        if exact is not None:
            bias = plus(bias, times(c, exact))
        elif node is U:
            slope = plus(slope, c)
        elif node.op in ("add", "sub"):
            stack += [(times(c, -1) if node.op == "sub" else c, right), (c, left)]
        elif node.op == "neg":
            stack.append((times(c, -1), left))
        elif node.op == "mul" and (number := rational(left)) is not None:
            stack.append((times(c, number), right))
        elif node.op == "mul" and (number := rational(right)) is not None:
            stack.append((times(c, number), left))
        elif node.op == "div" and (number := rational(right)):
            stack.append((over(c, number), left))
        else:
            rest.append((c, node))
    if len(rest) <= 1:
        factor, core = rest[0] if rest else (1, None)
        return slope, bias, factor, core
    total = as_node(0)
    for c, node in rest:
        total = add(total, mul(as_node(c), node))
    return slope, bias, 1, total


def written_length(node: Node) -> int:
    """How many operations the node is written with, shared ones counted as often as they are written."""
    return fold(node, lambda _, lengths: 1 + sum(lengths))


@lru_cache(maxsize=10_000)
def canonical(function: Node) -> Node:
    """The function as its own text is read: what a file says is then the same node."""
    return parse(str(function), ("u",)).node


def folded(node: Node) -> Node:
    """A closed formula as the rational number that it is, where that can be seen."""
    exact = rational(node)
    if exact is None and enclose(node, {}) == 0:
        exact = Fraction(0)
    return node if exact is None else constant(exact)


def finite(number: Number) -> Number:
    """The number, unless it is a formula such as 1/0: times zero, it would be gone without a word."""
    if isinstance(number, Node):
        as_ball(number)
    return number


def is_constant(operand: Operand) -> bool:
    return isinstance(operand, Line) and operand.is_constant
