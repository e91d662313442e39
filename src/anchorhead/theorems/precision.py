"""Which dtypes can hold a head of anchors.

Scores are centred: with u' = u - m and L' = L - m for the middle m of the range, |L'| <= R. The head
computes fl(fl(βu') · 2L') + fl(β · fl(L'²)). Rounding of u' and of βu' is common to all keys: it moves u by
a few units in the last place and no more. What differs from key to key, with unit roundoff ρ and |u'| <= R,
is at most ρ(2βR² + 2βR² + 3βR²) = 7ρβR² =: η. (Outside the range scores grow like 2β|u'|R, and so do the
gaps between them, 2βh|u' - R|; since ρ is far below h/R there, the range is the worst case, until overflow.)

Two scores off by η each move the blend of two neighbours as if u had moved by η/(βh) = (η/Λ)h, and let
further anchors keep exp(2η) times their weight, at most 4h·t·(exp(2η) - 1) more in the output; values and
their sum round by 8ρ max|value|. The dtype holds the head when all this fits twice into the room that the
theorem's (high - low)/p leaves above `two_point_error`, and when no logit overflows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from anchorhead.errors import PrecisionError
from anchorhead.theorems.anchors import two_point_error

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class AnchorHead:
    """The numbers that decide precision: a uniform head on [low, high] whose resolution the theorem states."""

    low: float
    high: float
    spacing: float
    temperature: float
    resolution: float

    @property
    def radius(self) -> float:
        """R, half of the range."""
        return (self.high - self.low) / 2

    @property
    def logit_range(self) -> float:
        """Largest |score| for u in range: 2βR² + βR²."""
        return 3 * self.temperature * self.radius**2

    def rounding(self, dtype: torch.dtype) -> float:
        """Bound on what rounding adds to the output, by the argument at the top; inf if logits overflow."""
        unit, gap = torch.finfo(dtype).eps / 2, self.temperature * self.spacing**2
        if self.logit_range > torch.finfo(dtype).max:
            return math.inf
        eta = 7 * unit * self.temperature * self.radius**2
        if eta > 300:
            return math.inf
        others = 4 * self.spacing * math.exp(-gap) * math.expm1(2 * eta)
        return eta / gap * self.spacing + others + 8 * unit * max(abs(self.low), abs(self.high))

    def holds(self, dtype: torch.dtype) -> bool:
        """Whether the theorem's bound survives rounding in this dtype."""
        room = self.resolution - two_point_error(self.temperature * self.spacing**2) * self.spacing
        return 2 * self.rounding(dtype) <= room

    def reach(self, dtype: torch.dtype) -> float:
        """The largest |u - middle| whose logits do not overflow in this dtype."""
        return torch.finfo(dtype).max / (2 * self.temperature * max(self.radius, 1.0))

    def require(self, dtype: torch.dtype) -> None:
        """Refuses a dtype that cannot hold this head, with the logit range and the way out."""
        if dtype not in DTYPES:
            names = ", ".join(str(d) for d in DTYPES)
            raise PrecisionError(
                f"dtype={dtype} is not a floating dtype that a head can be built in; choose from {names}."
            )
        if self.holds(dtype):
            return
        wider = [d for d in DTYPES if torch.finfo(d).eps < torch.finfo(dtype).eps and self.holds(d)]
        advice = f"use dtype={wider[-1]}" if wider else "no wider dtype holds it either"
        raise PrecisionError(
            f"{dtype} cannot hold this head: at temperature {self.temperature:.6g} the logits span "
            f"±{self.logit_range:.3g}, and rounding would move the output by {self.rounding(dtype):.3g} where the "
            f"theorem leaves {self.resolution:.3g}. {advice[0].upper()}{advice[1:]}, or take fewer anchors, a wider "
            "selection_error or a lower temperature."
        )
