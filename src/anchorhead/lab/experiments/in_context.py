"""In context: gradient descent inside a forward pass against the algorithm itself, over 1,000 steps for each loss.

64 standard normal examples with 8 features, one problem for each seed, default bounds. The paper's heads are the same
network with as many keys placed and valued as the paper does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import anchorhead as ah
from anchorhead.digits import Up
from anchorhead.lab.experiment import Finding, Row, Rows, Setting, Table, Task, known
from anchorhead.lab.figures import COLOURS, Figures, curve

if TYPE_CHECKING:
    from anchorhead.in_context.gradient_descent import GradientDescent

TITLE = "Gradient descent in context"
ABOUT = (
    "A network with fixed weights reads 64 examples and runs gradient descent on them, one layer a step. *Deviation* "
    "is the distance of its w from the algorithm's, run in float64."
)
EXAMPLES, FEATURES = 64, 8
RATES = {"squared": 0.1, "logistic": 0.5, "huber": 0.1, "hinge": 0.1, "quantile": 0.1, "poisson": 0.01}
BOUNDS = {"poisson": {"s": 4.0}}
"""exp(s) is a number only where |w·x| is declared to be small."""


def tasks(quick: bool) -> list[Task]:
    steps = 100 if quick else 1000
    losses = ("squared", "logistic", "huber") if quick else RATES
    return [Task({"loss": loss, "steps": steps}, seed) for loss in losses for seed in range(1 if quick else 3)]


def problem(loss: str, seed: int) -> tuple[Tensor, Tensor]:
    """Examples with labels that suit the loss."""
    draw = torch.Generator().manual_seed(seed)
    X = torch.randn(EXAMPLES, FEATURES, generator=draw, dtype=torch.float64)
    w = torch.randn(FEATURES, generator=draw, dtype=torch.float64)
    noise = torch.randn(EXAMPLES, generator=draw, dtype=torch.float64)
    likely = torch.sigmoid(X @ w / w.norm()) > torch.rand(EXAMPLES, generator=draw, dtype=torch.float64)
    if loss == "logistic":
        return X, likely.double()
    if loss == "hinge":
        return X, 2 * likely.double() - 1
    if loss == "poisson":
        return X, torch.poisson((X @ w / 4).exp(), generator=draw).clamp(max=20)
    return X, X @ w + 0.3 * noise


def run(setting: Setting, seed: int) -> list[Row]:
    """Distances at about eighty steps, evenly spaced in the logarithm."""
    loss, steps = str(setting["loss"]), int(setting["steps"])
    X, y = problem(loss, seed)
    model = ah.in_context.gradient_descent(
        loss, features=FEATURES, examples=EXAMPLES, steps=steps, learning_rate=RATES[loss], bounds=BOUNDS.get(loss)
    )
    found = model.convergence(X, y)
    paper = _papers_deviation(model, X, y)
    shown = sorted({round(10 ** (k / 26)) for k in range(79)} & set(range(1, steps + 1)) | {steps})
    return [
        {"step": t, "keys": model.keys, "measured": found.measured[t].item(), "proved": found.proved[t].item(),
         "to_optimum": found.to_optimum[t].item(), "gradient": found.gradient_norm[t].item(), "paper": paper[t].item()}
        for t in shown
    ]  # fmt: skip


def _papers_deviation(model: GradientDescent, X: Tensor, y: Tensor) -> Tensor:
    """The same for the paper's heads; nan where they drive w out of the bounds within the run."""
    from anchorhead.in_context.bounds import OutsideBoundsError  # seconds to import, which other experiments save
    from anchorhead.in_context.paper import with_paper_heads

    try:
        return (with_paper_heads(model).trajectory(X, y) - model.exact(X, y)).norm(dim=-1)
    except OutsideBoundsError:
        return torch.full((model.algorithm.steps + 1,), math.nan)


def figures(rows: Rows) -> Figures:
    found = Figures()
    for loss, mine in rows.where(seed=0).by("loss"):
        title = f"{loss}, {mine.one('keys')} keys"
        with found.panel(f"in_context_{loss}", title, "step", "distance of w") as axes:
            for name, said, colour, form, width in (
                ("to_optimum", "to the optimum", "0.6", "-", 1.4),
                ("paper", "the paper's heads", COLOURS["trained"], "-", 1.4),
                ("proved", "proved", COLOURS["constructed"], "--", 1.2),
                ("measured", "these heads", COLOURS["constructed"], "-", 1.4),
            ):
                curve(axes, mine, "step", name, form, floor=1e-17, color=colour, lw=width, label=said)
    return found


def findings(rows: Rows) -> list[Finding]:
    table = []
    for loss, mine in rows.by("loss"):
        last = Rows(r for r in mine if r["step"] == r["steps"])
        found = {name: last.largest(name) for name in ("measured", "proved", "to_optimum", "paper")}
        said = (known(Up(n) if name == "proved" else n) or "left the bounds" for name, n in found.items())
        table.append([loss, f"{RATES[loss]:g}", str(last.one("keys")), *said])
    kept = rows.within_bounds("measured", "proved")
    return [
        f"After the last of {rows.one('steps'):,} steps, the largest over {len(rows.values('seed'))} problems. At "
        f"every step the deviation {'stayed' if kept else 'DID NOT STAY'} below the proved one. *Left the "
        "bounds*: those heads drove w out of the range that they were built for.",
        Table(["loss", "rate", "keys", "deviation", "proved", "to the optimum", "the paper's heads"], table),
    ]
