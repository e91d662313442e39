"""2D-LUT: softmax from a table of exponentials and a table of quotients, both of bytes (Vasyltsov and Chang 2021).

With t_k = max s - s_k: exp is read from a table of 101 entries for t in steps of 1/10, and the weight from one of 11
rows, exp in steps of 1/10, and 60 columns, the sum of exponentials in whole steps. Exponentials below 1/20 weigh
nothing, the others have eleven sizes, so that weights are off by up to 1/20 over the sum: the keys that a smooth head
blends are told apart by less. The size of the error is that of the values' span over 20, and it is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anchorhead.row_maps.row_map import RowMap, require_whole

if TYPE_CHECKING:
    from torch import Tensor

ROWS, COLUMNS, STEPS = 10, 60, 100


@dataclass(frozen=True)
class Lut2D(RowMap):
    """Tables of `bits` bits.

    >>> scores = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    >>> [round(w, 4) for w in ah.row_maps.Lut2D().weights(scores).tolist()]
    [0.098, 0.098, 1.0]
    """

    bits: int = 8
    name = "lut_2d"
    reason = "exponentials have eleven sizes, so that weights are off by a twentieth: the bound would be the span"

    def __post_init__(self) -> None:
        require_whole(self, bits=16)

    def weights(self, scores: Tensor) -> Tensor:
        top = 2**self.bits - 1
        below = ((scores.amax(-1, keepdim=True) - scores).nan_to_num(0.0) * 10).round().clamp(max=STEPS).long()
        table = scores.new_tensor([round(math.exp(-i / 10) * top) for i in range(STEPS + 1)])
        exponentials = table[below] / top
        rows = (exponentials * ROWS).round()
        columns = exponentials.sum(-1, keepdim=True).round().clamp(min=1, max=COLUMNS)
        return (rows / ROWS / columns * top).floor() / top
