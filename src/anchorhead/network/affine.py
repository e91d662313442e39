"""Affine maps on sequences `(..., n, d)`: the only thing a network may do between two attentions.

Each is `z -> linear(z) + constant`. Nothing here depends on the data in any other way, which the structural
walker (`network/structure.py`) confirms from the exported graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def constant(value: Tensor) -> nn.Parameter:
    """A stored number of the network: part of the state, not trained unless the user asks for it."""
    return nn.Parameter(value.detach().clone(), requires_grad=False)


def unchanged(now: Sequence[Tensor], before: Sequence[Tensor]) -> bool:
    """Whether tensors hold the numbers that they held before, bit by bit, on the same device."""
    return all(
        a.dtype is b.dtype and a.device == b.device and torch.equal(a, b) for a, b in zip(now, before, strict=True)
    )


def followed(numbers: Sequence[Tensor]) -> bool:
    """Whether torch follows what is computed with these: for gradients, or as a transformation of torch.func."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in numbers):
        return True
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is None:
        return False
    return any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in numbers)


class AsBuilt(nn.Module):
    """A module with a faster evaluation that holds for the numbers that it was built with, and for no others."""

    _built: list[Tensor] | None = None
    _edited = False

    def _fixed(self) -> list[Tensor]:
        """The numbers that the faster evaluation takes for granted."""
        return list(self.parameters())

    def built(self) -> None:
        """From now on these are the numbers."""
        self._built = [t.detach().clone() for t in self._fixed()]

    @property
    def edited(self) -> bool:
        """Whether numbers were changed since it was built; it is then evaluated as what it has become.

        Inside torch.compile and torch.export: whether they had been at the last look outside.
        """
        now = self._fixed()
        if followed(now) or any(t.requires_grad for t in now):
            return True
        if not torch.compiler.is_compiling():
            self._edited = self._built is None or not unchanged(now, self._built)
        return self._edited

    def _apply(self, fn: Any, recurse: bool = True) -> AsBuilt:
        edited = any(t.device.type != "meta" for t in self._fixed()) and self.edited
        super()._apply(fn, recurse)
        self._built = None
        if not edited:
            self.built()
        return self


class TokenWise(nn.Module):
    """The same map for every token: `z_i -> weight z_i + bias`; weight is (d_out, d), bias (d_out,)."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = constant(weight)
        self.bias = constant(weight.new_zeros(weight.shape[0]) if bias is None else bias)

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.weight.mT + self.bias


class PositionWise(nn.Module):
    """A map of its own for each position: weight is (n, d_out, d), bias (n, d_out)."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = constant(weight)
        self.bias = constant(bias)

    def forward(self, z: Tensor) -> Tensor:
        return (self.weight @ z.unsqueeze(-1)).squeeze(-1) + self.bias


class PositionGain(nn.Module):
    """`PositionWise` with diagonal matrices, stored as such: `z_i -> gain_i * z_i + bias_i`, both (n, d)."""

    def __init__(self, gain: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.gain = constant(gain)
        self.bias = None if bias is None else constant(bias)

    def forward(self, z: Tensor) -> Tensor:
        z = z * self.gain
        return z if self.bias is None else z + self.bias


class AppendColumns(nn.Module):
    """Puts constant tokens (m, d) behind the sequence, or before it with `front=True`."""

    def __init__(self, columns: Tensor, *, front: bool = False) -> None:
        super().__init__()
        self.columns = constant(columns)
        self.front = front

    def forward(self, z: Tensor) -> Tensor:
        columns = self.columns.expand(*z.shape[:-2], *self.columns.shape)
        return torch.cat([columns, z] if self.front else [z, columns], dim=-2)


class AppendRows(nn.Module):
    """Gives every position constant features of its own below its data: rows is (n, r)."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = constant(rows)

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([z, self.rows.expand(*z.shape[:-2], *self.rows.shape)], dim=-1)


class MixSequence(nn.Module):
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
