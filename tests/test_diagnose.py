"""Diagnosing: each way to fail is recognised where it was provoked, and nothing is found where nothing is wrong."""

import copy
import functools
import json
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ramp_cases import RampCase, at, ramps
from torch import nn

import anchorhead as ah
from anchorhead.lab.diagnosis import KINDS, Diagnosis, diagnose, diagnose_file, examined
from anchorhead.lab.diagnosis.criteria import concentrated
from anchorhead.theorems import attention_then_softmax, multi_head, single_head, two_layer
from anchorhead.theorems.anchors import beta_for

UNIFORM, BOUNDARY, DRIFT, PRECISION, EDITED = KINDS
CASES = {
    "gated": ("gelu(x)", None, 1e-5),
    "smooth": ("sin(3*x)", (-1, 1), 1e-4),
    "kinked": ("relu(x)", None, 1e-4),
    "kinked curves": ("abs(sin(x))", (-1, 2), 1e-4),
    "nearest": ("x**2", (0, 1), 0.1),
}


def kinds(found: Diagnosis) -> list[str]:
    return [finding.kind for finding in found.findings]


@functools.cache
def _compiled(name: str, dtype: torch.dtype) -> ah.CompiledModel:
    formula, domain, tol = CASES[name]
    return ah.compile(formula, domain, tol=tol, method=name.split()[0], dtype=dtype)


def compiled(name: str, dtype: torch.dtype = torch.float64) -> ah.CompiledModel:
    return _compiled(name, dtype)


def points(model: ah.CompiledModel, count: int = 801) -> torch.Tensor:
    low, high = model.certificate.domain[0]
    x = torch.linspace(max(low, -8.0), min(high, 8.0), count, dtype=torch.float64)
    return x.to(next(model.parameters()).dtype)


def ramp(anchors: int = 64, *, gap: float | None = None, dtype: torch.dtype = torch.float64, count: int = 501):
    """A single head on [-2, 3] with that gap between neighbouring keys, and inputs that reach past both ends."""
    w, t, x = at(torch.linspace(-3, 4, count, dtype=dtype), 2)
    beta = None if gap is None else gap * (anchors - 1) ** 2 / 25
    return single_head(w, t, -2, 3, anchors, beta=beta), x


def many(gap: float | None = None, low: float = 20.0, high: float = 22.0):
    """Three heads of ten anchors, far from zero."""
    w, t, x = at(torch.linspace(low - 1, high + 1, 401, dtype=torch.float64), 12)
    beta = None if gap is None else gap * 31**2 / (high - low) ** 2
    return multi_head(w, t, low, high, 3, beta=beta), x


def edited(model: ah.CompiledModel, **factors: float) -> ah.CompiledModel:
    found = copy.deepcopy(model)
    with torch.no_grad():
        for name, factor in factors.items():
            getattr(found.head, name).mul_(factor)
    return found


# healthy


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_compiled_heads_are_healthy(name: str, dtype: torch.dtype):
    model = compiled(name, dtype)
    found = diagnose(model, points(model))
    assert found.healthy, str(found)
    assert 0 <= found.error <= found.bound
    assert found.examined == 801
    assert str(found).startswith("healthy: error ")


@settings(max_examples=25)
@given(ramps(), st.integers(1, 200), st.booleans(), st.booleans())
def test_a_single_head_at_the_derived_beta_is_healthy(case: RampCase, extra: int, causal: bool, rows: bool):
    p = len(case.bias) + extra + (len(case.bias) + extra < 2)
    try:
        model = single_head(case.weights, case.bias, case.low, case.high, p, causal=causal,
                            output_features=1 + rows, output_row=(lambda k: k % 2) if rows else None)  # fmt: skip
    except ah.PrecisionError:
        assume(False)
    found = diagnose(model, within(model, case.inputs))
    assert found.healthy, str(found)


