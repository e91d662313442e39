"""Which dtypes can hold a head of anchors.

Scores are centred: with u' = u - m and L' = L - m for the middle m of the range, |L'| <= R. The head
computes fl(fl(u' · fl(2βL')) + fl(βL'²)), or the same with β on the other side. Rounding of u' is common to all
keys: it only moves u. What differs from key to key, with unit roundoff ρ and |u'| <= R, is at most
ρ(4βR² + βR² + 3βR²) = 8ρβR² =: η. (Outside the range scores grow like 2β|u'|R, and so do the gaps between
them, 2βh|u' - R|; since ρ is far below h/R there, the range is the worst case, until overflow.)

Two scores off by η each move the blend of two neighbours as if u had moved by η/(βh) = (η/Λ)h, and let
further anchors keep exp(2η) times their weight, at most 4h·t·(exp(2η) - 1) more in the output; values and
their sum round by 8ρ max|value|. The dtype holds the head when all this fits twice into the room that the
theorem's (high - low)/p leaves above `two_point_error`, and when every number that is stored or computed, β, R²,
βR², |t - m|, is within the dtype's range.

*The sum itself.* u = w·x + t is a sum of d + 1 terms, and its rounding is ρ times the largest of them, not of u:
at most (d + 3)ρ(|w_1 x_1| + ... + |t - m|). It moves u, and so the output, by that much. The part that is known
when the head is built, |t - m|, is checked then; `summand_limit` is the size of the sum of absolute terms up to
which the bound holds with rounding included. It ends where the sum or a score may overflow, too: `reach`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from anchorhead.digits import Down, Up
from anchorhead.errors import PrecisionError
from anchorhead.theorems.anchors import selection_error_at, two_point_error

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

BETAS = ((0.8, 0.5, 0.25, 0.1), (2.0, 4.0, 10.0, 100.0))
"""Lower and higher βs that are tried before one is advised, as factors."""


def require_held(dtype: torch.dtype) -> torch.dtype:
    """Refuses a dtype that no head can be built in."""
    if dtype not in DTYPES:
        names = ", ".join(str(d) for d in DTYPES)
        raise PrecisionError(f"dtype={dtype} is not a floating dtype that a head can be built in; choose from {names}.")
    return dtype


@dataclass(frozen=True)
class AnchorHead:
    """The numbers that decide precision: a uniform head on [low, high] whose resolution the theorem states.

    offset: the largest |t - m|, where it is known.
    """

    low: float
    high: float
    spacing: float
    beta: float
    resolution: float
    offset: float = 0.0

    @property
    def radius(self) -> float:
        """R, half of the range."""
        return (self.high - self.low) / 2

    @property
    def logit_range(self) -> float:
        """Largest |score| for u in range: 2βR² + βR²."""
        return 3 * self.beta * self.radius**2

    @property
    def room(self) -> float:
        """What the theorem leaves for rounding: its resolution less what two neighbours can be off."""
        return self.resolution - two_point_error(self.beta * self.spacing**2) * self.spacing

    def theorem_bound(self, losers: int) -> float:
        """The theorem's number: max(|low|, |high|)·ε + resolution, ε the weight that so many keys keep."""
        astray = selection_error_at(self.beta, losers, self.spacing)
        return max(abs(self.low), abs(self.high)) * astray + self.resolution

    def _in_range(self, dtype: torch.dtype) -> bool:
        limits = torch.finfo(dtype)
        size = max(abs(self.low), abs(self.high))
        numbers = (self.logit_range, self.beta, 2 * self.beta * self.radius, self.radius**2, size, self.offset)
        least = min(self.radius**2, self.spacing, 2 * self.beta * self.spacing)
        return max(numbers) <= limits.max and least >= limits.tiny / limits.eps

    def rounding(self, dtype: torch.dtype) -> float:
        """Bound on what rounding adds to the output, by the argument at the top; inf if a number overflows."""
        unit, gap = torch.finfo(dtype).eps / 2, self.beta * self.spacing**2
        if not self._in_range(dtype):
            return math.inf
        eta = 8 * unit * self.beta * self.radius**2
        if eta > 300:
            return math.inf
        others = 4 * self.spacing * math.exp(-gap) * math.expm1(2 * eta)
        moved = 2 * unit * self.offset
        return eta / gap * self.spacing + others + 8 * unit * max(abs(self.low), abs(self.high)) + moved

    def holds(self, dtype: torch.dtype) -> bool:
        """Whether the theorem's bound survives rounding in this dtype."""
        return 2 * self.rounding(dtype) <= self.room

    def summand_limit(self, dtype: torch.dtype, features: int) -> float:
        """The largest |w_1 x_1| + ... + |t - m| at which rounding of the sum still fits below the bound, and no score
        overflows."""
        unit = torch.finfo(dtype).eps / 2
        rounded = (self.room - self.rounding(dtype)) / ((features + 3) * unit)
        return max(0.0, min(rounded, self.reach(dtype)))

    def reach(self, dtype: torch.dtype) -> float:
        """The largest |u - middle| that is a number of this dtype and whose scores, 2βu'L' - βL'² with L' up to a
        spacing past the range, or 2βu' alone, do not overflow in it, rounded as they are."""
        limits, furthest = torch.finfo(dtype), self.radius + self.spacing
        largest = limits.max * (1 - 8 * limits.eps)
        return max(0.0, min(largest, (largest - self.beta * furthest**2) / (2 * self.beta * max(furthest, 1.0))))

    def require(self, dtype: torch.dtype) -> None:
        """Refuses a dtype that cannot hold this head, with the logit range and the way out."""
        if self.holds(require_held(dtype)):
            return
        wider = [d for d in DTYPES if torch.finfo(d).eps < torch.finfo(dtype).eps and self.holds(d)]
        first = f"Use dtype={wider[-1]}, or take" if wider else "No wider dtype holds it either; take"
        bias = (
            f" (the bias is {self.offset:.3g} from the middle of the range)" if self.offset > 100 * self.radius else ""
        )
        moved, width = self.rounding(dtype), self.high - self.low
        said = f"{Up(moved):.3g}" if moved < width else f"as much as its range is wide, {width:.3g}"
        raise PrecisionError(
            f"{dtype} cannot hold this head: at β = {self.beta:.6g} the logits span ±{self.logit_range:.3g} in its "
            f"range, and rounding may move the output by {said}, of which twice must fit into the "
            f"{Down(self.room):.3g} that the theorem leaves{bias}. {first} {self._instead(dtype)}."
        )

    def _instead(self, dtype: torch.dtype) -> str:
        """What else may be held: fewer anchors, and another β if that alone mends it."""
        lower, higher = (any(replace(self, beta=self.beta * k).holds(dtype) for k in factors) for factors in BETAS)
        other = ", a larger selection_error or a lower β" * lower or " or a higher β" * higher
        return f"fewer anchors{other}"
