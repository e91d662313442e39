"""The three heads of a norm (`proof/norm_heads.py`), for norms of up to so many numbers, over so wide a range that no
model of today leaves it: mean squares plus eps from 6e-14 to 1.7e10.
"""

from __future__ import annotations

import copy
import math
from functools import lru_cache

import torch
from threadpoolctl import threadpool_limits

from anchorhead.compiler.head_methods import Gamma, Smooth
from anchorhead.compiler.head_route import compile_head
from anchorhead.compiler.method import HeadMethod, Wish
from anchorhead.compiler.odd_model import odd_model
from anchorhead.compiler.sizes import relative
from anchorhead.compiler.target import read_target
from anchorhead.model.compiled import CompiledModel

RANGE = 2.0**-44, 2.0**34
"""Of the mean square plus eps."""
ROUGH = 0.1
"""The relative error of the coarse head, which cancels: any that keeps the fine head's interval small."""
AROUND_ONE = 0.8, 1.25
"""Holds the squares of 1 - ROUGH and of 1 + ROUGH."""
FINE = 3e-10
SQUARE = 2.0**-30
"""The relative error of a square: as large as 1e-9 in all allows, which is best for the literal form."""


def norm_models(width: int) -> dict[str, CompiledModel]:
    """By role, for norms of up to so many numbers; every caller gets modules of its own."""
    most = 4
    while most < width:  # so that norms of similar widths share their heads, and R is a power of two
        most *= 4
    reach = math.sqrt(RANGE[1] * most)
    square = odd_model("x**2", reach, SQUARE, torch.float64)
    return {"square": square, "coarse": copy.deepcopy(_coarse()), "fine": copy.deepcopy(_fine())}


@lru_cache(maxsize=1)
def _coarse() -> CompiledModel:
    return _inverse_root(RANGE, ROUGH, Gamma(constant=True))


@lru_cache(maxsize=1)
def _fine() -> CompiledModel:
    return _inverse_root(AROUND_ONE, FINE, Smooth())


def _inverse_root(domain: tuple[float, float], tol: float, method: HeadMethod) -> CompiledModel:
    target = relative(read_target("x**-0.5", domain))
    with threadpool_limits(1):
        return compile_head(target, method.scaled_fit(target), Wish(tol, None, torch.float64))
