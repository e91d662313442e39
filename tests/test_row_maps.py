"""Heads under other row maps than softmax: what is proved of them holds, and what is compiled for them is proved."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import anchorhead as ah
from anchorhead.cli import app
from anchorhead.enclosure.precision import precision
from anchorhead.head.head import Head
from anchorhead.row_maps import MAPS, row_map_named, row_map_of
from anchorhead.row_maps.row_map import RowMap

maps = ah.row_maps
EVERY = [maps.Softmax(), maps.FixedPoint(8, 8), maps.FixedPoint(12, 10, 6), maps.Rexp(), maps.Lut2D(),
         maps.LinearAttention(6), maps.GatedRecurrence(0.8), maps.Polynomial(3), maps.Sigmoid(), maps.ReLU(),
         maps.Sparsemax(), maps.Entmax15(), maps.Hardmax()]  # fmt: skip
PROVED = [m for m in EVERY if not m.reason]


def random_head(rng: np.random.Generator, most: int = 12) -> Head:
    """Evenly spaced keys with concave intercepts, or any; values of any size, some of them affine."""
    keys = int(rng.integers(2, most + 1))
    k = np.arange(keys) - (keys - 1) / 2
    curvature, spacing = 10 ** rng.uniform(-1.3, 0.5), 10 ** rng.uniform(-1, 0)
    scores = {"slopes": 2 * curvature / spacing * k, "intercepts": -curvature * k * k}
    if rng.random() < 0.5:
        scores = {"slopes": rng.normal(size=keys) * 10 ** rng.uniform(-1, 1.5),
                  "intercepts": rng.normal(size=keys) * 10 ** rng.uniform(-1, 1)}  # fmt: skip
    values = {"constants": rng.normal(size=keys) * 10 ** rng.uniform(-1, 3),
              "gains": rng.normal(size=keys) * (rng.random() < 0.3)}  # fmt: skip
    return Head.of(**scores, **values, horner=False)


def evaluated(head: Head, row_map: RowMap, x: torch.Tensor) -> torch.Tensor:
    numbers = {name: torch.tensor(part) for name, part in head.arrays.items()}
    scores = x[:, None] * numbers["slopes"] + numbers["intercepts"]
    return (row_map.weights(scores) * (numbers["constants"] + x[:, None] * numbers["gains"])).sum(-1)


@pytest.mark.parametrize("seed", range(4))
def test_the_fixed_point_bound_is_never_broken_and_seldom_loose(seed: int) -> None:
    """2,500 heads, bit widths and intervals each: the bound holds, and for half of them a tenth of it is attained."""
    rng, ratios = np.random.default_rng(seed), []
    for _ in range(2500):
        head = random_head(rng, 8)
        bits = int(rng.integers(2, 17)), int(rng.integers(3, 17)), int(rng.integers(3, 11))
        row_map = maps.FixedPoint(*bits[: 2 + int(rng.integers(2))])
        low = rng.uniform(-2, 2)
        high = low + 10 ** rng.uniform(-4, -0.5)
        curve, middle = row_map.curve(head), (low + high) / 2
        with precision():
            boxes = [curve.change(a, b) + curve.rounding(a, b) for a, b in itertools.pairwise((low, middle, high))]
        bound = max(float(box.upper()) for box in boxes)
        x = torch.from_numpy(rng.uniform(low, high, 100))
        worst = float((evaluated(head, row_map, x) - torch.from_numpy(head(x.numpy()))).abs().max())
        assert worst <= bound + 1e-12 * head.largest_value, (head, row_map, low, high)
        ratios.append(bound / max(worst, 1e-300))
    assert np.median(ratios) < 10


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(PROVED))
def test_every_curve_holds_what_the_map_computes(seed: int, row_map: RowMap) -> None:
    """At points, against the weights in float64: within the Taylor form's value, its slack and rounding."""
    rng = np.random.default_rng(seed)
    head = random_head(rng, 6)
    curve = row_map.curve(head)
    assert curve is not None
    places = rng.uniform(-2, 2, 8)
    found = evaluated(head, row_map, torch.from_numpy(places))
    for place, value in zip(places.tolist(), found.tolist(), strict=True):
        with precision():
            near = [abs(part.jet(arb_of(place), 0)[0] - value) - part.slack for part in curve.parts(place, place)]
            slack = float(curve.rounding(place, place).upper())
        assert min(float(n.lower()) for n in near) <= slack, (row_map, head, place)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([maps.Sparsemax(), maps.ReLU()]))
def test_pieces_are_those_of_the_map_everywhere(seed: int, row_map: RowMap) -> None:
    """The exact sweep against the map's own weights, far out too."""
    head = random_head(np.random.default_rng(seed), 10)
    curve = row_map.curve(head)
    assert curve is not None
    places = np.concatenate([np.linspace(-3, 3, 41), [-1e3, -50.0, 50.0, 1e3]])
    for place, value in zip(places.tolist(), evaluated(head, row_map, torch.from_numpy(places)).tolist(), strict=True):
        with precision():
            values = [float(part.jet(arb_of(place), 0)[0]) for part in curve.parts(place, place)]
            slack = float(curve.rounding(place, place).upper())
        assert min(abs(v - value) for v in values) <= slack


