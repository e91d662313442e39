"""two_layer and attention_then_softmax: the declared modulus bounds the error, and halving cells halves it."""

import copy
import itertools
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text

import anchorhead as ah
from anchorhead.digits import Up
from anchorhead.theorems import attention_then_softmax, two_layer
from anchorhead.theorems.grid import Grid
from anchorhead.theorems.grid_rounding import lookup_rounding, sum_error

BOTH = pytest.mark.parametrize("build", [two_layer, attention_then_softmax])


def wave(x):
    return torch.sin(3 * x) * x.sum((-2, -1), keepdim=True)


def uniform(count, tokens, features, seed=0, low=0.0, high=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return (low + (high - low) * torch.rand(count, tokens, features, generator=generator, dtype=torch.float64)).to(
        dtype
    )


@BOTH
def test_error_halves_with_the_cells(build):
    x = uniform(20000, 1, 2)
    errors = [(m(x) - wave(x)).abs().max().item() for m in (build(wave, 1, 2, g) for g in (8, 16, 32, 64))]
    assert errors[0] < 0.36
    assert errors[1] < 0.18
    for coarse, fine in itertools.pairwise(errors):
        assert 0.4 < fine / coarse < 0.6


@given(
    st.sampled_from([(1, 1), (2, 1), (1, 2), (3, 1), (2, 2)]),
    st.integers(2, 5),
    st.integers(0, 10**6),
    st.sampled_from([torch.float64, torch.float32]),
    st.sampled_from([(0.0, 1.0), (-3.0, -1.0), (10.0, 30.0)]),
)
def test_declared_lipschitz_constant_bounds_the_error(shape, levels, seed, dtype, box):
    n, d = shape
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(n * d, n * 2, generator=generator, dtype=torch.float64)

    def f(x):
        return torch.sin(x.flatten(-2) @ direction.to(x.dtype)).unflatten(-1, (n, 2))

    model = two_layer(f, n, d, levels, low=box[0], high=box[1], dtype=dtype)
    x = uniform(300, n, d, seed, *box, dtype=dtype)
    error = (model(x) - model.exact(x)).abs()
    euclidean = direction.norm(dim=0).max().item()
    sup = direction.abs().sum(0).max().item()
    assert error.max() <= model.bound_for(lipschitz=euclidean) * (1 + 1e-5)
    assert error.max() <= model.bound_for(lipschitz=sup, metric="sup") * (1 + 1e-5)
    assert error.max() <= model.bound_for(lipschitz=lambda r: min(2.0, euclidean * r)) * (1 + 1e-5)
    volume = (box[1] - box[0]) ** (n * d)
    for p in (1, 2, 4):
        mean = (error.double() ** p).sum((-1, -2)).mean().item() * volume
        bound = model.bound_for(lipschitz=euclidean, norm=p)
        assert mean ** (1 / p) <= bound
        assert bound <= (2 * n * volume) ** (1 / p) * model.bound_for(lipschitz=euclidean) * (1 + 1e-12)


def test_bound_holds_on_the_slopes_themselves():
    """Points on and around the edges between cells, where two cells share the weight."""
    model = two_layer(wave, 1, 2, 8)
    edges = model.grid.edges()
    offsets = torch.linspace(-1, 1, 41, dtype=torch.float64) * model.grid.slope * model.grid.cell
    line = (edges[:, None] + offsets).flatten()
    x = torch.cartesian_prod(line, line).unsqueeze(-2)
    assert (model(x) - wave(x)).abs().max() <= model.bound_for(lipschitz=8.0, metric="sup")


@BOTH
def test_sixty_five_thousand_grid_points(build):
    model = build(wave, 2, 2, 16)
    assert model.grid.points == 65536
    x = uniform(64, 2, 2)
    assert (model(x) - wave(x)).abs().max() <= model.bound_for(lipschitz=16.0, metric="sup")
    assert (model.literal()(x[:2]) - model(x[:2])).abs().max() < 1e-12


@pytest.mark.heavy
def test_one_coordinate_with_sixty_five_thousand_levels():
    model = two_layer(wave, 1, 1, 65536)
    x = uniform(50, 1, 1)
    assert (model(x) - wave(x)).abs().max() <= model.bound_for(lipschitz=4.0)


@BOTH
def test_layer_one_is_ramp_heads(build):
    """Each head's output is the truncated linear function, as `single_head` computes it on the same anchors."""
    model = build(wave, 2, 1, 3)
    x = uniform(50, 2, 1)
    ramps = model.layer1(model.lift(x))
    assert model.layer1.heads == ramps.shape[-1] == 2
    for h, edge in enumerate(model.grid.edges().tolist()):
        width = model.grid.slope * model.grid.cell
        weights = torch.full((2, 1), 1 / width, dtype=torch.float64)
        bias = torch.full((2,), 0.5 - edge / width, dtype=torch.float64)
        head = ah.theorems.single_head(weights, bias, 0, 1, model.ramp_anchors)
        assert (head(x)[..., 0] - ramps[..., h]).abs().max() < 1e-9


def test_values_on_grid_points_are_exact():
    model = two_layer(wave, 1, 2, 5)
    x = torch.cartesian_prod(model.grid.centres(), model.grid.centres()).unsqueeze(-2)
    assert (model(x) - wave(x)).abs().max() < 1e-5


@pytest.mark.parametrize("offset", [1e3, 1e6])
def test_bound_includes_rounding_of_the_values(offset):
    model = two_layer(lambda x: offset + x, 1, 1, 1000, dtype=torch.float32)
    x = uniform(500, 1, 1, dtype=torch.float32)
    error = (model(x).double() - (offset + x.double())).abs().max()
    assert error <= model.bound_for(lipschitz=1.0)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(1, 700, 1e-4), (1, 4096, 1e-6), (1, 700, 1e-2), (2, 64, 0.1)])
