"""A head for one smooth piece of a target: where to fit it, what to pin, where its keys belong.

A side that extends to infinity is cut where the target has settled on its asymptote, and the outermost key is pinned to
that; so is a side of a bounded domain on which the target settles long before the end. The middle key sits where the
target goes over from one asymptote to the other. On an interval without asymptotes keys are evenly spaced, or crowded
at one end if that is found to be better.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from anchorhead.compiler.method import Goal
from anchorhead.compiler.target import Target, affine_form
from anchorhead.enclosure.pieces import Piece
from anchorhead.errors import InputError
from anchorhead.head.gated import gated
from anchorhead.head.head import Head
from anchorhead.head.kinked import single_key
from anchorhead.head.solve import Affine

TRIAL_KEYS = 6
"""The smallest size at which layouts are compared."""


class Layout:
    """Evenly spaced keys, or keys crowded at one end once that is found to fit better, tried at doubling sizes."""

    def __init__(self, fit: Callable[[int, Goal, int], tuple[float, Head]]) -> None:
        self.fit = fit
        self.side = 0
        self.next_trial = TRIAL_KEYS

    def build(self, keys: int, goal: Goal) -> Head:
        if self.side == 0 and keys >= self.next_trial:
            self.next_trial = 2 * keys
            errors = {side: self.fit(keys, goal, side)[0] for side in (0, 1, -1)}
            crowded = min((1, -1), key=lambda s: errors[s])
            self.side = crowded if errors[crowded] < 0.3 * errors[0] and errors[0] > goal.error else 0
        return self.fit(keys, goal, self.side)[1]


class PieceFit:
    """A gated head for one smooth piece, fitted a little past its kinks, or to its asymptotes where it is infinite."""

    def __init__(self, target: Target, piece: Piece) -> None:
        self.piece = piece
        self.f = target.function(piece.node)
        self.affine = affine_form(piece.node, target.variable, piece.low, piece.high)
        self.left = self.right = None
        self.low, self.high = piece.low, piece.high
        self.rates: list[float] = []
        self.layout = Layout(self._fit)
        if self.affine is None:
            self.local = local = Target(
                type(target.expression)((piece.node,), (target.variable,)), piece.low, piece.high
            )
            self.left, self.right = (self._pin(local, sign) for sign in (-1, 1))

    @property
    def least(self) -> int:
        return 1 if self.affine is not None else max(1, (self.left is not None) + (self.right is not None))

    def _pin(self, local: Target, sign: int) -> Affine | None:
        found = local.asymptote(sign)
        end = local.high if sign > 0 else local.low
        if math.isfinite(end):
            return self._reached(found, end)
        if found is None:
            side = "right" if sign > 0 else "left"
            raise InputError(
                f"{local.expression} has no affine asymptote, approached exponentially, on the {side}, so no finite "
                "head can follow it to infinity; give a bounded domain, such as (-20, 20)."
            )
        if found[1] is not None:
            self.rates.append(found[1])
        return found[0]

    def _reached(self, found: tuple[Affine, float | None] | None, end: float) -> Affine | None:
        """The asymptote on a bounded side, if the target has settled on it well before the end of the domain."""
        if found is None or abs(end) < 4:
            return None
        u = np.array([end / 2])
        gap = abs(self.f(u)[0] - found[0].constant - found[0].gain * u[0])
        if not gap < 1e-2 * (1 + abs(found[0].gain)):
            return None
        if found[1] is not None:
            self.rates.append(found[1])
        return found[0]

    def extend(self, before: float, after: float) -> None:
        """Fits this far past the piece's ends from now on, where the piece's formula is finite there."""
        low, high = self.piece.low - before, self.piece.high + after
        ends = np.array([e for e in (low, high) if math.isfinite(e)])
        finite = bool(np.isfinite(self.f(ends)).all())
        self.low, self.high = (low, high) if finite else (self.piece.low, self.piece.high)

    def build(self, keys: int, goal: Goal) -> Head:
        if self.affine is not None and keys == 1:
            return single_key(self.affine.constant, self.affine.gain)
        if self.left is None and self.right is None and math.isfinite(self.high - self.low):
            return self.layout.build(keys, goal)
        return self._fit(keys, goal, 0)[1]

    def _fit(self, keys: int, goal: Goal, side: int) -> tuple[float, Head]:
        low, high = self._interval(goal.error / 10)
        rates = [rate for rate in dict.fromkeys(self.rates)]
        return gated(self.f, low, high, keys, left=self.left, right=self.right, rates=rates, side=side,
                     centre=self._centre(low, high), goal=goal.error, limit=goal.limit, extra=goal.extra)  # fmt: skip

    def _interval(self, error: float) -> tuple[float, float]:
        """Where to fit: the piece, cut on infinite sides where the target has settled."""
        low, high = self.low, self.high
        if math.isinf(low) and self.left is not None:
            low = self.local.settled(-1, self.left, error)
        if math.isinf(high) and self.right is not None:
            high = self.local.settled(1, self.right, error)
        if math.isinf(self.low):
            low = min(low, high - 1e-5)
        if math.isinf(self.high):
            high = max(high, low + 1e-5)
        return low, high

    def _away(self, line: Affine, low: float, high: float) -> tuple[float, float]:
        """Where the target is away from its one asymptote, by more than a hundredth of what it ever is."""
        u = np.linspace(low, high, 1001)
        gap = np.abs(self.f(u) - line.constant - line.gain * u)
        apart = u[gap > 0.01 * gap.max()]
        return (float(apart[0]), float(apart[-1])) if len(apart) else (low, high)

    def _centre(self, low: float, high: float) -> float:
        """Where the middle key belongs: where the target goes over from one asymptote to the other."""
        left, right = self.left, self.right
        if left is None or right is None:
            line = left or right
            if line is None:
                return (low + high) / 2
            low, high = self._away(line, low, high)
            return 0.0 if low <= 0 <= high else (low + high) / 2
        nearest_to_zero = min(max(0.0, low), high)

        def balance(u: float) -> float:
            value = float(self.f(np.array([u]))[0])
            first, second = (line.constant + line.gain * u for line in (left, right))
            return abs(value - first) - abs(value - second)

        if balance(nearest_to_zero) == 0 or not balance(low) < 0 < balance(high):
            return nearest_to_zero
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if balance(middle) < 0 else (low, middle)
        return round(low, 10) + 0.0
