"""Tensor grids in one layer: the fit, the two evaluations, and the three bounds."""

import functools
import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorhead as ah
from anchorhead.enclosure.directional import directional_jet
from anchorhead.expression import parse
from anchorhead.head.grid_fit import fit_grid, sampled_error, smallest_grid
from anchorhead.head.grid_head import GridHead
from anchorhead.head.grid_module import GridModule
from anchorhead.head.uniform_keys import uniform_keys
from anchorhead.proof.grid_lipschitz import conditional_bound, lipschitz_bound
from anchorhead.proof.grid_proof import GridProof, GridRefutation, prove_grid
from anchorhead.proof.grid_rounding import rounding_bound

SQUARE = [(-1.0, 1.0)] * 2
CUBE = [(-1.0, 1.0)] * 3
DTYPES = {"float64": torch.float64, "float32": torch.float32}


def reference(x):
    return (np.sin(3 * x[:, 0] * x[:, 1]) + np.exp(-(x[:, 0] ** 2) + x[:, 1] / 2))[:, None]


REFERENCE = parse("sin(3*x*y) + exp(-x**2 + y/2)", ["x", "y"])


def random_grid(seed, counts, outputs=1, size=3.0):
    """Uniform keys of random curvature and spacing around the box [-1, 1]^m, and random values."""
    rng = np.random.default_rng(seed)
    keys = []
    for count in counts:
        c, spacing = math.exp(rng.uniform(-3, 1)), rng.uniform(0.6, 1.6) / count
        scores = uniform_keys(count, np.array([c / spacing]), np.array([c]), rng.uniform(-0.2, 0.2))
        keys.append([part[0] for part in scores])
    values = size * rng.standard_normal((*counts, outputs))
    return GridHead(tuple(k[0] for k in keys), tuple(k[1] for k in keys), values)


def exactly(grid, point):
    """The stored head at a point, in mpmath."""
    with mpmath.workprec(160):
        held = [mpmath.mpf(float(v)) for v in grid.values.ravel()]
        for slopes, levels, x in zip(grid.slopes, grid.intercepts, point, strict=True):
            terms = zip(slopes, levels, strict=True)
            parts = [mpmath.exp(mpmath.mpf(float(s)) * mpmath.mpf(float(x)) + mpmath.mpf(float(c))) for s, c in terms]
            total, rest = mpmath.fsum(parts), len(held) // len(parts)
            held = [mpmath.fsum(p * held[i * rest + j] for i, p in enumerate(parts)) / total for j in range(rest)]
        return held


def towards_ends(rng, count, axes):
    """Points of the box, half of them near its boundary."""
    points = rng.uniform(-1, 1, (count, axes))
    points[::2] = np.sign(points[::2]) * np.abs(points[::2]) ** 0.05
    return points


counts = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@settings(max_examples=40)
@given(st.integers(0, 2**31), counts, st.integers(1, 3), st.sampled_from([(), (3,), (2, 0), (2, 5)]))
def test_fast_equals_literal_and_numpy(seed, sizes, outputs, batch):
    head = random_grid(seed, sizes, outputs)
    x = np.random.default_rng(seed).uniform(-1, 1, (*batch, len(sizes)))
    layer = GridModule.of(head)
    fast, literal = layer(torch.tensor(x)), layer.literal()(torch.tensor(x))
    assert fast.shape == (*batch, outputs)
    torch.testing.assert_close(fast, literal, rtol=0, atol=1e-11)
    np.testing.assert_allclose(fast.numpy(), head(x), rtol=0, atol=1e-11)
    weights = layer.literal().weights(torch.tensor(x))
    assert weights.shape == (*batch, math.prod(sizes))
    torch.testing.assert_close(weights.sum(-1), torch.ones(batch, dtype=torch.float64))


def test_chunks_agree_with_the_whole(monkeypatch):
    layer = GridModule.of(random_grid(5, (4, 5, 3), 2))
    x = torch.rand(37, 3, dtype=torch.float64)
    whole = layer(x)
    monkeypatch.setattr("anchorhead.head.grid_module.CHUNK_ENTRIES", 100)
    torch.testing.assert_close(layer(x), whole)


