"""A head for one smooth piece of a target: where to fit it, what to pin, where its keys belong.

A side that extends to infinity is cut where the target has settled on its asymptote, and the outermost key is pinned to
that; so is a side of a bounded domain on which the target settles long before the end. The middle key sits where the
target goes over from one asymptote to the other. On an interval without asymptotes keys are evenly spaced, or crowd
at one place if that is found to be better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from anchorhead.arithmetic import exp_of, geometric, log_of
from anchorhead.compiler.method import Goal
from anchorhead.compiler.target import Target, affine_form
from anchorhead.enclosure.pieces import Piece
from anchorhead.errors import InputError
from anchorhead.head.gated import gated
from anchorhead.head.head import Head
from anchorhead.head.kinked import single_key
from anchorhead.head.solve import Affine, Function, Problem
from anchorhead.head.uniform_keys import Uniform
from anchorhead.head.warped_keys import Warped

CROWDED_FROM = 4
"""The smallest number of keys that may crowd."""
HOPEFUL = 4.0
"""Crowded keys are searched where a glance gives them this many times the goal, in e-folds, or less."""


class Layout:
    """Evenly spaced keys, or keys that crowd at one of some places where that is found to fit better."""

    def __init__(self, family: Callable[[int, Goal, float | None], Uniform | Warped], places: Sequence[float]) -> None:
        self.family, self.places = family, places

    def estimate(self, keys: int, goal: Goal) -> float:
        """About the error that a head with so many keys has: what a glance at a few layouts shows."""
        even = self.family(keys, goal, None)
        if keys < least_keys(even.problem):
            return math.inf
        found = exp_of(min(even.first(coarse=True), 300.0))
        if found <= goal.error or keys < CROWDED_FROM:
            return found
        glances = [self.family(keys, goal, place).first(coarse=True) for place in self.places]
        return min([found, *(exp_of(min(glance, 300.0)) for glance in glances)])

    def build(self, keys: int, goal: Goal) -> Head:
        """Evenly spaced keys if they keep the goal; the best of all otherwise."""
        error, head = self.family(keys, goal, None).best()
        if error <= goal.error or keys < CROWDED_FROM:
            return head
        glances = sorted((self.family(keys, goal, place).first(coarse=True), place) for place in self.places)
        for glance, place in glances[:2]:
            if glance < log_of(max(goal.error, 1e-300)) + HOPEFUL or glance < log_of(max(error, 1e-300)):
                other, crowded = self.family(keys, goal, place).best()
                if other < error:
                    error, head = other, crowded
        return head


def least_keys(problem: Problem) -> int:
    """Fewer keys than this cannot come closer than the goal to the target at the samples.

    A head less a constant c is a sum of terms (a + b u) exp(s u), one for each key, over something positive: with K
    different slopes it has at most 2K - 1 zeros, or K - 1 if values are constant (G. Pólya, G. Szegő, *Problems and
    Theorems in Analysis II*, part V, 75). A target that is above c + goal and below c - goal in turn, m times, makes it
    change its sign m - 1 times.
    """
    low, high = float(problem.target.min()), float(problem.target.max())
    turns = 0
    for share in (0.2, 0.35, 0.5, 0.65, 0.8):
        off = problem.target - (low + share * (high - low))
        signs = np.sign(off[problem.measured(np.abs(off)) > problem.goal])
        turns = max(turns, int(np.count_nonzero(np.diff(signs))))
    return (turns + 2) // 2 if problem.affine else turns + 1


def crowding_places(f: Function, low: float, high: float) -> list[float]:
    """Where keys may crowd: both ends, where f bends most, and the middle of where it bends."""
    u = np.linspace(low, high, 2001)
    with np.errstate(all="ignore"):
        bend = np.sqrt(np.abs(np.diff(f(u), 2)))
    if not np.isfinite(bend).all() or not bend.any():
        return [low, high]
    total = np.cumsum(bend)
    middle = float(u[1 + int(np.searchsorted(total, total[-1] / 2))])
    steep = float(u[1 + int(np.argmax(bend))])
    inner = [c for c in dict.fromkeys((middle, steep)) if min(c - low, high - c) > 0.02 * (high - low)]
    if len(inner) == 2 and abs(inner[0] - inner[1]) < 0.01 * (high - low):
        inner.pop()
    return [low, high, *inner]


class PieceFit:
    """A gated head for one smooth piece, fitted a little past its kinks, or to its asymptotes where it is infinite."""

    def __init__(self, target: Target, piece: Piece, *, pins: bool = True) -> None:
        self.piece, self.relative = piece, target.relative
        self.unpinned: PieceFit | None = None
        self.f = target.function(piece.node)
        self.affine = affine_form(piece.node, target.variable, piece.low, piece.high)
        self.left = self.right = None
        self.low, self.high = piece.low, piece.high
        self.rates: list[float] = []
        self.layout = Layout(self._family, [])
        if self.affine is None:
            self.local = local = Target(
                type(target.expression)((piece.node,), (target.variable,)), piece.low, piece.high
            )
            bounded = math.isfinite(piece.high - piece.low)
            if pins or not bounded:
                self.left, self.right = (self._pin(local, sign) for sign in (-1, 1))
            if bounded and (self.left is not None or self.right is not None):
                self.unpinned = PieceFit(target, piece, pins=False)

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
        found = (low, high) if finite else (self.piece.low, self.piece.high)
        if found != (self.low, self.high):
            self.low, self.high = found
            self.layout.places = []
        if self.unpinned is not None:
            self.unpinned.extend(before, after)

    @property
    def _free(self) -> bool:
        """Whether nothing is pinned, so that keys may crowd."""
        return self.left is None and self.right is None and math.isfinite(self.high - self.low)

    def build(self, keys: int, goal: Goal) -> Head:
        if self.affine is not None and keys == 1:
            return single_key(self.affine.constant, self.affine.gain)
        head = self._layout().build(keys, goal)
        if self.unpinned is None or self.error(head, goal) <= goal.error:
            return head
        other = self.unpinned.build(keys, goal)
        return min((head, other), key=lambda h: self.error(h, goal))

    def estimate(self, keys: int, goal: Goal) -> float:
        """About the error of a head with so many keys."""
        if self.affine is not None:
            return 0.0
        return self._layout().estimate(keys, goal) if self._free else goal.error  # pinned keys show it only when fitted

    def error(self, head: Head, goal: Goal) -> float:
        """The largest error on a sample of where the head is fitted, finer than that of the fit."""
        if self.affine is not None and head.keys == 1:
            return 0.0
        low, high = self._interval(goal.error / 10)
        u = np.concatenate([np.linspace(low, high, 1501), low + (high - low) * geometric(1e-6, 0.1, 100),
                            high - (high - low) * geometric(1e-6, 0.1, 100)])  # fmt: skip
        exact = self.f(u)
        errors = np.abs(head(u) - exact)
        return float((errors / np.abs(exact) if self.relative else errors).max())

    def _layout(self) -> Layout:
        if self._free and not self.layout.places:
            self.layout.places = crowding_places(self.f, self.low, self.high)
        return self.layout

    def _family(self, keys: int, goal: Goal, crowd: float | None) -> Uniform | Warped:
        low, high = self._interval(goal.error / 10)
        rates = [rate for rate in dict.fromkeys(self.rates)]
        return gated(self.f, low, high, keys, left=self.left, right=self.right, rates=rates, crowd=crowd,
                     centre=self._centre(low, high), goal=goal.error, limit=goal.limit, extra=goal.extra,
                     relative=self.relative)  # fmt: skip

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
