"""Two attention layers approximate any continuous sequence-to-sequence map (Theorem 3.3; docs/mathematics.md 1.5).

Layer 1 has one head for each feature and interior edge: a ramp, built as in `single_head.py` with p anchors
on [0, 1] that all heads share (same keys, same values), each head with its own query (x_j - e)/δ + 1/2. An
affine map turns ramps into bumps and bumps into R_v for each of the g^(nd) grid points. Layer 2 is one head
with a key for each grid point, score β R_v and value f(v). Statement and bound: `grid.py`.

Both layers have columns of their own for their keys: p for the ramps and g^(nd) for the grid points. With columns="own"
neither lengthens the sequence: the ramps' anchors are the n columns, p = n, and layer 2 is many heads on n columns
(`own_columns.py`), which is the statement of the paper's second version.

The cost, g^(nd) keys, cannot be avoided for an arbitrary continuous f.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal as OneOf
from typing import cast

import torch
from torch import Tensor, nn

from anchorhead.errors import AnchorheadError, InputError
from anchorhead.model.affine import AppendColumns, AppendRows
from anchorhead.model.attention import Attention
from anchorhead.model.network import Resources
from anchorhead.theorems.anchors import beta_for, check_beta, check_count, score_rows
from anchorhead.theorems.construction import Construction, check_dtype
from anchorhead.theorems.grid import Grid, Modulus, grid_values, saturation
from anchorhead.theorems.lookup import Bumps, Lookup
from anchorhead.theorems.own_columns import (
    OwnLookup,
    own_beta,
    ramp_error,
    read_shifts,
    require_columns,
    require_own,
    stray,
)
from anchorhead.theorems.precision import AnchorHead

RAMP_ANCHORS = 8


class GridNetwork(Construction):
    """A look-up of f on a grid, by attention; build it with `two_layer` or `attention_then_softmax`."""

    grid: Grid
    f: Callable[[Tensor], Tensor]
    beta: float
    ramp_beta: float
    selection_error: float
    ramp_anchors: int

    @property
    def layer1(self) -> Attention:
        """Layer 1, the ramps."""
        return self.attention

    @property
    def lookup(self) -> Lookup | OwnLookup:
        """The second stage."""
        return cast(Lookup | OwnLookup, self.stages[3])

    @property
    def size(self) -> tuple[int, int]:
        return self.grid.tokens, self.grid.features

    @property
    def dtype(self) -> torch.dtype:
        return self.lookup.values.dtype

    def count(self, x: Tensor) -> int:
        """How many sequences there are in a batch."""
        return x.numel() // self.grid.coordinates

    def require(self, dtype: torch.dtype) -> None:
        self.grid.require_resolution(dtype)
        _ramp_head(self.ramp_anchors, self.ramp_beta).require(dtype)
        if isinstance(self.lookup, OwnLookup):
            require_own(self.lookup.grid, self.beta, dtype)

    @property
    def layer2(self) -> Attention | None:
        """Layer 2, the look-up; None where it is a plain softmax."""
        return self.lookup.second

    @property
    def layers(self) -> list[Attention]:
        """The attention layers."""
        return [self.layer1] + ([] if self.layer2 is None else [self.layer2])

    def exact(self, x: Tensor) -> Tensor:
        """f itself."""
        self.check(x)
        return self.f(x)

    @property
    def bound(self) -> float:
        """There is no number without knowing f: raises, and says to call `bound_for`."""
        raise AnchorheadError(
            "The theorem's bound depends on how fast f varies, which its values on the grid do not show. Declare it: "
            "bound_for(lipschitz=L), or a modulus of continuity as a callable."
        )

    def bound_for(
        self,
        *,
        lipschitz: float | Modulus,
        norm: float | OneOf["sup"] = "sup",
        metric: OneOf["euclidean", "sup"] = "euclidean",
    ) -> float:
        """Bound on the error for inputs in the box, from what the caller declares about f.

        lipschitz: L with |f(X) - f(Y)| <= L dist(X, Y) in every entry, or a modulus of continuity, a callable r
        -> largest |f(X) - f(Y)| at distance r. metric: the distance meant, Euclidean over all n*d entries or
        the largest entry ("sup", which gives the smaller bound).
        norm: "sup" for the largest error of any entry anywhere, or p >= 1 for the paper's L_p norm, the p-th root
        of the integral over the box of the sum over entries of |error|^p. With two layers on their own columns and no
        shifts only that is small: on slopes the error may be the spread of f.
        """
        modulus = _modulus(lipschitz, metric, self.grid.coordinates)
        values = self.lookup.values
        spread = (values.amax(0) - values.amin(0)).max().item()
        rounding = self.rounding
        sup, slopes = self.grid.sup_bound(modulus, self.selection_error, spread), None
        if isinstance(self.lookup, OwnLookup):
            sup = modulus(self.grid.cell / 2) + spread * self.lookup.mixed()
            slopes = sup + rounding
        if norm == "sup" or norm == math.inf:
            return sup + rounding
        if isinstance(norm, str) or not norm >= 1:
            raise InputError(f'norm={norm!r} must be "sup" or a number of at least 1.')
        count = len(self.lookup.grids) if isinstance(self.lookup, OwnLookup) else 1
        return self.grid.mean_bound(
            lambda r: modulus(r) + rounding, self.selection_error, spread, float(norm), values.shape[1], slopes, count
        )

    @property
    def rounding(self) -> float:
        """What storing values and weighing them along every coordinate adds; see `grid.py`."""
        unit = torch.finfo(self.dtype).eps / 2
        return 8 * (self.grid.coordinates + 1) * unit * self.lookup.values.abs().max().item()

    def matrices(self) -> dict[str, Tensor]:
        """layer1.W_Q, ...: the heads of layer 1, and layer2.W_Q, ... or `read_out` for the second stage."""
        columns = self.ramp_anchors
        named = {f"layer1.{k}": w for k, w in self.layer1.matrices(columns).items()}
        if self.layer2 is None:
            return named | {"read_out": self.lookup.values.detach().mT}
        if isinstance(self.lookup, OwnLookup):
            return named | {f"layer2.{k}": w for k, w in self.layer2.matrices(self.grid.tokens).items()}
        return named | {f"layer2.{k}": w[0] for k, w in self.layer2.matrices(self.grid.points).items()}

    @property
    def resources(self) -> Resources:
        """What this network costs."""
        keys, scores = self.grid.points, self.beta * self.grid.coordinates
        if isinstance(self.lookup, OwnLookup):
            keys, scores = (
                self.lookup.second.heads * self.grid.tokens,
                3 * self.beta * (self.lookup.grid.points / 2) ** 2,
            )
        return Resources(
            layers=len(self.layers),
            heads=sum(layer.heads for layer in self.layers),
            keys=self.layer1.heads * self.ramp_anchors + keys,
            parameters=sum(p.numel() for p in self.parameters()),
            beta=max(self.beta, self.ramp_beta),
            logit_range=max(scores, _ramp_head(self.ramp_anchors, self.ramp_beta).logit_range),
        )


def two_layer(
    f: Callable[[Tensor], Tensor],
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

    f maps (..., n, d) to (..., n, d_out) in batches. levels: g, cells a coordinate; there are g^(nd) keys.
    beta: of layer 2, derived from `selection_error` unless given. slope: width of the slope between two
    cells, as a share of a cell. ramp_anchors: keys of a ramp head, more than n (8 or n + 1 unless given).
    Inputs outside the box are treated as the nearest point in it. columns: "appended" for columns that hold the keys,
    behind the sequence, or "own" for keys in the n columns of the sequence itself (n >= 3), by more heads. shifts: K,
    with "own": the mean of K look-ups with shifted cells, for a bound in the sup norm.
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


def build(f: Callable[[Tensor], Tensor], grid: Grid, output_features: int | None, selection_error: float,
          beta: float | None, ramp_anchors: int | None, dtype: torch.dtype, grids: list[Grid], *,
          attention: bool, own: bool) -> GridNetwork:  # fmt: skip
    """The network for either second stage; grids: those that are looked up, `grid` itself unless shifted."""
    for one in grids:
        one.require_resolution(check_dtype(dtype))
    p = grid.tokens if own else _anchors(ramp_anchors, grid)
    numbered, first = own and attention, grids[0]
    ramp_beta = beta_for(ramp_error(first, selection_error) if numbered else selection_error, p - 1, 1 / (p - 1))
    _ramp_head(p, ramp_beta).require(dtype)
    settled = saturation(p, ramp_beta / (p - 1) ** 2)
    if beta is None:
        beta = own_beta(selection_error) if numbered else grid.beta(selection_error, settled)
    beta = check_beta(beta)
    if numbered:
        require_own(first, beta, dtype)
    inside = f if len(grids) == 1 else lambda x: f(x.clamp(grid.low, grid.high))
    values = [grid_values(inside, one, output_features, dtype) for one in grids]
    lookup = OwnLookup(grids, torch.stack(values), beta) if numbered else Lookup(values[0], beta, attention=attention)
    model = GridNetwork([*_ramps(grids, p, ramp_beta, dtype), Bumps(first.levels), lookup])
    model.grid, model.f = grid, f
    model.beta, model.ramp_beta, model.ramp_anchors = beta, ramp_beta, p
    model.selection_error = stray(first, beta, dtype)[0] if numbered else grid.selection_error(beta, settled)
    return model


def _anchors(given: int | None, grid: Grid) -> int:
    """Anchors of a ramp in columns of their own, more than tokens."""
    p = max(RAMP_ANCHORS, grid.tokens + 1) if given is None else check_count(given, "ramp_anchors", 2)
    if p <= grid.tokens:
        raise InputError(f"ramp_anchors={p} must be at least 2 and exceed the {grid.tokens} tokens.")
    return p


def _ramp_head(anchors: int, beta: float) -> AnchorHead:
    return AnchorHead(0.0, 1.0, 1 / (anchors - 1), beta, 1 / anchors)


def _ramps(grids: list[Grid], p: int, beta: float, dtype: torch.dtype) -> tuple[nn.Sequential, Attention]:
    """Lift to p columns of rows (x, 1, 2(L - 1/2), -(L - 1/2)², L), and a head for each grid, feature and edge."""
    n, d = grids[0].tokens, grids[0].features
    points = torch.linspace(0, 1, p, dtype=torch.float64)
    slope, square = score_rows((points - 0.5).to(dtype).double())
    constants = torch.stack([torch.ones(p, dtype=torch.float64), slope, square, points], dim=1)
    lift = nn.Sequential(AppendColumns(torch.zeros(p - n, d, dtype=dtype)), AppendRows(constants.to(dtype)))
    width = grids[0].slope * grids[0].cell
    edges = torch.stack([grid.edges() for grid in grids])
    query = torch.zeros(len(grids), d, grids[0].levels - 1, 2, d + 4, dtype=torch.float64)
    query[:, torch.arange(d), :, 0, torch.arange(d)] = beta / width
    query[..., 0, d] = -beta * edges.unsqueeze(1) / width  # u - 1/2 = (x - e)/width
    query[..., 1, d] = beta
    key = torch.zeros(1, 2, d + 4, dtype=torch.float64)
    key[0, 0, d + 1] = key[0, 1, d + 2] = 1
    value = torch.zeros(1, 1, d + 4, dtype=torch.float64)
    value[0, 0, d + 3] = 1
    heads = query.flatten(0, 2).to(dtype)
    return lift, Attention(heads, key.to(dtype), value.to(dtype), keep=slice(0, n), stack=True)


def _modulus(lipschitz: float | Modulus, metric: str, coordinates: int) -> Modulus:
    """The declared modulus, as one in the sup norm of the input."""
    if metric not in ("euclidean", "sup"):
        raise InputError(f'metric={metric!r} must be "euclidean" or "sup".')
    stretch = math.sqrt(coordinates) if metric == "euclidean" else 1.0
    if callable(lipschitz):
        declared = lipschitz
        return lambda r: _checked_modulus(float(declared(stretch * r)))
    constant = float(lipschitz)
    if not (math.isfinite(constant) and constant >= 0):
        raise InputError(f"lipschitz={lipschitz} must be a finite number, zero or more, or a modulus of continuity.")
    return lambda r: constant * stretch * r


def _checked_modulus(value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"The modulus of continuity returned {value}; it must be a finite number, zero or more.")
    return value