@pytest.mark.parametrize(("sizes", "dtype"), [((5,), torch.float64), ((3, 2, 4), torch.float32)])
def test_walker_passes(sizes, dtype):
    layer = GridModule.of(random_grid(1, sizes, 2), dtype)
    x = torch.rand(6, len(sizes)).to(dtype)
    for module, example in ((layer, x), (layer.literal(), x), (layer, x[0])):
        found = ah.walk(module, example)
        assert found.softmax == 1
        assert found.scores == 0


def test_stored_numbers_come_back_exactly():
    head = random_grid(3, (4, 3), 2).rounded(np.float32)
    again = GridModule.of(head, torch.float32)
    for before, after in zip((*head.slopes, *head.intercepts, head.values),
                             (*again.slopes, *again.intercepts, again.values), strict=True):  # fmt: skip
        np.testing.assert_array_equal(before, after.detach().double().numpy())


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (torch.zeros(3, 3, dtype=torch.float64), r"this layer takes \(..., 2\)"),
        (torch.zeros(3, 2), "Convert it with"),
        (torch.tensor(1.0, dtype=torch.float64), r"shape \(\)"),
        (np.zeros((3, 2)), "must be a torch tensor"),
    ],
)
def test_wrong_inputs_are_refused_with_a_sentence(x, reason):
    layer = GridModule.of(random_grid(1, (3, 3)))
    for module in (layer, layer.literal()):
        with pytest.raises(ah.InputError, match=reason):
            module(x)


def test_wrong_arguments_are_refused_with_a_sentence():
    head = random_grid(1, (3, 3))
    for build in (GridHead, lambda *numbers: GridModule.of(GridHead(*numbers))):
        with pytest.raises(ah.ShapeError, match="were given"):
            build(head.slopes, head.intercepts, np.zeros((3, 4, 1)))
    with pytest.raises(ah.InputError, match="must be bounded"):
        fit_grid(reference, [(0, math.inf), (0, 1)], 4)
    with pytest.raises(ah.InputError, match="1 to 4 axes"):
        fit_grid(reference, [(0, 1)] * 5, 4)
    with pytest.raises(ah.InputError, match="product of at most"):
        fit_grid(reference, SQUARE, 2000)
    with pytest.raises(ah.ShapeError, match="must map"):
        fit_grid(lambda x: x[:, 0], SQUARE, 4)
    with pytest.raises(ah.InputError, match="not finite"):
        fit_grid(lambda x: np.full((len(x), 1), np.nan), SQUARE, 4)
    with pytest.raises(ah.InputError, match="must be positive"):
        smallest_grid(reference, SQUARE, 0.0)
    with pytest.raises(ah.InputError, match="one side for each axis"):
        rounding_bound(head, CUBE, "float64")
    with pytest.raises(ah.InputError, match="must agree"):
        prove_grid(parse("x + y + z"), SQUARE, head, 1e-3)
    with pytest.raises(ah.InputError, match="metric"):
        lipschitz_bound(head, SQUARE, "taxi")
    with pytest.raises(ah.InputError, match="lipschitz"):
        conditional_bound(reference, head, SQUARE, math.nan)


@pytest.mark.parametrize(("keys", "most"), [(8, 2e-4), (16, 2e-9), (24, 1e-12)])
def test_figures_of_the_table(keys, most):
    head = fit_grid(reference, SQUARE, keys)
    assert head.keys == keys**2
    assert sampled_error(reference, head, SQUARE) <= most
    assert head.largest_value <= 1e3 * 3


def test_anisotropic_boxes_and_several_outputs():
    box = [(2.0, 5.0), (-0.1, 0.1)]

    def f(x):
        return np.stack([np.sin(x[:, 0]) * (1 + x[:, 1]), x[:, 1], np.full(len(x), 7.0)], axis=1)

    head = fit_grid(f, box, (12, 3), goal=1e-6)
    assert head.values.shape == (12, 3, 3)
    assert sampled_error(f, head, box) <= 1e-5


def test_smallest_grid_meets_its_tolerance_with_few_keys():
    head = smallest_grid(reference, SQUARE, 1e-6)
    assert head is not None
    assert head.keys <= 150
    assert sampled_error(reference, head, SQUARE) <= 1.1e-6
    assert smallest_grid(lambda x: np.sin(40 * x), SQUARE[:1], 1e-6, most=16) is None


