"""The range of sum_j w_j v_j for softmax weights w of scores in intervals, and values in intervals.

The output lies between the smallest and the largest value; that is all one can say if the scores are not known. If they
are, w_j = 1/(1 + sum over i != j of exp(s_i - s_j)) lies between what the intervals' ends give, and the weights sum to
one: the smallest output has every weight at its lower bound and the rest of the one given to the smallest values first.
"""

from __future__ import annotations

from collections.abc import Sequence

from flint import arb

from anchorhead.enclosure.precision import above, below

Pair = tuple[float, float]


def softmax_weights(scores: Sequence[Pair]) -> list[Pair]:
    """Bounds of every weight."""
    found = []
    for j, (low, high) in enumerate(scores):
        least, most = arb(1), arb(1)
        for i, (a, b) in enumerate(scores):
            if i != j:
                least = least + (arb(b) - low).exp()
                most = most + (arb(a) - high).exp()
        found.append((max(below(1 / least), 0.0), min(above(1 / most), 1.0)))
    return found


def blended(weights: Sequence[Pair], values: Sequence[Pair]) -> Pair:
    """The smallest and the largest that the blend of values can be."""
    low = _least(weights, [a for a, _ in values])
    high = -_least(weights, [-b for _, b in values])
    return max(below(low), min(a for a, _ in values)), min(above(high), max(b for _, b in values))


def _least(weights: Sequence[Pair], values: Sequence[float]) -> arb:
    total, left = arb(0), arb(1)
    for (low, _), value in zip(weights, values, strict=True):
        total, left = total + arb(low) * value, left - low
    for (low, high), value in sorted(zip(weights, values, strict=True), key=lambda pair: pair[1]):
        room = arb(high) - low
        if room >= left:
            return total + left * value
        total, left = total + room * value, left - room
    return total + left * max(values)
