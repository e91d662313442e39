"""One form for formulas that differ in how they are written: `sin(3*x*y)`, `sin(3*(y*x))` and `sin(y*x/(1/3))`.

In primitives a formula is a sum of products with rational coefficients, and its form the set of them. A product is a
set of factors with rational exponents, and a factor a variable or an operation on forms. Sums are multiplied out where
one of two has a single addend; a sum that is a factor has one of its two signs, so that (y - x)**2 is (x - y)**2. A
maximum is that of a set, maxima among it by theirs; a minimum is minus the maximum of
what has the other sign, and |u| is a matter of u and -u. Two formulas of one form are the same function wherever both
are defined; two of other forms may be, too.
"""

from __future__ import annotations

from collections.abc import Hashable
from fractions import Fraction

from anchorhead.expression.graph import Node, fold, is_short, number_of
from anchorhead.expression.primitives import primitive

Product = frozenset[tuple[Hashable, Fraction]]
"""Factors and their exponents."""
Form = frozenset[tuple[Product, Fraction]]
"""Products and their coefficients."""
LARGEST = 64
"""Exponents up to which powers of products are powers of their factors."""


def form(node: Node) -> Form:
    """The form of a formula."""
    return fold(primitive(node), _form)


def _form(node: Node, args: list[Form]) -> Form:
    if node.op == "constant":
        return _sum([(frozenset(), number_of(node))])
    if node.op == "add":
        return _sum([part for arg in args for part in arg])
    if node.op == "neg":
        return _minus(args[0])
    if node.op == "mul" and min(map(len, args)) <= 1:
        one, other = args
        return _sum([(_times(a, b), c * d) for a, c in one for b, d in other])
    if node.op == "mul":
        (one, sign), (other, turned) = map(_signed, args)
        found = _power(one, Fraction(2)) if one == other else _whole(("mul", frozenset((one, other))))
        return found if sign == turned else _minus(found)
    if node.op == "power":
        return _power(args[0], number_of(node))
    if node.op == "max":
        return _largest(args)
    if node.op == "min":
        return _minus(_largest([_minus(arg) for arg in args]))
    if node.op == "abs":
        return _whole((node.op, frozenset([args[0], _minus(args[0])])))
    return _whole((node.op, node.value, *args))


def _minus(found: Form) -> Form:
    return frozenset((product, -share) for product, share in found)


def _largest(args: list[Form]) -> Form:
    return _whole(("max", frozenset().union(*map(_among, args))))


def _among(found: Form) -> frozenset[Form]:
    """What a form is the largest of; of what is no maximum, itself."""
    match [(list(product), share) for product, share in found]:
        case [([(("max", frozenset() as inner), 1)], 1)]:
            return inner
    return frozenset([found])


def _power(base: Form, exponent: Fraction) -> Form:
    """Small whole powers of one product are powers of its factors; of all else the base is a factor."""
    if len(base) == 1 and exponent.denominator == 1 and abs(exponent) <= LARGEST:
        [(product, share)] = base
        if is_short(share, LARGEST):
            return _sum([(frozenset((factor, e * exponent) for factor, e in product), share ** int(exponent))])
    if len(base) > 1 and exponent.denominator == 1:
        base, sign = _signed(base)
        return _sum([(frozenset([(base, exponent)]), Fraction(sign if exponent % 2 else 1))])
    return _sum([(frozenset([(base, exponent)]), Fraction(1))])


def _signed(found: Form) -> tuple[Form, int]:
    """A form or minus it, whichever it is for both, and the sign; itself where nothing tells them apart."""
    other = _minus(found)
    return (other, -1) if hash(other) < hash(found) else (found, 1)


def _sum(parts: list[tuple[Product, Fraction]]) -> Form:
    total: dict[Product, Fraction] = {}
    for product, share in parts:
        total[product] = total.get(product, Fraction(0)) + share
    return frozenset((product, share) for product, share in total.items() if share)


def _times(one: Product, other: Product) -> Product:
    total = dict(one)
    for factor, exponent in other:
        total[factor] = total.get(factor, Fraction(0)) + exponent
    return frozenset((factor, exponent) for factor, exponent in total.items() if exponent)


def _whole(factor: Hashable) -> Form:
    return _sum([(frozenset([(factor, Fraction(1))]), Fraction(1))])
