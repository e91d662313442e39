"""Every known function has one meaning: in torch, in balls, and as mpmath computes it from its definition."""

from __future__ import annotations

import subprocess
import sys

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorhead.enclosure.arrays import sample, sample_finely
from anchorhead.enclosure.balls import enclose, gradient_enclosure, jet
from anchorhead.enclosure.singularities import singularities
from anchorhead.errors import ExpressionError, SingularityError
from anchorhead.expression import parse
from anchorhead.expression.functions import FUNCTIONS
from anchorhead.expression.graph import Expression, Node, constant, rational, variable
from anchorhead.expression.tensors import evaluate

mp = mpmath.MPContext()
mp.dps = 60
SELU_ALPHA, SELU_SCALE = mp.mpf("1.6732632423543772848170429916717"), mp.mpf("1.0507009873554804934193349852946")


def ramp(slope):
    return lambda x: x if x > 0 else slope * x


def clipped(low, high):
    return lambda x: min(max(x, low), high)


def elu(alpha, width=1):
    return lambda x: x if x > 0 else alpha * mp.expm1(x / width)


def softplus(beta=1):
    return lambda x: mp.log1p(mp.exp(beta * x)) / beta


# text: (reference, low, high)
CASES = {
    "exp(x)": (mp.exp, -5, 5),
    "expm1(x)": (mp.expm1, -5, 5),
    "exp2(x)": (lambda x: 2**x, -5, 5),
    "log(x)": (mp.log, 0.1, 9),
    "log1p(x)": (mp.log1p, -0.9, 9),
    "log2(x)": (lambda x: mp.log(x, 2), 0.1, 9),
    "log10(x)": (mp.log10, 0.1, 9),
    "sqrt(x)": (mp.sqrt, 0.01, 9),
    "rsqrt(x)": (lambda x: 1 / mp.sqrt(x), 0.1, 9),
    "square(x)": (lambda x: x * x, -5, 5),
    "reciprocal(x)": (lambda x: 1 / x, 0.2, 5),
    "sin(x)": (mp.sin, -9, 9),
    "cos(x)": (mp.cos, -9, 9),
    "tan(x)": (mp.tan, -1.4, 1.4),
    "asin(x)": (mp.asin, -0.99, 0.99),
    "acos(x)": (mp.acos, -0.99, 0.99),
    "atan(x)": (mp.atan, -9, 9),
    "sinh(x)": (mp.sinh, -5, 5),
    "cosh(x)": (mp.cosh, -5, 5),
    "tanh(x)": (mp.tanh, -9, 9),
    "asinh(x)": (mp.asinh, -9, 9),
    "acosh(x)": (mp.acosh, 1.1, 9),
    "atanh(x)": (mp.atanh, -0.9, 0.9),
    "erf(x)": (mp.erf, -5, 5),
    "erfc(x)": (mp.erfc, -5, 5),
    "abs(x)": (abs, -5, 5),
    "relu(x)": (ramp(0), -5, 5),
    "relu6(x)": (clipped(0, 6), -5, 9),
    "selu(x)": (lambda x: SELU_SCALE * elu(SELU_ALPHA)(x), -9, 9),
    "gelu(x)": (lambda x: x * mp.ncdf(x), -9, 9),
    "gelu_tanh(x)": (
        lambda x: x / 2 * (1 + mp.tanh(mp.sqrt(2 / mp.pi) * (x + mp.mpf("0.044715") * x**3))),
        -9,
        9,
    ),
    "silu(x)": (lambda x: x / (1 + mp.exp(-x)), -9, 9),
    "mish(x)": (lambda x: x * mp.tanh(softplus()(x)), -9, 9),
    "softsign(x)": (lambda x: x / (1 + abs(x)), -9, 9),
    "logsigmoid(x)": (lambda x: -softplus()(-x), -9, 9),
    "sigmoid(x)": (lambda x: 1 / (1 + mp.exp(-x)), -9, 9),
    "hardsigmoid(x)": (lambda x: clipped(0, 1)((x + 3) / 6), -5, 5),
    "hardswish(x)": (lambda x: x * clipped(0, 1)((x + 3) / 6), -5, 5),
    "tanhshrink(x)": (lambda x: x - mp.tanh(x), -5, 5),
    "leaky_relu(x)": (ramp(mp.mpf("0.01")), -5, 5),
    "leaky_relu(x, negative_slope=0.2)": (ramp(mp.mpf("0.2")), -5, 5),
    "prelu(x, 0.25)": (ramp(mp.mpf("0.25")), -5, 5),
    "rrelu(x)": (ramp(mp.mpf(11) / 48), -5, 5),
    "elu(x)": (elu(1), -9, 9),
    "elu(x, alpha=1.5)": (elu(mp.mpf("1.5")), -9, 9),
    "celu(x, 2)": (elu(2, 2), -9, 9),
    "softplus(x)": (softplus(), -9, 60),
    "softplus(x, beta=2)": (softplus(2), -9, 60),
    "softshrink(x)": (lambda x: x - clipped(-0.5, 0.5)(x), -5, 5),
    "hardtanh(x, -2, 0.5)": (clipped(-2, 0.5), -5, 5),
    "min(x, 1, x**2)": (lambda x: min(x, 1, x * x), -3, 3),
    "max(x, 1, x**2)": (lambda x: max(x, 1, x * x), -3, 3),
    "clip(x, -1, 0.5)": (clipped(-1, 0.5), -3, 3),
    "pow(x, 3)": (lambda x: x**3, -3, 3),
    "x**-3": (lambda x: x**-3, 0.2, 3),
    "x**2.5": (lambda x: x ** mp.mpf(2.5), 0.1, 3),
    "x**(1/3)": (lambda x: mp.cbrt(x), 0.1, 3),
    "x**sqrt(2)": (lambda x: x ** mp.sqrt(2), 0.1, 3),
    "x**-pi": (lambda x: x**-mp.pi, 0.2, 3),
    "x**x": (lambda x: x**x, 0.1, 3),
    "2**-x": (lambda x: 2**-x, -3, 3),
    "e**x - pi": (lambda x: mp.e**x - mp.pi, -3, 3),
    "0.1*x + 1/3": (lambda x: x / 10 + mp.mpf(1) / 3, -3, 3),
    "1/(1 + 25*x**2)": (lambda x: 1 / (1 + 25 * x * x), -1, 1),
    "-x**2/(x - 7) + 3": (lambda x: -(x**2) / (x - 7) + 3, -3, 3),
    "log(1 + exp(x))": (softplus(), -9, 9),
    "x/(1 + exp(-x))": (lambda x: x / (1 + mp.exp(-x)), -9, 9),
}
KINKED = (
    "abs relu relu6 selu softsign hardsigmoid hardswish leaky_relu prelu rrelu elu celu softshrink hardtanh "
    "min max clip"
).split()
TEXTS = sorted(CASES)
ON_THE_WHOLE_LINE = [
    text for text, (_, low, _) in sorted(CASES.items()) if low <= -4 and text.partition("(")[0] in FUNCTIONS
]


