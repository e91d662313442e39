"""Compiled heads: as few keys as promised, and every proved bound against fifty digits at points nobody chose."""

import functools
import math
from pathlib import Path

import mpmath as mp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mp_functions import REFERENCE, head_at

import anchorhead as ah

R = (-math.inf, math.inf)
UNIT, WIDE = (-1.0, 1.0), (-15.0, 15.0)
TABLE = [
    ("gelu(x)", R, 1e-6, 10),
    ("gelu(x)", R, 1e-9, 16),
    ("silu(x)", R, 1e-12, 2),
    ("tanh(x)", R, 1e-12, 2),
    ("sigmoid(x)", R, 1e-12, 2),
    ("softplus(x)", R, 1e-7, 8),
    ("softplus(x)", R, 1e-11, 14),
    ("relu(x)", R, 1e-6, 2),
    ("abs(x)", R, 1e-6, 2),
    ("clip(x, -1, 1)", R, 1e-6, 3),
    ("leaky_relu(x)", R, 1e-6, 2),
    ("sin(3*x)", UNIT, 1e-6, 12),
    ("sin(3*x)", UNIT, 1e-10, 22),
    ("exp(x)", UNIT, 1e-6, 12),
    ("exp(x)", UNIT, 1e-10, 22),
    ("1/(1+25*x**2)", UNIT, 1e-6, 48),
    ("elu(x)", R, 1e-6, 24),
    ("selu(x)", R, 1e-6, 24),
    ("mish(x)", R, 1e-6, 24),
    ("hardswish(x)", R, 1e-6, 24),
]
ACTIVATIONS = [name for name in REFERENCE if name not in ("exp(x)", "sin(3*x)", "1/(1+25*x**2)", "abs(x)")]


@functools.cache
def compiled(expression, domain, tol, dtype=torch.float64, method="auto"):
    return ah.compile(expression, domain, tol=tol, dtype=dtype, method=method)


def near(centre):
    """Points at every scale around a centre, where gates switch."""
    return st.builds(lambda s, e: centre + s * 10.0**e, st.sampled_from([-1, 1]), st.floats(-9, 1))


def points(model):
    low, high = model.certificate.domain[0]
    gates = [-b / a for a, b in zip(model.head.gate_slopes.tolist(), model.head.gate_levels.tolist(), strict=True) if a]
    anywhere = st.floats(max(low, -1e4), min(high, 1e4)) | st.floats(max(low, -20.0), min(high, 20.0))
    around = st.one_of([near(c) for c in (0.0, *gates)])
    return (anywhere | around).map(lambda x: min(max(x, low), high))


def check_point(model, expression, x):
    """Approximation for the stored numbers in exact arithmetic; rounding of both evaluations in the dtype."""
    certificate = model.certificate
    x = torch.tensor(x, dtype=model.head.dtype)
    with mp.workdps(60):
        exact, stored = REFERENCE[expression](mp.mpf(x.item())), head_at(model, mp.mpf(x.item()))
        scale = 1.0 if certificate.bounded else 1 + abs(x.item())
        drift = 0.0 if certificate.bounded else certificate.rounding * scale  # gains that the dtype cannot hold
        assert abs(exact - stored) <= certificate.approximation + drift
        fast, literal = mp.mpf(model(x).item()), mp.mpf(model.literal()(x).item())
        assert abs(fast - stored) <= certificate.rounding * scale
        if len(model.head.sizes) == 1:
            assert abs(literal - stored) <= certificate.rounding * scale


@pytest.mark.parametrize(("expression", "domain", "tol", "keys"), TABLE)
def test_as_few_keys_as_promised(expression, domain, tol, keys):
    model = compiled(expression, domain, tol)
    assert model.certificate.level == "proved"
    assert model.certificate.bound <= tol
    assert model.head.keys <= keys
    assert model.largest_value <= 1.1e3


@pytest.mark.parametrize(("expression", "domain", "tol", "keys"), TABLE)
@settings(max_examples=40)
@given(data=st.data())
def test_proofs_hold_at_points_nobody_chose(expression, domain, tol, keys, data):
    model = compiled(expression, domain, tol)
    check_point(model, expression, data.draw(points(model)))


@pytest.mark.heavy
@pytest.mark.parametrize("expression", ACTIVATIONS)
@settings(max_examples=40)
@given(data=st.data())
def test_every_activation_in_float32(expression, data):
    model = compiled(expression, WIDE, 1e-5, torch.float32)
    assert model.certificate.level == "proved"
    assert model.certificate.bound <= 1e-5
    check_point(model, expression, data.draw(points(model)))


