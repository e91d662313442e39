"""Spreads: means over a prompt's tokens of products of deviations, of which more is certain than of the products.

A variance or covariance is the mean of a·b over the tokens, where both have the mean zero: a = A - mean A is what a
token has less its mean over all of them, and so is b = B - mean B. With A and B in intervals of width W_A and W_B, and
whatever the number of tokens:

*Range.*  |cov(A, B)| <= sqrt(var A · var B) <= W_A W_B/4,  and a variance is not negative: a number in an interval is
no more than half its width from the middle, and the variance is the least mean square distance from any number.

*Errors.* If each A_i moves by at most e_A and each B_i by e_B, then, since cov is bilinear and a number that moves
by at most e has a standard deviation of at most e,

    |cov(A', B') - cov(A, B)| <= (e_A W_B + e_B W_A)/2 + e_A e_B

which is a quarter of what follows from the deviations one by one.

*Means that are off.* If the means are computed with errors ε and η, then mean((a - ε)(b - η)) = cov(A, B) + εη, and the
mean of |(a - ε)(b - η)|, which rounding its sum is proportional to, is at most (W_A/2 + |ε|)(W_B/2 + |η|). So the
network adds εη, what its products and their mean add, and no more (`proof/spreads.py`): A variance of 1e-9 in [-1, 1]
is as exact as one of 1.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from flint import arb

from anchorhead.circuit.apply import SQUARES, Apply, Times, U
from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.line import Line, combination
from anchorhead.circuit.places import Place
from anchorhead.circuit.pool import Pool
from anchorhead.circuit.step import Pair
from anchorhead.enclosure.precision import upper


@dataclass(frozen=True)
class Spread:
    """The covariance of two lines of a token's wires, by a step of products and, before it, steps that are means.

    left, right: what the two deviations have of the token, and what they have of means.
    """

    left: Line
    right: Line
    left_means: Line
    right_means: Line
    product: int
    means: tuple[int, ...]

    def range(self, left: Pair, right: Pair) -> Pair:
        """For lines in these intervals."""
        most = upper(_width(left) * _width(right) / 4)
        return (0.0 if self.left == self.right else -most), most

    def moved(self, ranges: tuple[Pair, Pair], errors: tuple[float, float]) -> float:
        """By how much it moves where the lines, in these intervals, move by at most so much."""
        (left, right), (a, b) = map(_width, ranges), map(arb, errors)
        return upper((a * right + b * left) / 2 + a * b)

    def size(self, ranges: tuple[Pair, Pair], errors: tuple[float, float]) -> float:
        """The mean of |(a - ε)(b - η)| at most, for lines in these intervals and means that err by so much."""
        (left, right), (a, b) = map(_width, ranges), map(arb, errors)
        return upper((left / 2 + a) * (right / 2 + b))


def _width(pair: Pair) -> arb:
    return arb(pair[1]) - pair[0]


def spreads(circuit: Circuit) -> dict[int, Spread]:
    """The steps of a circuit that are variances and covariances, by their numbers."""
    if not circuit.tokens:
        return {}
    makers = {start: i for i, start in enumerate(circuit.starts)}
    found = ((i, _spread(circuit, makers, step)) for i, step in enumerate(circuit.steps) if isinstance(step, Pool))
    return {i: spread for i, spread in found if spread is not None}


def _spread(circuit: Circuit, makers: dict[int, int], pool: Pool) -> Spread | None:
    if not pool.is_mean or pool.value.bias != 0 or list(pool.value.terms.values()) != [1]:
        return None
    product = makers.get(next(iter(pool.value.terms)))
    step = None if product is None else circuit.steps[product]
    if isinstance(step, Apply) and step.function in SQUARES:
        lines = step.argument, step.argument
    elif isinstance(step, Times) and step.function is U:
        lines = step.argument, step.partner
    else:
        return None
    means = [_means(circuit, makers, line) for line in lines]
    if product is None or not all(_is_centred(circuit, line, part) for line, part in zip(lines, means, strict=True)):
        return None
    left, right = (_part(line, [w for w in line.terms if circuit.places[w] is Place.TOKEN]) for line in lines)
    left_means, right_means = (_part(line, part) for line, part in zip(lines, means, strict=True))
    numbers = sorted({i for part in means for i in part.values()})
    return Spread(left, right, left_means, right_means, product, tuple(numbers))


def _part(line: Line, wires: Collection[int]) -> Line:
    return Line({wire: c for wire, c in line.terms.items() if wire in wires})


def _means(circuit: Circuit, makers: dict[int, int], line: Line) -> dict[int, int]:
    """The wires of a line that are means, and the steps that they come from."""
    found = {wire: makers[wire] for wire in line.terms if wire in makers}
    return {wire: i for wire, i in found.items() if isinstance(step := circuit.steps[i], Pool) and step.is_mean}


def _is_centred(circuit: Circuit, line: Line, means: dict[int, int]) -> bool:
    """Whether the line's mean over the tokens is zero by its form: all means in it as what they are means of cancel."""
    parts: list[Line] = []
    for wire in line.terms:
        step = circuit.steps[means[wire]] if wire in means else None
        parts.append(step.value if isinstance(step, Pool) else Line({wire: 1}))
    total = combination(list(line.terms.values()), parts, line.bias)
    return total.is_constant and total.bias == 0
