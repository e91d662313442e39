"""The functions of the approximation literature: proved, within so many keys; and functions that nobody chose."""

import functools

import mpmath as mp
import pytest
import second_checker
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorhead as ah
from benchmarks.functions import cases
from benchmarks.several import CASES

UNIT = (-1, 1)
PEAK = "1/(1+1000*(x-0.3)**2)"
TABLE = [
    ("cos(20*x)", UNIT, 1e-6, 16, lambda x: mp.cos(20 * x)),
    ("cos(20*x)", UNIT, 1e-10, 22, lambda x: mp.cos(20 * x)),
    ("sin(50*x)", UNIT, 1e-6, 48, lambda x: mp.sin(50 * x)),
    ("sin(1000*x)", UNIT, 1e-3, 200, lambda x: mp.sin(1000 * x)),
    ("sin(x**2)", (0, 6), 1e-6, 26, lambda x: mp.sin(x**2)),
    ("sin(40*x**2)", (0, 1), 1e-4, 30, lambda x: mp.sin(40 * x**2)),
    ("abs(x)**3", UNIT, 1e-6, 8, lambda x: abs(x) ** 3),
    ("exp(-abs(x))", (-3, 3), 1e-10, 14, lambda x: mp.exp(-abs(x))),
    (PEAK, UNIT, 1e-6, 40, lambda x: 1 / (1 + 1000 * (x - mp.mpf(3) / 10) ** 2)),
    (PEAK, UNIT, 1e-10, 70, lambda x: 1 / (1 + 1000 * (x - mp.mpf(3) / 10) ** 2)),
    ("atan(30*x)", UNIT, 1e-6, 24, lambda x: mp.atan(30 * x)),
    ("atan(30*x)", UNIT, 1e-10, 44, lambda x: mp.atan(30 * x)),
    ("x**-0.5", (0.01, 100), 1e-6, 30, lambda x: 1 / mp.sqrt(x)),
    ("x**-0.5", (0.01, 100), 1e-10, 55, lambda x: 1 / mp.sqrt(x)),
    (
        "exp(x)*sin(3*x)*tanh(5*cos(30*x))",
        UNIT,
        1e-6,
        80,
        lambda x: mp.exp(x) * mp.sin(3 * x) * mp.tanh(5 * mp.cos(30 * x)),
    ),
]


@functools.cache
def compiled(index):
    text, domain, tol, *_ = TABLE[index]
    return ah.compile(text, domain, tol=tol)


@pytest.mark.heavy
@pytest.mark.parametrize("index", range(len(TABLE)), ids=lambda i: f"{TABLE[i][0]} {TABLE[i][2]:g}")
@settings(max_examples=40)
@given(share=st.floats(0, 1))
def test_functions_of_the_literature_are_proved_with_few_keys(index, share):
    _, (low, high), tol, keys, exact = TABLE[index]
    model = compiled(index)
    assert model.certificate.level == "proved"
    assert model.certificate.bound <= tol
    assert model.resources.keys <= keys
    x = torch.tensor([min(max(low + share * (high - low), low), high)], dtype=torch.float64)
    with mp.workdps(40):
        assert abs(model(x).item() - exact(mp.mpf(x.item()))) <= model.certificate.bound


@pytest.mark.heavy
@pytest.mark.parametrize("index", [2, 3, 14])
def test_networks_of_doublings_are_saved_and_checked(index, tmp_path):
    model = compiled(index)
    model.save(tmp_path / "model")
    assert ah.verify(tmp_path / "model").bound <= TABLE[index][2]
    x = torch.linspace(*TABLE[index][1], 100, dtype=torch.float64).reshape(4, 25)  # every number by itself
    assert model(x).shape == x.shape
    assert torch.equal(ah.load(tmp_path / "model")(x), model(x))
    assert not ah.diagnose(model, x).findings
    verdict = second_checker.check(tmp_path / "model")
    assert verdict.status == "holds", verdict.reason


@pytest.mark.heavy
@pytest.mark.parametrize("tol", [1e-3, 1e-6])
def test_functions_that_nobody_chose_are_not_refused(tol):
    for case in cases(8, seed=4):
        model = ah.compile(case.text, (case.low, case.high), tol=tol * case.scale)
        assert model.certificate.level == "proved", case
        assert model.certificate.bound <= tol * case.scale, case


@pytest.mark.heavy
def test_functions_of_several_variables_are_not_refused():
    for name in ("himmelblau", "rastrigin", "corner_peak", "continuous", "payoff"):
        formula, domain, scale, relative = CASES[name]
        model = ah.compile(formula, domain, tol=relative * scale)
        assert model.certificate.bound <= relative * scale, name


@pytest.mark.heavy
@pytest.mark.parametrize(("text", "domain"), [("clip(x, -1, 1)", (-2, 2)), ("tanh(80*x)", UNIT), ("sin(3*x)", UNIT)])
def test_more_keys_are_never_worse(text, domain):
    bounds = [ah.compile(text, domain, keys=keys).certificate.bound for keys in (3, 4, 8, 12)]
    assert bounds == sorted(bounds, reverse=True)


def test_a_function_that_turns_more_often_than_keys_may_is_refused_with_the_limit():
    with pytest.raises(ah.ToleranceError, match="limit"):
        ah.compile("sin(50*x)", UNIT, tol=1e-6, limit=10)
    with pytest.raises(ah.InputError, match="limit=0"):
        ah.compile("sin(x)", UNIT, limit=0)
