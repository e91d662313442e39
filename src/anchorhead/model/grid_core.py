"""A target in few variables as one attention layer over a tensor grid of keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorhead.expression.graph import Expression
from anchorhead.expression.tensors import evaluate
from anchorhead.head.grid_module import GridModule
from anchorhead.model.core import FlatCore, require_tokens, stored
from anchorhead.model.network import Resources
from anchorhead.model.self_attention import SelfAttention, shared_keys
from anchorhead.proof.certificate import Certificate


class GridCore(FlatCore):
    """One layer, one head: (..., *input_shape) to (..., *output_shape); the formulas, where the target has them."""

    kind = "grid"

    def __init__(self, grid: GridModule, expression: Expression | None, input_shape: tuple[int, ...],
                 output_shape: tuple[int, ...]) -> None:  # fmt: skip
        super().__init__()
        self.grid, self.expression = grid, expression
        self.input_shape, self.output_shape = input_shape, output_shape

    @property
    def layer(self) -> GridModule:
        return self.grid

    def exact(self, x: Tensor) -> Tensor:
        if self.expression is None:
            return super().exact(x)
        found = evaluate(self.expression, dict(zip(self.expression.variables, x.unbind(-1), strict=True)))
        return torch.stack(found if isinstance(found, list) else [found], dim=-1)

    def on_sequences(self, tokens: int) -> SelfAttention:
        literal = self.grid.literal()
        keys = torch.cat([literal.slopes, literal.intercepts[None]]).T
        return shared_keys(
            torch.eye(self.grid.axes + 1, dtype=self.dtype), keys, literal.values, require_tokens(tokens)
        )

    def resources(self, certificate: Certificate) -> Resources:
        axes = [(s.detach().double(), c.detach().double())
                for s, c in zip(self.grid.slopes, self.grid.intercepts, strict=True)]  # fmt: skip
        beta = max((s.sort().values.diff().abs().max().item() for s, _ in axes if len(s) > 1), default=0.0)
        reach = 0.0
        for (slopes, intercepts), (low, high) in zip(axes, certificate.domain, strict=True):
            ends = torch.tensor([low, high], dtype=torch.float64)[:, None]
            reach += (ends * slopes + intercepts).abs().max().item()
        return Resources(1, 1, self.grid.keys, self.parameter_count(), beta, reach)

    @property
    def largest_value(self) -> float:
        return self.grid.values.abs().max().item()

    def payload(self, certificate: Certificate) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        arrays = {"values": stored(self.grid.values)}
        for i, (slopes, intercepts) in enumerate(zip(self.grid.slopes, self.grid.intercepts, strict=True)):
            arrays |= {f"axes.{i}.slopes": stored(slopes), f"axes.{i}.intercepts": stored(intercepts)}
        known = self.expression
        record = {
            "kind": self.kind,
            "name": certificate.expression[:200],
            "expressions": None if known is None else known.text,
            "variables": None if known is None else list(known.variables),
            "outputs": self.grid.outputs,
            "input_shape": list(self.input_shape),
            "output_shape": list(self.output_shape),
        }
        return record, arrays

    def __repr__(self) -> str:
        return f"grid, {' x '.join(map(str, self.grid.counts))} = {self.grid.keys} keys"