def ball(number: mp.mpf) -> arb:
    with ctx.workprec(200):
        return arb(mp.nstr(number, 55))


def holds(enclosure: arb, number: mp.mpf) -> bool:
    return bool(enclosure.overlaps(ball(mp.mpf(number))))


def test_every_known_function_is_in_the_table():
    assert {name for name in FUNCTIONS if not any(text.startswith(name + "(") for text in CASES)} == set()


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=4, deadline=None)
@given(share=st.floats(0, 1))
def test_torch_and_balls_agree_with_the_definition(text, share):
    reference, low, high = CASES[text]
    x = low + (high - low) * share
    expected = reference(mp.mpf(x))
    expression = parse(text)
    got = evaluate(expression, {"x": torch.tensor([x], dtype=torch.float64)})
    assert abs(got.item() - expected) <= 1e-13 * (1 + abs(expected))
    assert got.dtype == torch.float64
    enclosure = enclose(expression, {"x": arb(x)})
    assert holds(enclosure, expected)
    assert enclosure.rad() <= 1e-13 * (1 + abs(enclosure))


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=4, deadline=None)
@given(centre=st.floats(0, 1), width=st.floats(0, 0.5), inside=st.floats(-1, 1))
def test_enclosures_and_jets_hold_everywhere_in_the_ball(text, centre, width, inside):
    reference, low, high = CASES[text]
    middle = low + (high - low) * centre
    radius = min(middle - low, high - middle) * width
    point = mp.mpf(middle) + mp.mpf(radius) * mp.mpf(inside)
    node, x = parse(text).node, arb(middle, radius)
    value = enclose(node, {"x": x})
    assert value.is_finite()
    assert holds(value, reference(point))
    coefficients = jet(node, "x", x, 4)
    assert coefficients[0].is_finite()
    assert holds(coefficients[0], reference(point))
    if len(coefficients) == 2:
        slope = (reference(point) - reference(mp.mpf(middle))) / (point - middle) if point != middle else None
        assert text.partition("(")[0] in KINKED
        assert slope is None or holds(coefficients[1], slope)
    else:
        assert len(coefficients) == 5
        step = mp.mpf(10) ** -15
        for order in range(1, 4):
            expected = mp.diff(reference, point, order, h=step) / mp.factorial(order)
            slack = arb(0, 1e-8 * (1 + abs(float(expected))))
            assert (coefficients[order] + slack).overlaps(ball(expected)), (order, coefficients[order], expected)


