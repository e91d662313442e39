"""single_head and multi_head: the theorem's bound holds, at the theorem's rate, with the theorem's shapes."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from ramp_cases import RampCase, at, ramps

import anchorhead as ah
from anchorhead.theorems import multi_head, single_head
from anchorhead.theorems.portrait import view


def sup_error(model, x):
    return (model(x) - model.exact(x)).abs().max().item()


def build_or_skip(build, *args, **kwargs):
    """Where the plan says that the dtype cannot hold the head, refusing is right."""
    try:
        return build(*args, **kwargs)
    except ah.PrecisionError:
        assume(args[0].dtype != torch.float64)
        assume(False)


@given(ramps(), st.integers(1, 400), st.booleans(), st.sampled_from([1e-2, 1e-6, 1e-9]))
def test_single_head_keeps_its_bound(case: RampCase, extra: int, causal: bool, selection_error: float):
    p = max(2, extra if causal else len(case.bias) + extra)
    model = build_or_skip(
        single_head, case.weights, case.bias, case.low, case.high, p, causal=causal, selection_error=selection_error
    )
    assert sup_error(model, case.inputs) <= model.bound


@given(ramps(min_tokens=3), st.integers(1, 40), st.sampled_from([1e-2, 1e-6, 1e-9]))
def test_multi_head_keeps_its_bound(case: RampCase, heads: int, selection_error: float):
    model = build_or_skip(
        multi_head, case.weights, case.bias, case.low, case.high, heads, selection_error=selection_error
    )
    assert sup_error(model, case.inputs) <= model.bound
    literal = model.literal()(case.inputs)
    assert (literal - model.exact(case.inputs)).abs().max().item() <= model.bound


@given(ramps(dtype=torch.float64), st.integers(2, 40), st.floats(1e-3, 1e3), st.booleans())
def test_bound_holds_at_every_beta(case: RampCase, extra: int, beta: float, many: bool):
    if many and len(case.bias) >= 3:
        model = multi_head(case.weights, case.bias, case.low, case.high, extra, beta=beta)
    else:
        p = len(case.bias) + extra
        model = single_head(case.weights, case.bias, case.low, case.high, p, beta=beta)
    assert model.beta == beta
    dense = torch.linspace(case.low - 3, case.high + 3, 400, dtype=torch.float64)
    w, t, x = at(dense, 3)
    probe = (
        multi_head(w, t, case.low, case.high, extra, beta=beta)
        if many
        else single_head(w, t, case.low, case.high, 3 + extra, beta=beta)
    )
    assert sup_error(model, case.inputs) <= model.bound
    assert sup_error(probe, x) <= probe.bound


@pytest.mark.parametrize("heads", [2, 5, 16])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_heads_meet_without_a_step(heads: int, dtype: torch.dtype):
    """Between the last anchor of one head and the first of the next the two shares sum to one blend."""
    n, low, high = 6, -2.0, 3.0
    step = (high - low) / ((n - 2) * heads + 1)
    seams = low + step * ((n - 2) * torch.arange(1, heads, dtype=torch.float64) + 0.5)
    offsets = step * torch.linspace(-1, 1, 401, dtype=torch.float64)
    u = (seams[:, None] + offsets).flatten().to(dtype)
    w, t, x = at(u, n)
    model = multi_head(w, t, low, high, heads)
    assert sup_error(model, x) <= model.bound
    out = model(x)[:, 0, 0].reshape(len(seams), -1)
    centre = low + step * ((n - 2) * torch.arange(heads - 1, dtype=torch.float64) + 1.5)  # the same blend within a head
    w, t, y = at((centre[:, None] + offsets).flatten().to(dtype), n)
    reference = model(y)[:, 0, 0].reshape(len(seams), -1) - centre[:, None] + seams[:, None]
    gap = model.beta * step**2  # scores off by η move the blend by (η/gap) of a step (precision.py)
    rounding = torch.finfo(dtype).eps * (8 * model.resources.logit_range / gap * step + 64 * high)
    assert rounding < 0.1 * step
    assert (out - reference).abs().max() <= 9 * model.selection_error + rounding
    jumps = out.diff(dim=1)
    assert jumps.min() >= -9 * model.selection_error - rounding, "the output must rise through a seam"
    assert jumps.max() <= 0.2 * step, "and without a jump"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_error_falls_like_one_over_anchors(dtype: torch.dtype):
    u = torch.linspace(-2.5, 3.5, 60001, dtype=torch.float64).to(dtype)
    sizes = [32, 64, 128, 256, 512, 1024]
    w, t, x = at(u, 1)
    errors = [sup_error(single_head(w, t, -2, 3, p), x) for p in sizes]
    assert abs(np.polyfit(np.log(sizes), np.log(errors), 1)[0] + 1) < 0.05
    heads = [4, 8, 16, 32, 64, 128]
    w, t, x = at(u[::10], 10)
    errors = [sup_error(multi_head(w, t, -2, 3, h), x) for h in heads]
    assert abs(np.polyfit(np.log(heads), np.log(errors), 1)[0] + 1) < 0.05


@pytest.mark.parametrize("seed", [1234, 1235, 1236])
def test_mean_square_error_at_the_papers_setting(seed: int):
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(50, 10, generator=generator, dtype=torch.float64)
    t = torch.randn(50, generator=generator, dtype=torch.float64)
    x = 10 * torch.rand(200, 50, 10, generator=generator, dtype=torch.float64) - 5
    limit = 1.2 * 50**2 / (12 * 60**2)
    models = [single_head(w, t, -25, 25, 60)] + [multi_head(w, t, -25, 25, h) for h in (1, 2, 4, 8, 16)]
    for model in models:
        assert (model(x) - model.exact(x)).square().mean() < limit


def test_shapes_are_the_papers():
    w, t = torch.randn(7, 4, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    x = torch.randn(2, 3, 7, 4, dtype=torch.float64)
    model = single_head(w, t, -1, 1, 20, output_features=3)
    assert model.lift(x).shape == (2, 3, 20, 2 * 4 + 3 + 2)
    assert model(x).shape == model.exact(x).shape == (2, 3, 7, 3)
    assert {k: tuple(v.shape) for k, v in model.matrices().items()} == {
        "W_Q": (2, 13),
        "W_K": (2, 13),
        "W_V": (3, 13),
        "W_O": (20, 7),
        "lift.gain": (7, 4),
        "lift.bias": (7, 4),
        "lift.columns": (13, 4),
        "lift.rows": (20, 9),
    }
    assert single_head(w, t, -1, 1, 5, causal=True).lift(x).shape == (2, 3, 12, 2 * 4 + 1 + 2)
    many = multi_head(w, t, -1, 1, 6)
    assert many.lift(x).shape == (2, 3, 7, 4 + 7)
    assert many.matrices()["W_V"].shape == (6, 1, 11)


@given(st.floats(-4, 5), st.integers(2, 30))
def test_agrees_with_fifty_digits(u: float, p: int):
    """The head against its formula in mpmath: anchors, squared distances, exponentials."""
    w, t, x = at(torch.tensor([u], dtype=torch.float64), 1)
    model = single_head(w, t, -2, 3, p, selection_error=1e-3)
    with mpmath.workdps(50):
        anchors = [mpmath.mpf(-2) + mpmath.mpf(5) * k / (p - 1) for k in range(p)]
        best = min((u - a) ** 2 for a in anchors)
        weights = [mpmath.exp(-mpmath.mpf(model.beta) * ((u - a) ** 2 - best)) for a in anchors]
        reference = sum(w * a for w, a in zip(weights, anchors, strict=True)) / sum(weights)
    assert abs(float(reference) - model(x).item()) < 1e-10


def test_beta_is_the_derived_one():
    w, t = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    model = single_head(w, t, -2, 3, 11)
    assert math.isclose(model.beta, math.log(10 / 1e-6) / 0.25)
    assert math.isclose(model.selection_error, 1e-6)
    assert math.isclose(model.bound, 3e-6 + 5 / 11)


@given(ramps(dtype=torch.float64), st.integers(1, 30), st.sampled_from(["constant", "halves", "alternating"]))
def test_output_rows_follow_the_anchors(case: RampCase, extra: int, kind: str):
    p = len(case.bias) + 1 + extra
    rows = {"constant": lambda k: 2, "halves": lambda k: int(k >= p // 2), "alternating": lambda k: k % 3}[kind]
    model = single_head(case.weights, case.bias, case.low, case.high, p, output_features=3, output_row=rows)
    plain = single_head(case.weights, case.bias, case.low, case.high, p)
    out = model(case.inputs)
    assert (out.sum(-1) - plain(case.inputs)[..., 0]).abs().max() < 1e-9
    assert (out.sum(-1) - plain.exact(case.inputs)[..., 0]).abs().max() <= model.sum_bound
    assert (out - model.exact(case.inputs)).abs().max() <= model.bound
    if kind == "constant":
        assert out[..., :2].abs().max() == 0
        assert model.bound == model.sum_bound == plain.bound


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("offset", [10.0, 1000.0, 1e5, 1e7])
def test_large_biases_are_held_or_refused(many: bool, offset: float):
    """u = x - offset loses digits of x; where that exceeds the bound's room, float32 is refused."""
    n, low, high = 3, 0.0, 0.01
    weights, bias = torch.ones(n, 1), torch.full((n,), -offset)
    try:
        model = multi_head(weights, bias, low, high, 100) if many else single_head(weights, bias, low, high, 300)
    except ah.PrecisionError:
        assert offset >= 1000
        return
    x = (offset + torch.linspace(-0.02, 0.03, 2001, dtype=torch.float64)).float()[:, None, None].expand(-1, n, 1)
    assert sup_error(model, x.contiguous()) <= model.bound


