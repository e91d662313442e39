"""Norms: steps that divide a line by the root of a sum of squares among which its own is, as one function of all lines.

A layer norm or an RMS norm is traced as squares q_j = x_j² of lines x_j, a line v = b + sum c_j q_j with b >= 0 and
c_j > 0, and, for each i, a step y_i = a x_i/sqrt(v), or a product of x_i and of one step 1/sqrt(v) that all share.
Followed one by one, range and error of v and those of x_i forget each other. Together, on a box of intervals for the
x_j, with σ = sqrt(v) and a = 1:

*Range.* y_i = x_i/sqrt(c_i x_i² + s) with s = b + sum over j ≠ i of c_j x_j². It grows with x_i, and its absolute value
falls with s; so its ends are at the ends of x_i, with the least or the largest s. And |y_i| <= 1/sqrt(c_i): the root of
the number of features.

*Slopes.*  ∂y_i/∂x_i = (1 - c_i y_i²)/σ,  ∂y_i/∂x_j = -c_j y_i y_j/σ  for j ≠ i,  and  sum c_j y_j² <= 1. So where the
x_j move by at most e_j within the box, with Y_j the largest |y_j| and σ the least root on it, y_i moves by at most

    (e_i + Y_i min(sum c_j Y_j e_j, sqrt(sum c_j e_j²)))/σ            sums over j ≠ i; the root by Cauchy-Schwarz

*A sum that is off.* Where v is replaced by v + η with |η| <= θv, θ < 1, y_i moves by at most Y_i((1 - θ)^(-1/2) - 1).

*The network* computes wires w' where the target has w. Let x'_j be the line x_j of w' in exact arithmetic, which is
within e_j = sum |coefficient| e_w of x_j: y_i(x') is as near to y_i(x) as was just said. What the network has for y_i
differs from y_i(x') by what its squares are off, which is an η, and by what root and quotient add: the errors that
follow step by step if the wires before each are taken for the target's own (`proof/norms.py`). So errors before a norm
arrive divided by σ, and no longer multiplied by the slope of a root that lies elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flint import arb

from anchorhead.circuit.apply import SQUARES, Apply, Times, U
from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.line import Line
from anchorhead.circuit.step import Pair, size
from anchorhead.enclosure.exact import Number, as_ball, sign_of, times
from anchorhead.enclosure.precision import above, below, upper
from anchorhead.expression.parse import parse

INVERSE_ROOTS = tuple(parse(text, ("u",)).node for text in ("rsqrt(u)", "1/sqrt(u)", "u**(-1/2)", "u**(-0.5)"))


@dataclass(frozen=True)
class Norm:
    """y = factor · x_place/sqrt(bias + sum of coefficient · x²), the x as they are in the squares' steps."""

    squares: tuple[int, ...]
    """The numbers of the steps that are the squares."""
    coefficients: tuple[Number, ...]
    bias: Number
    place: int
    factor: Number
    root: int | None = None
    """The number of the step 1/sqrt(v), where that is one by itself."""

    def range(self, entries: Sequence[Pair]) -> Pair:
        """Of y, for entries x in these intervals."""
        low, high = self._range(self.place, entries)
        ends = [as_ball(self.factor) * end for end in (low, high)]
        return min(map(below, ends)), max(map(above, ends))

    def moved(self, entries: Sequence[Pair], errors: Sequence[float]) -> float:
        """By how much y moves where each entry moves by at most its error, within these intervals."""
        slopes, scale, i = self.slopes(entries), self._scale(entries), self.place
        others = [j for j in range(len(errors)) if j != i]
        along = sum((arb(slopes[j]) * errors[j] for j in others), arb(0))
        squares = sum((as_ball(self.coefficients[j]) * arb(errors[j]) ** 2 for j in others), arb(0))
        across = scale * self.sizes(entries)[i] * squares.sqrt()
        return upper(scale * errors[i] + min(upper(along), upper(across)))

    def shifted(self, entries: Sequence[Pair], squares: Sequence[float]) -> float:
        """By how much y moves where each square is off by so much; infinite where the sum may vanish."""
        least, _ = self._sum(entries, -1)
        change = sum((as_ball(c) * e for c, e in zip(self.coefficients, squares, strict=True)), arb(0))
        share = change / arb(max(below(least), 0.0))
        if not share < 1:
            return math.inf
        return upper(abs(as_ball(self.factor)) * self.sizes(entries)[self.place] * ((1 - share).rsqrt() - 1))

    def slope_by_sum(self, entries: Sequence[Pair]) -> float:
        """A bound on the absolute value of y's derivative by v, y/2v."""
        least, _ = self._sum(entries, -1)
        size_of_y = abs(as_ball(self.factor)) * self.sizes(entries)[self.place]
        return upper(size_of_y / (2 * arb(max(below(least), 0.0))))

    def slopes(self, entries: Sequence[Pair]) -> list[float]:
        """Bounds on the absolute value of y's derivative by each entry."""
        scale, sizes = self._scale(entries), self.sizes(entries)
        most = [as_ball(c) * sizes[self.place] * y for c, y in zip(self.coefficients, sizes, strict=True)]
        return [upper(scale * (arb(1) if j == self.place else part)) for j, part in enumerate(most)]

    def _scale(self, entries: Sequence[Pair]) -> arb:
        """|factor|/σ at the least σ; not finite where it may vanish."""
        least = below(self._sum(entries, -1)[0])
        return abs(as_ball(self.factor)) / arb(max(least, 0.0)).sqrt()

    def sizes(self, entries: Sequence[Pair]) -> list[float]:
        """The largest |y_j| for each entry, with a factor of one."""
        return [size(self._range(j, entries)) for j in range(len(entries))]

    def _sum(self, entries: Sequence[Pair], without: int) -> tuple[arb, arb]:
        """Balls around the least and the largest of bias + sum of coefficient · x², one entry left out."""
        least = most = as_ball(self.bias)
        for j, (c, (low, high)) in enumerate(zip(self.coefficients, entries, strict=True)):
            if j != without:
                near = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
                least = least + as_ball(c) * arb(near) ** 2
                most = most + as_ball(c) * arb(size((low, high))) ** 2
        return least, most

    def _range(self, j: int, entries: Sequence[Pair]) -> Pair:
        c, (least, most) = as_ball(self.coefficients[j]), self._sum(entries, j)
        limit = upper(c.rsqrt())

        def end(x: float, others: arb, otherwise: float) -> arb:
            found = arb(x) * (c * arb(x) ** 2 + others).rsqrt() if x else arb(0)
            return found if found.is_finite() else arb(otherwise)

        low, high = entries[j]
        ends = end(low, most if low >= 0 else least, -limit), end(high, least if high >= 0 else most, limit)
        return max(below(ends[0]), -limit), min(above(ends[1]), limit)


