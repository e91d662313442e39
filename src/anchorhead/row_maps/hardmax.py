"""Hardmax: all weight on the largest score, shared by those that tie.

A head is then a staircase of its values, or affine pieces where they have gains: between two places where neighbouring
scores meet it is one key's value. Its error is half the step between neighbouring values at best, which is what the
paper's bound says of a head whose beta tends to infinity. Values that were solved for a blend are not values of the
function, and their steps are as large as their span.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anchorhead.row_maps.row_map import RowMap

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Hardmax(RowMap):
    """1 for the largest score, 0 for all others.

    >>> scores = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    >>> [round(w, 4) for w in ah.row_maps.Hardmax().weights(scores).tolist()]
    [0.0, 0.0, 1.0]
    """

    name = "hardmax"
    reason = "near a tie rounding decides which key is the largest, and values of neighbouring keys are far apart"

    def weights(self, scores: Tensor) -> Tensor:
        largest = (scores == scores.amax(-1, keepdim=True)).to(scores.dtype)
        return largest / largest.sum(-1, keepdim=True)
