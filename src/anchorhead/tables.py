"""What the command prints: tables of a model, its parts and its plans.

Names and formulas come from users and files, so nothing in them is taken for markup or reaches the terminal as a
control character. No digit is lost for want of width: numbers are never broken nor cut, and where columns do not fit
beside each other every row is written below its own name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

import anchorhead as ah
from anchorhead.display import plain
from anchorhead.errors import VerificationError
from anchorhead.file.container import read

if TYPE_CHECKING:
    from anchorhead.compiler.plan import Plan
    from anchorhead.head.head import Head
    from anchorhead.model.report import Report

WORDS = ("node", "function of u", "method", "quantity")
"""Columns that may be broken between lines; all others hold numbers."""
MOST_KEYS = 40

MOST_HEADS = 40
"""That are shown; a network may have thousands."""


def print_model(model: ah.CompiledModel, as_json: bool, file: str | None) -> None:
    """A model as a table, or as JSON for programs."""
    certificate = model.certificate
    if as_json:
        values: dict[str, Any] = {"method": model.method, "file": file, "certificate": certificate.as_dict(),
                  "resources": _finite(vars(model.resources)), "largest_value": model.largest_value}  # fmt: skip
        found, _ = _report(model)
        if found is not None and found.nodes:
            values["nodes"] = [_finite(vars(node)) for node in found.nodes]
        if hasattr(model, "mechanism"):
            values["mechanism"] = model.mechanism.as_dict()
        print(json.dumps(values))
        return
    show(f"{certificate.expression} as attention", ("quantity", "value"), model.facts())
    if file:
        print(f"file: {file}")


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """As JSON has it: null for what is not known."""
    return {name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()}  # fmt: skip


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table, with lines or without, where its columns fit; else every row as lines of names and values."""
    print(plain(title))
    console = Console(markup=False, highlight=False)
    cells = [[plain(row[i]) for row in rows] for i in range(len(header))]
    for form, between, ends in ((box.HEAVY_HEAD, 3, 4), (box.SIMPLE_HEAD, 2, 1)):
        widths = _widths(header, cells, console.width - between * (len(header) - 1) - ends)
        if widths is not None:
            edged = form is box.HEAVY_HEAD
            table = Table(box=form, show_edge=edged, padding=(0, 1, 0, int(edged)))
            for name, width in zip(header, widths, strict=True):
                table.add_column(name, justify="left" if name in WORDS else "right", width=width)
            for row in zip(*cells, strict=True):
                table.add_row(*row)
            console.print(table)
            return
    for row in zip(*cells, strict=True):
        print("", *(f"{name}: {value}" for name, value in zip(header, row, strict=True)), sep="\n")


def _widths(header: Sequence[str], cells: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """What each column gets: numbers all they need, words at least their longest; None if that is too much."""
    least, most = [], []
    for name, column in zip(header, cells, strict=True):
        words = [word for text in (name, *(column if name in WORDS else ())) for word in text.split()]
        least.append(max(map(cell_len, [*words, *(() if name in WORDS else column)])))
        most.append(max(map(cell_len, [name, *column])))
    spare = room - sum(least)
    if spare < 0:
        return None
    for i in range(len(header)):
        more = min(spare, most[i] - least[i])
        least[i], spare = least[i] + more, spare - more
    return least


def print_parts(model: ah.CompiledModel) -> None:
    """The keys of a head, or the nodes of a network, and what every head computes."""
    found, why = _report(model)
    if found is not None or why:
        if found is None:
            print(plain(why))
        else:
            print_nodes(found.rows())
        _print_heads(model)
    elif not model.input_shape:
        _print_keys(_numbers(model))
        _print_heads(model)
    else:
        print_nodes(())


def _report(model: ah.CompiledModel) -> tuple[Report | None, str]:
    """The nodes, or why none can be told."""
    try:
        return model.report, ""
    except VerificationError as reason:
        return None, str(reason)


def _numbers(model: ah.CompiledModel) -> Head:
    """Of the only head, whichever row map it is under."""
    from anchorhead.model.mapped_core import MappedCore

    return model.network.numbers if isinstance(model.network, MappedCore) else model.head.numbers


def print_nodes(rows: Sequence[Sequence[str]]) -> None:
    from anchorhead.model.report import COLUMNS

    show("nodes: errors of what heads write, what of them arrives at the output, and what of that begins there",
         COLUMNS, rows)  # fmt: skip


def _print_heads(model: ah.CompiledModel) -> None:
    from anchorhead.model.mechanism import EDITED, OF

    heads = [head for head in model.mechanism.heads if head.kind != "carry"]
    if model.mechanism.edited:
        print(EDITED)
    print("heads: what each computes, by its number in the literal form; those that carry numbers on are left out")
    for head in heads[:MOST_HEADS]:
        print(plain(f"  layer {head.layer}, head {head.head}  {head.name}{OF[head.place]}: {head.words}"))
    if len(heads) > MOST_HEADS:
        print(f"  ... {len(heads) - MOST_HEADS} more; --json has all of them")


def _print_keys(head: Head) -> None:
    rows = []
    numbers = zip(head.slopes, head.intercepts, head.constants, head.gains, head.gates, strict=True)
    for k, (slope, intercept, value, gain, gate) in enumerate(numbers):
        total = slope + gate[0], intercept + gate[1], value, gain
        rows.append([str(k), *(f"{v:.6g}" for v in total)])
    more = [["...", f"{head.keys - MOST_KEYS} more", "", "", ""]] if head.keys > MOST_KEYS else []
    show("keys: score slope·x + intercept, value constant + gain·x", ("key", "slope", "intercept", "constant", "gain"),
         [*rows[:MOST_KEYS], *more])  # fmt: skip


def print_plan(found: Plan) -> None:
    """What each construction costs at a tolerance."""
    from anchorhead.compiler.plan import COLUMNS

    show(found.title, COLUMNS, found.rows())
    for reason in found.reasons:
        print(plain(reason))


def read_shown(file: Path) -> ah.CompiledModel | ah.theorems.Construction | ah.in_context.Universal | ah.Program:
    """What a file holds, a program too."""
    programs, models = ah.Program.load, ah.load  # first of all, so that it is said if torch is not there
    return programs(file) if read(file).record["kind"] == "program" else models(file)


def print_stated(model: ah.theorems.Construction | ah.in_context.Universal | ah.Program, as_json: bool,
                 file: str) -> None:  # fmt: skip
    """A theorem's network, or a program, as it prints itself, or as JSON for programs."""
    if as_json:
        print(json.dumps({"file": file, **model.as_dict()}))
        return
    for line in str(model).splitlines():
        print(plain(line))
    print(f"file: {file}")


def print_theorem_plan(found: ah.theorems.Plan) -> None:
    """What a theorem costs at a tolerance."""
    show(found.title, ("quantity", "value"), found.rows())
