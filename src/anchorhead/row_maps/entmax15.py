"""Entmax 1.5: between softmax and sparsemax (Peters, Niculae and Martins 2019).

Weights are max(s_k/2 - tau, 0)², with tau such that they sum to one. With the j largest keys in the support, mean m and
mean square q of their halved scores, tau = m - sqrt(1/j - (q - m²)); j is the largest for which tau does not exceed the
smallest of them. Weights are smooth but for jumps of the second derivative where a key enters, so that values solved
for reach more than an interpolant and far less than softmax's. tau is a root of a quadratic, of which nothing is proved
here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anchorhead.row_maps.row_map import RowMap

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Entmax15(RowMap):
    """max(score/2 - tau, 0)².

    >>> scores = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    >>> [round(w, 4) for w in ah.row_maps.Entmax15().weights(scores).tolist()]
    [0.0, 0.0, 1.0]
    """

    name = "entmax15"
    reason = "its threshold is a root of a quadratic for each set of keys, of which no enclosure was made"

    def weights(self, scores: Tensor) -> Tensor:
        halves = (scores - scores.amax(-1, keepdim=True)) / 2
        ordered = halves.sort(-1, descending=True).values
        count = scores.new_ones(scores.shape[-1]).cumsum(-1)
        mean, square = ordered.cumsum(-1) / count, (ordered * ordered).cumsum(-1) / count
        inside = (1 / count - (square - mean * mean)).clamp(min=0)
        levels = mean - inside.sqrt()
        size = (levels <= ordered).sum(-1, keepdim=True).clamp(min=1)
        return (halves - levels.gather(-1, size - 1)).relu() ** 2
