"""Length and width: error and time per token for sequences of 10 to 100,000 tokens with up to 256 features.

`single_head` with its anchors in columns of their own (causal), 512 of them on [-3, 3], weights of length one and
inputs of size one, so that u is of size one whatever the number of features; and `multi_head` with 4 heads, whose
anchors are the n columns themselves, up to 1,000 tokens.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

import anchorhead as ah
from anchorhead.digits import Up
from anchorhead.lab.experiment import Finding, Row, Rows, Setting, Table, Task
from anchorhead.lab.figures import Figures, curve

TITLE = "Length and width"
ABOUT = (
    "The theorems hold for sequences of any length and tokens of any width. Times are of one thread. "
    "Dashed: the bounds."
)
CLOCKED = ("nanoseconds_per_token",)
ANCHORS, LOW, HIGH = 512, -3.0, 3.0
HUES = {4: "#1f5fa8", 64: "#2a9d6f", 256: "#d1495b"}


def tasks(quick: bool) -> list[Task]:
    lengths = (10, 100, 1000, 10_000) if quick else (10, 100, 1000, 10_000, 100_000)
    found = [Task({"how": "single_head", "n": n, "d": d}, 0) for n in reversed(lengths) for d in HUES]
    return found + [Task({"how": "multi_head", "n": n, "d": d}, 0) for n in (10, 100, 1000) for d in HUES]


def run(setting: Setting, seed: int) -> list[Row]:
    """Sup error over thousands of tokens, one sequence at least, and the median time of three runs."""
    n, d = int(setting["n"]), int(setting["d"])
    draw = torch.Generator().manual_seed(seed)
    weights = torch.randn(n, d, generator=draw, dtype=torch.float64)
    weights /= weights.norm(dim=-1, keepdim=True)
    bias = torch.zeros(n, dtype=torch.float64)
    model: ah.theorems.SingleHead | ah.theorems.MultiHead
    if setting["how"] == "single_head":
        model = ah.theorems.single_head(weights, bias, LOW, HIGH, anchors=ANCHORS, causal=True)
    else:
        model = ah.theorems.multi_head(weights, bias, LOW, HIGH, heads=4)
    drawn = 20_000 if setting["how"] == "single_head" else 4_000
    x = torch.randn(max(1, drawn // n), n, d, generator=draw, dtype=torch.float64)
    with torch.no_grad():
        error = (model(x) - model.exact(x)).abs().max().item()
        seconds = statistics.median(_seconds(model, x) for _ in range(3))
    return [{"sup": error, "bound": model.bound, "keys": model.resources.keys,
             "nanoseconds_per_token": 1e9 * seconds / (len(x) * n)}]  # fmt: skip


def _seconds(model: torch.nn.Module, x: Tensor) -> float:
    start = time.perf_counter()
    model(x)
    return time.perf_counter() - start


def figures(rows: Rows) -> Figures:
    found = Figures()
    for name, ylabel in (("sup", "sup error"), ("nanoseconds_per_token", "nanoseconds per token")):
        with found.panel(f"length_{name}", f"{ylabel}, by length", "tokens n", ylabel) as axes:
            for how, d, part in rows.by("how", "d"):
                form, label = "o-" if how == "single_head" else "s:", f"{how}, d = {d}"
                curve(axes, part.ordered("n"), "n", name, form, ms=3.5, lw=1.4, color=HUES[d], label=label)
                if name == "sup" and d == 4:
                    curve(axes, part.ordered("n"), "n", "bound", "--", color="0.45", lw=1)
    return found


def findings(rows: Rows) -> list[Finding]:
    table = []
    for how, d, part in rows.by("how", "d"):
        for row in part.ordered("n"):
            sizes = (f"{row['n']:,}", f"{row['keys']:,}", f"{row['sup']:.2e}", f"{Up(row['bound']):.2e}")
            table.append([how, str(d), *sizes, f"{row['nanoseconds_per_token']:,.0f}"])
    return [
        f"Every bound {'was kept' if rows.within_bounds() else 'WAS NOT KEPT'}. With one head neither the error nor "
        "the time per token depends on the length; tokens of 256 features take longer to read. multi_head has (n - 2)H "
        "anchors, so with the length its error falls and its time per token rises. Times are this machine's, in "
        "length.times.csv, and differ from run to run.",
        Table(["how", "d", "tokens", "keys", "sup error", "bound", "ns per token"], table),
    ]