@settings(max_examples=25)
@given(ramps(min_tokens=3), st.integers(1, 20))
def test_many_heads_at_the_derived_beta_are_healthy(case: RampCase, heads: int):
    try:
        model = multi_head(case.weights, case.bias, case.low, case.high, heads)
    except ah.PrecisionError:
        assume(False)
    found = diagnose(model, within(model, case.inputs))
    assert found.healthy, str(found)


def within(model, x: torch.Tensor) -> torch.Tensor:
    """The inputs, scaled to where the theorem's bound covers the rounding of w·x."""
    middle = (model.low + model.high) / 2
    room = model.summand_limit - (model.bias.double() - middle).abs().max().item()
    assume(room > 0)
    size = (x.double() * model.weights.double()).abs().sum(-1).max().item()
    return x if size <= room else (x.double() * (0.9 * room / size)).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_head_built_for_a_narrow_dtype_is_healthy_in_it(dtype: torch.dtype):
    w, t, x = at(torch.linspace(-1.5, 1.5, 301, dtype=torch.float64).to(dtype), 1)
    found = diagnose(single_head(w, t, -1, 1, 4 if dtype == torch.bfloat16 else 8), x)
    assert found.healthy, str(found)
    assert found.dtype == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("make", [two_layer, attention_then_softmax])