SMOOTH = "exp sin atan tanh erfc sigmoid softplus gelu mish sqrt log asin tan log1p".split()
KINKS = "abs relu elu softsign hardswish softshrink".split()


def compositions() -> st.SearchStrategy[str]:
    leaves = st.sampled_from(["x", "x", "pi", "0.3", "-2"])

    def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        infix = st.builds("({}){}({})".format, inner, st.sampled_from(["+", "-", "*", "/"]), inner)
        powers = st.builds("({})**{}".format, inner, st.sampled_from(["2", "3", "-1", "0.5", "1.5"]))
        return infix | powers | st.builds("{}({})".format, st.sampled_from(SMOOTH + KINKS), inner)

    return st.recursive(leaves, grow, max_leaves=6)


@settings(max_examples=150, deadline=None)
@given(compositions(), st.floats(-3, 3), st.floats(1e-4, 2), st.floats(-1, 1), st.floats(-1, 1))
def test_compositions_hold_their_values_slopes_and_coefficients(text, middle, radius, one, two):
    node, x = parse(text, ["x"]).node, arb(middle, radius)
    value, coefficients = enclose(node, {"x": x}), jet(node, "x", x, 3)
    if not value.is_finite():
        return
    first, second = arb(middle + radius * one), arb(middle + radius * two)
    with ctx.workprec(200):
        a, b = enclose(node, {"x": first}), enclose(node, {"x": second})
        if not (x.contains(first) and x.contains(second) and a.is_finite() and b.is_finite()):
            return
        assert value.overlaps(a)
        assert coefficients[0].overlaps(a)
        if len(coefficients) > 1 and abs(first - second) > 1e-9:
            assert coefficients[1].overlaps((a - b) / (first - second))
        if len(coefficients) > 2:
            exact = jet(node, "x", first, 3)
            assert all(wide.overlaps(narrow) for wide, narrow in zip(coefficients, exact, strict=False))


@pytest.mark.parametrize("text", ON_THE_WHOLE_LINE)
def test_wide_balls_and_large_arguments_stay_finite(text):
    node = parse(text).node
    for x in (arb(0, 60), arb(-30, 31), arb(1e4), arb(-1e4), arb(1e4, 10)):
        assert all(c.is_finite() for c in jet(node, "x", x, 6))
        assert enclose(node, {"x": x}).is_finite()


def test_bounded_functions_keep_to_their_range_on_wide_balls():
    for text, limit in {"sigmoid(x)": 1, "tanh(x)": 1, "sin(x)": 1, "erf(x)": 1, "exp(-x**2)": 1}.items():
        assert enclose(parse(text), {"x": arb(0, 60)}).abs_upper() <= limit * 1.001


