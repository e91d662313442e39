"""Row maps: heads where something else than softmax turns scores into weights, and softmax in few bits.

*Keys*: the error against the number of keys. Sigmoid, ReLU, sparsemax and polynomial attention have values solved for
them. Entmax and hardmax have sparsemax's head, whose values are the function's; all others have a smooth head's of
softmax. *Bits*: smooth heads whose values may be so large, under softmax in fixed point with w bits for exp and w + 4
for its argument: what is proved and what is measured.
"""

from __future__ import annotations

import math
from typing import Any

import torch

import anchorhead as ah
from anchorhead.digits import Up
from anchorhead.lab.experiment import Finding, Row, Rows, Setting, Table, Task, known
from anchorhead.lab.figures import MARKS, Figures, curve

TITLE = "Beside softmax"
ABOUT = (
    "What is left of a head where another map turns scores into weights, and where softmax is computed in few bits; "
    "as a proof where there is one, and measured otherwise."
)
DOMAINS = {"sin(3*x)": (-1.0, 1.0), "gelu(x)": (-8.0, 8.0)}
MAPS = ("softmax", "sigmoid", "polynomial", "relu", "sparsemax", "entmax15", "hardmax", "fixed_point", "rexp", "lut_2d",
        "linear_attention", "gated_recurrence")  # fmt: skip
SIZES = (4, 8, 16, 32)
SPANS = (0.0, 2.0, 1.2)
"""The largest values of the heads in fixed point; 0 for one without a limit."""
BITS = (4, 6, 8, 10, 12, 14, 16)
SPAN_TOL = 1e-5
HUES = ("#1f5fa8", "#d1495b", "#2a9d6f", "#7a4fbf", "#e08e45", "#5b6770")


def tasks(quick: bool) -> list[Task]:
    spans: list[Setting] = [{"series": "bits", "target": "sin(3*x)", "map": "fixed_point", "size": span}
                            for span in (SPANS[:2] if quick else SPANS)]  # fmt: skip
    keys: list[Setting] = [{"series": "keys", "target": target, "map": name, "size": size}
                           for target in (("sin(3*x)",) if quick else DOMAINS) for name in MAPS
                           for size in reversed(SIZES[:3] if quick else SIZES)]  # fmt: skip
    return [Task(setting, 0) for setting in spans + keys]


def run(setting: Setting, seed: int) -> list[Row]:
    """Errors, what is proved of them (not a number where nothing is), and the largest value."""
    target, name, size = str(setting["target"]), str(setting["map"]), float(setting["size"])
    if setting["series"] == "keys":
        model = _of_size(target, name, int(size))
        return [_row(model, 0, math.nan if model.certificate.level == "measured" else model.certificate.bound)]
    head = ah.compile(target, DOMAINS[target], method="smooth", tol=SPAN_TOL, largest_value=size or None)
    models = [(w, head.with_row_map(ah.row_maps.FixedPoint(w + 4, w))) for w in BITS]
    return [_row(model, w, model.certificate.bound) for w, model in models]


def _of_size(target: str, name: str, keys: int) -> ah.CompiledModel:
    """A head of at most so many keys under a map, with values for it where there is a way."""
    maps, domain = ah.row_maps, DOMAINS[target]
    solved: dict[str, Any] = {"sigmoid": maps.Sigmoid(), "polynomial": maps.Polynomial(keys - 1), "relu": maps.ReLU(),
                              "sparsemax": maps.Sparsemax()}  # fmt: skip
    read_off: dict[str, Any] = {"entmax15": maps.Entmax15(), "hardmax": maps.Hardmax()}
    others: dict[str, Any] = {"softmax": maps.Softmax(), "fixed_point": maps.FixedPoint(12, 8), "rexp": maps.Rexp(),
                              "lut_2d": maps.Lut2D(), "linear_attention": maps.LinearAttention(8),
                              "gated_recurrence": maps.GatedRecurrence()}  # fmt: skip
    if name in solved:
        return ah.compile(target, domain, keys=keys, row_map=solved[name])
    if name in read_off:
        return ah.compile(target, domain, keys=keys, row_map=maps.Sparsemax()).with_row_map(read_off[name])
    return ah.compile(target, domain, keys=keys, method="smooth").with_row_map(others[name])


def _row(model: ah.CompiledModel, bits: int, bound: float) -> Row:
    x = torch.linspace(*model.certificate.domain[0], 20_001, dtype=torch.float64)
    error = (model(x) - model.exact(x)).abs().max().item()
    return {"bits": bits, "keys": model.resources.keys, "largest": model.largest_value, "sup": error, "bound": bound}


def figures(rows: Rows) -> Figures:
    found = Figures()
    for target, mine in rows.where(series="keys").by("target"):
        name = f"row_maps_{target.partition('(')[0]}"
        with found.panel(name, f"{target}, values for the map if solved", "keys", "sup error", height=4.6,
                         ticks=mine.values("size")) as axes:  # fmt: skip
            for i, (which, part) in enumerate(mine.by("map")):
                style = "-" if i < len(HUES) else "--"
                curve(axes, part, "size", "sup", MARKS[i % len(MARKS)] + style, label=which, color=HUES[i % len(HUES)],
                      ms=4)  # fmt: skip
    with found.panel("row_maps_bits", "sin(3x), softmax in fixed point", "bits of exp", "error", log="y",
                     ticks=BITS) as axes:  # fmt: skip
        for i, (_, part) in enumerate(rows.where(series="bits").by("size")):
            said = f"{part.values('keys')[0]} keys, values to {part.values('largest')[0]:.3g}"
            curve(axes, part, "bits", "bound", "-", label=f"{said}: proved", color=HUES[i])
            curve(axes, part, "bits", "sup", "o", label="measured", color=HUES[i], ms=4)
    return found


def findings(rows: Rows) -> list[Finding]:
    held = Rows(row for row in rows if not math.isnan(float(row["bound"])))
    table = []
    for target, which, part in rows.where(series="keys").by("target", "map"):
        best = min(part, key=lambda row: float(row["sup"]))
        table.append([target, which, *(f"{float(row['sup']):.1e}" for row in part.ordered("size")),
                      known(Up(best["bound"]))])  # fmt: skip
    sizes = [f"{size:g} keys" for size in sorted(rows.where(series="keys").values("size"))]
    bits = [[f"{part.values('largest')[0]:.3g}", f"{part.values('keys')[0]}", f"{row['bits']}",
             f"{float(row['sup']):.1e}", f"{Up(float(row['bound'])):.1e}"]
            for _, part in rows.where(series="bits").by("size") for row in part if row["bits"] in (8, 16)]  # fmt: skip
    return [
        f"Proved bounds {'hold' if held.within_bounds() else 'WERE EXCEEDED'}, of {len(held)} cases.",
        Table(["target", "map", *sizes, "proved, at the best"], table),
        Table(["values to", "keys", "bits", "measured", "proved"], bits),
    ]
