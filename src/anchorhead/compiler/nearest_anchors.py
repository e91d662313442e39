"""The paper's head for any continuous function on a bounded interval: how many anchors an error takes.

With anchors h apart the head errs by at most ω(h/2), ω the target's modulus of continuity, and by what softmax leaves
to further anchors, far below a hundredth of it (docs/mathematics.md 1.2). ω is proved by boxes
(`enclosure/variation.py`): with a Lipschitz constant L it is Lh/2, and where slopes have no bound, as a root's, it is
still a number. So every continuous target has its number of anchors, up to a limit; the head is then proved like any
other.

*Which dtypes hold it.* β is ln((p - 1)/ε)/h² for p anchors, and scores reach β(wx + w²/4 + w|m|) on a domain of width
w, largest |x| and middle m. Twice that times the unit roundoff, the *slack*, is about the relative error of a weight,
and the head then errs by about (1 + 3·slack) ω(h/2): more anchors make room for that, unless the slack is near one.
"""

from __future__ import annotations

import math
from functools import lru_cache

from anchorhead.compiler.method import Fit, HeadMethod, Wish
from anchorhead.compiler.target import Target
from anchorhead.dtypes import UNIT
from anchorhead.enclosure.variation import moved
from anchorhead.errors import InputError, ToleranceError
from anchorhead.head.nearest import SELECTION_ERROR, nearest, sharpness, steps
from anchorhead.model.compiled import CompiledModel

MOST_ANCHORS = 1 << 14
"""What a model file may hold; a proof then takes some seconds, and evaluating reads as many scores for each number."""
SPARE = 0.98
CLOSEST = 2.0**-60
"""No distance between anchors is less than this part of the domain."""
MOST_SLACK = 0.3
ROOM = 3.0
"""How much of the error a slack takes, of a head whose approximation takes the rest."""


class Nearest(HeadMethod):
    """The paper's head: softmax selects the nearest anchor."""

    name = "nearest"

    def fit(self, target: Target, dtype: str = "float64") -> Fit:
        if not target.bounded:
            raise InputError(
                "method='nearest' has constant values and needs a bounded domain; use 'gated' or give a domain."
            )
        if target.relative:
            raise InputError("method='nearest' is the paper's, whose error is absolute; leave relative=True out.")
        f = target.function()
        return Fit(self.name, 2, MOST_ANCHORS, lambda keys, goal: nearest(f, target.low, target.high, keys), steps,
                   size=lambda goal: _keys_in(target, goal.error, dtype), exact=True,
                   large_values=False)  # fmt: skip

    def compile(self, target: Target, wish: Wish) -> CompiledModel:
        from anchorhead.compiler.head_route import compile_head  # which searches with fits, and is given one here

        fit = self.fit(target, wish.dtype)
        if wish.keys is not None and wish.keys > MOST_ANCHORS:
            raise InputError(f"keys={wish.keys}: method 'nearest' has 2 to {MOST_ANCHORS:,} keys.")
        if wish.keys is None:
            tol = wish.tolerance(1e-6)
            keys, held = nearest_keys(target, tol), _keys_in(target, tol, wish.dtype) is not None
            what = (
                f"tol={tol:g} for {target.expression} takes {keys} anchors, and more to make room for rounding, which"
            )
        else:
            keys, what = wish.keys, f"keys={wish.keys} for {target.expression}"
            held = keys < 2 or slack(target, keys, wish.dtype) <= MOST_SLACK
        if keys is not None and not held:
            raise ToleranceError(
                f"{what} is more than {wish.dtype} holds with method 'nearest': scores reach "
                f"{_largest_score(target, keys):.2g}, and their rounding would choose among neighbours. Use a wider "
                "dtype, a larger tol or fewer keys, or another method."
            )
        return compile_head(target, fit, wish)


def _keys_in(target: Target, error: float, dtype: str) -> int | None:
    """How many anchors an error takes, rounding in the dtype included; None if that does not hold so many."""
    keys = nearest_keys(target, error)
    for _ in range(8):
        if keys is None or keys > MOST_ANCHORS:
            break
        taken = slack(target, keys, dtype)
        if taken > MOST_SLACK:
            return None
        before, keys = keys, nearest_keys(target, error / (1 + ROOM * taken))
        if keys == before:
            break
    return keys


@lru_cache(maxsize=100)
def nearest_keys(target: Target, error: float) -> int | None:
    """How many anchors the paper's head needs for an error; None if that is too many to count."""
    width = target.high - target.low
    enough, too_far = 0.0, width
    while too_far > CLOSEST * width and enough < 0.99 * too_far:
        middle = (enough + too_far) / 2
        within = moved(target.node, target.low, target.high, middle, target.variable) <= SPARE * error
        enough, too_far = (middle, too_far) if within else (enough, middle)
    return max(2, math.ceil(width / (2 * enough)) + 1) if enough else None


def slack(target: Target, keys: int, dtype: str) -> float:
    """About the relative error of a weight in the dtype."""
    return 2 * UNIT[dtype] * _largest_score(target, keys)


def _largest_score(target: Target, keys: int) -> float:
    width, size = target.high - target.low, max(abs(target.low), abs(target.high))
    middle = abs(target.low + target.high) / 2
    return sharpness(width, keys, SELECTION_ERROR) * width * (size + width / 4 + middle)
