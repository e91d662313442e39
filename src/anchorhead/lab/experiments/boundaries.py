"""Boundaries: sharp transitions near both ends and at seams between heads, and how the error depends on the distance.

Targets tanh(s(x - c)) on [-1, 1] with the transition at c: 0.05 from an end, or at 0, where two heads of equally many
anchors meet; s is the sharpness. *One head* and *two heads* are the paper's (Theorem 3.2) with 64 anchors and values
f(L_k); at the seam each of the two contributes its share. *Smooth* and *gated* are compiled with 24 keys, proved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

import anchorhead as ah
from anchorhead.digits import Up
from anchorhead.lab.experiment import Finding, Row, Rows, Setting, Table, Task, known
from anchorhead.lab.figures import COLOURS, Figures, curve

TITLE = "Boundaries and seams"
ABOUT = (
    "Transitions where a construction is weakest: at the ends of its range, where there are anchors on one side only, "
    "and where one head's anchors end and the next one's begin. By distance, each mark is the largest error in the "
    "band that ends there and begins at the mark before; errors of zero are drawn at 1e-17."
)
PLACES = {"low end": -0.95, "seam": 0.0, "high end": 0.95}
ANCHORS, KEYS = 64, 24
AT = {"low end": "0.05 from the low end", "seam": "at the seam", "high end": "0.05 from the high end"}
SHOWN = 40
"""The sharpness of the figures by distance."""
STYLES: dict[str, dict[str, Any]] = {
    "gated": {"color": COLOURS["gated"], "marker": "D", "ms": 5.5, "lw": 2.5},
    "smooth": {"color": COLOURS["smooth"], "marker": "o", "ms": 3.5},
    "one head": {"color": COLOURS["nearest"], "marker": "s", "ms": 5, "lw": 2.5},
    "two heads": {"color": "#d1495b", "marker": "o", "ms": 2.5, "ls": "--"},
}
EDGES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Distances from the boundary, between which the largest error is taken."""
FLOOR = 1e-17


def tasks(quick: bool) -> list[Task]:
    sharpness = {place: ((10, 40) if place == "seam" else (40,)) if quick else (5, 10, 20, 40, 80) for place in PLACES}
    hows = ("gated", "smooth", "one head", "two heads")
    settings: list[Setting] = [
        {"place": p, "sharpness": s, "how": how} for p in PLACES for s in sharpness[p] for how in hows
    ]
    return [Task(setting, 0) for setting in settings]


def run(setting: Setting, seed: int) -> list[Row]:
    """The largest error in bands of distance from the boundary: the end in question, or the seam."""
    place, sharp, how = str(setting["place"]), float(setting["sharpness"]), str(setting["how"])
    x = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    centre = PLACES[place]

    def f(u: Tensor) -> Tensor:
        return torch.tanh(sharp * (u - centre))

    if how in ("gated", "smooth"):
        model = ah.compile(f"tanh({sharp}*(x - {centre}))".replace("- -", "+ "), (-1, 1), method=how, keys=KEYS)
        error, bound = (model(x) - f(x)).abs(), model.certificate.bound
    else:
        error, bound = (looked_up(x, f, heads=1 if how == "one head" else 2) - f(x)).abs(), math.nan
    boundary = {"low end": -1.0, "seam": 0.0, "high end": 1.0}[place]
    distance = (x - boundary).abs()
    return [
        {
            "from_distance": near,
            "to_distance": far,
            "sup": error[(distance >= near) & (distance <= far)].max().item(),
            "bound": bound,
        }
        for near, far in pairwise(EDGES)
        if near < distance.max()  # no place is further than 1 from the seam
    ]


def looked_up(x: Tensor, f: Callable[[Tensor], Tensor], heads: int) -> Tensor:
    """The weights of Theorem 3.2's heads on anchors of [-1, 1], with values f(L_k) instead of L_k."""
    tokens = ANCHORS // heads + 2
    weights = torch.ones(tokens, 1, dtype=torch.float64)
    model = ah.theorems.multi_head(weights, weights[:, 0] * 0, -1, 1, heads=heads)
    inside = model.anchors.reshape(heads, -1)
    values = torch.zeros(heads, tokens, dtype=torch.float64)
    values[:, 1:-1] = f(inside)
    values[0, 0], values[-1, -1] = f(torch.tensor(-1.0).double()), f(torch.tensor(1.0).double())
    padded = torch.cat([x, x[-1:].expand(-len(x) % tokens)]).reshape(-1, tokens, 1)
    found = (model.attention_weights(padded)[0] * values[:, None, :]).sum((-1, -3))
    return found.flatten()[: len(x)]


def figures(rows: Rows) -> Figures:
    found = Figures()
    for place, mine in rows.where(sharpness=SHOWN).by("place"):
        title, xlabel = f"tanh({SHOWN}(x - c)), c {AT[place]}", f"distance from the {place}, in bands up to"
        name = f"boundaries_{place.replace(' ', '_')}"
        with found.panel(name, title, xlabel, "sup error", ticks=mine.values("to_distance")) as axes:
            for how, part in mine.by("how"):
                curve(axes, part, "to_distance", "sup", floor=FLOOR, label=how, **STYLES[how])
    for place in ("seam", "high end"):
        mine = rows.where(place=place)
        if len(mine.values("sharpness")) == 1:
            continue  # no curve, in the quick form
        name, title = f"boundaries_sharpness_{place.replace(' ', '_')}", f"largest error anywhere, c {AT[place]}"
        with found.panel(name, title, "sharpness s", "sup error", ticks=mine.values("sharpness")) as axes:
            for how, part in mine.by("how"):
                groups = list(part.by("sharpness"))
                axes.plot([s for s, _ in groups], [g.largest("sup") for _, g in groups], label=how, **STYLES[how])
    return found


def _difference(rows: Rows) -> float:
    """The largest relative difference between the largest errors of one head and of two, over all transitions."""
    cases = [case for *_, case in rows.by("place", "sharpness")]
    pairs = [(case.where(how="one head").largest("sup"), case.where(how="two heads").largest("sup")) for case in cases]
    return max(abs(one - two) / one for one, two in pairs)


def findings(rows: Rows) -> list[Finding]:
    table = []
    for place, sharp, how, bands in rows.by("place", "sharpness", "how"):
        errors, bound = bands.column("sup"), known(Up(bands.values("bound")[0]))
        table.append([place, f"{sharp}", how, f"{errors[:3].max():.1e}", f"{errors[3:].max():.1e}", bound])
    return [
        f"Proved bounds {'hold at every distance' if rows.within_bounds() else 'WERE EXCEEDED'}. The paper's heads err "
        "where the target is steep, by up to half a spacing times the slope. The largest errors of two heads and of "
        f"one differ by {100 * _difference(rows):.2g}% at most, at seams as elsewhere.",
        Table(["transition", "s", "how", "within 0.1 of it", "further", "proved"], table),
    ]
