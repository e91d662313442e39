"""A tensor grid of keys as a module: one layer of softmax attention from (..., m) to (..., q).

Key (k_1, .., k_m) scores the sum over axes of slope^i_{k_i} x_i + intercept^i_{k_i} and has the value V[k_1, .., k_m]:

    h(x) = sum over keys of  softmax(x · slopes + intercepts) · V

*Literal*: the scores of all p_1·…·p_m keys, affine in the input, one softmax over them, weights times values.
*Fast*: the exponential of a sum is a product, so the softmax is the product of the axes' own softmaxes; V is contracted
with one axis' weights after the other, a chunk of inputs at a time, and no weight of a grid key is ever formed. Both
use the same stored numbers and agree to rounding (`proof/grid_rounding.py` says to how much).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anchorhead.head.grid_head import GridSizes
from anchorhead.head.own_precision import in_own_precision
from anchorhead.head.parameters import CHUNK_ENTRIES, check_tensor, constant


class GridModule(GridSizes, nn.Module):
    """Softmax attention over a tensor grid of keys.

    slopes, intercepts: one tensor (p_i,) for each axis. values: (p_1, .., p_m, q).
    """

    def __init__(self, slopes: Sequence[Tensor], intercepts: Sequence[Tensor], values: Tensor) -> None:
        super().__init__()
        self.slopes = nn.ParameterList(map(constant, slopes))
        self.intercepts = nn.ParameterList(map(constant, intercepts))
        self.values = constant(values)

    @classmethod
    def of(cls, head: Any, dtype: torch.dtype = torch.float64) -> GridModule:
        """The slopes, intercepts and values of a head, as arrays, stored in the dtype."""

        def stored(numbers: np.ndarray) -> Tensor:
            return torch.as_tensor(numbers).to(dtype)

        return cls(list(map(stored, head.slopes)), list(map(stored, head.intercepts)), stored(head.values))

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def check(self, x: Tensor) -> None:
        """Refuses an input that is not (..., m) in the layer's dtype."""
        check_tensor(x, self.dtype, (self.axes,), what="layer")

    @in_own_precision
    def forward(self, x: Tensor) -> Tensor:
        """The fast evaluation."""
        self.check(x)
        batch = x.shape[:-1]
        if not math.prod(batch):
            return x.new_zeros(*batch, self.outputs)
        rows = max(1, CHUNK_ENTRIES // max(self.values.numel() // self.counts[0], *self.counts))
        out = [self._contract(chunk) for chunk in x.reshape(-1, self.axes).split(rows)]
        return torch.cat(out).reshape(*batch, self.outputs)

    def _weights(self, x: Tensor, axis: int) -> Tensor:
        return (x[:, axis, None] * self.slopes[axis] + self.intercepts[axis]).softmax(-1)

    def _contract(self, x: Tensor) -> Tensor:
        held = self._weights(x, 0) @ self.values.flatten(1)
        for i in range(1, self.axes):
            held = (self._weights(x, i).unsqueeze(1) @ held.unflatten(1, (self.counts[i], -1))).squeeze(1)
        return held

    def attention(self, x: Tensor) -> list[Tensor]:
        """The weights of its one head, (..., 1, keys), the last axis' key running fastest."""
        return [self.literal().weights(x).unsqueeze(-2)]

    def literal(self) -> LiteralGrid:
        """A copy of the numbers, evaluated as the formula reads."""
        return LiteralGrid(self)


class LiteralGrid(nn.Module):
    """Scores of all keys, one softmax over them, weights times values. An intercept is the sum of its axes'."""

    def __init__(self, grid: GridModule) -> None:
        super().__init__()
        counts = grid.counts
        shapes = [[n if i == j else 1 for j, n in enumerate(counts)] for i in range(len(counts))]
        slopes = [s.view(shape).expand(counts).flatten() for s, shape in zip(grid.slopes, shapes, strict=True)]
        levels = [c.double().view(shape).expand(counts) for c, shape in zip(grid.intercepts, shapes, strict=True)]
        self.slopes = constant(torch.stack(slopes))
        self.intercepts = constant(torch.stack(levels).sum(0).flatten().to(grid.dtype))
        self.values = constant(grid.values.flatten(0, -2))
        self.check = grid.check

    @in_own_precision
    def weights(self, x: Tensor) -> Tensor:
        """Attention weights (..., keys), the last axis' key running fastest; they sum to one."""
        return (x @ self.slopes + self.intercepts).softmax(-1)

    @in_own_precision
    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        return self.weights(x) @ self.values
