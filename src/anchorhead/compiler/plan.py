"""What each way of building a model would cost for a target, before choosing one.

Besides single heads there is the route through the graph, a head for every node in as many layers as it is deep; for
several variables there are that and the tensor grid, all in one layer.

Every method that fits the target and the domain is searched and proved, so a plan's numbers are those of the
model that `compile` would return. The paper's head is first order: where it would need many keys its size is
computed from the theorem instead, ω(h/2) + ε·spread <= tol with ω the target's modulus of continuity in ball
arithmetic and ε·spread a hundredth of tol.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from anchorhead.compiler.circuit_route import Graph
from anchorhead.compiler.circuit_target import elementwise
from anchorhead.compiler.method import Method, Wish, check_tol
from anchorhead.compiler.methods import METHODS
from anchorhead.compiler.nearest_anchors import nearest_keys
from anchorhead.compiler.read import read
from anchorhead.compiler.target import Target
from anchorhead.digits import Up, counted, interval
from anchorhead.display import bars, page, sentence, table
from anchorhead.enclosure.variation import moved
from anchorhead.errors import AnchorheadError, InputError
from anchorhead.head.nearest import sharpness
from anchorhead.progress import Progress, telling

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROUTES = ("graph", "grid")
COLUMNS = ("method", "layers", "heads", "keys", "beta", "logit range", "largest value", "error")
"""Of a table of options."""
ORDER = ("kinked", "gated", "smooth", "pieces", "nearest")
MOST_BUILT = 1024
"""Anchors of the paper's head that a plan builds; of more it states the theorem's numbers."""
RELATIVE = ("kinked", "gated", "smooth", "gamma", "pieces")


@dataclass(frozen=True)
class Option:
    """One method: what it needs to keep the tolerance, and the error that is proved; `reason` if it cannot."""

    method: str
    layers: int | None
    heads: int | None
    keys: int | None
    beta: float | None
    logit_range: float | None
    largest_value: float | None
    bound: float | None
    reason: str = ""

    def __str__(self) -> str:
        if self.layers is None or self.heads is None or self.keys is None or self.bound is None:
            return f"{self.method}: {self.reason}"
        cost = f"{counted(self.layers, 'layer')}, {counted(self.heads, 'head')}, {counted(self.keys, 'key')}"
        return f"{self.method}: {cost}, beta {self.beta:.3g}, error {Up(self.bound):.3g}" + (
            f" ({self.reason})" if self.reason else ""
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Plan:
    """The options for one target, cheapest first; those that cannot keep the tolerance come last."""

    expression: str
    domain: tuple[tuple[float, float], ...]
    tol: float
    dtype: str
    options: tuple[Option, ...]
    relative: bool = False

    def __str__(self) -> str:
        domain = " x ".join(map(interval, self.domain[:4]))
        more = f" and {len(self.domain) - 4} more" if len(self.domain) > 4 else ""
        within = f"{self.tol:g} of its size" if self.relative else f"{self.tol:g}"
        return "\n".join([f"{self.expression} on {domain}{more} to within {within}, {self.dtype}",
                          *(f"  {option}" for option in self.options)])  # fmt: skip

    __repr__ = __str__

    @property
    def best(self) -> Option | None:
        """The option with the fewest keys, or None if no method keeps the tolerance."""
        return self.options[0] if self.options and self.options[0].keys is not None else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinite ends become strings."""
        ends = [[e if math.isfinite(e) else str(e) for e in pair] for pair in self.domain]
        return {"expression": self.expression, "domain": ends, "tol": self.tol, "dtype": self.dtype,
                "relative": self.relative, "options": [option.as_dict() for option in self.options]}  # fmt: skip

    def rows(self) -> list[tuple[str, ...]]:
        """The options as text, in the order of `COLUMNS`; a star where there is a reason to read."""
        return [
            (o.method, *["-"] * 7) if o.keys is None else
            (o.method + " *" * bool(o.reason), str(o.layers), str(o.heads), f"{o.keys:,}",
             *(f"{v:.3g}" for v in (o.beta, o.logit_range, o.largest_value, o.bound and Up(o.bound)) if v is not None))
            for o in self.options
        ]  # fmt: skip

    @property
    def title(self) -> str:
        """What is planned, in a line."""
        domain = " x ".join(map(interval, self.domain[:4]))
        domain += f" and {len(self.domain) - 4} more" if len(self.domain) > 4 else ""
        within = f"{self.tol:g} of its size" if self.relative else f"{self.tol:g}"
        return f"{self.expression} on {domain} to within {within}, {self.dtype}"

    @property
    def reasons(self) -> list[str]:
        """Why options are not built, or cannot keep the tolerance."""
        return [f"{o.method}: {o.reason}" for o in self.options if o.reason]

    def plot(self) -> Figure:
        """The keys of every method that keeps the tolerance: a figure with no file and no window."""
        from anchorhead.drawing import dots, dress, listed

        can = [o for o in self.options if o.keys is not None]
        if not can:
            raise InputError("No method keeps the tolerance, so that there is nothing to draw; print the reasons.")
        figure = listed(len(can))
        axes = figure.subplots()
        dress(axes)
        names = [f"{o.method}, {o.keys:,}" for o in can]
        dots(axes, names, [o.keys or 0 for o in can], ["by the theorem" if o.reason else "proved" for o in can],
             "keys")  # fmt: skip
        return figure

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        keys = [(o.method, float(o.keys)) for o in self.options if o.keys is not None]
        return page(self.title, bars(keys, "keys, on a logarithmic scale"), table(COLUMNS, self.rows()),
                    sentence("\n".join(self.reasons)))  # fmt: skip


