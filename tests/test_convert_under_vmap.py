"""Forwards that call activations under torch.func are converted, tried out and watched like others."""

import pytest
import torch
from torch import nn

import anchorhead as ah

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


class Mapped(nn.Module):
    def __init__(self, kind=nn.GELU):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.act, self.b = nn.Linear(8, 8), kind(), nn.Linear(8, 8)

    def forward(self, x):
        return self.b(torch.vmap(lambda row: self.act(self.a(row)))(x))


class Function(Mapped):
    def forward(self, x):
        return self.b(torch.vmap(lambda row: torch.tanh(self.a(row)))(x))


class Gated(Mapped):
    def forward(self, x):
        return torch.vmap(lambda row: self.act(self.a(row)) * self.b(row))(x)


class Twice(Mapped):
    def forward(self, x):
        return self.b(torch.vmap(torch.vmap(lambda number: self.act(number)), in_dims=1, out_dims=1)(self.a(x)))


class Slope(Mapped):
    def forward(self, x):
        return torch.func.grad(lambda u: self.act(u).sum())(x)


MODELS = {
    "a module": Mapped,
    "in place": lambda: Mapped(lambda: nn.ReLU(inplace=True)),
    "a norm": lambda: Mapped(lambda: nn.LayerNorm(8)),
    "a function": Function,
    "a gate": Gated,
    "twice": Twice,
}


@pytest.mark.parametrize("name", MODELS)
def test_what_runs_under_vmap_is_converted_and_seen(name):
    original = MODELS[name]()
    converted = ah.convert(original, inputs=X, pure=True)
    assert converted.report.pure
    with torch.no_grad():
        assert (converted(X) - original(X)).abs().max() < 1e-5


def test_a_mistake_under_vmap_is_found(monkeypatch):
    """Additions are of the size that is proved, for every number of the batch, and explain no more."""
    from anchorhead.conversion import convert

    other = convert.compile_formula
    monkeypatch.setattr(convert, "compile_formula", lambda formula, *a, **k: other("gelu(x) + 0.01*tanh(x)", *a, **k))
    with pytest.raises(ah.ConversionError, match="proved errors"):
        ah.convert(Mapped(), inputs=X)


def test_the_slope_of_a_head_is_no_head():
    converted = ah.convert(Slope(), inputs=X)
    assert converted.report.watched
    assert not converted.report.pure
