"""Relative tolerances: |model/f - 1| <= bound everywhere, in files and to both checkers too; refused at a zero."""

import functools
import json
import struct

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mp_functions import head_at, sigmoid, softplus
from safetensors.numpy import load_file, save_file
from second_checker import check

import anchorhead as ah
from anchorhead.compiler.head_methods import Gamma
from anchorhead.compiler.method import Goal
from anchorhead.compiler.sizes import relative
from anchorhead.compiler.target import read_target
from anchorhead.file.container import digest
from anchorhead.head.gamma import gamma

CASES = {
    "a root": ("x**-0.5", (1e-6, 1e4), 1e-7, torch.float64, lambda x: 1 / mp.sqrt(x)),
    "a root in float32": ("rsqrt(x)", (1e-8, 1e10), 2e-3, torch.float32, lambda x: 1 / mp.sqrt(x)),
    "a power that grows": ("x**1.5", (1e-3, 1e3), 1e-6, torch.float64, lambda x: x ** mp.mpf("1.5")),
    "a negative domain": ("-x**-2", (-1e3, -1e-3), 1e-4, torch.float64, lambda x: -1 / x**2),
    "an exponential": ("exp(x)", (-20, 20), 1e-6, torch.float64, mp.exp),
    "a peak": ("1/(1 + x**2)", (-10, 10), 1e-6, torch.float64, lambda x: 1 / (1 + x**2)),
    "a tail": ("sigmoid(x)", (-30, 30), 1e-6, torch.float64, sigmoid),
    "a tail that is bent": ("softplus(x)", (-30, 30), 1e-6, torch.float64, softplus),
    "a kink": ("exp(-abs(x))", (-10, 10), 1e-6, torch.float64, lambda x: mp.exp(-abs(x))),
}
KEYS = {"a root": 48, "a root in float32": 41, "an exponential": 6, "a tail": 2}


@functools.cache
def compiled(name):
    formula, domain, tol, dtype, _ = CASES[name]
    return ah.compile(formula, domain, tol=tol, dtype=dtype, relative=True)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=60)
@given(share=st.floats(0, 1), spread=st.booleans())
def test_the_bound_holds_in_units_of_the_function(name, share, spread):
    _, (low, high), tol, dtype, reference = CASES[name]
    model, place = compiled(name), low + (high - low) * share
    if spread and low * high > 0:
        place = low * (high / low) ** share
    x = torch.tensor(min(max(place, low), high), dtype=dtype)
    certificate = model.certificate
    assert (certificate.relative, certificate.level) == (True, "proved")
    assert certificate.bound <= tol
    assert model.resources.keys <= KEYS.get(name, 64)
    with mp.workdps(60):
        exact, stored = reference(mp.mpf(x.item())), head_at(model, mp.mpf(x.item()))
        assert abs(stored - exact) <= certificate.approximation * abs(exact)
        assert abs(mp.mpf(model(x).item()) - stored) <= certificate.rounding * abs(exact)
        if len(model.head.sizes) == 1:
            assert abs(mp.mpf(model.literal()(x).item()) - stored) <= certificate.rounding * abs(exact)


@pytest.mark.parametrize("name", ["a root in float32", "a tail", "a kink"])
def test_files_hold_it_and_both_checkers_confirm_it(name, tmp_path):
    model, path = compiled(name), tmp_path / "model"
    model.save(path)
    assert ah.load(path).certificate == ah.verify(path) == model.certificate
    assert check(path).ok
    assert "model/(" in str(model.certificate)
    assert model.certificate.as_dict()["relative"] is True


def resigned(path, record, tensors):
    record = record | {"digest": digest(record, {name: array.tobytes() for name, array in tensors.items()})}
    save_file(tensors, path, metadata={"anchorhead": json.dumps(record)})
    return path


