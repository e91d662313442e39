"""Functions of one variable that nobody chose, and what others need for the same error.

A small grammar writes what people write, at scales from 1e-3 to 1e3, kinks included, on bounded domains. Beside the
keys of a compiled model stand the numbers of Chebyshev coefficients (Z. Battles, L. N. Trefethen, SIAM J. Sci. Comput.
25, 2004) and of nodes of AAA (Y. Nakatsukasa, O. Sète, L. N. Trefethen, SIAM J. Sci. Comput. 40, 2018) that reach the
same error on a fine sample.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from scipy.interpolate import AAA

from anchorhead.arithmetic import Array
from anchorhead.compiler.target import read_target
from anchorhead.errors import AnchorheadError

SMOOTH = "sin cos tanh exp atan sigmoid gelu softplus erf asinh silu".split()
KINKED = "abs relu hardtanh".split()
MOST = 2048
"""Coefficients of a polynomial at most."""


@dataclass(frozen=True)
class Case:
    """A formula on an interval, and its size there."""

    text: str
    low: float
    high: float
    scale: float

    @property
    def function(self) -> Callable[[Array], Array]:
        return read_target(self.text, (self.low, self.high)).function()


def cases(count: int, seed: int = 15) -> Iterator[Case]:
    """Formulas whose values on their domain are of ordinary size."""
    rng = random.Random(seed)
    while count:
        scale = 10.0 ** rng.uniform(-3, 3)
        middle = rng.choice((0.0, 0.0, 0.0, 1.0, -0.3)) * scale
        low, high = (float(f"{middle + s * scale:.3g}") for s in (-1, 1))
        text = _formula(rng, rng.choice((1, 1, 2, 2, 3)))
        if rng.random() < 0.5:  # seen at the scale of the domain
            text = re.sub(r"\bx\b", f"(x/{scale:.2g})", text)
        try:
            values = read_target(text, (low, high)).function()(np.linspace(low, high, 2001))
        except AnchorheadError:
            continue
        size = float(np.abs(values).max())
        if np.isfinite(values).all() and 1e-6 < size < 1e6 and float(np.ptp(values)) > 1e-6 * size:
            count -= 1
            yield Case(text, low, high, size)


def _formula(rng: random.Random, depth: int) -> str:
    number = f"{rng.choice((1, 2, 3, 0.5, 5, 10, 0.1, round(rng.uniform(0.2, 9), 2)))}"
    if depth == 0:
        return rng.choice(("x", f"{number}*x", f"({number}*x + {round(rng.uniform(-1, 1), 2)})", "x**2", "x"))
    inner = _formula(rng, depth - 1)
    if rng.random() < 0.15:
        return f"{rng.choice(KINKED)}({inner})"
    shapes = (f"{rng.choice(SMOOTH)}({inner})", f"{rng.choice(SMOOTH)}({inner})", f"exp(-({inner})**2)",
              f"1/(1 + ({inner})**2)", f"sqrt(1 + ({inner})**2)", f"log(2 + ({inner})**2)",
              f"{rng.choice(SMOOTH)}({inner}) + {number}*{_formula(rng, 0)}",
              f"{rng.choice(SMOOTH)}({inner})*{rng.choice(SMOOTH[:5])}({_formula(rng, 0)})")  # fmt: skip
    return rng.choice(shapes)


def chebyshev_count(case: Case, tol: float) -> int | None:
    """How many coefficients interpolation at Chebyshev points needs; None if more than MOST."""
    f: Any = lambda t: case.function((case.low + case.high) / 2 + (case.high - case.low) / 2 * t)
    u = np.linspace(-1, 1, 8001)
    exact, degree = f(u), 4
    while degree < MOST:
        found = chebyshev.chebinterpolate(f, degree)
        if np.abs(chebyshev.chebval(u, found) - exact).max() <= tol:
            return degree + 1
        degree += max(1, degree // 8)
    return None


def aaa_count(case: Case, tol: float) -> int | None:
    """How many support points AAA needs; None if a hundred are not enough, or it errs between its samples."""
    u = np.linspace(case.low, case.high, 4001)
    exact = case.function(u)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that it did not converge, which is seen below
        found = AAA(u[::2], exact[::2], rtol=tol / np.abs(exact).max(), max_terms=100)
    return len(found.support_points) if np.abs(found(u) - exact).max() <= 3 * tol else None