@pytest.mark.parametrize("offset", [1.0, 1e5])
def test_bound_includes_rounding_of_sums_over_all_keys(build, dtype, size, offset):
    """Of a constant nothing but rounding is off; weights that do not sum to one then show."""
    features, levels, error = size
    model = build(lambda x: offset + 0 * x[..., :1], 1, features, levels, selection_error=error, dtype=dtype)
    x = uniform(40, 1, features, dtype=dtype)
    bound = model.bound_for(lipschitz=0.0)
    for network in (model, model.literal()):
        assert (network(x).double() - offset).abs().max() <= bound
    assert bound <= 2 * model.rounding
    assert model.rounding <= 3 * offset * (levels**features * torch.finfo(dtype).eps + 1e-7)


def test_sums_of_small_terms_err_by_no_more_than_these():
    """The bound of a sum, against orders that are bad for it: small terms onto the large one in turn, and in pairs."""
    for small, terms in ((1e-4, 2000), (1e-6, 60_000), (0.2, 5000)):
        draw = torch.Generator().manual_seed(terms)
        rest = torch.rand(terms, generator=draw, dtype=torch.float64) ** 2
        each = torch.cat([torch.ones(1), (small * rest / rest.sum()).float()])
        exact, pairs, running = each.double().sum().item(), each, each[0]
        for one in each[1:]:
            running = running + one
        while len(pairs) > 1:
            pairs = torch.nn.functional.pad(pairs, (0, len(pairs) % 2)).reshape(-1, 2).sum(-1)
        allowed = sum_error(terms + 1, 1, each[1:].double().sum().item() / exact, 2.0**-24)
        assert abs(running.item() - exact) <= allowed * exact
        assert abs(pairs.item() - exact) <= allowed * exact


def test_no_rounding_is_known_where_sums_have_none_but_of_zero_it_is():
    """Seven million keys of float32 with a large share elsewhere."""
    grid = Grid(1, 1, 8_000_000, 0.0, 1.0, 1 / 16)
    assert lookup_rounding(grid, 0.5, 1.0, torch.float32) == math.inf
    assert 0 < lookup_rounding(grid, 0.5, 0.0, torch.float32) < 1e-40
    assert 0 < lookup_rounding(grid, 1e-6, 1.0, torch.float32) < 1e-4