def arb_of(place: float) -> object:
    from flint import arb

    return arb(place)


@pytest.mark.parametrize("row_map", EVERY, ids=lambda m: m.name)
def test_a_compiled_head_with_another_map(row_map: RowMap, tmp_path: Path) -> None:
    """Every map: weights are read, the certificate says what is known, a file gives the same model back."""
    model = ah.compile("sin(3*x)", (-1, 1), tol=1e-4, method="smooth").with_row_map(row_map)
    x = torch.linspace(-1, 1, 3001, dtype=torch.float64)
    worst = float((model(x) - torch.sin(3 * x)).abs().max())
    assert worst <= model.certificate.bound * (1 + 1e-9)
    assert model.certificate.level == ("measured" if row_map.reason else "proved")
    assert torch.allclose((model.attention(x)[0].squeeze(-2) * model.network.head.constants).sum(-1), model(x))
    path = tmp_path / "mapped.safetensors"
    model.save(path)
    assert torch.equal(ah.load(path)(x), model(x))
    if row_map.reason:
        with pytest.raises(ah.VerificationError, match="measured"):
            ah.verify(path)
        assert row_map.reason in model.certificate.assumptions[0]
    else:
        assert ah.verify(path).bound == model.certificate.bound


def test_edited_numbers_are_not_what_was_proved(tmp_path: Path) -> None:
    model = ah.compile("sin(3*x)", (-1, 1), tol=1e-2, row_map=maps.Sparsemax())
    with torch.no_grad():
        model.network.head.constants[0] += 0.1
    assert model.certificate.level == "unproved"
    model.save(tmp_path / "edited.safetensors")
    with pytest.raises(ah.VerificationError, match="Under sparsemax"):
        ah.verify(tmp_path / "edited.safetensors")


@pytest.mark.parametrize("row_map", [maps.Sparsemax(), maps.ReLU()])
def test_sparsemax_and_relu_are_the_interpolant(row_map: RowMap) -> None:
    model = ah.compile("sin(3*x)", (-1, 1), keys=16, row_map=row_map)
    x, places = torch.linspace(-1, 1, 10_001, dtype=torch.float64), np.linspace(-1, 1, 16)
    assert np.abs(model(x).numpy() - np.interp(x.numpy(), places, np.sin(3 * places))).max() < 1e-12
    assert model.certificate.level == "proved"
    assert model.certificate.bound < 9 * (2 / 15) ** 2 / 8 + 1e-3  # h² max|f''|/8


def test_sigmoid_heads_reach_gelu() -> None:
    model = ah.compile("gelu(x)", (-8, 8), tol=1e-6, row_map=maps.Sigmoid())
    assert model.certificate.level == "proved"
    assert model.certificate.bound <= 1e-6
    assert model.resources.keys <= 32
    x = torch.linspace(-8, 8, 20_001, dtype=torch.float64)
    assert float((model(x) - torch.nn.functional.gelu(x)).abs().max()) <= model.certificate.bound


def test_polynomial_attention_reaches_a_sine(tmp_path: Path) -> None:
    model = ah.compile("sin(3*x)", (-1, 1), tol=1e-7, row_map=maps.Polynomial(11))
    assert model.certificate.bound <= 1e-7
    assert model.resources.keys == 12
    model.save(tmp_path / "polynomial.safetensors")
    assert ah.verify(tmp_path / "polynomial.safetensors").level == "proved"


def test_polynomial_attention_multiplies_exactly() -> None:
    """Degree two: a square, and so products, up to rounding."""
    assert ah.compile("x**2", (-3, 5), tol=1e-12, row_map=maps.Polynomial(2)).certificate.bound < 1e-12


