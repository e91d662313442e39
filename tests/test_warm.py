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


NORMS = {
    "layer": (nn.LayerNorm(16), (3, 16)),
    "layer of one number": (nn.LayerNorm(1), (3, 1)),
    "of many numbers": (nn.RMSNorm(384), (2, 5, 384)),
    "over two axes": (nn.LayerNorm((4, 6)), (3, 4, 6)),
    "without a weight": (nn.LayerNorm((4, 6), elementwise_affine=False), (3, 4, 6)),
    "in groups": (nn.GroupNorm(2, 8), (3, 8, 5)),
    "of each channel": (nn.InstanceNorm2d(8, affine=True), (3, 8, 5, 4)),
    "of each channel, without a weight": (nn.InstanceNorm1d(8), (3, 8, 5)),
    "in groups, without a weight": (nn.GroupNorm(2, 8, affine=False), (3, 8, 5)),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_norms_are_warmed_with_rows_that_they_take(name, dtype):
    norm, shape = NORMS[name]
    head = ah.convert(nn.Sequential(norm), pure=True, inputs=torch.randn(*shape), outside="error").to(dtype)[0]
    [few] = head.few()
    assert few.dtype == dtype
    assert head(few).isfinite().all()


@pytest.mark.heavy
def test_a_warm_pure_conversion_leaves_no_kernel_to_be_made(made):
    torch.manual_seed(0)
    original = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), nn.RMSNorm(16, eps=1e-6))
    model = ah.convert(original, pure=True, warm=True)
    count = len(made)
    assert count == 3
    ah.warm(model)
    x = torch.randn(20, 400, 16)
    with torch.no_grad():
        torch.testing.assert_close(model(x), original(x), rtol=1e-5, atol=1e-5)
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


def test_where_torch_compile_is_switched_off_that_is_said(monkeypatch):
    monkeypatch.setattr(fused, "_by_numbers", {})
    model = ah.convert(nn.Sequential(nn.Linear(4, 4), nn.GELU()), tol=1e-2)
    with torch.compiler.set_stance("force_eager"), pytest.warns(UserWarning, match="switched off here.*Unset") as said:
        ah.warm(model)
    assert "g++" not in str(said[0].message)


@pytest.mark.heavy
def test_torch_compile_may_be_switched_off_after_a_kernel_was_made():
    model, x = ah.convert(nn.Sequential(nn.Linear(4, 4), nn.GELU()), tol=1e-2, warm=True), torch.randn(20_000, 4)
    threads = torch.get_num_threads()
    with torch.no_grad():
        before = model(x)
        torch.set_num_threads(threads + 1)  # which another kernel is for
        try:
            with torch.compiler.set_stance("force_eager"):
                torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-5)
        finally:
            torch.set_num_threads(threads)
