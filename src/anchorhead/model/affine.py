"""Affine maps on sequences `(..., n, d)`: the only thing a network may do between two attentions.

Each is `z -> linear(z) + constant`. Nothing here depends on the data in any other way, which the structural
walker (`model/walker.py`) confirms from the exported graph.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anchorhead.head.parameters import Shaped, constant


class TokenWise(Shaped):
    """The same map for every token: `z_i -> weight z_i + bias`; weight is (d_out, d), bias (d_out,)."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = constant(weight)
        self.bias = constant(weight.new_zeros(weight.shape[0]) if bias is None else bias)

    def forward(self, z: Tensor) -> Tensor:
        return nn.functional.linear(z, self.weight, self.bias)


class PositionWise(Shaped):
    """A map of its own for each position: weight is (n, d_out, d), bias (n, d_out)."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = constant(weight)
        self.bias = constant(bias)

    def forward(self, z: Tensor) -> Tensor:
        return (self.weight @ z.unsqueeze(-1)).squeeze(-1) + self.bias


class PositionGain(Shaped):
    """`PositionWise` with diagonal matrices, stored as such: `z_i -> gain_i * z_i + bias_i`, both (n, d)."""

    def __init__(self, gain: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.gain = constant(gain)
        self.bias = None if bias is None else constant(bias)

    def forward(self, z: Tensor) -> Tensor:
        z = z * self.gain
        return z if self.bias is None else z + self.bias


class AppendColumns(Shaped):
    """Puts constant tokens (m, d) behind the sequence, or before it with `front=True`."""

    def __init__(self, columns: Tensor, *, front: bool = False) -> None:
        super().__init__()
        self.columns = constant(columns)
        self.front = front

    def forward(self, z: Tensor) -> Tensor:
        columns = self.columns.expand(*z.shape[:-2], *self.columns.shape)
        return torch.cat([columns, z] if self.front else [z, columns], dim=-2)


class AppendRows(Shaped):
    """Gives every position constant features of its own below its data: rows is (n, r)."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = constant(rows)

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([z, self.rows.expand(*z.shape[:-2], *self.rows.shape)], dim=-1)


class MixSequence(Shaped):
    """Mixes along the sequence: `z -> weight z`, weight (m, n), plus a constant (m, d) if given."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = constant(weight)
        self.bias = None if bias is None else constant(bias)

    def forward(self, z: Tensor) -> Tensor:
        z = self.weight @ z
        return z if self.bias is None else z + self.bias


class Unflatten(nn.Module):
    """Reads the one column (..., 1, n * d) as the sequence (..., n, d)."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens

    def forward(self, z: Tensor) -> Tensor:
        return z.squeeze(-2).unflatten(-1, (self.tokens, -1))
