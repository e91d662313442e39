"""From a wanted error to a size, and every refusal with its sentence."""

import json
import math
import re
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import anchorhead as ah
from anchorhead.cli import app
from anchorhead.theorems import attention_then_softmax, multi_head, plan, single_head, two_layer

W, T = torch.ones(4, 2, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)


@given(
    st.sampled_from(["single_head", "multi_head"]),
    st.floats(-20, 20),
    st.floats(0.1, 40),
    st.floats(3e-3, 1),
    st.integers(3, 20),
    st.integers(1, 6),
    st.booleans(),
)
def test_plan_is_what_gets_built(theorem, low, width, tol, tokens, features, causal):
    causal = causal and theorem == "single_head"
    found = plan(theorem, low=low, high=low + width, tol=tol, tokens=tokens, features=features, causal=causal)
    assert found.bound <= tol
    w = torch.randn(tokens, features, dtype=torch.float64)
    t = torch.zeros(tokens, dtype=torch.float64)  # what `Plan.dtypes` is said to be of
    if theorem == "single_head":
        build = lambda dtype: single_head(w, t, low, low + width, found.anchors, causal=causal,
                                          selection_error=found.selection_error, dtype=dtype)  # fmt: skip
    else:
        build = lambda dtype: multi_head(w, t, low, low + width, found.heads,
                                         selection_error=found.selection_error, dtype=dtype)  # fmt: skip
    model = build(torch.float64)
    assert math.isclose(model.bound, found.bound, rel_tol=1e-9)
    assert math.isclose(model.beta, found.beta, rel_tol=1e-9)
    assert len(model.anchors) == found.anchors
    assert model.resources.parameters == found.parameters
    assert math.isclose(model.resources.logit_range, found.logit_range, rel_tol=1e-9)
    for name, holds in found.dtypes.items():
        if holds:
            build(getattr(torch, name))
        else:
            with pytest.raises(ah.PrecisionError, match="logits span"):
                build(getattr(torch, name))


@pytest.mark.parametrize(
    ("dtype", "low", "high", "anchors", "tol", "tokens", "features"),
    [
        ("bfloat16", -0.1, 0.3, 5, 0.1, 3, 2),
        ("float16", 2.5531425186911756, 6.725367838485571, 15, 0.286913748884211, 1, 2),
    ],
)
def test_plans_and_networks_agree_on_narrow_dtypes_away_from_zero(dtype, low, high, anchors, tol, tokens, features):
    found = plan("single_head", low=low, high=high, tol=tol, tokens=tokens, features=features)
    try:
        single_head(torch.ones(tokens, features), torch.zeros(tokens), low, high, found.anchors,
                    selection_error=found.selection_error, dtype=getattr(torch, dtype))  # fmt: skip
        held = True
    except ah.PrecisionError:
        held = False
    assert not held
    assert not found.dtypes[dtype]


def test_a_smaller_selection_error_is_said_to_save_anchors():
    usual, small = (
        plan("single_head", low=-2, high=3, tol=1e-3, tokens=3, features=2, selection_error=e) for e in (1e-6, 1e-9)
    )
    assert small.anchors < usual.anchors
    assert usual.anchors == plan("single_head", low=-2, high=3, tol=1e-3, tokens=3, features=2).anchors
    assert "selection_error" in (plan.__doc__ or "").splitlines()[0]


@pytest.mark.parametrize("metric", ["euclidean", "sup"])
@pytest.mark.parametrize(
    ("theorem", "columns"),
    [("two_layer", "appended"), ("attention_then_softmax", "appended"), ("attention_then_softmax", "own")],
)
def test_universal_plan_is_what_gets_built(theorem, columns, metric):
    found = plan(theorem, tol=0.3, tokens=2, features=1, lipschitz=3.0, metric=metric, columns=columns)
    model = getattr(ah.theorems, theorem)(torch.sin, 2, 1, found.levels, selection_error=found.selection_error,
                                          columns=columns)  # fmt: skip
    assert model.bound_for(lipschitz=3.0, metric=metric) <= found.bound <= 0.3
    assert math.isclose(model.resources.logit_range, found.logit_range)
    assert model.resources.parameters == found.parameters
    assert model.grid.points == found.grid_points
    assert math.isclose(model.beta, found.beta)
    assert model.resources.heads == found.heads


