"""`matrices()` is the whole network, by the recipe on the page of the theorems; and what `parameters` counts of it."""

import doctest
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchorhead.theorems import attention_then_softmax, multi_head, single_head, two_layer

PAGE = Path(__file__).parents[1] / "docs/theorems/README.md"
KINDS = ["single", "causal", "multi", "two", "two, own", "two, shifts", "softmax", "softmax, own"]


def recipe():
    """`evaluate` as the page defines it, which has NumPy and nothing else."""
    known: dict = {}
    for example in doctest.DocTestParser().get_examples(PAGE.read_text(encoding="utf-8")):
        if example.source.startswith(("import functools", "import numpy", "def ")):
            exec(example.source, known)
    return known["evaluate"]


def network(kind, tokens, features, size, seed, dtype=torch.float64):
    """One of that kind, from random ramps or a random map, with inputs in and outside of its range or box."""
    draw = torch.Generator().manual_seed(seed)
    weights, bias = torch.randn(tokens, features, generator=draw), torch.randn(tokens, generator=draw)
    x = 0.5 + 0.6 * torch.randn(tokens, features, generator=draw)
    mixed = torch.randn(tokens * features, 2 * tokens, generator=draw)
    f = lambda x: torch.sin(x.flatten(-2) @ mixed.to(x.dtype)).unflatten(-1, (tokens, 2))
    name, _, how = kind.partition(", ")
    if name in ("single", "causal"):
        model = single_head(weights, bias, -2, 3, tokens + size, output_features=2, output_row=lambda k: k % 2,
                            causal=name == "causal", dtype=dtype)  # fmt: skip
    elif name == "multi":
        model = multi_head(weights, bias, -2, 3, size, dtype=dtype)
    else:
        build = two_layer if name == "two" else attention_then_softmax
        more = {"": {}, "own": {"columns": "own"}, "shifts": {"columns": "own", "shifts": 3}}[how]
        model = build(f, tokens, features, size, dtype=dtype, **more)
    return model, x.to(dtype)


@given(st.sampled_from(KINDS), st.sampled_from([(3, 1), (4, 1), (3, 2)]), st.integers(2, 3), st.integers(0, 10**6))
def test_the_matrices_are_the_network_in_numpy_alone(kind, shape, size, seed):
    model, x = network(kind, *shape, 2 if shape == (3, 2) else size, seed)
    named = {name: matrix.numpy() for name, matrix in model.matrices().items()}
    assert {name: matrix.shape for name, matrix in named.items()} == model.shapes()
    found = recipe()(named, x.numpy(), causal=kind == "causal")
    np.testing.assert_allclose(found, model(x).numpy(), rtol=0, atol=1e-10)


def stored(kind, name, matrix, named):
    """How many entries of a matrix are numbers of the network, as the page says it."""
    if name.endswith("W_O") or name in ("between.weight", "between.bias"):
        return 0
    if name == "between.rows":
        return 0 if "between.digits" in named else matrix[:, 1:].numel()
    if name == "layer1.W_V":
        return matrix.shape[-1]
    if name == "layer1.W_K" or (kind, name) == ("multi", "W_Q"):
        return matrix[0].numel()
    return matrix.numel()


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_count_the_entries_of_the_matrices_that_are_stored(kind):
    model, _ = network(kind, 4, 1, 3, seed=0)
    named = model.matrices()
    counted = sum(stored(kind, name, matrix, named) for name, matrix in named.items())
    assert model.resources.parameters == counted
    assert model.resources.parameters == sum(w.numel() for k, w in model.numbers().items() if k.startswith("stages."))


def test_matrices_of_many_grid_points_take_no_more_than_they_hold():
    assert two_layer("x1*x2", 1, 2, 256).matrices()["layer2.W_O"].shape == (65536, 1)
