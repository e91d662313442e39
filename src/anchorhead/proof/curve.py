"""A function of one variable as a proof of distance sees it: over a box by Taylor coefficients, far out by its tail.

On a box a curve is one of a few *parts*: a formula and a head have one, a table has those of its pieces that the box
meets. A part gives Taylor coefficients that hold at every point of a ball. Where it leaves something out (the far keys
of a large head) `slack` bounds that on the box; `over` may hold a better range than the first coefficient has.

Of a head h = N/D these are those of the quotient: with N = hD, h_j = (N_j - sum over i < j of h_i D_(j-i)) / D_0.
Far out on the right it is the value of the key e with the largest slope, and the others add at most

    sum over k of exp(b_k - kappa_k u) (|constant_k - constant_e| + |gain_k - gain_e| u)

with kappa_k = slope_e - slope_k and b_k = intercept_k - intercept_e, which is a sum of the remainders of
`enclosure/asymptotes.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flint import arb, ctx

from anchorhead.enclosure.asymptotes import NOTHING, Remainder, add_remainders
from anchorhead.enclosure.balls import jet
from anchorhead.enclosure.precision import ball
from anchorhead.enclosure.series import divide
from anchorhead.enclosure.singularities import singularities
from anchorhead.enclosure.tails import Tail, tail
from anchorhead.expression.graph import Expression, Node
from anchorhead.head.head import Head

if TYPE_CHECKING:
    import numpy as np

Jet = Callable[[arb, int], Sequence[arb]]


class Part(NamedTuple):
    """What a curve is on a box, or on a piece of it."""

    jet: Jet
    slack: arb = arb(0)
    over: arb | None = None


class Curve(ABC):
    """A function of one variable on [low, high], either of which may be infinite, with a name."""

    kind: str
    low: float = -math.inf
    high: float = math.inf

    @property
    @abstractmethod
    def name(self) -> str:
        """What a sentence calls it."""

    @abstractmethod
    def parts(self, low: float, high: float) -> Sequence[Part]:
        """What it may be on a box: at every point of it one of these."""

    @abstractmethod
    def tail(self, sign: int, start: float) -> Tail | None:
        """What it does on the side `sign` from `start` on; None where that is not known."""

    @abstractmethod
    def payload(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What a file holds of it."""

    def marks(self) -> Sequence[float]:
        """Where boxes must be cut, since one formula ends there and another begins."""
        return ()

    def check(self, low: float, high: float) -> None:
        """Raises an error where it is not defined on all of an interval; what is defined everywhere need not look."""
        return


class Formula(Curve):
    """A formula in one variable."""

    kind = "formula"

    def __init__(self, node: Node, variable: str, name: str = "") -> None:
        self.node, self.variable = node, variable
        self.text = str(Expression((node,), (variable,)))
        self._name = name or self.text

    @property
    def name(self) -> str:
        return self._name

    def parts(self, low: float, high: float) -> Sequence[Part]:
        return (Part(self._jet),)

    def _jet(self, x: arb, order: int) -> Sequence[arb]:
        return jet(self.node, self.variable, x, order)

    def tail(self, sign: int, start: float) -> Tail | None:
        return tail(self.node, self.variable, sign, start)

    def check(self, low: float, high: float) -> None:
        singularities(self.node, self.variable, low, high)

    def payload(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return {"kind": self.kind, "formula": self.text, "variable": self.variable}, {}


class HeadCurve(Curve):
    """A head, in exact arithmetic."""

    kind = "head"

    def __init__(self, head: Head, name: str = "") -> None:
        self.head, self._name = head, name or f"a head of {head.keys} keys"

    @property
    def name(self) -> str:
        return self._name

    def parts(self, low: float, high: float) -> Sequence[Part]:
        balls = self.head.balls
        keys = balls.near(low, high)
        leader = balls.leader((low + high) / 2, keys)

        def quotient(x: arb, order: int) -> Sequence[arb]:
            below, above = balls.taylor(x, leader, order, ctx.prec, keys)
            return divide(above, below)

        over = balls.over(low, high, keys) if balls.selects else None
        return (Part(quotient, balls.left_out(ball(low, high)), over),)

    def tail(self, sign: int, start: float) -> Tail | None:
        balls = self.head.balls
        leader = max(range(balls.keys), key=lambda k: sign * balls.floats[k][0])
        begin, total = arb(start), NOTHING
        for k in range(balls.keys):
            if k == leader:
                continue
            rate = sign * (balls.slopes[leader] - balls.slopes[k])
            if not rate > 0:
                return None
            level = (balls.intercepts[k] - balls.intercepts[leader]).exp()
            for power, values in enumerate((balls.constants, balls.gains)):
                size = (level * abs(values[k] - values[leader])).upper()
                total = add_remainders(total, Remainder(size, rate.lower(), power), begin)
        return Tail(balls.gains[leader], balls.constants[leader], *total, begin, sign)

    def payload(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        head = self.head
        record = {"kind": self.kind, "dtype": head.dtype, "uniform": head.horner, "sizes": list(head.sizes)}
        return record, {name: array.astype(head.dtype) for name, array in head.arrays.items()}
