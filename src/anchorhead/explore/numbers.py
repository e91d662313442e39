"""A function and its heads as plain numbers for the page.

The browser does not know the function, only its values on an even grid over a window, and more of them close to its
kinks. Grid point i is `low + (high - low) * i / STEPS`, computed the same way there, so that x is the same float64 on
both sides. A kinked head errs within a few 1/β of a kink and nowhere else; points that close in on it geometrically
show that error, whatever β is. A head is its keys, its values, and what is claimed of it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from anchorhead.compiler.target import Target
from anchorhead.expression.domain import window
from anchorhead.head.head import NUMBERS, Head
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.head_core import HeadCore

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


def entry(target: Target, heads: list[dict[str, Any]], notes: list[str], first: int) -> dict[str, Any]:
    """All that the page needs to know of one function."""
    return {
        "name": str(target.expression),
        "variable": target.variable,
        "domain": finite_ends(target.low, target.high),
        **samples(target),
        "heads": heads,
        "notes": notes,
        "start": first,
    }


def _close(target: Target, low: float, high: float) -> np.ndarray:
    """At most eight kinks are closed in on, from a hundredth of the window to a billionth."""
    offsets = (high - low) * 10.0 ** -np.arange(2, 9.1, 0.25)
    kinks = [kink for kink in target.kinks if low < kink < high][:8]
    places = np.array([kink + sign * d for kink in kinks for sign in (-1, 1) for d in offsets])
    return np.unique(places[(places >= low) & (places <= high)])


def model_numbers(model: CompiledModel, tol: float | None = None) -> dict[str, Any]:
    """A compiled head, with what its certificate claims."""
    known, core = model.certificate, model.network
    plain = known.approximation, known.rounding
    bounds = core.claim.absolute if known.relative and isinstance(core, HeadCore) else plain
    stated = claim(known.domain[0], known.level, *bounds, known.dtype)
    return head_numbers(model.head.numbers, model.method, stated, tol)


def head_numbers(head: Head, method: str, stated: dict[str, Any], tol: float | None = None) -> dict[str, Any]:
    """One head of the page. `size` is what its slider shows: the number of keys, or the tolerance if `tol` is given.

    Scores are slope·x + intercept, and for the keys of piece i gate_slopes[i]·x + gate_levels[i] more.
    """
    return {
        "method": method,
        "size": head.keys if tol is None else tol,
        "by": "keys" if tol is None else "tol",
        "keys": head.keys,
        "sizes": list(head.sizes),
        "claim": stated,
        **{name: list(getattr(head, name)) for name in NUMBERS},
    }


def claim(domain: tuple[float, float], level: str, approximation: float, rounding: float, dtype: str) -> dict[str, Any]:
    """What is known of |function - head| at x: approximation + rounding, rounding times 1 + |x| if unbounded.

    Both are None where the numbers are not those that were proved.
    """
    known = (None, None) if level == "unproved" else (approximation, rounding)
    return {"domain": finite_ends(*domain), "level": level, "approximation": known[0], "rounding": known[1],
            "dtype": dtype}  # fmt: skip


def finite_ends(low: float, high: float) -> list[float | None]:
    """The ends of a domain as JSON can hold them: None for an infinite one."""
    return [end if math.isfinite(end) else None for end in (low, high)]


def domain_text(low: float, high: float) -> str:
    """R, or an interval, for people."""
    if math.isinf(low) and math.isinf(high):
        return "R"
    left = "(−∞" if math.isinf(low) else f"[{low:g}".replace("-", "−")
    right = "∞)" if math.isinf(high) else f"{high:g}]".replace("-", "−")
    return f"{left}, {right}"
