"""What is seen of models, theorems, reports and plans: figures that belong to nobody, and pages for notebooks."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure
from matplotlib.text import Text
from torch import nn

import anchorhead as ah
from anchorhead import display
from anchorhead.drawing import write
from anchorhead.errors import FileError, InputError
from anchorhead.model.portrait import view as model_view
from anchorhead.theorems.portrait import view as theorem_view
from anchorhead.view import MOST_HEADS

SOURCE = Path(ah.__file__).parent
HOSTILE = '<script>alert("&")</script> $x$ \x1b[2K'


class Page(HTMLParser):
    """Tags that are open, and all text; refuses what is closed otherwise than it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.tags: set[str] = set()
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag not in ("br", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 2)).double()


def ramps() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(4, 3, generator=draw, dtype=torch.float64), torch.randn(4, generator=draw, dtype=torch.float64)


MODELS = {
    "a head on the line": lambda: ah.compile("gelu(x)", tol=1e-4),
    "a head far from zero": lambda: ah.compile("softplus(x)", (30, float("inf")), tol=1e-3),
    "relative": lambda: ah.compile("exp(x)", (0, 20), tol=1e-3, relative=True),
    "float32": lambda: ah.compile("x*y", (-1, 1), tol=1e-2, dtype=torch.float32),
    "a constant": lambda: ah.compile("2 + 0*x", (-1, 1), tol=1e-3),
    "two inputs": lambda: ah.compile(["sin(x)*y", "x + y"], (-1, 1), tol=1e-3),
    "many inputs": lambda: ah.compile(module(), (-1, 1), tol=1e-3),
    "a grid": lambda: ah.compile("sin(x)*y", (-1, 1), tol=1e-1, method="grid"),
    "a black box": lambda: ah.compile(lambda x: torch.special.bessel_j0(x).sum(-1, keepdim=True), [(-1, 1), (-2, 2)],
                                      tol=0.5, lipschitz=1.0),
    "a prompt": lambda: ah.in_context.compile("mean(x*y)", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-3),
    "a prompt and a query": lambda: ah.in_context.compile("q*mean(x)", {"x": (-1, 1)}, {"q": (-1, 1)}, tol=1e-3),
}  # fmt: skip
THEOREMS = {
    "single head": lambda: ah.theorems.single_head(*ramps(), low=-2, high=3, anchors=16),
    "causal, two rows": lambda: ah.theorems.single_head(*ramps(), low=-2, high=3, anchors=16, causal=True,
                                                        output_features=2, output_row=lambda k: k % 2),
    "multi head": lambda: ah.theorems.multi_head(*ramps(), low=-2, high=3, heads=3),
    "two layers, one input": lambda: ah.theorems.two_layer(torch.sin, tokens=1, features=1, levels=6),
    "two layers, two inputs": lambda: ah.theorems.two_layer(torch.sin, tokens=2, features=1, levels=4),
    "softmax, four inputs": lambda: ah.theorems.attention_then_softmax(torch.sin, tokens=2, features=2, levels=3),
    "own columns": lambda: ah.theorems.two_layer(torch.sin, tokens=3, features=1, levels=3, columns="own"),
}  # fmt: skip


def drawn(figure: Any) -> Figure:
    """A figure that is drawn to the end: panels with axes, and something in every one."""
    assert isinstance(figure, Figure)
    assert figure.canvas.manager is None  # no window
    assert len(figure._repr_png_()) > 5000
    assert all(axes.has_data() for axes in figure.axes)
    return figure


def errors(figure: Figure) -> tuple[np.ndarray, float] | None:
    """The largest measured error, and the least of the bound, of the panel that has both."""
    for axes in figure.axes:
        bounds = [line for line in axes.lines if line.get_linestyle() == "--"]
        if bounds:
            found = [np.max(np.nan_to_num(line.get_ydata())) for line in axes.lines if line not in bounds]
            return np.max(found), float(np.min(bounds[0].get_ydata()))
    return None


