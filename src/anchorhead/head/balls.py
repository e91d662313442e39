"""A head in ball arithmetic: Taylor coefficients of numerator and denominator over a box.

Scores are taken relative to a reference key, which multiplies numerator N and denominator D of the head by
the same exponential: with E_k(u) = exp((slope_k - slope_ref) u + intercept_k - intercept_ref),

    D(u) = sum E_k(u) >= 1,      N(u) = sum E_k(u) (constant_k + gain_k u),      h = N/D.

The j-th Taylor coefficient of E_k at x is E_k(x) d_k^j/j!, d_k the relative slope; evaluated on a ball x it
encloses the coefficient at every point of the ball. With the key that leads at the midpoint as reference,
keys with huge relative slopes have vanishing weight, and the coefficients stay small.

Of a head of many keys only those that are near on a box are summed (`near_keys.py`); `left_out` bounds the rest.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from flint import arb, arb_mat

from anchorhead.enclosure.precision import ball, precision
from anchorhead.head.near_keys import GAP, MANY

if TYPE_CHECKING:
    from anchorhead.head.head import Head

MOST_KEPT = 512
"""Of what is asked for again, by the same box or the next."""


class HeadBalls:
    """The exact numbers of a head as balls; a score's slope is the key's own plus its piece's gate."""

    def __init__(self, head: Head) -> None:
        self.head, self.keys, self.every = head, head.keys, range(head.keys)
        with precision():
            own, gates = list(zip(head.slopes, head.intercepts, strict=True)), head.gates
            self.floats = [(s + g, c + b) for (s, c), (g, b) in zip(own, gates, strict=True)]
            self.slopes = [arb(s) + arb(g) for (s, _), (g, _) in zip(own, gates, strict=True)]
            self.intercepts = [arb(c) + arb(b) for (_, c), (_, b) in zip(own, gates, strict=True)]
            self.own = [(abs(arb(s)), abs(arb(c))) for s, c in own]
            self.gate_balls = [(arb(g), arb(b)) for g, b in gates]
            self.gates = [(abs(g), abs(b)) for g, b in self.gate_balls]
            """Sizes of the two parts of a score, the key's own and its piece's, for rounding."""
            self.constants, self.gains = [arb(v) for v in head.constants], [arb(g) for g in head.gains]
            self.rest = self.keys * arb(-GAP).exp() if self.keys > MANY else arb(0)
            """Bounds the weight of all far keys together."""
        self.spans = [arb(max(part)) - arb(min(part)) for part in (head.constants, head.gains)]
        self.selects = self.keys > MANY and len(head.sizes) == 1 and not any(head.gains)
        """Many keys of constant values in one piece: about a staircase, if keys take turns in leading."""
        self._derivatives: dict[tuple[Sequence[int], int, int, int], arb_mat] = {}
        self._values: dict[float, arb] = {}
        self._near: dict[tuple[float, float], tuple[int, ...]] = {}

    def near(self, low: float, high: float) -> Sequence[int]:
        """The keys to look at on [low, high]: all, or of many those that are not far, in the order of slopes."""
        if self.keys <= MANY:
            return self.every
        found = self._near.get((low, high))
        if found is None:
            _make_room(self._near)
            found = self._near[low, high] = self.head.near.of(low, high)
        return found

    def left_out(self, x: arb) -> arb:
        """Bounds what the far keys add to the head on the ball, |h - h'|."""
        if self.keys <= MANY:
            return self.rest
        return self.rest * (self.spans[0] + self.spans[1] * abs(x)).upper()

    def leader(self, x: float, keys: Sequence[int]) -> int:
        """The key with the largest score at x, by floating point: any choice is sound, a good one is tight."""
        return max(keys, key=lambda k: self.floats[k][0] * x + self.floats[k][1])

    def steepness(self, keys: Sequence[int], reference: int) -> float:
        """How fast scores of keys, given in the order of slopes, draw apart from the reference's, about."""
        return max(abs(self.floats[k][0] - self.floats[reference][0]) for k in (keys[0], keys[-1]))

    def _matrix(self, keys: Sequence[int], reference: int, order: int, precision: int) -> arb_mat:
        """d_k^j/j! as (keys, order + 1)."""
        found = self._derivatives.get((keys, reference, order, precision))
        if found is None:
            rows = []
            for k in keys:
                entry, row = arb(1), []
                for j in range(order + 1):
                    row.append(entry)
                    entry = entry * (self.slopes[k] - self.slopes[reference]) / (j + 1)
                rows.append(row)
            _make_room(self._derivatives)
            found = self._derivatives[keys, reference, order, precision] = arb_mat(rows)
        return found

    def _of(self, numbers: list[arb], keys: Sequence[int]) -> list[arb]:
        return numbers if keys is self.every else [numbers[k] for k in keys]

    def weights(self, x: arb, reference: int, keys: Sequence[int]) -> list[arb]:
        """E_k over the ball, relative to the reference key."""
        lines = zip(self._of(self.slopes, keys), self._of(self.intercepts, keys), strict=True)
        top, level = self.slopes[reference], self.intercepts[reference]
        if x.rad() == 0:
            base = top * x + level
            return [(s * x + c - base).exp() for s, c in lines]
        return [((s - top) * x + (c - level)).exp() for s, c in lines]

    def taylor(self, x: arb, reference: int, order: int, precision: int, keys: Sequence[int]
               ) -> tuple[list[arb], list[arb]]:  # fmt: skip
        """Coefficients 0..order of D and of N over the ball x, of some of the keys."""
        weights, gains = self.weights(x, reference, keys), self._of(self.gains, keys)
        valued = [w * (a + g * x) for w, a, g in zip(weights, self._of(self.constants, keys), gains, strict=True)]
        gained = [w * g for w, g in zip(weights, gains, strict=True)]
        product = arb_mat([weights, valued, gained]) * self._matrix(keys, reference, order, precision)
        denominator = [product[0, j] for j in range(order + 1)]
        numerator = [product[1, j] + (product[2, j - 1] if j else 0) for j in range(order + 1)]
        return denominator, numerator

    def slope_apart(self, low: float, high: float, f: Sequence[arb], reference: int, keys: Sequence[int]) -> arb:
        """Encloses (f·D - N)' on a box, piece by piece, f enclosed with its slope: see `proof/approximation.py`."""
        x, total, ends = ball(low, high), arb(0), itertools.accumulate(self.head.sizes)
        for _, piece in itertools.groupby(keys, partial(bisect.bisect_right, list(ends))):
            own = list(piece)
            top = self.leader((low + high) / 2, own)
            parts = [(w, f[0] - self.constants[k] - self.gains[k] * x, k)
                     for w, k in zip(self.weights(x, top, own), own, strict=True)]  # fmt: skip
            blend = _sum([w * gap for w, gap, _ in parts])
            turns = [w * (f[1] - self.gains[k] + (self.slopes[k] - self.slopes[top]) * gap) for w, gap, k in parts]
            (gate,) = self.weights(x, reference, (top,))
            total += gate * ((self.slopes[top] - self.slopes[reference]) * blend + _sum(turns))
        return total

    def at(self, place: float) -> arb:
        """h at a point."""
        found = self._values.get(place)
        if found is None:
            x, keys = arb(place), self.near(place, place)
            weights = self.weights(x, self.leader(place, keys), keys)
            valued = [w * (self.constants[k] + self.gains[k] * x) for w, k in zip(weights, keys, strict=True)]
            rest = self.left_out(x)
            _make_room(self._values)
            found = self._values[place] = _sum(valued) / _sum(weights) + arb(0, rest.upper())
        return found

    def over(self, low: float, high: float, keys: Sequence[int]) -> arb:
        """A ball that holds h on [low, high] for constant values in one piece, with the keys near there.

        Where these keys' values rise with their slopes, so does h' with u, since its derivative is the covariance of
        slopes and values under its weights; likewise where they fall: then h' lies between its values at the ends, and
        h does but for twice what is left out. In any case h' lies between the keys' values.
        """
        values = [self.head.constants[k] for k in keys]
        rest = self.left_out(ball(low, high)).upper()
        if all(map(float.__le__, values, values[1:])) or all(map(float.__ge__, values, values[1:])):
            return self.at(low).union(self.at(high)) + arb(0, 2 * rest)
        return ball(min(values), max(values)) + arb(0, rest)


def _sum(terms: Sequence[arb]) -> arb:
    return sum(terms[1:], terms[0])


def _make_room(kept: dict[Any, Any]) -> None:
    if len(kept) >= MOST_KEPT:
        kept.clear()
