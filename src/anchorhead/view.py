"""A network and its target over a box of inputs, and the figure of them.

Of one input the figure has the function, the error under its bound and the attention of every key; of two it has both
as maps; of more it goes from the lower to the upper end of each input while the others rest (`resting`).
Where the target has kinks a line has more places near them, down to the spacing of floats, since a head errs most there
and nowhere else. Attention of several inputs is along a line on which each of them goes nearly from end to end, from
places and in directions that differ, so that they pass each other (`across`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from anchorhead.digits import Up
from anchorhead.display import BLUE, GREY, RED, sketch
from anchorhead.drawing import (
    COLUMN,
    CYCLE,
    NETWORK,
    SMALL,
    TARGET,
    Drawing,
    dress,
    error_axis,
    errors,
    image,
    label,
    legend,
)

Array = np.ndarray
POINTS, SIDE, ATTENDED, SKETCHED = 1001, 81, 335, 121
"""Places on a line, on a side of a map, of attention, and of a small drawing."""
MOST_WEIGHTS = 2e7
"""Attention weights that are computed for a figure; of a network with more there is no panel."""
SPAN = 16.0
"""How much of an unbounded domain is drawn."""
MOST_INPUTS, MOST_OUTPUTS, MOST_HEADS, MOST_KEYS = 8, 4, 12, 128
"""How many are drawn, the first ones, of heads evenly chosen ones; of more the labels say how many there are."""
MOST_KINKS = 24
"""On one line that are looked at closely; of more, evenly chosen ones."""
ACROSS = "a line through the box on which every input moves"
RESTING = 0.3
"""The share of that line where inputs are while one moves."""
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Line:
    """Places (points,), the network and its target there (points, outputs), the error that is kept (points,)."""

    x: Array
    values: Array
    exact: Array | None
    allowed: Array | None
    relative: bool

    @property
    def error(self) -> Array:
        """The largest of all outputs, (points,); not a number where the target is not known."""
        if self.exact is None:
            return np.full(self.x.shape, np.nan)
        error = np.abs(self.values - self.exact)
        return np.max(error / np.abs(self.exact) if self.relative else error, axis=-1)


@dataclass(frozen=True)
class View:
    """What is drawn. Functions take inputs (points, inputs) to (points, outputs).

    target: None where it cannot be looked into. allowed: the error that is kept at places of the only input, or
    anywhere; None where no bound is known; a multiple of |target| where it is relative. attention: of every head the
    weights (points, keys). condition: what the bound depends on, where it was declared. last: what the last panel has
    instead of the attention. outputs: how many are drawn, where there are so many. kinks: numbers (points, any) that
    change their sign where the target has a kink. heads: what those of `attention` are called.
    drawn: what the only output is, where it is not the network's first.
    """

    title: str
    names: Sequence[str]
    box: Sequence[tuple[float, float]]
    network: Callable[[Array], Array]
    target: Callable[[Array], Array] | None
    allowed: Callable[[Array], Array | float] | None = None
    relative: bool = False
    level: str = "proved"
    condition: str = ""
    label: str = "attention"
    attention: Callable[[Array], list[Array]] | None = None
    last: Callable[[Axes], None] | None = None
    outputs: int = MOST_OUTPUTS
    kinks: Callable[[Array], Array] | None = None
    heads: Sequence[str] = ()
    drawn: str = ""

    @property
    def low(self) -> Array:
        """The lower ends of what is drawn of the box."""
        return np.array([_part(*pair)[0] for pair in self.box])

    @property
    def high(self) -> Array:
        """The upper ends."""
        return np.array([_part(*pair)[1] for pair in self.box])

    @property
    def resting(self) -> Array:
        """Where inputs are while another moves: not in the middle, where many a function is zero or has its kinks."""
        return self.across(np.array([RESTING]))[0]

    def along(self, i: int, points: int = POINTS) -> Line:
        """Input i from end to end, the others resting: so many places evenly, and more near kinks."""
        return self._along(i, self._places([partial(self._inputs, i)], points))

    def through(self, points: int = POINTS) -> Line:
        """From end to end of `across`: places are shares of the way, or those of the only input."""
        if len(self.box) == 1:
            return self.along(0, points)
        share = self._places([self.across], points)
        return self.at(share, self.across(share))

    def _along(self, i: int, share: Array) -> Line:
        inputs = self._inputs(i, share)
        return self.at(inputs[:, i], inputs)

    def _inputs(self, i: int, share: Array) -> Array:
        """Input i at shares of its way, zero to one, the others resting."""
        inputs = np.tile(self.resting, (len(share), 1))
        inputs[:, i] = np.where(share < 1, self.low[i] + share * (self.high[i] - self.low[i]), self.high[i])
        return inputs

    def _places(self, lines: Sequence[Callable[[Array], Array]], points: int) -> Array:
        """Shares of the way, evenly spaced, and near the kinks on any of the lines."""
        even = np.linspace(0, 1, points)
        if self.kinks is None:
            return even
        found = [_near(_crossings(self.kinks, line, even), 1 / points) for line in lines]
        return np.unique(np.concatenate([even, *found]))

    def across(self, share: Array) -> Array:
        """Inputs (points, inputs) on the line of the file's first words; the box itself if it has one input."""
        count = len(self.box)
        if count == 1:
            return self.low + share[:, None] * (self.high - self.low)
        i = np.arange(count)
        near, far = 0.25 * (i * math.sqrt(2) % 1), 1 - 0.25 * (i * math.sqrt(3) % 1)
        turned = i * GOLDEN % 1 > 0.5
        start, end = np.where(turned, 1 - near, near), np.where(turned, 1 - far, far)
        return self.low + (start + share[:, None] * (end - start)) * (self.high - self.low)

    def at(self, x: Array, inputs: Array) -> Line:
        """The numbers at some inputs, at places x of a line."""
        exact = None if self.target is None else self.target(inputs)
        allowed = None if self.allowed is None else np.broadcast_to(self.allowed(x), x.shape)
        return Line(x, self.network(inputs), exact, allowed, self.relative)

    def figure(self) -> Drawing:
        """See the file."""
        maps = len(self.box) == 2
        middle = [] if self.target is None else ["error"]
        bottom = [] if self.attention is None and self.last is None else ["last"]
        if maps:
            rows: list[Any] = [["values", *middle], *([name] * (1 + len(middle)) for name in bottom)]
            found = Drawing((3.1 if middle else 3.6) + 2.0 * len(bottom), COLUMN * (2 if middle else 1))
        else:
            rows = [["values"], *([name] for name in (*middle, *bottom))]
            named = 0.35 * (self.attention is not None and len(self.heads) > 1)
            found = Drawing(0.2 + 1.75 * len(rows) + (0.4 + named) * len(bottom), COLUMN * (1 + named))
        axes = found.subplot_mosaic(rows, height_ratios=[1.4 if row[0] == "last" else 1.3 for row in rows])
        (self._maps if maps else self._lines)(found, axes)
        if bottom:
            self._last(found, axes["last"])
        return found

    def _lines(self, figure: Drawing, axes: dict[str, Axes]) -> None:
        """Values and errors along every input, or along the only one."""
        alone = len(self.box) == 1
        shown = range(min(len(self.box), MOST_INPUTS))
        share = self._places([partial(self._inputs, i) for i in shown], POINTS)
        lines = [self._along(i, share) for i in shown]
        t = lines[0].x if alone else share
        part = f"the first {MOST_INPUTS} of {len(self.box)} inputs," if len(self.box) > MOST_INPUTS else "one input"
        xlabel = label(self.names[0]) if alone else f"{part} from end to end, others resting"
        dress(axes["values"], ylabel=self.drawn or _output(lines[0], self.outputs if alone else 1))
        for i, line in enumerate(lines):
            _curves(axes["values"], t, line, self, i)
        legend(axes["values"])
        shared = ["values"]
        if "error" in axes:
            dress(axes["error"], ylabel=self._error())
            error = np.stack([line.error for line in lines], axis=-1)
            names = ["measured"] if alone else [label(self.names[i], 10) for i in range(len(lines))]
            errors(axes["error"], t, error, lines[0].allowed, names, self.bound())
            shared.append("error")
        for name in shared:
            axes[name].set_xlim(t[0], t[-1])
            axes[name].tick_params(labelbottom=name == shared[-1])
        axes[shared[-1]].set_xlabel(xlabel, fontsize=SMALL)

    def _maps(self, figure: Drawing, axes: dict[str, Axes]) -> None:
        """The first output and the largest error as colours over the two inputs."""
        x, y = (np.linspace(a, b, SIDE) for a, b in zip(self.low, self.high, strict=True))
        inputs = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
        line = self.at(inputs[:, 0], inputs)
        sides = {"xlabel": label(self.names[0], 20), "ylabel": label(self.names[1], 20)}
        for panel in axes.values():
            panel.locator_params(nbins=5)
        several = f", {_output(line, 1)}" if line.values.shape[1] > 1 else ""
        target = np.zeros(SIDE) if line.exact is None else line.exact[:, 0]
        named = "the network, with lines of\n" if np.ptp(target) > 0 else "the network for "
        dress(axes["values"], named + label(self.title, 40) + several, **sides)
        image(figure, axes["values"], x, y, line.values[:, 0].reshape(SIDE, SIDE),
              f"the network: {_output(line, 1)}", over=target.reshape(-1, SIDE))  # fmt: skip
        if "error" not in axes:
            return
        bound = "" if line.allowed is None else "\n" + self.bound(line.allowed.max())
        largest = max(np.nanmax(found.error) for found in (line, self.along(0), self.along(1), self.through()))
        dress(axes["error"], f"largest error seen: {largest:.2e}{bound}", **sides)
        said = self._error() + (f", the largest of {line.values.shape[1]} outputs" if several else "")
        image(figure, axes["error"], x, y, line.error.reshape(SIDE, SIDE), said, colours="magma_r",
              most=None if line.error.any() else 1.0)  # fmt: skip

    def bound(self, value: float | None = None) -> str:
        """What the bound is called, with its number where there is one."""
        if self.level == "measured":
            return "largest error at the sampled points" + ("" if value is None else f": about {value:.2e}")
        number = "" if value is None else f": {Up(value):.2e}"
        return f"bound{number}, {self.condition}" if self.condition else f"{self.level} bound{number}"

    def _error(self) -> str:
        return "|error| / |target|" if self.relative else "|error|"

    def _last(self, figure: Drawing, axes: Axes) -> None:
        """Who attends to what along the only input, or along a line through the box; or what is to be there."""
        dress(axes)
        if self.last is not None:
            self.last(axes)
        elif self.attention is not None:
            alone = len(self.box) == 1
            t = np.linspace(0, 1, ATTENDED)
            heads = self.attention(self.across(t))
            dress(axes, xlabel=label(self.names[0]) if alone else f"along {ACROSS}")
            axes.xaxis.label.set_fontsize(SMALL)
            x = self.across(t)[:, 0] if alone else t
            _attention(figure, axes, x, heads, self.heads if len(self.heads) == len(heads) else ())


