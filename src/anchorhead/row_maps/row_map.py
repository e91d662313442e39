"""A row map: what turns the scores of a row into weights, where attention has softmax.

    h'(x) = sum over k of  weight_k(s_1, .., s_n) (constant_k + gain_k x),     s_k = slope_k x + intercept_k

A map that has a proof knows the *curve* that a head becomes under it (`proof/curve.py`): Taylor coefficients on every
box, with what it leaves open as slack, and what evaluating it in floating point adds. The rest, boxes, certificate and
file, is the same for all. A map that has a construction also makes the head whose values are solved for it.

Weights are written with a tensor's own methods, so that checking a file needs no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from flint import arb

from anchorhead.dtypes import LEAST_NORMAL, UNIT
from anchorhead.enclosure.precision import ball
from anchorhead.enclosure.tails import Tail
from anchorhead.errors import InputError
from anchorhead.head.head import Head
from anchorhead.proof.curve import HeadCurve
from anchorhead.proof.rounding import ASSUMPTIONS

if TYPE_CHECKING:
    from torch import Tensor

    from anchorhead.arithmetic import Array

Function = Callable[[Any], Any]


class RowMap(ABC):
    """What turns scores into weights. reason: why nothing is proved, where nothing is. assumptions: what a proof rests
    on.

    >>> isinstance(ah.row_maps.Sigmoid(), ah.row_maps.RowMap)
    True
    """

    name: ClassVar[str]
    reason: ClassVar[str] = ""
    assumptions: ClassVar[tuple[str, ...]] = tuple(ASSUMPTIONS[:3])

    @abstractmethod
    def weights(self, scores: Tensor) -> Tensor:
        """Scores (..., keys) as weights (..., keys)."""

    @property
    def sizes(self) -> tuple[int, int] | None:
        """The fewest and the most keys of its construction; None where it has none."""
        return None

    def curve(self, head: Head) -> MappedCurve | None:
        """What the head becomes; None where nothing is proved of it."""
        return None

    def construct(self, f: Function, low: float, high: float, keys: int, goal: float) -> Head:
        """The head of so many keys whose values are solved for this map."""
        raise InputError(f"{self.name} has no construction of its own; use model.with_row_map to see what is left.")

    def record(self) -> dict[str, Any]:
        """What a file says of it."""
        given: Any = self
        return {"name": self.name, **asdict(given)}


class MappedCurve(HeadCurve):
    """A head under another map than softmax."""

    def __init__(self, head: Head, row_map: RowMap) -> None:
        super().__init__(head, f"a head of {head.keys} keys under {row_map.name}")
        self.unit, self.least = arb(UNIT[head.dtype]), arb(LEAST_NORMAL[head.dtype])

    def tail(self, sign: int, start: float) -> Tail | None:
        return None

    @abstractmethod
    def rounding(self, low: float, high: float) -> arb:
        """What evaluating it in its dtype may add on a box."""

    def scores(self, low: float, high: float) -> list[arb]:
        """Every key's score over a box."""
        x, balls = ball(low, high), self.head.balls
        return [s * x + c for s, c in zip(balls.slopes, balls.intercepts, strict=True)]

    def values(self, low: float, high: float) -> list[arb]:
        """Every key's value over a box."""
        x, balls = ball(low, high), self.head.balls
        return [a + g * x for a, g in zip(balls.constants, balls.gains, strict=True)]

    def moved(self, low: float, high: float) -> list[arb]:
        """What rounds in each score: products and sums of the key's own part and its gate's, five in all."""
        x, balls = abs(ball(low, high)).upper(), self.head.balls
        sizes = [(s + g) * x + c + b for (s, c), (g, b) in zip(balls.own, balls.gates, strict=True)]
        return [(5 * self.unit * size + self.least).upper() for size in sizes]


def total(terms: list[arb]) -> arb:
    """The sum of balls."""
    return sum(terms, arb(0))


def placed(low: float, high: float, count: int) -> Array:
    """Evenly spaced places, both ends included."""
    import numpy as np

    return np.linspace(low, high, count)


def require_whole(row_map: RowMap, **most: int) -> None:
    """Refuses what is not a whole number from 1 to the most that is named."""
    for name, limit in most.items():
        given = getattr(row_map, name)
        if type(given) is not int or not 1 <= given <= limit:
            raise InputError(f"{name}={given!r:.40} must be a whole number from 1 to {limit}.")
