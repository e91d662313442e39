"""A variance is no larger than the numbers that it is of allow, and what is said of it holds at every point."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import anchorhead as ah
from anchorhead.circuit.line import Line
from anchorhead.circuit.variance import variance_of
from anchorhead.compiler.circuit_target import of_module
from anchorhead.enclosure.precision import precision
from anchorhead.proof.flow import Tracker
from anchorhead.tracing.module import TensorFunction

ENDS = st.floats(-3, 3)


def most(function, box):
    """The upper end of what a function of a row gives on a box, as the proofs have it."""
    circuit = TensorFunction(function, (len(box),)).circuit()
    with precision():
        return Tracker(circuit, "float64").follow(box).outputs[0][1]


@given(st.lists(st.tuples(ENDS, ENDS).map(sorted).map(tuple), min_size=2, max_size=6), st.integers(0, 2**32))
def test_no_variance_exceeds_its_bound_and_the_bound_is_popovicius_at_most(box, seed):
    bound = most(lambda x: x.var(-1, correction=0), box)
    low, high = torch.tensor(box, dtype=torch.float64).T
    draw = torch.Generator().manual_seed(seed)
    corners = torch.rand(200, len(box), generator=draw, dtype=torch.float64)
    corners[:150] = corners[:150].round()
    assert (low + (high - low) * corners).var(-1, correction=0).max().item() <= bound * (1 + 1e-12) + 1e-15
    width = max(b for _, b in box) - min(a for a, _ in box)
    middles = [(a + b) / 2 for a, b in box]
    if max(middles) == min(middles):
        assert bound <= width**2 / 4 * (1 + 1e-9) + 1e-15


@pytest.mark.parametrize("count", [2, 3, 8, 32])
def test_numbers_in_an_interval_have_a_variance_of_a_quarter_of_its_square(count):
    found = most(lambda x: x.var(-1, correction=0), [(-1.0, 1.0)] * count)
    assert 1 - (count % 2) / count**2 <= found <= 1 + 1e-6


def test_the_variance_in_a_layer_norm_keeps_to_its_inputs():
    """After a linear map: the lines that are centred have many wires."""
    torch.manual_seed(0)
    linear = nn.Linear(6, 6)
    module = nn.Sequential(linear, nn.LayerNorm(6)).double()
    circuit = of_module(module, (-1, 1), (6,)).circuit(True)
    box = [(-1.0, 1.0)] * 6
    with precision():
        found = Tracker(circuit, "float64").follow(box)
    argument, *_ = [pair for step, (pair, *_) in zip(circuit.steps, found.arguments, strict=True)
                  if str(getattr(step, "function", "")) == "rsqrt(u)"]  # fmt: skip
    reach = (linear.weight.abs().sum(1).double() + linear.bias.abs().double()).max().item()
    assert argument[1] <= 1e-5 + reach**2 * (1 + 1e-9)
    x = torch.rand(2000, 6, dtype=torch.float64).round() * 2 - 1
    assert linear(x).var(-1, correction=0).max().item() <= argument[1]


def test_only_centred_squares_are_variances():
    squares = {3: Line({0: 0.5, 1: -0.5}), 4: Line({0: -0.5, 1: 0.5}), 5: Line({0: 1.0})}
    assert variance_of(Line({3: 0.5, 4: 0.5}), squares) is not None
    assert variance_of(Line({3: 0.5, 4: 0.25}), squares) is None
    assert variance_of(Line({3: 0.5, 5: 0.5}), squares) is None
    assert variance_of(Line({3: -0.5, 4: -0.5}), squares) is None
    assert variance_of(Line({3: 0.5, 2: 0.5}), squares) is None


def test_a_layer_norm_compiles_as_torch_has_it_and_a_norm_near_zero_says_what_to_write():
    model = ah.compile(nn.LayerNorm(3, eps=1e-2), (-1, 1), tol=1e-3)
    x = torch.rand(500, 3, dtype=torch.float64) * 2 - 1
    expected = nn.LayerNorm(3, eps=1e-2).double()(x)
    assert (model(x) - expected).abs().max().item() <= model.certificate.bound
    with pytest.raises(ah.ToleranceError, match=r"larger eps"):
        ah.compile(nn.RMSNorm(4), (-1, 1), tol=1e-3)


def test_a_norm_tells_how_many_numbers_it_takes():
    model = ah.compile(nn.RMSNorm(4), (0.5, 1), tol=1e-3)
    assert model.input_shape == (4,)
    x = torch.full((4,), 0.75, dtype=torch.float64)
    assert math.isclose(model(x)[0].item(), 1.0, abs_tol=model.certificate.bound)
