"""Heads whose values are trained: gradients, fine-tuning as the original does, and proofs of what came of it."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import anchorhead as ah
from anchorhead.model.activation import Placed


class Gated(nn.Module):
    """SwiGLU, and a GELU after it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(6, 16), nn.Linear(6, 16), nn.Linear(16, 8)
        self.act, self.last, self.out = nn.SiLU(), nn.GELU(), nn.Linear(8, 1)

    def forward(self, x):
        return self.out(self.last(self.down(self.act(self.gate(x)) * self.up(x))))


def plain(activation: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 24), activation(), nn.Linear(24, 24), activation(), nn.Linear(24, 1))


def tuned(model: nn.Module, steps: int = 50) -> list[float]:
    """The losses of a regression, step by step."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(256, 6, generator=draw)
    y = (x[:, :1] * x[:, 1:2] + x[:, 2:3].sin()).clone()
    adam, losses = torch.optim.Adam(model.parameters(), 5e-3), []
    for _ in range(steps):
        adam.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module", params=[nn.GELU, nn.Tanh, nn.ReLU, "gated"], ids=lambda p: getattr(p, "__name__", p))
def trained(request):
    torch.manual_seed(0)
    original = Gated() if request.param == "gated" else plain(request.param)
    converted = ah.convert(original, trainable=True)
    untouched = copy.deepcopy(original)
    return tuned(untouched), converted, tuned(converted), original


def test_fine_tuning_lowers_the_loss_as_the_original_does(trained):
    before, _, after, _ = trained
    assert after[-1] < 0.9 * after[0]
    assert after[-1] < before[-1] + 0.1 * (before[0] - before[-1])


def test_every_head_is_certified_again_saved_and_verified(trained, tmp_path):
    _, converted, _, original = trained
    converted = copy.deepcopy(converted)
    places = [m for m in converted.modules() if isinstance(m, Placed)]
    assert not any(place.proved for place in places)
    with pytest.raises(ah.InputError):
        ah.save_converted(converted, tmp_path / "unproved")
    found = ah.recertify(converted)
    assert len(found.heads) == len(places) == 2
    assert found.proved, found
    assert all(math.isfinite(head.error) and head.changed for head in found.heads)
    for place, head in zip(converted.report.places, found.heads, strict=True):
        assert head.place == place.place
        assert place.module.proved
        assert place.module.claims["activation"].edges
    ah.save_converted(converted, tmp_path / "model")
    assert ah.verify(tmp_path / "model").level == "proved"
    back = ah.load_converted(tmp_path / "model", original)
    x = torch.randn(64, 6)
    with torch.no_grad():
        torch.testing.assert_close(back(x), converted(x))
    assert [row.error for row in back.report.replaced] == [row.error for row in converted.report.replaced]


def test_the_new_bounds_hold(trained):
    _, converted, _, _ = trained
    converted = copy.deepcopy(converted)
    found = ah.recertify(converted)
    x = torch.cat([torch.linspace(-50, 50, 20_001), torch.randn(5_000) * 300]).double()
    exact = {"gelu(x)": nn.functional.gelu, "tanh(x)": torch.tanh, "relu(x)": torch.relu, "silu(x)": nn.functional.silu}
    for place, head in zip(converted.report.places, found.heads, strict=True):
        with torch.no_grad():
            value = place.module.head(x.float()).double()
        apart = (value - exact[head.formula](x)).abs()
        assert (apart <= head.error + head.rounding * (1 + x.abs()) + 1e-7 * x.abs()).all()
        assert apart[x.abs() < 5].max() > head.error / 60  # and say something


def test_certifying_twice_finds_nothing_changed_and_training_goes_on(trained):
    _, converted, _, _ = trained
    converted = copy.deepcopy(converted)
    head = next(m for m in converted.modules() if isinstance(m, Placed)).head
    values = head.constants
    ah.recertify(converted)
    assert head.constants is values
    assert values.requires_grad
    assert not head.edited
    assert not any(row.changed for row in ah.recertify(converted).heads)
    tuned(converted, 1)
    assert not next(m for m in converted.modules() if isinstance(m, Placed)).proved


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(-30, 30), min_size=1, max_size=20),
    st.sampled_from(["gelu(x)", "relu(x)", "sigmoid(x)", "tanh(x)"]),
)
def test_gradients_are_those_of_the_literal_form(points, formula):
    head = ah.compile(formula, tol=1e-4).head
    head.train_values()
    x = torch.tensor(points, dtype=torch.float64, requires_grad=True)
    literal = head.literal()
    for values in (literal.constants, literal.gains):
        values.requires_grad_()
    own = torch.autograd.grad(head(x).sin().sum(), [x, head.constants])
    other = torch.autograd.grad(literal(x).sin().sum(), [x, literal.constants])
    for a, b in zip(own, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


def test_what_cannot_be_proved_is_named():
    torch.manual_seed(0)
    model = ah.convert(plain(nn.GELU), trainable=True)
    first, second = model.report.places
    with torch.no_grad():
        first.module.head.constants[0] = math.nan
        second.module.head.slopes.mul_(-1)
    found = ah.recertify(model)
    assert not found.proved
    assert "constants are not all finite" in found.heads[0].problem
    assert str(found)
    assert not first.module.proved


@pytest.mark.parametrize("name", ["slopes", "intercepts", "constants", "gains"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_none_are_named_and_nothing_is_proved(name, value):
    model = ah.convert(nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)), trainable=True)
    with torch.no_grad():
        getattr(model[1].heads["activation"], name)[0] = value
    found = ah.recertify(model)
    assert not found.proved
    assert f"its {name} are not all finite" in found.heads[0].problem


def test_only_converted_models_are_certified():
    with pytest.raises(ah.InputError, match="has heads to certify"):
        ah.recertify(nn.Linear(2, 2))


def test_places_have_heads_of_their_own_and_scores_stay():
    model = ah.convert(plain(nn.GELU), trainable=True)
    first, second = (place.module.head for place in model.report.places)
    assert first is not second
    assert first.constants is not second.constants
    wanted = {name for name, p in model.named_parameters() if p.requires_grad and "heads" in name}
    assert {name.rpartition(".")[2] for name in wanted} == {"constants", "gains"}
