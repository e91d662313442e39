"""What is claimed of a head: that it is as near to a function on an interval as it says, and the boxes of the proof."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from anchorhead.dtypes import LEAST_NORMAL, UNIT
from anchorhead.enclosure.balls import enclose
from anchorhead.enclosure.precision import ball, precision, upper
from anchorhead.expression.graph import Node, ordered
from anchorhead.head.head import Head
from anchorhead.proof.certificate import sum_above

if TYPE_CHECKING:
    import numpy as np

NOTHING = 2.0**-100
"""Rounding, over 1 + |u|, that is none: what underflows is far below it."""


@dataclass(frozen=True)
class HeadClaim:
    """For every `variable` in [low, high], either of which may be infinite, |function - head| is at most some number.

    relative: at most that number times |function|. approximation: the number for the head in exact arithmetic, on an
    unbounded interval but for the drift of end keys (`far.py`). rounding: what evaluating it in its dtype adds, over
    1 + |u| on an unbounded interval, and there that drift. edges: the ends of the boxes that prove it. evaluation:
    `fast` where rounding is that of the fast evaluation alone, as it always is of a head of joined pieces, empty where
    it is that of both. beside: of a relative claim what evaluation adds absolutely, if that is known, beside its
    rounding. method: how the head was found. A claim that is yet to be proved has neither edges nor bounds.
    """

    function: Node
    variable: str
    low: float
    high: float
    head: Head
    method: str = ""
    edges: tuple[float, ...] = ()
    approximation: float = math.inf
    rounding: float = math.inf
    relative: bool = False
    evaluation: str = ""
    beside: float = 0.0

    def __post_init__(self) -> None:
        if self.head.joined:
            object.__setattr__(self, "evaluation", "fast")

    @property
    def keys(self) -> int:
        """How many keys the head has."""
        return self.head.keys

    @cached_property
    def parts(self) -> int:
        """How many parts the function has."""
        return len(ordered([self.function]))

    @property
    def constant_values(self) -> bool:
        """Whether its values are constants, so that it can carry a partner."""
        return not any(self.head.gains)

    @property
    def unit(self) -> float:
        """The unit roundoff of the dtype."""
        return UNIT[self.head.dtype]

    def arrays(self, head: Head, prefix: str = "") -> dict[str, np.ndarray]:
        """The numbers that a file holds of it: those of the head as it is now, and the edges."""
        import numpy as np

        numbers = {prefix + name: array.astype(head.dtype) for name, array in head.arrays.items()}
        return numbers | {prefix + "edges": np.array(self.edges, dtype=np.float64)}

    @property
    def absolute(self) -> tuple[float, float]:
        """Approximation and rounding as bounds on |function - head|, whatever the claim's unit is."""
        if not self.relative:
            return self.approximation, self.rounding
        with precision():
            sizes = [enclose(self.function, {self.variable: ball(*box)}) for box in itertools.pairwise(self.edges)]
            largest = max(abs(value).upper() for value in sizes)
            return upper(largest * self.approximation), upper(largest * self.rounding)

    @property
    def least(self) -> float:
        """What is added absolutely to a relative rounding: as `beside` has it, or of an odd head by underflow."""
        odd = self.head.odd if self.relative else None
        if odd is None or self.beside:
            return self.beside
        return 4 * (1 + abs(odd.height)) * (1 + max(abs(self.low), abs(self.high))) * LEAST_NORMAL[self.head.dtype]

    @property
    def bounded(self) -> bool:
        """Whether both ends of the domain are finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def telling(self) -> bool:
        """Whether something is claimed of far values: rounding leaves some of their size.

        A head is at most V·(1 + |u|), V its largest value: beside the approximation, a rounding beyond V would be kept
        by zero in its place.
        """
        return self.bounded or self.rounding <= max(self.head.largest_value, self.approximation, NOTHING)

    @property
    def bound(self) -> float:
        """What is kept: with rounding on a bounded interval, without it on an unbounded one."""
        return sum_above(self.approximation, self.rounding) if self.bounded else self.approximation
