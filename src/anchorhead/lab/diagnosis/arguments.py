"""What diagnose is given, checked: inputs that are numbers, a dtype that networks run in, a factor for the scores."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anchorhead.errors import InputError, PrecisionError
from anchorhead.theorems.precision import DTYPES

NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}


def check_inputs(x: Tensor) -> None:
    """Refuses no inputs, and inputs that are not numbers; shape and dtype are the model's to check."""
    if not x.numel():
        raise InputError(f"x is empty, {tuple(x.shape)}; a diagnosis needs at least one input to look at.")
    if not x.isfinite().all():
        count = int((~x.isfinite()).sum())
        raise InputError(
            f"x holds {count} value{'s' * (count > 1)} that {'are' if count > 1 else 'is'} NaN or infinite; a network "
            "cannot be blamed for those. Remove them first."
        )


def read_dtype(dtype: Any, own: torch.dtype) -> torch.dtype:
    """The dtype to run in, that of the model unless given; a torch dtype or its name."""
    found = own if dtype is None else NAMES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or found not in DTYPES:
        raise PrecisionError(f"dtype={dtype!r} must be one of {', '.join(NAMES)}: a network runs in those.")
    return found


def read_beta(beta: Any) -> float:
    """The factor for all scores, positive and finite."""
    number = isinstance(beta, int | float) and not isinstance(beta, bool)
    if not (number and math.isfinite(beta) and beta > 0):
        raise InputError(
            f"beta={beta!r} must be a positive finite number: all scores are multiplied by it, and 1 "
            "leaves them as they are."
        )
    return float(beta)