def test_float32_cannot_hold_sixteen_thousand_anchors():
    found = plan("single_head", low=-25, high=25, tol=50 / 16384 * 1.01, tokens=50, features=10)
    assert found.dtypes["float64"]
    assert not found.dtypes["float32"]
    with pytest.raises(ah.PrecisionError, match=r"torch\.float64"):
        single_head(W.float(), T.float(), -25, 25, 16384)


def test_float16_refuses_before_logits_overflow():
    with pytest.raises(ah.PrecisionError, match="logits span"):
        single_head(W, T, -2, 3, 256, dtype=torch.float16)


REFUSALS = [
    (lambda: single_head(W, T, 1, 1, 9), "must lie below"),
    (lambda: single_head(W, T, 2, 1, 9), "must lie below"),
    (lambda: single_head(W, T, -math.inf, 1, 9), "finite"),
    (lambda: single_head(W, T, 0, 1, 4), "p > n"),
    (lambda: single_head(W, T, 0, 1, 1, causal=True), "at least 2"),
    (lambda: single_head(W, T, 0, 1, 8.5), "whole number"),
    (lambda: single_head(W * math.nan, T, 0, 1, 9), "not finite"),
    (lambda: single_head(W, T * math.inf, 0, 1, 9), "not finite"),
    (lambda: single_head(W[0], T, 0, 1, 9), r"\(tokens, features\)"),
    (lambda: single_head(W, T[:2], 0, 1, 9), "bias has shape"),
    (lambda: single_head("abc", T, 0, 1, 9), "weights"),
    (lambda: single_head(W, T, 0, 1, 9, beta=-1.0), "positive finite"),
    (lambda: single_head(W, T, 0, 1, 9, selection_error=2.0), "strictly between"),
    (lambda: single_head(W, T, 0, 1, 9, output_row=3), "output_features=1"),
    (lambda: single_head(W, T, 0, 1, 9, output_row=[0, 0]), "2 entries for 9 anchors"),
    (lambda: single_head(W, T, 0, 1, 9, beta=1e40, dtype=torch.float32), "logits span"),
    (lambda: single_head(W, T, 0, 1, 9, dtype=torch.int64), "floating dtype"),
    (lambda: single_head(W, T, 0, 1, 9)(torch.zeros(3, 2)), r"\(..., 4, 2\)"),
    (lambda: single_head(W, T, 0, 1, 9)(torch.zeros(4, 2)), "torch.float64"),
    (lambda: single_head(W, T, 0, 1, 9)([1, 2]), "torch tensor"),
    (lambda: multi_head(W, T, 0, 1, 0), "at least 1"),
    (lambda: multi_head(W[:2], T[:2], 0, 1, 3), "at least 3 tokens"),
    (lambda: multi_head(W, T, 3, 1, 3), "must lie below"),
    (lambda: two_layer(torch.sin, 3, 4, 20), r"20\^12 = 4.0e\+15 grid points, which need .* limit"),
    (lambda: two_layer(torch.sin, 1, 1, 1), "at least 2"),
    (lambda: two_layer(torch.sin, 1, 1, 4, low=1, high=0), "must lie below"),
    (lambda: two_layer(lambda x: x[..., 0], 2, 2, 3), r"\(81, 2\).*must return"),
    (lambda: two_layer(lambda x: x.numpy(), 2, 2, 3), "ndarray"),
    (lambda: two_layer(torch.sin, 2, 2, 3, output_features=3), r"\(81, 2, 2\)"),
    (lambda: two_layer(lambda x: x / 0, 1, 1, 3), "not finite"),
    (lambda: two_layer(3, 1, 1, 3), "callable"),
    (lambda: two_layer("sin", 1, 1, 3), "call it with brackets"),
    (lambda: attention_then_softmax(torch.sin, 1, 1, 200, dtype=torch.bfloat16), "cannot resolve"),
    (lambda: two_layer(torch.sin, 1, 1, 3).bound_for(lipschitz=-1.0), "lipschitz"),
    (lambda: two_layer(torch.sin, 1, 1, 3).bound_for(lipschitz=1.0, norm=0.5), "at least 1"),
    (lambda: two_layer(torch.sin, 20, 20, 16), "grid points"),
    (lambda: two_layer(torch.sin, 1, 1, 16, selection_error=0.5, ramp_anchors=2), "selection_error"),
    (lambda: two_layer(torch.sin, 1, 1, 3, dtype=torch.int64), "floating dtype"),
    (lambda: two_layer(lambda x: x[..., :0], 1, 1, 3), "no output features"),
    (lambda: two_layer(lambda x: x * 1j, 1, 1, 3), "complex"),
    (lambda: two_layer(torch.sin, 1, 1, 3).bound_for(lipschitz=lambda r: -1.0), "modulus"),
    (lambda: single_head(W, T, 0, 1, 9, output_row="abc"), "output_row"),
    (lambda: single_head(W, T, 0, 1, 9, output_row=1.5), "output_row"),
    (lambda: single_head(W, T, "a", 1, 9), "two numbers"),
    (lambda: single_head(W, T, 0, 1, 9, beta="hot"), "positive finite"),
    (lambda: single_head(W, T, 0, 1, 9, beta=9.0, selection_error=1e-3), "Give one of the two"),
    (lambda: single_head(W, T, -1, 1, 5000, dtype=torch.float32), "as its range is wide, 2, of which twice must"),
    (
        lambda: single_head(W, T, -20, 20, 18, dtype=torch.float16),
        r"0\.749, of which twice must fit into the 1\.36 that",
    ),
    (lambda: two_layer(torch.sin, 1, 1, 2, dtype=torch.bfloat16), r"0\.0313, and 0\.00195 is allowed for"),
    (lambda: two_layer(torch.sin, 3, 1, 32, columns="own", dtype=torch.float32), r"and 0\.125 is allowed"),
    (lambda: single_head(W, T, 0, 1, 9, dtype="float32"), "write dtype=torch.float32"),
    (lambda: ah.compile("sin(x)", (-1, 1), dtype="float32"), "'float32' must be a dtype of torch"),
    (lambda: ah.in_context.compile("mean(x)", {"x": (-1, 1)}, dtype="float32"), "'float32' must be a dtype of torch"),
    (lambda: single_head(W, T, 0, 1, 9, dtype="float32"), "floating dtype"),
    (lambda: single_head(W * 1e300, T, 0, 1, 9, dtype=torch.float32), "overflow"),
    (lambda: single_head(W, T, 0, 1e-170, 9), "rescale"),
    (lambda: single_head(W, T, -1e200, 1e200, 9), "rescale"),
    (lambda: single_head(W, T, 0, 1e-3, 9, dtype=torch.float16), "cannot hold"),
    (lambda: single_head(W, T, -1e20, 1e20, 9, dtype=torch.float32), "cannot hold"),
    (lambda: single_head(W, T, 0, 1, 9).literal()(torch.zeros(1, 2)), r"\(..., 4, 2\)"),
    (lambda: plan("single_head", tol=1e-300, tokens=3, features=1), "1e12 anchors"),
    (lambda: plan("two_layer", tol=0.1, tokens=3, features=1, lipschitz=1.0, selection_error=5.0), "selection_error"),
    (lambda: plan("single_head", tol=0.1, tokens=3, features=1, output_features=-3), "output_features"),
    (lambda: plan("third", tol=0.1, tokens=3, features=1), "choose from"),
    (lambda: plan("single_head", tol=0, tokens=3, features=1), "positive"),
    (lambda: plan("two_layer", tol=0.1, tokens=3, features=1), "lipschitz"),
    (lambda: plan("multi_head", tol=0.1, tokens=2, features=1), "at least 3"),
    (lambda: plan("two_layer", tol=0.1, tokens=2, features=1, lipschitz=1, metric="taxi"), "metric='taxi' must be"),
    (lambda: plan("attention_then_softmax", tol=0.1, tokens=1, features=1, lipschitz=1, columns="own"), "2 tokens"),
    (lambda: plan("single_head", tol=0.1, tokens=1, features=1, columns="own"), "cannot be planned for single_head"),
    (lambda: two_layer(torch.sin, 1, 1, 3).bound_for(lipschitz="1"), "lipschitz='1' must be a finite number"),
    (lambda: two_layer(torch.sin, 1, 1, 3).bound_for(lipschitz=None), "lipschitz=None must be a finite number"),
    (
        lambda: ah.compile(SimpleNamespace(coefs_=[], intercepts_=[])),
        r"perceptron of scikit-learn; make an nn\.Sequential of its coefs_ and intercepts_, as docs/compiling\.md",
    ),
    (lambda: ah.distance(two_layer(torch.sin, 1, 1, 3), "x"), r"sequences.*scalar_heads\(\)\[0\]"),
]


