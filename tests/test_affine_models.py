"""An affine target is a network without heads: it is drawn, told and exported, and refused where heads are needed."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import anchorhead as ah
from anchorhead.cli import app
from anchorhead.explore.gallery import file_entries

BOX = {"x": (-1, 1), "y": (-1, 2)}
FORMULAS: dict[str, tuple[str, object, Callable[[Tensor], Tensor]]] = {
    "plane": ("x + 2*y", BOX, lambda x: x[:, :1] + 2 * x[:, 1:]),
    "constant": ("x - x + 3 + 0*y", BOX, lambda x: 3 + 0 * x[:, :1]),
    "line": ("2*x + 1", (-1, 1), lambda x: 2 * x + 1),
    "slices": ("x + 2*y - z", (-1, 1), lambda x: x[:, :1] + 2 * x[:, 1:2] - x[:, 2:]),
}


def affine(name: str) -> ah.CompiledModel:
    formula, domain, _ = FORMULAS[name]
    return ah.compile(formula, domain, method="graph")


@pytest.mark.parametrize("name", FORMULAS)
def test_an_affine_model_is_drawn_without_a_panel_of_heads(name: str) -> None:
    model = affine(name)
    assert model.resources.heads == 0
    figure = model.plot()
    figure.savefig(io.BytesIO())
    assert not any(axes.get_ylabel().startswith("key") for axes in figure.axes)
    assert any("error" in axes.get_ylabel() + axes.get_xlabel() for axes in figure.axes)
    assert "attention" not in model._repr_html_().split("as attention", 1)[1]


@pytest.mark.parametrize("name", FORMULAS)
def test_a_scale_of_errors_begins_at_zero(name: str) -> None:
    for axes in affine(name).plot().axes:
        if axes.get_xlabel() == "|error|":
            assert axes.get_xlim()[0] == 0


@pytest.mark.parametrize("name", FORMULAS)
def test_what_an_affine_model_computes_is_told_and_exported(name: str, tmp_path: Path) -> None:
    model, meant = affine(name), FORMULAS[name][2]
    x = torch.rand(7, len(model.certificate.domain), dtype=torch.float64)
    assert torch.allclose(model.mechanism.run(x).outputs, meant(x))
    assert torch.allclose(model(x.reshape(7, *(model.input_shape or (1,)))).reshape(7, 1), meant(x))
    assert not model.mechanism.heads
    assert not model.mechanism.run(x).outside
    given = x if model.input_shape else x[:, 0]
    assert ah.diagnose(model, given).healthy
    [axes] = model.report.plot().axes
    assert axes.get_title(loc="left") == "no nodes: the model is an affine map"
    runtime = pytest.importorskip("onnxruntime")
    ah.export_onnx(model, tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    [found] = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert np.allclose(found.reshape(7, 1), meant(x))


@pytest.mark.parametrize("name", FORMULAS)
def test_what_needs_heads_says_that_there_are_none(name: str, tmp_path: Path) -> None:
    model, path = affine(name), tmp_path / "model.safetensors"
    model.save(path)
    needing: list[Callable[[], object]] = [lambda: model.as_self_attention(2), model.to_stock_attention]
    if pytest.importorskip("transformer_lens"):
        needing += [lambda: ah.to_hooked(model), lambda: ah.to_bridge(model)]
    for call in needing:
        with pytest.raises(ah.InputError, match=r"an affine map: .* model\.mechanism\.outputs are its lines"):
            call()
    with pytest.raises(ah.InputError, match="has none: it is affine"):
        file_entries(path)


def test_an_affine_module_and_a_saved_model_are_drawn(tmp_path: Path) -> None:
    module = nn.Linear(2, 3, dtype=torch.float64)
    ah.compile(module, (-1, 1)).plot().savefig(io.BytesIO())
    path, figure = tmp_path / "model.safetensors", tmp_path / "figure.png"
    affine("plane").save(path)
    found = CliRunner().invoke(app, ["show", str(path), "--plot", str(figure)])
    assert found.exit_code == 0
    assert figure.stat().st_size > 1000
