"""What is declared of f, held against its values on the grid.

If |f(X) - f(Y)| <= ω(dist(X, Y)) holds everywhere it holds between grid points. All pairs whose levels differ by at
most one in every coordinate are compared, which decides for a constant in the sup norm: two points k levels apart are
joined by k such steps. Where these pairs are too many, those along each coordinate and along the diagonal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from anchorhead.errors import InputError, asked
from anchorhead.theorems.grid import Modulus

MOST_COMPARED = 20_000_000
"""Numbers that are compared in all directions."""
ROUNDED = 64
"""Units in the last place of the largest value that the values' own rounding may take."""
STEADY = 1e-12
"""By what share a modulus that is constant may fall by its rounding."""


def declared_modulus(lipschitz: float | Modulus, metric: str, coordinates: int) -> Modulus:
    """The declared modulus, as one in the sup norm of the input."""
    if metric not in ("euclidean", "sup"):
        raise InputError(f'metric={metric!r} must be "euclidean" or "sup".')
    stretch = math.sqrt(coordinates) if metric == "euclidean" else 1.0
    if callable(lipschitz):
        declared = lipschitz
        return lambda r: _modulus_at(declared, stretch * r)
    try:
        constant = math.nan if isinstance(lipschitz, str) else float(lipschitz)
    except (TypeError, ValueError):
        constant = math.nan
    if not (math.isfinite(constant) and constant >= 0):
        raise InputError(
            f"lipschitz={lipschitz!r:.40} must be a finite number, zero or more, or a modulus of continuity."
        )
    return lambda r: constant * stretch * r


def _modulus_at(declared: Modulus, r: float) -> float:
    """A modulus at a distance; refused where it falls on the way there, since it is to hold for all smaller ones."""
    places = [r * quarters / 4 for quarters in (1, 2, 3, 4)]
    found = [_checked_modulus(declared, place) for place in places]
    for k in range(3):
        if not found[k + 1] >= found[k] * (1 - STEADY):
            raise InputError(
                f"The modulus of continuity falls from {found[k]:.6g} at {places[k]:.4g} to {found[k + 1]:.6g} at "
                f"{places[k + 1]:.4g}. It says how far f varies over any distance up to r, so that it never falls: "
                "lambda r: L * r ** a is one, with a from 0 to 1."
            )
    return found[-1]


def _checked_modulus(declared: Modulus, r: float) -> float:
    """What a modulus returns at a distance, as a number."""
    advice = "It is called with a distance, a Python float, and must return a number, as lambda r: r**0.5 does."
    value: Any = asked(declared, r, name="The modulus of continuity", at=f"the distance {r:.4g}", advice=advice)
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise InputError(f"The modulus of continuity returned {value!r:.40}; it must be a finite number, zero or more.")
    return number


def hold_against(values: Tensor, axes: Sequence[Tensor], lipschitz: float | Modulus, metric: str) -> None:
    """Refuses a constant or a modulus that values (points, entries) on a grid contradict; axes: the places of the
    coordinates, of which the last runs fastest."""
    levels, coordinates = len(axes[0]), len(axes)
    eps = torch.finfo(values.dtype).eps
    blur = 32 * eps * max(float(axis.abs().max()) for axis in axes) * math.sqrt(coordinates)
    rounded = ROUNDED * eps * float(values.abs().max())
    cells = [float(axis[1] - axis[0]) for axis in axes]
    modulus = declared_modulus(lipschitz, "sup", 1)
    table = values.double().reshape(*[levels] * coordinates, -1)
    for step in _steps(coordinates, values.numel()):
        apart = [cell for cell, moved in zip(cells, step, strict=True) if moved]
        distance = math.sqrt(sum(cell * cell for cell in apart)) if metric == "euclidean" else max(apart)
        known = modulus(distance + blur)
        here, there = _ends(table, step)
        moved = (there - here).abs()
        if moved.numel() and float(moved.max()) > known + rounded:
            _refuse(moved, step, axes, lipschitz, metric, distance)


def _steps(coordinates: int, numbers: int) -> Iterator[tuple[int, ...]]:
    """Directions in which levels differ by at most one, each up to its sign."""
    if coordinates <= 12 and 3**coordinates * numbers <= MOST_COMPARED:
        yield from (s for s in itertools.product((0, 1, -1), repeat=coordinates) if next((k for k in s if k), 0) == 1)
        return
    yield from (tuple(int(i == j) for j in range(coordinates)) for i in range(coordinates))
    yield (1,) * coordinates


def _ends(table: Tensor, step: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The values at all points from which the step stays in the grid, and those where it ends."""
    first = tuple(slice(-k if k < 0 else None, -k if k > 0 else None) for k in step)
    last = tuple(slice(k if k > 0 else None, k if k < 0 else None) for k in step)
    return table[first], table[last]


def _refuse(moved: Tensor, step: tuple[int, ...], axes: Sequence[Tensor], lipschitz: float | Modulus, metric: str,
            distance: float) -> None:  # fmt: skip
    place = [int(i) for i in torch.unravel_index(moved.argmax(), moved.shape)[:-1]]
    start = [i + (k < 0) for i, k in zip(place, step, strict=True)]
    pair = [
        "(" + ", ".join(f"{float(axis[i + k * end]):.4g}" for axis, i, k in zip(axes, start, step, strict=True)) + ")"
        for end in (0, 1)
    ]
    most = float(moved.max())
    said = "The modulus of continuity" if callable(lipschitz) else f"lipschitz={lipschitz:g}"
    least = "a larger one" if callable(lipschitz) else f"{most / distance:.4g} or more"
    raise InputError(
        f"{said} is too small: at the grid points {pair[0]} and {pair[1]}, {distance:.4g} apart in the {metric} "
        f"distance, f has values {most:.4g} apart. Declare {least}, if f is Lipschitz at all."
    )