@pytest.mark.parametrize("name", MODELS)
def test_models_are_drawn_with_the_error_under_the_bound(name: str) -> None:
    model = MODELS[name]()
    figure = drawn(model.plot())
    shown = Page(model._repr_html_())
    assert "svg" in shown.tags
    assert model.certificate.expression in shown.text
    assert model.certificate.in_digits(model.certificate.bound, ".3e") in shown.text
    found = errors(figure)
    assert found is None or found[0] <= found[1]
    assert (found is None) == (name in ("two inputs", "float32", "a grid", "a black box"))
    if model.report is not None and model.report.nodes:
        drawn(model.report.plot())
        assert "table" in Page(model.report._repr_html_()).tags


@pytest.mark.parametrize("name", THEOREMS)
def test_theorems_are_drawn_with_the_error_under_the_bound(name: str) -> None:
    network = THEOREMS[name]()
    declared = {} if hasattr(network, "anchors") else {"lipschitz": 1.0}
    figure = drawn(network.plot(**declared))
    found = errors(figure)
    assert found is None or found[0] <= found[1]
    assert (found is None) == (name == "two layers, two inputs")
    shown = Page(network._repr_html_())
    assert f"{network.resources.keys:,}" in shown.text
    assert "svg" in shown.tags


@pytest.mark.parametrize("columns", ["appended", "own"])
def test_a_look_up_whose_function_is_not_in_its_file_is_drawn_without_an_error(columns: str, tmp_path: Path) -> None:
    made = ah.theorems.two_layer(lambda x: x.cos(), tokens=3, features=1, levels=3, columns=columns)
    made.save(tmp_path / "f.safetensors")
    network = ah.load(tmp_path / "f.safetensors")
    assert "svg" in Page(network._repr_html_()).tags
    for declared in ({}, {"lipschitz": 2.0}):
        figure = drawn(network.plot(**declared))
        assert not [axes for axes in figure.axes if "error" in axes.get_ylabel()]


def test_errors_are_drawn_as_they_are_and_zeros_are_gaps() -> None:
    network = ah.theorems.single_head([[1.0]], [0.0], -2, 1, anchors=20, beta=40.0)
    (panel,) = (axes for axes in network.plot().axes if axes.get_ylabel() == "|error|")
    drawn_there, line = np.asarray(panel.lines[0].get_ydata()), theorem_view(network).along(0)
    np.testing.assert_array_equal(drawn_there, np.where(line.error > 0, line.error, np.nan))
    inner = drawn_there[np.abs(line.x + 0.5) < 1]
    assert np.nanmax(inner) < 1e-4 * network.bound
    assert panel.get_ylim()[0] < np.nanmedian(inner)
    shown = display.sketch([0.0, 1.0, 2.0], [(display.RED, [1.0, 0.0, 1e-9])], "said", least=1e-3)
    assert shown.count("<polyline") == 2, "before and after the gap"


def test_figures_say_what_is_zero_and_what_is_left_out() -> None:
    said = lambda figure: [axes.get_ylabel() + axes.get_xlabel() for axes in figure.axes]
    figure = ah.gallery.load("recall").model.plot()
    (panel,) = (axes for axes in figure.axes if axes.get_ylabel() == "|error|")
    assert [line.get_label() for line in panel.lines] == [*(f"x{i}: zero" for i in range(8)), "proved bound"]
    assert not any("first" in text for text in said(figure))
    wide = ah.compile(nn.Sequential(nn.Linear(9, 2), nn.ReLU()).double(), (-1, 1), tol=1e-3)
    assert any(text.endswith("the first 8 of 9 inputs, from end to end, others resting") for text in said(wide.plot()))
    many = ah.compile("sin(3*x)", (-1, 1), method="nearest", keys=200)
    assert any(text.startswith("key (128 of 200)") for text in said(many.plot()))


