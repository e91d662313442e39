"""What every network here is made with: numbers of things, sizes, and a dtype."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import torch

from anchorhead.errors import InputError

DTYPES = {torch.float64: "float64", torch.float32: "float32"}
MOST = 1e60
"""Bounds are smaller than this."""
MANY = {"examples": 10**12}
"""The largest counts; a million of what has no entry."""


def counts(**given: Any) -> list[int]:
    """Positive integers, in the order given."""
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise InputError(f"{name}={value!r} must be a positive integer.")
        if int(value) > MANY.get(name, 10**6):
            raise InputError(f"{name} must be at most {MANY.get(name, 10**6):,}.")
    return [int(value) for value in given.values()]


def is_number(value: Any) -> bool:
    """Whether it is a real number that a float can hold."""
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False


def positive(name: str, value: Any) -> float:
    """A positive finite number."""
    if not (is_number(value) and value > 0):
        raise InputError(f"{name}={_shown(value)} must be a positive finite number.")
    return float(value)


def _shown(value: Any) -> str:
    """An argument for a message; a very long one is cut."""
    if isinstance(value, int) and value.bit_length() > 200:
        return "a whole number too large for a float"
    text = repr(value)
    return text if len(text) < 80 else f"{text[:76]}..."


def read_sizes(bounds: Mapping[str, float] | None, defaults: Mapping[str, float]) -> dict[str, float]:
    """Bounds by name, the declared ones and the rest by default."""
    if bounds is not None and not isinstance(bounds, Mapping):
        raise InputError(f"bounds={_shown(bounds)} must be a dictionary such as {dict(defaults)}.")
    given = dict(bounds or {})
    if set(given) - set(defaults) or not all(is_number(v) and 0 < v < MOST for v in given.values()):
        *names, last = defaults
        raise InputError(f"bounds must give positive numbers below {MOST:g} for {', '.join(names)} and {last}.")
    return {name: float(given.get(name, default)) for name, default in defaults.items()}


def dtype_name(dtype: Any) -> str:
    """float64 or float32."""
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
        raise InputError(f"dtype={dtype} must be torch.float64 or torch.float32.")
    return DTYPES[dtype]