def test_slopes_that_the_dtype_cannot_hold_are_counted_as_rounding():
    """Of any evaluation approximation + rounding (1 + |x|) is true, and the page says that of no less."""
    model, x = ah.compile("0.3*relu(x)", dtype=torch.float32), mp.mpf(10) ** 6
    certificate = model.certificate
    with mp.workdps(60):
        off = abs(head_at(model, x) - 3 * x / 10)
    assert certificate.approximation < off <= certificate.approximation + certificate.rounding * (1 + x)
    said = (Path(__file__).parents[1] / "docs/certificates.md").read_text()
    assert "drifts away from it by 1.2e-8 |x| in exact arithmetic, too, and rounding counts that" in said
    assert 1.19e-8 < off / x < 1.2e-8


def test_every_continuous_activation_of_torch_is_covered():
    """A new activation in torch.nn must be added to the table, or to those that are not continuous functions of one
    number."""
    others = {"GLU", "Hardshrink", "MultiheadAttention", "PReLU", "RReLU", "Softmax", "Softmax2d", "Softmin",
              "LogSoftmax", "Threshold"}  # fmt: skip
    names = set(torch.nn.modules.activation.__all__) - others
    known = {name.partition("(")[0].replace("_", "") for name in ACTIVATIONS}
    assert {n.lower() for n in names} <= known


def test_gelu_in_float32_on_the_whole_line():
    model = compiled("gelu(x)", R, 5e-7, torch.float32)
    assert model.certificate.approximation <= 5e-7
    assert model.head.keys <= 14


@pytest.mark.parametrize("method", ["gated", "smooth", "nearest"])
@settings(max_examples=30)
@given(x=st.floats(-1, 1))
def test_each_method_proves_what_it_builds(method, x):
    model = compiled("sin(3*x)", UNIT, 0.05 if method == "nearest" else 1e-6, torch.float64, method)
    assert model.method == method
    check_point(model, "sin(3*x)", x)


@pytest.mark.heavy
@pytest.mark.parametrize("width", ["1e-2", "1e-4"])
def test_hidden_spike_is_approximated_or_refused(width):
    """A bump that no sample of a coarse grid sees. A model that is returned must have it."""
    text = f"sin(3*x) + exp(-((x - 0.31371)/{width})**2)"
    try:
        model = ah.compile(text, UNIT, tol=1e-2)
    except ah.ToleranceError:
        return
    x = torch.tensor([0.31371], dtype=torch.float64)
    assert abs(model(x).item() - (math.sin(3 * 0.31371) + 1)) <= 1e-2


WARPED = [
    ("1/x", (0.1, 10.0), 1e-6, 24, lambda x: 1 / x),
    ("log(x)", (0.01, 10.0), 1e-6, 28, mp.log),
    ("sqrt(x)", (0.0, 1.0), 1e-3, 16, mp.sqrt),
    ("1/sqrt(3 - x)", (-1.0, 2.9), 1e-6, 16, lambda x: 1 / mp.sqrt(3 - x)),
]


@pytest.mark.parametrize(("expression", "domain", "tol", "keys", "reference"), WARPED)
@settings(max_examples=40)
@given(data=st.data())
def test_functions_that_change_fast_near_one_end(expression, domain, tol, keys, reference, data):
    model = compiled(expression, domain, tol)
    assert model.head.keys <= keys
    crowded = st.floats(-8, 0).map(lambda e: domain[0] + (domain[1] - domain[0]) * 10.0**e)
    x = data.draw(st.floats(*domain) | crowded.map(lambda v: min(v, domain[1])))
    with mp.workdps(50):
        stored = head_at(model, mp.mpf(x))
        assert abs(reference(mp.mpf(x)) - stored) <= model.certificate.approximation
        assert abs(mp.mpf(model(torch.tensor(x, dtype=torch.float64)).item()) - stored) <= model.certificate.rounding


def test_keys_gives_the_best_error_at_that_size():
    errors = [ah.compile("gelu(x)", keys=k).certificate.bound for k in (6, 9, 12)]
    assert errors[0] < 1e-4
    assert errors[1] < 2e-6
    assert errors[2] < 2e-8