@pytest.mark.parametrize(("call", "sentence"), REFUSALS, ids=[s for _, s in REFUSALS])
def test_refusal_says_what_to_do(call, sentence):
    with pytest.raises(ah.AnchorheadError, match=sentence):
        call()


def anchorhead(*arguments):
    return subprocess.run([sys.executable, "-m", "anchorhead", *arguments], capture_output=True, text=True, check=False)


def test_plan_command():
    arguments = "plan --theorem single_head --low -25 --high 25 --tol 0.01 --tokens 50 --features 10".split()
    table = anchorhead(*arguments)
    assert table.returncode == 0
    assert "beta" in table.stdout
    found = json.loads(anchorhead(*arguments, "--json").stdout)
    same = plan("single_head", low=-25, high=25, tol=0.01, tokens=50, features=10)
    assert found == same.as_dict()


def test_plan_of_the_papers_sequences_is_a_number():
    table = anchorhead(*"plan --theorem two_layer --tol 1e-3 --tokens 20 --features 5 --lipschitz 1".split())
    assert table.returncode == 0, table.stderr
    assert "e+" in table.stdout


def test_plan_command_takes_the_metric_and_the_columns():
    arguments = "plan --theorem attention_then_softmax --tokens 2 --features 1 --lipschitz 2 --metric sup --columns own"
    same = plan("attention_then_softmax", tol=1e-2, tokens=2, features=1, lipschitz=2.0, metric="sup", columns="own")
    assert json.loads(anchorhead(*arguments.split(), "--json").stdout) == same.as_dict()