def test_sparsemax_and_entmax_sum_to_one_and_agree_with_their_definitions() -> None:
    scores = torch.randn(200, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    for row_map, power, factor in ((maps.Sparsemax(), 1.0, 1.0), (maps.Entmax15(), 2.0, 0.5)):
        weights = row_map.weights(scores)
        low, high = factor * scores.amax(-1) - 1, factor * scores.amax(-1)
        for _ in range(80):  # tau by bisection
            tau = (low + high) / 2
            over = (factor * scores - tau[:, None]).relu().pow(power).sum(-1) > 1
            low, high = torch.where(over, tau, low), torch.where(over, high, tau)
        assert torch.allclose(weights, (factor * scores - low[:, None]).relu().pow(power), atol=1e-12)


def test_refusals() -> None:
    for wrong in (lambda: maps.FixedPoint(0, 8), lambda: maps.FixedPoint(8, 8, 40), lambda: maps.Polynomial(1.5),
                  lambda: maps.LinearAttention(3), lambda: maps.GatedRecurrence(1.0)):  # fmt: skip
        with pytest.raises(ah.InputError):
            wrong()
    with pytest.raises(ah.InputError, match="with_row_map"):
        ah.compile("sin(3*x)", (-1, 1), row_map=maps.FixedPoint(8, 8))
    with pytest.raises(ah.InputError, match="bounded"):
        ah.compile("gelu(x)", row_map=maps.Sigmoid())
    with pytest.raises(ah.InputError, match="bounded"):
        ah.compile("gelu(x)", tol=1e-3).with_row_map(maps.Sigmoid())
    with pytest.raises(ah.InputError, match="row_maps"):
        ah.compile("sin(x)", (-1, 1), row_map="sigmoid")
    with pytest.raises(ah.ToleranceError, match="sparsemax"):
        ah.compile("sin(3*x)", (-1, 1), tol=1e-9, row_map=maps.Sparsemax())
    with pytest.raises(ah.StructureError, match="no softmax"):
        ah.compile("sin(3*x)", (-1, 1), tol=1e-2, row_map=maps.Sparsemax()).as_self_attention(3)


def test_small_values_keep_more_in_few_bits() -> None:
    """Sixteen keys whose values hardly exceed the target's: 4e-3 in 8 bits, where no limit loses far more."""
    x = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    small = ah.compile("sin(3*x)", (-1, 1), tol=1e-3, method="smooth", largest_value=1.06)
    assert small.largest_value <= 1.06
    assert small.resources.keys <= 16
    kept = small.with_row_map(maps.FixedPoint(16, 8))
    assert float((kept(x) - torch.sin(3 * x)).abs().max()) <= 4e-3
    assert kept.certificate.bound <= 4e-3
    fine = ah.compile("sin(3*x)", (-1, 1), keys=16, method="smooth", largest_value=1.12)
    assert fine.with_row_map(maps.FixedPoint(16, 16)).certificate.bound <= 4e-5


def test_a_plan_shows_keys_against_span() -> None:
    options = ah.plan("sin(3*x)", (-1, 1), tol=1e-3, largest_value=[2.0, 4.0]).options
    limited = {o.method: o for o in options if o.method.startswith("smooth, values to")}
    assert list(limited) == ["smooth, values to 4", "smooth, values to 2"]  # more keys for less
    assert all(o.largest_value <= limit for o, limit in zip(limited.values(), (4.0, 2.0), strict=True))


def test_values_that_are_too_small_are_refused() -> None:
    with pytest.raises(ah.ToleranceError, match=r"values of at most 0\.5"):
        ah.compile("sin(3*x)", (-1, 1), tol=1e-3, method="smooth", largest_value=0.5, limit=6)
    with pytest.raises(ah.InputError, match="one variable"):
        ah.compile("x*y", (-1, 1), largest_value=2.0)
    with pytest.raises(ah.InputError, match="positive"):
        ah.compile("sin(x)", (-1, 1), largest_value=-1.0)


def test_a_file_names_a_map_that_exists() -> None:
    for row_map in EVERY:
        assert row_map_of(row_map.record()) == row_map
    assert len(MAPS) == 12
    for record in ({"name": "nothing"}, None, {"name": "polynomial"}, {"name": "polynomial", "degree": -1}):
        with pytest.raises(ah.FileError):
            row_map_of(record)


@pytest.mark.parametrize(("name", "level"), [("sigmoid", "proved"), ("fixed_point:16,12", "proved"),
                                             ("polynomial:9", "proved"), ("hardmax", "measured")])  # fmt: skip
def test_the_command_names_maps(name: str, level: str, tmp_path: Path) -> None:
    """Those with a construction have their values solved for them, under the others the head for softmax runs."""
    file = tmp_path / "mapped.safetensors"
    found = CliRunner().invoke(app, ["compile", "sin(x)", "-d", "x=-1:1", "--tol", "1e-3", "--row-map", name,
                                     "--json", "-o", str(file)])  # fmt: skip
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["certificate"]["level"] == ah.load(file).certificate.level == level


@pytest.mark.parametrize("name", ["softmin", "polynomial", "sigmoid:3", "fixed_point:8,__import__('os')", "relu:["])
def test_a_command_that_names_no_map_is_refused(name: str) -> None:
    with pytest.raises(ah.InputError, match=r"is no row map|takes"):
        row_map_named(name)


def test_scores_so_steep_that_a_box_tells_nothing_are_cut_not_raised() -> None:
    head = ah.compile("max(x, -0.4)", (-1, 1), method="smooth", tol=1e-2, dtype=torch.float32)
    mapped = head.with_row_map(maps.Sigmoid())
    x = torch.linspace(-1, 1, 5001)
    assert mapped.certificate.level == "proved"
    assert (mapped(x) - x.clamp(min=-0.4)).abs().max().item() <= mapped.certificate.bound
