"""The `anchorhead` command: one verb a command, tables for people, `--json` for programs."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import anchorhead as ah
from anchorhead.errors import AnchorheadError, InputError

app = typer.Typer(
    name="anchorhead",
    help="Functions compiled into softmax attention only, with a proved error.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Runs the command; an AnchorheadError is one sentence on stderr and exit code 2."""
    try:
        app()
    except AnchorheadError as error:
        Console(stderr=True, soft_wrap=True).print(f"anchorhead: {error}", style="red", markup=False, highlight=False)
        sys.exit(2)


def _version(asked: bool) -> None:
    if asked:
        print(f"anchorhead {ah.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Functions compiled into softmax attention only, with a proved error."""


@app.command()
def plan(
    theorem: Annotated[
        str | None, typer.Option(help="single_head, multi_head, two_layer or attention_then_softmax.")
    ] = None,
    low: Annotated[float, typer.Option(help="Lower end of the clipping range, or of the input box.")] = 0.0,
    high: Annotated[float, typer.Option(help="Upper end.")] = 1.0,
    tol: Annotated[float, typer.Option(help="The error that you can accept.")] = 1e-2,
    tokens: Annotated[int | None, typer.Option(help="Length of the sequence, n.")] = None,
    features: Annotated[int | None, typer.Option(help="Features of a token, d.")] = None,
    lipschitz: Annotated[
        float | None, typer.Option(help="Lipschitz constant of f, for the universal theorems.")
    ] = None,
    causal: Annotated[bool, typer.Option("--causal", help="single_head with anchors in columns of their own.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """From a wanted error to anchors, heads, temperature, parameters, logit range and dtypes."""
    if theorem is None:
        raise InputError("Say which construction to plan: --theorem single_head (or multi_head, two_layer, ...).")
    if tokens is None or features is None:
        raise InputError(f"Planning {theorem} needs --tokens and --features: the theorem's size depends on both.")
    found = ah.theorems.plan(
        theorem,
        low=low,
        high=high,
        tol=tol,
        tokens=tokens,
        features=features,
        lipschitz=lipschitz,
        causal=causal,
    )
    if as_json:
        print(json.dumps(found.as_dict()))
    else:
        _print_theorem_plan(found)


def _print_theorem_plan(found: ah.theorems.Plan) -> None:
    from anchorhead.theorems.grid import short

    table = Table(title=f"{found.theorem} on [{found.low:g}, {found.high:g}] to within {found.tol:g}")
    table.add_column("quantity")
    table.add_column("value", justify="right")
    rows: list[tuple[str, Any]] = [
        ("attention layers", found.layers),
        ("heads", f"{found.heads:,}"),
        ("anchors of a ramp head" if found.levels else "anchors", f"{found.anchors:,}"),
        ("levels a coordinate", found.levels),
        ("grid points (keys of layer 2)", found.grid_points and short(found.grid_points)),
        ("selection error", f"{found.selection_error:.3g}"),
        ("temperature", f"{found.temperature:,.6g}"),
        ("proved bound", f"{found.bound:.6g}"),
        (
            "parameters",
            short(found.parameters),
        ),
        ("logit range", f"±{found.logit_range:.4g}"),
    ]
    for name, value in rows:
        if value is not None:
            table.add_row(name, str(value))
    for name, holds in found.dtypes.items():
        reach = f", |u - middle| up to {found.reach[name]:.2g}" if found.reach[name] < 1e6 else ""
        table.add_row(name, f"holds it{reach}" if holds else "cannot hold it")
    Console().print(table)
