"""Attributes that a model has no use for, or that conversion has none for: a sentence, or nothing, and no traceback."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anchorhead as ah

X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    def __init__(self, hold=None):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.held = hold

    def forward(self, x):
        return F.gelu(self.a(x))


class InAList(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.act = nn.Linear(8, 8), nn.GELU()
        self.acts = [self.act]

    def forward(self, x):
        return self.acts[0](self.a(x))


def test_an_activation_that_is_registered_and_in_a_list_is_listed_where_it_runs():
    report = ah.convert(InAList(), inputs=X).report
    assert "gelu" in str(report.remaining)
    assert report.refused[0][0] == "acts"


def test_a_sparse_attribute_is_converted_with_and_not_saved(tmp_path):
    converted = ah.convert(Model(torch.eye(8).to_sparse()), inputs=X)
    assert converted.report.pure
    with pytest.raises(ah.InputError, match="held is a sparse tensor"):
        ah.save_converted(converted, tmp_path / "out")


def test_what_cannot_be_copied_is_named():
    with pytest.raises(ah.InputError, match="held cannot be copied"):
        ah.convert(Model(n for n in range(3)), inputs=X)
    model = Model()
    model.a.made = model.a.weight * 2
    with pytest.raises(ah.InputError, match=r"a\.made cannot be copied"):
        ah.convert(model, inputs=X)


def test_a_dictionary_that_contains_itself_is_refused_and_an_object_that_does_is_not():
    held = {}
    held["self"] = [held]
    with pytest.raises(ah.InputError, match="held contains itself"):
        ah.convert(Model(held), inputs=X)
    model = Model()
    vars(model)["me"] = model
    assert ah.convert(model, inputs=X).report.replaced


class Divides(Model):
    def forward(self, x):
        return super().forward(x) / (x.numel() // len(self.held))


def test_a_mistake_of_a_forward_is_not_blamed_on_its_inputs():
    with pytest.raises(ah.InputError, match=r"its forward fails on it \(ZeroDivisionError"):
        ah.convert(Divides([]), inputs=X)
