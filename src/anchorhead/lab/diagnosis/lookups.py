"""The look-ups of the universal theorems (Theorem 3.3), examined.

They look f up at the centre of x's cell, and between two cells on the slope between them. How fast f varies is not
known, so what they are held to is the look-up itself: the output lies between the values of the cells that x touches,
but for the default selection error's share of the spread of all values, and rounding.

Two layers on own columns run through the numbers between two cells on a slope, so that there the output lies between
the least and the largest of all values; the mean of several grids between the means of these ends, those in which x is
inside a cell having that cell's value (`theorems/own_columns.py`, whose ε and ε' are what is allowed beyond). What is
looked at is the first grid, in the head whose keys hold the number of x's cell.

The values are those that are stored, or of an edited network those of f where f is known: it is not held to what was
changed.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.errors import StructureError
from anchorhead.lab.diagnosis.compiled import point
from anchorhead.lab.diagnosis.examined import SELECTION_ERROR, Examined, Snap, derived
from anchorhead.model.attention import LiteralAttention
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.network import Network
from anchorhead.theorems.grid import WIDENED, Grid, saturation
from anchorhead.theorems.grid_network import GridNetwork
from anchorhead.theorems.lookup import SoftmaxReadOut
from anchorhead.theorems.own_columns import OwnLookup, head_count, own_beta, stray
from anchorhead.theorems.two_layer import tabulated


class ExaminedLookup(Examined):
    """`two_layer` or `attention_then_softmax` on inputs (..., n, d)."""

    name = "the look-up"

    def __init__(self, model: GridNetwork, x: Tensor, dtype: torch.dtype, score_factor: float) -> None:
        super().__init__(x.detach().reshape(-1, *x.shape[-2:]), dtype, score_factor)
        self.model, self.grid, lookup = model, model.grid, model.lookup
        self.intact = not model.edited
        self.own = lookup if isinstance(lookup, OwnLookup) else None
        self.grids = self.own.grids if self.own else [model.grid]
        self.values = self._meant()
        flat = self.values.flatten(0, 1)
        promised = self._astray() * (flat.amax(0) - flat.amin(0)).max().item() + model.rounding
        self.bound = torch.full((len(self.x),), promised, dtype=torch.float64)
        sloped = torch.stack([(first != last).any(-1) for first, last in (_cells(self.x, g) for g in self.grids)])
        self.ends, self.seams = torch.zeros_like(self.bound, dtype=torch.bool), sloped.any(0)
        self.logits = model.resources.logit_range
        self.keys, self.per_row = self.grid.points, max(self.grid.points, model.ramp_anchors)
        if self.own:
            self.keys, self.per_row = self.grid.tokens, self.own.second.heads * self.grid.tokens**2
        self.snap = Snap(torch.ones_like(self.bound), ~sloped[0], self.derived)

    def _meant(self) -> Tensor:
        """The values that it should look up, (grids, points, entries): of an edited network those of f, if f is known,
        else its own."""
        model = self.model
        if self.intact or model.f is None:
            return model.lookup.values.detach().double().unflatten(0, (len(self.grids), -1))
        return tabulated(model.f, model.grid, self.grids, model.dtype).double().flatten(2)

    @property
    def derived(self) -> float:
        """β of the look-up at the default selection error."""
        p = self.model.ramp_anchors
        settled = saturation(p, math.log((p - 1) / SELECTION_ERROR))
        return own_beta(SELECTION_ERROR) if self.own else self.grid.beta(SELECTION_ERROR, settled)

    def _astray(self) -> float:
        """The weight that may be elsewhere, at the default selection error."""
        if not self.own:
            return SELECTION_ERROR
        inside, beyond = stray(self.own.grid, self.derived, self.model.dtype)
        return inside + min(1.0, self.grid.coordinates / len(self.grids)) * beyond

    def _error(self, out: Tensor, x: Tensor) -> Tensor:
        """How far the output is from lying between the values of the cells that x touches."""
        between = _among_all if self.own else _between_cells
        ends = [between(values, *_cells(x, grid), grid) for grid, values in zip(self.grids, self.values, strict=True)]
        least, most = (torch.stack(parts).mean(0) for parts in zip(*ends, strict=True))
        out = out.double().reshape(len(x), -1)
        return torch.where(out.isnan(), out, (least - out).clamp(min=0).maximum(out - most)).amax(-1)

    def literal(self) -> Network:
        return self.model.literal()

    def look(self, literal: Network, x: Tensor) -> tuple[Tensor, Tensor]:
        z, weights = x, None
        for stage in literal.stages:
            weights = self._weights(stage, z, weights)
            z = stage(z)
        if weights is None:
            raise StructureError("A network that looks values up has no softmax, so that nothing can be seen of it.")
        return self._error(z, x), weights

    def _weights(self, stage: nn.Module, z: Tensor, before: Tensor | None) -> Tensor | None:
        """The weights of the last softmax so far, in the head that holds each input."""
        if isinstance(stage, LiteralAttention):
            weights = stage.weights(z)[:, :, 0]
            return weights[torch.arange(len(z)), self._holder(z) if before is not None and self.own else 0]
        return (z * stage.beta).softmax(-1) if isinstance(stage, SoftmaxReadOut) else before

    def _holder(self, z: Tensor) -> Tensor:
        """The head of the first grid whose keys hold the number that columns are given."""
        grid = self.grids[0]
        number = (z[:, 0, 0].double() + (grid.points - 1) / 2).round().long()
        return ((number - 1) // (grid.tokens - 2)).clamp(0, head_count(grid) - 1)

    def place(self, i: int) -> str:
        return point(self.x[i].flatten())

    def rescale(self, factor: float) -> str:
        return derived(factor, self.derived, "of the look-up ")

    def smaller(self, dtype: torch.dtype) -> str:
        return "Or take fewer levels." if not self.grid.resolves(dtype) else ""

    @staticmethod
    def against(part: Any) -> str:
        whose = "the" if getattr(part, "network", part).f else "its own"
        return f"{whose} values of the cells around each input, not with the function between them"


class ExaminedTwoLayer(ExaminedLookup):
    """The same network behind a map of a compiled model's box to the unit cube."""

    def __init__(self, model: CompiledModel, x: Tensor, dtype: torch.dtype, score_factor: float) -> None:
        core: Any = model.network
        super().__init__(core.network, core.scaled(x), dtype, score_factor)