def test_an_unknown_theorem_is_the_first_thing_said():
    assert "There is no theorem 'foo'" in anchorhead(*"plan --theorem foo".split()).stderr
    with pytest.raises(ah.InputError, match="There is no theorem 'foo'"):
        plan("foo", low=3, high=2, tol=-1, tokens=0, features=0, norm=2)


@pytest.mark.parametrize(("arguments", "said"), [
    (["--theorem", "single_head", "--tokens", "3", "--features", "1", "-d", "x=-1:1"], "--domain would say nothing of"),
    (["--theorem", "two_layer", "--relative", "--dtype", "float32"], "--dtype, --relative would say nothing"),
    (["gelu(x)", "--tokens", "3", "--low", "0"], "--low, --tokens would say nothing of a formula"),
])  # fmt: skip
def test_options_that_a_plan_does_not_read_are_refused(arguments, said):
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert result.exit_code
    assert said in str(result.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        ["compile", "mean(x*y)", "--tokens", "x=-1:1", "y=-1:1"],
        ["compile", "q*mean(x)", "--tokens", "x=-1:1", "--query", "q=-1:1", "y=-1:1"],
        ["compile", "x*y", "-d", "x=-1:1", "y=-1:1"],
        ["plan", "x*y", "-d", "x=-1:1", "y=-1:1"],
    ],
)
def test_an_interval_without_its_option_is_told_to_repeat_it(arguments):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code != 0
    said = str(result.exception)
    assert "'y=-1:1' is an interval and was read as a formula" in said
    assert "Repeat the option for each variable: --domain x=-1:1 --domain y=-1:1" in said


@pytest.mark.parametrize("error", [1e-320, 1e-201, 0.0, 1.0, float("nan")])
def test_a_selection_error_that_is_no_number_to_divide_by_is_refused_by_name(error):
    for call in (
        lambda: ah.theorems.single_head(torch.ones(3, 1), [0.0] * 3, -1, 1, anchors=8, selection_error=error),
        lambda: ah.theorems.two_layer(torch.sin, 1, 1, 4, selection_error=error),
        lambda: ah.theorems.two_layer(torch.sin, 3, 1, 4, columns="own", selection_error=error),
        lambda: ah.theorems.plan("single_head", tol=0.1, tokens=3, features=1, selection_error=error),
    ):
        with pytest.raises(ah.InputError, match="must lie strictly between 0 and 1"):
            call()


def test_command_refuses_in_one_sentence():
    wrong = anchorhead(*"plan --theorem single_head --low 3 --high 2 --tokens 5 --features 1".split())
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("anchorhead: low=3.0 must lie below high=2.0")
    assert "Traceback" not in wrong.stderr


ODD = [None, 0, -1, 1.5, "3", 10**30, 10**400, math.nan, math.inf, 1j, object()]


