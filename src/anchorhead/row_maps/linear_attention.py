"""Linear attention: features in place of exp(q·k), so that keys collapse to one matrix (Katharopoulos et al. 2020).

*Taylor features* of degree P: all products of up to P entries of q and of k, weighted so that their inner product is
T_P(q·k), the first P + 1 terms of exp. Keys less their mean move all scores of a row by the same, which softmax does
not see, so weights are T_P(s_k - mean s) over their sum; P is even, so that T_P is positive everywhere. With |s| <= R
and R^(P+1) e^R/(P+1)! < 1 scores are off by at most -log(1 - that), and the head moves by V tanh of half of it; what is
proved is better: the head under this map is a quotient of two polynomials, and is enclosed as that.

With fixed keys all of it is a matrix of the features' rank: that of T_P in x is P + 1, however many keys there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flint import arb

from anchorhead.errors import InputError
from anchorhead.head.head import Head
from anchorhead.row_maps.row_map import RowMap
from anchorhead.row_maps.weighted import WeightedCurve

if TYPE_CHECKING:
    from torch import Tensor

MOST_DEGREE = 64


@dataclass(frozen=True)
class LinearAttention(RowMap):
    """The Taylor polynomial of exp of an even degree, of scores less their mean, over the sum of all.

    >>> scores = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    >>> [round(w, 4) for w in ah.row_maps.LinearAttention(degree=4).weights(scores).tolist()]
    [0.0475, 0.1164, 0.8362]
    """

    degree: int
    name = "linear_attention"

    def __post_init__(self) -> None:
        if type(self.degree) is not int or self.degree % 2 or not 2 <= self.degree <= MOST_DEGREE:
            raise InputError(f"degree={self.degree!r:.40} must be an even whole number from 2 to {MOST_DEGREE}.")

    def weights(self, scores: Tensor) -> Tensor:
        found = self._taylor(scores - scores.mean(-1, keepdim=True))
        return found / found.sum(-1, keepdim=True)

    def _taylor(self, s: Any) -> Any:
        """1 + s(1 + s/2(1 + s/3(..)))."""
        found = 1 + s / self.degree
        for j in reversed(range(1, self.degree)):
            found = 1 + s * found / j
        return found

    def curve(self, head: Head) -> TaylorCurve:
        found = TaylorCurve(head, self, self._taylor, None)
        found.degree = self.degree
        return found


class TaylorCurve(WeightedCurve):
    """Horner's rule errs by four roundings a step, relative to the sum of the sizes of all terms."""

    degree: int

    def own_error(self, score: arb) -> arb:
        return 4 * self.degree * self.unit * self.weight(abs(score))
