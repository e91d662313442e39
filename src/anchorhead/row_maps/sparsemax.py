"""Sparsemax: the nearest point of the simplex (Martins and Astudillo 2016), weights max(s_k - tau, 0) that sum to one.

With scores -b (x - t_k)² for evenly spaced t_k and b h² = 1, of which the term that all keys share drops out, only the
two neighbours of x have weight: between t_k and t_(k+1) their scores differ by 1 - 2(x - t_k)/h, from 1 to -1, and
weights are (1 ± difference)/2. So a head with values f(t_k) *is* the piecewise linear interpolant, with an error of at
most h² max|f''|/8: that is the construction.

Any head is piecewise polynomial under it: on a set S of keys with weight tau = (sum of their scores - 1)/|S| is affine
in x, and S changes where a weight becomes zero or a score reaches tau, which are fractions. The sweep from piece to
piece is exact; just beyond a place x scores are compared by (score, slope), what they are there and what comes next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from flint import arb

from anchorhead.head.head import Head
from anchorhead.row_maps.pieces import Line, PiecesCurve, score_lines, summed, value_lines
from anchorhead.row_maps.row_map import Function, RowMap, placed

if TYPE_CHECKING:
    from torch import Tensor

MOST_PIECES = 1 << 14


@dataclass(frozen=True)
class Sparsemax(RowMap):
    """max(score - tau, 0), with tau such that the weights sum to one.

    >>> scores = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    >>> [round(w, 4) for w in ah.row_maps.Sparsemax().weights(scores).tolist()]
    [0.0, 0.0, 1.0]
    """

    name = "sparsemax"

    @property
    def sizes(self) -> tuple[int, int]:
        return 2, 1024

    def weights(self, scores: Tensor) -> Tensor:
        below = (scores - scores.amax(-1, keepdim=True)).clamp(min=-1.0)  # tau is at most 1 below the largest
        ordered = below.sort(-1, descending=True).values
        count = scores.new_ones(scores.shape[-1]).cumsum(-1)
        sums = ordered.cumsum(-1) - 1
        size = (count * ordered > sums).sum(-1, keepdim=True).clamp(min=1)
        return (below - sums.gather(-1, size - 1) / size).relu()

    def curve(self, head: Head) -> SparsemaxCurve:
        return SparsemaxCurve(head, self)

    def construct(self, f: Function, low: float, high: float, keys: int, goal: float) -> Head:
        import numpy as np

        spacing, middle = (high - low) / (keys - 1), (low + high) / 2
        k = np.arange(keys) - (keys - 1) / 2
        slopes = 2 * k / spacing
        return Head.of(slopes=slopes, intercepts=-k * k - slopes * middle, constants=f(placed(low, high, keys)),
                       horner=False)  # fmt: skip


class SparsemaxCurve(PiecesCurve):
    """A sweep from left to right, from one set of keys with weight to the next."""

    def pieces(self) -> tuple[list[Fraction], list[list[Fraction]]]:
        scores, values = score_lines(self.head), value_lines(self.head)
        least = min(line.slope for line in scores)
        chosen = _support([(k, line) for k, line in enumerate(scores) if line.slope == least], Fraction(0))
        x: Fraction | None = None  # far on the left the lowest slopes lead
        breaks: list[Fraction] = []
        rows: list[list[Fraction]] = []
        while len(rows) < MOST_PIECES:
            level = _threshold(scores, chosen)
            weights = [(Line(scores[k].slope - level.slope, scores[k].level - level.level), values[k]) for k in chosen]
            rows.append(summed(w.times(v) for w, v in weights))
            following = _next(scores, level, set(chosen), x)
            if following is None:
                return breaks, rows
            breaks.append(following)
            x, chosen = following, _support(list(enumerate(scores)), following)
        raise ArithmeticError(f"a head of {self.head.keys} keys has more than {MOST_PIECES} pieces under sparsemax")

    def rounding(self, low: float, high: float) -> arb:
        """Of the m keys that may have weight each errs by twice what a score does, and by (m + 4)u of tau."""
        scores, moved = self.scores(low, high), self.moved(low, high)
        worst = max(moved, key=float) * 4
        top = max(s.lower() for s in scores) - 1 - worst
        near = [k for k, s in enumerate(scores) if not s.upper() < top]
        values, m = self.values(low, high), len(near)
        size = max(abs(values[k]).upper() for k in near)
        wide = max(values[k].upper() for k in near) - min(values[k].lower() for k in near)
        weights = m * (worst + (m + 4) * self.unit) * wide
        return (2 * (weights + (self.head.keys + m + 4) * self.unit * size) + self.least).upper()


def _support(scores: Sequence[tuple[int, Line]], x: Fraction) -> list[int]:
    """Those of some keys that have weight just beyond x."""
    ahead = sorted(((line.at(x), line.slope, k) for k, line in scores), reverse=True)
    chosen: list[int] = []
    total = slope = Fraction(0)
    for score, rise, k in ahead:
        size = len(chosen) + 1
        if (size * score + 1, size * rise) <= (total + score, slope + rise):
            break
        total, slope = total + score, slope + rise
        chosen.append(k)
    return chosen


def _threshold(scores: Sequence[Line], chosen: Sequence[int]) -> Line:
    """tau, where these keys have weight."""
    size = len(chosen)
    return Line(sum((scores[k].slope for k in chosen), Fraction(0)) / size,
                (sum((scores[k].level for k in chosen), Fraction(0)) - 1) / size)  # fmt: skip


def _next(scores: Sequence[Line], level: Line, chosen: set[int], x: Fraction | None
          ) -> Fraction | None:  # fmt: skip
    """The first place beyond x where a score meets tau."""
    places = []
    for k, line in enumerate(scores):
        rise = line.slope - level.slope
        if (rise < 0) if k in chosen else (rise > 0):
            places.append((level.level - line.level) / rise)
    return min((place for place in places if x is None or place > x), default=None)
