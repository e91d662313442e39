"""The ways to fit a head to a function of one variable: gated, smooth, gamma, kinked, pieces, and the paper's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from anchorhead.arithmetic import decades, exp_of
from anchorhead.compiler.joined import Joined
from anchorhead.compiler.method import Fit, Goal, HeadMethod
from anchorhead.compiler.piece import Layout, PieceFit
from anchorhead.compiler.prove import sampled_error
from anchorhead.compiler.target import Target
from anchorhead.enclosure.pieces import Piece
from anchorhead.errors import InputError
from anchorhead.head.gamma import Gamma as GammaHeads
from anchorhead.head.gamma import gamma
from anchorhead.head.smooth import smooth
from anchorhead.head.solve import Crowd
from anchorhead.head.uniform_keys import Uniform
from anchorhead.head.warped_keys import Warped

MOST_KEYS = 128
MOST_JOINED = 4096
DECADES = 1.5
"""From so many on keys in geometric progression are looked at, with relative errors."""
GLANCE = 32, Goal(1e-8, 1e3)
"""The size and the goal at which methods are compared."""


class Gated(HeadMethod):
    """Values affine in x, asymptotes pinned: smooth functions, on all of R too."""

    name = "gated"

    def fit(self, target: Target) -> Fit:
        found = PieceFit(target, Piece(target.low, target.high, target.node))
        return Fit(self.name, found.least, MOST_KEYS if found.affine is None else 1, found.build,
                   estimate=found.estimate)  # fmt: skip


class Smooth(HeadMethod):
    """Constant values, solved for: what a partner can be carried in."""

    name = "smooth"

    def fit(self, target: Target) -> Fit:
        _require_bounded(self, target)
        f, places = target.function(), target.places

        def family(keys: int, goal: Goal, crowds: Sequence[Crowd]) -> Uniform | Warped:
            extra = np.concatenate([goal.extra, places.needed(goal.error)])
            return smooth(f, target.low, target.high, keys, crowds=crowds, goal=goal.error, limit=goal.limit,
                          extra=extra, relative=target.relative)  # fmt: skip

        layout = Layout(family, lambda goal: places.crowds(goal.error))
        return Fit(self.name, 1, MOST_KEYS, layout.build, estimate=layout.estimate, large_values=False)


def settling(target: Target) -> Fit | None:
    """Constant values of a function that settles on constants on both sides, as tanh does, the outermost on those.

    None for any other. Fitted on all of R, where its ends are known, whatever the interval is: on a wide one keys are
    where the function has not settled.
    """
    whole = replace(target.in_units(), low=-math.inf, high=math.inf)
    if target.kinks or any(end is None or end[0].gain for end in map(whole.asymptote, (-1, 1))):
        return None
    fit = PieceFit(whole, Piece(whole.low, whole.high, whole.node), constant=True)
    return Fit("gated", fit.least, MOST_KEYS, fit.build, large_values=False, unit=target.unit)


class Gamma(HeadMethod):
    """Keys in geometric progression: functions that go like powers, over many decades.

    constant: whether its values are. by_size: whether it is fitted relative to the target though the error that is
    asked for is not, for the part of it that is the error over the target's size.
    """

    name = "gamma"

    def __init__(self, *, constant: bool = False, by_size: bool = False) -> None:
        self.constant, self.by_size = constant, by_size

    def fit(self, target: Target) -> Fit:
        if not target.bounded or target.low <= 0 <= target.high:
            raise InputError(
                "method='gamma' has keys in geometric progression and needs a bounded domain without zero, such as "
                "(1e-6, 1e4); use method='auto' or give such a domain."
            )

        size = 1.0
        if self.by_size:
            size = float(np.abs(target.function()(decades(target.low, target.high, 1001))).max())

        def family(keys: int, goal: Goal) -> GammaHeads:
            return gamma(target.function(), target.low, target.high, keys, affine=not self.constant,
                         goal=goal.error / size, limit=goal.limit / size, extra=goal.extra,
                         relative=target.relative or self.by_size)  # fmt: skip

        return Fit(self.name, 3, MOST_KEYS, lambda keys, goal: family(keys, goal).best()[1],
                   estimate=lambda keys, goal: size * exp_of(family(keys, goal).first()),
                   large_values=False)  # fmt: skip


class Kinked(HeadMethod):
    """Smooth pieces joined by gates, where the target has kinks."""

    name = "kinked"

    def fit(self, target: Target) -> Fit:
        if not target.kinks:
            raise InputError(f"{target.name} has no kinks in the domain; use method='gated' or 'auto'.")
        most = len(target.pieces) if target.is_straight else MOST_KEYS
        return Joined(target, halving=False, most=most).fit(self.name)


class Pieces(HeadMethod):
    """Pieces joined by gates, cut at kinks and wherever that saves keys: every continuous function."""

    name = "pieces"

    def fit(self, target: Target) -> Fit:
        return Joined(target, halving=True, most=MOST_JOINED).fit(self.name)


def usual(target: Target) -> HeadMethod:
    """The method for one variable that is taken where none is asked for."""
    if target.kinks:
        return Kinked()
    if not target.relative or not target.decades >= DECADES:
        return Gated()
    return min(
        (Gamma(), Gated()), key=lambda way: sampled_error(target, way.fit(target).build(*GLANCE), [], GLANCE[1].error)
    )


def _require_bounded(method: HeadMethod, target: Target) -> None:
    if not target.bounded:
        raise InputError(
            f"method='{method.name}' has constant values and needs a bounded domain; use 'gated' or give a domain."
        )
