"""What the command prints: tables of a model, its parts and its plans.

Names and formulas come from users and files, so nothing in them is taken for markup or reaches the terminal as a
control character.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

import anchorhead as ah

if TYPE_CHECKING:
    from anchorhead.compiler.plan import Plan
    from anchorhead.head.head import Head
    from anchorhead.model.report import NodeReport


def print_model(model: ah.CompiledModel, as_json: bool, file: str | None) -> None:
    """A model as a table, or as JSON for programs."""
    certificate, cost = model.certificate, model.resources
    if as_json:
        values: dict[str, Any] = {"method": model.method, "file": file, "certificate": certificate.as_dict(),
                  "resources": vars(cost), "largest_value": model.largest_value}  # fmt: skip
        if model.report is not None and model.report.nodes:
            values["nodes"] = [vars(node) for node in model.report.nodes]
        print(json.dumps(values))
        return
    table = Table(title=plain(f"{certificate.expression} as attention"), title_justify="left")
    table.add_column("quantity")
    table.add_column("value", justify="right")
    scale = " |target|" if certificate.relative else "" if certificate.bounded else " (1 + |x|)"
    whole = scale if certificate.relative else ""
    for name, value in (
        ("method", plain(model.method)),
        ("layers, heads", f"{cost.layers}, {cost.heads}"),
        ("keys", f"{cost.keys}"),
        ("parameters", f"{cost.parameters}"),
        ("beta", f"{cost.beta:.6g}"),
        ("logit range" + ("" if certificate.bounded else ", |x| <= 100"), f"±{cost.logit_range:.4g}"),
        ("largest value", f"{model.largest_value:.4g}"),
        ("dtype", certificate.dtype),
        ("approximation", f"{certificate.approximation:.3e}{whole}"),
        ("rounding", f"{certificate.rounding:.3e}{scale}"),
        ("bound", f"{certificate.bound:.3e}{whole}"),
        ("level", f"{certificate.level}, {certificate.boxes} boxes"),
    ):
        table.add_row(name, value)
    if certificate.evaluation:
        table.add_row("bound of the literal form", f"{model.literal_certificate().bound:.3e}")
    _show(table)
    if file:
        print(f"file: {file}")


def _show(table: Table) -> None:
    Console(markup=False).print(table)


def plain(text: str) -> str:
    """The text with whatever cannot be printed written as an escape, such as \\x1b."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_parts(model: ah.CompiledModel) -> None:
    """The keys of a head, or the nodes of a network."""
    if model.report is not None:
        _print_nodes(model.report.nodes)
    elif not model.input_shape:
        _print_keys(model.head.numbers)
    else:
        _print_nodes(())


def _print_nodes(nodes: tuple[NodeReport, ...]) -> None:
    table = Table(title="nodes: what a head keeps, and what of it arrives at the output", title_justify="left")
    for name in ("layer", "node", "function of u", "method", "heads", "keys", "error", "arrives"):
        table.add_column(name, justify="left" if name in ("node", "function of u", "method") else "right")
    for n in nodes:
        numbers = str(n.heads), str(n.keys), f"{n.error:.2e}", f"{n.contribution:.2e}"
        table.add_row(str(n.layer), plain(n.label), plain(n.function), plain(n.method), *numbers)
    _show(table)


def _print_keys(head: Head) -> None:
    table = Table(title="keys: score slope·x + intercept, value constant + gain·x", title_justify="left")
    for name in ("key", "slope", "intercept", "constant", "gain"):
        table.add_column(name, justify="right")
    rows = zip(head.slopes, head.intercepts, head.constants, head.gains, head.gates, strict=True)
    for k, (slope, intercept, value, gain, gate) in enumerate(rows):
        if k == 40:
            table.add_row("...", f"{head.keys - 40} more", "", "", "")
            break
        total = slope + gate[0], intercept + gate[1], value, gain
        table.add_row(str(k), *(f"{v:.6g}" for v in total))
    _show(table)


def print_plan(found: Plan) -> None:
    """What each construction costs at a tolerance."""
    domain = " x ".join(f"[{low:g}, {high:g}]" for low, high in found.domain[:4])
    domain += f" and {len(found.domain) - 4} more" if len(found.domain) > 4 else ""
    within = f"{found.tol:g} of its size" if found.relative else f"{found.tol:g}"
    table = Table(title=plain(f"{found.expression} on {domain} to within {within}, {found.dtype}"),
                  title_justify="left")  # fmt: skip
    for name in ("method", "layers", "heads", "keys", "beta", "logit range", "largest value", "error"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=name in ("keys", "error"))
    for o in found.options:
        if o.keys is None:
            table.add_row(o.method, *["-"] * 7)
            continue
        values = (o.beta, o.logit_range, o.largest_value, o.bound)
        mark = " *" if o.reason else ""
        table.add_row(o.method + mark, str(o.layers), str(o.heads), f"{o.keys:,}",
                      *(f"{v:.3g}" for v in values if v is not None))  # fmt: skip
    _show(table)
    for o in found.options:
        if o.reason:
            print(f"{o.method}: {o.reason}")


def print_theorem_plan(found: ah.theorems.Plan) -> None:
    """What a theorem costs at a tolerance."""
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
        ("beta", f"{found.beta:,.6g}"),
        ("proved bound", f"{found.bound:.6g}"),
        ("parameters", short(found.parameters)),
        ("logit range", f"±{found.logit_range:.4g}"),
    ]
    for name, value in rows:
        if value is not None:
            table.add_row(name, str(value))
    for name, holds in found.dtypes.items():
        reach = f", |u - middle| up to {found.reach[name]:.2g}" if found.reach[name] < 1e6 else ""
        table.add_row(name, f"holds it{reach}" if holds else "cannot hold it")
    _show(table)
