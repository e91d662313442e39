"""Second pass: for a method and a number of keys, the head that fits the target best.

A `Fit` knows how to build a head with any number of keys for its target; the search (`search.py`) decides how
many. `least` is the smallest number of keys that the method can have.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from flint import arb

from anchorhead.compiler.target import Target, affine_form
from anchorhead.errors import InputError
from anchorhead.expression.balls import jet
from anchorhead.expression.pieces import Piece
from anchorhead.heads.fitting import Affine
from anchorhead.heads.gated import gated
from anchorhead.heads.head import Array, Head
from anchorhead.heads.kinked import Kink, kinked, single_key
from anchorhead.heads.nearest import nearest
from anchorhead.heads.smooth import smooth

METHODS = ("auto", "gated", "smooth", "kinked", "nearest")
TRIAL_KEYS = 6
GATE_SHARE = 0.3
"""The share of the tolerance that gates get where pieces need keys of their own."""


@dataclass
class Goal:
    """The approximation error wanted, the largest value allowed, and points to include in the samples."""

    error: float
    limit: float
    extra: Array = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class Fit:
    """A method applied to a target. `cuts`: points where boxes of a proof should begin."""

    method: str
    least: int
    most: int
    build: Callable[[int, Goal], Head]
    cuts: Callable[[Head], list[float]] = lambda head: []


def fit_for(target: Target, method: str) -> Fit:
    """The fit for that method; `auto` takes kinked where there are kinks and gated otherwise."""
    if method not in METHODS:
        raise InputError(f"method={method!r} must be one of {', '.join(METHODS)}.")
    if method == "auto":
        method = "kinked" if target.kinks else "gated"
    if method in ("smooth", "nearest") and not target.bounded:
        raise InputError(
            f"method='{method}' has constant values and needs a bounded domain; use 'gated' or give a domain."
        )
    if method == "kinked":
        return _kinked(target)
    if method == "gated":
        return _gated(target)
    f = target.function()
    if method == "smooth":
        layout = _Layout(lambda keys, goal, side: smooth(f, target.low, target.high, keys, side=side, goal=goal.error,
                                                         limit=goal.limit, extra=goal.extra))  # fmt: skip
        return Fit("smooth", 1, 192, layout.build)
    return Fit("nearest", 2, 4096, lambda keys, goal: nearest(f, target.low, target.high, keys)[1])


class _Layout:
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


def _gated(target: Target) -> Fit:
    whole = Piece(target.low, target.high, target.node)
    found = _PieceFit(target, whole)
    return Fit("gated", found.least, 192, found.build)


class _PieceFit:
    """A gated head for one smooth piece, fitted a little past its kinks, or to its asymptotes where it is infinite."""

    def __init__(self, target: Target, piece: Piece) -> None:
        self.piece = piece
        self.f = target.function(piece.node)
        self.affine = affine_form(piece.node, target.variable, piece.low, piece.high)
        self.left = self.right = None
        self.low, self.high = piece.low, piece.high
        self.rates: list[float] = []
        self.layout = _Layout(self._fit)
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

    def _away(self, low: float, high: float) -> tuple[float, float]:
        """Where the target is away from its one asymptote, by more than a hundredth of what it ever is."""
        line = self.left or self.right
        assert line is not None
        u = np.linspace(low, high, 1001)
        gap = np.abs(self.f(u) - line.constant - line.gain * u)
        apart = u[gap > 0.01 * gap.max()]
        return (float(apart[0]), float(apart[-1])) if len(apart) else (low, high)

    def _centre(self, low: float, high: float) -> float:
        """Where the middle key belongs: where the target goes over from one asymptote to the other."""
        if self.left is None and self.right is None:
            return (low + high) / 2
        if self.left is None or self.right is None:
            low, high = self._away(low, high)
            return 0.0 if low <= 0 <= high else (low + high) / 2
        nearest_to_zero = min(max(0.0, low), high)

        def balance(u: float) -> float:
            assert self.left is not None
            assert self.right is not None
            value = float(self.f(np.array([u]))[0])
            lines = [line.constant + line.gain * u for line in (self.left, self.right)]
            return abs(value - lines[0]) - abs(value - lines[1])

        if balance(nearest_to_zero) == 0 or not balance(low) < 0 < balance(high):
            return nearest_to_zero
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if balance(middle) < 0 else (low, middle)
        return round(low, 10) + 0.0


def _kinked(target: Target) -> Fit:
    if not target.kinks:
        raise InputError(f"{target.expression} has no kinks in the domain; use method='gated' or 'auto'.")
    kinks = [_kink(target, left, right) for left, right in itertools.pairwise(target.pieces)]
    smooth_pieces = sum(affine_form(p.node, target.variable, p.low, p.high) is None for p in target.pieces)

    fits = [_PieceFit(target, piece) for piece in target.pieces]

    def build(keys: int, goal: Goal) -> Head:
        gate = goal.error * (GATE_SHARE if smooth_pieces else 0.99)
        sharp = [kink.sharpness(gate) for kink in kinks]
        room = [30 / s for s in sharp]
        for fit, before, after in zip(fits, [0.0, *room], [*room, 0.0], strict=True):
            fit.extend(before, after)
        shares = _share(keys, fits)
        inner = Goal(goal.error * (0.97 - GATE_SHARE), goal.limit, goal.extra)
        heads = [fit.build(count, inner) for fit, count in zip(fits, shares, strict=True)]
        return kinked(heads, [kink.place for kink in kinks], sharp)

    least = len(target.pieces)
    cuts = [kink.place for kink in kinks]
    return Fit("kinked", least, least if not smooth_pieces else 192, build, lambda head: _cuts(cuts, head))


def _cuts(places: list[float], head: Head) -> list[float]:
    """Each kink, and points around it at the scale of its gate."""
    scale = 1 / max(head.temperature, 1e-300)
    return [c + scale * t for c in places for t in (-30.0, -4.0, 0.0, 4.0, 30.0)]


def _share(keys: int, fits: list[_PieceFit]) -> list[int]:
    """One key for an affine piece, the rest shared evenly by the others."""
    smooth_fits = [f for f in fits if f.affine is None]
    left = keys - (len(fits) - len(smooth_fits))
    each, spare = divmod(max(left, len(smooth_fits)), max(len(smooth_fits), 1))
    shares = []
    for fit in fits:
        if fit.affine is not None:
            shares.append(1)
        else:
            shares.append(max(each + (spare > 0), fit.least))
            spare -= 1
    return shares


def _kink(target: Target, left: Piece, right: Piece) -> Kink:
    """Where two pieces meet, and how much slope and curvature jump, read off their Taylor coefficients."""
    place = arb(right.low)
    before, after = (jet(p.node, target.variable, place, 2) for p in (left, right))
    if min(len(before), len(after)) < 3:
        return Kink(right.low, 1.0, 1.0)
    jumps = [abs(float((a - b).mid())) for a, b in zip(before, after, strict=False)]
    return Kink(right.low, jumps[1], 2 * jumps[2])
