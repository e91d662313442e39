"""Heads of many keys: far keys are far, what is proved without them holds, and the paper's head is universal."""

import functools
import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from second_checker import check

import anchorhead as ah
from anchorhead.enclosure.precision import precision
from anchorhead.expression.parse import parse
from anchorhead.head.head import Head
from anchorhead.head.module import HeadModule
from anchorhead.head.near_keys import GAP
from anchorhead.head.windowed import windowed
from anchorhead.proof.approximation import _by_series, box_error, point_error
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.proof.rounding import Rounding
from anchorhead.proof.rounding_on import rounding_on

UNIT = (-1, 1)


def staircase(keys, sharpness, values, dtype="float64", centre=0.0):
    """Anchors on [centre - 1, centre + 1] with scores -sharpness·(distance in steps)²."""
    anchors = np.linspace(-1, 1, keys)
    beta = sharpness / (2 / (keys - 1)) ** 2
    slopes = 2 * beta * anchors
    intercepts = -beta * anchors**2 - slopes * centre
    return Head.of(slopes=slopes, intercepts=intercepts, constants=values(anchors + centre), horner=False).rounded(
        dtype
    )


@st.composite
def large_heads(draw, dtypes=("float64",)):
    """Staircases, sharp and blunt; lines at random; pieces joined by gates."""
    random = np.random.default_rng(draw(st.integers(0, 2**31)))
    dtype, keys = draw(st.sampled_from(dtypes)), draw(st.integers(65, 160))
    kind = draw(st.sampled_from(["staircase", "lines", "pieces"]))
    if kind == "staircase":
        values = draw(st.sampled_from([np.sin, lambda u: 3 * u, lambda u: random.normal(size=len(u))]))
        return staircase(keys, draw(st.sampled_from([0.01, 0.5, 4.0, 20.0, 60.0])), values, dtype, random.normal())
    scale = 10.0 ** draw(st.integers(-1, 4))
    slopes, intercepts, constants = random.normal(size=(3, keys)) * [[scale], [scale / 4], [1]]
    gains = random.normal(size=keys) * draw(st.sampled_from([0.0, 1.0]))
    if kind == "lines":
        found = Head.of(slopes=slopes, intercepts=intercepts, constants=constants, gains=gains, horner=False)
        return found.rounded(dtype)
    sizes = [5] * (keys // 5) + ([keys % 5] if keys % 5 else [])
    joints = np.linspace(-1, 1, len(sizes) - 1)
    steep = draw(st.sampled_from([1e2, 1e4]))
    gates = {"gate_slopes": steep * np.arange(len(sizes)), "gate_levels": -steep * np.cumsum([0, *joints])}
    found = Head.of(slopes=slopes / scale, intercepts=intercepts / scale, constants=constants, gains=gains, sizes=sizes,
                    horner=False, **gates)  # fmt: skip
    return found.rounded(dtype)


def exactly(head, u):
    """h(u) in 60 digits."""
    with mp.workdps(60):
        u, gates = mp.mpf(u), head.gates
        scores = [mp.mpf(s) * u + mp.mpf(c) + mp.mpf(g) * u + mp.mpf(b) for s, c, (g, b) in
                  zip(head.slopes, head.intercepts, gates, strict=True)]  # fmt: skip
        top = max(scores)
        weights = [mp.exp(score - top) for score in scores]
        values = [mp.mpf(v) + mp.mpf(g) * u for v, g in zip(head.constants, head.gains, strict=True)]
        return mp.fdot(weights, values) / mp.fsum(weights)


INTERVALS = st.tuples(st.floats(-3, 3), st.floats(-12, 1)).map(lambda p: (p[0], p[0] + 10 ** p[1]))


@given(large_heads(), INTERVALS, st.floats(0, 1))
def test_far_keys_are_below_the_gap_everywhere_on_the_interval(head, interval, share):
    low, high = interval
    near = set(head.near.of(low, high))
    assert near
    for u in (low, high, low + share * (high - low)):
        u = Fraction(min(max(u, low), high))
        scores = [Fraction(s) * u + Fraction(c) + Fraction(g) * u + Fraction(b) for s, c, (g, b) in
                  zip(head.slopes, head.intercepts, head.gates, strict=True)]  # fmt: skip
        top = max(scores)
        assert all(k in near or top - score >= GAP for k, score in enumerate(scores))


@pytest.mark.parametrize("level", [0.0, 1e19, 1e305])
def test_where_floats_cannot_tell_scores_apart_no_key_is_far(level):
    head = Head.of(slopes=[100.0 * k for k in range(80)], intercepts=[level] * 80, constants=[1.0] * 80, horner=False)
    near = head.near.of(1.0, 1.0)
    assert len(near) == 80 if level else len(near) < 5


@given(large_heads(), INTERVALS, st.floats(0, 1))
def test_box_bounds_of_many_keys_hold(head, interval, share):
    low, high = interval
    claim = HeadClaim(parse("sin(x)").node, "x", low, high, head)
    with precision():
        bound = box_error(claim, low, high)
        place = min(max(low + share * (high - low), low), high)
        least, most = point_error(claim, place)
    with mp.workdps(60):
        error = abs(mp.sin(mp.mpf(place)) - exactly(head, place))
    assert error <= bound
    assert least <= error <= most


STEPS = st.tuples(st.floats(-1, 1), st.floats(0, 6)).map(lambda p: (p[0], p[0] + p[1] * 2 / 79))


def steps_at_random(seed, dtype="float64"):
    """A staircase of 80 keys whose steps go up and down, or only up."""
    random = np.random.default_rng(seed)
    values = random.normal(size=80) if seed % 2 else np.cumsum(random.random(80))
    return staircase(80, 20.0, lambda u: values, dtype)


@given(st.integers(0, 1000), STEPS, st.lists(st.floats(0, 1), min_size=6, max_size=6))
def test_the_range_of_a_staircase_holds_its_values(seed, interval, shares):
    head, (low, high) = steps_at_random(seed), interval
    with precision():
        found = head.balls.over(low, high, head.balls.near(low, high))
    values = [exactly(head, min(max(low + s * (high - low), low), high)) for s in (0, 1, *shares)]
    assert float(found.lower()) - 1e-15 <= min(values)
    assert max(values) <= float(found.upper()) + 1e-15
    if seed % 2 == 0:  # and is no wider, where it rises
        assert float(found.upper() - found.lower()) <= (max(values) - min(values)) * (1 + 1e-8) + 1e-14


@settings(max_examples=200)
@given(st.integers(0, 1000), STEPS, st.floats(0, 1))
def test_rounding_over_many_steps_holds(seed, interval, share):
    head, (low, high) = steps_at_random(seed, "float32"), (float(np.float32(end)) for end in interval)
    rounding = Rounding(HeadClaim(parse("sin(x)").node, "x", low, high, head))
    rough, bound = rounding.on_box(low, high, math.inf), rounding.on_box(low, high)
    turns = (np.arange(79) + 0.5) * 2 / 79 - 1  # where neighbours share the weight, and its rounding shows
    places = [low + share * (high - low), *turns[(turns > low) & (turns < high)]]
    x = torch.tensor(places, dtype=torch.float32).clamp(low, high)
    module = HeadModule(head)
    for place, *found in zip(x.tolist(), module(x).tolist(), module.literal()(x).tolist(), strict=True):
        assert all(abs(mp.mpf(value) - exactly(head, place)) <= min(rough, bound) for value in found)
    assert rough < 0.2


@given(st.sampled_from([4.0, 20.0]), st.floats(-0.9, 0.9), st.floats(-6, -1))
def test_leaving_out_far_keys_costs_nothing(sharpness, low, size):
    head = staircase(100, sharpness, np.sin)
    high = low + 0.02 * 10**size
    claim, balls = HeadClaim(parse("sin(x)").node, "x", low, high, head), head.balls
    with precision():
        near, every = balls.near(low, high), range(100)
        leader = balls.leader((low + high) / 2, every)
        assert len(near) < 20
        fewer, all_of_them = (_by_series(claim, low, high, keys, leader) for keys in (near, every))
    assert fewer <= all_of_them * (1 + 1e-12) + 1e-30


@settings(max_examples=100)
@given(large_heads(dtypes=("float64", "float32")), INTERVALS, st.floats(0, 1))
def test_rounding_bounds_of_many_keys_hold(head, interval, share):
    low, high = (float(np.dtype(head.dtype).type(end)) for end in interval)
    rounding = Rounding(HeadClaim(parse("sin(x)").node, "x", low, high, head))
    bounds = [rounding.on_box(low, high), rounding.on_box(low, high, math.inf)]
    module = HeadModule(head)
    x = torch.tensor([low, high, low + share * (high - low)], dtype=module.dtype).clamp(low, high)
    forms = [module] if len(head.sizes) > 1 else [module, module.literal()]
    for place, *found in zip(x.tolist(), *(form(x).tolist() for form in forms), strict=True):
        assert all(abs(mp.mpf(value) - exactly(head, place)) <= min(bounds) for value in found)


@pytest.mark.parametrize("keys", [120, 300])
def test_rounding_of_a_staircase_holds_where_the_dtype_is_nearly_too_narrow(keys):
    head = staircase(keys, 19.0, np.sin, "float32")
    claim = HeadClaim(parse("sin(x)").node, "x", -1.0, 1.0, head, approximation=0.0)
    bound = rounding_on(claim, np.linspace(-1, 1, 2 * keys).tolist())
    assert bound < 0.1
    x = torch.linspace(-1, 1, 100, dtype=torch.float32)
    module = HeadModule(head)
    fast, literal = module(x).tolist(), module.literal()(x).tolist()
    assert (
        max(abs(v - exactly(head, u)) for u, *both in zip(x.tolist(), fast, literal, strict=True) for v in both)
        <= bound
    )


# the paper's head

REACHED = [
    ("sin(3*x)", UNIT, 1e-3, 3100, lambda x: mp.sin(3 * x)),
    ("abs(x)", UNIT, 1e-3, 1100, abs),
    ("clip(x, -1, 1)", (-2, 2), 1e-3, 2100, lambda x: min(max(x, mp.mpf(-1)), mp.mpf(1))),
    ("sqrt(x)", (0, 1), 2e-2, 1500, mp.sqrt),
    ("asin(x)", UNIT, 5e-2, 1100, mp.asin),
    ("exp(-1000*(x-0.3)**2)", UNIT, 2e-2, 1600, lambda x: mp.exp(-1000 * (x - mp.mpf(3) / 10) ** 2)),
]


@functools.cache
def reached(index):
    text, domain, tol, *_ = REACHED[index]
    return ah.compile(text, domain, tol=tol, method="nearest")


@pytest.mark.parametrize("index", range(len(REACHED)), ids=lambda i: REACHED[i][0])
@settings(max_examples=40)
@given(share=st.floats(0, 1))
def test_the_papers_head_reaches_every_continuous_function(index, share):
    _, (low, high), tol, keys, exact = REACHED[index]
    model = reached(index)
    assert model.certificate.level == "proved"
    assert model.certificate.bound <= tol
    assert 65 <= model.resources.keys <= keys
    x = torch.tensor([min(max(low + share * (high - low), low), high)], dtype=torch.float64)
    with mp.workdps(40):
        for found in (model(x), model.literal()(x)):
            assert abs(found.item() - exact(mp.mpf(x.item()))) <= model.certificate.bound


@pytest.mark.parametrize("index", [0, 3])
def test_files_of_many_keys_are_checked_and_loaded(index, tmp_path):
    model = reached(index)
    model.save(tmp_path / "model")
    checked = ah.verify(tmp_path / "model")
    assert checked.bound == model.certificate.bound
    assert checked.boxes == model.certificate.boxes <= 2 * model.resources.keys
    x = torch.linspace(*REACHED[index][1], 1000, dtype=torch.float64)
    assert torch.equal(ah.load(tmp_path / "model")(x), model(x))


def test_a_checker_that_looks_at_every_key_agrees(tmp_path):
    ah.compile("sqrt(x)", (0, 1), tol=0.08, method="nearest").save(tmp_path / "model")
    verdict = check(tmp_path / "model")
    assert verdict.status == "holds", verdict.reason


@pytest.mark.heavy
def test_the_largest_of_the_papers_heads_is_proved(tmp_path):
    model = ah.compile("cos(12*x)", UNIT, tol=1e-3, method="nearest")
    assert 12_000 < model.resources.keys <= 12_300
    assert model.certificate.bound <= 1e-3
    model.save(tmp_path / "model")
    assert ah.verify(tmp_path / "model").bound == model.certificate.bound


def test_more_anchors_are_never_worse():
    bounds = [
        ah.compile("sin(3*x)", UNIT, keys=keys, method="nearest").certificate.bound for keys in (70, 256, 400, 900)
    ]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] <= 1.05 * 3 / 899


