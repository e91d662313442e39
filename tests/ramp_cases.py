"""Random ramps for the theorems: token weights, biases, ranges, and inputs in and far outside the range."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor


@dataclass
class RampCase:
    weights: Tensor
    bias: Tensor
    low: float
    high: float
    inputs: Tensor


@st.composite
def ramps(draw: st.DrawFn, min_tokens: int = 1, dtype: torch.dtype | None = None) -> RampCase:
    n, d = draw(st.integers(min_tokens, 9)), draw(st.integers(1, 5))
    low = draw(st.floats(-30, 30).map(lambda v: round(v, 3)))
    high = low + draw(st.floats(0.05, 60).map(lambda v: round(v, 3)))
    seed = draw(st.integers(0, 2**31))
    spread = draw(st.sampled_from([0.1, 1.0, 5.0, 200.0]))
    generator = torch.Generator().manual_seed(seed)
    dtype = dtype or draw(st.sampled_from([torch.float64, torch.float32]))
    weights = torch.randn(n, d, generator=generator, dtype=torch.float64)
    bias = torch.randn(n, generator=generator, dtype=torch.float64) + (low + high) / 2
    inputs = spread * torch.randn(20, n, d, generator=generator, dtype=torch.float64)
    return RampCase(weights.to(dtype), bias.to(dtype), low, high, inputs.to(dtype))


def at(values: Tensor, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """weights, bias and inputs (len(values), tokens, 1) for which u is exactly `values` at every token."""
    inputs = values[:, None, None].expand(-1, tokens, 1).contiguous()
    return torch.ones(tokens, 1, dtype=values.dtype), torch.zeros(tokens, dtype=values.dtype), inputs