@pytest.mark.parametrize(
    ("text", "x", "length"),
    [
        ("abs(x)", arb(0, 1), 2),
        ("relu(x - 1)", arb(1), 2),
        ("relu(x)", arb(2, 1), 5),
        ("clip(x, -1, 1)", arb(0.5, 0.25), 5),
        ("max(x + 3, abs(x))", arb(0, 1), 5),
        ("max(x + 3, abs(x))*sqrt(x)", arb(0.25, 0.25), 1),
        ("sqrt(x)", arb(0.25, 0.25), 1),
        ("sqrt(x)", arb(0.15, 0.15), 1),
        ("x**1.5", arb(0.25, 0.25), 2),
        ("x**sqrt(2)", arb(0.25, 0.25), 2),
        ("x**-sqrt(2)", arb(0.25, 0.25), 0),
        ("sqrt(x)", arb(0, 1), 0),
        ("log(x)", arb(0.5, 0.5), 0),
        ("1/x", arb(0, 1), 0),
        ("asin(x)", arb(0.75, 0.25), 1),
        ("asin(x)", arb(1, 1), 0),
        ("9**9**9**9*x", arb(1), 0),
    ],
)
def test_jets_are_cut_where_the_function_is_not_smooth(text, x, length):
    coefficients = jet(parse(text).node, "x", x, 4)
    if length:
        assert len(coefficients) == length
        assert all(c.is_finite() for c in coefficients)
    else:
        assert len(coefficients) == 1
        assert coefficients[0].is_nan()


@pytest.mark.parametrize("order", [0, 1, 5, 17])
def test_a_jet_has_as_many_coefficients_as_asked_for_and_leaves_flint_as_it_was(order):
    before = ctx.cap, ctx.prec
    for text in ("x", "3", "gelu(x)", "x*y", "mish(x)*sin(x)", "exp(exp(x))"):
        assert len(jet(parse(text).node, "x", arb(0.3), order, {"y": arb(2)})) == order + 1
    assert before == (ctx.cap, ctx.prec)


TOUCHING = [
    ("asin(x/3)", -3, 3), ("acos(x/3)", 0, 3), ("sqrt(1 - x/3)", 0, 3), ("acosh(x/3)", 3, 6), ("asin(0.1*x)", 0, 10),
    ("sqrt(1 - (x/3)**2)", -3, 3), ("sqrt(2 - (x/3 + 3/x))", 3, 3), ("sqrt(x - 0.1 + 0.3/3)", 0, 1),
    ("x**sqrt(2)", 0, 1), ("(1 - x/3)**pi", -3, 3), ("(1 - abs(x/3))**(pi/4)", -3, 3),
]  # fmt: skip


@pytest.mark.parametrize(("text", "low", "high"), TOUCHING)
def test_arguments_that_touch_the_end_of_a_function_at_a_point_are_exact_there(text, low, high):
    node = parse(text).outputs[0]
    for end in (low, high):
        value = enclose(node, {"x": arb(end)})
        assert value.is_finite()
        assert jet(node, "x", arb(end), 2)[0].overlaps(value)
    singularities(node, "x", low, high)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("asin(x/3)", -3, 3.0000000000000004), ("asin(x/3)", -3, 3.0000001), ("log(1 - x/3)", 0, 3), ("atanh(x/3)", 0, 3),
     ("sqrt(x - 0.3)", 0.3, 1), ("asin(x/pi*pi/3)", 0, 3)],
)  # fmt: skip
def test_arguments_that_are_not_proved_to_be_inside_are_refused(text, low, high):
    with pytest.raises(SingularityError):
        singularities(parse(text).outputs[0], "x", low, high)


def test_precision_is_the_callers():
    node = parse("0.1*x").node
    for bits in (53, 200):
        with ctx.workprec(bits):
            assert enclose(node, {"x": arb(1)}).rad() < arb(2) ** (2 - bits)


def test_several_variables_and_outputs():
    expression = parse(["sin(3*x*y)", "x + y"], variables=["y", "x"])
    first, second = enclose(expression, {"x": arb(0.5), "y": arb(0.25, 0.1)})
    assert holds(first, mp.sin(mp.mpf(3) * mp.mpf(0.5) * mp.mpf(0.25)))
    assert second.contains(arb(0.8))
    x, y = torch.rand(4, 1), torch.rand(3)
    results = evaluate(expression, {"x": x, "y": y})
    assert [tuple(result.shape) for result in results] == [(4, 3), (4, 3)]
    assert torch.allclose(results[0], torch.sin(3 * x * y))
    gradient = gradient_enclosure(parse("x**2*y").node, {"x": arb(3), "y": arb(5)})
    assert gradient["x"].contains(30)
    assert gradient["y"].contains(9)


