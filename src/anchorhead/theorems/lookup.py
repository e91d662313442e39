"""Affine maps and the softmax stage that turn ramps into a look-up of grid values; see `grid.py`.

Literally, all g^D grid points have a score R_v. Since the softmax over them is a product over coordinates,
the fast evaluation contracts the value tensor with one coordinate's g weights after the other, and never
holds a weight for each grid point.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from anchorhead.head.parameters import AsBuilt, constant
from anchorhead.model.affine import Unflatten
from anchorhead.model.attention import CHUNK_ENTRIES, Attention, LiteralAttention


class Bumps(nn.Module):
    """Ramps (..., n, d(g-1)) to bumps (..., nd, g): ρ_{l-1} - ρ_l with ρ_0 = 1 and ρ_g = 0. Affine."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels = levels

    def forward(self, ramps: Tensor) -> Tensor:
        ramps = ramps.unflatten(-1, (-1, self.levels - 1)).flatten(-3, -2)
        before = nn.functional.pad(ramps, (1, 0), value=1.0)
        after = nn.functional.pad(ramps, (0, 1), value=0.0)
        return before - after


class GridSums(nn.Module):
    """Bumps (..., D, g) to R (..., g^D): for every grid point the sum of its D bumps. Linear."""

    def forward(self, bumps: Tensor) -> Tensor:
        total = bumps[..., 0, :]
        for c in range(1, bumps.shape[-2]):
            total = (total.unsqueeze(-1) + bumps[..., c, None, :]).flatten(-2)
        return total


class GridColumns(nn.Module):
    """R (..., g^D) to one column a grid point, (..., g^D, 2 + m): its R, a 1, and its m constant values."""

    def __init__(self, values: nn.Parameter) -> None:
        super().__init__()
        self.values = values

    def forward(self, sums: Tensor) -> Tensor:
        constants = grid_rows(self.values)
        return torch.cat([sums.unsqueeze(-1), constants.expand(*sums.shape[:-1], *constants.shape)], dim=-1)


def grid_rows(values: Tensor) -> Tensor:
    """What the columns of layer 2 have below R: a 1 and the m values, (g^D, 1 + m)."""
    return torch.cat([torch.ones_like(values[:, :1]), values], dim=-1)


class SoftmaxReadOut(nn.Module):
    """Scores (..., N) to (..., 1, m): softmax of β times the scores, then the affine read-out `values`."""

    def __init__(self, values: nn.Parameter, beta: nn.Parameter) -> None:
        super().__init__()
        self.values, self.beta = values, beta

    def forward(self, scores: Tensor) -> Tensor:
        return ((scores * self.beta).softmax(-1) @ self.values).unsqueeze(-2)

    def as_attention(self) -> list[nn.Module]:
        """The lift and the attention layer, with one constant query, that compute the same."""
        lookup = Lookup(self.values.detach().unsqueeze(1), self.beta.item(), attention=True)
        return list(lookup.literal().children())[1:3]


class Lookup(AsBuilt):
    """Bumps (..., D, g) to the softmax-weighted grid values, (..., n, d_out).

    values: (g^D, n, d_out). With `attention=True` the literal form is a second attention layer with one key
    for each grid point and one query; otherwise a plain softmax and an affine read-out. The fast evaluation holds for
    the second layer's matrices as they were built; edited ones are evaluated literally.
    """

    def __init__(self, values: Tensor, beta: float, *, attention: bool) -> None:
        super().__init__()
        self.tokens = values.shape[1]
        self.values = constant(values.flatten(1))
        self.second = self._attention(beta) if attention else None
        if not attention:
            self.sharpness = constant(torch.tensor(beta, dtype=values.dtype))
        self.built()

    def _fixed(self) -> list[Tensor]:
        return [] if self.second is None else list(self.second.parameters())

    @property
    def beta(self) -> Tensor:
        """β, as stored in the second stage."""
        return self.sharpness if self.second is None else self.second.query[0, 0, 1]

    def _attention(self, beta: float) -> Attention:
        entries, dtype = self.values.shape[1], self.values.dtype
        query = torch.zeros(1, 1, 2 + entries, dtype=dtype)
        query[0, 0, 1] = beta
        key = torch.zeros(1, 1, 2 + entries, dtype=dtype)
        key[0, 0, 0] = 1
        value = torch.cat([torch.zeros(entries, 2, dtype=dtype), torch.eye(entries, dtype=dtype)], dim=1)
        return Attention(query, key, value[None], keep=slice(0, 1))

    def forward(self, bumps: Tensor) -> Tensor:
        if self.evaluated_literally:
            found: Tensor = self._stages()(bumps)
            return found
        weights = (self.beta * bumps).softmax(-1)
        batch, (coordinates, levels) = weights.shape[:-2], weights.shape[-2:]
        weights = weights.reshape(-1, coordinates, levels)
        if not len(weights):
            return self.values.new_zeros(*batch, self.tokens, self.values.shape[1] // self.tokens)
        width = self.values.numel() // levels
        rows = max(1, CHUNK_ENTRIES // width)
        out = [self._contract(chunk) for chunk in weights.split(rows)]
        return torch.cat(out).reshape(*batch, self.tokens, -1)

    def _contract(self, weights: Tensor) -> Tensor:
        size, coordinates, levels = weights.shape
        held = weights[:, 0] @ self.values.reshape(levels, -1)
        for c in range(1, coordinates):
            held = (weights[:, c, None] @ held.reshape(size, levels, -1)).squeeze(1)
        return held

    def matrices(self) -> dict[str, Tensor]:
        """between.rows, the constants of layer 2's columns, and layer2.W_Q, ...; or softmax.beta and read_out."""
        if self.second is None:
            return {"softmax.beta": self.sharpness.detach(), "read_out": self.values.detach().mT}
        layer = {f"layer2.{k}": w[0] for k, w in self.second.matrices(len(self.values)).items()}
        return {"between.rows": grid_rows(self.values.detach())} | layer

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Those of `matrices()`, none of which are made."""
        points, entries = self.values.shape
        if self.second is None:
            return {"softmax.beta": (), "read_out": (entries, points)}
        layer = {f"layer2.{k}": shape[1:] for k, shape in self.second.shapes(points).items()}
        return {"between.rows": (points, 1 + entries)} | layer

    def literal(self) -> nn.Sequential:
        """A copy of the stages as the theorem has them."""
        return copy.deepcopy(self._stages())

    def _stages(self) -> nn.Sequential:
        if self.second is None:
            return nn.Sequential(GridSums(), SoftmaxReadOut(self.values, self.sharpness), Unflatten(self.tokens))
        return nn.Sequential(
            GridSums(), GridColumns(self.values), LiteralAttention(self.second), Unflatten(self.tokens)
        )
