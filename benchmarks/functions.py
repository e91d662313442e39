"""A hundred functions of one variable that nobody chose: refusals, keys and seconds, beside Chebyshev and AAA.

A small grammar writes what people write, at scales from 1e-3 to 1e3, kinks included, on bounded domains; each is
compiled at 1e-3, 1e-6 and 1e-9 of its size. Beside it stand the numbers of Chebyshev coefficients and of AAA's nodes
that reach the same error on a fine sample.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.polynomial import chebyshev
from scipy.interpolate import AAA

import anchorhead as ah
from anchorhead.compiler.target import read_target

SMOOTH = "sin cos tanh exp atan sigmoid gelu softplus erf asinh silu".split()
KINKED = "abs relu hardtanh".split()
TOLERANCES = (1e-3, 1e-6, 1e-9)
MOST = 2048


@dataclass(frozen=True)
class Case:
    """A formula on an interval, and its size there."""

    text: str
    low: float
    high: float
    scale: float


def formula(rng: random.Random, depth: int) -> str:
    """A formula in x."""
    number = f"{rng.choice((1, 2, 3, 0.5, 5, 10, 0.1, round(rng.uniform(0.2, 9), 2)))}"
    if depth == 0:
        return rng.choice(("x", f"{number}*x", f"({number}*x + {round(rng.uniform(-1, 1), 2)})", "x**2", "x"))
    inner = formula(rng, depth - 1)
    if rng.random() < 0.15:
        return f"{rng.choice(KINKED)}({inner})"
    shapes = (f"{rng.choice(SMOOTH)}({inner})", f"{rng.choice(SMOOTH)}({inner})", f"exp(-({inner})**2)",
              f"1/(1 + ({inner})**2)", f"sqrt(1 + ({inner})**2)", f"log(2 + ({inner})**2)",
              f"{rng.choice(SMOOTH)}({inner}) + {number}*{formula(rng, 0)}",
              f"{rng.choice(SMOOTH)}({inner})*{rng.choice(SMOOTH[:5])}({formula(rng, 0)})")  # fmt: skip
    return rng.choice(shapes)


def cases(count: int, seed: int = 15) -> Iterator[Case]:
    """Formulas whose values on their domain are of ordinary size."""
    rng = random.Random(seed)
    while count:
        scale = 10.0 ** rng.uniform(-3, 3)
        middle = rng.choice((0.0, 0.0, 0.0, 1.0, -0.3)) * scale
        low, high = (float(f"{middle + s * scale:.3g}") for s in (-1, 1))
        text = formula(rng, rng.choice((1, 1, 2, 2, 3)))
        if rng.random() < 0.5:  # seen at the scale of the domain
            text = re.sub(r"\bx\b", f"(x/{scale:.2g})", text)
        try:
            values = read_target(text, (low, high)).function()(np.linspace(low, high, 2001))
        except ah.AnchorheadError:
            continue
        size = float(np.abs(values).max())
        if np.isfinite(values).all() and 1e-6 < size < 1e6 and float(np.ptp(values)) > 1e-6 * size:
            count -= 1
            yield Case(text, low, high, size)


def chebyshev_count(f: Callable, low: float, high: float, tol: float) -> int | None:
    """How many coefficients interpolation at Chebyshev points needs."""
    u = np.linspace(-1, 1, 8001)
    exact = f((low + high) / 2 + (high - low) / 2 * u)
    degree = 4
    while degree <= MOST:
        found = chebyshev.chebinterpolate(lambda t: f((low + high) / 2 + (high - low) / 2 * t), degree)
        if np.abs(chebyshev.chebval(u, found) - exact).max() <= tol:
            return degree + 1
        degree += max(1, degree // 8)
    return None


def aaa_count(f: Callable, low: float, high: float, tol: float) -> int | None:
    """How many support points AAA needs."""
    u = np.linspace(low, high, 4001)
    exact = f(u)
    if not np.ptp(exact):
        return 1
    found = AAA(u[::2], exact[::2], rtol=tol / np.abs(exact).max(), max_terms=100)
    return len(found.support_points) if np.abs(found(u) - exact).max() <= 3 * tol else None


def run(case: Case, tol: float) -> dict:
    """One compilation: seconds, keys, layers, or the refusal."""
    start = time.process_time()
    try:
        model = ah.compile(case.text, (case.low, case.high), tol=tol * case.scale)
        found = {"keys": model.resources.keys, "layers": model.resources.layers, "method": model.method, "refused": ""}
    except ah.AnchorheadError as refusal:
        found = {"keys": None, "layers": None, "method": "", "refused": str(refusal)}
    return found | {"seconds": time.process_time() - start}


def main(tiny: bool = False) -> None:
    """Prints a line for each tolerance, and every refusal."""
    for tol in TOLERANCES[:1] if tiny else TOLERANCES:
        rows = []
        for case in cases(3 if tiny else 100):
            f = read_target(case.text, (case.low, case.high)).function()
            row = run(case, tol) | {"chebyshev": chebyshev_count(f, case.low, case.high, tol * case.scale),
                                    "aaa": aaa_count(f, case.low, case.high, tol * case.scale)}  # fmt: skip
            rows.append(row)
            if row["refused"]:
                print(f"  refused: {case.text} on [{case.low}, {case.high}]: {row['refused'][:160]}")
        kept = [row for row in rows if not row["refused"]]
        peers = {name: median([row[name] or MOST for row in kept]) for name in ("keys", "chebyshev", "aaa")}
        seconds = [row["seconds"] for row in rows]
        print(f"tol {tol:g}: {len(rows)} functions, {len(rows) - len(kept)} refused; median keys {peers['keys']:g}, "
              f"Chebyshev {peers['chebyshev']:g}, AAA {peers['aaa']:g}; seconds median {median(seconds):.2f}, "
              f"worst {max(seconds):.1f}")  # fmt: skip
