"""Second pass: for a method and a number of keys, the head that fits the target best.

A `Fit` knows how to build a head with any number of keys for its target; the search (`search.py`) decides how
many. `least` is the smallest number of keys that the method can have.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from flint import arb

from anchorhead.compiler.piece import Goal, Layout, PieceFit
from anchorhead.compiler.target import Target, affine_form
from anchorhead.enclosure.balls import jet
from anchorhead.enclosure.pieces import Piece
from anchorhead.errors import InputError
from anchorhead.head.head import Head
from anchorhead.head.kinked import Kink, kinked
from anchorhead.head.nearest import nearest
from anchorhead.head.smooth import smooth

METHODS = ("auto", "gated", "smooth", "kinked", "nearest")
GATE_SHARE = 0.3
"""The share of the tolerance that gates get where pieces need keys of their own."""


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
        layout = Layout(lambda keys, goal, side: smooth(f, target.low, target.high, keys, side=side, goal=goal.error,
                                                         limit=goal.limit, extra=goal.extra))  # fmt: skip
        return Fit("smooth", 1, 192, layout.build)
    return Fit("nearest", 2, 4096, lambda keys, goal: nearest(f, target.low, target.high, keys)[1])


def _gated(target: Target) -> Fit:
    whole = Piece(target.low, target.high, target.node)
    found = PieceFit(target, whole)
    return Fit("gated", found.least, 192 if found.affine is None else 1, found.build)


def _kinked(target: Target) -> Fit:
    if not target.kinks:
        raise InputError(f"{target.expression} has no kinks in the domain; use method='gated' or 'auto'.")
    kinks = [kink_between(target, left, right) for left, right in itertools.pairwise(target.pieces)]
    smooth_pieces = sum(affine_form(p.node, target.variable, p.low, p.high) is None for p in target.pieces)

    fits = [PieceFit(target, piece) for piece in target.pieces]

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
    scale = 1 / max(head.beta, 1e-300)
    return [c + scale * t for c in places for t in (-30.0, -4.0, 0.0, 4.0, 30.0)]


def _share(keys: int, fits: list[PieceFit]) -> list[int]:
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


def kink_between(target: Target, left: Piece, right: Piece) -> Kink:
    """Where two pieces meet, and how much slope and curvature jump, read off their Taylor coefficients."""
    place = arb(right.low)
    before, after = (jet(p.node, target.variable, place, 2) for p in (left, right))
    if min(len(before), len(after)) < 3:
        return Kink(right.low, 1.0, 1.0)
    jumps = [abs(float((a - b).mid())) for a, b in zip(before, after, strict=False)]
    return Kink(right.low, jumps[1], 2 * jumps[2])