def norms(circuit: Circuit) -> dict[int, Norm]:
    """The steps of a circuit that are norms, by their numbers."""
    functions = {start: i for i, (step, start) in enumerate(zip(circuit.steps, circuit.starts, strict=True))
                 if isinstance(step, Apply)}  # fmt: skip
    found = ((i, _norm(circuit, functions, step)) for i, step in enumerate(circuit.steps) if isinstance(step, Times))
    return {i: norm for i, norm in found if norm is not None}


def _norm(circuit: Circuit, functions: dict[int, int], step: Times) -> Norm | None:
    if step.function in INVERSE_ROOTS:
        return _quotient(circuit, functions, step.argument, step.partner)
    if step.function is not U:
        return None
    for line, partner in ((step.argument, step.partner), (step.partner, step.argument)):
        wire = next(iter(line.terms), -1)
        if len(line.terms) == 1 and line.bias == 0 and wire in functions and wire not in partner.terms:
            root = circuit.steps[functions[wire]]
            if isinstance(root, Apply) and root.function in INVERSE_ROOTS:
                found = _quotient(circuit, functions, root.argument, partner)
                factor = line.terms[wire]
                if found is not None and all(wire not in entry.terms for entry in _entries(circuit, found.squares)):
                    return replace(found, root=functions[wire], factor=times(found.factor, factor))
    return None


def _entries(circuit: Circuit, squares: Sequence[int]) -> list[Line]:
    return [next(circuit.steps[k].lines()) for k in squares]


def _quotient(circuit: Circuit, functions: dict[int, int], total: Line, partner: Line) -> Norm | None:
    """partner/sqrt(total) as a norm, if it is one."""
    if not total.terms or not total.terms.keys() <= functions.keys():
        return None
    numbers = tuple(functions[wire] for wire in total.terms)
    if any(getattr(circuit.steps[k], "function", None) not in SQUARES for k in numbers):
        return None
    entries = _entries(circuit, numbers)
    if any(wire in total.terms for line in [partner, *entries] for wire in line.terms):
        return None  # a square of a square: what is exact and what is computed would not be told apart
    if sign_of(total.bias) not in (0, 1) or any(sign_of(c) != 1 for c in total.terms.values()):
        return None
    for place, line in enumerate(entries):
        factor = _multiple(partner, line)
        if factor is not None:
            return Norm(numbers, tuple(total.terms.values()), total.bias, place, factor)
    return None


def _multiple(partner: Line, line: Line) -> Number | None:
    """The number a with partner = a · line, if there is one."""
    if partner == line:
        return 1
    found = partner.in_terms_of(line) if partner.terms and line.terms else None
    return None if found is None or found[1] != 0 else found[0]
