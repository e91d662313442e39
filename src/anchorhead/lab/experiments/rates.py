"""How the error falls with the anchors p, the heads H and the range |b - a|: by theorem, by training, by better heads.

The setting is the published one: n = 50, d = 10, w and t standard normal, inputs uniform on [-5, 5], target
clip(w_i·x_i + t_i, a, b), errors on the 200 sequences held out. Sweeps: p at H = 1, H at p = 60 (the theorem's own H
heads have (n - 2)H anchors), |b - a| at p = 60.

How fast an error falls is the slope of a line through log size and log error, with a confidence interval. Errors of one
seed share their data across sizes, so the points are not independent; each seed gives one slope by least squares, and
the interval is Student's for their mean. With one seed it is that of the regression.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

import anchorhead as ah
from anchorhead.digits import Up
from anchorhead.lab.experiment import SEEDS, Finding, Row, Rows, Setting, Table, Task, measured
from anchorhead.lab.figures import Figures, spread
from anchorhead.lab.published import FEATURES, HELD_OUT, TOKENS, PublishedLayer, RampData, ramp_data, train_on_ramps

TITLE = "Rates in anchors, heads and range"
ABOUT = (
    "The paper's own experiment: n = 50 ramps on [a, b], one attention layer. *Constructed* is the network of the "
    "theorem; *trained* is the authors' layer trained as published, for 50 epochs, and ten times longer; *from the "
    "construction* starts that training at the theorem's numbers, which the layer can hold exactly. *Smooth* is one "
    "head with as many anchors at a β at which neighbours blend, *kinked* the three keys that compile gives "
    "for clip."
)
SIZES = {"p": (60, 70, 80, 90, 100, 110, 120), "H": (1, 2, 4, 8, 16), "width": (10, 20, 30, 40, 50)}
QUICK = {"p": (60, 90, 120), "H": (1, 4, 16), "width": (10, 30, 50)}
QUICK_TRAINED = {"p": (60, 120), "H": (1, 4), "width": (10, 50)}
USUAL = {"p": 60, "H": 1, "width": 50}
CALLED = {"p": "anchors p", "H": "heads H", "width": "range |b - a|"}
EPOCHS = 50
TRAINED = ("trained", "trained, 10x longer", "trained from the construction", "trained from the smooth head")
BY_HEADS = {"constructed, H heads": "constructed", "smooth, as many anchors": "smooth"}
"""The networks of the sweep over H, whose anchors are (n - 2)H, by what they are called in its figure."""


def tasks(quick: bool) -> list[Task]:
    few, many = (SEEDS[:1], SEEDS[:3]) if quick else (SEEDS[:2], SEEDS)
    found = [_task("p", p, "trained, 10x longer", seed) for p in (() if quick else (120, 90, 60)) for seed in few]
    for sweep in ("H", "p", "width"):
        for size in reversed((QUICK_TRAINED if quick else SIZES)[sweep]):
            found += [_task(sweep, size, "trained", seed) for seed in (SEEDS[:1] if quick else SEEDS)]
    found += [
        _task("p", p, how, seed) for p in ((60,) if quick else (120, 90, 60)) for how in TRAINED[2:] for seed in few
    ]
    for sweep, sizes in (QUICK if quick else SIZES).items():
        ways = BY_HEADS if sweep == "H" else ("constructed", "smooth")
        found += [_task(sweep, v, how, seed) for how in (*ways, "kinked") for v in sizes for seed in many]
    return list({str(task): task for task in found}.values())  # sweeps meet in one setting, which is run once


def _task(sweep: str, size: int, how: str, seed: int) -> Task:
    return Task({"how": how, **USUAL, sweep: size}, seed)


def swept(rows: Rows, sweep: str) -> Rows:
    """The rows of one sweep: the other sizes as usual, and the networks that belong to it."""
    others = {name: size for name, size in USUAL.items() if name != sweep}
    away = {"constructed", "smooth"} if sweep == "H" else set(BY_HEADS)
    mine = (row for row in rows.where(**others) if row["how"] not in away)
    return Rows({**row, "how": BY_HEADS.get(str(row["how"]), row["how"])} for row in mine)


def run(setting: Setting, seed: int) -> list[Row]:
    """Errors on the held-out sequences; the bound where there is one, else nan."""
    how, p, heads = str(setting["how"]), int(setting["p"]), int(setting["H"])
    high = float(setting["width"]) / 2
    data = ramp_data(seed)
    target = data.target(-high, high)
    if how in TRAINED:
        error, bound, keys = _trained(how, p, heads, high, data, target, seed), math.nan, p
    else:
        error, bound, keys = _built(how, p, heads, high, data)
    return [measured(error, bound, keys)]


def _trained(how: str, p: int, heads: int, high: float, data: RampData, target: Tensor, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    model = PublishedLayer(TOKENS, FEATURES, p, heads, draw)
    if "from" in how:
        anchors, spacing = torch.linspace(-high, high, p), 2 * high / (p - 1)
        sharp = 1.0 if "smooth" in how else math.log((p - 1) / 1e-6)
        model.start_at_anchors(data.weights.float(), data.bias.float(), anchors, sharp / spacing**2)
    outputs = train_on_ramps(model, data, target, EPOCHS * (10 if "10x" in how else 1), draw)
    return (outputs - target[-HELD_OUT:].float()).double()


def _built(how: str, p: int, heads: int, high: float, data: RampData) -> tuple[Tensor, float, int]:
    """Errors, bound and keys of the theorem's network; of one head with as many anchors at a moderate
    β; of three keys joined by gates."""
    x = data.inputs[-HELD_OUT:]
    if how == "kinked":
        u = ((x * data.weights).sum(-1) + data.bias).double()
        head = ah.compile(f"clip(x, {-high}, {high})", tol=1e-9, method="kinked")
        return head(u) - u.clamp(-high, high), head.certificate.bound, head.resources.keys
    model: ah.theorems.SingleHead | ah.theorems.MultiHead
    if how.startswith("smooth"):
        count = p if how == "smooth" else (TOKENS - 2) * heads
        model = ah.theorems.single_head(data.weights, data.bias, -high, high, anchors=count, causal=True,
                                        beta=((count - 1) / (2 * high)) ** 2)  # fmt: skip
    elif how in BY_HEADS:
        model = ah.theorems.multi_head(data.weights, data.bias, -high, high, heads=heads)
    else:
        model = ah.theorems.single_head(data.weights, data.bias, -high, high, anchors=p)
    return (model(x) - model.exact(x))[..., 0], model.bound, model.resources.keys


def figures(rows: Rows) -> Figures:
    found = Figures()
    for sweep in SIZES:
        mine, called = swept(rows, sweep), CALLED[sweep]
        for name, said in (("sup", "sup error"), ("mean_square", "mean squared error")):
            title, sizes = f"{said}, by {called}", mine.values(sweep)
            with found.panel(f"rates_{sweep}_{name}", title, called, said, ticks=sizes) as axes:
                for how, part in mine.by("how"):
                    if _is_curve(how, part, sweep):
                        spread(axes, part, sweep, name, how)
                if name == "sup":
                    built = mine.where(how="constructed")
                    spread(axes, built, sweep, "bound", "the theorem's bound", color="0.45", marker="", ls="--", lw=1)
    return found


def _is_curve(how: str, rows: Rows, sweep: str) -> bool:
    """Kinked heads are far below, and one size is no curve."""
    return how != "kinked" and len(rows.values(sweep)) > 1


def findings(rows: Rows) -> list[Finding]:
    slopes, errors = [], []
    sweeps = {sweep: swept(rows, sweep) for sweep in SIZES}
    for sweep, mine in sweeps.items():
        for how, part in mine.by("how"):
            if _is_curve(how, part, sweep):
                sup, rms = fitted_slope(part, sweep, "sup"), fitted_slope(part, sweep, "mean_square", power=0.5)
                slopes.append([CALLED[sweep], how, str(sup), str(rms), str(len(part.values("seed")))])
    hows, kinked = sweeps["p"].values("how"), rows.where(how="kinked")
    erred = f"err by {kinked.largest('sup'):.0e} at most" if kinked.column("sup").any() else "have no error at all"
    for sweep, mine in sweeps.items():
        for size in sorted(mine.values(sweep)):
            at = mine.where(**{sweep: size})
            cells = [at.where(how=how) for how in hows]
            errors.append([f"{sweep} = {size}", *(f"{c.mean('mean_square'):.2g}" if len(c) else "" for c in cells)])
    return [
        "Slopes of the error in a log-log plot, with 95% intervals over seeds. The theorem's bound falls with slope -1 "
        "in p and in H, and rises with slope 1 in |b - a|. The sup error of the theorems' networks follows it "
        "(in |b - a| the mean rises faster, since in a wider range fewer ramps are clipped, which are exact); the "
        "trained ones are reported as they are.",
        Table(["in", "how", "sup error", "root mean square", "seeds"], slopes),
        "Mean squared error, mean over seeds. Three keys joined by gates (*kinked*), proved to "
        f"within {Up(kinked.largest('bound')):.0e}, {erred} on these inputs.",
        Table(["", *hows], errors),
    ]


@dataclass(frozen=True)
class Slope:
    """A slope and half of its 95% confidence interval; nan where it cannot be had."""

    value: float
    half_width: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.half_width:.3f}" if self.half_width < 100 else f"{self.value:.3f}"


def fitted_slope(rows: Rows, size: str, error: str, power: float = 1.0) -> Slope:
    """The slope of log(error^power) against log(size), over the sizes that every seed has."""
    logs = ((np.log(r.column(size)), np.log(np.maximum(r.column(error), 1e-300))) for _, r in rows.by("seed"))
    fits = [_fit(x, power * y) for x, y in logs]
    slopes = [slope for slope, _ in fits]
    if len(fits) == 1:
        return Slope(slopes[0], fits[0][1])
    spread = float(np.std(slopes, ddof=1)) / len(slopes) ** 0.5
    return Slope(float(np.mean(slopes)), float(stats.t.ppf(0.975, len(slopes) - 1)) * spread)


def _fit(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    if len(x) < 3:
        return (float((y[-1] - y[0]) / (x[-1] - x[0])) if len(x) == 2 else float("nan")), float("nan")
    found = stats.linregress(x, y)
    return float(found.slope), float(found.stderr * stats.t.ppf(0.975, len(x) - 2))
