"""What every network here is made with: numbers of things, and a dtype."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch

from anchorhead.errors import InputError

DTYPES = {torch.float64: "float64", torch.float32: "float32"}


def counts(**given: Any) -> list[int]:
    """Positive integers, in the order given."""
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise InputError(f"{name}={value!r} must be a positive integer.")
    return [int(value) for value in given.values()]


def dtype_name(dtype: Any) -> str:
    """float64 or float32."""
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
        raise InputError(f"dtype={dtype} must be torch.float64 or torch.float32.")
    return DTYPES[dtype]