def _curves(axes: Axes, t: Array, line: Line, view: View, i: int) -> None:
    """Target and network along input i: of the only input several outputs, else the first."""
    alone = len(view.box) == 1
    for k in range(min(line.values.shape[1], view.outputs) if alone else 1):
        first = k == 0 and i == 0
        if line.exact is not None:
            axes.plot(t, line.exact[:, k], color=TARGET, lw=3, label=label(view.title, 30) if first else None)
        colour = NETWORK if alone else CYCLE[i % len(CYCLE)]
        named = view.label if alone else label(view.names[i], 10)
        once = k == 0 and (alone or view.target is None)
        axes.plot(t, line.values[:, k], color=colour, lw=1, label=named if once else None)


def _crossings(distances: Callable[[Array], Array], line: Callable[[Array], Array], t: Array) -> Array:
    """Where on a line a number changes its sign between neighbours of t, found by halving: sorted, each once."""
    sign = np.sign(distances(line(t)))
    change = (sign[:-1] * sign[1:] <= 0) & ((sign[:-1] != 0) | (sign[1:] != 0))
    here, which = np.nonzero(change)
    if len(here) > MOST_KINKS:
        chosen = np.linspace(0, len(here) - 1, MOST_KINKS).astype(int)
        here, which = here[chosen], which[chosen]
    low, high, rows = t[here], t[here + 1], np.arange(len(here))
    start = sign[here, which]
    for _ in range(52 if len(here) else 0):
        middle = (low + high) / 2
        now = np.sign(distances(line(middle))[rows, which])
        before = (now == start) & (start != 0) | (start == 0) & (now == 0)
        low, high = np.where(before, middle, low), np.where(before, high, middle)
    return np.unique(np.where(start == 0, low, high))


