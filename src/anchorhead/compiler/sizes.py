"""The sizes of a target of one variable: what no head can have is refused before anything is fitted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchorhead.arithmetic import Array
from anchorhead.compiler.target import Target
from anchorhead.dtypes import LARGEST, LEAST_NORMAL
from anchorhead.enclosure.zeros import zero
from anchorhead.errors import InputError, PrecisionError, SingularityError

SAMPLES = 1001
MOST = 1e100
"""Of a target, and of the width of its domain."""
SPARE = 100.0
"""How far above what must be refused a domain stays that is named."""


def size_of(target: Target, tol: float, dtype: str) -> float:
    """The largest |target| on samples. Refused where it is undefined, too large, or too small for a relative error."""
    places, sizes = _sampled(target)
    if np.isnan(sizes).any():
        place = float(places[np.isnan(sizes)][0])
        raise SingularityError.because(
            f"{target.expression} is not defined near {target.variable} = {place:.6g}",
            f". Choose a domain for {target.variable} that keeps away from {place:.6g}, or rewrite the formula.",
        )
    if target.relative:
        _check_least(target, tol, dtype, places, sizes)
    _check_largest(target, dtype, sizes)
    return float(sizes.max())


def _sampled(target: Target) -> tuple[Array, Array]:
    """Places, and |target| there."""
    places = np.linspace(*target.window, SAMPLES)
    with np.errstate(all="ignore"):
        return places, np.abs(target.function()(places))


def _check_largest(target: Target, dtype: str, sizes: Array) -> None:
    """Refuses what is too large, or on too wide or narrow a domain."""
    low, high = target.window
    width, scale, most = high - low, float(sizes.max()), min(MOST, LARGEST[dtype])
    if not (1 / MOST < width < MOST and scale < most):
        raise InputError(
            f"The domain is {width:.3g} wide and the target as large as {scale:.3g}; in {dtype} widths from "
            f"{1 / MOST:g} to {MOST:g} and targets up to {most:.3g} can be compiled; rescale the variable or the "
            "target to ordinary sizes, and put the factors into the weights around the model."
        )


def relative(target: Any) -> Target:
    """The target with errors in units of |f|; refused where they are none, at a zero of f."""
    if not isinstance(target, Target):
        raise InputError("relative=True is for functions of one variable with one output; leave it out for others.")
    if not target.bounded:
        raise InputError("relative=True needs a bounded domain, such as (1e-6, 1e4): give one.")
    _check_largest(target, "float64", _sampled(target)[1])
    place = zero(target.node, target.variable, target.low, target.high)
    if place is not None:
        raise InputError(
            f"relative=True asks for |model/f - 1| <= tol, and {target.expression} has a zero, or comes too near one "
            f"to tell, at {target.variable} = {place:.6g}. Choose a domain without it, or leave relative=True out."
        )
    return replace(target, relative=True)


def _check_least(target: Target, tol: float, dtype: str, places: Array, sizes: Array) -> None:
    """Refuses a relative error of what is so small that underflow alone, less than a normal number, is more."""
    least = LEAST_NORMAL[dtype]
    if not sizes.min() < least / tol:
        return
    name, place = target.variable, float(places[sizes.argmin()])
    large = _longest(sizes >= SPARE * least / tol)
    where = "" if large is None else (
        f", choose a domain where it is larger, which must keep to ({places[large[0]]:.6g}, {places[large[1]]:.6g}) at "
        "least, and be smaller where the target goes over more decades than a head can follow"
    )  # fmt: skip
    raise PrecisionError(
        f"A relative tol={tol:g} for {target.expression} in {dtype}: it falls to {sizes.min():.3g} at {name} = "
        f"{place:.6g}, and below {least / tol:.3g} what underflows, up to {least:.3g}, is a larger part of it than "
        f"tol. Rescale it to ordinary sizes{where}, or leave relative=True out."
    )


def _longest(fits: NDArray[np.bool_]) -> tuple[int, int] | None:
    """The first and the last of the longest run of places that fit; None where no two neighbours do."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], fits, [False]]).astype(int)))
    runs = [(int(a), int(b) - 1) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    first, last = max(runs, key=lambda run: run[1] - run[0], default=(0, 0))
    return (first, last) if last > first else None