@pytest.mark.parametrize("keys", [16_385, 10**9])
def test_keys_beyond_the_limit_are_refused(keys):
    with pytest.raises(ah.InputError, match="16,384"):
        ah.compile("sin(3*x)", UNIT, keys=keys, method="nearest")


@pytest.mark.parametrize("wanted", [{"tol": 1e-3}, {"keys": 3000}])
def test_anchors_that_float32_cannot_tell_apart_are_refused_for_that_reason(wanted):
    with pytest.raises(ah.ToleranceError, match="more than float32 holds"):
        ah.compile("sin(3*x)", UNIT, method="nearest", dtype=torch.float32, **wanted)


def test_float32_holds_some_hundred_anchors():
    model = ah.compile("sin(3*x)", UNIT, tol=0.02, method="nearest", dtype=torch.float32)
    assert model.resources.keys > 150
    x = torch.linspace(-1, 1, 5001, dtype=torch.float32)
    assert (model(x).double() - (3 * x.double()).sin()).abs().max() <= model.certificate.bound <= 0.02


# evaluation


@given(st.integers(65, 400), st.sampled_from([8.0, 20.0]), st.floats(-4, 4))
def test_windows_give_what_all_keys_give(keys, sharpness, centre):
    head = staircase(keys, sharpness, np.sin, centre=centre)
    found = windowed(head)
    assert found is not None
    assert len(found.window) < 12
    module = HeadModule(head)
    x = torch.cat([torch.linspace(centre - 1.2, centre + 1.2, 300, dtype=torch.float64),
                   torch.tensor([-1e300, -1e6, 1e6, 1e300], dtype=torch.float64)])  # fmt: skip
    scale = 1e-15 * (1 + module.slopes.abs().max() * (2 + abs(centre)))
    inside = slice(0, 300)
    assert ((module(x) - module.literal()(x)).abs()[inside] <= scale).all()
    assert module(x)[300:].tolist() == [head.constants[0]] * 2 + [head.constants[-1]] * 2


def test_a_head_that_is_no_staircase_has_no_windows():
    assert windowed(staircase(100, 0.01, np.sin)) is None
    assert windowed(staircase(60, 20.0, np.sin)) is None


def test_gradients_by_windows_and_by_parameters_agree():
    module = HeadModule(staircase(90, 20.0, np.sin))
    x = torch.linspace(-1, 1, 51, dtype=torch.float64, requires_grad=True)
    (fast,) = torch.autograd.grad(module(x).sum(), x)
    module.constants.requires_grad_(True)
    value = module(x)
    by_parameters, weights = torch.autograd.grad(value.sum(), [x, module.constants])
    assert torch.allclose(fast, by_parameters, rtol=1e-9, atol=1e-9)
    assert weights.sum().item() == pytest.approx(51)
