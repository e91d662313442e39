"""Torch modules and functions are read as the expression they compute, or refused with the reason and the place."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import anchorhead as ah
from anchorhead.errors import DiscontinuityError, ExpressionError
from anchorhead.expression import parse
from anchorhead.expression.graph import Expression, constant, variable
from anchorhead.expression.tensors import evaluate
from anchorhead.tracing.aten import Comparison, meaning
from anchorhead.tracing.function import trace


def overwrites(x):
    y = x.clone()
    y.mul_(2).add_(1)
    return y.relu_() + y - x


def clipped_sine(x):
    return torch.clamp(torch.sin(3 * x) + x**2, -0.5, 1.5)


READ = {
    "sin(x)": torch.sin,
    "sin(3*x) + x**2": lambda x: torch.sin(3 * x) + x**2,
    "clip(sin(3*x) + x**2, -0.5, 1.5)": clipped_sine,
    "silu(x)": F.silu,
    "gelu(x)": nn.GELU(),
    "gelu_tanh(x)": nn.GELU("tanh"),
    "elu(x, 0.5)": nn.ELU(0.5),
    "celu(x, 2)": nn.CELU(2.0),
    "selu(x)": nn.SELU(),
    "mish(x)": nn.Mish(),
    "leaky_relu(x)": nn.LeakyReLU(),
    "leaky_relu(x, 0.25)": nn.LeakyReLU(0.25),
    "prelu(x, 0.25)": nn.PReLU(),
    "rrelu(x)": nn.RReLU(),
    "softplus(x, 2)": nn.Softplus(2),
    "softplus(x)": nn.Softplus(),
    "logsigmoid(x)": nn.LogSigmoid(),
    "sigmoid(x)": nn.Sigmoid(),
    "relu(x)": nn.ReLU(),
    "hardtanh(x, 0, 6)": nn.ReLU6(),
    "hardtanh(x)": nn.Hardtanh(),
    "hardsigmoid(x)": nn.Hardsigmoid(),
    "hardswish(x)": nn.Hardswish(),
    "softshrink(x)": nn.Softshrink(),
    "x/(abs(x) + 1)": nn.Softsign(),
    "x - tanh(x)": nn.Tanhshrink(),
    "tanh(gelu(x))": nn.Sequential(nn.GELU(), nn.Dropout(), nn.Tanh()),
    "max(x, 0)": lambda x: torch.clamp(x, min=0),
    "min(x, 2)": lambda x: x.clamp_max(2),
    "max(x, -x)": lambda x: torch.max(x, -x),
    "abs(x)": lambda x: torch.where(x > 0, x, -x),
    "max(x, 1)": lambda x: torch.where(x >= 1, x, torch.ones_like(x)),
    "leaky_relu(x, 0.5)": lambda x: torch.where(x < 0, 0.5 * x, x),
    "2**x": lambda x: 2**x,
    "reciprocal(x) - 1": lambda x: 1 / x - 1,
    "1 - 2*x": lambda x: torch.rsub(x, 1, alpha=2),
    "x**0.5": lambda x: torch.pow(x, 0.5),
    "x + softplus(0.5 - x)": lambda x: torch.logaddexp(x, torch.tensor(0.5, dtype=torch.float64)),
    "relu(2*x + 1) + relu(2*x + 1) - x": overwrites,
    "3": lambda x: 3.0,
    "2*x": lambda x: torch.full_like(x, 2.0) * x,
    "min(3, x)": lambda x: torch.where(~(x > 3), x, torch.full_like(x, 3.0)),
    "max(x, 0) + (exp(min(x, 0)) - 1)": lambda x: torch.where(x > 0, x, torch.exp(x) - 1),
    "sqrt(max(x, 1) - 1)": lambda x: torch.where(x >= 1, torch.sqrt(x - 1), 0.0),
    "cos(max(x - 1, 0)) + exp(min(x - 1, 0)) - 1": lambda x: torch.where(x - 1 < 0, torch.exp(x - 1), torch.cos(x - 1)),
    "max(x, 3) + max(min(x, 3), -3)*(max(min(x, 3), -3) + 3)/6 - 3": lambda x: torch.where(
        x > 3, x, torch.where(x < -3, 0.0, x * (x + 3) / 6)
    ),
}

# the callable, the error, words of the message
REFUSED = [
    (nn.Hardshrink(), DiscontinuityError, "softshrink is its continuous relative"),
    (nn.Threshold(0.0, 1.0), DiscontinuityError, "jumps at the threshold"),
    (torch.sign, DiscontinuityError, "jumps at 0"),
    (lambda x: torch.floor(x), DiscontinuityError, "between jumps"),
    (lambda x: torch.where(x > 0, x, x + 1), DiscontinuityError, "torch.where may jump"),
    (lambda x: torch.where(x > 20, x, torch.log1p(torch.exp(x))), DiscontinuityError, "torch.where may jump"),
    (lambda x: torch.where(x > 1, x.exp(), (2 * x - 1).exp()), DiscontinuityError, "torch.where may jump"),
    (lambda x: torch.where(x > 0, x.log(), x), DiscontinuityError, "torch.where may jump"),
    (lambda x: (x > 0) * x, DiscontinuityError, "comparison is used as a number"),
    (lambda x: x > 0, DiscontinuityError, "returns a comparison"),
    (lambda x: x.float(), DiscontinuityError, "rounds"),
    (lambda x: torch.div(x, 2, rounding_mode="floor"), DiscontinuityError, "rounding_mode"),
    (lambda x: (x == 0) * x, DiscontinuityError, "whether two numbers are equal jumps"),
    (lambda x: torch.where((x > 0) & (x < 1), x, x), DiscontinuityError, "combination of comparisons"),
    (lambda x: torch.heaviside(x, x), DiscontinuityError, "jumps at 0"),
    (lambda x: x * torch.rand(1), ExpressionError, "torch's rand is random"),
    (lambda x: x + torch.randn_like(x), ExpressionError, "torch's randn_like is random"),
    (lambda x: x + True, ExpressionError, "this form of torch's add"),
    (lambda x: x * 1j, ExpressionError, "this form of torch's mul"),
    (lambda x: x + math.inf, ExpressionError, "must be finite"),
    (lambda x: F.softplus(x, 1, 5), DiscontinuityError, "threshold 5"),
    (lambda x: x.sum() * x, ExpressionError, "torch's sum is not an elementwise operation"),
    (lambda x: x.max(), ExpressionError, "torch's max"),
    (nn.Softmax(0), ExpressionError, "torch's softmax"),
    (nn.Linear(7, 7), ExpressionError, r"shape \(7, 7\)"),
    (lambda x: x.flip(0), ExpressionError, "flip"),
    (lambda x: torch.rand_like(x), ExpressionError, "rand_like"),
    (lambda x: torch.cat([x, x]), ExpressionError, "cat"),
    (lambda x: x if x.sum() > 0 else -x, ExpressionError, "could not trace"),
    (lambda x: torch.tensor(np.sin(x.numpy())), ExpressionError, "could not trace"),
    (lambda x: math.sin(x), ExpressionError, "could not trace"),
    (lambda x, y: x + y, ExpressionError, "could not trace"),
]


NUMBERS = st.fractions(-8, 8, max_denominator=64)


@given(NUMBERS, NUMBERS, NUMBERS, st.sampled_from([0, 0, Fraction(1, 3**40), -Fraction(1, 2**300)]), st.booleans())
def test_a_choice_is_read_if_its_sides_meet_exactly(c, slope, value, gap, above):
    """A line and an exponential, as far apart where the choice changes as is said."""
    line = parse(f"({slope})*(x - ({c})) + ({value})").node
    bent = parse(f"exp(x - ({c})) - 1 + ({value + gap})").node
    x, at = variable("x"), constant(c)
    condition = Comparison(x, at) if above else Comparison(at, x)
    arguments = {"condition": condition, "self": line, "other": bent}
    if gap:
        with pytest.raises(DiscontinuityError, match="may jump"):
            meaning("where", arguments)
        return
    points = torch.linspace(-9, 9, 37, dtype=torch.float64)
    made = evaluate(Expression(meaning("where", arguments), ["x"]), {"x": points})
    sides = [evaluate(Expression(side, ["x"]), {"x": points}) for side in (line, bent)]
    chosen = points > float(c) if above else points < float(c)
    assert torch.allclose(made, torch.where(chosen, *sides), rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("text", READ)
def test_a_callable_is_read_as_what_it_computes(text):
    traced = trace(READ[text])
    assert traced == parse(text, variables=["x"])
    x = torch.linspace(0.05, 3, 17, dtype=torch.float64)
    target = READ[text]
    expected = target.double().eval()(x) if isinstance(target, nn.Module) else target(x.clone())
    assert torch.allclose(
        evaluate(traced, {"x": x}), torch.as_tensor(expected, dtype=torch.float64), rtol=1e-14, atol=2e-9
    )


@pytest.mark.parametrize(("target", "kind", "words"), REFUSED)
def test_what_cannot_be_read_is_refused_with_the_reason(target, kind, words, capfd):
    with pytest.raises(kind, match=words) as caught:
        trace(target)
    assert "as text" in str(caught.value) or "continuous" in str(caught.value)
    assert capfd.readouterr() == ("", "")


def two_lines(x):
    y = 2 * x
    return y.cumsum(0)


def test_a_refusal_names_the_place():
    with pytest.raises(ExpressionError, match=r"return y.cumsum\(0\)"):
        trace(two_lines)
    with pytest.raises(ExpressionError, match=r'test_expression_trace.py", line \d+'):
        trace(lambda x: x.cumsum(0))
    with pytest.raises(ExpressionError, match=r"activation.py"):
        trace(nn.Sequential(nn.Tanh(), nn.Softmax(0)))


def test_several_variables_and_outputs():
    traced = trace(lambda x, y: (torch.sin(x) * y, y - 1), variables=("x", "y"))
    assert traced == parse(["sin(x)*y", "y - 1"], variables=["x", "y"])


def test_python_numbers_are_the_floats_they_are():
    assert trace(lambda x: x + math.pi).node.args[1] is constant(math.pi)
    assert trace(lambda x: 0.1 * x).node.args[0] is constant(0.1)


def test_the_module_is_left_as_it_was():
    module = nn.Sequential(nn.PReLU(), nn.Dropout()).train()
    trace(module)
    assert module.training
    assert module[0].weight.dtype == torch.float32


STACKED = {
    "behind": lambda x, y: torch.stack([torch.sin(x), x * y], -1),
    "in front": lambda x, y: torch.stack([torch.sin(x), x * y]),
    "a tuple": lambda x, y: (torch.sin(x), x * y),
}


@pytest.mark.parametrize("name", STACKED)
def test_several_results_of_numbers_are_several_outputs(name):
    assert trace(STACKED[name], ("x", "y")).text == ["sin(x)", "x*y"]


@cache
def stacked():
    return ah.compile(STACKED["behind"], (-1, 1), tol=1e-4)


@settings(max_examples=20)
@given(x=st.floats(-1, 1), y=st.floats(-1, 1))
def test_stacked_results_are_compiled_in_their_order(x, y):
    model = stacked()
    point = torch.tensor([x, y], dtype=torch.float64)
    assert (model(point) - STACKED["behind"](*point)).abs().max() <= model.certificate.bound


def test_one_number_may_give_several_too():
    model = ah.compile(lambda x: torch.stack([torch.sin(x), torch.cos(x)], -1), (-1, 1), tol=1e-3)
    assert model(torch.zeros(5, 1, dtype=torch.float64)).shape == (5, 2)


def test_what_is_stacked_must_be_what_is_returned():
    with pytest.raises(ah.ExpressionError, match=r"stack what is returned"):
        trace(lambda x, y: torch.stack([x, y]).sum(0), ("x", "y"))


class Hiding(nn.Module):
    """Switches off what records operations, which would end the process."""

    def forward(self, x):
        with torch._C._DisableTorchDispatch():
            return x.abs()


def test_what_hides_operations_from_torch_is_refused_before_it_is_traced():
    with pytest.raises(ExpressionError, match=r"hides operations from torch \(_DisableTorchDispatch\)"):
        trace(Hiding())
    with pytest.raises(ExpressionError, match="hides operations from torch"):
        trace(nn.Sequential(nn.Tanh(), Hiding()))
    assert not ah.convert(nn.Sequential(nn.GELU(), Hiding()), pure=True, inputs=torch.randn(3, 4)).report.pure
    assert ah.compile(Hiding(), (-1, 1), lipschitz=1.0, tol=0.1).certificate.level == "conditional"