def plan(
    target: Any,
    domain: Any = None,
    *,
    tol: float = 1e-6,
    relative: bool = False,
    dtype: torch.dtype = torch.float64,
    shape: tuple[int, ...] | int | None = None,
    largest_value: float | Sequence[float] = (),
    progress: bool | Progress = True,
) -> Plan:
    """Every construction that reaches `tol` for the target, and what each costs. Arguments as for `compile`.

    largest_value: one or several limits; for each there is one more option, a smooth head whose constants and gains
    keep it: keys against span, for a bounded function of one variable.

    >>> best = ah.plan("sin(3*x)", (-1, 1), tol=1e-6).best
    >>> best.method, best.keys
    ('gated', 4)
    """
    tol = check_tol(tol)
    limits = largest_value if isinstance(largest_value, Sequence) else (largest_value,)
    with telling("planning", progress) as tell:
        return _plan(target, domain, tol, Wish(tol, None, dtype, None, tell), shape, limits, relative=relative)


def _plan(target: Any, domain: Any, tol: float, wish: Wish, shape: Any, limits: Sequence[float], *,
          relative: bool) -> Plan:  # fmt: skip
    given = read(target, domain, shape, METHODS["auto"], relative=relative)
    box: tuple[tuple[float, float], ...]
    with threadpool_limits(1):
        if isinstance(given, Target):
            found = [_head(given, method, tol, wish) for method in (RELATIVE if relative else ORDER)]
            name, box = str(given.expression), ((given.low, given.high),)
            found += [_limited(given, limit, wish) for limit in limits]
            if given.bounded and not relative:
                found.append(_option(elementwise(given), Graph(apart=True), wish))
        else:
            found = [_option(given, METHODS[method], wish) for method in ROUTES]
            name, box = given.name, given.box
    found.sort(key=lambda o: (o.keys is None, o.keys))
    return Plan(name, box, tol, wish.dtype, tuple(found), relative)


def _option(target: Any, method: Method, wish: Wish) -> Option:
    try:
        model = method.compile(target, wish)
    except AnchorheadError as error:
        return _cannot(method.name, str(error))
    cost = model.resources
    return Option(method.name, cost.layers, cost.heads, cost.keys, cost.beta, cost.logit_range, model.largest_value,
                  model.certificate.bound)  # fmt: skip


def _head(target: Target, method: str, tol: float, wish: Wish) -> Option:
    if method == "nearest" and target.bounded:
        needed = nearest_keys(target, tol)
        if needed is None or needed > MOST_BUILT:
            return _theorem(target, tol, needed)
    if method in ("gated", "smooth") and target.kinks:
        return _cannot(method, "the target has kinks, where smooth blends converge slowly; see kinked")
    return _option(target, METHODS[method], wish)


def _limited(target: Target, limit: float, wish: Wish) -> Option:
    option = _option(target, METHODS["smooth"], replace(wish, largest_value=limit))
    return replace(option, method=f"smooth, values to {limit:g}")


def _cannot(method: str, reason: str) -> Option:
    return Option(method, None, None, None, None, None, None, None, reason)


def _theorem(target: Target, tol: float, keys: int | None) -> Option:
    width = target.high - target.low
    spacing = 0.0 if keys is None else width / (keys - 1)
    if keys is None or spacing**2 == 0:
        return _cannot("nearest", "how far the target moves over short distances has no bound, or a far too large one")
    moves = lambda distance: moved(target.node, target.low, target.high, distance, target.variable)
    selection_error = tol / (100 * max(moves(width), tol))
    values = float(np.abs(target.function()(np.linspace(target.low, target.high, 2001))).max())
    beta = sharpness(width, keys, selection_error)
    bound = moves(spacing / 2) + tol / 100
    return Option("nearest", 1, 1, keys, beta, 0.75 * beta * width**2, values, bound, "by the theorem, not built")
