"""Figures without a window, a file or global state: how they look, how notebooks show them, how they are written."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation, NullFormatter, ScalarFormatter

from anchorhead.display import plain
from anchorhead.errors import FileError

COLUMN = 3.4
"""Inches: the width of a column of a paper in two columns."""
SMALL, USUAL = 7, 8
TARGET, NETWORK, ERROR = "0.75", "#c8384a", "#1f5fa8"
CYCLE = ("#1f5fa8", "#d1495b", "#2a9d6f", "#c9831f", "#7a4fbf", "#5b6770", "#17a2b8", "#a0522d")
NOTEBOOK_DPI = 130
LISTED = 0.75
"""The share of a figure's width that is left beside names."""
LABELLED = (math.inf, 0.53)
"""Decades of a logarithmic axis with less than two powers of ten: beyond the second there are two numbers with a first
digit of 1, 2, 3 or 6, so that these are enough of labels; below, every mark has one."""


class Drawing(Figure):
    """A figure of its own, so many inches wide and high, that a notebook shows whether or not pyplot was imported."""

    def __init__(self, height: float, width: float = COLUMN) -> None:
        super().__init__(figsize=(width, height), layout="constrained")

    def draw(self, renderer: RendererBase) -> None:
        """As matplotlib's, with two labels or more on every logarithmic axis, however few decades it has."""
        for axis in (axis for axes in self.axes for axis in (axes.xaxis, axes.yaxis) if axis.get_scale() == "log"):
            low, high = sorted(np.log10(axis.get_view_interval()))
            few = math.floor(high) - math.ceil(low) < 1
            between = LogFormatterSciNotation(minor_thresholds=LABELLED) if few else NullFormatter()
            axis.set_minor_formatter(between)
            axis.set_tick_params(which="minor", labelsize=SMALL)
        super().draw(renderer)

    def savefig(self, fname: Any, *, transparent: bool | None = None, **options: Any) -> None:
        """As matplotlib's, with fonts that journals take (Type 42) in PDF and PostScript."""
        with matplotlib.rc_context({"pdf.fonttype": 42, "ps.fonttype": 42}):
            super().savefig(fname, transparent=transparent, **options)

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png", dpi=NOTEBOOK_DPI)
        return out.getvalue()


def write(figure: Figure, path: str | PathLike[str]) -> None:
    """Writes a figure in the format that the file's name ends with, any that matplotlib has."""
    kinds = sorted(figure.canvas.get_supported_filetypes())
    kind = Path(path).suffix.removeprefix(".").lower()
    if kind not in kinds:
        ends = f"ends with .{kind}" if kind else "has no ending"
        raise FileError(
            f"The figure's name, {path}, {ends}, and the format is read off it; matplotlib writes {', '.join(kinds)}."
        )
    try:
        figure.savefig(path, dpi=300)
    except (OSError, ValueError, RuntimeError) as error:
        raise FileError(f"{path} cannot be written: {error}.") from error


def label(text: str, most: int = 44) -> str:
    """A name from a user or a file as matplotlib takes it: no formula in dollars, no control characters, and the middle
    left out of what is too long."""
    short = text if len(text) <= most else f"{text[: most // 2 - 1]}...{text[2 - (most - most // 2) :]}"
    return plain(short).replace("$", r"\$")


def dress(axes: Axes, title: str = "", xlabel: str = "", ylabel: str = "") -> None:
    """The look of all axes."""
    axes.set_title(title, fontsize=USUAL, loc="left")
    axes.set_xlabel(xlabel, fontsize=USUAL)
    axes.set_ylabel(ylabel, fontsize=USUAL)
    axes.tick_params(labelsize=SMALL)
    axes.yaxis.get_offset_text().set(fontsize=SMALL, x=-0.16)
    axes.spines[["top", "right"]].set_visible(False)


def legend(axes: Axes, share: float = 1.0) -> None:
    """The names of curves, above the axes so that they hide none, in as many columns as fit; share: how much of the
    figure's width the axes have."""
    names = axes.get_legend_handles_labels()[1]
    widest = max((len(name) for name in names), default=0)
    room = 17 * share * cast(Figure, axes.figure).get_figwidth()
    columns = max(1, min(len(names), int(room / (widest + 5))))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, frameon=False, fontsize=SMALL,
                ncols=columns, columnspacing=1.2, handlelength=1.6)  # fmt: skip