@pytest.mark.parametrize("name", ["gelu", "silu", "mish", "elu", "selu", "hardswish", "softsign", "logsigmoid"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_activations_are_torchs_own_in_every_dtype(name, dtype):
    x = torch.linspace(-6, 6, 41, dtype=dtype)
    assert torch.equal(evaluate(parse(f"{name}(x)"), {"x": x}), getattr(F, name)(x))


def test_evaluation_is_differentiable():
    x = torch.linspace(-2, 2, 9, dtype=torch.float64, requires_grad=True)
    evaluate(parse("gelu(x)*x**2 + 2**x"), {"x": x}).sum().backward()
    assert x.grad is not None
    node = parse("gelu(x)*x**2 + 2**x").node
    for point, slope in zip(x.tolist(), x.grad.tolist(), strict=True):
        assert abs(float(jet(node, "x", arb(point), 1)[1].mid()) - slope) < 1e-12


def test_constants_keep_the_dtype_and_their_digits():
    x = torch.zeros(3, dtype=torch.float64)
    assert evaluate(parse("x + 0.1"), {"x": x}).tolist() == [0.1] * 3
    assert evaluate(parse("0.1"), {"x": x.float()}).dtype == torch.float32


def test_missing_and_mixed_tensors_are_refused():
    with pytest.raises(ExpressionError, match="uses y, and no tensor"):
        evaluate(parse("x*y"), {"x": torch.zeros(1)})
    with pytest.raises(ExpressionError, match="different types"):
        evaluate(parse("x*y"), {"x": torch.zeros(1), "y": torch.zeros(1, dtype=torch.float64)})
    with pytest.raises(ExpressionError, match="no ball was given"):
        enclose(parse("x*y"), {"x": arb(1)})


def test_shared_parts_are_evaluated_once():
    node = variable("x")
    for _ in range(300):
        node = Node("add", (node, Node("mul", (constant(-1), node))))
    assert enclose(node, {"x": arb(1)}).contains(0)
    assert float(evaluate(Expression(node), {"x": torch.ones(1)})) == 0


def test_equal_nodes_are_one_object():
    assert parse("sin(x) + 0.5").node is parse("(sin(x)) + 1/2").node
    assert rational(parse("2**3/4 - 1").node) == 1
    assert rational(parse("9**9**9").node) is None


def test_nothing_but_tensors_and_trace_needs_torch():
    modules = "expression.graph expression.parse enclosure.balls enclosure.pieces enclosure.tails circuit.lower"
    code = f"import sys, {', '.join('anchorhead.' + m for m in modules.split())}; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


def test_every_continuous_activation_of_torch_is_known():
    not_elementwise = {"GLU", "MultiheadAttention", "Softmin", "Softmax", "Softmax2d", "LogSoftmax"}
    discontinuous = {"Threshold", "Hardshrink"}
    ours = {name.replace("_", "") for name in FUNCTIONS}
    theirs = {name.lower() for name in set(torch.nn.modules.activation.__all__) - not_elementwise - discontinuous}
    assert theirs <= ours


@pytest.mark.parametrize(
    ("text", "low", "f"),
    [
        ("8*x*sin(x/7)", 1e5, lambda x: 8 * x * mpmath.sin(x / 7)),
        ("exp(1000*x - 1e5) - 1", 100 - 1e-9, lambda x: mpmath.exp(1000 * x - 100000) - 1),
        ("tanh(1e8*(x - 1/3))", 0.33333333, lambda x: mpmath.tanh(100000000 * (x - mpmath.mpf(1) / 3))),
    ],
)
def test_samples_have_the_digits_that_floats_lose(text, low, f):
    x = np.linspace(low, low + 1e-8, 97)
    with mpmath.workdps(50):
        exact = np.array([float(f(mpmath.mpf(float(u)))) for u in x])
    found = sample_finely(parse(text), x)
    assert np.max(abs(found - exact)) <= 2.0**-40 * np.max(abs(exact))
    assert np.max(abs(sample(parse(text), {"x": x})[0] - exact)) > 2.0**-41 * np.max(abs(exact))