def test_narrower_dtype_is_refused_where_it_cannot_hold():
    w, t, x = at(torch.linspace(-3, 4, 50, dtype=torch.float64), 3)
    with pytest.raises(ah.PrecisionError):
        single_head(w, t, -25, 25, 16384).float()
    model = single_head(w, t, -2, 3, 64).float()
    assert sup_error(model, x.float()) <= model.bound


@pytest.mark.parametrize("many", [False, True])
def test_edited_weights_are_what_is_evaluated(many: bool):
    w, t, x = at(torch.linspace(-3, 4, 50, dtype=torch.float64), 4)
    model = multi_head(w, t, -2, 3, 3) if many else single_head(w, t, -2, 3, 9)
    with torch.no_grad():
        model.attention.key[0].mul_(1.1)
        model.attention.query[0, 1, 0] = 0.5
    torch.testing.assert_close(model(x), model.literal()(x))
    with pytest.raises(ah.AnchorheadError, match="changed"):
        _ = model.bound


def test_empty_batch():
    w, t, x = at(torch.zeros(0, dtype=torch.float64), 3)
    assert single_head(w, t, -2, 3, 9)(x).shape == multi_head(w, t, -2, 3, 2)(x).shape == (0, 3, 1)
    assert ah.theorems.two_layer(torch.sin, 3, 1, 3)(x).shape == (0, 3, 1)


