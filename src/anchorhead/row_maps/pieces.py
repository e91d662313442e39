"""Heads that are exactly piecewise polynomial under their map: weights are affine in x between rational places."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from anchorhead.head.head import Head
from anchorhead.proof.curve import Part
from anchorhead.proof.piecewise import Piecewise
from anchorhead.row_maps.row_map import MappedCurve


class Line(NamedTuple):
    """slope·x + level, exactly."""

    slope: Fraction
    level: Fraction

    def at(self, x: Fraction) -> Fraction:
        return self.slope * x + self.level

    def times(self, other: Line) -> list[Fraction]:
        """The coefficients of the product."""
        crossed = self.slope * other.level + self.level * other.slope
        return [self.level * other.level, crossed, self.slope * other.slope]


def score_lines(head: Head) -> list[Line]:
    """Every key's score."""
    pairs = zip(head.slopes, head.intercepts, head.gates, strict=True)
    return [Line(Fraction(s) + Fraction(g), Fraction(c) + Fraction(b)) for s, c, (g, b) in pairs]


def value_lines(head: Head) -> list[Line]:
    """Every key's value."""
    return [Line(Fraction(g), Fraction(c)) for c, g in zip(head.constants, head.gains, strict=True)]


def summed(terms: Iterable[list[Fraction]]) -> list[Fraction]:
    """The sum of polynomials of degree two."""
    result = [Fraction(0)] * 3
    for term in terms:
        result = [a + b for a, b in zip(result, term, strict=True)]
    return result


class PiecesCurve(MappedCurve):
    """A head that is a `Piecewise` under its map."""

    @cached_property
    def exact(self) -> Piecewise:
        """That."""
        return Piecewise.exactly(*self.pieces())

    @abstractmethod
    def pieces(self) -> tuple[list[Fraction], list[list[Fraction]]]:
        """Breaks, and the polynomials between them."""

    def parts(self, low: float, high: float) -> Sequence[Part]:
        return self.exact.parts(low, high)

    def marks(self) -> Sequence[float]:
        return self.exact.marks()