def test_a_look_up_is_healthy_until_its_scores_shrink(make):
    x = torch.rand(300, 1, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 1.2 - 0.1
    model = make(lambda v: torch.sin(3 * v) * v.sum((-2, -1), keepdim=True), tokens=1, features=2, levels=6)
    assert diagnose(model, x).healthy
    assert diagnose(model, x, dtype=torch.float32).healthy
    assert kinds(diagnose(model, x, score_factor=0.01)) == [UNIFORM]
    assert kinds(diagnose(model, x, score_factor=0.1)) == [DRIFT]


# uniform attention


def test_a_beta_far_below_the_derived_one_is_uniform_attention():
    model, x = ramp(gap=1e-4)
    found = diagnose(model, x)
    assert kinds(found) == [UNIFORM], "and nothing else: the error at the ends follows from it"
    derived = beta_for(1e-6, 63, 5 / 63)
    assert f"{derived:.6g}" in found.findings[0].advice
    assert "64 keys" in found.findings[0].evidence
    assert diagnose(*ramp()).healthy


def test_scaling_the_scores_and_building_with_less_beta_are_one_diagnosis():
    model, x = ramp()
    scaled = diagnose(model, x, score_factor=1e-5)
    with torch.no_grad():
        model.attention.query.mul_(1e-5)
    changed = diagnose(model, x)
    assert kinds(scaled) == kinds(changed) == [UNIFORM]
    assert scaled.findings[0].evidence == changed.findings[0].evidence


@pytest.mark.parametrize("name", ["gated", "smooth", "kinked curves"])
def test_a_blending_head_with_small_scores_is_uniform_attention(name: str):
    model = compiled(name)
    found = diagnose(model, points(model), score_factor=0.1)
    assert kinds(found) == [UNIFORM]
    assert "score_factor=1" in found.findings[0].advice


def test_edited_scores_are_found_with_the_factor_that_mends_them():
    model = compiled("smooth")
    found = diagnose(edited(model, slopes=0.2, intercepts=0.2), points(model))
    assert kinds(found) == [UNIFORM]
    assert "by 5," in found.findings[0].advice
    assert diagnose(model, points(model)).healthy, "the original was not touched"


def test_few_keys_that_share_the_weight_by_design_are_not_uniform_attention():
    model = ah.compile("x*y", (-1, 1), tol=1e-4)
    x = 2 * torch.rand(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 1
    weights = model.attention(x)[0]
    assert -(weights * weights.log()).sum(-1).mean() > 0.9 * math.log(weights.shape[-1])
    assert diagnose(model, x).healthy


# interpolation drift


@pytest.mark.parametrize("gap", [0.5, 1.0, 4.0])
def test_the_papers_head_at_a_moderate_beta_glides(gap: float):
    found = diagnose(*ramp(gap=gap))
    assert kinds(found) == [DRIFT]
    assert "glides where it should snap" in found.findings[0].evidence
    assert found.error <= found.bound, "its weights say so; its error does not"


def test_a_gap_a_third_below_the_derived_one_is_no_drift():
    assert diagnose(*ramp(gap=12.0)).healthy
    assert diagnose(*ramp(gap=200.0)).healthy


def test_drift_does_not_depend_on_where_the_queries_lie():
    """Halfway between two anchors both have half of the weight at every β."""
    step = 5 / 63
    w, t, x = at(-2 + step * (torch.arange(20, dtype=torch.float64) + 0.5), 2)
    assert diagnose(single_head(w, t, -2, 3, 64), x).healthy


@pytest.mark.parametrize("name", ["gated", "smooth", "kinked curves"])
def test_a_blending_head_at_a_high_beta_snaps(name: str):
    model = compiled(name)
    found = diagnose(model, points(model), score_factor=30.0)
    assert kinds(found) == [DRIFT]
    assert "snaps where it should glide" in found.findings[0].evidence


def test_a_relu_at_a_high_beta_is_only_sharper():
    model = compiled("kinked")
    assert diagnose(model, points(model), score_factor=30.0).healthy


def test_values_that_were_changed_are_not_blamed_on_the_beta():
    model = copy.deepcopy(compiled("smooth"))
    with torch.no_grad():
        model.head.constants[2] += 0.1
    found = diagnose(model, points(model))
    assert kinds(found) == [EDITED]
    assert "its scores are those built, other stored numbers are not" in found.findings[0].evidence


@pytest.mark.parametrize("factor", [1.001, 1.03])
def test_a_beta_is_advised_only_if_it_restores_the_bound(factor: float, tmp_path):
    """Of a file nobody knows what it was built with."""
    model = ah.compile("exp(x)", (-2, 2), tol=1e-5)
    values = edited(model, constants=factor, gains=factor)
    values.save(tmp_path / "values.safetensors")
    found = diagnose_file(tmp_path / "values.safetensors")
    assert kinds(found) == kinds(diagnose(values, points(values))) == [EDITED]
    assert "no β that was tried mends it" in found.findings[0].evidence
    edited(model, slopes=0.3, intercepts=0.3).save(tmp_path / "scores.safetensors")
    (finding,) = diagnose_file(tmp_path / "scores.safetensors").findings
    assert finding.kind == UNIFORM
    said = float(finding.advice.split(" by ")[1].split(", ")[0])
    assert diagnose(edited(model, slopes=0.3 * said, intercepts=0.3 * said), points(model)).healthy


@pytest.mark.parametrize("many_heads", [False, True])
@pytest.mark.parametrize(("name", "factor"), [("stages.0.0.gain", f) for f in (-1.0, 0.5, 1.01, 1.05, 1.2, 2.0)]
                         + [("stages.1.query", f) for f in (-1.0, 0.0, 0.1, 1.2)]
                         + [("stages.1.value", f) for f in (-1.0, 1.1)])  # fmt: skip
def test_of_an_edited_theorem_too_a_beta_is_advised_only_if_it_restores_the_bound(name, factor, many_heads: bool):
    w, t, x = at(torch.linspace(-1.5, 1.5, 301, dtype=torch.float64), 3)
    model = multi_head(w, t, -1, 1, 40) if many_heads else single_head(w, t, -1, 1, 40)
    with torch.no_grad():
        model.get_parameter(name).mul_(factor)
    found = diagnose(model, x)
    assert found.edited
    assert "its numbers are not those that were built" in str(found)
    for finding in found.findings:
        if "Multiply the scores" in finding.advice:
            assert name == "stages.1.query"
            said = float(finding.advice.split(" by ")[1].split(":")[0])
            assert diagnose(model, x, score_factor=said).healthy
        else:
            assert finding.kind == EDITED
            assert "the stored numbers are not those built" in finding.evidence


def test_numbers_that_are_those_built_are_not_said_to_be_others():
    """u = w·x + t is a sum of terms so large that they leave nothing of it."""
    model = single_head([[1.0, 1.0]], [0.0], -1, 1, 64, dtype=torch.float64)
    x = torch.linspace(-1, 1, 301, dtype=torch.float64).reshape(-1, 1, 1) + torch.tensor([1e15, -1e15]).double()
    found = diagnose(model, x)
    assert not found.edited
    assert found.findings
    assert set(kinds(found)) == {PRECISION}
    assert all("the stored numbers are those built" in finding.evidence for finding in found.findings)
    assert diagnose(model, x * (0.4 * model.summand_limit / 1e15)).healthy


@pytest.mark.parametrize(
    ("make", "choice"),
    [(two_layer, {}), (two_layer, {"columns": "own"}), (two_layer, {"columns": "own", "shifts": 2}),
     (attention_then_softmax, {}), (attention_then_softmax, {"columns": "own"})],
)  # fmt: skip
def test_values_of_a_known_function_that_were_changed_are_found(make, choice):
    model = make(["x1*x2", "x3", "x1"], 3, 1, levels=3, **choice)
    x = torch.rand(100, 3, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert diagnose(model, x).healthy
    with torch.no_grad():
        (model.layer2.value if choice and make is two_layer else model.lookup.values).mul_(1.5)
    (finding,) = diagnose(model, x).findings
    assert finding.kind == EDITED
    assert "the stored numbers are not those built" in finding.evidence


def test_what_an_edited_model_keeps_is_not_called_proved():
    model = edited(compiled("smooth"), constants=1 + 1e-9)
    found = diagnose(model, points(model))
    assert found.healthy
    assert found.edited
    assert "not proved" in str(found)
    assert not diagnose(compiled("smooth"), points(model)).edited


# boundary artefacts


def test_heads_that_leak_into_each_other_fail_at_their_seams():
    found = diagnose(*many(gap=2.0))
    assert kinds(found) == [BOUNDARY]
    assert "seams" in found.findings[0].evidence
    assert f"{beta_for(1e-6, 66, 2 / 31):.6g}" in found.findings[0].advice
    assert diagnose(*many()).healthy


def test_the_same_leak_near_zero_stays_within_the_bound():
    assert BOUNDARY not in kinds(diagnose(*many(gap=2.0, low=-0.1, high=1.9)))


def test_an_end_anchor_that_was_lost_fails_at_the_end():
    model, x = ramp()
    with torch.no_grad():
        model.lift[-1].rows[0, -1] = 0.0
    found = diagnose(model, x)
    assert kinds(found) == [BOUNDARY]
    assert "ends" in found.findings[0].evidence


@pytest.mark.parametrize("name", ["smooth", "nearest"])
def test_inputs_beyond_the_domain_are_named_with_the_domain_to_compile_on(name: str):
    model = compiled(name)
    found = diagnose(model, 1.5 * points(model))
    assert kinds(found) == [BOUNDARY]
    assert found.findings[0].where == "outside the domain"
    assert "1.5" in found.findings[0].advice


def test_every_real_number_is_inside_the_real_line():
    for name in ("gated", "kinked"):
        assert diagnose(compiled(name), 1e4 * points(compiled(name))).healthy


def test_a_gate_that_is_not_steep_fails_where_pieces_meet():
    model = compiled("kinked")
    found = diagnose(model, points(model), score_factor=1e-3)
    assert kinds(found) == [BOUNDARY]
    assert "seams" in found.findings[0].evidence
    assert kinds(diagnose(model, points(model), score_factor=1e-6)) == [UNIFORM], "until it is one half everywhere"


@given(st.integers(20, 200), st.floats(0.01, 0.4), st.floats(1e-6, 1.0))
def test_an_even_error_is_never_concentrated(count: int, share: float, size: float):
    band = torch.arange(count) < share * count
    error = torch.full((count,), size, dtype=torch.float64)
    assert not concentrated(error, error / 2, band)
    assert concentrated(torch.where(band, error, error / 100), error / 2, band) == bool(band.any())


# underflow or saturation


@pytest.mark.parametrize(("dtype", "said"), [(torch.float16, "NaN or infinite"), ("bfloat16", "bfloat16 rounds")])
def test_many_anchors_do_not_fit_a_narrow_dtype(dtype, said: str):
    model, x = ramp(256)
    found = diagnose(model, x, dtype=dtype)
    assert kinds(found) == [PRECISION]
    assert said in found.findings[0].evidence
    assert "float32" in found.findings[0].advice
    assert "anchors on this range" in found.findings[0].advice
    assert diagnose(model, x, dtype=torch.float32).healthy


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_number_of_anchors_that_is_advised_fits(dtype: torch.dtype):
    advice = diagnose(*ramp(256), dtype=dtype).findings[0].advice
    fits = int(advice.split("holds ")[-1].split()[0])
    assert fits >= 4
    w, t, x = at(torch.linspace(-3, 4, 301, dtype=torch.float64), 1)
    assert diagnose(single_head(w, t, -2, 3, fits), x, dtype=dtype).healthy


def test_a_tolerance_that_float32_does_not_hold_is_found():
    model = ah.compile("silu(x)", tol=1e-12)
    found = diagnose(model, points(model), dtype=torch.float32)
    assert kinds(found) == [PRECISION]
    assert "Use float64" in found.findings[0].advice
    assert diagnose(compiled("kinked"), points(compiled("kinked")), dtype=torch.float32).healthy


def test_scores_that_overflow_float64_are_found():
    model, x = ramp()
    found = diagnose(model, x, score_factor=1e306)
    assert kinds(found) == [PRECISION]
    assert math.isnan(found.error)
    assert "lower β" in found.findings[0].advice


def test_a_stored_number_that_is_none_is_found():
    model = copy.deepcopy(compiled("smooth"))
    with torch.no_grad():
        model.head.constants[1] = math.nan
    found = diagnose(model, points(model))
    assert kinds(found) == [PRECISION]
    assert "stored numbers are finite" in found.findings[0].advice


def test_a_dtype_and_a_beta_that_both_fail_are_two_findings():
    w, t, x = at(torch.linspace(-3, 4, 301, dtype=torch.float64), 2)
    model = single_head(w, t, -2, 3, 1024)
    assert kinds(diagnose(model, x, dtype=torch.float16, score_factor=0.1)) == [PRECISION, DRIFT]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_beta_is_advised_with_a_dtype_in_which_it_restores_the_bound(dtype: torch.dtype):
    w, t, x = at(torch.linspace(-1, 49, 300, dtype=torch.float64), 5)
    model = multi_head(w, t, -1, 49, 67, beta=0.1)
    (finding,) = diagnose(model, x, dtype=dtype).findings
    said = float(finding.advice.split(" by ")[1].split(":")[0])
    advised = finding.advice.split("; use ")[1].split(",")[0] if "; use " in finding.advice else dtype
    assert (advised == dtype) == diagnose(model, x, dtype=dtype, score_factor=said).healthy
    assert diagnose(model, x, dtype=advised, score_factor=said).healthy


# networks


@functools.cache
def _network(dtype: torch.dtype) -> ah.CompiledModel:
    return ah.compile("sin(3*x*y) + exp(-x**2 + y/2)", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-3, dtype=dtype)


def network(dtype: torch.dtype = torch.float64) -> ah.CompiledModel:
    return _network(dtype)


def square(count: int = 300, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return (2 * torch.rand(count, 2, dtype=torch.float64, generator=generator) - 1).to(dtype)


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_network_is_healthy_in_its_dtype_and_domain(dtype: torch.dtype):
    model = network(dtype)
    found = diagnose(model, square(dtype=dtype))
    assert found.healthy, str(found)
    assert found.examined == 300
    assert kinds(diagnose(model, square(dtype=dtype), score_factor=0.3)) == [UNIFORM]
    assert kinds(diagnose(model, square(dtype=dtype), dtype="float16")) == [PRECISION]
    assert kinds(diagnose(model, 2 * square(dtype=dtype))) == [BOUNDARY]


@pytest.mark.heavy
def test_the_head_that_was_edited_is_named_and_no_other():
    model = copy.deepcopy(network(torch.float32))
    head = model.network.layered.sequence[1].parts[0].head
    with torch.no_grad():
        head.slopes.mul_(0.25)
        head.intercepts.mul_(0.25)
    found = diagnose(model, square(dtype=torch.float32))
    assert kinds(found) == [UNIFORM]
    assert found.findings[0].where == "layer 1, node sin(3*x*y)"
    assert "by 4," in found.findings[0].advice


def test_a_map_to_the_heads_that_was_edited_is_not_blamed_on_their_scores():
    model = ah.compile("x*y", (-1, 1), tol=1e-5)
    with torch.no_grad():
        model.network.layered.sequence[0].rows.weight.mul_(1.01)
    assert "its scores are those built" in diagnose(model, square()).findings[0].evidence


@functools.cache
def bells() -> ah.CompiledModel:
    return ah.compile("exp(-x**2)*sin(4*y)", {"x": (-2, 2), "y": (-1, 1)}, tol=1e-5)


def test_a_dtype_that_is_advised_holds_the_whole_network():
    x = square() * torch.tensor([2.0, 1.0], dtype=torch.float64)
    assert not diagnose(bells(), x, dtype="float32").healthy
    assert diagnose(bells(), x, dtype="float16").findings[0].advice.startswith("Use float64")


def test_every_head_that_fails_by_itself_is_named_the_worst_first():
    found = diagnose(bells(), square() * torch.tensor([2.0, 1.0], dtype=torch.float64), score_factor=1e6)
    (finding,) = found.findings
    assert finding.where == "layer 1, node exp(-x**2)*sin(4*y); layer 0, node exp(-x**2)"
    moved = float(finding.evidence.split("moves the outputs by ")[1].rstrip("."))
    assert 0.5 * found.error < moved < 2 * found.error


@pytest.mark.heavy
def test_an_affine_map_that_was_edited_is_not_blamed_on_a_head():
    model = copy.deepcopy(network())
    with torch.no_grad():
        model.network.layered.last.bias.add_(0.1)
    found = diagnose(model, square())
    assert [(finding.kind, finding.where) for finding in found.findings] == [(EDITED, "the last affine map")]


def test_maxima_and_kinks_in_a_network():
    model = ah.compile("max(x, y, x + y/2) + relu(x - y)", (-1, 1), tol=1e-3)
    assert diagnose(model, square()).healthy
    found = diagnose(model, square(), score_factor=0.01)
    assert found.findings
    assert set(kinds(found)) <= {BOUNDARY, UNIFORM}


@pytest.mark.heavy
def test_a_perceptron_is_healthy_until_its_scores_shrink():
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3)).double()
    model = ah.compile(mlp, (-1, 1), tol=1e-4)
    x = 2 * torch.rand(400, 8, dtype=torch.float64) - 1
    assert diagnose(model, x).healthy
    assert kinds(diagnose(model, x, score_factor=0.1)) == [UNIFORM]
    assert kinds(diagnose(model, x, dtype=torch.bfloat16)) == [PRECISION]


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_grid_of_keys(dtype: torch.dtype):
    model = ah.compile("sin(x*y) + y", (-1, 1), tol=5e-2, method="grid", dtype=dtype)
    x = square(dtype=dtype)
    assert diagnose(model, x).healthy
    assert kinds(diagnose(model, x, score_factor=0.1)) == [UNIFORM]
    assert kinds(diagnose(model, x, score_factor=30.0)) == [DRIFT]
    assert kinds(diagnose(model, 2 * x)) == [BOUNDARY]


def opaque(x: float, y: float) -> float:
    return math.sin(x) * y


@pytest.mark.heavy
@pytest.mark.parametrize("method", ["grid", "two_layer"])
def test_a_target_that_cannot_be_looked_into(method: str, tmp_path):
    model = ah.compile(opaque, (0, 1), tol=0.3, lipschitz=1.5, method=method)
    model.save(tmp_path / "model.safetensors")
    assert diagnose_file(tmp_path / "model.safetensors", points=100).healthy
    x = torch.rand(100, 2, dtype=torch.float64)
    assert not diagnose(model, x, score_factor=0.02).healthy
    assert kinds(diagnose(model, 2 * x)) == [BOUNDARY], "nothing is promised there"


# what is said, and to whom


def test_a_diagnosis_survives_json():
    for found in (diagnose(*ramp()), diagnose(*many(gap=2.0)), diagnose(*ramp(256), dtype=torch.float16)):
        record = json.loads(json.dumps(found.as_dict(), allow_nan=False))
        assert record == found.as_dict()
        assert record["healthy"] == found.healthy
        assert [f["kind"] for f in record["findings"]] == kinds(found)
        assert set(kinds(found)) <= set(KINDS)


def test_a_diagnosis_reads_as_a_few_lines():
    text = str(diagnose(*many(gap=2.0)))
    assert text.startswith("1 finding: error ")
    assert "\n- boundary artefacts (worst in head " in text
    assert "scores times 0.5" in str(diagnose(*ramp(), score_factor=0.5))


def test_the_model_is_left_as_it_was():
    model, x = ramp()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    diagnose(model, x, dtype=torch.float16, score_factor=0.1)
    assert all(torch.equal(before[name], p) and p.dtype == before[name].dtype for name, p in model.state_dict().items())
    assert not model.edited
    assert model.bound > 0


@pytest.mark.parametrize("kind", ["ramps", "head", "network"])
def test_no_attribute_of_the_model_or_of_its_literal_form_is_replaced(kind: str, monkeypatch):
    """Also where the diagnosis fails half way."""
    model, x = {
        "ramps": ramp,
        "head": lambda: (compiled("gated"), torch.linspace(-1, 1, 50, dtype=torch.float64)),
        "network": lambda: (network(), torch.rand(20, 2, dtype=torch.float64)),
    }[kind]()
    model(x)  # which notes whether its numbers are those that it was built with
    literal = model.literal()
    kept = [(m, dict(vars(m)), type(m)) for root in (model, literal) for m in root.modules()]
    monkeypatch.setattr(type(model), "literal", lambda self: literal)
    diagnose(model, x, dtype=torch.float16)
    monkeypatch.setattr(examined, "_scores", fail)
    with pytest.raises(RuntimeError, match="half way"):
        diagnose(model, x)
    for module, attributes, own in kept:
        assert type(module) is own
        assert vars(module).keys() == attributes.keys()
        assert all(vars(module)[name] == value for name, value in attributes.items())


def fail(module: torch.nn.Module) -> tuple[str, ...]:
    raise RuntimeError("half way")


@pytest.mark.parametrize("name", ["gated", "smooth"])
def test_files_are_diagnosed_over_their_domain(name: str, tmp_path):
    path = tmp_path / "model.safetensors"
    compiled(name).save(path)
    found = diagnose_file(path, points=101)
    assert found.healthy
    assert found.examined == 101
    assert kinds(diagnose_file(path, score_factor=30.0)) == [DRIFT]
    assert kinds(diagnose_file(path, dtype="float16")) == [PRECISION]


def test_files_of_several_variables_have_corners_among_their_points(tmp_path):
    network().save(tmp_path / "model.safetensors")
    found = diagnose_file(tmp_path / "model.safetensors", points=40)
    assert found.healthy
    assert found.examined == 40 + 10 + 4 + 4


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (torch.zeros(0, dtype=torch.float64), "x is empty"),
        (torch.tensor([0.0, math.nan], dtype=torch.float64), "NaN or infinite"),
        (torch.zeros(3), "float32"),
        (torch.zeros(3, dtype=torch.int64), "int64"),
        ([0.0], "torch tensor"),
    ],
)
def test_inputs_that_cannot_be_looked_at_are_refused(x, said: str):
    with pytest.raises(ah.InputError, match=said):
        diagnose(compiled("smooth"), x)


