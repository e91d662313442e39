"""One attention layer and a plain softmax are universal too (docs/mathematics.md 1.6).

The ramps of layer 1, the affine map to R_v and the bound are those of `two_layer.py` and `grid.py`; the
second layer is replaced by softmax over β R_v and an affine read-out with columns f(v). With columns="own" the ramps'
anchors are the n columns themselves: one multi-head layer on them and a softmax, as in the paper's second version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal as OneOf

import torch

from anchorhead.theorems.formulas import Target
from anchorhead.theorems.grid import Grid
from anchorhead.theorems.grid_network import GridNetwork
from anchorhead.theorems.own_columns import read_shifts
from anchorhead.theorems.two_layer import build, read_columns


def attention_then_softmax(
    f: Target | str | Sequence[str],
    tokens: int,
    features: int,
    levels: int,
    *,
    low: float = 0.0,
    high: float = 1.0,
    output_features: int | None = None,
    selection_error: float = 1e-6,
    beta: float | None = None,
    slope: float = 1 / 16,
    ramp_anchors: int | None = None,
    columns: OneOf["appended", "own"] = "appended",
    shifts: int = 1,
    dtype: torch.dtype = torch.float64,
) -> GridNetwork:
    """One attention layer, then softmax and an affine read-out, that approximate f on a box.

    The arguments are those of `two_layer`; columns="own" needs n >= 2, and keeps the bound in the sup norm, so that
    there is nothing for shifts to do and more than one is refused.

    >>> swap = ah.theorems.attention_then_softmax(lambda x: x.flip(-2), tokens=2, features=1, levels=8)
    >>> x = torch.tensor([[0.2], [0.7]], dtype=torch.float64)
    >>> (swap(x) - x.flip(-2)).abs().max().item() <= swap.bound_for(lipschitz=1.0)
    True
    """
    grid = Grid(tokens, features, levels, low, high, slope)
    own = read_columns(columns, grid, ramp_anchors, attention=False)
    grids = read_shifts(shifts, grid, own=False)
    return build(f, grid, output_features, selection_error, beta, ramp_anchors, dtype, grids, attention=False, own=own)
