"""How fast an error falls: the slope of a line through log size and log error, with a confidence interval.

Errors of one seed share their data across sizes, so the points are not independent; each seed gives one slope by least
squares, and the interval is Student's for their mean. With one seed it is that of the regression.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from anchorhead.lab.rows import Rows


@dataclass(frozen=True)
class Slope:
    """A slope and half of its 95% confidence interval; nan where it cannot be had."""

    value: float
    half_width: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.half_width:.3f}" if self.half_width < 100 else f"{self.value:.3f}"


def fitted_slope(rows: Rows, size: str, error: str, power: float = 1.0) -> Slope:
    """The slope of log(error^power) against log(size), over the sizes that every seed has."""
    fits = [
        _fit(np.log(r.column(size)), power * np.log(np.maximum(r.column(error), 1e-300))) for _, r in rows.by("seed")
    ]
    slopes = [slope for slope, _ in fits]
    if len(fits) == 1:
        return Slope(slopes[0], fits[0][1])
    spread = float(np.std(slopes, ddof=1)) / len(slopes) ** 0.5
    return Slope(float(np.mean(slopes)), float(stats.t.ppf(0.975, len(slopes) - 1)) * spread)


def _fit(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    if len(x) < 3:
        return (float((y[-1] - y[0]) / (x[-1] - x[0])) if len(x) == 2 else float("nan")), float("nan")
    found = stats.linregress(x, y)
    return float(found.slope), float(found.stderr * stats.t.ppf(0.975, len(x) - 2))
