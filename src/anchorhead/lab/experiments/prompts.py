"""Prompts of 1 to 100,000 tokens: a compiled statistic, kernel methods, and the universal network as its lattice grows.

The statistic is q·cov(x, y)/(var(x) + 0.2), compiled to 1e-6, held against the same computed plainly.

Examples are uniform on [-1, 1]^2 with labels sin(3x) cos(2y) and noise. Nadaraya-Watson regression and the nearest
neighbour are held against distances and exponentials computed plainly, kernel ridge regression against a Cholesky
factor and, where it is installed, against scikit-learn. The universal network computes functions of a prompt of tokens
in [0, 1]; its error is the largest over prompts of 1 to 5,000 tokens: uniform, at the edges of cells, with masses at
half a unit, in clusters and at the ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

import anchorhead as ah
from anchorhead.digits import Up
from anchorhead.lab.experiment import Finding, Row, Rows, Setting, Table, Task, known
from anchorhead.lab.figures import Figures, curve

TITLE = "Functions of a prompt"
ABOUT = (
    "The same weights for every prompt: the examples are the keys. Errors are from the method itself, computed "
    "plainly; dashed: the proved bounds; errors of zero are drawn at 1e-17. The universal network knows a function of "
    "the prompt by its values on a lattice of measures, and its bound follows from how fast the function varies."
)
LENGTHS = (1, 10, 100, 1000, 10_000, 100_000)
RIDGE = (1, 5, 50, 200, 800)
QUICK = (1, 10, 100, 1000)
SIZES = (2, 3, 4, 5, 6, 7, 8)
LENGTH, L2, WIDTH, MARGIN = 0.5, 0.01, 0.2, 1e-9
BOUNDS = {"x": 1.0, "query": 1.0, "y": 2.0}
HUES = {"kernel_regression": "#1f5fa8", "nearest_neighbour": "#2a9d6f", "kernel_ridge": "#d1495b",
        "statistic": "#8a5fbf"}  # fmt: skip
STATISTIC = "q*cov(x, y)/(var(x) + 0.2)"
FORMS = {"deviation": "#1f5fa8", "variance": "#d1495b"}


def tasks(quick: bool) -> list[Task]:
    found = [("kernel_ridge", n) for n in reversed(QUICK[:3] if quick else sorted({*RIDGE, *QUICK[:3]}))]
    found += [
        (what, n)
        for n in reversed(QUICK if quick else LENGTHS)
        for what in ("statistic", "kernel_regression", "nearest_neighbour")
    ]
    sizes = reversed(SIZES[:3] if quick else SIZES)
    universal = [Task({"what": what, "n": 5000, "cells": size}, 0) for size in sizes for what in FORMS]
    return universal + [Task({"what": what, "n": n, "cells": 0}, 0) for what, n in found]


def run(setting: Setting, seed: int) -> list[Row]:
    """The largest error, what it is proved to stay below, keys, and the distance from scikit-learn."""
    what, n, cells = str(setting["what"]), int(setting["n"]), int(setting["cells"])
    if cells:
        return [_universal(what, cells, seed)]
    X, y, query = problem(n, seed)
    if what == "statistic":
        return [_statistic(X, query[:, :1])]
    if what == "kernel_regression":
        model: ah.in_context.KernelRegression | ah.in_context.KernelRidgeNetwork | ah.in_context.NearestNeighbour = (
            ah.in_context.kernel_regression(2, WIDTH, bounds=BOUNDS)
        )
    elif what == "nearest_neighbour":
        model = ah.in_context.nearest_neighbour(2, MARGIN, bounds=BOUNDS)
    else:
        model = ah.in_context.kernel_ridge(2, LENGTH, L2, bounds=BOUNDS)
    found = model(X, y, query)
    error = (found - model.exact(X, y, query)).abs().max().item()
    peer = _from_scikit_learn(found, X, y, query) if what == "kernel_ridge" else math.nan
    return [{"sup": error, "bound": model.certificate.bound, "keys": n, "peer": peer}]


def problem(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Examples with noisy labels, and a hundred queries."""
    draw = torch.Generator().manual_seed(seed + n)
    X, query = (2 * torch.rand(count, 2, generator=draw, dtype=torch.float64) - 1 for count in (n, 100))
    noise = 2 * torch.rand(n, generator=draw, dtype=torch.float64) - 1
    return X, torch.sin(3 * X[:, 0]) * torch.cos(2 * X[:, 1]) + 0.2 * noise, query


def _statistic(tokens: Tensor, query: Tensor) -> Row:
    """A formula of a prompt, compiled: one network for every length."""
    ends = (-1.0, 1.0)
    model = ah.in_context.compile(STATISTIC, tokens={"x": ends, "y": ends}, query={"q": ends}, tol=1e-6)
    x, y = (column - column.mean() for column in tokens.unbind(-1))
    exact = query * ((x * y).mean() / (x.square().mean() + 0.2))
    error = (model(tokens, query) - exact).abs().max().item()
    return {"sup": error, "bound": model.certificate.bound, "keys": model.resources.keys, "peer": math.nan}


