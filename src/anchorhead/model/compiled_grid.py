"""A target in few variables as one attention layer over a tensor grid of keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anchorhead.errors import InputError
from anchorhead.expression.parse import parse
from anchorhead.expression.tensors import evaluate
from anchorhead.head.grid_module import GridAttention
from anchorhead.model.affine import AppendColumns, AppendRows
from anchorhead.model.attention import Attention
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.network import Network, check_input, check_sequence
from anchorhead.model.resources import Resources
from anchorhead.model.self_attention import REACH, SILENCE
from anchorhead.proof.certificate import Certificate


class CompiledGrid(CompiledModel):
    """One layer, one head: (..., *input_shape) to (..., *output_shape)."""

    def __init__(
        self,
        grid: GridAttention,
        certificate: Certificate,
        method: str,
        record: dict[str, Any],
        input_shape: tuple[int, ...],
        output_shape: tuple[int, ...],
    ) -> None:
        super().__init__(certificate, method)
        self.grid = grid
        self.record = record
        """Formulas and variables, where the target has them."""
        self.input_shape, self.output_shape = input_shape, output_shape
        self.seal()

    def forward(self, x: Tensor) -> Tensor:
        self.look(x)
        return self._shaped(self.grid, x)

    def exact(self, x: Tensor) -> Tensor:
        if not self.record.get("expressions"):
            return super().exact(x)
        names = self.record["variables"]
        found = evaluate(parse(self.record["expressions"], names), dict(zip(names, x.unbind(-1), strict=True)))
        return torch.stack(found if isinstance(found, list) else [found], dim=-1)

    def literal(self) -> nn.Module:
        return _Literal(self)

    def _shaped(self, layer: nn.Module, x: Tensor) -> Tensor:
        self.check(x)
        out = layer(x.flatten(-len(self.input_shape)))
        return out.unflatten(-1, self.output_shape) if self.output_shape else out.squeeze(-1)

    def check(self, x: Tensor) -> None:
        """Refuses what is not a tensor of the model's dtype and of its input's shape."""
        check_input(x, self.input_shape, self.grid.dtype)

    def attention(self, x: Tensor) -> list[Tensor]:
        """The attention weights of the one layer: (..., 1, keys), the last axis' key running fastest."""
        self.check(x)
        return [self.grid.literal().weights(x.flatten(-len(self.input_shape))).unsqueeze(-2)]

    def as_self_attention(self, tokens: int) -> GridSelfAttention:
        """The same function of every token of (..., tokens, inputs), as literal W_Q, W_K, W_V, W_O matrices."""
        return grid_as_self_attention(self.grid, tokens)

    @property
    def resources(self) -> Resources:
        """What this model costs; the logit range is over the box."""
        steps = [s.detach().double().sort().values.diff().abs() for s in self.grid.slopes]
        reach = 0.0
        for slopes, levels, (low, high) in zip(
            self.grid.slopes, self.grid.intercepts, self._claimed.domain, strict=True
        ):
            ends = torch.tensor([low, high], dtype=torch.float64)[:, None]
            reach += (ends * slopes.detach().double() + levels.detach().double()).abs().max().item()
        return Resources(
            layers=1,
            heads=1,
            keys=self.grid.keys,
            parameters=sum(p.numel() for p in self.grid.parameters()),
            beta=max((s.max().item() for s in steps if len(s)), default=0.0),
            logit_range=reach,
        )

    @property
    def largest_value(self) -> float:
        return self.grid.values.abs().max().item()

    def payload(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        arrays = {"values": self.grid.values.detach().cpu().numpy().reshape(-1)}
        for i, (slopes, levels) in enumerate(zip(self.grid.slopes, self.grid.intercepts, strict=True)):
            arrays |= {f"axes.{i}.slopes": slopes.detach().cpu().numpy()}
            arrays |= {f"axes.{i}.intercepts": levels.detach().cpu().numpy()}
        record = {
            "kind": "grid",
            "name": self._claimed.expression[:200],
            "expressions": self.record.get("expressions"),
            "variables": self.record.get("variables"),
            "outputs": self.grid.outputs,
            "input_shape": list(self.input_shape),
            "output_shape": list(self.output_shape),
        }
        return record, arrays

    def __repr__(self) -> str:
        sizes = " x ".join(map(str, self.grid.counts))
        return f"CompiledModel(grid, {sizes} = {self.grid.keys} keys; {self.certificate})"


class _Literal(nn.Module):
    """The literal evaluation of a grid model."""

    def __init__(self, model: CompiledGrid) -> None:
        super().__init__()
        self.layer = model.grid.literal()
        self.shape = model._shaped

    def forward(self, x: Tensor) -> Tensor:
        return self.shape(self.layer, x)


class GridSelfAttention(Network):
    """Lift, one attention layer: (..., n, inputs) to (..., n, outputs). Right for |x| up to `reach`."""

    def __init__(self, lift: nn.Module, attention: Attention, tokens: int, inputs: int, columns: int) -> None:
        super().__init__([lift, attention], (tokens, inputs))
        self.attention = attention
        self.tokens, self.inputs, self.columns, self.reach = tokens, inputs, columns, REACH

    def check(self, x: Tensor) -> None:
        check_sequence(x, self.tokens, self.inputs, self.attention.query.dtype)

    def matrices(self) -> dict[str, Tensor]:
        """W_Q, W_K, W_V, W_O in the paper's orientation (tokens as columns)."""
        return {name: w[0] for name, w in self.attention.matrices(self.columns).items()}


def grid_as_self_attention(grid: GridAttention, tokens: int) -> GridSelfAttention:
    """One column a key after the tokens, whose own columns lie so far below that they have no weight."""
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise InputError(f"tokens={tokens!r} must be a whole number of at least 1.")
    literal, m, keys, dtype = grid.literal(), grid.axes, grid.keys, grid.dtype
    slopes, levels = literal.slopes.detach(), literal.intercepts.detach()
    silence = 2 * (slopes.abs().sum(0).max().item() * REACH + levels.abs().max().item()) + SILENCE
    rows = torch.zeros(tokens + keys, 1 + m + 1 + grid.outputs, dtype=dtype)  # one, slopes, intercept, values
    rows[:, 0] = 1
    rows[:tokens, m + 1] = -silence
    rows[tokens:, 1 : m + 1], rows[tokens:, m + 1] = slopes.T, levels
    rows[tokens:, m + 2 :] = literal.values.detach()
    width = m + rows.shape[1]
    query, key = (torch.zeros(1, m + 1, width, dtype=dtype) for _ in range(2))
    query[0, :, : m + 1] = torch.eye(m + 1, dtype=dtype)
    key[0, :, m + 1 : 2 * m + 2] = torch.eye(m + 1, dtype=dtype)
    value = torch.zeros(1, grid.outputs, width, dtype=dtype)
    value[0, :, 2 * m + 2 :] = torch.eye(grid.outputs, dtype=dtype)
    lift = nn.Sequential(AppendColumns(torch.zeros(keys, m, dtype=dtype)), AppendRows(rows))
    attention = Attention(query, key, value, keep=slice(0, tokens), live=slice(tokens, tokens + keys))
    return GridSelfAttention(lift, attention, tokens, m, tokens + keys)
