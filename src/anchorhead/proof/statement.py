"""What is to be proved: a target, a domain, and the exact numbers of a head."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from anchorhead.enclosure.precision import precision
from anchorhead.expression.graph import Node
from anchorhead.head.balls import HeadBalls


@dataclass(frozen=True)
class Statement:
    """For every `variable` in [low, high], target and head differ by at most some number.

    low and high may be infinite. The lists are the head's numbers as stored in `dtype`, exactly; `uniform` says
    that it is evaluated by Horner's rule.
    """

    target: Node
    variable: str
    low: float
    high: float
    dtype: str
    slopes: tuple[float, ...]
    intercepts: tuple[float, ...]
    constants: tuple[float, ...]
    gains: tuple[float, ...]
    uniform: bool
    sizes: tuple[int, ...]
    gate_slopes: tuple[float, ...]
    gate_levels: tuple[float, ...]

    @cached_property
    def head(self) -> HeadBalls:
        """The head as balls; made within the precision that the proof works in."""
        with precision():
            return HeadBalls(self.slopes, self.intercepts, self.constants, self.gains, self.sizes, self.gate_slopes,
                             self.gate_levels)  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        """Without the balls, which cannot be copied and are made anew."""
        return {name: value for name, value in self.__dict__.items() if name != "head"}

    @property
    def unit(self) -> float:
        """The unit roundoff of the dtype."""
        return {"float64": 2.0**-53, "float32": 2.0**-24}[self.dtype]

    @property
    def bounded(self) -> bool:
        """Whether both ends of the domain are finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)