def _cells(x: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """The first and last cell of a grid that every coordinate touches, (rows, nd)."""
    flat = x.reshape(len(x), -1).double()
    reach = WIDENED * grid.slope * grid.cell / 2
    places = ((flat + side * reach - grid.low) / grid.cell for side in (-1, 1))
    first, last = (c.floor().long().clamp(0, grid.levels - 1) for c in places)
    return first, last


def _numbers(cells: Tensor, grid: Grid) -> Tensor:
    """Cells (rows, nd) as numbers of grid points."""
    return (cells * grid.levels ** torch.arange(grid.coordinates - 1, -1, -1)).sum(-1)


def _between_cells(values: Tensor, first: Tensor, last: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """The least and the largest value, entry by entry, of the cells that x touches."""
    choices = [(0, 1) if both else (0,) for both in (first != last).any(0).tolist()]
    least = most = values[_numbers(first, grid)]
    for choice in itertools.islice(itertools.product(*choices), 1 << 12):
        found = values[_numbers(torch.where(torch.tensor(choice) == 1, last, first), grid)]
        least, most = torch.minimum(least, found), torch.maximum(most, found)
    return least, most


def _among_all(values: Tensor, first: Tensor, last: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """The value of x's cell, twice; the least and the largest of all where x is on a slope."""
    inside, own = (first == last).all(-1, keepdim=True), values[_numbers(first, grid)]
    return torch.where(inside, own, values.amin(0)), torch.where(inside, own, values.amax(0))