def _from_scikit_learn(found: Tensor, X: Tensor, y: Tensor, query: Tensor) -> float:
    """The distance from its KernelRidge; nan where it is not installed."""
    try:
        from sklearn.kernel_ridge import KernelRidge
    except ModuleNotFoundError:
        return math.nan
    theirs = KernelRidge(alpha=L2 * len(X), kernel="rbf", gamma=0.5 / LENGTH**2).fit(X.numpy(), y.numpy())
    return (found - torch.as_tensor(theirs.predict(query.numpy()))).abs().max().item()


def deviation(points: Tensor, weights: Tensor) -> Tensor:
    """The mean distance from 0.3."""
    return (weights * (points[:, 0] - 0.3).abs()).sum(-1)


def variance(points: Tensor, weights: Tensor) -> Tensor:
    """The variance; it varies by at most 2|x - mean| <= 2."""
    x = points[:, 0]
    return (weights * x * x).sum(-1) - (weights * x).sum(-1) ** 2


def _universal(what: str, cells: int, seed: int) -> Row:
    F, lipschitz = {"deviation": (deviation, 1.0), "variance": (variance, 2.0)}[what]
    model = ah.in_context.universal(F, {"x": (0.0, 1.0)}, cells, cells, lipschitz=lipschitz)
    worst = max((model(x) - model.exact(x)).abs().max().item() for x in _prompts(cells, seed))
    return {"sup": worst, "bound": model.bound, "keys": model.keys, "peer": math.nan}


def _prompts(cells: int, seed: int) -> Iterator[Tensor]:
    """Two hundred prompts; see the top."""
    draw = torch.Generator().manual_seed(seed)
    for i in range(200):
        n = int(torch.exp(8.5 * torch.rand((), generator=draw)))
        x = torch.rand(n, 1, generator=draw, dtype=torch.float64)
        if i % 5 == 1:
            x = (x * cells).round() / cells
        elif i % 5 == 2:
            cuts = torch.randint(2 * cells + 1, (cells - 1,), generator=draw).sort().values
            cell = torch.searchsorted(cuts, torch.arange(2 * cells), right=True)
            x = ((cell + (x[0] > 0.5)) / cells).unsqueeze(-1).double()
        elif i % 5 == 3:
            x = (x[:1] + 0.01 * (x - 0.5)).clamp(0, 1)
        elif i % 5 == 4:
            x = (x < x[:1]).double()
        yield x


def figures(rows: Rows) -> Figures:
    found, kernels = Figures(), rows.where(cells=0)
    with found.panel("prompts_length", "Functions of a prompt, bounds dashed", "tokens n", "sup error") as axes:
        for what, part in kernels.by("what"):
            mine = part.ordered("n")
            curve(axes, mine, "n", "sup", "o-", floor=1e-17, ms=3.5, lw=1.4, color=HUES[what], label=_words(what))
            curve(axes, mine, "n", "bound", "--", lw=1, color=HUES[what])
    with found.panel("prompts_universal", "The universal network, bounds dashed", "keys", "largest error",
                     ticks=[float(row["keys"]) for row in rows if row["what"] in FORMS]) as axes:  # fmt: skip
        for what, part in rows.by("what"):
            if what in FORMS:
                mine = part.ordered("keys")
                curve(axes, mine, "keys", "sup", "o-", ms=3.5, lw=1.4, color=FORMS[what], label=what)
                curve(axes, mine, "keys", "bound", "--", lw=1, color=FORMS[what])
    return found


def findings(rows: Rows) -> list[Finding]:
    kernels = rows.where(cells=0)
    table = [
        [_words(what), f"{row['n']:,}", known(float(row["sup"])), known(Up(row["bound"])), known(float(row["peer"]))]
        for what, part in kernels.by("what")
        for row in part.ordered("n")
    ]
    measures = [
        [what, str(row["cells"]), f"{row['keys']:,}", f"{row['sup']:.3f}", f"{Up(row['bound']):.3f}"]
        for what, part in Rows(r for r in rows if r["cells"]).by("what")
        for row in part.ordered("cells")
    ]
    return [
        f"Every bound {'was kept' if rows.within_bounds() else 'WAS NOT KEPT'}. One set of weights serves all lengths; "
        f"only rounding depends on the longest that is declared. Kernel ridge: length {LENGTH:g}, l2 = {L2:g}.",
        Table(["method", "n", "sup error", "proved", "from scikit-learn"], table),
        "The universal network with as many parts of mass as cells. Halving its error about squares the number of "
        "keys, which for a function that is known only by its values cannot be avoided.",
        Table(["function", "cells", "keys", "largest error", "bound"], measures),
    ]


def _words(what: str) -> str:
    return what.replace("_", " ")