def test_the_figure_of_a_look_up_has_its_function_and_the_head_that_looks_up() -> None:
    network = ah.theorems.two_layer("x1*x2", 1, 2, levels=8)
    assert network.resources.heads > MOST_HEADS
    axes = network.plot().axes
    (values,) = (panel for panel in axes if panel.get_title(loc="left").startswith("the network, with lines of"))
    (lines,) = (drawn for drawn in values.collections if isinstance(drawn, ContourSet))
    places = np.concatenate([path.vertices for path in lines.get_paths() if len(path.vertices)])
    off = np.abs(places.prod(1)[:, None] - lines.levels).min(1)
    assert off.max() < 1e-3, "those of the function, and not of its look-up"
    named = [tick.get_text() for panel in axes for tick in panel.get_yticklabels()]
    assert "look-up" in named
    assert "ramp of x1, 0.125" in named
    assert any(panel.get_ylabel() == "keys of 12 of 15 heads" for panel in axes)


def test_several_output_rows_are_drawn_as_their_sum_under_the_bound_of_the_sum() -> None:
    rows = {"output_features": 2, "output_row": lambda k: k // 16, "dtype": torch.float64}
    head = ah.theorems.single_head([[1.0], [2.0]], [0.0, 0.5], -1, 1, 32, **rows)
    shown = theorem_view(head)
    line = shown.through()
    assert shown.drawn == "token 1 of 2,\nsum of 2 output rows"
    assert np.allclose(line.allowed, head.sum_bound)
    assert head.sum_bound < head.bound
    assert line.error.max() <= head.sum_bound
    figure = head.plot()
    assert shown.drawn in [axes.get_ylabel() for axes in figure.axes]
    assert any("of the sum of 2 output rows" in text.get_text() for text in figure.findobj(Text))
    alone = ah.theorems.single_head([[1.0]], [0.0], -1, 1, 32, dtype=torch.float64)
    assert theorem_view(alone).drawn == "value"


def test_what_was_only_measured_is_said_to_be_about_so_much() -> None:
    model = ah.compile("sin(3*x)", (-1, 1), tol=1e-3).with_row_map(ah.row_maps.Hardmax())
    assert model.certificate.level == "measured"
    bound = f"about {model.certificate.bound:.3g} at the sampled points of [-1, 1]"
    assert bound in str(model.certificate)
    for text in (str(model), Page(model._repr_html_()).text, Page(model.certificate._repr_html_()).text):
        assert "<=" not in text
        assert "about" in text
    assert dict(model.facts())["bound"].startswith("about ")
    assert bound_label(model) == "largest error at the sampled points"


def bound_label(model: Any) -> str:
    """What the bound is called in the figure of a model."""
    (panel,) = (axes for axes in model.plot().axes if axes.get_ylabel() == "|error|")
    return str(panel.lines[-1].get_label())


def test_a_view_has_the_numbers_of_its_model() -> None:
    model = MODELS["two inputs"]()
    line = model_view(model).along(1, 33)
    rest = torch.full((33,), model_view(model).resting[0], dtype=torch.float64)
    x = torch.stack([rest, torch.linspace(-1, 1, 33, dtype=torch.float64)], dim=-1)
    assert np.array_equal(line.values, model(x).numpy())
    assert np.array_equal(line.exact, model.exact(x).numpy())
    assert line.allowed.max() == model.certificate.bound
    head = THEOREMS["single head"]()
    line = theorem_view(head).along(0, 33)
    assert line.values.shape == (33, 4)
    assert np.abs(line.values - line.exact).max() <= head.sum_bound


@pytest.mark.parametrize(
    ("formula", "share"), [("abs(x) + relu(x - 0.3)", 0.9), ("abs(x) + relu(y - 0.3)", 0.4), ("max(x, y, z)", 0.5)]
)
def test_lines_come_near_to_kinks(formula: str, share: float) -> None:
    model = ah.compile(formula, (-1, 1), tol=1e-5)
    line = model_view(model).through(121)
    assert share * model.certificate.bound < line.error.max() <= model.certificate.bound
    assert f"at most {line.error.max():.2e} at {len(line.x)} places, most of them near kinks" in model._repr_html_()
    said = ah.compile("sin(x)", (-1, 1), tol=1e-3)._repr_html_()
    assert re.search(r"at most \S+ at 121 places, under", said)


@pytest.mark.parametrize("name", ["sorting", "recall", "layer_norm"])
def test_attention_moves_along_the_line_through_the_box(name: str) -> None:
    model = ah.gallery.load(name).model
    view = model_view(model)
    assert list(view.names) == list(model.mechanism.inputs)
    assert list(view.heads) == [head.name for head in model.mechanism.heads if head.kind != "carry"]
    weights = view.attention(view.across(np.linspace(0, 1, 33)))
    moves = [np.ptp(head, axis=0).max() > 0.1 for head in weights]
    assert all(moves) if name != "layer_norm" else moves[view.heads.index("rsqrt_0")]
    shown = [tick.get_text() for axes in model.plot().axes for tick in axes.get_yticklabels()]
    assert len(view.heads) == 1 or set(view.heads) & set(shown)


def test_numbers_that_were_changed_have_no_bound_in_the_figure() -> None:
    model, head = MODELS["a head on the line"](), THEOREMS["single head"]()
    for module_ in (model, head):
        with torch.no_grad():
            next(module_.parameters()).add_(0.001)
        assert errors(drawn(module_.plot())) is None
        Page(module_._repr_html_())
    assert "unproved" in model._repr_html_()


def test_what_cannot_be_drawn_is_a_sentence() -> None:
    with pytest.raises(InputError, match="All weights of this network are zero"):
        ah.theorems.single_head(torch.zeros(2, 3), torch.zeros(2), -1, 1, anchors=4).plot()
    with pytest.raises(InputError, match="needs no Lipschitz constant"):
        THEOREMS["single head"]().plot(lipschitz=1.0)
    found = ah.plan("sin(x)", (-1, 1), tol=1e-2)
    with pytest.raises(InputError, match="No method keeps the tolerance"):
        replace(found, options=tuple(o for o in found.options if o.keys is None)).plot()
    with pytest.raises(InputError, match="Nothing was converted"):
        ah.convert(nn.Linear(2, 2)).report.plot()


def test_reports_plans_diagnoses_and_programs_are_shown() -> None:
    converted = ah.convert(nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 3), nn.Tanh()))
    drawn(converted.report.plot())
    shown = Page(converted.report._repr_html_())
    assert "gelu(x)" in shown.text
    assert "tanh(x)" in shown.text
    plan = ah.plan("sin(3*x)", (-1, 1), tol=1e-3)
    drawn(plan.plot())
    assert all(option.method in Page(plan._repr_html_()).text for option in plan.options)
    model, x = ah.compile("sin(3*x)", (-1, 1), tol=1e-3), torch.linspace(-1, 1, 101, dtype=torch.float64)
    assert "healthy" in Page(ah.diagnose(model, x)._repr_html_()).text
    assert "advice" in Page(ah.diagnose(model, x, score_factor=30.0)._repr_html_()).text
    assert "registers" in Page(ah.program(ah.compile("x*y", (-1, 1), tol=1e-2))._repr_html_()).text
    sizes = ah.theorems.plan("single_head", tol=1e-2, tokens=2, features=1)
    assert f"{sizes.anchors:,}" in Page(sizes._repr_html_()).text
    universal = ah.in_context.plan_universal(0.2, {"x": (0, 1)}, lipschitz=1.0)
    assert f"{universal.keys:,}" in Page(universal._repr_html_()).text
    descent = ah.in_context.gradient_descent("squared", features=2, examples=8, steps=3, learning_rate=0.1)
    assert "steps" in Page(descent._repr_html_()).text


