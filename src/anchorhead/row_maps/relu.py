"""ReLU attention: weights max(s_k, 0)/n, each by itself (Wortsman et al. 2023), n the number of keys.

    h'(x) = (1/n) · sum over k of  max(slope_k x + intercept_k, 0) · value_k

With constant values this is piecewise linear with a break where each score is zero, and every piecewise linear function
of n - 1 pieces on an interval is one of n keys: a key that scores 1 holds the value at the left end, and key k, which
scores x - t_k, the change of slope at t_k. *Construction*: the interpolant f_h at evenly spaced t_k, whose error is at
most h² max|f''|/8; what is proved is what it is, break by break, for the numbers as rounded.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from flint import arb

from anchorhead.head.head import Head
from anchorhead.row_maps.pieces import Line, PiecesCurve, score_lines, summed, value_lines
from anchorhead.row_maps.row_map import Function, RowMap, placed, total

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ReLU(RowMap):
    """max(score, 0)/keys.

    >>> scores = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    >>> [round(w, 4) for w in ah.row_maps.ReLU().weights(scores).tolist()]
    [0.0, 0.3333, 1.0]
    """

    name = "relu"

    @property
    def sizes(self) -> tuple[int, int]:
        return 2, 1024

    def weights(self, scores: Tensor) -> Tensor:
        return scores.relu() / scores.shape[-1]

    def curve(self, head: Head) -> ReLUCurve:
        return ReLUCurve(head, self)

    def construct(self, f: Function, low: float, high: float, keys: int, goal: float) -> Head:
        import numpy as np

        places = placed(low, high, keys)
        values = f(places)
        rises = np.diff(values) / np.diff(places)
        constants = keys * np.concatenate([values[:1], rises[:1], np.diff(rises)])
        slopes = np.concatenate([[0.0], np.ones(keys - 1)])
        return Head.of(slopes=slopes, intercepts=np.concatenate([[1.0], -places[:-1]]), constants=constants,
                       horner=False)  # fmt: skip


class ReLUCurve(PiecesCurve):
    """Breaks where scores are zero; between them the keys that score above it."""

    def pieces(self) -> tuple[list[Fraction], list[list[Fraction]]]:
        scores, values = score_lines(self.head), value_lines(self.head)
        breaks = sorted({-line.level / line.slope for line in scores if line.slope})
        inside = [(a + b) / 2 for a, b in itertools.pairwise(breaks)]
        inside = [breaks[0] - 1, *inside, breaks[-1] + 1] if breaks else [Fraction(0)]
        terms = [(s, s.times(Line(v.slope / len(scores), v.level / len(scores))))
                 for s, v in zip(scores, values, strict=True)]  # fmt: skip
        return breaks, [summed(term for s, term in terms if s.at(x) > 0) for x in inside]

    def rounding(self, low: float, high: float) -> arb:
        """max(s, 0) errs as s does; products, the division and n sums add (n + 6)u of every term."""
        n, moved = self.head.keys, self.moved(low, high)
        sizes = [abs(s).upper() + e for s, e in zip(self.scores(low, high), moved, strict=True)]
        values = [abs(v).upper() for v in self.values(low, high)]
        terms = [(e + (n + 6) * self.unit * s) * v for e, s, v in zip(moved, sizes, values, strict=True)]
        return (2 * total(terms) / n + self.least).upper()