def test_smallest_grid_needs_one_key_along_an_axis_that_f_ignores():
    head = smallest_grid(lambda x: np.sin(x[:, :1]), SQUARE, 1e-5)
    assert head is not None
    assert head.counts[1] == 1


@pytest.mark.parametrize(("axes", "sizes"), [(2, (8, 16, 32)), (3, (5, 14))])
def test_kinked_functions_converge_like_one_over_p(axes, sizes):
    def f(x):
        return np.abs(x[:, :1] - x[:, 1:]) if axes == 2 else x.max(1, keepdims=True)

    box = [(-1.0, 1.0)] * axes
    heads = [fit_grid(f, box, p, goal=1e-4) for p in sizes]
    errors = [sampled_error(f, head, box) for head in heads]
    for p, error in zip(sizes, errors, strict=True):
        assert error <= 0.8 / p
    assert errors[-1] < errors[0] / 2


@settings(max_examples=25)
@given(st.integers(0, 2**31), st.lists(st.integers(1, 6), min_size=1, max_size=3), st.sampled_from(list(DTYPES)))
def test_rounding_bound_holds_against_mpmath(seed, sizes, dtype):
    head = random_grid(seed, sizes, 2, size=100.0).rounded(getattr(np, dtype))
    bound = rounding_bound(head, [(-1.0, 1.0)] * len(sizes), dtype)
    layer = GridModule.of(head, DTYPES[dtype])
    points = towards_ends(np.random.default_rng(seed), 4, len(sizes))
    x = torch.tensor(points).to(DTYPES[dtype])
    fast, literal = layer(x), layer.literal()(x)
    for i in range(len(x)):
        for o, exact in enumerate(exactly(head, x[i].double().tolist())):
            assert abs(mpmath.mpf(fast[i, o].item()) - exact) <= bound.fast
            assert abs(mpmath.mpf(literal[i, o].item()) - exact) <= bound.literal
    assert bound.bound == max(bound.fast, bound.literal) < math.inf


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_bound_is_not_far_off(dtype):
    head = fit_grid(reference, SQUARE, 20, goal=1e-7).rounded(getattr(np, dtype))
    layer = GridModule.of(head, DTYPES[dtype])
    x = torch.tensor(towards_ends(np.random.default_rng(0), 60, 2)).to(DTYPES[dtype])
    exact = [exactly(head, p)[0] for p in x.double().tolist()]
    bound = rounding_bound(head, SQUARE, dtype)
    for found, claimed, slack in ((layer(x), bound.fast, 150), (layer.literal()(x), bound.literal, 500)):
        worst = max(abs(mpmath.mpf(v) - e) for v, e in zip(found[:, 0].tolist(), exact, strict=True))
        assert worst <= claimed <= slack * worst


def test_rounding_bound_gives_up_where_scores_are_hopeless():
    head = random_grid(1, (4, 4))
    steep = GridHead(tuple(1e12 * s for s in head.slopes), head.intercepts, head.values)
    assert rounding_bound(steep, SQUARE, "float64").bound == math.inf
    huge = GridHead(head.slopes, head.intercepts, 1e38 * head.values)
    assert rounding_bound(huge, SQUARE, "float32").bound == math.inf


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.lists(st.integers(1, 7), min_size=1, max_size=3))
def test_lipschitz_bound_holds_and_is_tight(seed, sizes):
    head = random_grid(seed, sizes, 2)
    m = len(sizes)
    x = towards_ends(np.random.default_rng(seed), 3000, m) * (1 - 1e-6)
    step = 1e-6 * np.eye(m)
    slopes = np.stack([(head(x + step[i]) - head(x - step[i])) / 2e-6 for i in range(m)])
    for metric, norm in (("euclidean", np.sqrt((slopes**2).sum(0))), ("sup", np.abs(slopes).sum(0))):
        bound = lipschitz_bound(head, [(-1.0, 1.0)] * m, metric)
        assert norm.max() <= bound * (1 + 1e-6) + 1e-6
        assert bound <= 2.5 * norm.max() + 1e-6


