"""Kernels that are made ahead: none is left to be made when a large input comes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import anchorhead as ah
from anchorhead.model import fused


@pytest.fixture
def made(monkeypatch):
    """How many kernels were made since the test began."""
    found, make = [], fused._compiled

    def counted(evaluation, *like):
        found.append(like)
        return make(evaluation, *like)

    monkeypatch.setattr(fused, "_compiled", counted)
    monkeypatch.setattr(fused, "_by_numbers", {})
    return found


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.act, self.out = nn.Linear(4, 64), nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 2)
        self.after = nn.GELU()

    def forward(self, x):
        return self.after(self.out(self.act(self.gate(x)) * self.up(x)))


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_warm_conversion_leaves_no_kernel_to_be_made(made, dtype):
    torch.manual_seed(0)
    original = Gated().to(dtype)
    model = ah.convert(original, warm=True)
    count = len(made)
    assert count == 2
    x = torch.randn(20_000, 4, dtype=dtype)
    close = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(model(x), original(x), rtol=close, atol=close)
    with torch.no_grad():
        model(x)
    assert len(made) == count


@pytest.mark.heavy
def test_compiled_models_are_warmed_too(made):
    torch.manual_seed(0)
    model = ah.compile(nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1)), [(-1, 1)] * 4, tol=1e-5)
    ah.warm(model)
    count = len(made)
    assert count == 1
    x = 2 * torch.rand(2_000, 4, dtype=torch.float64) - 1
    with torch.no_grad():
        assert (model(x) - model.exact(x)).abs().max() <= model.certificate.bound
    assert len(made) == count


def test_conversion_without_it_makes_none(made):
    ah.convert(nn.Sequential(nn.Linear(4, 8), nn.GELU()))
    assert not made
