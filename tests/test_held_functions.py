"""Activation functions that a module holds in an attribute are converted where that is safe, and else named."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anchorhead as ah

X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


class Holds(nn.Module):
    def __init__(self, act):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.c, self.act = nn.Linear(8, 8), nn.Linear(8, 8), act

    def forward(self, x):
        return self.c(self.act(self.a(x)))


class Branches(Holds):
    def forward(self, x):
        if x.ndim > 7:
            x = x.flatten(0, -2)
        return self.c(self.act(self.a(x)))


class Gates(Holds):
    def forward(self, x):
        return self.c(self.act(self.a(x)) * x)


class MoreArguments(Holds):
    def forward(self, x):
        return self.c(self.act(self.a(x), True))


class HandsOn(Holds):
    def forward(self, x):
        return self.c(torch.stack([*map(self.act, self.a(x))]))


class NeverCalls(Holds):
    def forward(self, x):
        return self.c(F.tanh(self.a(x)))


FUNCTIONS = {
    "silu(x)": F.silu,
    "tanh(x)": torch.tanh,
    "leaky_relu(x, 0.01)": F.leaky_relu,
    "gelu_tanh(x)": functools.partial(F.gelu, approximate="tanh"),
    "leaky_relu(x, 0.3)": functools.partial(F.leaky_relu, negative_slope=0.3),
}


@pytest.mark.parametrize("kind", [Holds, Branches, Gates])
@pytest.mark.parametrize("formula", FUNCTIONS)
def test_activation_functions_in_attributes_are_converted(kind, formula, tmp_path):
    original = kind(FUNCTIONS[formula]).eval()
    converted = ah.convert(original, inputs=X)
    assert original.act is FUNCTIONS[formula]
    (row,) = converted.report.replaced
    assert row.place == "act"
    assert row.gated == (kind is Gates)
    assert converted.report.pure
    assert not converted.report.refused
    assert (converted(X) - original(X)).abs().max() < 1e-5
    ah.save_converted(converted, tmp_path)
    loaded = ah.load_converted(tmp_path, kind(FUNCTIONS[formula]))
    assert loaded.report == converted.report
    assert torch.equal(loaded(X), converted(X))


@pytest.mark.parametrize("model", [MoreArguments(F.silu), HandsOn(F.silu), Holds(lambda x: F.silu(x))])
def test_what_is_not_replaced_stays_and_is_named(model):
    report = ah.convert(model.eval(), inputs=X).report
    assert [place for place, _ in report.refused] == ["act"]
    assert not report.pure
    assert report.remaining


def test_a_function_that_no_code_mentions_is_not_named():
    report = ah.convert(NeverCalls(F.silu).eval(), inputs=X).report
    assert not report.refused
    assert report.pure
