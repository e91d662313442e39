"""The published ramps: n tokens of d features, w_i and t_i standard normal, inputs uniform on [-5, 5], 800 + 200."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TOKENS, FEATURES, SEQUENCES, HELD_OUT = 50, 10, 1000, 200


@dataclass(frozen=True)
class RampData:
    """weights (n, d), bias (n,), inputs (sequences, n, d), all float64; the last 200 sequences are for testing."""

    weights: Tensor
    bias: Tensor
    inputs: Tensor

    def target(self, low: float, high: float) -> Tensor:
        """clip(w_i·x_i + t_i, low, high), (sequences, n)."""
        return ((self.inputs * self.weights).sum(-1) + self.bias).clamp(low, high)


def ramp_data(seed: int, tokens: int = TOKENS, features: int = FEATURES, sequences: int = SEQUENCES) -> RampData:
    """The data of one seed."""
    draw = torch.Generator().manual_seed(seed)
    weights = torch.randn(tokens, features, generator=draw, dtype=torch.float64)
    bias = torch.randn(tokens, generator=draw, dtype=torch.float64)
    inputs = 10 * torch.rand(sequences, tokens, features, generator=draw, dtype=torch.float64) - 5
    return RampData(weights, bias, inputs)
