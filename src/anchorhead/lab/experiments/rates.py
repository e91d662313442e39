"""How the error falls with the anchors p, the heads H and the range |b - a|: by theorem, by training, by better heads.

The setting is the published one: n = 50, d = 10, w and t standard normal, inputs uniform on [-5, 5], target
clip(w_i·x_i + t_i, a, b), errors on the 200 sequences held out. Sweeps: p at H = 1, H at p = 60 (the theorem's own H
heads have (n - 2)H anchors), |b - a| at p = 60.
"""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

import anchorhead as ah
from anchorhead.lab.experiment import SEEDS, Experiment, Finding, Row, Setting, Table, Task
from anchorhead.lab.figures import legend, panel, spread, ticks
from anchorhead.lab.published import PublishedLayer, in_first_feature, train
from anchorhead.lab.ramps import FEATURES, HELD_OUT, TOKENS, RampData, ramp_data
from anchorhead.lab.rows import Rows
from anchorhead.lab.slopes import fitted_slope

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
    return [
        {"keys": keys, "sup": error.abs().max().item(), "mean_square": error.square().mean().item(), "bound": bound}
    ]


def _trained(how: str, p: int, heads: int, high: float, data: RampData, target: Tensor, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    model = PublishedLayer(TOKENS, FEATURES, p, heads, draw)
    x, y = data.inputs.float(), target.float()
    if "from" in how:
        anchors, spacing = torch.linspace(-high, high, p), 2 * high / (p - 1)
        sharp = 1.0 if "smooth" in how else math.log((p - 1) / 1e-6)
        model.start_at_anchors(data.weights.float(), data.bias.float(), anchors, sharp / spacing**2)
    train(model, x[:-HELD_OUT], in_first_feature(y[:-HELD_OUT]), EPOCHS * (10 if "10x" in how else 1), draw)
    with torch.no_grad():
        return (model(x[-HELD_OUT:])[..., 0] - y[-HELD_OUT:]).double()


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


def figures(rows: Rows) -> dict[str, Figure]:
    found = {}
    for sweep in SIZES:
        mine = swept(rows, sweep)
        for name, said in (("sup", "sup error"), ("mean_square", "mean squared error")):
            figure, axes = panel(f"{said}, by {CALLED[sweep]}", CALLED[sweep], said)
            for how, part in mine.by("how"):
                if how == "kinked" or len(part.values(sweep)) == 1:  # far below, or no curve: see the findings
                    continue
                spread(axes, part, sweep, name, how)
            if name == "sup":
                built = mine.where(how="constructed")
                spread(axes, built, sweep, "bound", "the theorem's bound", color="0.45", marker="", ls="--", lw=1)
            legend(figure)
            ticks(axes, mine.values(sweep))
            found[f"rates_{sweep}_{name}"] = figure
    return found


def findings(rows: Rows) -> list[Finding]:
    slopes, errors = [], []
    sweeps = {sweep: swept(rows, sweep) for sweep in SIZES}
    for sweep, mine in sweeps.items():
        for how, part in mine.by("how"):
            if len(part.values(sweep)) > 1 and how != "kinked":
                sup, rms = fitted_slope(part, sweep, "sup"), fitted_slope(part, sweep, "mean_square", power=0.5)
                slopes.append([CALLED[sweep], how, str(sup), str(rms), str(len(part.values("seed")))])
    hows, kinked = sweeps["p"].values("how"), rows.where(how="kinked")
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
        f"within {kinked.largest('bound'):.0e}, err by {kinked.largest('sup'):.0e} at most on these inputs.",
        Table(["", *hows], errors),
    ]


EXPERIMENT = Experiment(
    "rates",
    "Rates in anchors, heads and range",
    "The paper's own experiment: n = 50 ramps on [a, b], one attention layer. *Constructed* is the network of the "
    "theorem; *trained* is the authors' layer trained as published, for 50 epochs, and ten times longer; *from the "
    "construction* starts that training at the theorem's numbers, which the layer can hold exactly. *Smooth* is one "
    "head with as many anchors at a β at which neighbours blend, *kinked* the three keys that compile gives "
    "for clip.",
    tasks,
    run,
    figures,
    findings,
)