def test_bounds_in_high_norms_neither_vanish_nor_overflow():
    """They rise from the mean to the largest error as the order does."""
    for size, high in ((1.0, 1.0), (1e-200, 1.0), (1e4, 1.0), (1.0, 1e6)):
        model = two_layer(lambda x, size=size: size * x, 1, 1, 16, high=high)
        bounds = [model.bound_for(lipschitz=size, norm=p) / high ** (1 / p) for p in (1, 2, 64, 220, 1e6)]
        sup = model.bound_for(lipschitz=size)
        assert sup / 2 < bounds[0]
        assert sorted(bounds) == bounds
        assert math.isclose(bounds[-1], sup, rel_tol=1e-4)


def test_bound_without_a_declaration_is_refused():
    with pytest.raises(ah.AnchorheadError, match="bound_for"):
        _ = two_layer(wave, 1, 1, 3).bound


@BOTH
def test_a_module_as_function_is_no_part_of_the_network(build, tmp_path):
    f = torch.nn.Linear(2, 2).double()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = build(f, 1, 2, 3)
    plain = build(lambda x: f(x), 1, 2, 3)
    assert model.f is f
    assert model.resources == plain.resources
    assert model.bound_for(lipschitz=9) == plain.bound_for(lipschitz=9)
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.float()):
        assert not made.edited
        assert [name for name, _ in made.named_modules()] == [name for name, _ in plain.named_modules()]
    assert f.weight.dtype == torch.float64
    model.save(tmp_path / "model.safetensors")
    assert not ah.load(tmp_path / "model.safetensors").edited


@BOTH
def test_nan_gives_nan(build):
    assert build(wave, 1, 2, 4)(torch.tensor([[[0.3, math.nan]]], dtype=torch.float64)).isnan().all()