@given(text=st.text(max_size=40), number=st.floats())
def test_pages_escape_everything(text: str, number: float) -> None:
    parts = [
        display.sentence(text),
        display.facts([(text, number)]),
        display.table((text, "b"), [(text, str(number))] * 14, text),
        display.gauge([(text, number), (text, 1e-300), (text, 1e300)], text),
        display.bars([(text, number), (text, 2.0)], text),
        display.sketch([0.0, 1.0], [(display.RED, [number, 1.0]), (display.BLUE, [2.0, number])], text, least=1e-3),
    ]
    shown = Page(display.page(text, *parts))
    assert shown.tags <= {"div", "br", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "svg",
                          "polyline", "line", "circle", "rect", "text", "wbr"}  # fmt: skip


def test_convergence_is_drawn_by_step_and_shown_in_a_line() -> None:
    X = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, -1.0]]], dtype=torch.float64)
    model = ah.in_context.gradient_descent("squared", features=2, examples=2, steps=9, learning_rate=0.5)
    found = model.convergence(X, X.sum(-1))
    (axes,) = found.plot().axes
    curves = {str(line.get_label()): np.asarray(line.get_ydata()) for line in axes.lines}
    assert list(curves) == ["measured", "proved", "to the optimum", "gradient"]
    assert (curves["to the optimum"] == found.to_optimum.amax(0).numpy()).all()
    assert (np.nan_to_num(curves["measured"]) <= np.nan_to_num(curves["proved"])).all()
    assert axes.get_yscale() == "log"
    assert len(repr(found)) < 200
    assert found._repr_html_().count("<polyline") == 3
    assert "to the optimum" in Page(found._repr_html_()).text


