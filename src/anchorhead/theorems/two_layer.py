"""Two attention layers approximate any continuous sequence-to-sequence map (Theorem 3.3; docs/mathematics.md 1.5).

Layer 1 has one head for each feature and interior edge: a ramp, built as in `single_head.py` with p anchors
on [0, 1] that all heads share (same keys, same values), each head with its own query (x_j - e)/δ + 1/2. An
affine map turns ramps into bumps and bumps into R_v for each of the g^(nd) grid points. Layer 2 is one head
with a key for each grid point, score β R_v and value f(v). Statement and bound: `grid.py`.

Both layers have columns of their own for their keys: p for the ramps and g^(nd) for the grid points. With columns="own"
neither lengthens the sequence: the ramps' anchors are the n columns, p = n, and layer 2 is many heads on n columns
(`own_columns.py`), which is the statement of the paper's second version.

No construction that knows f by its values alone does essentially better than g^(nd) keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal as OneOf

import torch
from torch import Tensor

from anchorhead.errors import InputError
from anchorhead.theorems.anchors import beta_for, check_beta, check_count
from anchorhead.theorems.construction import check_dtype
from anchorhead.theorems.formulas import Formulas, Target, read_target
from anchorhead.theorems.grid import Grid, grid_values, saturation
from anchorhead.theorems.grid_network import GridNetwork, assembled
from anchorhead.theorems.grid_scores import GridScores, ramp_head
from anchorhead.theorems.own_columns import own_beta, ramp_error, read_shifts, require_columns

RAMP_ANCHORS = 8


def two_layer(
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
    """Two attention layers that approximate f on [low, high]^(tokens x features).

    f maps (..., n, d) to (..., n, d_out) in batches; or it is formulas, n d_out of them, row by row, of the inputs x1,
    x2, ..., row by row: two_layer("sin(3*x1)*x2", tokens=1, features=2, levels=8); formulas that are not finite on the
    whole box are refused.
    levels: g, cells a coordinate; there are g^(nd) keys.
    beta: β of layer 2, `.beta` of the network; derived from `selection_error` unless given, which is then that of the
    ramps in layer 1 alone (`.ramp_beta`); `resources.beta` is the larger of the two. slope: width of the slope between
    two cells, as a share of a cell. ramp_anchors: keys of a ramp head, more than n (8 or n + 1 unless given).
    Inputs outside the box, up to `reach`, are treated as the nearest point in it, with a warning (`.outside`).
    columns: "appended" for columns that hold the keys, behind the sequence, or "own" for keys in the n columns of the
    sequence itself (n >= 3), by more heads. shifts: K, with "own": the mean of K look-ups with shifted cells, for a
    bound in the sup norm.

    >>> swap = ah.theorems.two_layer(lambda x: x.flip(-2), tokens=2, features=1, levels=8)
    >>> x = torch.tensor([[0.2], [0.7]], dtype=torch.float64)
    >>> (swap(x) - x.flip(-2)).abs().max().item() <= swap.bound_for(lipschitz=1.0)
    True
    """
    grid = Grid(tokens, features, levels, low, high, slope)
    own = read_columns(columns, grid, ramp_anchors, attention=True)
    grids = read_shifts(shifts, grid, own=own)
    return build(f, grid, output_features, selection_error, beta, ramp_anchors, dtype, grids, attention=True, own=own)


def read_columns(columns: str, grid: Grid, ramp_anchors: int | None, *, attention: bool) -> bool:
    """Whether keys are in the sequence's own columns."""
    if columns not in ("appended", "own"):
        raise InputError(f'columns={columns!r} must be "appended" or "own".')
    if columns == "own":
        require_columns(grid, attention=attention)
        if ramp_anchors is not None:
            raise InputError('With columns="own" the ramps have as many anchors as tokens; leave out ramp_anchors.')
    return columns == "own"


def build(f: Target | str | Sequence[str], grid: Grid, output_features: int | None, selection_error: float,
          beta: float | None, ramp_anchors: int | None, dtype: torch.dtype, grids: list[Grid], *,
          attention: bool, own: bool) -> GridNetwork:  # fmt: skip
    """The network for either second stage; grids: those that are looked up, `grid` itself unless shifted."""
    for one in grids:
        one.require_resolution(check_dtype(dtype))
    p = grid.tokens if own else _anchors(ramp_anchors, grid)
    numbered, first = own and attention, grids[0]
    ramp_beta = beta_for(ramp_error(first, selection_error) if numbered else selection_error, p - 1, 1 / (p - 1))
    ramp_head(p, ramp_beta).require(dtype)
    if beta is None:
        settled = saturation(p, ramp_beta / (p - 1) ** 2)
        beta = own_beta(selection_error) if numbered else grid.beta(selection_error, settled)
    GridScores(grid, tuple(grids), p, ramp_beta, check_beta(beta), numbered).require(dtype)
    target = read_target(f, grid.tokens, grid.features)
    if isinstance(target, Formulas):
        target.require_defined(grid.low, grid.high)
    values = tabulated(target, grid, grids, dtype, output_features)
    return assembled(target, grid, grids, values, p, beta, ramp_beta, attention=attention, own=own)


def tabulated(f: Target, grid: Grid, grids: list[Grid], dtype: torch.dtype,
              output_features: int | None = None) -> Tensor:  # fmt: skip
    """f on the points of every grid, those outside the box as the nearest in it: (K, points, n, d_out)."""
    inside: Target = f if len(grids) == 1 else lambda x: f(x.clamp(grid.low, grid.high))
    return torch.stack([grid_values(inside, one, output_features, dtype) for one in grids])


def _anchors(given: int | None, grid: Grid) -> int:
    """Anchors of a ramp in columns of their own, more than tokens."""
    p = max(RAMP_ANCHORS, grid.tokens + 1) if given is None else check_count(given, "ramp_anchors", 2)
    if p <= grid.tokens:
        raise InputError(f"ramp_anchors={p} must be at least 2 and exceed the {grid.tokens} tokens.")
    return p