@BOTH
@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"lipschitz": 2.9, "metric": "sup"}, r"\(0.0625, 0.1875\) and \(0.1875, 0.0625\).*Declare 3 or more"),
        ({"lipschitz": 0.01}, "lipschitz=0.01 is too small"),
        ({"lipschitz": lambda r: 2 * r}, "modulus of continuity is too small"),
    ],
)
def test_a_constant_that_the_values_contradict_is_refused_with_the_pair(build, declared, said):
    model = build("x1 - 2*x2", 1, 2, 8)
    assert model.bound_for(lipschitz=3, metric="sup") > 0
    assert model.bound_for(lipschitz=5**0.5) > 0
    with pytest.raises(ah.InputError, match=said):
        model.bound_for(**declared)
    with pytest.raises(ah.InputError, match=said):
        model.bound_for(**declared, norm=2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_shifted_grids_are_held_against_the_constant_too(dtype):
    model = two_layer("x1; x2; 2*x3".split("; "), 3, 1, 3, columns="own", shifts=2, dtype=dtype)
    assert model.bound_for(lipschitz=2.0) > 0
    with pytest.raises(ah.InputError, match="Declare 2 or more"):
        model.bound_for(lipschitz=1.5)


def test_a_constant_for_an_opaque_function_is_refused_in_its_own_units():
    with pytest.raises(ah.InputError, match=r"\(0.5, 0.5\) and \(1.5, 0.5\), 1 apart.*Declare 3 or more"):
        ah.compile(lambda x, y: 3 * float(x), (0, 2), lipschitz=1.0, tol=0.5, method="two_layer")


def test_bounds_that_need_a_constant_say_so():
    for model in (two_layer("x1", 1, 1, 8), two_layer(["x1", "x2"], 2, 1, 4)):
        figure = model.plot(lipschitz=1.0)
        text = " ".join(found.get_text() for found in figure.findobj(Text))
        assert "if f is Lipschitz with 1" in text
        assert "proved" not in text
    found = ah.theorems.plan("two_layer", tol=0.1, tokens=1, features=1, lipschitz=2.0)
    assert ("bound, if f is Lipschitz with 2", f"{Up(found.bound):.6g}") in found.rows()
    assert "if f is Lipschitz with 2" in str(found)


@BOTH
@pytest.mark.parametrize(
    ("formulas", "features", "said"),
    [
        ("1/x1", 1, "divides by x1"),
        ("1/(x1 - x2 + 1/3)", 2, "divides by x1 - x2"),
        (["x1", "sqrt(x2 + x1)"], 2, "x2 . x1 is negative"),
        ("log(x1*x2)", 2, "not positive"),
    ],
)
def test_formulas_that_are_not_finite_on_the_whole_box_are_refused(build, formulas, features, said):
    with pytest.raises(ah.SingularityError, match=said):
        build(formulas, 1, features, 4, low=-1)


@BOTH
def test_formulas_that_touch_no_singularity_are_built(build):
    for formula in (
        "1/(x1 + x2 + 2.001)",
        "sqrt(x1*x1 + x2*x2)",
        "x1/(x1**2 + x2**2 + 0.01)",
        "sqrt((x1 + 1)*(x2 + 1))",
        "3",
    ):
        assert build(formula, 1, 2, 4, low=-1).grid.points == 16


@pytest.mark.parametrize("levels", [2, 4, 8])
def test_inputs_outside_the_box_are_its_nearest_point_as_far_as_is_said(levels):
    network = ah.theorems.two_layer("x1", 1, 1, levels, low=-1, slope=0.5, dtype=torch.float16)
    assert 1 < network.reach < 100
    assert "outside of the box" in str(network)
    ends = torch.tensor([[[-1.0]], [[1.0]]]).half()
    assert torch.equal(network(ends * (1 + 0.99 * network.reach)), network(ends))
    assert "outside of the box" not in str(ah.theorems.two_layer("x1", 1, 1, levels))


def test_a_map_of_two_outputs_says_which_are_drawn_and_what_was_only_seen():
    figure = two_layer(["x1*x2", "abs(x1-x2)"], 2, 1, levels=5).plot()
    said = " ".join(text.get_text() for text in figure.findobj(Text))
    assert "output 0 of 2" in said
    assert "|error|, the largest of 2 outputs" in said
    assert "largest error seen: " in said
    assert "at most" not in said


@BOTH
def test_inputs_outside_the_box_warn_once(build, tmp_path):
    model, x = build("x1*x2", 1, 2, 4, low=-1.0, high=2.0), torch.tensor([[-1.0, 2.5]]).double()
    model(x.clamp(-1, 2))
    with pytest.warns(ah.OutsideRangeWarning, match=r"2\.5, outside \[-1, 2\] by 0\.5.*low= and high="):
        model(x)
    model(x)  # said once
    model.save(tmp_path / "m.safetensors")
    with pytest.raises(ah.OutsideRangeError):
        ah.load(tmp_path / "m.safetensors", outside="error")(x)


@pytest.mark.parametrize(
    "mixed",
    [
        lambda X: X.mean() * torch.ones_like(X),
        lambda X: X / X.norm(),
        lambda X: X + X.amax(0),
        lambda X: X.softmax(0),
        torch.rand_like,
    ],
)
@pytest.mark.parametrize("theorem", [ah.theorems.two_layer, ah.theorems.attention_then_softmax])
def test_a_function_that_mixes_the_sequences_of_a_batch_is_refused(theorem, mixed):
    with pytest.raises(ah.InputError, match="each sequence by itself"):
        theorem(mixed, 2, 1, 4)


@pytest.mark.parametrize("beta", [np.float32(30), np.float64(30), torch.tensor(30.0), 30])
def test_a_beta_is_a_number_of_any_kind(beta):
    ramps = ah.theorems.single_head([[1.0]], [0.0], -1, 1, anchors=8, beta=beta)
    assert ramps.beta == 30
