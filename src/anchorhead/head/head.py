"""A head for one variable: the numbers of softmax attention over a fixed set of keys.

    h(u) = sum over k of  softmax_k(slope_k u + intercept_k) · (constant_k + gain_k u)

The query is u, key k scores slope_k u + intercept_k, and its value is affine in the token's own u (the token
attends to copies of itself); a head with gains of zero has plain constant values.

`uniform` heads have slopes first + k·step, all exact in the dtype. With z = exp(step·u) they are a ratio of
two polynomials in z, which is how they are evaluated fast.

A head may consist of several *pieces*, runs of keys whose scores are raised together by a steep gate,
gate_slope u + gate_level. The two parts of a score are stored apart: a gate may be a million times as steep as the
slopes within a piece, and their sum would lose the latter's digits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from anchorhead.arithmetic import Array, softmax
from anchorhead.head.numbers import HORNER_DEPTH, NUMBERS


@dataclass(frozen=True)
class Head:
    """slopes, intercepts, constants, gains: each (keys,), float64. `uniform`: slopes are evenly spaced.

    sizes: the number of keys of each piece, one piece unless given; gate_slopes, gate_levels: (pieces,).
    """

    slopes: Array
    intercepts: Array
    constants: Array
    gains: Array
    uniform: bool
    sizes: tuple[int, ...] = ()
    gate_slopes: Array = field(default_factory=lambda: np.zeros(1))
    gate_levels: Array = field(default_factory=lambda: np.zeros(1))

    def __post_init__(self) -> None:
        if not self.sizes:
            object.__setattr__(self, "sizes", (len(self.slopes),))

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return len(self.slopes)

    @property
    def beta(self) -> float:
        """The steepest difference of slopes between neighbouring keys: how sharply the head selects."""
        slopes = self.slopes + np.repeat(self.gate_slopes, self.sizes)
        return float(np.abs(np.diff(np.sort(slopes))).max()) if self.keys > 1 else 0.0

    @property
    def largest_value(self) -> float:
        """The largest |constant| or |gain|, which decides how much rounding costs."""
        return float(max(np.abs(self.constants).max(), np.abs(self.gains).max()))

    def weights(self, u: Array) -> Array:
        """Attention weights (..., keys)."""
        flat = np.asarray(u, dtype=np.float64).reshape(-1)
        return np.moveaxis(self._by_key(flat).reshape(self.keys, *np.shape(u)), 0, -1)

    def _by_key(self, u: Array) -> Array:
        """Attention weights at points (n,), as (keys, n)."""
        scores = self.slopes[:, None] * u + self.intercepts[:, None]
        if self.gate_slopes.any() or self.gate_levels.any():
            scores += np.repeat(self.gate_slopes[:, None] * u + self.gate_levels[:, None], self.sizes, axis=0)
        return softmax(scores)

    def __call__(self, u: Array) -> Array:
        """h(u) in float64, literally; the same bits on every machine."""
        flat = np.asarray(u, dtype=np.float64).reshape(-1)
        values = self.constants[:, None] + self.gains[:, None] * flat
        return np.add.reduce(self._by_key(flat) * values, 0).reshape(np.shape(u))

    def rounded(self, dtype: type[np.floating]) -> Head:
        """The same head with every number rounded to the dtype; no longer `uniform` if Horner's rule would overflow."""
        head = replace(self, **{n: getattr(self, n).astype(dtype).astype(np.float64) for n in NUMBERS})
        depth = float(head.intercepts.max() - min(head.intercepts[0], head.intercepts[-1]))
        return replace(head, uniform=head.uniform and depth < HORNER_DEPTH[np.dtype(dtype).name])