@pytest.mark.parametrize(
    ("f", "lipschitz", "axes", "metric"),
    [
        (lambda x: np.abs(x[:, :1] - x[:, 1:]), math.sqrt(2), 2, "euclidean"),
        (lambda x: np.abs(x[:, :1] - x[:, 1:]), 2.0, 2, "sup"),
        (lambda x: x.max(1, keepdims=True), 1.0, 2, "sup"),
        (lambda x: np.stack([np.sin(2 * x[:, 0]), np.abs(x[:, 0] - 0.3)], axis=1), 2.0, 1, "euclidean"),
        (lambda x: np.sqrt((x**2).sum(1, keepdims=True)), 1.0, 3, "euclidean"),
    ],
)
def test_conditional_bound_holds_on_a_finer_sample(f, lipschitz, axes, metric):
    box = [(-1.0, 1.0)] * axes
    head = fit_grid(f, box, {1: 12, 2: 10, 3: 6}[axes], goal=1e-3)
    coarse = conditional_bound(f, head, box, lipschitz, samples=2000, metric=metric)
    fine = conditional_bound(f, head, box, lipschitz, samples=30_000, metric=metric)
    x = np.random.default_rng(0).uniform(-1, 1, (30_000, axes))
    worst = float(np.abs(f(x) - head(x)).max())
    assert worst <= fine.bound < coarse.bound
    assert coarse.samples <= 2000
    assert fine.bound <= fine.measured + (lipschitz + fine.lipschitz_head) * fine.radius * 1.01
    assert fine.lipschitz_head <= 3.5 * lipschitz


def test_conditional_bound_catches_what_samples_miss():
    """A spike between samples: the bound holds if its steepness was declared."""
    head = fit_grid(lambda x: np.zeros((len(x), 1)), SQUARE, 4)

    def spike(x):
        return np.maximum(0, 0.01 - np.abs(x - 0.001).max(1, keepdims=True)) * 50.0

    found = conditional_bound(spike, head, SQUARE, 50.0, samples=400, metric="sup")
    assert found.measured < 0.01
    assert found.bound >= 0.5


def test_directional_series_match_mpmath():
    point, direction = (0.3, -0.7), (0.25, 0.5)
    from flint import arb

    found = directional_jet(REFERENCE, [arb(v) for v in point], [arb(v) for v in direction], 6)[0]

    def along(t):
        x, y = (p + d * t for p, d in zip(point, direction, strict=True))
        return mpmath.sin(3 * x * y) + mpmath.exp(-(x**2) + y / 2)

    with mpmath.workdps(40):
        for c, wanted in zip(found, mpmath.taylor(along, 0, 6), strict=True):
            assert abs(float(c) - float(wanted)) <= 1e-13


def assert_covers(proof, box):
    """Boxes of a proof fill the domain, and none overlap."""
    volume = sum(math.prod(high - low for low, high in here) for here in proof.boxes)
    assert volume == pytest.approx(math.prod(high - low for low, high in box))
    rng = np.random.default_rng(1)
    for _ in range(200):
        point = [rng.uniform(*side) for side in box]
        assert any(all(a <= p <= b for p, (a, b) in zip(point, here, strict=True)) for here in proof.boxes)


CASES = [
    ("sin(3*x*y) + exp(-x**2 + y/2)", 2, 20, 1e-6),
    ("sin(3*x*y) + exp(-x**2 + y/2)", 2, 14, 1e-6),
    ("1/(2 + x*y) - tanh(y)", 2, 12, 1e-5),
    ("exp(sin(2*x))", 1, 14, 1e-7),
    ("cos(x + y*z)", 3, 8, 1e-4),
]


@functools.cache
def fitted(text, axes, keys, goal):
    f, target = numeric(text, axes)
    return f, target, fit_grid(f, [(-1.0, 1.0)] * axes, keys, goal=goal / 8)


def numeric(text, axes):
    names = ["x", "y", "z"][:axes]
    allowed = {name: getattr(np, name) for name in ("sin", "cos", "exp", "tanh")}

    def f(x):
        return eval(text, {}, {**allowed, **dict(zip(names, x.T, strict=True))})[:, None]

    return f, parse(text, names)


@pytest.mark.parametrize(("text", "axes", "keys", "goal"), CASES)
def test_proved_bound_holds_at_random_points(text, axes, keys, goal):
    f, target, head = fitted(text, axes, keys, goal)
    box = [(-1.0, 1.0)] * axes
    proof = prove_grid(target, box, head, goal)
    assert isinstance(proof, GridProof)
    assert_covers(proof, box)
    x = towards_ends(np.random.default_rng(0), 20_000, axes)
    assert np.abs(f(x) - head(x)).max() <= proof.bound + 1e-12
    assert proof.bound <= goal


