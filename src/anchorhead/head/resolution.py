"""Where a function needs samples: cells on each of which it is a polynomial of degree 8, to an error.

A cell is halved until the polynomial through nine Chebyshev points of it meets the function between them. Cells are
small where the function changes fast, so that they show at which places keys should crowd, and how closely. Nothing
here is trusted: what lies between the samples of the first cells is not seen, and the certificate decides.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from anchorhead.arithmetic import Array, cos

DEGREE = 8
FIRST_CELLS = 64
MOST_CELLS = 2000
DEEPEST = 128
"""How often a cell is halved at most."""


def _interpolation() -> tuple[Array, Array]:
    """Points in [-1, 1], nodes and places between them in turn, and what gives values at the latter from the former."""
    points = -cos(np.pi * np.arange(2 * DEGREE + 1) / (2 * DEGREE))
    nodes, between = points[::2], points[1::2]
    signs = np.where(np.arange(DEGREE + 1) % 2, -1.0, 1.0)
    signs[[0, -1]] /= 2
    shares = signs / (between[:, None] - nodes)
    return points, shares / np.add.reduce(shares, -1)[:, None]


POINTS, MATRIX = _interpolation()


def resolved(f: Callable[[Array], Array], low: float, high: float, error: float) -> Array:
    """The ends of the cells, from low to high."""
    ends = np.linspace(low, high, FIRST_CELLS + 1)
    left, right = ends[:-1], ends[1:]
    done: list[Array] = [left]
    for _ in range(DEEPEST):
        middle = left / 2 + right / 2
        rough = _is_rough(f, left, right, error) & (right - left > 2.0**-48 * np.maximum(np.abs(left), np.abs(right)))
        left, middle, right = left[rough], middle[rough], right[rough]
        if not len(left) or sum(map(len, done)) + len(left) > MOST_CELLS:
            break
        done.append(middle)
        left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
    return np.unique(np.concatenate([*done, [high]]))


def _is_rough(f: Callable[[Array], Array], left: Array, right: Array, error: float) -> np.ndarray:
    """For each cell whether the polynomial misses the function; not where that is not finite."""
    places = np.clip(left + (right - left) * ((1 + POINTS[:, None]) / 2), left, right)
    with np.errstate(all="ignore"):
        values = f(places.ravel()).reshape(places.shape)
        off = values[1::2].copy()
        for column, node in zip(MATRIX.T, values[::2], strict=True):
            off -= column[:, None] * node
        return np.abs(off).max(0) > error


def fine_points(ends: Array) -> Array:
    """Points in every cell, five a cell."""
    shares = np.array([0.0, 0.2, 0.4, 0.6, 0.8])
    inner = (ends[:-1, None] + np.diff(ends)[:, None] * shares).ravel()
    return np.clip(np.append(inner, ends[-1]), ends[0], ends[-1])


def crowded(ends: Array, most: int = 2) -> list[tuple[float, float]]:
    """The places with the smallest cells, smallest first and well apart, and how small these are.

    At an end of the domain it is the end itself, inside it is where the smallest cells lie about.
    """
    widths, width = np.diff(ends), float(ends[-1] - ends[0])
    found: list[tuple[float, float]] = []
    for i in np.argsort(widths, kind="stable").tolist():
        size = float(widths[i])
        if size > width / (4 * FIRST_CELLS) or len(found) == most:
            break
        if all(abs(float(ends[i]) - place) > 0.05 * width for place, _ in found):
            found.append((_middle(ends, widths, i), size))
    return found


def _middle(ends: Array, widths: Array, i: int) -> float:
    """The middle of the cells around the i-th that are at most twice as wide, or the end of the domain there."""
    first = last = i
    while first > 0 and widths[first - 1] <= 2 * widths[i]:
        first -= 1
    while last < len(widths) - 1 and widths[last + 1] <= 2 * widths[i]:
        last += 1
    if first == 0 or last == len(widths) - 1:
        return float(ends[0] if first == 0 else ends[-1])
    return float(ends[first] / 2 + ends[last + 1] / 2)
