"""REXP: softmax from two small tables of bytes (Vasyltsov and Chang 2021).

With t_k = max s - s_k >= 0: a table of floor(e^-i (2^w - 1)) is read at the whole part of t_k, as far as it is not
zero; a second one, of floor((2^w - 1)/j), at the whole part of the sum of the first; the product is the weight. Whole
parts of scores move weights by up to a factor e, so that a blend of neighbouring keys becomes a staircase: nothing of
a head's proof is left, and what is left of its values is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anchorhead.row_maps.row_map import RowMap, require_whole

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Rexp(RowMap):
    """Tables of `bits` bits; sums beyond `sums` read the last entry.

    >>> scores = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    >>> [round(w, 4) for w in ah.row_maps.Rexp().weights(scores).tolist()]
    [0.0471, 0.1333, 1.0]
    """

    bits: int = 8
    sums: int = 16
    name = "rexp"
    reason = "scores are cut to whole numbers, which moves weights by up to a factor e: the bound would be the span"

    def __post_init__(self) -> None:
        require_whole(self, bits=16, sums=4096)

    def weights(self, scores: Tensor) -> Tensor:
        top = 2**self.bits - 1
        below = (scores.amax(-1, keepdim=True) - scores).nan_to_num(0.0).floor()  # infinite scores lead together
        exponentials = scores.new_tensor([math.floor(math.exp(-i) * top) for i in range(math.ceil(math.log(top)) + 1)])
        first = exponentials[below.clamp(max=len(exponentials) - 1).long()] / top
        reciprocals = scores.new_tensor([math.floor(top / max(j, 1)) for j in range(self.sums + 1)])
        return first * reciprocals[first.sum(-1, keepdim=True).floor().clamp(max=self.sums).long()] / top