def test_gradient_reaches_the_input():
    w, t, x = at(torch.tensor([0.1, 0.4], dtype=torch.float64), 1)
    model = single_head(w, t, -2, 3, 30, beta=50.0)
    x.requires_grad_()
    assert torch.autograd.gradcheck(model, x)


@pytest.mark.parametrize("causal", [False, True])
def test_nan_gives_nan(causal: bool):
    w, t, x = at(torch.tensor([0.1, math.nan], dtype=torch.float64), 2)
    out = single_head(w, t, -2, 3, 30, causal=causal)(x)
    assert out[0].isfinite().all()
    assert out[1].isnan().all()
    w, t, x = at(torch.tensor([math.nan], dtype=torch.float64), 3)
    assert multi_head(w, t, -2, 3, 2)(x).isnan().all()


@pytest.mark.parametrize("choice", [{"beta": 5000.0}, {"selection_error": 1e-100}, {}])
def test_nothing_overflows_within_the_limit_of_the_bound(choice):
    head = ah.theorems.single_head([[1.0]], [0.0], 0, 1, anchors=8, dtype=torch.float16, **choice)
    x = torch.linspace(-0.99, 0.99, 401).mul(head.summand_limit - 0.5).half().reshape(-1, 1, 1)
    for network in (head, head.literal()):
        assert ((network(x) - head.exact(x)).abs().double() <= head.bound).all()


def test_a_range_is_printed_with_the_digits_that_it_takes():
    model = single_head(torch.ones(2, 1), torch.zeros(2), 1e12, 1e12 + 1, 5, dtype=torch.float64)
    assert "1e+12, 1000000000001.0)" in str(model)
    assert "1e+12, 1000000000001.0)" in view(model).title