@pytest.mark.parametrize("value", ODD, ids=lambda value: f"{type(value).__name__} {value!r:.12}")
def test_odd_arguments_are_refused_with_a_sentence(value):
    """Wherever a number is asked for, whatever else is given; what is one may be taken."""
    ramp, sizes = ([[1.0]], [0.0]), {"low": 0, "high": 1, "tol": 0.1, "tokens": 1, "features": 1}
    calls = [
        lambda: ah.compile("x", (0, 1), tol=-1 if value is None else value),
        lambda: ah.compile("x", (0, 1), method=value),
        lambda: ah.compile("sin(x)", (0, 1), keys=-1 if value is None else value),
        lambda: ah.compile(torch.nn.Linear(2, 1), (0, 1), shape=-1 if value is None else value, tol=0.1),
        lambda: ah.compile(math.sin, (0, 1), lipschitz=-1 if value is None else value, tol=0.5),
        lambda: (
            ah.theorems.single_head(*ramp, -1, value, 8) if value != 1.5 else ah.theorems.single_head(*ramp, 1, 0, 8)
        ),
        lambda: ah.theorems.single_head(*ramp, -1, 1, value),
        lambda: ah.theorems.two_layer(lambda X: X, 1, value, 8),
        lambda: ah.theorems.two_layer(lambda X: X, 1, 1, value),
        lambda: ah.theorems.plan("single_head", **sizes | {"tol": value}),
        lambda: ah.theorems.plan("two_layer", lipschitz=value, **sizes),
        lambda: ah.theorems.plan("two_layer", lipschitz=1, **sizes | {"features": value}),
    ]
    refused = 0
    for call in calls:
        try:
            call()
        except ah.AnchorheadError:
            refused += 1
    assert refused >= 6


@pytest.mark.parametrize("asked", [{"columns": "own"}, {"shifts": 6}, {"norm": 2}])
def test_what_is_not_planned_is_said(asked):
    ((name, value),) = asked.items()
    with pytest.raises(ah.InputError, match=f"^{name}={value!r} cannot be planned"):
        ah.theorems.plan("two_layer", tol=0.1, tokens=3, features=1, lipschitz=1.0, **asked)


def test_what_takes_other_row_maps_is_said_where_theorems_do_not():
    map_, networks = ah.row_maps.Sparsemax(), [single_head(W, T, -1, 1, 9), two_layer(torch.sin, 1, 1, 4)]
    for network in networks:
        with pytest.raises(ah.InputError, match="of softmax") as refused:
            network.with_row_map(map_)
        advised = re.search(r"ah\.compile\(.*with_row_map", str(refused.value))
        assert eval(advised[0])(map_).certificate.level == "proved"


def test_a_file_of_ramps_is_not_diagnosed_without_inputs(tmp_path):
    from anchorhead.lab.diagnosis import diagnose_file

    single_head(W, T, 0, 1, 9).save(tmp_path / "network.safetensors")
    with pytest.raises(ah.FileError, match=r"ah\.diagnose\(ah\.load\(file\), x\)"):
        diagnose_file(tmp_path / "network.safetensors")


def test_a_map_names_the_output_that_it_shows():
    texts = [axes.get_title(loc="left") + axes.get_title() for axes in two_layer(["x1", "x2"], 2, 1, 4).plot().axes]
    assert any("output 0 of 2" in text for text in texts)


def test_formulas_that_lose_more_digits_than_a_tolerance_leaves_are_refused_as_they_are_written():
    with pytest.raises(ah.ToleranceError, match=r"own terms round by .* large terms do not cancel"):
        ah.compile("sin(x + 500)", (-1, 1), tol=1e-14)
    cancels, domain = "(1e8*x + y)*(1e8*x - y) - 1e16*x**2", {"x": (0, 1), "y": (-1, 1)}
    with pytest.raises(ah.ToleranceError, match=r"as it is written: rounding .* whose large terms do not cancel"):
        ah.compile(cancels, domain, tol=1e-3)
    assert ah.compile("-y**2", (-1, 1), tol=1e-3).certificate.bound <= 1e-3


@pytest.mark.parametrize(("formula", "domain", "tol"), [("exp(x)", (-3, 2), 2.3e-5), ("sin(x)", (100, 101), 1e-6)])
def test_the_best_that_a_refusal_names_is_kept_by_a_call(formula, domain, tol):
    with pytest.raises(ah.ToleranceError) as refused:
        ah.compile(formula, domain, tol=tol, dtype=torch.float32)
    best = float(re.search(r"The best that this search proved is (\S+) with", str(refused.value))[1])
    assert best >= refused.value.best > tol
    assert ah.compile(formula, domain, tol=best, dtype=torch.float32).certificate.bound <= best


