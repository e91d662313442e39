"""What `make demo` does: compile, certify, save and verify; the paper's networks beside their bounds; figures."""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import anchorhead as ah
from anchorhead.lab.descent import deviation_figure
from anchorhead.lab.portrait import portrait, target_values
from anchorhead.network.compiled_head import CompiledHead

FIGURES = ("gelu.png", "two_variables.png", "attention_map.png", "error_against_anchors.png", "descent.png")
COMPILED = [
    ("gelu(x)", None, 1e-7),
    ("gelu(x)", None, 1e-9),
    ("silu(x)", None, 1e-12),
    ("softplus(x)", None, 1e-11),
    ("relu(x)", None, 1e-6),
    ("clip(x, -1, 1)", None, 1e-6),
    ("elu(x)", None, 1e-6),
    ("sin(3*x)", (-1.0, 1.0), 1e-6),
    ("sin(3*x)", (-1.0, 1.0), 1e-10),
    ("1/(1+25*x**2)", (-1.0, 1.0), 1e-6),
]


def compile_and_verify(console: Console, output: Path) -> None:
    """Compiles each target, saves it, checks the file, and prints what was proved."""
    table = Table(title="compiled into attention, proved in ball arithmetic, saved and verified (float64)")
    for name in ("target", "domain", "tol", "method", "keys", "measured", "proved", "boxes", "verified"):
        table.add_column(name, justify="left" if name in ("target", "domain", "method") else "right")
    for expression, domain, tol in COMPILED:
        with console.status(f"{expression} to {tol:g}"):
            model = ah.compile(expression, domain, tol=tol)
            assert isinstance(model, CompiledHead)
            path = output / f"{_file_name(expression)}.safetensors"
            model.save(path)
            certificate = ah.verify(path)
        low, high = domain or (-60.0, 60.0)
        x = torch.linspace(low, high, 200_001, dtype=torch.float64)
        where = "R" if domain is None else f"[{low:g}, {high:g}]"
        table.add_row(expression, where, f"{tol:g}", model.method, str(model.resources.keys),
                      f"{(model(x) - target_values(model, x)).abs().max():.1e}", f"{certificate.bound:.1e}",
                      str(certificate.boxes), certificate.level)  # fmt: skip
    console.print(table)
    portrait(ah.compile("gelu(x)", tol=1e-7), output / "gelu.png")


def whole_function(console: Console, output: Path) -> None:
    """A formula in two variables through its graph: node by node, saved, verified and drawn."""
    model = ah.compile("sin(3*x*y) + exp(-x**2 + y/2)", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-6)
    model.save(output / "two_variables.safetensors")
    ah.verify(output / "two_variables.safetensors")
    console.print("a formula in two variables, through its graph, saved and verified:", highlight=False)
    console.print(str(model), highlight=False, markup=False)
    portrait(model, output / "two_variables.png")


def learning(console: Console, output: Path) -> None:
    """A hundred steps of gradient descent inside one forward pass, beside the paper's heads with as many keys."""
    ratios = deviation_figure(output / "descent.png")
    said = ", ".join(f"{loss} {ratio:.0e}" for loss, ratio in ratios.items())
    console.print(f"in-context gradient descent, 100 steps: closer than the paper's heads by {said}", highlight=False)


def _file_name(expression: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in expression).strip("_")


def paper_setting(seed: int = 1234) -> tuple[Tensor, Tensor, Tensor]:
    """The published ramps: n = 50, d = 10, w and t standard normal, inputs uniform on [-5, 5]."""
    draw = torch.Generator().manual_seed(seed)
    weights = torch.randn(50, 10, generator=draw, dtype=torch.float64)
    bias = torch.randn(50, generator=draw, dtype=torch.float64)
    inputs = 10 * torch.rand(200, 50, 10, generator=draw, dtype=torch.float64) - 5
    return weights, bias, inputs


