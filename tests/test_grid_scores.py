"""Scores of the universal theorems' networks: stated as large as they get in the box, and held by the dtype."""

import itertools
import random

import pytest
import torch
from torch import nn

import anchorhead as ah
from anchorhead.model.attention import LiteralAttention, project
from anchorhead.theorems import attention_then_softmax, two_layer
from anchorhead.theorems.lookup import SoftmaxReadOut

BUILT = [
    *((two_layer, 1, 1, levels, {}) for levels in (2, 4, 43, 343)),
    (two_layer, 1, 2, 3, {"low": -3.0, "high": 40.0, "slope": 0.9, "beta": 1e5}),
    (attention_then_softmax, 2, 1, 5, {"low": 7.0, "high": 7.5, "ramp_anchors": 3}),
    (attention_then_softmax, 3, 1, 4, {"columns": "own"}),
    (two_layer, 3, 1, 4, {"columns": "own"}),
    (two_layer, 5, 1, 2, {"columns": "own", "slope": 1e-4}),
    (two_layer, 9, 1, 2, {"columns": "own"}),
    (two_layer, 3, 1, 3, {"columns": "own", "shifts": 3, "slope": 1 / 32}),
]


def at_corners(model, random_ones=100):
    n, d = model.size
    share = torch.cat(
        [
            torch.tensor(list(itertools.product((0.0, 1.0), repeat=n * d)), dtype=torch.float64),
            torch.rand(random_ones, n * d, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
        ]
    )
    x = model.grid.low + (model.grid.high - model.grid.low) * share
    return x.clamp(model.grid.low, model.grid.high).to(model.dtype).unflatten(-1, (n, d))


def largest_score(model, x):
    found, z = 0.0, x
    stages = [[*s] if isinstance(s, nn.Sequential) else [s] for s in model.literal().stages]
    for stage in itertools.chain(*stages):
        scores = None
        if isinstance(stage, LiteralAttention):
            layer = stage.attention
            scores = project(z[..., layer.keep, :], layer.query) @ project(z, layer.key).mT
        elif isinstance(stage, SoftmaxReadOut):
            scores = z * stage.beta
        found = found if scores is None else max(found, scores.abs().max().item())
        z = stage(z)
    return found


@pytest.mark.parametrize(("build", "tokens", "features", "levels", "choice"), BUILT)
def test_the_logit_range_is_the_largest_score_in_the_box(build, tokens, features, levels, choice):
    model = build(lambda x: x, tokens, features, levels, **choice)
    stated = model.resources.logit_range
    assert largest_score(model, at_corners(model)) == pytest.approx(stated, rel=1e-6)
    assert f"logits up to {stated:.4g}" in str(model)


@pytest.mark.parametrize("theorem", ["two_layer", "attention_then_softmax"])
def test_a_plan_has_the_logits_of_its_network(theorem):
    plan = ah.theorems.plan(theorem, low=-1, high=3, tol=0.5, tokens=1, features=1, lipschitz=2.0)
    model = getattr(ah.theorems, theorem)(lambda x: x, 1, 1, plan.levels, low=-1, high=3)
    assert largest_score(model, at_corners(model)) == pytest.approx(plan.logit_range, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_what_is_built_has_numbers_for_outputs_in_its_box(dtype):
    """Narrow boxes, wide ones, boxes away from zero, large values: refused with a sentence, or finite and in bound."""
    draw, built = random.Random(0), 0
    for _ in range(150):
        width = 10 ** draw.uniform(-6, 4.8) if dtype == torch.float16 else 10 ** draw.uniform(-39, 38)
        low, scale = width * draw.choice([0, -1, -0.5, 1.5, -2]), draw.choice([1.0, 1.0, 1e5])
        own, build = draw.random() < 0.4, draw.choice([two_layer, attention_then_softmax])
        tokens, levels = draw.choice([(3, 2), (12, 2)] if own else [(1, 2), (1, 5), (2, 3)])
        choice = {"slope": draw.choice([0.9, 0.4, 0.18, 1 / 16]), "selection_error": draw.choice([1e-6, 1e-2, 0.1])}
        f = lambda x, a=low, w=width, s=scale: s * torch.sin(3 * (x.double() - a) / w)
        try:
            model = build(f, tokens, 1, levels, low=low, high=low + width, dtype=dtype,
                          columns="own" if own else "appended", **choice)  # fmt: skip
        except (ah.PrecisionError, ah.InputError):
            continue
        built, x, model.outside = built + 1, at_corners(model, 20), "ignore"
        exact = f(x.double().clamp(low, low + width))  # an end may be rounded to outside
        assert model.literal()(x).isfinite().all()
        bound = model.bound_for(lipschitz=3.001 * scale / width, metric="sup")
        assert (model(x).double() - exact).abs().max() <= bound
    assert built >= 10


@pytest.mark.parametrize(("high", "dtype"), [(0.1, torch.float16), (1 / 128, torch.float16), (1e-36, torch.float32)])
def test_scores_that_overflow_in_the_box_are_refused(high, dtype):
    choice = {"tokens": 1, "features": 1, "levels": 2, "high": high, "slope": 0.2}
    with pytest.raises(ah.PrecisionError, match=r"numbers of this network reach .* for inputs in"):
        two_layer("x1", **choice, dtype=dtype)
    wide = two_layer("x1", **choice)
    with pytest.raises(ah.PrecisionError, match="numbers of this network reach"):
        wide.to(dtype)
    assert not ah.theorems.plan(
        "two_layer", high=high, tol=high / 4, tokens=1, features=1, lipschitz=1.0
    ).dtypes[str(dtype).removeprefix("torch.")]  # fmt: skip


def test_values_that_overflow_are_refused():
    with pytest.raises(ah.PrecisionError, match="f returned a value that is not finite at a grid point, in float16"):
        two_layer("7e4*x1", 1, 1, 2, slope=0.9, dtype=torch.float16, high=2)
    with pytest.raises(ah.PrecisionError, match="f has values of size"):
        two_layer("7e4*x1", 1, 1, 2, slope=0.9, high=2).to(torch.float16)


@pytest.mark.parametrize("anchors", [2, 9, 33])
def test_silent_keys_count_among_the_logits(anchors):
    head = ah.theorems.single_head([[1.0]] * 2, [0.0] * 2, -1, 3, anchors, causal=True, dtype=torch.float64)
    x = torch.linspace(-1, 3, 400, dtype=torch.float64).reshape(-1, 2, 1)
    layer, z = head.attention, head.lift(x)
    scores = project(z[:, layer.keep], layer.query) @ project(z, layer.key).mT
    assert scores.abs().max().item() == pytest.approx(head.resources.logit_range, rel=1e-9)
