"""Two checkers that share no code agree: on files as they are saved, and on files in which a claim was made false."""

import ast
import hashlib
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import second_checker
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from second_checker import check
from torch import nn

import anchorhead as ah

INFINITE = float("inf")
SQUARE = {"x": (-1, 1), "y": (-1, 1)}
Edit = Callable[[dict[str, Any], dict[str, Any]], None]


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 2)).double()


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.LayerNorm(3), nn.Linear(3, 2)).double()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.maps = nn.ModuleList(nn.Linear(2, width) for width in (2, 2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(nn.functional.scaled_dot_product_attention(*(linear(x) for linear in self.maps)))


MADE: dict[str, Callable[[], Any]] = {
    "relu on R": lambda: ah.compile("relu(x)"),
    "tanh on R": lambda: ah.compile("tanh(x)", tol=1e-8),
    "a slope that no float is, on R": lambda: ah.compile("leaky_relu(x, 0.1) + x/3"),
    "gelu on R, float32": lambda: ah.compile("gelu(x)", tol=1e-3, dtype=torch.float32),
    "a half-line": lambda: ah.compile("exp(-x**2) + 2*x", (0, INFINITE), tol=1e-4),
    "sin on an interval": lambda: ah.compile("sin(3*x)", (-1, 1)),
    "kinks and curves": lambda: ah.compile("abs(x - 0.3) + sin(x)", (-1, 1), tol=1e-4),
    "a root at its end": lambda: ah.compile("sqrt(x)", (0, 1), tol=1e-2),
    "a power that is no fraction, from zero": lambda: ah.compile("abs(x)**(pi/2)", (-1, 1), tol=1e-3),
    "a power, relative": lambda: ah.compile("x**-0.5", (1e-3, 1e3), tol=1e-4, relative=True),
    "nearest keys": lambda: ah.compile("x**2", (0, 1), tol=0.1, method="nearest"),
    "a product in float32": lambda: ah.compile("x*y", SQUARE, dtype=torch.float32, method="graph"),
    "a product": lambda: ah.compile("x*y", SQUARE, method="graph"),
    "squares": lambda: ah.compile(
        "x**2 + y**2", {"x": (3, 5), "y": (1, 2)}, tol=1e-4, method="graph", evaluation="literal"
    ),
    "odd squares": lambda: ah.compile("x**2 + y**2", {"x": (3, 5), "y": (1, 2)}, tol=1e-4, method="graph"),
    "max and closed constants": lambda: ah.compile(
        ["max(x, y, x*y) + sqrt(2)*x", "abs(x - y)*tanh(pi*x)/(2 + y)"], SQUARE, tol=1e-4
    ),
    "a network, float32": lambda: ah.compile("sin(x*y) + relu(x - y)", SQUARE, tol=1e-2, dtype=torch.float32),
    "a root of what may vanish": lambda: ah.compile("sqrt(x**2 + y**2)", SQUARE, tol=3e-2),
    "a softmax": lambda: ah.compile(nn.Sequential(nn.Linear(2, 3), nn.Softmax(-1)).double(), (-1, 1), tol=1e-4),
    "a prompt": lambda: ah.in_context.compile(["mean(x*y)", "var(x)"], SQUARE, tol=1e-3),
    "a prompt with a query": lambda: ah.in_context.compile(
        "q*cov(x, sin(2*y))/(var(x) + 0.5)", SQUARE, {"q": (-1, 1)}, tol=1e-4
    ),
    "attention over a prompt": lambda: ah.in_context.compile(
        "attend(-5*(x - q)**2 + abs(y), tanh(y)) + mean(abs(x - mean(x)))", SQUARE, {"q": (-1, 1)}, tol=1e-3
    ),
    "a grid": lambda: ah.compile("x/(3 + y)", SQUARE, tol=1e-3, method="grid"),
    "sigmoid": lambda: ah.compile("sin(2*x)", (-1, 1), tol=1e-4, row_map=ah.row_maps.Sigmoid()),
    "polynomial": lambda: ah.compile("exp(x)", (-1, 2), tol=1e-3, row_map=ah.row_maps.Polynomial(6)),
    "relu": lambda: ah.compile("sin(2*x)", (-1, 1), tol=1e-2, row_map=ah.row_maps.ReLU()),
    "sparsemax": lambda: ah.compile("sin(2*x)", (-1, 1), tol=1e-2, row_map=ah.row_maps.Sparsemax()),
    "linear attention": lambda: ah.compile("sin(x)", (-1, 1), tol=1e-3).with_row_map(ah.row_maps.LinearAttention(8)),
    "eight bits": lambda: ah.compile("sin(x)", (-1, 1), tol=1e-3).with_row_map(ah.row_maps.FixedPoint(10, 8)),
    "a distance on R": lambda: ah.distance("gelu_tanh(x)", "gelu(x)"),
    "a distance of tables": lambda: ah.distance(ah.Table(-1, 1, [0.8, 0.4, 1], "nearest"), ah.Table(-1, 1, [1, 0, 1])),
    "a relative distance": lambda: ah.distance(
        ah.Piecewise([0, 1, 2], [[1, 1], [2, 1]], local=True), "exp(x)", relative=True
    ),
    "a distance of a model": lambda: ah.distance(ah.compile("tanh(x)", (-2, 2), tol=1e-4), "tanh(x)"),
    "gelu on R": lambda: ah.compile("gelu(x)", tol=1e-7),
    "nested products": lambda: ah.compile("sin(3*x*y) + exp(-x**2 + y/2)", SQUARE, tol=1e-6),
    "a perceptron": lambda: ah.compile(perceptron(), (-1, 1), tol=1e-5),
    "a layer norm": lambda: ah.compile(normed(), (0.2, 0.8), tol=1e-2, method="graph"),
    "attention": lambda: ah.compile(Attention().double(), (-1, 1), shape=(3, 2), tol=1e-4),
}
HEAVY = {
    "a prompt with a query",
    "attention over a prompt",
    "a layer norm",
    "gelu on R",
    "nested products",
    "a perceptron",
    "attention",
    "a grid",
    "max and closed constants",
}


@cache
def made(name: str) -> Any:
    return MADE[name]()


def named(*names: str) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.heavy] if name in HEAVY else []) for name in names]


