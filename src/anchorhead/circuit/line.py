"""Lines: affine combinations of wires with exact coefficients, which everything affine in a target is folded into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from anchorhead.enclosure.exact import Number, over, plus, times
from anchorhead.expression.graph import Node


class Line:
    """bias + sum of coefficient · wire; never changes, and is equal to a line with the same numbers."""

    __slots__ = ("_hash", "bias", "terms")

    def __init__(self, terms: Mapping[int, Number], bias: Number = 0) -> None:
        self.terms: dict[int, Number] = {wire: c for wire, c in terms.items() if c != 0}
        self.bias = bias
        self._hash: int | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((frozenset(self.terms.items()), self.bias))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Line) and self.bias == other.bias and self.terms == other.terms

    def __repr__(self) -> str:
        return f"Line({self.terms}, {self.bias})"

    @property
    def is_constant(self) -> bool:
        return not self.terms

    @property
    def wire(self) -> int | None:
        """The wire that the line is, if it is one and no more."""
        if len(self.terms) != 1 or self.bias != 0:
            return None
        ((wire, c),) = self.terms.items()
        return wire if c == 1 else None

    def scaled(self, factor: Number) -> Line:
        if factor == 1:
            return self
        return Line({w: times(c, factor) for w, c in self.terms.items()}, times(self.bias, factor))

    def shifted(self, by: Number) -> Line:
        return Line(self.terms, plus(self.bias, by))

    def on_wires(self, new: Mapping[int, int]) -> Line:
        """The same line where its wires have other numbers."""
        return Line({new[wire]: c for wire, c in self.terms.items()}, self.bias)

    def __add__(self, other: Line) -> Line:
        terms = dict(self.terms)
        for wire, c in other.terms.items():
            terms[wire] = plus(terms[wire], c) if wire in terms else c
        return Line(terms, plus(self.bias, other.bias))

    def __neg__(self) -> Line:
        return self.scaled(-1)

    def in_terms_of(self, other: Line) -> tuple[Number, Number] | None:
        """(a, b) with self = a·other + b, if there are such numbers; both lines have terms."""
        if self.terms.keys() != other.terms.keys():
            return None
        if self.terms == other.terms:
            return 1, plus(self.bias, times(-1, other.bias))
        ratios = [over(c, other.terms[wire]) for wire, c in self.terms.items()]
        ratio = ratios[0]
        if any(isinstance(found, Node) or found != ratio for found in ratios):
            return None
        return ratio, plus(self.bias, times(times(-1, ratio), other.bias))


def combination(coefficients: Sequence[Number], lines: Sequence[Line], bias: Number = 0) -> Line:
    """bias + sum of coefficient · line, exactly."""
    wires = [line.wire for line in lines]
    if None not in wires and len(set(wires)) == len(wires):
        return Line(dict(zip(cast(list[int], wires), coefficients, strict=True)), bias)
    terms: dict[int, Number] = {}
    for c, line in zip(coefficients, lines, strict=True):
        if c == 0:
            continue
        for wire, inner in line.terms.items():
            product = times(c, inner)
            terms[wire] = plus(terms[wire], product) if wire in terms else product
        if line.bias != 0:
            bias = plus(bias, times(c, line.bias))
    return Line(terms, bias)
