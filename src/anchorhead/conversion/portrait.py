"""A conversion in one figure: what is proved of every place, and how often which operation was seen to run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from anchorhead.drawing import CYCLE, LISTED, NETWORK, SMALL, Drawing, dots, dress, label, legend, listed
from anchorhead.errors import InputError
from anchorhead.proof.norm_heads import share_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from anchorhead.conversion.report import ConversionReport


def portrait(report: ConversionReport) -> Drawing:
    """The figure of a report; of one without a place there is nothing to draw."""
    rows, seen = report.replaced, _seen(report)
    if not rows:
        raise InputError("Nothing was converted, so that there is nothing to draw; print the report to see why.")
    figure = listed(len(rows) + 2 * len(seen))
    above, below = figure.subplots(2, 1, height_ratios=[min(len(rows), 40) + 3, len(seen) + 2])
    dress(above)
    bounds = [r.relative if r.kind == "norm" else r.error for r in rows]
    kinds = [f"{r.formula}, {r.kind}" + (f", of {share_of(r.formula)}" if r.kind == "norm" else "") for r in rows]
    dots(above, [r.place for r in rows], bounds, kinds, "proved error")
    above.axvline(report.tol, color=NETWORK, lw=1.1, ls="--", label=f"tol {report.tol:g}")
    legend(above, LISTED)
    _bars(below, seen)
    return figure


def _seen(report: ConversionReport) -> list[tuple[str, int, str]]:
    """Operations by name, how many places each has, and what they are."""
    counted = lambda rows: Counter(what.partition(" (")[0] for _, what in rows).most_common(6)
    heads = Counter(f"{r.formula}, {r.kind}" for r in report.replaced).most_common(6)
    return (
        [(name, count, "heads") for name, count in heads]
        + [(name, count, "its own attention") for name, count in counted(report.attention)]
        + [(name, count, "remains nonlinear") for name, count in counted(report.remaining)]
    )


def _bars(axes: Axes, seen: list[tuple[str, int, str]]) -> None:
    dress(axes)
    for i, kind in enumerate(dict.fromkeys(kind for _, _, kind in seen)):
        rows = [k for k, row in enumerate(seen) if row[2] == kind]
        bars = axes.barh(rows, [seen[k][1] for k in rows], height=0.6, color=CYCLE[i], label=kind)
        axes.bar_label(bars, fontsize=SMALL, padding=2)
    axes.set_yticks(range(len(seen)), [label(name, 34) for name, _, _ in seen])
    axes.set_ylim(len(seen) - 0.4, -0.6)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_xlabel("places", fontsize=SMALL)
    legend(axes, LISTED)
