"""Sigmoid attention: weights sigmoid(s_k), each by itself (Ramapuram et al. 2024, without its shift by log n).

    h'(x) = sum over k of  sigmoid(slope_k x + intercept_k) · value_k

Since sigmoid(s) = e^s/(e^s + e^0), every key is a softmax head of two keys, with values 0 and its own: nothing of what
is proved of heads is lost but that weights sum to one. *Construction*: steps of equal width at evenly spaced places,
the last key a constant (score 0, weight 1/2), values solved for. As with smooth heads the error falls geometrically in
the number of keys; width and overhang are searched for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flint import arb

from anchorhead.head.head import Head
from anchorhead.row_maps.row_map import Function, RowMap, placed
from anchorhead.row_maps.weighted import ASSUMED, WeightedCurve

if TYPE_CHECKING:
    from torch import Tensor

WIDTHS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5, 1.75, 2.0, 2.5)
"""Of a step, in units of the spacing."""
OVERHANGS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0)
"""How many spacings the first and the last step lie beyond the ends."""
LARGEST_VALUE = 1e4


@dataclass(frozen=True)
class Sigmoid(RowMap):
    """sigmoid(score).

    >>> scores = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    >>> [round(w, 4) for w in ah.row_maps.Sigmoid().weights(scores).tolist()]
    [0.5, 0.7311, 0.9526]
    """

    name = "sigmoid"
    assumptions = (*RowMap.assumptions, ASSUMED)

    @property
    def sizes(self) -> tuple[int, int]:
        return 3, 128

    def weights(self, scores: Tensor) -> Tensor:
        return scores.sigmoid()

    def curve(self, head: Head) -> WeightedCurve:
        return WeightedCurve(head, self, lambda s: 1 / (1 + (-s).exp()), arb(1))

    def construct(self, f: Function, low: float, high: float, keys: int, goal: float) -> Head:
        from anchorhead.arithmetic import sigmoid
        from anchorhead.row_maps.solved import best_values

        steps, layouts = keys - 1, []
        for over in (over for over in OVERHANGS if 2 * over < steps - 1):
            spacing = (high - low) / (steps - 1 - 2 * over)
            places = placed(low - over * spacing, high + over * spacing, steps)
            for width in WIDTHS:
                slope = 1 / (width * spacing)
                layouts.append(([slope] * steps + [0.0], [*(-slope * places).tolist(), 0.0]))
        return best_values(f, low, high, layouts, sigmoid, goal, LARGEST_VALUE)
