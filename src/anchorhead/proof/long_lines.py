"""Lines of many terms: the bounds of `flow.py` in floats rather than balls, which is a hundred times as fast.

Let u = 2^-53, the unit roundoff of float64. A product of floats is rounded once, |fl(pq) - pq| <= u|pq| + 2^-1075, and
math.fsum adds n products exactly and rounds once. So with P the sum of the |fl(p_k q_k)|,

    |fsum - sum p_k q_k| <= 2u P + u|fsum| + n 2^-1074

where a factor may be the rounded sum or difference of two floats, for another uP. Each bound here adds 2^-50 P = 8u P,
and n 2^-1074 where a product may have underflowed; nothing is added where all factors are zero, so that what has no
error keeps none. Python's floats and fsum are the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add, mul

from anchorhead.circuit.line import Line
from anchorhead.circuit.rows import Row
from anchorhead.circuit.step import Pair

LONG = 32
"""Terms from which on a line is long; of shorter ones the balls keep exactly what is exact."""
SLACK = 2.0**-50
LEAST = 2.0**-1074


@dataclass(frozen=True)
class LongLine:
    """A line whose numbers are floats, and the row that stands for it: wires, c, |c'| and |c' - c|, empty if all 0.

    biases: that of the line, |that of the row|, and how far they are apart.
    """

    wires: list[int]
    exact: list[float]
    kept: list[float]
    off: list[float]
    biases: tuple[float, float, float]

    @classmethod
    def of(cls, line: Line, row: Row | None) -> LongLine | None:
        """None where the line is short, has numbers that are no floats, or the row has wires that the line has not."""
        if len(line.terms) < LONG:
            return None
        bias = 0.0 if line.bias == 0 else line.bias
        exact = [c for c in line.terms.values() if isinstance(c, float)]
        if len(exact) < len(line.terms) or not isinstance(bias, float):
            return None
        wires = list(line.terms)
        if row is None:
            return cls(wires, exact, [], [], (bias, 0.0, 0.0))
        if not row.terms.keys() <= line.terms.keys():
            return None
        stored = [row.terms.get(wire, 0.0) for wire in wires]
        off = [] if stored == exact else [abs(a - b) for a, b in zip(stored, exact, strict=True)]
        return cls(wires, exact, list(map(abs, stored)), off, (bias, abs(row.bias), abs(row.bias - bias)))

    def range(self, ranges: Sequence[Pair]) -> Pair:
        """Floats around all values of the line for wires in these ranges."""
        pairs = [ranges[wire] for wire in self.wires]
        low = [a if c >= 0 else b for c, (a, b) in zip(self.exact, pairs, strict=True)]
        high = [b if c >= 0 else a for c, (a, b) in zip(self.exact, pairs, strict=True)]
        return self._end(low, -1.0), self._end(high, 1.0)

    def _end(self, ends: list[float], side: float) -> float:
        products = [*map(mul, self.exact, ends), self.biases[0]]
        total = math.fsum(products)
        if not any(ends):
            return total
        room = SLACK * math.fsum(map(abs, products)) + len(products) * LEAST
        return math.nextafter(total + side * room, side * math.inf)

    def error(self, ranges: Sequence[Pair], errors: Sequence[float]) -> tuple[float, float]:
        """At most what the row errs by in exact arithmetic, and at most the sum of |c'|(|w| + e_w), with |bias'|."""
        own = [errors[wire] for wire in self.wires]
        if max(own) == math.inf:
            return math.inf, math.inf
        largest = [max(abs(a), abs(b)) for a, b in (ranges[wire] for wire in self.wires)]
        error = _above([*self.kept, 1.0], [*own, self.biases[2]])
        if self.off:
            error = _above([1.0, *self.off], [error, *largest])
        return error, _above([*self.kept, 1.0], [*map(add, largest, own), self.biases[1]])


def _above(sizes: Sequence[float], factors: Sequence[float]) -> float:
    """At least the sum of the products, of numbers that are not negative; zero where all factors are."""
    if not any(factors):
        return 0.0
    return math.nextafter(math.fsum(map(mul, sizes, factors)) * (1 + SLACK) + len(factors) * LEAST, math.inf)
