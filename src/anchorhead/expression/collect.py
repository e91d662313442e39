"""The difference of two formulas without what they share: addends are collected with exact coefficients.

A sum is a combination of nodes with rational coefficients; nodes are unique, so equal addends meet, and what cancels is
gone before anything is enclosed: sin(3*x*y) + e - (sin(3*x*y) + 1.001*e) is -0.001*e. What is left may be defined where
the two are not.
"""

from __future__ import annotations

from fractions import Fraction

from anchorhead.expression.graph import Node, constant, ordered, rational
from anchorhead.expression.primitives import add, primitive, scale, sub


def difference(left: Node, right: Node) -> Node:
    """left - right, in primitives."""
    whole = sub(primitive(left), primitive(right))
    shares: dict[Node, Fraction] = {whole: Fraction(1)}
    kept: dict[Node, Fraction] = {}
    for node in reversed(ordered([whole])):
        share = shares.pop(node, Fraction(0))
        for part, factor in _addends(node):
            into = kept if part is node else shares
            into[part] = into.get(part, Fraction(0)) + share * factor
    total = constant(0)
    for node, share in kept.items():
        if share:
            total = add(total, scale(share, node))
    return total


def _addends(node: Node) -> list[tuple[Node, Fraction]]:
    """The parts of which a node is a sum, and their factors; itself, if it is none."""
    if node.op == "add":
        return [(arg, Fraction(1)) for arg in node.args]
    if node.op == "neg":
        return [(node.args[0], Fraction(-1))]
    if node.op == "mul":
        for one, other in (node.args, node.args[::-1]):
            factor = rational(one)
            if factor is not None:
                return [(other, factor)]
    return [(node, Fraction(1))]