def error_axis(error: np.ndarray, allowed: np.ndarray | None) -> tuple[float, float]:
    """The ends of a logarithmic axis that holds the bound and most of the errors, in eight decades at most."""
    known = error[np.isfinite(error) & (error > 0)]
    bounds = np.zeros(0) if allowed is None else allowed[allowed > 0]
    most = float(np.max([*known.ravel(), *bounds.ravel()], initial=0.0)) or 1e-14
    low = [1e-4 * bounds.min()] if bounds.size else [1e-4 * most]
    if known.size:
        low.append(np.quantile(known, 0.25) / 3)
    return max(float(min(low)), 1e-8 * most), most


def errors(axes: Axes, x: np.ndarray, error: np.ndarray, allowed: np.ndarray | None, names: Sequence[str],
           bound: str) -> None:  # fmt: skip
    """Errors (points, curves) on a logarithmic axis, and the bound that they keep; zeros are gaps, and a
    curve of nothing else says so by its name."""
    least, most = error_axis(error, allowed)
    for i, (curve, name) in enumerate(zip(error.T, names, strict=True)):
        said = name if curve.any() else f"{name}: zero"
        axes.semilogy(x, np.where(curve > 0, curve, np.nan), color=CYCLE[i % len(CYCLE)], lw=0.9, label=said)
    if allowed is not None:
        axes.semilogy(x, allowed, color=NETWORK, lw=1.1, ls="--", label=bound)
    axes.set_ylim(0.6 * least, 3 * most)
    axes.grid(True, color="0.93", lw=0.6)
    legend(axes)


def image(figure: Figure, axes: Axes, x: np.ndarray, y: np.ndarray, values: np.ndarray, said: str, *,
          colours: str = "viridis", most: float | None = None, over: np.ndarray | None = None) -> None:  # fmt: skip
    """Numbers (y, x) as colours, with a scale below that says what they are; up to `most`, from zero, if given. over:
    others, as lines on top, unless they are all the same."""
    ends: dict[str, Any] = {} if most is None else {"vmin": 0.0, "vmax": most}
    drawn = axes.pcolormesh(_edges(x), _edges(y), values, cmap=colours, rasterized=True, **ends)
    if over is not None and np.ptp(over) > 0:
        axes.contour(x, y, over, 9, colors="white", linewidths=0.7, linestyles="solid")
    scale = figure.colorbar(drawn, ax=axes, location="bottom", aspect=30, pad=0.02)
    scale.set_label(said, fontsize=SMALL)
    scale.ax.tick_params(labelsize=SMALL)
    scale.ax.locator_params(axis="x", nbins=5)
    scale.outline.set_visible(False)
    cast(ScalarFormatter, scale.formatter).set_powerlimits((-3, 3))
    scale.ax.xaxis.offsetText.set_fontsize(SMALL)


def _edges(places: np.ndarray) -> np.ndarray:
    """The ends of cells around places in a row."""
    if len(places) == 1:
        return places + np.array([-0.5, 0.5])
    middles = (places[1:] + places[:-1]) / 2
    return np.concatenate([2 * places[:1] - middles[:1], middles, 2 * places[-1:] - middles[-1:]])


def dots(axes: Axes, names: Sequence[str], values: Sequence[float], kinds: Sequence[str], xlabel: str) -> None:
    """Positive numbers on a logarithmic axis, one a line from the top, coloured by their kind; zeros and what is no
    number have no dot. Names are written where there are few enough to be read."""
    sizes, rows = np.array(values, dtype=float), np.arange(len(values))
    shown = np.isfinite(sizes) & (sizes > 0)
    for i, kind in enumerate(dict.fromkeys(kinds)):
        mine = shown & (np.array(kinds) == kind)
        axes.plot(sizes[mine], rows[mine], "o", ms=3.5, color=CYCLE[i % len(CYCLE)], label=label(kind, 30))
    if shown.any():
        axes.set_xscale("log")
    axes.set_ylim(len(values) - 0.5, -0.5)
    if len(names) <= 40:
        axes.set_yticks(rows, [label(name, 34) for name in names])
    axes.set_xlabel(xlabel, fontsize=USUAL)
    axes.grid(True, axis="x", color="0.93", lw=0.6)
    legend(axes, LISTED)


def listed(count: int) -> Drawing:
    """A figure for so many lines of `dots`."""
    return Drawing(1.1 + 0.16 * min(max(count, 2), 40), width=1.35 * COLUMN)