def test_the_same_call_gives_the_same_model():
    first, second = (ah.compile("mish(x)", tol=1e-5) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert first.certificate == second.certificate


@pytest.mark.parametrize(
    "target",
    [
        torch.sin,
        lambda x: torch.sin(x),
        torch.nn.functional.silu,
        torch.nn.ELU(0.5),
        lambda x: x * torch.sigmoid(1.702 * x),
    ],
)
def test_python_functions_are_traced(target):
    model = ah.compile(target, (-2, 2), tol=1e-7)
    x = torch.linspace(-2, 2, 301, dtype=torch.float64)
    assert model.certificate.level == "proved"
    assert (model(x) - target(x)).abs().max() <= 1e-7


def test_shifted_and_half_infinite_targets():
    assert ah.compile("sigmoid(2*x - 3)", tol=1e-6).certificate.level == "proved"
    half = ah.compile("exp(-x)", (0, math.inf), tol=1e-6)
    x = torch.tensor([0.0, 0.5, 3.0, 50.0, 1e6], dtype=torch.float64)
    assert (half(x) - torch.exp(-x)).abs().max() <= 1e-6
    assert ah.compile("2*x + 1", tol=1e-9).head.keys == 1
    assert ah.compile("3", (-1, 1), tol=1e-9).head.keys == 1


@pytest.mark.parametrize(
    ("expression", "domain", "tol", "keys"),
    [
        ("gelu(x)", (59, math.inf), 1e-6, 1),
        ("gelu(x - 70)", None, 1e-6, 10),
        ("tanh(x - 100)", None, 1e-9, 2),
        ("tanh(1e5*x)", None, 1e-9, 2),
        ("tanh(1e-5*x)", None, 1e-9, 2),
        ("elu(x - 50)", None, 1e-6, 8),
        ("gelu(1000*x)", None, 1e-3, 6),
        ("abs(x**2 - 1)", (-2, 2), 1e-5, 8),
        ("abs(abs(abs(x) - 1) - 0.5)", (-3, 3), 1e-5, 8),
        ("abs(sin(3*x))", (-2, 2), 1e-5, 16),
        ("sin(1/x)", (0.1, 1), 1e-6, 16),
        ("1e-310*sin(x)", (-1, 1), 1e-6, 1),
    ],
)
def test_targets_of_other_places_and_scales(expression, domain, tol, keys):
    model = ah.compile(expression, domain, tol=tol)
    assert model.certificate.level == "proved"
    assert model.head.keys <= keys


REFUSALS = [
    (lambda: ah.compile("sqrt(x - 1e-10)", (0, 1), tol=0.1), ah.SingularityError, "negative"),
    (lambda: ah.compile("tanh(x)", (0, 5e-324)), ah.InputError, "rescale"),
    (lambda: ah.compile("tanh(x)", (-1e200, 1e200)), ah.InputError, "rescale"),
    (lambda: ah.compile(lambda x: x * True, (-1, 1)), ah.ExpressionError, "elementwise"),
    (lambda: ah.compile(lambda x: x / x.shape[0], (-1, 1)), ah.ExpressionError, "shape"),
    (lambda: ah.compile(lambda x: torch.nn.functional.rrelu(x, training=True), (-1, 1)), ah.ExpressionError, "random"),
    (lambda: ah.compile(print, (-1, 1)), ah.ExpressionError, "returns nothing"),
    (lambda: ah.compile("relu(x)", (-1, 1)).save("/nowhere/at/all"), ah.FileError, "cannot be written"),
    (lambda: ah.compile("hardshrink(x)"), ah.DiscontinuityError, "jumps"),
    (lambda: ah.compile("sign(x)", (-1, 1)), ah.DiscontinuityError, "sign"),
    (lambda: ah.compile("floor(x)", (-1, 1)), ah.DiscontinuityError, "floor"),
    (lambda: ah.compile("1/x", (-1, 1)), ah.SingularityError, "x = 0"),
    (lambda: ah.compile("log(x)", (-1, 1)), ah.SingularityError, "log"),
    (lambda: ah.compile("sqrt(x - 1)", (0, 2)), ah.SingularityError, "sqrt"),
    (lambda: ah.compile("__import__('os')", (0, 1)), ah.ExpressionError, "column"),
    (lambda: ah.compile("x*y", (0, 1), method="gated"), ah.InputError, "one variable"),
    (lambda: ah.compile(3.5, (0, 1)), ah.ExpressionError, "formula as text: '3.5'"),
    (lambda: ah.compile("x**2"), ah.AnchorheadError, "bounded domain"),
    (lambda: ah.compile("softsign(x)"), ah.AnchorheadError, "bounded domain"),
    (lambda: ah.compile("sin(x)", (1, 0)), ah.InputError, "low below high"),
    (lambda: ah.compile("sin(x)", (0, math.nan)), ah.InputError, "not a number; give two numbers, low below high"),
    (lambda: ah.compile("x*y", {"x": (math.nan, 1), "y": (0, 1)}), ah.InputError, "not a number; give two numbers"),
    (lambda: ah.compile("elu(x, e/3)", (0, 1)), ah.ExpressionError, "write it in digits"),
    (lambda: ah.compile("sqrt(x - 0.3)", (0.3, 1)), ah.SingularityError, "give 0.30000000000000004 as the end"),
    (lambda: ah.compile("sin(x)/x", (1e-300, 1)), ah.ToleranceError, "no bound near x = 1.*e-300.*keeps away"),
    (lambda: ah.compile("sin(x)/x", (1e-300, 1), relative=True), ah.ToleranceError, "no bound near x = 1.*e-300"),
    (lambda: ah.compile("sin(x)", 5), ah.InputError, "pair"),
    (lambda: ah.compile("sin(x)", {"y": (0, 1)}), ah.InputError, "variable is x"),
    (lambda: ah.compile("sin(x)", (0, 1), tol=0), ah.InputError, "positive"),
    (lambda: ah.compile("sin(x)", (0, 1), tol="small"), ah.InputError, "positive"),
    (lambda: ah.compile("sin(x)", (0, 1), tol=1e-3, keys=4), ah.InputError, "not both"),
    (lambda: ah.compile("sin(x)", (0, 1), keys=0), ah.InputError, "at least 1"),
    (lambda: ah.compile("relu(x)", (-1, 1), keys=1), ah.InputError, "2 to 2"),
    (lambda: ah.compile("sin(x)", (0, 1), method="magic"), ah.InputError, "one of"),
    (lambda: ah.compile("gelu(x)", method="smooth"), ah.InputError, "bounded domain"),
    (lambda: ah.compile("sin(x)", (0, 1), method="kinked"), ah.InputError, "no kinks"),
    (lambda: ah.compile("sin(x)", (0, 1), dtype=torch.float16), ah.PrecisionError, "float32"),
    (lambda: ah.compile("gelu(x)", (-15, 15), tol=1e-8, dtype=torch.float32), ah.ToleranceError, "dtype can hold"),
    (lambda: ah.compile("sin(3*x)", (-1, 1), tol=1e-17), ah.ToleranceError, "dtype can hold"),
    (lambda: ah.compile("relu(x)", (-1, 1))(torch.zeros(3)), ah.DtypeError, "float64"),
    (lambda: ah.compile("relu(x)", (-1, 1))([1.0]), ah.InputError, "torch tensor"),
    (lambda: ah.compile("relu(x)", (-1, 1)).as_self_attention(0), ah.InputError, "tokens"),
]


@pytest.mark.parametrize(("call", "error", "sentence"), REFUSALS, ids=[s for _, _, s in REFUSALS])
def test_refusal_says_what_to_do(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()


def test_plan_lists_every_method():
    found = ah.plan("sin(3*x)", UNIT, tol=1e-4)
    assert [o.method for o in found.options] == ["gated", "pieces", "smooth", "nearest", "kinked", "graph"]
    assert found.best.keys == ah.compile("sin(3*x)", UNIT, tol=1e-4).head.keys
    assert found.options[3].keys > 10_000
    kinked = ah.plan("clip(x, -1, 1)", {"x": (-2, 2)}, tol=1e-3)
    assert kinked.best.method == "kinked"
    assert kinked.best.keys == 3


@pytest.mark.parametrize(
    "numbers",
    [
        {"slopes": [0.0, 1.0], "intercepts": [0.0], "constants": [1.0, 2.0]},
        {"slopes": [], "intercepts": [], "constants": []},
        {"slopes": [0.0, 1.0], "intercepts": [0.0, 0.0], "constants": [1.0, 2.0], "sizes": [1, 2]},
        {"slopes": [0.0, 1.0], "intercepts": [0.0, 0.0], "constants": [1.0, 2.0], "sizes": [1, 1]},
    ],
)
def test_numbers_that_are_no_head_are_refused(numbers):
    with pytest.raises(ah.InputError, match="A head of"):
        ah.Head.of(**numbers, horner=False)


def test_a_method_that_lies_is_not_believed():
    """Evenly spaced slopes that are not, values that are not numbers, a head of something else."""

    class Lying(ah.HeadMethod):
        name = "lying"

        def __init__(self, constants, slopes=(-1.0, 0.3, 1.0)):
            self.numbers = {"slopes": slopes, "intercepts": [0.0] * 3, "constants": constants}

        def fit(self, target):
            return ah.Fit(self.name, 3, 3, lambda keys, goal: ah.Head.of(**self.numbers, horner=True))

    for constants in ([math.nan] * 3, [0.0, math.inf, 1.0], [0.0, 0.0, 0.0]):
        with pytest.raises(ah.AnchorheadError):
            ah.compile("sin(x)", (-1, 1), tol=1e-2, method=Lying(constants))
    model = ah.compile("sin(x)", (-1, 1), tol=2.0, method=Lying([-0.8, 0.0, 0.8]))
    assert not model.head.numbers.horner
    x = torch.linspace(-1, 1, 1001, dtype=torch.float64)
    assert (model(x) - x.sin()).abs().max() <= model.certificate.bound <= 2.0


@pytest.mark.parametrize("text", ["relu(x - 2**66)", "abs(x - 2**66)"])
@pytest.mark.parametrize("tol", [1e15, 1e18])
def test_queries_are_not_clamped_inside_the_domain(text, tol, tmp_path):
    """Numbers of a head that are large in float32 once moved its clamp into the domain, past what the proof knew."""
    try:
        model = ah.compile(text, (0, 2.0**67), tol=tol, dtype=torch.float32)
    except ah.AnchorheadError:
        return
    model.save(tmp_path / "file")
    assert ah.verify(tmp_path / "file") == model.certificate
    x = torch.linspace(0, 2.0**67, 4001)
    exact = x.double() - 2.0**66
    exact = exact.relu() if "relu" in text else exact.abs()
    for run in (model, ah.load(tmp_path / "file")):
        assert (run(x).double() - exact).abs().max() <= model.certificate.bound


class Given(ah.HeadMethod):
    """One head, whatever it is."""

    name = "given"

    def __init__(self, **numbers):
        self.head = ah.Head.of(**numbers)

    def fit(self, target):
        return ah.Fit(self.name, self.head.keys, self.head.keys, lambda keys, goal: self.head)


@pytest.mark.parametrize("horner", [False, True])
@pytest.mark.parametrize(
    ("slopes", "intercepts"), [([-1.0, 1.0, 0.0], [0.0, 0.0, -1e38]), ([-1.0, 1.0, -1e30], [0.0, 0.0, -1e37])]
)
def test_a_key_without_weight_does_not_move_the_clamp(slopes, intercepts, horner):
    method = Given(slopes=slopes, intercepts=intercepts, constants=[-1.0, 1.0, 0.0], horner=horner)
    with pytest.raises(ah.AnchorheadError):
        ah.compile("tanh(x)", (-5, 5), tol=1e-3, dtype=torch.float32, method=method)


def test_a_head_of_one_piece_has_no_gate():
    numbers = {"slopes": [-1, 1], "intercepts": [0, 0], "constants": [-1, 1], "gate_slopes": [0], "gate_levels": [1e10]}
    with pytest.raises(ah.InputError, match="no gate"):
        ah.compile("tanh(x)", (-1, 1), tol=1e-3, method=Given(**numbers, horner=False))


def test_rounding_that_says_nothing_is_not_proved():
    numbers = {"slopes": [-3, -1, 1, 3], "intercepts": [-800, 0, 0, -800], "constants": [-1, -1, 1, 1]}
    with pytest.raises(ah.ToleranceError):
        ah.compile("tanh(x)", tol=1e-3, method=Given(**numbers, horner=True))


@pytest.mark.parametrize("odd", [10**400, 1j, None, "ab", [[1.0, 2.0]], object()])
def test_what_is_no_row_of_numbers_is_refused(odd):
    for row in (odd, [odd, odd]):
        with pytest.raises(ah.InputError, match="A head"):
            ah.Head.of(slopes=row, intercepts=[0.0, 0.0], constants=[0.0, 0.0], horner=False)


def test_methods_that_give_something_else_are_refused():
    class Odd(Given):
        def __init__(self, made):
            self.made = made

        def fit(self, target):
            return self.made

    fits = [None, 5, "gated"]
    with pytest.raises(ah.InputError, match="plain name"):
        ah.Fit("[/bold]", 1, 2, lambda keys, goal: None)
    with pytest.raises(ah.InputError, match="number of keys"):
        ah.Fit("odd", 3, 1, lambda keys, goal: None)
    fits += [ah.Fit("odd", 1, 2, lambda keys, goal, found=found: found) for found in (None, "head", (1, 2))]
    for made in fits:
        with pytest.raises(ah.InputError, match="in place of"):
            ah.compile("sin(x)", (-1, 1), method=Odd(made))


@pytest.mark.parametrize("domain", [(-1, 1), None])
@pytest.mark.parametrize("text", ["x + 1e12*(sqrt(2)**2 - 2)", "x + sin(pi)*1e12", "x + 1e14*(log(8)/log(2) - 3)"])
def test_constants_that_cancel_are_what_they_are(text, domain):
    assert ah.compile(text, domain).certificate.approximation <= 1e-16
