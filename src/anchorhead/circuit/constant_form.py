"""A circuit whose steps are functions of one line each, so that heads with constant values are enough for it.

A program in a prompt (`in_context/program.py`) can hold scores that multiply what a token has, and constants as values,
but no value that is multiplied by what the token has. So products are squares and maxima absolute values:

    φ(u)·v = ((a/s + s v)/2)² - ((a/s - s v)/2)²,  a = φ(u),      max(u, v) = (u + v)/2 + |u - v|/2

and a mean over tokens stays one, of a line of them. These are identities for every s > 0; s is the power of two for
which a/s and s·v are about as large, so that the squares are no larger than the product can be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce

from anchorhead.circuit.apply import SQUARE, Apply, U
from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.largest import Largest
from anchorhead.circuit.line import Line, combination
from anchorhead.circuit.pool import Pool
from anchorhead.circuit.step import Pair, Step, size
from anchorhead.enclosure.variation import value_range
from anchorhead.errors import StructureError
from anchorhead.expression.graph import Node

ABSOLUTE = Node("abs", (U,))
HALF = Fraction(1, 2)


def constant_form(circuit: Circuit, arguments: Sequence[Sequence[Pair]]) -> Circuit:
    """The same function, all of whose steps are `Apply`, or means; arguments: for each step the ranges of its lines."""
    form = _Form(circuit)
    for step, ranges in zip(circuit.steps, arguments, strict=True):
        form.take(step, ranges)
    outputs = tuple(form.collected(form.read(line)) for line in circuit.outputs)
    return replace(circuit, steps=tuple(form.steps), outputs=outputs)


class _Form:
    """The new steps, and for every wire of the old circuit the line of new ones that it is."""

    def __init__(self, circuit: Circuit) -> None:
        self.steps: list[Step] = []
        self.first = len(circuit.inputs)
        self.lines: list[Line] = [Line({k: 1}) for k in range(self.first)]
        self.means: set[int] = set()

    def read(self, line: Line) -> Line:
        """A line of old wires in new ones."""
        return combination(list(line.terms.values()), [self.lines[wire] for wire in line.terms], line.bias)

    def take(self, step: Step, ranges: Sequence[Pair]) -> None:
        """One old step."""
        factors = step.factors()
        if factors is not None:
            function, u, v = factors
            value = self.read(u) if function is U else self.apply(function, self.read(u), step.label)
            self.lines.append(self._product(function, value, self.read(v), ranges, step.label))
        elif isinstance(step, Largest):
            lines = [self.read(line) for line in step.lines()]
            self.lines.append(reduce(lambda a, b: self._larger(a, b, step.label), lines))
        elif isinstance(step, Pool) and step.is_mean:
            self.steps.append(step.mapped(self.read))
            self.means.add(self.first + len(self.steps) - 1)
            self.lines.append(Line({self.first + len(self.steps) - 1: 1}))
        else:
            raise StructureError(
                f"{step.label or step.name}: the target's own attention cannot be a program, whose keys are constants. "
                "Compile the rest of the target by itself."
            )

    def collected(self, line: Line) -> Line:
        """An output, which instructions add up: what it has of means is a step of the identity."""
        means = Line({wire: c for wire, c in line.terms.items() if wire in self.means})
        if not means.terms:
            return line
        rest = Line({wire: c for wire, c in line.terms.items() if wire not in self.means}, line.bias)
        return rest + self.apply(U, means, "what an output has of means")

    def apply(self, function: Node, argument: Line, label: str) -> Line:
        """function(argument) as one more step."""
        self.steps.append(Apply(function, argument, label))
        return Line({self.first + len(self.steps) - 1: 1})

    def _product(self, function: Node, a: Line, v: Line, ranges: Sequence[Pair], label: str) -> Line:
        if v.is_constant:
            return a.scaled(v.bias)
        values = ranges[0] if function is U else value_range(function, *ranges[0])
        scale = _balance(size(values or (1.0, 1.0)), size(ranges[-1]))
        half, own = a.scaled(HALF / scale), v.scaled(HALF * scale)
        return self.apply(SQUARE, half + own, label) + -self.apply(SQUARE, half + -own, label)

    def _larger(self, a: Line, b: Line, label: str) -> Line:
        return (a + b).scaled(HALF) + self.apply(ABSOLUTE, a + -b, label).scaled(HALF)


def _balance(first: float, second: float) -> Fraction:
    """The power of two s for which first/s and s·second are about the same."""
    if not (0 < first < math.inf and 0 < second < math.inf):
        return Fraction(1)
    return Fraction(2) ** ((math.frexp(first)[1] - math.frexp(second)[1]) // 2)