def test_a_bound_that_keeps_the_tolerance_is_not_refused():
    assert ah.compile("tanhshrink(elu(x))", tol=1e-10).certificate.bound <= 1e-10


@pytest.mark.heavy
def test_rounding_of_heads_that_are_near_enough_is_what_a_refusal_names():
    """Far from zero scores lose digits in float32, and pieces do not help."""
    domain = (1e5, 1e5 + 1)
    with pytest.raises(ah.ToleranceError, match=r"evaluating them may round by .* proved is .* wider dtype\.$"):
        ah.compile("sin(x)", domain, tol=1e-2, dtype=torch.float32)
    assert ah.compile("sin(x)", domain, tol=1e-2).certificate.bound <= 1e-2


def test_a_limit_that_is_too_small_is_said_to_be_raised():
    with pytest.raises(ah.ToleranceError, match=r"takes (\d+) keys .* and 3 may be used. Raise limit=") as refused:
        ah.compile("sin(3*x)", (-3, 3), limit=3)
    enough = int(re.search(r"takes (\d+) keys", str(refused.value))[1])
    assert ah.compile("sin(3*x)", (-3, 3), limit=enough).resources.keys <= enough
    with pytest.raises(ah.ToleranceError, match="Raise limit="):
        ah.compile("sin(3*x)", (-3, 3), limit=3, method="gated")


@pytest.mark.parametrize(
    "tol", [Fraction(1, 1000), Decimal("1e-3"), torch.tensor(1e-3), np.float32(1e-3), np.array(1e-3)]
)
def test_a_tolerance_may_be_any_real_number(tol):
    assert ah.compile("exp(x)", (-1, 1), tol=tol).certificate.bound <= 1.0001e-3
    assert ah.plan("exp(x)", (-1, 1), tol=tol).tol == pytest.approx(1e-3)


def test_numbers_of_keys_may_be_of_numpy():
    assert ah.compile("exp(x)", (-1, 1), keys=np.int64(3)).resources.keys == 3
    assert ah.compile("exp(x)", (-1, 1), tol=1e-2, limit=np.int64(8)).resources.keys <= 8


@pytest.mark.parametrize(
    "wrong",
    [{"tol": "1e-3"}, {"tol": torch.ones(1)}, {"tol": True}, {"tol": 10**400}, {"tol": Fraction(1, 10**400)},
     {"tol": math.nan}, {"keys": 2.5}, {"keys": True}, {"limit": 0}, {"lipschitz": 1j}, {"largest_value": "1"}],
)  # fmt: skip
def test_what_is_no_number_is_refused_by_its_name(wrong):
    with pytest.raises(ah.InputError, match=f"^{next(iter(wrong))}=.* must be a "):
        ah.compile("exp(x)", (-1, 1), **wrong)


def test_a_head_that_does_not_keep_what_it_promised_is_named_with_its_reason(monkeypatch):
    def refuses(*_: object, **__: object) -> None:
        refusal = ah.ToleranceError("no box near u = 1 has a bound.")
        refusal.best = 4e-14
        raise refusal

    monkeypatch.setattr("anchorhead.compiler.compose.choose", refuses)
    with pytest.raises(ah.ToleranceError, match=r"clip\(x \+ y, 0, 1\) dominates.* no box near u = 1") as refused:
        ah.compile("clip(x + y, 0, 1)", (-10, 10), tol=1e-11, method="graph")
    assert "inf " not in str(refused.value)


@pytest.mark.heavy
def test_a_search_ends_where_the_rounding_of_stored_numbers_is_all_that_is_left():
    said = []
    with pytest.raises(
        ah.ToleranceError, match=r"more of them round more\. The best that this search proved is .* wider dtype\.$"
    ) as refused:
        ah.compile("mish(x)", tol=1e-9, dtype=torch.float32, progress=said.append)
    assert refused.value.best < 2**-24
    assert max(int(line.split()[1]) for line in said) < 64
    assert ah.compile("mish(x)", tol=1e-9, progress=False).certificate.bound <= 1e-9


@pytest.mark.parametrize(("domain", "said"), [((0, math.inf), r"\(0, 20\)"), ((-math.inf, -50), r"\(-70, -50\)")])
def test_the_domain_that_is_advised_is_part_of_the_one_that_was_given(domain, said):
    with pytest.raises(ah.InputError, match=f"give a bounded domain, such as {said}"):
        ah.compile("exp(-abs(x))*sin(5*x)", domain, tol=1e-4)