def test_shapes_models_dtypes_and_betas_that_cannot_be_are_refused():
    model, x = ramp()
    with pytest.raises(ah.ShapeError, match="takes"):
        diagnose(model, x[:, :1])
    with pytest.raises(ah.ShapeError, match="takes"):
        diagnose(network(), x)
    with pytest.raises(ah.InputError, match=r"Linear cannot be diagnosed.*single_head"):
        diagnose(nn.Linear(1, 1), x)
    for dtype in (torch.int64, "float8", 3):
        with pytest.raises(ah.PrecisionError, match="one of float64, float32, bfloat16, float16"):
            diagnose(model, x, dtype=dtype)
    for beta in (0, -1.0, math.nan, math.inf, "hot", True):
        with pytest.raises(ah.InputError, match="positive finite number"):
            diagnose(model, x, score_factor=beta)
    with pytest.raises(ah.InputError, match="points=1"):
        diagnose_file("nowhere.safetensors", points=1)
    with pytest.raises(ah.FileError):
        diagnose_file("nowhere.safetensors")


def test_queries_beyond_the_anchors_are_judged_by_what_a_beta_mends() -> None:
    head = ah.theorems.single_head([[1.0]], [0.0], -1, 1, anchors=64, beta=1.0, dtype=torch.float64)
    (finding,) = diagnose(head, torch.linspace(1.2, 5, 301, dtype=torch.float64).reshape(-1, 1, 1)).findings
    assert finding.kind == "uniform attention"
    assert "Multiply the scores" in finding.advice