def _near(places: Array, step: float) -> Array:
    """Places in (0, 1) at and on both sides of some, at distances from a step down by roots of two."""
    away = step * 2.0 ** -np.arange(0, 40, 0.5)
    found = (places[:, None] + np.concatenate([-away, [0.0], away])).ravel()
    return found[(found >= 0) & (found <= 1)]


def _attention(figure: Drawing, axes: Axes, x: Array, heads: list[Array], names: Sequence[str]) -> None:
    """Keys in the order in which the query meets them, head above head, with lines between."""
    rows: list[Array] = []
    most = 0
    chosen = np.unique(np.linspace(0, len(heads) - 1, MOST_HEADS).astype(int))
    for weights in [heads[k] for k in chosen]:
        own = weights[:, weights.max(axis=0) > 0]  # of heads side by side some have fewer keys
        met = np.where(own.max(axis=0) > 1e-3, own.argmax(axis=0), len(x))
        rows.append(own[:, np.argsort(met, kind="stable")[:MOST_KEYS]].T)
        most = max(most, own.shape[1])
    shown = np.concatenate(rows)
    image(figure, axes, x, np.arange(len(shown)), shown, "attention weight", colours="magma_r", most=1.0)
    sizes = np.array([len(row) for row in rows])
    for edge in np.cumsum(sizes)[:-1]:
        axes.axhline(edge - 0.5, color="0.6", lw=0.8)
    if names and len(heads) > 1:
        middles = np.cumsum(sizes) - sizes / 2 - 0.5
        axes.set_yticks(middles, [label(names[k], 24) for k in chosen], fontsize=SMALL - 2)
    else:
        axes.set_yticks(range(0, len(shown), max(1, math.ceil(len(shown) / 6))))
    part = "" if most <= MOST_KEYS else f" ({MOST_KEYS} of {'up to ' * (len(heads) > 1)}{most:,})"
    axes.set_ylabel(f"key{part}")
    if len(heads) > 1:
        said = f"{len(heads)} heads" if len(heads) == len(chosen) else f"{len(chosen)} of {len(heads)} heads"
        axes.set_ylabel(f"keys{part} of {said}", fontsize=SMALL)