def second_thoughts(path: Path) -> bool:
    """Whether the package's own checker refuses a file."""
    try:
        ah.verify(path)
    except ah.AnchorheadError:
        return True
    return False


def edited(name: str, path: Path, edit: Edit) -> None:
    """A copy of a saved file with the edit, and a digest that fits it."""
    made(name).save(path)
    with safe_open(path, "numpy") as file:
        record = json.loads(file.metadata()["anchorhead"])
        tensors = {key: file.get_tensor(key).copy() for key in file.keys()}  # noqa: SIM118
    edit(record, tensors)
    record.pop("digest")
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
    for key in sorted(tensors):
        digest.update(key.encode() + b"\0" + tensors[key].tobytes())
    record["digest"] = digest.hexdigest()
    save_file(tensors, path, {"anchorhead": json.dumps(record)})


def times(key: str, place: int, factor: float) -> Edit:
    def edit(_: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors[key][place] *= factor

    return edit


def becomes(key: str, place: int, value: float) -> Edit:
    def edit(_: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors[key][place] = value

    return edit


def says(*path: Any, by: Callable[[Any], Any]) -> Edit:
    def edit(record: dict[str, Any], _: dict[str, Any]) -> None:
        part: Any = record
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = by(part[path[-1]])

    return edit


def fewer_edges(record: dict[str, Any], tensors: dict[str, Any]) -> None:
    tensors["edges"] = tensors["edges"][:-1]
    record["certificate"]["boxes"] -= 1


def another_tensor(_: dict[str, Any], tensors: dict[str, Any]) -> None:
    tensors["more"] = np.zeros(1)


def halved(x: float) -> float:
    return x / 2


EDITS: list[tuple[str, str, Edit]] = [
    ("relu on R", "a gain", times("gains", 1, 1.01)),
    ("relu on R", "a gain on the far side", becomes("gains", 0, 1e-9)),
    ("relu on R", "a gate", times("gate_slopes", 1, 0.9)),
    ("relu on R", "the formula", says("expressions", 0, by=lambda text: "abs(x)")),
    ("relu on R", "the bound", says("certificate", "approximation", by=halved)),
    ("relu on R", "the sizes of pieces", says("sizes", by=lambda sizes: [2])),
    ("relu on R", "a tensor more", another_tensor),
    ("relu on R", "a rounding beyond its values", says("certificate", "rounding", by=lambda rounding: 2.0)),
    ("a product", "an end of the domain", says("domain", 0, 0, by=lambda low: "-inf")),
    ("tanh on R", "a constant", times("constants", 1, 1.01)),
    ("tanh on R", "a constant, a little", times("constants", 1, 1 + 1e-7)),
    ("tanh on R", "a slope", times("slopes", 0, 1.01)),
    ("tanh on R", "the formula", says("expressions", 0, by=lambda text: "tanh(1.001*x)")),
    ("tanh on R", "a gate of the only piece", becomes("gate_levels", 0, 0.5)),
    ("gelu on R, float32", "an intercept", becomes("intercepts", 2, 0.1)),
    ("gelu on R, float32", "the function", says("expressions", 0, by=lambda text: "silu(x)")),
    ("a half-line", "the domain", says("domain", 0, 0, by=lambda low: -1.0)),
    ("a half-line", "the other side", says("domain", 0, 0, by=lambda low: "-inf")),
    ("sin on an interval", "a constant", times("constants", 0, 1.01)),
    ("sin on an interval", "the domain", says("domain", 0, 1, by=lambda high: 1.25)),
    ("sin on an interval", "the last edge", becomes("edges", -1, 1.25)),
    ("sin on an interval", "the order of edges", becomes("edges", 3, 0.9)),
    ("sin on an interval", "the last box", fewer_edges),
    ("sin on an interval", "the number of boxes", says("certificate", "boxes", by=lambda boxes: boxes + 1)),
    ("relu on R", "the form", says("uniform", by=lambda uniform: True)),
    ("kinks and curves", "the kink", says("expressions", 0, by=lambda text: "abs(x - 0.301) + sin(x)")),
    ("a product", "a constant", times("heads.0.constants", 0, 1.01)),
    ("a product", "an entry", times("maps.0.entries", 1, 1.01)),
    ("a product", "the formula", says("expressions", 0, by=lambda text: "x*y + 0.00001*x")),
    ("a product", "the formula in the last digit", says("expressions", 0, by=lambda text: "x*(y + 1e-30)")),
    ("a product", "a bias", becomes("maps.0.bias", 0, 1e-3)),
    ("a product", "the gains of its head", becomes("heads.0.gains", 0, 1e-12)),
    ("a product in float32", "its unit", says("heads", 0, "relative", by=lambda _: False)),
    ("a product in float32", "its height", times("heads.0.constants", 0, 1.001)),
    ("a product in float32", "its head's bound", says("heads", 0, "approximation", by=halved)),
    ("odd squares", "a tilt", becomes("tilts", 1, 1e-3)),
    ("odd squares", "the domain", says("domain", 0, by=lambda pair: [-9.0, 5.0])),
    ("odd squares", "its rate", times("heads.0.slopes", 1, 1.001)),
    ("squares", "a scale", times("scales", 0, 1.01)),
    ("squares", "a tilt", times("tilts", 1, 1.01)),
    ("squares", "a shift", becomes("shifts", 0, 0.0)),
    ("squares", "the centre", says("uses", 0, 2, by=lambda centre: centre + 0.5)),
    ("squares", "the domain", says("domain", 0, by=lambda pair: [1.0, 5.0])),
    ("squares", "a head's bound", says("heads", 0, "approximation", by=lambda bound: bound / 100)),
    ("squares", "the circuit", says("program", "outputs", 0, 2, by=lambda number: "1000001/1000000")),
    ("squares", "a column", becomes("maps.1.columns", 1, 0)),
    ("max and closed constants", "a closed constant", says("program", "outputs", 0, 4, by=lambda text: "=sqrt(3)")),
    ("max and closed constants", "the bounds", says("certificate", "outputs", 1, by=halved)),
    ("max and closed constants", "the sharpness", times("scales", 1, 0.5)),
    ("max and closed constants", "what is kept", becomes("layers.0.kept", 0, 1)),
    ("max and closed constants", "a function", says("heads", 1, "function", by=lambda text: "relu(u)")),
    ("a softmax", "an entry", times("maps.0.entries", 0, 1.01)),
    ("a prompt", "an entry", times("maps.1.entries", 1, 1.01)),
    ("a prompt", "the formula", says("expressions", 1, by=lambda text: "var(x) + 0.00001*mean(x)")),
    ("a prompt", "what is a token's", says("program", "tokens", by=lambda tokens: 1)),
    ("a prompt", "a head", times("heads.0.constants", 0, 1.01)),
    ("a prompt with a query", "a column of another place", becomes("maps.0.columns", 0, 2)),
    ("a prompt with a query", "the domain of a token", says("domain", 0, by=lambda pair: [-3.0, 1.0])),
    ("a prompt with a query", "the bound", says("certificate", "approximation", by=halved)),
    ("attention over a prompt", "a score", times("maps.1.entries", 0, 1.05)),
    ("attention over a prompt", "the formula", says("expressions", 0, by=lambda text: text.replace("5*", "4*"))),
    ("a grid", "a value", times("values", 0, 1.01)),
    ("a grid", "a slope", times("axes.0.slopes", 0, 1.05)),
    ("a grid", "the formula", says("expressions", 0, by=lambda text: "x/(3 + y) + 0.002")),
    ("a grid", "the domain", says("domain", 1, by=lambda pair: [-2.0, 1.0])),
    *(
        (name, what, edit)
        for name in ("sigmoid", "polynomial", "relu", "sparsemax", "linear attention")
        for what, edit in (
            ("a constant", times("constants", 1, 1.1)),
            ("a slope", times("slopes", 1, 1.1)),
            ("the formula", says("expressions", 0, by=lambda text: text + " + 0.03")),
            ("the bound", says("certificate", "approximation", by=halved)),
        )
    ),
    ("polynomial", "the degree", says("row_map", "degree", by=lambda degree: degree - 1)),
    ("sigmoid", "the map", says("row_map", "name", by=lambda name: "softmax")),
    ("sparsemax", "the map", says("row_map", "name", by=lambda name: "relu")),
    ("eight bits", "the bits of exp", says("row_map", "exp_bits", by=lambda bits: 3)),
    ("eight bits", "a constant", times("constants", 1, 1.1)),
    *(
        (name, what, edit)
        for name in ("a distance on R", "a distance of tables", "a relative distance")
        for what, edit in (
            ("the upper end", says("claim", "upper", by=lambda upper: upper * 0.99)),
            ("the lower end", says("claim", "lower", by=lambda lower: lower * 1.01)),
            ("the place", says("claim", "at", by=lambda at: at + 0.3)),
        )
    ),
    ("a distance on R", "a formula", says("curves", 0, "formula", by=lambda text: text + " + x/1000000")),
    ("a distance of tables", "a value", times("curves.0.values", 2, 1.1)),
    ("a distance of tables", "how it is read", says("curves", 0, "interpolation", by=lambda _: "linear")),
    ("a relative distance", "its unit", says("claim", "relative", by=lambda _: False)),
    ("a relative distance", "a coefficient", times("curves.0.coefficients", 3, 1.3)),
    ("a distance of a model", "a constant", times("curves.0.constants", 1, 1.01)),
    ("a perceptron", "an entry", times("maps.1.entries", 3, 1.01)),
    ("a perceptron", "a weight of the target", says("program", "outputs", 0, 0, by=lambda bias: bias * 1.01)),
    ("attention", "an entry", times("maps.0.entries", 40, 1.01)),
]


@pytest.mark.parametrize("name", named(*MADE))
def test_both_checkers_find_that_a_saved_model_keeps_its_claim(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    made(name).save(path)
    verdict = check(path)
    assert verdict.ok, verdict
    assert not second_thoughts(path)
    assert any("rounding" in line for line in verdict.left_out)


@pytest.mark.parametrize(
    ("name", "edit"),
    [pytest.param(n, e, id=f"{n}: {w}", marks=[pytest.mark.heavy] * (n in HEAVY)) for n, w, e in EDITS],
)
def test_both_checkers_refuse_what_was_made_false(name: str, edit: Edit, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    edited(name, path, edit)
    assert second_thoughts(path)
    verdict = check(path)
    assert verdict.status == "refused", verdict
    assert verdict.reason


def test_what_it_cannot_judge_is_not_called_true(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    edited("sin on an interval", path, says("expressions", 0, by=lambda text: "bessel(x)"))
    assert check(path).status == "not checked"
    edited("sin on an interval", path, says("certificate", "level", by=lambda level: "measured"))
    assert check(path).status == "not checked"
    edited("relu on R", path, says("expressions", 0, by=lambda text: "sqrt(x**2 + 1)/2 + x/2"))
    assert not check(path).ok


def test_a_file_that_was_changed_by_accident_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    made("relu on R").save(path)
    data = bytearray(path.read_bytes())
    for place in (3, 200, len(data) - 5):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert check(path).status == "refused"
    path.write_bytes(data[:-8])
    assert check(path).status == "refused"


def test_the_second_checker_shares_no_code_with_the_package() -> None:
    tree = ast.parse(Path(second_checker.__file__).read_text())
    plain = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    from_ = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.split(".")[0] for name in plain + from_} <= sys.stdlib_module_names | {"flint"}
