"""The network of the two universal theorems: ramps, bumps, and a look-up of f on a grid (docs/mathematics.md 1.5, 1.6).

`grid.py` states and proves the bound, `two_layer.py` and `attention_then_softmax.py` say what the two stages are.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, cast
from typing import Literal as OneOf

import torch
from torch import Tensor, nn

from anchorhead.digits import Down, counted, interval
from anchorhead.errors import AnchorheadError, InputError, asked
from anchorhead.head.head import Head
from anchorhead.model.affine import AppendColumns, AppendRows
from anchorhead.model.attention import Attention
from anchorhead.model.network import Resources
from anchorhead.model.outside import Watched
from anchorhead.model.report import shortened
from anchorhead.theorems.anchors import check_beta, even_points, score_rows
from anchorhead.theorems.construction import Construction
from anchorhead.theorems.declared import declared_modulus, hold_against
from anchorhead.theorems.formulas import Formulas, Target
from anchorhead.theorems.grid import Grid, Modulus
from anchorhead.theorems.grid_rounding import blurred_error, lookup_rounding, own_rounding
from anchorhead.theorems.grid_scores import GridScores, require_values
from anchorhead.theorems.lookup import Bumps, Lookup
from anchorhead.theorems.own_columns import OwnLookup, stray
from anchorhead.theorems.ramps import head_of_u

FAR = 1e6
"""Boxes beyond which it is not said how far inputs may be outside."""
ADVICE = "Build it on a box that holds the inputs, with low= and high="


class GridNetwork(Watched, Construction):
    """A look-up of f on a grid, by attention; build it with `two_layer` or `attention_then_softmax`.

    beta: β of the look-up, ramp_beta: of the ramps in layer 1; `resources.beta` is the larger of the two. outside: what
    an input outside the box does: "warn", once, unless it is set to "error" or "ignore".

    >>> ah.theorems.two_layer(lambda x: x.flip(-2), tokens=2, features=1, levels=8).resources.layers
    2
    """

    grid: Grid
    f: Target | None
    scores: GridScores
    beta: float
    ramp_beta: float
    ramp_anchors: int

    def forward(self, x: Tensor) -> Tensor:
        """(..., n, d) to (..., n, d_out)."""
        self.look(x)
        return super().forward(x)

    @property
    def layer1(self) -> Attention:
        """Layer 1, the ramps."""
        return self.attention

    @property
    def lookup(self) -> Lookup | OwnLookup:
        """The second stage."""
        return cast(Lookup | OwnLookup, self.stages[3])

    @property
    def selection_error(self) -> float:
        """ε of the bound, in the dtype that the network has."""
        if isinstance(self.lookup, OwnLookup):
            return stray(self.lookup.grid, self.beta, self.dtype)[0]
        return blurred_error(self.grid, self.beta, self.ramp_anchors, self.ramp_beta, self.dtype)

    @property
    def size(self) -> tuple[int, int]:
        return self.grid.tokens, self.grid.features

    @property
    def tokens(self) -> int:
        """n."""
        return self.grid.tokens

    @property
    def features(self) -> int:
        """d."""
        return self.grid.features

    @property
    def dtype(self) -> torch.dtype:
        return self.lookup.values.dtype

    def count(self, x: Tensor) -> int:
        """How many sequences there are in a batch."""
        return x.numel() // self.grid.coordinates

    def require(self, dtype: torch.dtype) -> None:
        self.scores.require(dtype)
        require_values(self.lookup.values.double().abs().max().item(), self.grid.coordinates, dtype)

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
        if self.f is None:
            raise AnchorheadError(
                "This network is from a file, which holds the values of f on the grid and not f itself, a Python "
                "function; compare with the function. Where f is given as formulas, files hold them."
            )
        found: Tensor = asked(
            self.f, x, name="f", at=f"inputs of shape {tuple(x.shape)}",
            advice="f works on batches, (..., tokens, features) to (..., tokens, d_out).",
        )  # fmt: skip
        return found

    @property
    def without(self) -> dict[str, str]:
        """There is no bound that is a number without knowing f."""
        why = (
            "The theorem's bound depends on how fast f varies, which its values on the grid do not show. Declare it: "
            "bound_for(lipschitz=L), or a modulus of continuity as a callable."
        )
        return super().without | {"bound": why}

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
        norm: "sup" for the largest error of any entry anywhere, or p >= 1 for the paper's L_p norm, the p-th root of
        the integral over the box of the sum over entries of |error|^p, divided by neither. With two layers on their own
        columns and no shifts only that is small: on slopes the error may be the spread of f.
        The bound holds if what is declared does; what the values on the grid contradict is refused.
        """
        self.require_built()
        modulus = declared_modulus(lipschitz, metric, self.grid.coordinates)
        values = self.lookup.values
        self._hold_against(values, lipschitz, metric)
        spread = (values.double().amax(0) - values.double().amin(0)).max().item()
        rounding = self.rounding
        if isinstance(self.lookup, OwnLookup):
            sup = modulus(self.grid.cell / 2) + spread * self.lookup.mixed() + rounding
        else:
            sup = self.grid.sup_bound(modulus, self.selection_error, spread) + rounding
        if norm == "sup" or norm == math.inf:
            return sup
        if isinstance(norm, str) or not norm >= 1:
            raise InputError(f'norm={norm!r} must be "sup" or a number of at least 1.')
        count = len(self.lookup.grids) if isinstance(self.lookup, OwnLookup) else 1
        return self.grid.mean_bound(
            lambda r: modulus(r) + rounding, self.selection_error, spread, float(norm), values.shape[1], sup, count
        )

    def _hold_against(self, values: Tensor, lipschitz: float | Modulus, metric: str) -> None:
        """Refuses what the values on the grid, or on one of several, contradict."""
        grids = self.lookup.grids if isinstance(self.lookup, OwnLookup) else [self.grid]
        for grid, own in zip(grids, values.detach().chunk(len(grids)), strict=True):
            hold_against(own, [grid.centres()] * grid.coordinates, lipschitz, metric)

    @property
    def rounding(self) -> float:
        """What storing values and weighing them adds, in this network and written out; see `grid_rounding.py`."""
        values, error = self.lookup.values.double(), self.selection_error
        size = values.abs().max().item()
        if not isinstance(self.lookup, OwnLookup):
            return lookup_rounding(self.grid, error, size, self.dtype)
        spread = (values.amax(0) - values.amin(0)).max().item()
        count = len(self.lookup.grids)
        return own_rounding(self.lookup.grid, count, self.lookup.second.heads // count, error, spread, size, self.dtype)

    @property
    def reach(self) -> float:
        """How far outside the box an input may be: beyond that a score of a ramp may overflow, which in float16 is a
        few boxes away."""
        return self.scores.reach(self.dtype)

    def matrices(self) -> dict[str, Tensor]:
        """layer1.W_Q, ...: the heads of layer 1; the lift, lift.columns and lift.rows; and what is between, of the
        g - 1 ramps of a coordinate its g bumps: between.weight (g, g - 1) and between.bias (g,), g being a level more
        where there are shifts. The score of a grid point is the sum of its bumps, and below it layer 2 has the
        constants between.rows: a 1 and the values. The second stage is layer2.W_Q, ..., or softmax.beta and read_out.
        With columns="own" between.digits makes the number of the cell of all bumps, between.rows is the identity below
        it, and after.weight and after.bias hand every column its part of the outputs."""
        bumps = cast(Bumps, self.stages[2]).levels
        bias = self.lookup.values.new_zeros(bumps)
        bias[0] = 1.0
        weight = torch.diff(torch.eye(bumps, dtype=bias.dtype, device=bias.device), dim=1)
        named = {f"layer1.{k}": w for k, w in self.layer1.matrices(self.ramp_anchors).items()}
        named |= self.lift_matrices() | {"between.weight": weight, "between.bias": bias}
        return named | self.lookup.matrices()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        named: dict[str, tuple[int, ...]] = {
            f"layer1.{k}": shape for k, shape in self.layer1.shapes(self.ramp_anchors).items()
        }
        bumps = cast(Bumps, self.stages[2]).levels
        named |= self.lift_shapes() | {"between.weight": (bumps, bumps - 1), "between.bias": (bumps,)}
        return named | self.lookup.shapes()

    def scalar_heads(self) -> list[Head]:
        """A ramp, as a function of u on [0, 1]."""
        rows, beta = cast(AppendRows, self.lift[-1]).rows.double(), self.layer1.query[0, 1, self.grid.features].double()
        return [head_of_u(beta * rows[:, 1], beta * rows[:, 2], rows[:, 3], 0.5)]

    def described(self) -> dict[str, Any]:
        grid, own = self.grid, self.ramp_anchors == self.grid.tokens
        known = {
            **asdict(grid) | {name: float(getattr(grid, name)) for name in ("low", "high", "slope")},
            "output_features": self.lookup.values.shape[1] // grid.tokens,
            "columns": "own" if own else "appended",
            "shifts": len(self.lookup.grids) if isinstance(self.lookup, OwnLookup) else 1,
            "ramp_anchors": self.ramp_anchors,
            "beta": self.beta,
            "ramp_beta": self.ramp_beta,
        }
        return known | ({"expressions": list(self.f.texts)} if isinstance(self.f, Formulas) else {})

    def sentences(self) -> list[str]:
        grid, told = self.grid, self.described()
        f = ", ".join(self.f.texts) if isinstance(self.f, Formulas) else "f"
        own = ", keys in the columns of the sequence" if told["columns"] == "own" else ""
        own += f", {told['shifts']} shifted grids" if told["shifts"] > 1 else ""
        return [
            f"{self.theorem}: {shortened(f, 60)} of {counted(grid.tokens, 'token')} x "
            f"{counted(grid.features, 'feature')} in {interval((grid.low, grid.high))}, {grid.tokens} x "
            f"{told['output_features']} outputs, " + str(self.dtype).removeprefix("torch."),
            self.unproved or "|network - f| <= bound_for(lipschitz=L), which depends on how fast f varies",
            f"levels g = {grid.levels}, {grid.points:,} grid points{own}, p = {self.ramp_anchors} anchors of a ramp, "
            f"β = {self.beta:.6g}, of ramps {self.ramp_beta:.6g}, selection error ε = {self.selection_error:.3g}",
            *(
                [f"inputs up to {Down(self.reach):.3g} outside of the box are treated as the nearest point in it"]
                * (self.reach < FAR * (grid.high - grid.low))
            ),
        ]

    def betas(self) -> dict[str, float]:
        """Those of the look-up and of the ramps."""
        return {"beta of the look-up": self.beta, "beta of the ramps": self.ramp_beta}

    def known_bound(self) -> float | None:
        return None

    @property
    def resources(self) -> Resources:
        keys = self.grid.points
        if isinstance(self.lookup, OwnLookup):
            keys = self.lookup.second.heads * self.grid.tokens
        return Resources(
            layers=len(self.layers),
            heads=sum(layer.heads for layer in self.layers),
            keys=self.layer1.heads * self.ramp_anchors + keys,
            parameters=sum(p.numel() for p in self.parameters()),
            beta=max(self.beta, self.ramp_beta),
            logit_range=self.scores.logit_range,
        )


def assembled(f: Target | None, grid: Grid, grids: list[Grid], values: Tensor, p: int, beta: float,
              ramp_beta: float, *, attention: bool, own: bool) -> GridNetwork:  # fmt: skip
    """The network of values (K, points, n, d_out) on the K grids that are looked up, p anchors a ramp; refused where
    their dtype cannot hold it."""
    dtype, first, numbered = values.dtype, grids[0], own and attention
    scores = GridScores(grid, tuple(grids), p, check_beta(ramp_beta), check_beta(beta), numbered)
    scores.require(dtype)
    require_values(values.double().abs().max().item(), grid.coordinates, dtype)
    beta, ramp_beta = scores.beta, scores.ramp_beta
    lookup = OwnLookup(grids, values, beta) if numbered else Lookup(values[0], beta, attention=attention)
    model = GridNetwork([*_ramps(grids, p, ramp_beta, dtype), Bumps(first.levels), lookup])
    model.theorem = "two_layer" if attention else "attention_then_softmax"
    model.grid, model.scores = grid, scores
    object.__setattr__(model, "f", f)  # the caller's, and no part of the network even where it is a module
    model.beta, model.ramp_beta, model.ramp_anchors = beta, ramp_beta, p
    model.watch([(grid.low, grid.high)], f"the network of {model.theorem}", ADVICE)
    model.built()
    return model


def _ramps(grids: list[Grid], p: int, beta: float, dtype: torch.dtype) -> tuple[nn.Sequential, Attention]:
    """Lift to p columns of rows (x, 1, 2(L - 1/2), -(L - 1/2)², L), and a head for each grid, feature and edge."""
    n, d = grids[0].tokens, grids[0].features
    points = even_points(0.0, 1.0, p)
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
