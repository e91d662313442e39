"""Ways to fit a head to a function of one variable; the paper's nearest anchor is in `nearest_anchors.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorhead.compiler.joined import Joined
from anchorhead.compiler.method import Fit, Goal, HeadMethod
from anchorhead.compiler.piece import Layout, PieceFit
from anchorhead.compiler.target import Target
from anchorhead.enclosure.pieces import Piece
from anchorhead.errors import InputError
from anchorhead.head.smooth import smooth
from anchorhead.head.solve import Crowd
from anchorhead.head.uniform_keys import Uniform
from anchorhead.head.warped_keys import Warped

MOST_KEYS = 128
MOST_JOINED = 4096


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
            return smooth(
                f, target.low, target.high, keys, crowds=crowds, goal=goal.error, limit=goal.limit, extra=extra
            )

        layout = Layout(family, lambda goal: places.crowds(goal.error))
        return Fit(self.name, 1, MOST_KEYS, layout.build, estimate=layout.estimate, large_values=False)


class Kinked(HeadMethod):
    """Smooth pieces joined by gates, where the target has kinks."""

    name = "kinked"

    def fit(self, target: Target) -> Fit:
        if not target.kinks:
            raise InputError(f"{target.expression} has no kinks in the domain; use method='gated' or 'auto'.")
        most = len(target.pieces) if target.is_straight else MOST_KEYS
        return Joined(target, halving=False, most=most).fit(self.name)


class Pieces(HeadMethod):
    """Pieces joined by gates, cut at kinks and wherever that saves keys: every continuous function."""

    name = "pieces"

    def fit(self, target: Target) -> Fit:
        return Joined(target, halving=True, most=MOST_JOINED).fit(self.name)


def usual(target: Target) -> HeadMethod:
    """The method for one variable that is taken where none is asked for."""
    return Kinked() if target.kinks else Gated()


def _require_bounded(method: HeadMethod, target: Target) -> None:
    if not target.bounded:
        raise InputError(
            f"method='{method.name}' has constant values and needs a bounded domain; use 'gated' or give a domain."
        )
