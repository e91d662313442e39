"""Polynomial attention: weights s_k^p/sqrt(n) (Ji et al. 2024), n the number of keys.

    h'(x) = n^(-1/2) · sum over k of  (slope_k x + intercept_k)^p · value_k

The p + 1 powers (x cos t_k + c sin t_k)^p with different t_k span the polynomials of degree p: with z = (x, c), a form
of degree p in two variables vanishes on all of them only if it is zero. So p + 1 keys give every polynomial of degree
p, and no number of keys gives anything else: products exactly from p = 2 on, smooth functions geometrically in p on a
bounded domain, nothing on all of R. *Construction*: angles t_k evenly spaced on half a turn, where the powers are as
independent as they can be (singular values like binomial coefficients), values solved for.
"""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flint import arb

from anchorhead.head.head import Head
from anchorhead.row_maps.row_map import Function, RowMap, require_whole
from anchorhead.row_maps.weighted import ASSUMED, WeightedCurve

if TYPE_CHECKING:
    from torch import Tensor

    from anchorhead.arithmetic import Array

MOST_DEGREE = 32
LARGEST_VALUE = 1e4


@dataclass(frozen=True)
class Polynomial(RowMap):
    """score^degree / sqrt(keys).

    >>> scores = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    >>> [round(w, 4) for w in ah.row_maps.Polynomial(degree=2).weights(scores).tolist()]
    [0.0, 0.5774, 5.1962]
    """

    degree: int
    name = "polynomial"
    assumptions = (*RowMap.assumptions, ASSUMED)

    def __post_init__(self) -> None:
        require_whole(self, degree=MOST_DEGREE)

    @property
    def sizes(self) -> tuple[int, int]:
        return self.degree + 1, self.degree + 1

    def weights(self, scores: Tensor) -> Tensor:
        return scores**self.degree / math.sqrt(scores.shape[-1])

    def _power(self, score: Any) -> Any:
        """By products, which are finite for balls around zero too."""
        return functools.reduce(operator.mul, [score] * self.degree)

    def curve(self, head: Head) -> WeightedCurve:
        return WeightedCurve(head, self, self._power, 1 / arb(head.keys).sqrt())

    def construct(self, f: Function, low: float, high: float, keys: int, goal: float) -> Head:
        import numpy as np

        from anchorhead.arithmetic import cos, sin
        from anchorhead.row_maps.solved import best_values

        angles = np.pi * (np.arange(keys) + 0.5) / keys
        middle, radius = (low + high) / 2, (high - low) / 2
        slopes, levels = cos(angles) / radius, sin(angles)

        def power(s: Array) -> Array:
            found = s
            for _ in range(self.degree - 1):
                found = found * s
            return found / math.sqrt(keys)

        return best_values(
            f, low, high, [(slopes.tolist(), (levels - slopes * middle).tolist())], power, goal, LARGEST_VALUE
        )
