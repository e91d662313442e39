"""How large the numbers of a grid network get for inputs in its box, and which dtypes hold it.

*Ramps.* A head of layer 1 has the query (β(x - e)/δ, β) and the keys (2L', -L'²), |L'| <= 1/2, β being that of the
ramps. Its scores 2L'β(x - e)/δ - βL'² are largest in size at an end of the box, with the edge that is furthest from it,
r away, and the anchor on the other side:

    βr/δ + β/4,        r = (g - 1)w, and gw where grids are shifted

*Look-up.* A ramp rises with u, being the mean of anchors under softmax, so that the ramps of a coordinate fall from
edge to edge: its bumps are not negative and sum to one, and 0 <= βR_v <= βD. On own columns scores are β(2u'i' - i'²),
|u'| <= (P - 1)/2, i' from -(P - 1)/2 to the last number of the list, I >= (P - 1)/2: at most βI(P - 1 + I), at
u' = -(P - 1)/2 and i' = I. All this is but for rounding.

*Dtype.* A query is summed from βx/δ and -βe/δ, which are of size βM/δ where the box lies far from zero, M the largest
|x| or |e|; columns without a token have x = 0. So β/δ, β(M/δ + 1/4), the scores, the box and the values, with a margin
for their rounding, are numbers of the dtype; the slopes can be resolved (`grid.py`), the ramps told apart
(`precision.py`), and the cells numbered (`own_columns.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from anchorhead.errors import PrecisionError
from anchorhead.theorems.grid import Grid
from anchorhead.theorems.own_columns import list_size, require_own
from anchorhead.theorems.precision import AnchorHead


def ramp_head(anchors: int, beta: float) -> AnchorHead:
    """The numbers of a ramp that decide precision."""
    return AnchorHead(0.0, 1.0, 1 / (anchors - 1), beta, 1 / anchors)


@dataclass(frozen=True)
class GridScores:
    """The numbers that decide precision: the box, the grids that are looked up, anchors and β of a ramp, β of the
    look-up, and whether it is by heads on own columns."""

    box: Grid
    grids: tuple[Grid, ...]
    anchors: int
    ramp_beta: float
    beta: float
    numbered: bool

    @property
    def width(self) -> float:
        """δ, the width of a slope."""
        return self.box.slope * self.box.cell

    @property
    def edges(self) -> tuple[float, float]:
        """The first and the last edge of all grids."""
        firsts = [grid.low + grid.cell for grid in self.grids]
        lasts = [grid.low + grid.cell * (grid.levels - 1) for grid in self.grids]
        return min(firsts), max(lasts)

    @property
    def ramps(self) -> float:
        """Largest |score| of layer 1 for inputs in the box."""
        first, last = self.edges
        furthest = max(self.box.high - first, last - self.box.low)
        return self.ramp_beta * (furthest / self.width + 1 / 4)

    @property
    def lookup(self) -> float:
        """Largest |score| of the look-up for inputs in the box."""
        if not self.numbered:
            return self.beta * self.box.coordinates
        points = self.grids[0].points
        last = list_size(self.grids[0]) - 1 - (points - 1) / 2
        return self.beta * last * (points - 1 + last)

    @property
    def logit_range(self) -> float:
        """Largest |score| of any layer for inputs in the box."""
        return max(self.ramps, self.lookup)

    @property
    def size(self) -> float:
        """M, the largest |x| or |e|."""
        return max(abs(v) for v in (self.box.low, self.box.high, *self.edges))

    def largest(self) -> float:
        """The largest number that is stored or computed, values apart."""
        query = self.ramp_beta * (max(1.0, self.size) / self.width + 1 / 4)
        return max(query, self.logit_range, 2 * self.beta, self.size)

    def require(self, dtype: torch.dtype) -> None:
        """Refuses a dtype that cannot hold the network."""
        for grid in self.grids:
            grid.require_resolution(dtype)
        ramp_head(self.anchors, self.ramp_beta).require(dtype)
        if self.numbered:
            require_own(self.grids[0], self.beta, dtype)
        limit = largest_held(dtype)
        if not self.largest() <= limit:
            raise PrecisionError(
                f"{dtype} ends at {limit:.4g}, and numbers of this network reach {self.largest():.4g} for inputs in "
                f"[{self.box.low}, {self.box.high}]: a ramp looks at β = {self.ramp_beta:.6g} times the distance from "
                f"an edge over the width of a slope, {self.width:.3g}. Use a wider dtype, a larger slope or "
                "selection_error, or a wider box for scaled inputs."
            )

    def holds(self, dtype: torch.dtype) -> bool:
        """Whether the dtype can hold the network."""
        try:
            self.require(dtype)
        except PrecisionError:
            return False
        return True

    def reach(self, dtype: torch.dtype) -> float:
        """How far outside the box an input may be: beyond that a score of a ramp may overflow, which in float16 is a
        few boxes away."""
        away = ramp_head(self.anchors, self.ramp_beta).reach(dtype) * self.width - (self.box.high - self.box.low)
        summed = largest_held(dtype) * self.width / self.ramp_beta - self.size
        return max(0.0, min(away, summed, largest_held(dtype) - self.size))


def largest_held(dtype: torch.dtype) -> float:
    """The largest number that is sure to be one in a dtype after some roundings."""
    return torch.finfo(dtype).max * (1 - 8 * torch.finfo(dtype).eps)


def require_values(largest: float, coordinates: int, dtype: torch.dtype) -> None:
    """Refuses a dtype in which the values of f, or what is weighed of them, overflow."""
    if not largest * (1 + 8 * (coordinates + 1) * torch.finfo(dtype).eps) <= largest_held(dtype):
        raise PrecisionError(
            f"f has values of size {largest:.4g} on the grid, and {dtype} ends at {torch.finfo(dtype).max:.4g}. Use a "
            "wider dtype, or scale f."
        )
