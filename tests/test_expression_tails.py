"""Where a target approaches a line, the proved bound of the distance holds and is small; else there is no tail."""

from __future__ import annotations

import pytest
from flint import arb, ctx, fmpq
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorhead.enclosure.balls import enclose
from anchorhead.enclosure.tails import tail
from anchorhead.errors import InputError
from anchorhead.expression import parse

ALPHA = 1.0507009873554805 * 1.6732632423543772
# text: slope and intercept at -infinity, then at +infinity, and a bound of the remainder from 20 on
LINES = {
    "gelu(x)": ((0, 0), (1, 0), 1e-80),
    "gelu_tanh(x)": ((0, 0), (1, 0), 1e-200),
    "silu(x)": ((0, 0), (1, 0), 5e-8),
    "mish(x)": ((0, 0), (1, 0), 5e-8),
    "softplus(x)": ((0, 0), (1, 0), 3e-9),
    "logsigmoid(x)": ((1, 0), (0, 0), 3e-9),
    "sigmoid(x)": ((0, 0), (0, 1), 3e-9),
    "tanh(x)": ((0, -1), (0, 1), 1e-16),
    "elu(x)": ((0, -1), (1, 0), 3e-9),
    "selu(x)": ((0, -ALPHA), (1.0507009873554805, 0), 4e-9),
    "celu(x, 2)": ((0, -2), (1, 0), 1e-4),
    "tanhshrink(x)": ((1, 1), (1, -1), 1e-16),
    "erf(x)": ((0, -1), (0, 1), 1e-170),
    "erfc(x)": ((0, 2), (0, 0), 1e-170),
    "relu(x)": ((0, 0), (1, 0), 0),
    "relu6(x)": ((0, 0), (0, 6), 0),
    "leaky_relu(x)": ((0.01, 0), (1, 0), 0),
    "prelu(x, 0.25)": ((0.25, 0), (1, 0), 0),
    "rrelu(x)": ((11 / 48, 0), (1, 0), 0),
    "hardtanh(x)": ((0, -1), (0, 1), 0),
    "hardswish(x)": ((0, 0), (1, 0), 0),
    "hardsigmoid(x)": ((0, 0), (0, 1), 0),
    "softshrink(x)": ((1, 0.5), (1, -0.5), 0),
    "abs(x - 3)": ((-1, 3), (1, -3), 0),
    "clip(x, -1, 2)": ((0, -1), (0, 2), 0),
    "max(x, 0.1*x)": ((0.1, 0), (1, 0), 0),
    "max(tanh(x), 1)": ((0, 1), (0, 1), 1e-16),
    "x*sigmoid(1.702*x)": ((0, 0), (1, 0), 1e-12),
    "x/(1 + exp(-x))": ((0, 0), (1, 0), 5e-8),
    "log(1 + exp(x))": ((0, 0), (1, 0), 3e-9),
    "exp(-x**2)": ((0, 0), (0, 0), 1e-170),
    "x**2*exp(-x**2)": ((0, 0), (0, 0), 1e-170),
    "x*erf(x)": ((-1, 0), (1, 0), 1e-170),
    "gelu(gelu(x))": ((0, 0), (1, 0), 1e-80),
    "(x + 1)*(x - 1) - x**2": ((0, -1), (0, -1), 0),
    "3*x - tanh(x)**2 + sqrt(2)": ((3, 0.41421356237309515), (3, 0.41421356237309515), 1e-16),
    "1/cosh(x)": ((0, 0), (0, 0), 5e-9),
    "x/cosh(x)": ((0, 0), (0, 0), 1e-7),
    "1/(1 + exp(x))": ((0, 1), (0, 0), 3e-9),
    "x**2/(exp(2*x) + exp(-x) - x)": ((0, 0), (0, 0), 1e-6),
    "1/sqrt(1 + exp(2*x))": ((0, 1), (0, 0), 3e-9),
    "2 - 3/sinh(x)": ((0, 2), (0, 2), 3e-8),
    "exp(-exp(x))": ((0, 1), (0, 0), 3e-9),
    "min(exp(x), 3 - x)": ((0, 0), (-1, 3), 3e-9),
    "tanh(sinh(x))": ((0, -1), (0, 1), 1e-100),
    "sqrt(2 + sigmoid(x))": ((0, 2**0.5), (0, 3**0.5), 1e-9),
}
NO_LINE = ["x**2", "sin(x)", "softsign(x)", "x*sin(x)", "atan(x)", "sqrt(1 + x**2)", "1/(1 + x**2)", "cosh(x)",
           "exp(x) - exp(-x)", "cosh(x) - cosh(2*x)", "sin(cosh(x))", "x*y"]  # fmt: skip


@pytest.mark.parametrize("text", LINES)
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_line_is_the_right_one(text, sign):
    left, right, bound = LINES[text]
    slope, intercept = right if sign > 0 else left
    found = tail(parse(text).node, "x", sign, 20.0)
    assert found is not None
    assert abs(float(found.slope) - slope) < 1e-14
    assert abs(float(found.intercept) - intercept) < 1e-14
    assert found.sup() <= bound
    assert found.sup() >= 0


@pytest.mark.parametrize("text", LINES)
@settings(max_examples=10, deadline=None)
@given(sign=st.sampled_from([-1, 1]), start=st.sampled_from([10.0, 20.0, 40.0]), further=st.floats(0, 30))
def test_the_bound_holds_from_start_on(text, sign, start, further):
    node, y = parse(text).node, start + further
    with ctx.workprec(8000):
        found = tail(node, "x", sign, start)
        assert found is not None
        rest = enclose(node, {"x": arb(sign * y)}) - arb(found.slope) * (sign * y) - found.intercept
        bound = found.scale * arb(y) ** found.power * (-found.rate * y).exp()
        assert abs(rest).lower() <= bound
        assert bound.lower() <= found.sup()
        assert found.sup(y) <= found.sup() * arb("1.0001")


@pytest.mark.parametrize(
    ("text", "slope", "intercept"),
    [("silu(1.702*x)/1.702", 1, 0), ("x/3 + sigmoid(x)/7", fmpq(1, 3), fmpq(1, 7))],
)
def test_a_line_with_rational_coefficients_is_exact(text, slope, intercept):
    found = tail(parse(text).node, "x", 1, 20.0)
    assert found is not None
    assert (found.slope, found.intercept) == (slope, intercept)


@pytest.mark.parametrize("text", NO_LINE)
@pytest.mark.parametrize("sign", [-1, 1])
def test_what_approaches_no_line_has_no_tail(text, sign):
    assert tail(parse(text).node, "x", sign, 20.0) is None


def test_one_side_may_have_a_tail_and_the_other_not():
    node = parse("exp(x)").node
    assert tail(node, "x", 1, 10.0) is None
    assert tail(node, "x", -1, 10.0) is not None


def test_a_slow_remainder_is_bounded_by_its_peak():
    found = tail(parse("x**4*exp(-x/10)").node, "x", 1, 10.0)
    assert found is not None
    assert found.sup() >= arb(40) ** 4 * arb(-4).exp()
    assert found.sup() <= 2 * arb(40) ** 4 * arb(-4).exp()


def test_a_tail_that_starts_too_early_is_refused():
    with pytest.raises(InputError, match="starts at 1 or later"):
        tail(parse("x").node, "x", 1, 0.5)
    found = tail(parse("silu(x)").node, "x", 1, 10.0)
    assert found is not None
    with pytest.raises(InputError, match="says nothing about"):
        found.sup(5.0)