def test_hostile_names_are_shown_as_text(tmp_path: Path) -> None:
    model = MODELS["two inputs"]()
    model._claimed = replace(model._claimed, expression=HOSTILE, variables=(HOSTILE, "$"))
    for text in (model._repr_html_(), model.certificate._repr_html_()):
        assert "script" not in Page(text).tags
        assert HOSTILE.replace("\x1b", "\\x1b") in Page(text).text
    write(model.plot(), tmp_path / "hostile.svg")


def test_a_figure_is_written_in_any_format_that_matplotlib_has(tmp_path: Path) -> None:
    figure = MODELS["a head on the line"]().plot()
    for name in ("a.png", "b.SVG", "c.pdf", "d.eps", "e.webp"):
        write(figure, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    written = (tmp_path / "c.pdf").read_bytes()
    assert b"/Type3" not in written, "journals refuse such fonts"
    assert b"/CIDFontType2" in written
    for name, said in (("f.doc", "ends with .doc"), ("g", "has no ending")):
        with pytest.raises(FileError, match=f"{said}, and the format is read off it; matplotlib writes .*png.*svg"):
            write(figure, tmp_path / name)
    with pytest.raises(FileError, match="cannot be written"):
        write(figure, tmp_path / "nowhere" / "h.png")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "b.SVG", "c.pdf", "d.eps", "e.webp"]


def test_nothing_touches_what_matplotlib_keeps_for_all() -> None:
    """No file calls matplotlib.use or imports pyplot, and drawing neither imports it nor changes a setting."""
    for path in SOURCE.rglob("*.py"):
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        said = {ast.unparse(node) for node in tree if isinstance(node, ast.Call | ast.Import | ast.ImportFrom)}
        assert not [line for line in said if re.search(r"matplotlib\.use\(|pyplot|rcParams", line)], path
    code = """
import sys, anchorhead as ah, matplotlib
before = matplotlib.rcParams.copy()
model = ah.compile("x*y", (-1, 1), tol=1e-2)
assert "matplotlib.figure" not in sys.modules
model._repr_html_(); model.plot(); model.plot()._repr_png_()
import anchorhead.lab.reproduce
assert "matplotlib.pyplot" not in sys.modules
assert matplotlib.rcParams.copy() == before
"""
    subprocess.run([sys.executable, "-c", code], check=True)