def measured_errors(console: Console) -> None:
    """Prints sup error and bound of every construction at the paper's setting."""
    weights, bias, inputs = paper_setting()
    table = Table(title="the paper's constructions: measured error beside the proved bound (float64)")
    for name in ("construction", "size", "keys", "temperature", "measured sup", "bound", "mean square"):
        table.add_column(name, justify="left" if name in ("construction", "size") else "right")

    def row(name: str, size: str, model: ah.theorems.SingleHead | ah.theorems.MultiHead) -> None:
        error = model(inputs) - model.exact(inputs)
        cost = model.resources
        table.add_row(name, size, f"{cost.keys:,}", f"{cost.temperature:.4g}", f"{error.abs().max():.3e}",
                      f"{model.bound:.3e}", f"{error.square().mean():.3e}")  # fmt: skip

    for p in (60, 120, 512, 4096):
        row("single_head", f"p = {p}", ah.theorems.single_head(weights, bias, -25, 25, anchors=p))
    row(
        "single_head, causal",
        "p = 32",
        ah.theorems.single_head(weights, bias, -25, 25, anchors=32, causal=True),
    )
    for heads in (1, 4, 16):
        row("multi_head", f"H = {heads}", ah.theorems.multi_head(weights, bias, -25, 25, heads=heads))
    table.add_section()
    for levels in (8, 32, 128):
        for build in (ah.theorems.two_layer, ah.theorems.attention_then_softmax):
            grid = build(product_of_sines, tokens=1, features=2, levels=levels)
            x = torch.rand(2000, 1, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
            error = grid(x) - grid.exact(x)
            table.add_row(build.__name__, f"g = {levels}", f"{grid.resources.keys:,}",
                          f"{grid.temperature:.4g}", f"{error.abs().max():.3e}",
                          f"{grid.bound_for(lipschitz=LIPSCHITZ, metric='sup'):.3e}",
                          f"{error.square().mean():.3e}")  # fmt: skip
    console.print(table)


def product_of_sines(x: Tensor) -> Tensor:
    """sin(3X) times the sum of X, on two coordinates."""
    return torch.sin(3 * x) * x.sum((-2, -1), keepdim=True)


LIPSCHITZ = 8.0
"""|∂_i sin(3x_i)(x_1 + x_2)| + |∂_j ...| <= 3·2 + 1 + 1 on [0, 1]², so 8 in the sup norm."""


def attention_map(path: Path) -> None:
    """Which anchors a query attends to, as it moves across the range, and what comes out."""
    u = torch.linspace(-3.2, 3.2, 321, dtype=torch.float64)
    model = ah.theorems.single_head(torch.ones(1, 1), torch.zeros(1), -2, 2, anchors=16, dtype=torch.float64)
    x = u[:, None, None]
    weights = model.attention_weights(x)[0][:, 0, 0, :]
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7, 6), sharex=True, layout="constrained")
    image = top.pcolormesh(u, model.anchors, weights.T, cmap="magma_r", vmin=0, vmax=1, shading="nearest")
    top.set_ylabel("anchor $L_k$")
    top.set_title("attention of one head with 16 anchors on [-2, 2]")
    figure.colorbar(image, ax=[top, bottom], label="attention weight", shrink=0.6)
    bottom.plot(u, model.exact(x).flatten(), color="0.6", lw=3, label="clip(u, -2, 2)")
    bottom.plot(u, model(x).detach().flatten(), color="C3", lw=1.2, label="attention")
    bottom.fill_between(u, *(model.exact(x).flatten() + s * model.bound for s in (-1, 1)), color="0.9",
                        label="proved bound")  # fmt: skip
    bottom.set_xlabel("u = w·x + t")
    bottom.legend(loc="upper left", frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def error_against_anchors(path: Path) -> None:
    """Sup error of one head and of many against the number of anchors, with the theorems' lines."""
    weights, bias, inputs = paper_setting()
    inputs = inputs[:40]
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    sizes = [64, 128, 256, 512, 1024, 2048]
    singles = [ah.theorems.single_head(weights, bias, -25, 25, anchors=p) for p in sizes]
    heads = [1, 2, 4, 8, 16, 32]
    multis = [ah.theorems.multi_head(weights, bias, -25, 25, heads=h) for h in heads]
    for name, models, colour in (("single_head", singles, "C0"), ("multi_head", multis, "C1")):
        count = [len(m.anchors) for m in models]
        sup = [(m(inputs) - m.exact(inputs)).abs().max().item() for m in models]
        axes.loglog(count, sup, "o-", color=colour, label=f"{name}, measured")
        axes.loglog(count, [m.bound for m in models], "--", color=colour, lw=1, label=f"{name}, bound")
    axes.set_xlabel("anchors, p or (n - 2)H")
    axes.set_ylabel("sup error")
    axes.set_title("the paper's ramps: n = 50, d = 10, range [-25, 25]")
    axes.grid(True, which="both", color="0.92")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("demo"), help="folder for the figures")
    output: Path = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    console = Console(width=120)
    compile_and_verify(console, output)
    whole_function(console, output)
    measured_errors(console)
    attention_map(output / "attention_map.png")
    error_against_anchors(output / "error_against_anchors.png")
    learning(console, output)
    figures = ", ".join(str(output / name) for name in FIGURES)
    console.print(f"figures: {figures}")


if __name__ == "__main__":
    main()
