"""A function as the page draws it: the window, its values on an even grid, and more of them close to its kinks.

The browser does not know the function, only these values. Grid point i is `low + (high - low) * i / STEPS`, computed
the same way there, so that x is the same float64 on both sides. A kinked head errs within a few 1/β of a
kink and nowhere else; points that close in on it geometrically show that error, whatever β is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorhead.compiler.target import Target
from anchorhead.expression.domain import window

STEPS = 800
"""Steps of the grid, one fewer than its points."""
FAR = 8.0
"""How much of an unbounded side is drawn, from zero or from the other end."""
NEAR = 4.0
"""Half the window of heads that need a bounded domain, where the function's is not."""


def grid(low: float, high: float) -> np.ndarray:
    """The points of the page, as the browser computes them."""
    return np.array([low + (high - low) * i / STEPS for i in range(STEPS + 1)])


def samples(target: Target) -> dict[str, Any]:
    """The window, the function on its grid, and `close`: points near kinks with the function there."""
    low, high = window(target.low, target.high, FAR)
    f = target.function()
    near = _close(target, low, high)
    return {
        "window": [low, high],
        "f": f(grid(low, high)).tolist(),
        "close": {"x": near.tolist(), "f": f(near).tolist()},
    }


def _close(target: Target, low: float, high: float) -> np.ndarray:
    """At most eight kinks are closed in on, from a hundredth of the window to a billionth."""
    offsets = (high - low) * 10.0 ** -np.arange(2, 9.1, 0.25)
    kinks = [kink for kink in target.kinks if low < kink < high][:8]
    places = np.array([kink + sign * d for kink in kinks for sign in (-1, 1) for d in offsets])
    return np.unique(places[(places >= low) & (places <= high)])
