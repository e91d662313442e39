"""Softmax itself, e^(s_k) over their sum: the map that everything else here is held against.

Its curve is the head, with the proof of rounding that the library has for it of its
literal evaluation (`proof/rounding.py`, `proof/literal_pieces.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flint import arb

from anchorhead.expression.parse import parse
from anchorhead.head.head import Head
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.proof.rounding import ASSUMPTIONS
from anchorhead.proof.rounding_on import evaluated
from anchorhead.row_maps.row_map import MappedCurve, RowMap

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Softmax(RowMap):
    """exp(score) over the sum of all.

    >>> scores = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    >>> [round(w, 4) for w in ah.row_maps.Softmax().weights(scores).tolist()]
    [0.042, 0.1142, 0.8438]
    """

    name = "softmax"
    assumptions = tuple(ASSUMPTIONS)

    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def curve(self, head: Head) -> SoftmaxCurve:
        return SoftmaxCurve(head, self)


class SoftmaxCurve(MappedCurve):
    """A head as it is."""

    def rounding(self, low: float, high: float) -> arb:
        claim = HeadClaim(parse("x").outputs[0], "x", low, high, self.head)
        return arb(evaluated(claim, literal=True).on_box(low, high))
