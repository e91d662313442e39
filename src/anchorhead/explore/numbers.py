"""A head as plain numbers for the page: its keys, its values, and what is claimed of it."""

from __future__ import annotations

import math
from typing import Any

from anchorhead.head.head import NUMBERS, Head
from anchorhead.model.compiled import CompiledModel


def model_numbers(model: CompiledModel, tol: float | None = None) -> dict[str, Any]:
    """A compiled head, with what its certificate claims."""
    known = model.certificate
    stated = claim(known.domain[0], known.level, known.approximation, known.rounding, known.dtype)
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
    """What is known of |function - head| at x: approximation + rounding, rounding times 1 + |x| if unbounded."""
    ends = finite_ends(*domain)
    return {"domain": ends, "level": level, "approximation": approximation, "rounding": rounding, "dtype": dtype}


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