def test_dtype_that_is_advised_is_one_that_the_library_builds() -> None:
    u = torch.linspace(-1, 1, 1001, dtype=torch.float64).reshape(-1, 1, 1)
    head = ah.theorems.single_head([[1.0]], [0.0], -1, 1, anchors=64, dtype=torch.float64)
    (finding,) = diagnose(head, u, dtype="bfloat16").findings
    assert finding.advice.startswith("Use float32")
    assert head.to(torch.float32).dtype == torch.float32


def test_a_blend_that_keeps_the_bound_may_be_kept() -> None:
    head = ah.theorems.single_head([[1.0]], [0.0], -1, 1, anchors=64, beta=3160.0, dtype=torch.float64)
    found = diagnose(head, torch.linspace(-1, 1, 1001, dtype=torch.float64).reshape(-1, 1, 1))
    assert found.error < found.bound
    assert "keep β if a blend" in found.findings[0].advice


@pytest.mark.parametrize("many_heads", [False, True])
def test_bound_of_a_theorem_is_its_own_and_what_it_is_held_to_is_called_so(many_heads: bool) -> None:
    if many_heads:
        head: ah.theorems.Construction = ah.theorems.multi_head([[1.0]] * 5, [0.0] * 5, -1, 1, heads=6, beta=200.0)
    else:
        head = ah.theorems.single_head([[1.0]], [0.0], -1, 1, anchors=32, beta=1000.0)
    u = torch.linspace(-1, 1, 501, dtype=torch.float64).reshape(-1, 1, 1).expand(-1, head.tokens, 1)
    found = diagnose(head, u)
    assert found.bound == head.bound
    for finding in found.findings:
        text = finding.evidence + finding.advice
        assert "keeps the bound at the derived β" in text or ", bound at the derived β" in text or "bound" not in text


def test_what_a_sampled_function_is_compared_with_is_said() -> None:
    network = ah.theorems.two_layer(lambda X: X.sin(), tokens=1, features=2, levels=8)
    x = torch.rand(50, 1, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = diagnose(network, x)
    assert "not with the function" in str(found)
    assert found.as_dict()["against"] == found.against != "the target"
