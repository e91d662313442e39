"""The domain that a file states: an interval for each input, whose ends may be infinite."""

from __future__ import annotations

import math
from typing import Any

from anchorhead.errors import FileError
from anchorhead.file.entries import quoted, real


def domain_of(record: dict[str, Any]) -> tuple[tuple[float, float], ...]:
    """The domain: a pair for each input."""
    pairs = record.get("domain")
    if not isinstance(pairs, list) or not pairs:
        raise FileError("The domain in the file is not a list of intervals.")
    return tuple(_ends(pair) for pair in pairs)


def _ends(ends: Any) -> tuple[float, float]:
    if not isinstance(ends, list) or len(ends) != 2:
        raise FileError(f"The domain {quoted(ends)} in the file is not a pair of numbers.")
    infinite = {"-inf": -math.inf, "inf": math.inf}
    low, high = (
        infinite[end]
        if isinstance(end, str) and end in infinite
        else real(end, "An end of the domain in the file", negative=True)
        for end in ends
    )
    if not low <= high:
        raise FileError(f"The domain {quoted(ends)} in the file is empty.")
    return low, high
