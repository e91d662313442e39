"""Four ways to fit a head to a function of one variable: gated, smooth, kinked, and the paper's nearest anchor."""

from __future__ import annotations

import itertools

from flint import arb

from anchorhead.compiler.method import Fit, Goal, HeadMethod
from anchorhead.compiler.piece import Layout, PieceFit
from anchorhead.compiler.target import Target, affine_form
from anchorhead.enclosure.balls import jet
from anchorhead.enclosure.pieces import Piece
from anchorhead.errors import InputError
from anchorhead.head.head import Head
from anchorhead.head.kinked import Kink, kinked
from anchorhead.head.nearest import nearest
from anchorhead.head.smooth import smooth

MOST_KEYS = 192
GATE_SHARE = 0.3
"""The share of the tolerance that gates get where pieces need keys of their own."""


class Gated(HeadMethod):
    """Values affine in x, asymptotes pinned: smooth functions, on all of R too."""

    name = "gated"

    def fit(self, target: Target) -> Fit:
        found = PieceFit(target, Piece(target.low, target.high, target.node))
        return Fit(self.name, found.least, MOST_KEYS if found.affine is None else 1, found.build)


class Smooth(HeadMethod):
    """Constant values, solved for: what a partner can be carried in."""

    name = "smooth"

    def fit(self, target: Target) -> Fit:
        _require_bounded(self, target)
        f = target.function()
        layout = Layout(lambda keys, goal, side: smooth(f, target.low, target.high, keys, side=side, goal=goal.error,
                                                         limit=goal.limit, extra=goal.extra))  # fmt: skip
        return Fit(self.name, 1, MOST_KEYS, layout.build, large_values=False)


class Nearest(HeadMethod):
    """The paper's head: softmax selects the nearest anchor."""

    name = "nearest"

    def fit(self, target: Target) -> Fit:
        _require_bounded(self, target)
        f = target.function()
        build = lambda keys, goal: nearest(f, target.low, target.high, keys)[1]
        return Fit(self.name, 2, 4096, build, large_values=False)


class Kinked(HeadMethod):
    """Smooth pieces joined by gates, where the target has kinks."""

    name = "kinked"

    def fit(self, target: Target) -> Fit:
        if not target.kinks:
            raise InputError(f"{target.expression} has no kinks in the domain; use method='gated' or 'auto'.")
        kinks = [kink_between(target, left, right) for left, right in itertools.pairwise(target.pieces)]
        curved = sum(affine_form(p.node, target.variable, p.low, p.high) is None for p in target.pieces)
        fits = [PieceFit(target, piece) for piece in target.pieces]

        def build(keys: int, goal: Goal) -> Head:
            gate = goal.error * (GATE_SHARE if curved else 0.99)
            sharp = [kink.sharpness(gate) for kink in kinks]
            room = [30 / s for s in sharp]
            for fit, before, after in zip(fits, [0.0, *room], [*room, 0.0], strict=True):
                fit.extend(before, after)
            inner = Goal(goal.error * (0.97 - GATE_SHARE), goal.limit, goal.extra)
            heads = [fit.build(count, inner) for fit, count in zip(fits, _share(keys, fits), strict=True)]
            return kinked(heads, [kink.place for kink in kinks], sharp)

        least, places = len(target.pieces), [kink.place for kink in kinks]
        return Fit(self.name, least, MOST_KEYS if curved else least, build, lambda head: _cuts(places, head))


def usual(target: Target) -> HeadMethod:
    """The method for one variable that is taken where none is asked for."""
    return Kinked() if target.kinks else Gated()


def _require_bounded(method: HeadMethod, target: Target) -> None:
    if not target.bounded:
        raise InputError(
            f"method='{method.name}' has constant values and needs a bounded domain; use 'gated' or give a domain."
        )


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
