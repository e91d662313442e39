"""How figures look: as wide as a column of a paper, which a phone can show; a colour for each way of building one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anchorhead.drawing import SMALL, USUAL, Drawing
from anchorhead.lab.experiment import Rows

COLOURS = {
    "constructed": "#1f5fa8",
    "nearest": "#1f5fa8",
    "trained": "#d1495b",
    "trained, 10x longer": "#8d2f3d",
    "trained from the construction": "#e08e45",
    "trained from the smooth head": "#c9a227",
    "smooth": "#2a9d6f",
    "gated": "#7a4fbf",
    "kinked": "#5b6770",
    "ReLU network": "#7f7f7f",
}
MARKS = "osD^vPX*"


class Figures(dict[str, Figure]):
    """Figures by name, in the order in which they are drawn."""

    @contextmanager
    def panel(self, name: str, title: str, xlabel: str, ylabel: str, *, log: str = "xy", height: float = 2.7,
              columns: int = 2, ticks: Iterable[float] = ()) -> Iterator[Axes]:  # fmt: skip
        """One figure with one pair of axes. In the end the names of its curves are put below them, so that they hide
        none, in so many columns; and marks exactly at `ticks`, the sizes that were run, if any are given."""
        figure = self[name] = Drawing(height)
        axes = figure.subplots()
        axes.set_title(title, fontsize=USUAL, loc="left")
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        if "x" in log:
            axes.set_xscale("log")
        if "y" in log:
            axes.set_yscale("log")
        axes.grid(True, which="major", color="0.9", lw=0.7)
        axes.spines[["top", "right"]].set_visible(False)
        yield axes
        handles, labels = axes.get_legend_handles_labels()
        if labels:
            figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=SMALL)
        at = sorted(set(ticks))
        if at:
            axes.set_xticks(at, [f"{s:,g}" for s in at])
            axes.set_xticks([], minor=True)


def curve(axes: Axes, rows: Rows, x: str, y: str, *form: str, floor: float = -np.inf, **style: Any) -> None:
    """One name's numbers against another's, nothing below `floor`; further arguments are those of `Axes.plot`."""
    axes.plot(rows.column(x), rows.column(y).clip(floor), *form, **style)


def spread(axes: Axes, rows: Rows, x: str, y: str, label: str, **style: Any) -> None:
    """The median over seeds as a line, and all seeds as a shade from the least to the largest."""
    groups = sorted(rows.by(x), key=lambda group: group[0])
    at = [value for value, _ in groups]
    found = [group.column(y) for _, group in groups]
    style = {"color": COLOURS.get(label, "0.3"), "marker": "o", "ms": 3, "lw": 1.1, **style}
    axes.plot(at, [float(sorted(f)[len(f) // 2]) for f in found], label=label, **style)
    if max(len(f) for f in found) > 1:
        axes.fill_between(
            at, [f.min() for f in found], [f.max() for f in found], color=style["color"], alpha=0.15, lw=0
        )