@pytest.mark.parametrize(("text", "axes", "keys", "goal"), CASES)
def test_tampered_values_are_refuted(text, axes, keys, goal):
    f, target, head = fitted(text, axes, keys, goal)
    box = [(-1.0, 1.0)] * axes
    values = head.values.copy()
    values[(keys // 2,) * axes] += 30 * goal * 3**axes
    found = prove_grid(target, box, GridHead(head.slopes, head.intercepts, values), goal)
    assert isinstance(found, GridRefutation)
    assert found.certain
    assert found.error > goal
    place = np.array([found.place])
    tampered = GridHead(head.slopes, head.intercepts, values)
    assert abs(float((f(place) - tampered(place))[0, 0])) > goal


def test_a_bound_tighter_than_the_error_is_never_proved():
    head = fit_grid(reference, SQUARE, 10, goal=1e-5)
    error = sampled_error(reference, head, SQUARE)
    found = prove_grid(REFERENCE, SQUARE, head, 0.9 * error, most=400)
    assert isinstance(found, GridRefutation)


def test_several_outputs_are_proved_at_once():
    box = [(0.0, 2.0), (-1.0, 1.0)]
    target = parse(["x*y", "exp(x) - y"], ["x", "y"])

    def f(x):
        return np.stack([x[:, 0] * x[:, 1], np.exp(x[:, 0]) - x[:, 1]], axis=1)

    head = fit_grid(f, box, 12, goal=1e-7)
    proof = prove_grid(target, box, head, 1e-6)
    assert isinstance(proof, GridProof)
    assert sampled_error(f, head, box) <= proof.bound
    values = head.values.copy()
    values[6, 6, 1] += 1e-3
    assert isinstance(prove_grid(target, box, GridHead(head.slopes, head.intercepts, values), 1e-6), GridRefutation)


def test_kinks_are_proved_where_the_tolerance_allows_and_given_up_on_otherwise():
    def f(x):
        return np.abs(x[:, :1] - x[:, 1:])

    target = parse("abs(x - y)", ["x", "y"])
    head = fit_grid(f, SQUARE, 16, goal=1e-2)
    error = sampled_error(f, head, SQUARE)
    proof = prove_grid(target, SQUARE, head, 2.5 * error)
    assert isinstance(proof, GridProof)
    assert error <= proof.bound
    given_up = prove_grid(target, SQUARE, head, 1.05 * error, most=100)
    assert isinstance(given_up, GridRefutation)
    assert not given_up.certain


def test_undefined_targets_are_given_up_on():
    head = random_grid(1, (3, 3))
    found = prove_grid(parse("log(x) + y", ["x", "y"]), SQUARE, head, 1e6, most=200)
    assert isinstance(found, GridRefutation)
    assert not found.certain


@pytest.mark.heavy
def test_three_variables_are_proved():
    f, target = numeric("exp(-x*x - y*y - z*z)", 3)
    head = fit_grid(f, CUBE, 7, goal=1e-5)
    proof = prove_grid(target, CUBE, head, 1e-4)
    assert isinstance(proof, GridProof)
    assert sampled_error(f, head, CUBE) <= proof.bound


@pytest.mark.heavy
def test_large_kinked_grids_still_converge():
    def f(x):
        return x.max(1, keepdims=True)

    head = fit_grid(f, CUBE, 24, goal=1e-4)
    assert sampled_error(f, head, CUBE) <= 0.8 / 24


@pytest.mark.parametrize("tol", [0.091, 0.05, 0.02, 0.007])
def test_a_saved_grid_has_the_boxes_that_its_checker_counts(tol, tmp_path):
    """The order of a box's Taylor form depends on what is aimed at, and a checker aims at the claimed bound."""
    text = "tanh(0.553*alpha + -1.6)*sin(-1.31*y + -2.512451949234)"
    model = ah.compile(text, {"y": (0.2, 0.9), "alpha": (-0.5, 1.25)}, tol=tol, method="grid")
    model.save(tmp_path / "grid")
    assert ah.verify(tmp_path / "grid") == model.certificate
