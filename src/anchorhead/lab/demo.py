"""What `make demo` does: compile, certify, save and verify, with figures; the Makefile adds the experiments."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import anchorhead as ah
from anchorhead.compiler.compile import compile_formula
from anchorhead.digits import Up
from anchorhead.drawing import write
from anchorhead.progress import telling

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
        with telling(f"compiling {expression} to {tol:g}"):
            model = compile_formula(expression, domain, tol=tol)
            path = output / f"{_file_name(expression)}.safetensors"
            model.save(path)
            certificate = ah.verify(path)
        low, high = domain or (-60.0, 60.0)
        x = torch.linspace(low, high, 200_001, dtype=torch.float64)
        where = "R" if domain is None else f"[{low:g}, {high:g}]"
        table.add_row(expression, where, f"{tol:g}", model.method, str(model.resources.keys),
                      f"{(model(x) - model.exact(x)).abs().max():.1e}", f"{Up(certificate.bound):.1e}",
                      str(certificate.boxes), certificate.level)  # fmt: skip
    console.print(table)
    write(ah.compile("gelu(x)", tol=1e-7).plot(), output / "gelu.png")


def whole_function(console: Console, output: Path) -> None:
    """A formula in two variables through its graph: node by node, saved, verified and drawn."""
    model = ah.compile("sin(3*x*y) + exp(-x**2 + y/2)", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-6)
    model.save(output / "two_variables.safetensors")
    ah.verify(output / "two_variables.safetensors")
    console.print("a formula in two variables, through its graph, saved and verified:", highlight=False)
    console.print(str(model), highlight=False, markup=False)
    write(model.plot(), output / "two_variables.png")


def _file_name(expression: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in expression).strip("_")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("demo"), help="folder for figures and models")
    output: Path = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    console = Console(width=120)
    compile_and_verify(console, output)
    whole_function(console, output)
    console.print(f"figures: {output / 'gelu.png'}, {output / 'two_variables.png'}", highlight=False)


if __name__ == "__main__":
    main()
