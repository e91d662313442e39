"""Diagnosing look-ups on own columns: nothing is found in one as it was built, and what was changed is."""

import pytest
import torch

import anchorhead as ah
from anchorhead.lab.diagnosis import KINDS, diagnose_file
from anchorhead.theorems import attention_then_softmax, two_layer

UNIFORM, BOUNDARY, DRIFT, PRECISION, EDITED = KINDS


def wave(x):
    return torch.sin(3 * x) * x.sum((-2, -1), keepdim=True)


def laid(model, count=1000):
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(count, *model.size, generator=draw, dtype=torch.float64)
    edges = model.grid.edges()[torch.randint(model.grid.levels - 1, x.shape, generator=draw)]
    near = edges + (torch.rand(x.shape, generator=draw, dtype=torch.float64) - 0.5) * model.grid.slope * model.grid.cell
    return torch.cat([x, near]).to(model.dtype)


@pytest.mark.parametrize("shifts", [1, 3, 6])
@pytest.mark.parametrize("f", [["x3", "x2", "x1"], wave])
@pytest.mark.parametrize(("tokens", "levels"), [(3, 4), (3, 2)])
def test_a_look_up_on_own_columns_is_healthy_as_built(f, shifts, tokens, levels):
    model = two_layer(f, tokens, 1, levels, columns="own", shifts=shifts, slope=1 / 32)
    found = ah.diagnose(model, laid(model))
    assert found.healthy, str(found)
    assert found.error <= found.bound


def test_several_features_and_many_keys_are_healthy_too():
    for tokens, features, choice in ((3, 2, {}), (7, 1, {}), (3, 1, {"dtype": torch.float32, "shifts": 2})):
        model = two_layer(wave, tokens, features, 2, columns="own", slope=1 / 32, **choice)
        assert ah.diagnose(model, laid(model, 200)).healthy


@pytest.mark.parametrize("shifts", [1, 3])
def test_scores_that_shrink_are_found(shifts):
    model = two_layer(wave, 3, 1, 4, columns="own", shifts=shifts, slope=1 / 32)
    assert [f.kind for f in ah.diagnose(model, laid(model), score_factor=0.001).findings] == [UNIFORM]
    assert [f.kind for f in ah.diagnose(model, laid(model), score_factor=0.2).findings] == [DRIFT]


@pytest.mark.parametrize("shifts", [1, 3])
def test_values_that_were_changed_are_found(shifts):
    model = two_layer(wave, 3, 1, 4, columns="own", shifts=shifts, slope=1 / 32)
    with torch.no_grad():
        model.layer2.value[5] += 0.1
    assert [f.kind for f in ah.diagnose(model, laid(model)).findings] == [EDITED]


@pytest.mark.parametrize(("build", "choice"), [(two_layer, {"columns": "own"}), (attention_then_softmax, {})])
def test_the_file_of_a_look_up_is_diagnosed_over_its_box(build, choice, tmp_path):
    build(wave, 3, 1, 3, low=-1, high=2, **choice).save(tmp_path / "lookup.safetensors")
    found = diagnose_file(tmp_path / "lookup.safetensors", points=200)
    assert found.healthy
    assert not diagnose_file(tmp_path / "lookup.safetensors", points=200, score_factor=0.01).healthy


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_inputs_outside_the_box_are_named(dtype):
    model = ah.theorems.two_layer("sin(5*x1)", 1, 1, 64, low=0.1, high=1.1, dtype=dtype)
    inside = torch.tensor([0.1, 0.4, 1.1], dtype=dtype).reshape(-1, 1, 1)
    assert not ah.diagnose(model, inside).findings
    found = ah.diagnose(model, torch.cat([inside, inside + 3]))
    assert [(one.kind, one.where) for one in found.findings] == [("boundary artefacts", "outside the box")]
    assert found.findings[0].evidence.startswith(
        "3 inputs lie further than a cell outside the box [0.1, 1.1], where nothing"
    )
    assert found.error > 1