@pytest.mark.parametrize("edit", ["absolute", "smaller", "through a zero", "a word"])
def test_a_claim_that_was_made_false_is_refused_by_both(edit, tmp_path):
    path = tmp_path / "model"
    compiled("a root").save(path)
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    record = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["anchorhead"])
    claim = record["certificate"]
    changed = {"absolute": {"relative": False}, "smaller": {"approximation": claim["approximation"] / 2},
               "through a zero": {}, "a word": {"relative": "yes"}}[edit]  # fmt: skip
    if edit == "through a zero":
        record["expressions"] = ["x**-0.5 - 1"]
    forged = resigned(tmp_path / "forged", record | {"certificate": claim | changed}, load_file(path))
    with pytest.raises(ah.AnchorheadError):
        ah.verify(forged)
    assert not check(forged).ok


@pytest.mark.parametrize(
    ("target", "domain", "message"),
    [
        ("gelu(x)", (-3, 3), "zero"),
        ("x - 1/3", (0, 1), "zero"),
        ("x**2", (0, 1), "zero"),
        ("cosh(1e10*x)", (-1, 1), "as large as inf"),
        ("sigmoid(x)", None, "bounded"),
        ("x*y", {"x": (1, 2), "y": (1, 2)}, "one variable"),
        (["x + 1", "x + 2"], (0, 1), "one variable"),
    ],
)
def test_what_has_no_relative_error_is_refused(target, domain, message):
    with pytest.raises(ah.InputError, match=message):
        ah.compile(target, domain, relative=True)


@pytest.mark.parametrize("unit", ["1e-30", "1e-16", "1e20"])
def test_units_of_the_target_do_not_matter(unit):
    x = torch.linspace(-3, 3, 101, dtype=torch.float64)
    plain = ah.compile("2 + sin(x)", (-3, 3), tol=1e-8, relative=True)
    model = ah.compile(f"{unit}*(2 + sin(x))", (-3, 3), tol=1e-8, relative=True, method="gated")
    assert model.head.keys == plain.head.keys
    with mp.workdps(40):
        exact = [mp.mpf(unit) * (2 + mp.sin(u)) for u in x.tolist()]
        errors = [abs(v / f - 1) for v, f in zip(model(x).tolist(), exact, strict=True)]
    assert max(errors) <= model.certificate.bound <= 1e-8


@pytest.mark.parametrize("method", ["nearest", "graph"])
def test_methods_whose_error_is_absolute_say_so(method):
    with pytest.raises(ah.InputError, match="absolute"):
        ah.compile("exp(x)", (0, 1), relative=True, method=method)


def test_gamma_needs_a_domain_without_zero():
    with pytest.raises(ah.InputError, match="without zero"):
        ah.compile("exp(x)", (-1, 1), method="gamma")


def test_a_plan_knows_the_unit():
    found = ah.plan("x**-0.5", (1e-2, 1e2), tol=1e-4, relative=True)
    assert found.relative is found.as_dict()["relative"] is True
    assert found.best.method == "gamma"
    assert found.best.bound <= 1e-4


def test_values_of_gamma_heads_do_not_cancel():
    """What the limit is for: weights times |values| stay a few times |f|, over eighteen decades."""
    f = lambda u: 1 / np.sqrt(u)
    heads = gamma(f, 1e-8, 1e10, 41, affine=False, goal=7e-3, limit=6.0, extra=np.zeros(0), relative=True)
    error, head = heads.best()
    u = np.geomspace(1e-8, 1e10, 5001)
    brought = (head.weights(u) * np.abs(head.arrays["constants"])[:, None]).sum(0) / f(u)
    assert error < 2e-3
    assert brought.max() < 6
    assert np.abs(head.rounded("float32")(u) / f(u) - 1).max() < 2e-3


def test_gamma_heads_with_constant_values_carry_partners():
    target = relative(read_target("rsqrt(x)", (1e-4, 1e4)))
    head = Gamma(constant=True).fit(target).build(24, Goal(1e-4, 10.0))
    assert not any(head.gains)