def _output(line: Line, drawn: int) -> str:
    count = line.values.shape[1]
    if count == 1:
        return "value"
    return f"output 0 of {count}" if drawn == 1 else f"outputs 0 to {min(count, drawn) - 1} of {count}"


def _part(low: float, high: float) -> tuple[float, float]:
    """A finite part of an interval: the interval itself, or what is nearest to zero or to its end."""
    if math.isinf(low) and math.isinf(high):
        return -SPAN / 2, SPAN / 2
    if math.isinf(high):
        return low, low + SPAN
    return (high - SPAN, high) if math.isinf(low) else (low, high)


def sketched(view: View) -> str:
    """Two small drawings for a notebook: the function with its network, and the error under the bound."""
    line = view.through(SKETCHED)
    x, values = line.x.tolist(), line.values[:, 0].tolist()
    where = f"for {view.names[0]} from {x[0]:.4g} to {x[-1]:.4g}" if len(view.box) == 1 else f"on {ACROSS}"
    if line.exact is None:
        return sketch(x, [(RED, values)], f"the network {where}")
    top = sketch(x, [(GREY, line.exact[:, 0].tolist()), (RED, values)], f"the target, broad, and the network {where}")
    if line.allowed is None:
        return top
    curves = [(BLUE, line.error.tolist()), (RED, line.allowed.tolist())]
    places = f"{len(x)} places" + ", most of them near kinks" * (len(x) > SKETCHED)
    said = f"the error, at most {line.error.max():.2e} at {places}, under the {view.bound()}, on a logarithmic scale"
    return top + sketch(x, curves, said, least=error_axis(line.error, line.allowed)[0])
