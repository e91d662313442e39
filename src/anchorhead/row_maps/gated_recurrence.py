"""MetaLA's recurrence: linear attention whose state decays, without keys of its own (Chou et al. 2024).

The state after token k is S_k = a S_(k-1) + (1 - a) (key_k, value_k), and a query reads its inner product with it:

    h'(x) = (1 - a) · sum over k of  a^(n-1-k) (slope_k x + intercept_k) value_k

The anchors are read before the query, and the first of n is forgotten by a^(n-1). What is worse: scores enter as they
are, so that for constant values h' is *affine* in x, whatever the values; no choice of them follows a function that
is not. Decay that depends on the token changes the factors, which are constants of the anchors, and not this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anchorhead.errors import InputError
from anchorhead.row_maps.row_map import RowMap

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class GatedRecurrence(RowMap):
    """(1 - decay) decay^(keys after it) times the score.

    >>> scores = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    >>> [round(w, 4) for w in ah.row_maps.GatedRecurrence(decay=0.5).weights(scores).tolist()]
    [0.0, 0.25, 1.5]
    """

    decay: float = 0.9
    name = "gated_recurrence"
    reason = "what a query reads is affine in it, whatever the values: no guarantee survives"

    def __post_init__(self) -> None:
        if not (isinstance(self.decay, int | float) and 0 < self.decay < 1):
            raise InputError(f"decay={self.decay!r:.40} must be a number between 0 and 1.")

    def weights(self, scores: Tensor) -> Tensor:
        later = scores.new_ones(scores.shape[-1]).cumsum(-1).flip(-1) - 1
        return (1 - self.decay) * self.decay**later * scores
