"""Sums of squares of centred lines, such as the variance in a layer norm: what the numbers that were centred allow.

Let v = b + sum c_j x_j² with c_j > 0 and lines x_j whose weighted sum vanishes identically, sum c_j x_j = 0: deviations
from a mean. Then for any number s at all, whatever it depends on,

    sum c_j (x_j + s)²  =  sum c_j x_j² + 2 s sum c_j x_j + s² sum c_j  >=  sum c_j x_j²

so v <= b + sum c_j max|x_j + s|² for every line s. With x_j = y_j - mean(y) the line s = mean(y) - m gives y_j - m
back: numbers in an interval of width W have a variance of at most W²/4, m its middle, where the intervals of the x_j,
which forget that they share their mean, allow W²(1 - 1/n)². Without being told of y it is found so: of each wire s
takes minus the median of its coefficients in the x_j, which makes the sum of their absolute values least, and the
constant is minus the mean of the middles. Any s is right; a better one only bounds better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flint import arb

from anchorhead.circuit.apply import SQUARES, Apply
from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.line import Line, combination
from anchorhead.circuit.step import Pair
from anchorhead.enclosure.exact import Number, as_ball, as_float, sign_of, times
from anchorhead.enclosure.precision import above

MOST_TERMS = 1 << 14
"""Of all centred lines together; more take longer to add up than they are worth."""


@dataclass(frozen=True)
class Variance:
    """bias + sum of coefficient · x², where `moved` are the lines x + s for one s."""

    bias: Number
    coefficients: tuple[Number, ...]
    moved: tuple[Line, ...]

    def most(self, ranges: list[Pair]) -> float:
        """An upper bound, for moved lines in these intervals; their middles give the constant of s."""
        weights = [as_float(c) for c in self.coefficients]
        middles = [low / 2 + high / 2 for low, high in ranges]
        centre = sum(w * m for w, m in zip(weights, middles, strict=True)) / sum(weights)
        total = as_ball(self.bias)
        for c, (low, high) in zip(self.coefficients, ranges, strict=True):
            size = max(above(abs(arb(low) - centre)), above(abs(arb(high) - centre)))
            total = total + as_ball(c) * arb(size) ** 2
        return above(total)


def squares(circuit: Circuit) -> dict[int, Line]:
    """The wires of a circuit that are squares, and the lines that they are squares of."""
    return {start: step.argument for step, start in zip(circuit.steps, circuit.starts, strict=True)
            if isinstance(step, Apply) and step.function in SQUARES}  # fmt: skip


def variance_of(line: Line, known: Mapping[int, Line]) -> Variance | None:
    """The line as a sum of squares of centred lines, if it is one; `known` are the wires that are squares."""
    if len(line.terms) < 2 or not line.terms.keys() <= known.keys():
        return None
    if any(sign_of(c) != 1 for c in line.terms.values()):
        return None
    entries, coefficients = [known[wire] for wire in line.terms], tuple(line.terms.values())
    if sum(len(entry.terms) for entry in entries) > MOST_TERMS:
        return None
    total = combination(coefficients, entries)
    if not total.is_constant or total.bias != 0:
        return None
    wires = list(dict.fromkeys(wire for entry in entries for wire in entry.terms))
    shift = Line({wire: times(-1, _median([entry.terms.get(wire, 0) for entry in entries])) for wire in wires})
    return Variance(line.bias, coefficients, tuple(entry + shift for entry in entries))


def _median(numbers: list[Number]) -> Number:
    return sorted(numbers, key=as_float)[len(numbers) // 2]
