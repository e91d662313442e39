"""Any Lipschitz function of a prompt: the bound holds for every length, also on prompts chosen to break it."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance

import anchorhead as ah
from anchorhead.in_context.lattice import Lattice

ic = ah.in_context
D = torch.float64


def deviation(points, weights):
    return (weights * (points[:, 0] - 0.3).abs()).sum(-1)


def variance(points, weights):
    x = points[:, 0]
    return (weights * x * x).sum(-1) - (weights * x).sum(-1) ** 2


def distance(points, weights):
    """W_1 from half a mass at 1/4 and half at 3/4."""
    x, order = torch.cat([points[:, 0], points.new_tensor([0.25, 0.75])]).sort()
    signed = torch.cat([weights, points.new_full((*weights.shape[:-1], 2), -0.5)], -1)[..., order]
    return (signed.cumsum(-1)[..., :-1].abs() * x.diff()).sum(-1)


def waves(points, weights):
    return torch.sin(4 * (weights * torch.sin(3 * points[:, 0])).sum(-1)) / 12


def product(points, weights):
    return (weights * points.amax(-1)).sum(-1) * (1 - (weights * points[:, 0]).sum(-1))


FUNCTIONS = {"deviation": (deviation, 1, 1.0), "variance": (variance, 1, 2.0), "distance": (distance, 1, 1.0),
             "waves": (waves, 1, 1.0), "product": (product, 2, 2.0)}  # fmt: skip
EACH = pytest.mark.parametrize("name", FUNCTIONS)


def network(name, cells=None, masses=6, **more):
    F, coordinates, lipschitz = FUNCTIONS[name]
    cells = cells or (5 if coordinates == 1 else 2)
    tokens = dict.fromkeys("xy"[:coordinates], (0.0, 1.0))
    return ic.universal(F, tokens, cells, masses, **{"lipschitz": lipschitz} | more)


def prompts(model, count, seed):
    """Uniform tokens, tokens on the edges of cells, masses at half a unit, tight clusters, and the corners."""
    draw = torch.Generator().manual_seed(seed)
    t, lattice = len(model.names), model.lattice
    edges = [torch.linspace(0, 1, cells + 1, dtype=D) for cells in lattice.cells]
    for i in range(count):
        n = int(torch.exp(8.5 * torch.rand((), generator=draw)))
        x = torch.rand(n, t, generator=draw, dtype=D)
        if i % 5 == 1:
            x = torch.stack([e[torch.randint(len(e), (n,), generator=draw)] for e in edges], -1)
        elif i % 5 == 2:
            unit, nodes = 2 * lattice.masses, torch.tensor(lattice.points())
            cuts = torch.randint(unit + 1, (len(nodes) - 1,), generator=draw).sort().values
            at = nodes[torch.searchsorted(cuts, torch.arange(unit), right=True)]
            x = (at + 0.5 * torch.tensor(lattice.widths) * (2 * x[:1] - 1).sign()).clamp(0, 1).repeat(1 + n // unit, 1)
        elif i % 5 == 3:
            x = (x[:1] + 0.01 * (x - 0.5)).clamp(0, 1)
        elif i % 5 == 4:
            x = (x < x[:1]).double()
        yield x[:5000]


@EACH
def test_the_bound_holds_on_prompts_that_were_chosen_to_break_it(name):
    model = network(name)
    assert model.certificate.level == "conditional"
    worst = max(float((model(x) - model.exact(x)).abs().max()) for x in prompts(model, 100, seed=1))
    assert 0.05 * model.bound < worst <= model.bound


@EACH
def test_errors_fall_as_cells_and_masses_grow(name):
    sizes = [(2, 2), (4, 4), (8, 8)] if FUNCTIONS[name][1] == 1 else [(2, 2), (3, 4)]
    models = [network(name, *size) for size in sizes]
    worst = [max(float((m(x) - m.exact(x)).abs().max()) for x in prompts(models[0], 60, seed=2)) for m in models]
    for (coarse, fine), (wide, narrow) in zip(
        itertools.pairwise(m.bound for m in models), itertools.pairwise(worst), strict=True
    ):
        assert fine < coarse
        assert narrow < wide


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 5), st.integers(1, 6), st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_no_list_of_tokens_breaks_the_bound(cells, masses, tokens):
    model = ic.universal(distance, {"x": (0, 1)}, cells, masses, lipschitz=1.0)
    found = model(torch.tensor(tokens, dtype=D)[:, None]).item()
    assert abs(found - wasserstein_distance(tokens, [0.25, 0.75])) <= model.bound


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4), st.integers(1, 3), st.integers(1, 4), st.integers(0, 10**6))
def test_rounding_cumulative_sums_stays_within_half_a_unit_a_step(first, second, masses, seed):
    """The step of the proof that is new here: W_1 along the path, and the nearest lattice point."""
    lattice = Lattice(((0.0, 1.0), (-1.0, 3.0)), (first, second), masses)
    draw = np.random.default_rng(seed)
    m = draw.dirichlet(np.ones(lattice.nodes) * 0.3)
    sums = np.cumsum(m)[:-1]
    nearest = np.round(sums * masses) / masses
    keys = lattice.sums() / masses
    squares = ((keys - sums) ** 2).sum(-1)
    assert squares.min() == pytest.approx(((nearest - sums) ** 2).sum(), abs=1e-12)
    steps = np.array(lattice.steps())
    assert steps @ np.abs(nearest - sums) <= steps.sum() / (2 * masses) + 1e-12
    points = lattice.points()
    assert np.allclose(np.linalg.norm(np.diff(points, axis=0), axis=-1), steps)
    assert len({tuple(p) for p in points.tolist()}) == lattice.nodes


def test_every_form_is_the_same_network():
    model = network("product", 2, 3)
    x = torch.rand(3, 4, 2, generator=torch.Generator().manual_seed(0), dtype=D)
    found = model(x)
    assert found.shape == (3, 1)
    assert (model.literal()(x) - found).abs().max() < 1e-12
    assert (model.as_self_attention(4)(x) - found).abs().max() < 1e-12
    assert ah.walk(model, x).softmax == 2
    mask = torch.tensor([True, False, True, True])
    assert (model(x[0], mask) - model(x[0][mask])).abs().max() < 1e-12
    assert torch.equal(model(torch.where(mask[:, None], x[0], torch.nan), mask), model(x[0], mask))
    assert (model.exact(x[0], mask) - model.exact(x[0][mask])).abs().max() < 1e-12
    assert model.resources.layers == 3
    assert model.keys == 20


def test_a_module_as_function_is_no_part_of_the_network(tmp_path):
    class Mean(torch.nn.Linear):
        def forward(self, points, weights):
            return weights @ super().forward(points)[:, 0]

    f = Mean(1, 1).double()
    model = ah.in_context.universal(f, {"x": (0, 1)}, 4, 4, lipschitz=9.0)
    assert model.F is f
    assert not [name for name in model.state_dict() if name.startswith("F")]
    model.save(tmp_path / "model.safetensors")
    assert ah.load(tmp_path / "model.safetensors").certificate.level == "conditional"


def test_several_outputs_ranges_and_dtypes():
    def both(points, weights):
        return torch.stack([(weights * points[:, 0]).sum(-1), (weights * points[:, 1]).sum(-1)], -1)

    tokens = {"a": (100.0, 101.0), "b": (-3.0, 1.0)}
    x = torch.rand(50, 40, 2, generator=torch.Generator().manual_seed(0), dtype=D) * torch.tensor([1.0, 4.0])
    x = x + torch.tensor([100.0, -3.0])
    for dtype in (D, torch.float32):
        model = ic.universal(both, tokens, (2, 4), 4, lipschitz=1.0, dtype=dtype, examples=100)
        given = x.to(dtype)
        assert model(given).shape == (50, 2)
        assert (model(given) - model.exact(given)).abs().max() <= model.bound
        assert (model.literal()(given) - model.exact(given)).abs().max() <= model.bound
        assert ah.walk(model, given[0]).softmax == 2


def test_a_plan_is_what_is_built():
    tokens = {"x": (0.0, 2.0)}
    plan = ic.plan_universal(0.4, tokens, lipschitz=1.0)
    model = ic.universal(lambda p, w: (w * p[:, 0]).sum(-1), tokens, plan.cells, plan.masses, lipschitz=1.0)
    assert plan.bound <= 0.4
    assert (model.keys, model.measures.beta) == (plan.keys, plan.beta)
    assert model.bound == pytest.approx(plan.bound, rel=1e-9)
    fine = ic.plan_universal(0.04, tokens, lipschitz=1.0)
    assert fine.keys > 10**12
    with pytest.raises(ah.SizeError, match="cannot be avoided"):
        ic.universal(waves, tokens, fine.cells, fine.masses, lipschitz=1.0)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.integers(1, 12), st.floats(1e-3, 1e3))
def test_the_beta_that_is_taken_leaves_a_small_part_of_the_bound(cells: int, masses: int, side: float):
    lattice = Lattice(((0.0, side),), (cells,), masses)
    placed, counted = side / (2 * cells), (side - side / cells) / (2 * masses)
    found = float(lattice.error(lattice.beta(), 1000, 2**-53))
    assert placed + counted <= found <= (placed + counted * (1 + 1 / 32)) * (1 + 1e-6)


def test_what_is_wrong_is_refused_with_a_sentence():
    model = network("variance", examples=100)
    x = torch.rand(5, 1, dtype=D)
    for prompt, words in [
        ((x[:0],), "empty prompt"),
        ((x * torch.nan,), "not finite"),
        ((x - 2,), "outside the declared"),
        ((x[0],), "tokens must be"),
        ((torch.rand(5, 2, dtype=D),), "tokens must be"),
        ((x, torch.zeros(5, dtype=torch.bool)), "without examples"),
        ((torch.rand(101, 1, dtype=D),), "examples=101"),
    ]:
        with pytest.raises(ah.InputError, match=words):
            model(*prompt)
    for change, words in [
        ({"lipschitz": 0.1}, "too small"),
        ({"lipschitz": -1}, "positive"),
        ({"cells": 1}, "one node"),
        ({"cells": (2, 2)}, "2 entries for 1"),
        ({"masses": 0}, "masses"),
        ({"tokens": {}}, "dictionary of ranges"),
        ({"tokens": {"x": (1, 0)}}, "lower first"),
        ({"F": None}, "callable"),
        ({"F": lambda p, w: w[..., 0] / 0}, "finite"),
    ]:
        arguments = {"F": lambda p, w: w[:, :1].squeeze(-1), "tokens": {"x": (0, 1)}, "cells": 3, "masses": 2,
                     "lipschitz": 100.0} | change  # fmt: skip
        if "lipschitz" in change:
            arguments["F"] = variance
        with pytest.raises(ah.InputError, match=words):
            ic.universal(**arguments)
    with pytest.raises(ah.ShapeError, match="outputs"):
        ic.universal(lambda p, w: w.sum(), {"x": (0, 1)}, 3, 2, lipschitz=1.0)
    with pytest.raises(ah.InputError, match="tol"):
        ic.plan_universal(0, {"x": (0, 1)}, lipschitz=1.0)


def test_what_other_theorems_have_and_this_has_not_is_a_sentence() -> None:
    model = ah.in_context.universal(lambda p, w: w @ p[:, 0], {"x": (0, 1)}, cells=4, masses=4, lipschitz=1.0)
    for name in ("plot", "matrices"):
        assert not hasattr(model, name)
        with pytest.raises(ah.MissingPartError, match=rf"no {name}\(\): .*cells"):
            getattr(model, name)
    assert f"{model.keys:,} lattice measures, the keys of the last head" in str(model)
    assert f"keys {model.resources.keys:,} in all of them" in str(model)


@pytest.mark.parametrize(
    "counting",
    [
        lambda points, weights: (weights * points[:, 0]).sum(-1) * len(points) / 4,
        lambda points, weights: weights.square().sum(-1),
        lambda points, weights: points[0, 0] + 0 * weights.sum(-1),
        lambda points, weights: (weights * points[:, 0]).sum(-1) - (weights @ points[:, 0]).mean(),
    ],
)
def test_a_function_of_more_than_the_weighted_points_is_refused(counting):
    with pytest.raises(ah.InputError, match="weighted points alone"):
        ah.in_context.universal(counting, {"x": (0, 1)}, 4, 4, lipschitz=10.0)
