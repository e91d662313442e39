"""From a wanted error to the size of a network, without reading the appendix.

The theorems give error <= max(|low|, |high|)·ε + (high - low)/p (or over (n - 2)H), so ε is taken small
enough to leave 99% of the tolerance to the second term, and p or H follow. For the universal theorems
the levels follow from the declared Lipschitz constant.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

from anchorhead.digits import Down, Up, counted, interval
from anchorhead.display import facts, page
from anchorhead.errors import InputError
from anchorhead.theorems.anchors import beta_for, check_count, check_range
from anchorhead.theorems.declared import declared_modulus
from anchorhead.theorems.grid import Grid, saturation, short
from anchorhead.theorems.grid_scores import GridScores, ramp_head
from anchorhead.theorems.own_columns import require_columns
from anchorhead.theorems.precision import DTYPES, AnchorHead
from anchorhead.theorems.ramps import even_head
from anchorhead.theorems.single_head import silent_score
from anchorhead.theorems.two_layer import RAMP_ANCHORS

LARGEST = 1e100
RAMPS, UNIVERSAL = ("single_head", "multi_head"), ("two_layer", "attention_then_softmax")


@dataclass(frozen=True)
class Plan:
    """What a construction needs. `anchors` is p, or (n - 2)H over all heads; `levels` and `grid_points` are for
    the universal theorems; `logit_range` is the largest |logit| for inputs in range, of the universal theorems in the
    box; `dtypes` says which can hold it, ramps if their biases t are zero, since those far from the middle of the range
    take digits; and `reach` beyond which |u - middle| its logits would overflow. `bound` of the universal theorems
    holds if f has the constant `lipschitz` in the distance `metric`, but for rounding, which depends on how large f is
    and is in the network's `bound_for`; `beta` is that of their look-up, and `ramp_beta` that of the ramps.

    >>> plan = ah.theorems.plan("multi_head", low=-25, high=25, tol=0.1, tokens=50, features=10)
    >>> plan.heads, plan.dtypes["float32"]
    (11, True)
    """

    theorem: str
    low: float
    high: float
    tol: float
    tokens: int
    features: int
    layers: int
    heads: int
    anchors: int
    levels: int | None
    grid_points: int | None
    selection_error: float
    beta: float
    bound: float
    parameters: int
    logit_range: float
    dtypes: dict[str, bool]
    reach: dict[str, float]
    lipschitz: float | None = None
    metric: str | None = None
    ramp_beta: float | None = None

    def __str__(self) -> str:
        grid = f"{self.levels} levels, {short(self.grid_points)} grid points, " if self.grid_points else ""
        ramps = "" if self.ramp_beta is None else f", of ramps {self.ramp_beta:.6g}"
        holds = ", ".join(name for name, held in self.dtypes.items() if held) or "no dtype"
        return (
            f"{self.theorem} on {interval((self.low, self.high))} to within {self.tol:g}, "
            f"{counted(self.tokens, 'token')} x {counted(self.features, 'feature')}\n"
            f"  layers {self.layers}, heads {self.heads:,}, {grid}anchors p = {self.anchors:,}, β = {self.beta:.6g}"
            f"{ramps}\n"
            f"  bound {Up(self.bound):.6g}{self._condition}, selection error ε = {self.selection_error:.3g}, "
            f"{short(self.parameters)} parameters, logits up to {self.logit_range:.4g}; held by {holds}"
        )

    __repr__ = __str__

    @property
    def _condition(self) -> str:
        where = " in the sup norm" if self.metric == "sup" else ""
        return "" if self.lipschitz is None else f", if f is Lipschitz with {self.lipschitz:g}{where}"

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return asdict(self)

    @property
    def title(self) -> str:
        """What is planned, in a line."""
        return f"{self.theorem} on {interval((self.low, self.high))} to within {self.tol:g}"

    def rows(self) -> list[tuple[str, str]]:
        """What it needs, as names and values."""
        found: list[tuple[str, Any]] = [
            ("attention layers", self.layers),
            ("heads", f"{self.heads:,}"),
            ("anchors of a ramp head" if self.levels else "anchors", f"{self.anchors:,}"),
            ("levels a coordinate", self.levels),
            ("grid points (keys of layer 2)", self.grid_points and short(self.grid_points)),
            ("selection error", f"{self.selection_error:.3g}"),
            ("beta of the look-up" if self.levels else "beta", f"{self.beta:,.6g}"),
            ("beta of the ramps", self.ramp_beta and f"{self.ramp_beta:,.6g}"),
            (f"bound{self._condition}" if self._condition else "proved bound", f"{Up(self.bound):.6g}"),
            ("parameters", short(self.parameters)),
            ("logit range", f"±{self.logit_range:.4g}"),
        ]
        for name, holds in self.dtypes.items():
            reach = f", |u - middle| up to {Down(self.reach[name]):.2g}" if self.reach[name] < 1e6 else ""
            found.append((name, f"holds it{reach}" if holds else "cannot hold it"))
        return [(name, str(value)) for name, value in found if value is not None]

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return page(self.title, facts(self.rows()))


def plan(
    theorem: str,
    *,
    low: float = 0.0,
    high: float = 1.0,
    tol: float,
    tokens: int,
    features: int,
    selection_error: float | None = None,
    lipschitz: float | None = None,
    output_features: int | None = None,
    causal: bool = False,
    metric: str = "euclidean",
    columns: str = "appended",
    shifts: int = 1,
    norm: float | str = "sup",
) -> Plan:
    """The smallest network of that theorem, at that `selection_error`, whose bound is at most `tol`; what it costs.

    theorem: single_head, multi_head, two_layer or attention_then_softmax; the last two need `lipschitz`, in the
    distance `metric`, as `bound_for` takes them. selection_error: ε of the theorem, 1e-6 unless given, or less where it
    would take a hundredth of `tol`; a smaller one may need a few anchors less, at a larger β. output_features defaults
    to 1 for ramps and `features` otherwise. columns="own" is planned for attention_then_softmax. Two layers on their
    own columns, and bounds in other norms than "sup", are not; `columns`, `shifts` and `norm` say so.

    >>> ah.theorems.plan("single_head", low=-25, high=25, tol=0.1, tokens=50, features=10).anchors
    501
    """
    read_theorem(theorem)
    _require_planned(theorem, columns, shifts, norm)
    low, high = check_range(low, high)
    if not (isinstance(tol, int | float) and 0 < tol < LARGEST):
        raise InputError(f"tol={tol} must be a positive finite number, the error that you can accept.")
    tokens, features = check_count(tokens, "tokens", 1), check_count(features, "features", 1)
    if output_features is not None:
        output_features = check_count(output_features, "output_features", 1)
    if (high - low) / tol > 1e12:
        raise InputError(
            f"tol={tol} on [{low}, {high}] needs more than 1e12 anchors; take a larger tol or a smaller range."
        )
    if theorem in RAMPS:
        if lipschitz is not None:
            raise InputError(f"{theorem} computes ramps, which need no Lipschitz constant; leave out lipschitz.")
        error = _selection_error(selection_error, tol, max(abs(low), abs(high)))
        return _ramps(theorem, low, high, tol, tokens, features, error, output_features or 1, causal)
    if causal:
        raise InputError(f"{theorem} has no causal form; leave out causal.")
    return _universal(theorem, low, high, tol, tokens, features, selection_error, lipschitz,
                      output_features or features, metric, own=columns == "own")  # fmt: skip


def _require_planned(theorem: str, columns: str, shifts: int, norm: float | str) -> None:
    """Refuses what is not planned."""
    own = theorem == "attention_then_softmax" and columns == "own"
    usual = {"columns": "own" if own else "appended", "shifts": 1, "norm": "sup"}
    asked = {"columns": columns, "shifts": shifts, "norm": norm}
    if asked != usual:
        said = ", ".join(f"{name}={value!r}" for name, value in asked.items() if value != usual[name])
        raise InputError(
            f"{said} cannot be planned for {theorem}: only bounds in "
            'the sup norm, with appended columns or, for attention_then_softmax, columns="own". Build the network, and '
            "read its resources and bound_for(..., norm=...)."
        )


def read_theorem(name: Any) -> str:
    """A theorem that is planned, by its name."""
    if name in (*RAMPS, *UNIVERSAL):
        return str(name)
    raise InputError(f"There is no theorem {name!r}; choose from {', '.join((*RAMPS, *UNIVERSAL))}.")


def _selection_error(given: float | None, tol: float, size: float) -> float:
    if given is None:
        return min(1e-6, tol / (100 * size))
    if not 0 < given < 1 or given * size >= tol:
        raise InputError(
            f"selection_error={given} must lie strictly between 0 and 1, and times {size:g}, the largest value, below "
            f"tol={tol}; leave it out to have it chosen."
        )
    return given


def _dtypes(head: AnchorHead | GridScores) -> tuple[dict[str, bool], dict[str, float]]:
    names = {d: str(d).removeprefix("torch.") for d in DTYPES}
    return {n: head.holds(d) for d, n in names.items()}, {n: head.reach(d) for d, n in names.items()}


def _ramps(theorem: str, low: float, high: float, tol: float, n: int, d: int, error: float, d_o: int,
           causal: bool) -> Plan:  # fmt: skip
    size = max(abs(low), abs(high))
    room = tol - size * error
    if theorem == "single_head":
        heads, p = 1, max(2, math.ceil((high - low) / room), 2 if causal else n + 1)
        points, losers, widest = p, p - 1, (high - low) / 2
        columns = p + n if causal else p
        parameters = 2 * n * d + (columns - n) * d + columns * (d + d_o + 2) + (4 + d_o) * (2 * d + d_o + 2)
    else:
        _require_many(n, causal)
        heads = max(1, math.ceil((high - low) / ((n - 2) * room)))
        p = (n - 2) * heads
        points, losers = p + 2, 2 * heads * (n - 1)
        widest = max(heads * max(high, 0.0) - low, high - heads * min(low, 0.0))  # every head silent, or at its extreme
        parameters = n * d + n * n + (2 + heads * (2 + d_o)) * (d + n)
    beta = beta_for(error, losers, (high - low) / (points - 1))
    head = even_head(torch.zeros(1, dtype=torch.float64), low, high, p, points, beta)
    bound = min(size * error + head.resolution, widest)
    logits = max(head.logit_range, silent_score(head)) if causal else head.logit_range
    return Plan(theorem, low, high, tol, n, d, 1, heads, p, None, None, error, head.beta, bound, parameters,
                logits, *_dtypes(head))  # fmt: skip


def _require_many(n: int, causal: bool) -> None:
    """Refuses sequences that `multi_head` has no columns for."""
    if n < 3:
        raise InputError(
            f"multi_head needs at least 3 tokens, not {n}: two columns of every head are sentinels. Plan single_head, "
            "or pad the sequence."
        )
    if causal:
        raise InputError(
            "multi_head keeps its anchors in the tokens' own columns, so it cannot be causal; use single_head."
        )


def _universal(theorem: str, low: float, high: float, tol: float, n: int, d: int, given: float | None,
               lipschitz: float | None, d_out: int, metric: str, *, own: bool) -> Plan:  # fmt: skip
    if not (isinstance(lipschitz, int | float) and 0 < lipschitz < LARGEST):
        raise InputError(
            f"{theorem} needs lipschitz=L > 0, or --lipschitz L: how fast f may vary decides how many levels it takes."
        )
    coordinates, slope = n * d, 1 / 16
    modulus = declared_modulus(lipschitz, metric, coordinates)
    stretch = modulus(1.0)
    spread = stretch * (high - low)
    # The bound below is near + error(spread + near), near proportional to the cell.
    error = _selection_error(given, tol, spread)
    room = (tol - error * spread) / (1 + error)
    probe = Grid(n, d, 2, low, high, slope)
    per_cell = probe.sup_bound(modulus, 0.0, 0.0) / probe.cell
    levels = max(2, math.ceil((high - low) * per_cell / room))
    grid = Grid(n, d, levels, low, high, slope)
    if own:
        require_columns(grid, attention=False)
    p = n if own else max(RAMP_ANCHORS, n + 1)
    ramp = ramp_head(p, beta_for(error, p - 1, 1 / (p - 1)))
    beta = grid.beta(error, saturation(p, ramp.beta * ramp.spacing**2))
    scores = GridScores(grid, (grid,), p, ramp.beta, beta, numbered=False)
    ramp_heads, entries, two = d * (levels - 1), n * d_out, theorem == "two_layer"
    second = (2 + entries) * (2 + entries) if two else 1
    parameters = (p - n) * d + 4 * p + (2 * ramp_heads + 3) * (d + 4) + grid.points * entries + second
    return Plan(theorem, low, high, tol, n, d, 2 if two else 1, ramp_heads + (1 if two else 0), p, levels, grid.points,
                error, beta, grid.sup_bound(modulus, error, spread), parameters,
                scores.logit_range, *_dtypes(scores), lipschitz, metric, ramp.beta)  # fmt: skip
