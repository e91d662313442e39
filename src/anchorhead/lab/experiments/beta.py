"""β and dtype: where selection fails, where digits or the range run out, and where the optimum lies.

A head of p anchors on [-1, 1] (Theorem 3.1), spacing h = 2/(p - 1), at β of 10, 50, 100, 1000, the derived one
ln((p - 1)/1e-6)/h², and a fine scale between and beyond, evaluated literally in four dtypes. The library refuses a
dtype that cannot hold a head; here it is run all the same, to see what would happen.
"""

from __future__ import annotations

import math

import numpy as np
import torch

import anchorhead as ah
from anchorhead.lab.diagnosis.criteria import share
from anchorhead.lab.diagnosis.examined import altered
from anchorhead.lab.experiment import Finding, Row, Rows, Setting, Table, Task
from anchorhead.lab.figures import Figures, curve

TITLE = "β and dtype"
ABOUT = (
    "How sharp should softmax be? The paper takes β to infinity; the theorem's proof needs "
    "ln((p - 1)/ε)/h². Vertical lines mark 10, 50, 100, 1000 (dotted) and the derived one (solid)."
)
NAMED = (10.0, 50.0, 100.0, 1000.0)
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
HUES = dict(zip(DTYPES, ("#1f5fa8", "#2a9d6f", "#e08e45", "#d1495b"), strict=True))
POINTS = 2001


def derived(p: int) -> float:
    """The theorem's β."""
    return math.log((p - 1) / 1e-6) * ((p - 1) / 2) ** 2


def tasks(quick: bool) -> list[Task]:
    found = []
    for p in (16, 64, 256):
        scale = [float(f"{b:.3g}") for b in np.geomspace(1, 1e7, 15 if quick else 43)]
        for name, value in (*((f"{b:g}", b) for b in NAMED), ("derived", derived(p)), *(("", b) for b in scale)):
            found += [Task({"p": p, "dtype": dtype, "named": name, "beta": value}, 0) for dtype in DTYPES]
    return found


def run(setting: Setting, seed: int) -> list[Row]:
    """Errors against clip(x, -1, 1) on a fine grid a little past both ends, and what the weights look like."""
    p, beta = int(setting["p"]), float(setting["beta"])
    model = ah.theorems.single_head([[1.0]], [0.0], -1, 1, anchors=p, beta=beta, dtype=torch.float64)
    x = torch.linspace(-1.1, 1.1, POINTS, dtype=torch.float64)[:, None, None]
    dtype = DTYPES[str(setting["dtype"])]
    narrow, z = altered(model.literal(), dtype), x.to(dtype)
    output, weights = narrow(z).double()[..., 0, 0], narrow.attention_weights(z)[0].double()[:, 0, 0]
    finite = output.isfinite()
    error = (output - x[:, 0, 0].clamp(-1, 1))[finite]
    return [{
        "sup": error.abs().max().item() if len(error) == len(x) else math.inf,
        "mean_square": error.square().mean().item() if len(error) == len(x) else math.inf,
        "not_finite": 1 - finite.double().mean().item(),
        "selects": share(weights.amax(-1) > 0.99),
        "zero_weights": share(weights == 0),
        "bound": model.bound,
        "spacing": 2 / (p - 1),
    }]  # fmt: skip


def figures(rows: Rows) -> Figures:
    found = Figures()
    for p, mine in rows.by("p"):
        with found.panel(f"beta_{p}", f"{p} anchors on [-1, 1]", "β, the inverse temperature", "sup error",
                         columns=2) as axes:  # fmt: skip
            for dtype, part in mine.by("dtype"):
                width = 3.5 if dtype == "float64" else 1.3
                curve(axes, part.ordered("beta"), "beta", "sup", color=HUES[dtype], lw=width, label=dtype)
            for i, beta in enumerate(NAMED):
                said = "β = " + ", ".join(f"{b:g}" for b in NAMED)
                axes.axvline(beta, color="0.6", lw=0.8, ls=":", label=None if i else said)
            axes.axvline(derived(int(p)), color="0.6", lw=0.8, label="the derived β")
            axes.axhline(mine.values("spacing")[0] / 2, color="0.45", lw=1, ls="--", label="half a spacing")
            axes.set_ylim(top=3)
    return found


def findings(rows: Rows) -> list[Finding]:
    table, best, optima = [], [], []
    for p, dtype, part in rows.by("p", "dtype"):
        least = min(part, key=lambda r: float(r["sup"]))
        finite = [float(r["beta"]) for r in part if r["not_finite"]]
        flat = float(least["beta"]) * float(least["spacing"]) ** 2
        optima += [flat] if dtype == "float64" else []
        best.append([str(p), dtype, f"{least['beta']:.3g}", f"{flat:.2g}", f"{least['sup']:.2g}",
                     f"{min(finite):.2g}" if finite else "never"])  # fmt: skip
        for name in (*(f"{b:g}" for b in NAMED), "derived"):
            (row,) = (r for r in part if str(r["named"]) == name)
            shares = (f"{100 * float(row[name]):.0f}%" for name in ("selects", "zero_weights"))
            said = f"{row['beta']:.4g}" + (", derived" if name == "derived" else "")
            table.append([str(p), dtype, said, f"{row['sup']:.2g}", *shares])
    return [
        "The optimum for a ramp is not where softmax selects but where neighbours blend, in float64 at βh² from "
        f"{min(optima):.1f} to {max(optima):.1f} among those tried: the blend of neighbours is nearly "
        "linear in u, and only the ends are blurred. Towards larger β the error rises to half a spacing, "
        "and is the theorem's; narrow dtypes lose the digits that distinguish neighbouring scores, the earlier the "
        "more anchors there are, or overflow.",
        Table(["p", "dtype", "best β", "βh² there", "sup error there", "first not finite at β"], best),
        "*Selects*: the share of queries whose largest weight exceeds 0.99. *Zero*: the share of weights that are 0.",
        Table(["p", "dtype", "β", "sup error", "selects", "zero"], table),
    ]
