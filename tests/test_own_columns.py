"""Universality on the sequence's own n columns: nothing is appended, heads and sentinels instead."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import anchorhead as ah
from anchorhead.head.parameters import CHUNK_ENTRIES
from anchorhead.theorems import attention_then_softmax, two_layer

D = torch.float64


def wave(x):
    return torch.sin(3 * x) * x.sum((-2, -1), keepdim=True)


def uniform(count, tokens, features, seed=0, low=0.0, high=1.0):
    draw = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(count, tokens, features, generator=draw, dtype=D)


def inside(model, x):
    """Whether every coordinate is away from the slopes between cells."""
    place = (x - model.grid.low) / model.grid.cell
    return ((place - place.round()).abs() > 9 / 16 * model.grid.slope).flatten(1).all(-1)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([(3, 1), (4, 1), (5, 1), (3, 2)]),
    st.integers(2, 4),
    st.integers(0, 10**6),
    st.sampled_from([(0.0, 1.0), (-3.0, -1.0), (10.0, 30.0)]),
)
def test_declared_lipschitz_constant_bounds_the_error(shape, levels, seed, box):
    n, d = shape
    direction = torch.randn(n * d, n * 2, generator=torch.Generator().manual_seed(seed), dtype=D)

    def f(x):
        return torch.sin(x.flatten(-2) @ direction).unflatten(-1, (n, 2))

    model = two_layer(f, n, d, min(levels, 3) if n * d > 5 else levels, low=box[0], high=box[1], columns="own")
    x = uniform(300, n, d, seed, *box)
    error = (model(x) - model.exact(x)).abs()
    sup = direction.abs().sum(0).max().item()
    assert error.max() <= model.bound_for(lipschitz=sup, metric="sup")
    calm = error[inside(model, x)]
    assert not len(calm) or calm.max() <= sup * model.grid.cell / 2 * (1 + 1e-5) + 1e-5
    volume = (box[1] - box[0]) ** (n * d)
    for p in (1, 2):
        mean = (error**p).sum((-1, -2)).mean().item() * volume
        assert mean ** (1 / p) <= model.bound_for(lipschitz=sup, metric="sup", norm=p)


def test_the_mean_error_falls_with_cells_and_slopes():
    x = uniform(4000, 3, 1)
    bounds, errors = [], []
    for levels, slope in ((4, 1 / 16), (8, 1 / 256), (16, 1 / 4096)):
        model = two_layer(wave, 3, 1, levels, slope=slope, columns="own")
        bounds.append(model.bound_for(lipschitz=12, metric="sup", norm=2))
        errors.append((model(x) - wave(x)).square().sum((-1, -2)).mean().sqrt().item())
        assert errors[-1] <= bounds[-1]
    for values in (bounds, errors):
        assert all(fine < 0.7 * coarse for coarse, fine in itertools.pairwise(values))


@pytest.mark.parametrize("build", [two_layer, attention_then_softmax])
def test_the_sequence_keeps_its_length(build):
    model = build(wave, 3, 1, 4, columns="own")
    x = uniform(20, 3, 1)
    assert (model.literal()(x) - model(x)).abs().max() < 1e-12
    assert ah.walk(model, x[0]).softmax == 2
    weights = model.attention_weights(x)
    assert all(w.shape[-1] == 3 for w in weights), "every head has the n columns as its keys"
    assert model.ramp_anchors == 3
    matrices = model.matrices()
    assert all(m.shape[-1] == 3 for name, m in matrices.items() if name.endswith("W_O"))
    assert (model.to_stock_attention()(x) - model(x)).abs().max() < 1e-8


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([(3, 1), (4, 1), (3, 2)]), st.integers(2, 3), st.integers(2, 12), st.integers(0, 10**6))
def test_shifted_look_ups_bound_the_error_everywhere(shape, levels, shifts, seed):
    """Also where coordinates lie on slopes, each in another of the grids or all in one."""
    n, d = shape
    draw = torch.Generator().manual_seed(seed)
    direction = torch.randn(n * d, n, generator=draw, dtype=D)

    def f(x):
        assert x.min() >= -1
        assert x.max() <= 2
        return torch.sin(x.flatten(-2) @ direction).unflatten(-1, (n, 1))

    levels = 2 if n * d > 4 else levels
    model = two_layer(f, n, d, levels, low=-1, high=2, columns="own", shifts=shifts, slope=0.8 / shifts)
    edges = torch.cat([grid.edges() for grid in model.lookup.grids])
    drawn = edges[torch.randint(len(edges), (300, n, d), generator=draw)]
    near = drawn + (torch.rand(300, n, d, generator=draw, dtype=D) - 0.5) * model.grid.slope * model.grid.cell
    x = torch.cat([near.clamp(-1, 2), uniform(300, n, d, seed, -1, 2)])
    error = (model(x) - f(x)).abs().max().item()
    assert error <= model.bound_for(lipschitz=direction.abs().sum(0).max().item(), metric="sup")
    assert (model.literal()(x[:20]) - model(x[:20])).abs().max() < 1e-8, "scores are up to 1e6 here"


def test_shifts_make_the_sup_error_fall():
    x = torch.cat([uniform(1000, 3, 1), two_layer(wave, 3, 1, 8, columns="own").grid.edges()[:3].reshape(1, 3, 1)])
    models = [two_layer(wave, 3, 1, 8, columns="own", shifts=k, slope=0.8 / 24) for k in (1, 6, 24)]
    errors = [(m(x) - wave(x)).abs().max().item() for m in models]
    bounds = [m.bound_for(lipschitz=12, metric="sup") for m in models]
    assert bounds[0] > 1.5 * bounds[1] > 2 * bounds[2]
    assert errors[0] > 2 * errors[1] > 3 * errors[2]


def test_one_head_for_every_n_minus_two_grid_points():
    for n, levels in ((3, 4), (4, 3), (5, 2)):
        model = two_layer(lambda x: x, n, 1, levels, columns="own")
        assert model.layer2.heads == -(-(levels**n - 2) // (n - 2))
        assert model.resources.keys == n * model.resources.heads


def test_a_softmax_behind_own_columns_keeps_the_bound_everywhere():
    model = attention_then_softmax(wave, 2, 1, 16, columns="own")
    edges = model.grid.edges()
    line = (edges[:, None] + torch.linspace(-1, 1, 21, dtype=D) * model.grid.slope * model.grid.cell).flatten()
    x = torch.cartesian_prod(line, line).unsqueeze(-1)
    assert (model(x) - wave(x)).abs().max() <= model.bound_for(lipschitz=8, metric="sup")
    usual = attention_then_softmax(wave, 2, 1, 16)
    assert model.bound_for(lipschitz=8, metric="sup") == pytest.approx(
        usual.bound_for(lipschitz=8, metric="sup"), rel=1e-3
    )


def test_edited_matrices_are_what_runs():
    model = two_layer(wave, 3, 1, 3, columns="own")
    x = uniform(5, 3, 1)
    with torch.no_grad():
        model.layer2.value.mul_(2)
    assert (model.literal()(x) - model(x)).abs().max() < 1e-12


def test_what_cannot_be_is_refused_with_a_sentence():
    with pytest.raises(ah.InputError, match="at least 3 tokens"):
        two_layer(wave, 2, 1, 4, columns="own")
    with pytest.raises(ah.InputError, match="at least 2 tokens"):
        attention_then_softmax(wave, 1, 1, 4, columns="own")
    with pytest.raises(ah.InputError, match="appended"):
        two_layer(wave, 3, 1, 4, columns="new")
    with pytest.raises(ah.InputError, match="leave out ramp_anchors"):
        two_layer(wave, 3, 1, 4, columns="own", ramp_anchors=9)
    with pytest.raises(ah.PrecisionError, match="cannot number"):
        two_layer(wave, 3, 1, 16, columns="own", dtype=torch.float32)
    with pytest.raises(ah.InputError, match="too small"):
        two_layer(wave, 3, 1, 4, columns="own", beta=1.0)
    with pytest.raises(ah.InputError, match="overlap"):
        two_layer(wave, 3, 1, 4, columns="own", shifts=20)
    with pytest.raises(ah.InputError, match="sup norm without them"):
        two_layer(wave, 3, 1, 4, shifts=2)
    with pytest.raises(ah.InputError, match="selection_error"):
        two_layer(wave, 3, 1, 4, columns="own", selection_error=2)
    with pytest.raises(ah.PrecisionError):
        two_layer(wave, 3, 1, 8, columns="own").to(torch.float32)


@pytest.mark.heavy
@pytest.mark.parametrize("shifts", [1, 3])
def test_an_empty_batch_has_an_empty_answer_in_every_form(shifts):
    model = two_layer(wave, 3, 1, 4, columns="own", shifts=shifts)
    for shape in ((0, 3, 1), (2, 0, 3, 1)):
        x = torch.zeros(shape, dtype=D)
        assert model(x).shape == model.literal()(x).shape == model.exact(x).shape == shape
    assert model.to_stock_attention()(torch.zeros(0, 3, 1, dtype=D)).shape == (0, 3, 1)


class Largest(TorchDispatchMode):
    """Notes how many entries the largest tensor has that is made."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.entries = max(self.entries, made.numel())
        return made


@pytest.mark.heavy
def test_a_large_batch_is_read_literally_in_parts_that_give_what_each_sequence_does():
    model = two_layer(wave, 3, 1, 6, columns="own", shifts=5)
    x, literal = uniform(400, 3, 1).unflatten(0, (4, 100)), model.literal()
    with Largest() as seen:
        whole = literal(x)
    assert whole.shape == (4, 100, 3, 1)
    assert seen.entries <= CHUNK_ENTRIES
    few = torch.cat([literal(some) for some in x.flatten(0, 1).split(50)]).unflatten(0, (4, 100))
    assert (whole - few).abs().max() < 1e-12
    x.requires_grad_()
    literal(x).sum().backward()
    assert x.grad.isfinite().all()


def test_what_f_has_against_a_batch_is_said_with_its_shape():
    with pytest.raises(ah.InputError, match=r"f raised RuntimeError for a batch of grid points of shape \(64, 3, 1\)"):
        two_layer(lambda x: x @ torch.ones(7, dtype=D), 3, 1, 4)
    with pytest.raises(ah.InputError, match=r"shifts=2 are for two_layer"):
        attention_then_softmax(wave, 3, 1, 4, shifts=2)
