"""The tables of the documentation, each a function that returns its lines; `regenerate.py` puts them in their places.

What takes seconds is computed. What takes half an hour, training, is read from the CSV of a full run of
`anchorhead reproduce` in `results/`, of which `tests/test_docs.py` recomputes a sample; what is timed, from the CSV of
a benchmark.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import nn

import anchorhead as ah
from anchorhead.digits import Up
from anchorhead.lab.experiment import Rows
from anchorhead.lab.experiments import named, rates, row_maps, training
from anchorhead.lab.experiments.rates import fitted_slope
from anchorhead.lab.ledger import Ledger

RESULTS = Path(__file__).parent / "results"
Case = tuple[str, str, tuple[float, float] | None, Sequence[float]]
CASES: tuple[Case, ...] = (
    ("gelu on R", "gelu(x)", None, (1e-6, 1e-9)),
    ("silu, tanh, sigmoid on R", "silu(x)", None, (1e-12,)),
    ("relu, abs, leaky_relu on R", "relu(x)", None, (1e-6,)),
    ("sin(3x) on [-1, 1]", "sin(3*x)", (-1, 1), (1e-6, 1e-10)),
    ("1/x on [0.1, 10]", "1/x", (0.1, 10), (1e-6,)),
)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def keys_by_target() -> str:
    """Keys of compiled heads, and what the paper's head would need."""
    rows = []
    for name, formula, domain, tolerances in CASES:
        keys = " / ".join(str(ah.compile(formula, domain, tol=tol).resources.keys) for tol in tolerances)
        paper = (
            "does not reach all of R" if domain is None else " / ".join(_paper(formula, domain, t) for t in tolerances)
        )
        rows.append([name, " / ".join(f"{t:.0e}".replace("e-0", "e-") for t in tolerances), keys, paper])
    return markdown(["target, domain", "tol", "keys", "the paper's head, same error"], rows)


def _paper(formula: str, domain: tuple[float, float], tol: float) -> str:
    (option,) = (o for o in ah.plan(formula, domain, tol=tol).options if o.method == "nearest")
    return f"{option.keys:.0e}" if option.keys is not None else ""


def architectures() -> str:
    """What conversion does with small models of the transformers library."""
    from architectures import rows

    return markdown(
        ["architecture", "converted", "remains, listed", "pure: norms too", "remains then", "difference"], rows()
    )


def keys_of_networks() -> str:
    """Keys of whole networks."""
    products = []
    for count in (2, 4, 8, 16):
        formula = " * ".join(f"x{i}" for i in range(count))
        products.append(str(ah.compile(formula, (0.5, 1.5), tol=1e-4).resources.keys))
    norm = nn.LayerNorm(16).double()
    low, high = torch.arange(16.0, dtype=torch.float64) - 0.5, torch.arange(16.0, dtype=torch.float64) + 0.5
    normed = ah.compile(norm, (low, high), tol=1e-4)
    rows = [
        ["the product of 2 / 4 / 8 / 16 variables on [0.5, 1.5], tol 1e-4", " / ".join(products)],
        ["a layer norm of 16 features around 0, ..., 15, tol 1e-4", str(normed.resources.keys)],
    ]
    return markdown(["target", "keys in all"], rows)


def reference() -> Rows:
    """The rows of the full run's rates."""
    return Rows(Ledger(RESULTS, named("rates"), rates.tasks(False)).rows())


def published_against_constructed() -> str:
    """Mean squared errors over seeds, by anchors and by heads."""
    found = reference()
    columns = [("p", 60), ("p", 90), ("p", 120), ("H", 4), ("H", 16)]
    hows = rates.swept(found, "p").values("how")
    rows = []
    for how in (h for h in hows if h != "kinked"):
        cells = [rates.swept(found, sweep).where(how=how, **{sweep: size}) for sweep, size in columns]
        rows.append([how, *(f"{c.mean('mean_square'):.2g}" if len(c) else "" for c in cells)])
    return markdown(["", *(f"{name} = {size}" for name, size in columns)], rows)


def estimators() -> str:
    """What `python -m benchmarks estimators` measured last."""
    with (RESULTS / "estimators.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return markdown(header, rows)


def slopes() -> str:
    """Slopes of the sup error by anchors, heads and range."""
    found = reference()
    rows = []
    for how in ("constructed", "smooth", "trained"):
        cells = [fitted_slope(rates.swept(found, s).where(how=how), s, "sup") for s in rates.SIZES]
        rows.append([how, *map(str, cells)])
    return markdown(["", *(f"in {rates.CALLED[s].replace('|', '&#124;')}" for s in rates.SIZES)], rows)


def trained_models() -> str:
    """Loss at the end of training, over seeds, and the time of a step over that with feed-forward layers."""
    found = Rows(Ledger(RESULTS, named("training"), training.tasks(False)).rows())
    rows, whole = [], found.where(kind="feed-forward").mean("milliseconds")
    for kind in training.KINDS:
        last = found.where(kind=kind, step=training.STEPS)
        losses = last.column("loss")
        time = f"{last.mean('milliseconds') / whole:.1f}"
        rows.append([kind, f"{last.mean('parameters'):,.0f}", f"{last.mean('loss'):.3f}",
                     f"{min(losses):.3f} to {max(losses):.3f}", time])  # fmt: skip
    header = ["feed-forward layers, or in their place", "parameters", "loss, mean of 3 seeds", "from, to"]
    return markdown([*header, "time of a step"], rows)


def _row_maps() -> Rows:
    return Rows(Ledger(RESULTS, named("row_maps"), row_maps.tasks(False)).rows())


def maps_by_keys() -> str:
    """Errors of heads under each row map, and what is proved with the most keys."""
    found, sizes = _row_maps().where(series="keys"), row_maps.SIZES
    rows = []
    for which in row_maps.MAPS:
        mine = found.where(map=which)
        sine = [mine.where(target="sin(3*x)", size=size) for size in sizes]
        last = mine.where(target="gelu(x)", size=sizes[-1])
        cells = [f"{part.one('sup'):.1e}" for part in (*sine, last)]
        rows.append([f"`{which}`", *cells, _bound(sine[-2]), _bound(last)])
    header = ["map", *(f"sin(3x), {size}" for size in sizes), f"gelu, {sizes[-1]}", f"sin(3x), {sizes[-2]}: proved",
              f"gelu, {sizes[-1]}: proved"]  # fmt: skip
    return markdown(header, rows)


def _bound(part: Rows) -> str:
    bound = float(part.one("bound"))
    return f"{Up(bound):.1e}" if bound == bound else "measured only"


def bits_and_span() -> str:
    """Softmax in fixed point, by the largest value of the head."""
    rows = []
    for _, part in _row_maps().where(series="bits").by("size"):
        cells = [part.where(bits=w) for w in (4, 8, 12, 16)]
        first = [f"{part.values('largest')[0]:.3g}", str(part.values("keys")[0])]
        rows.append([*first, *(f"{c.one('sup'):.1e} / {Up(c.one('bound')):.1e}" for c in cells)])
    return markdown(["values to", "keys", *(f"{w} bits" for w in (4, 8, 12, 16))], rows)
