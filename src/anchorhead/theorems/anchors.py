"""Uniform anchors and the β that makes softmax choose among them (docs/mathematics.md 1.2).

Scores -β(u - L_k)² over anchors L_k of spacing h. Write Λ = βh² and t = exp(-Λ).

*The two nearest decide.* If the nearest anchor is at distance e <= h/2, the one on its far side is at h + e
and the gap (h + e)² - e² = h² + 2he is at least h²; the anchor after the second nearest leads to a gap of
4h² - 4he >= 2h². So the m-th further anchor on either side has at most t^(m²) of the nearest one's weight,
and all of them together at most (N - 1) t =: selection error. Asking for ε gives β = ln((N - 1)/ε)/h².

*What the two make of u.* Let z in [0, 1] be 1 - 2e/h. The second nearest has weight 1/(1 + exp(Λz)), so the
blend misses u by  h/2 · |tanh(Λz/2) - z|, zero halfway between two anchors, h/(1 + e^Λ) at one, and never above h/2.
Its maximum over z is `two_point_error(Λ) * h`; the room up to h/2 is what rounding may use.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor

from anchorhead.arithmetic import log_of
from anchorhead.errors import InputError, SizeError, asked

LEAST_ERROR = 1e-200
"""Of selection errors, over which counts are divided."""


def check_selection_error(value: float) -> None:
    """Refuses what is no ε."""
    if not LEAST_ERROR <= value < 1:
        raise InputError(
            f"selection_error={value} must lie strictly between 0 and 1, and be {LEAST_ERROR:g} at least; it is the "
            "softmax weight that all but the right anchors may keep. 1e-6 is the usual choice."
        )


def beta_for(selection_error: float, keys: int, spacing: float) -> float:
    """β = ln(keys/ε)/h², where `keys` counts those that must lose."""
    check_selection_error(selection_error)
    return log_of(keys / selection_error) / (spacing * spacing)


def check_beta(beta: Any) -> float:
    """A β given by the user, as a positive finite number: Python's, NumPy's, or a tensor of one."""
    try:
        found = math.nan if isinstance(beta, str) else float(beta)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        found = math.nan
    if not 0 < found < math.inf:
        raise InputError(f"beta={beta} must be a positive finite number; leave it out to have it derived.")
    return found


def selection_error_at(beta: float, keys: int, spacing: float) -> float:
    """ε = keys · exp(-βh²), the inverse of `beta_for`."""
    return keys * math.exp(-beta * spacing**2)


def two_point_error(gap: float) -> float:
    """Largest |tanh(Λz/2) - z|/2 for z in [0, 1], in units of the spacing; Λ is `gap`."""
    if gap <= 2:
        return (1 - math.tanh(gap / 2)) / 2
    peak = math.sqrt(1 - 2 / gap)  # where the derivative vanishes: tanh² = 1 - 2/Λ
    angle = math.log((1 + peak) ** 2 * gap / 2) / 2  # artanh(peak), without losing 1 - peak² = 2/Λ
    return max((peak - 2 / gap * angle) / 2, (1 - math.tanh(gap / 2)) / 2)


def even_points(low: float, high: float, count: int) -> Tensor:
    """So many even places from low to high in float64, counted from the nearer end: the same bits on every machine."""
    step, index = (high - low) / (count - 1), torch.arange(count, dtype=torch.float64)
    return torch.where(index < count // 2, low + step * index, high - step * (count - 1 - index))


def score_rows(anchors: Tensor) -> tuple[Tensor, Tensor]:
    """(2 L_k, -L_k²): the two key rows that, against a query (βu, β), give β(2uL_k - L_k²).

    That is -β(u - L_k)² but for βu², which is the same for every key and drops out of the softmax.
    """
    return 2 * anchors, -(anchors**2)


def check_range(low: float, high: float) -> tuple[float, float]:
    """The clipping range [low, high], finite, in order, and of a size whose squares are numbers."""
    try:
        low, high = float(low), float(high)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"The range must be two numbers, low and high, not {low!r:.60} and {high!r:.60}.") from None
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InputError(f"The range [{low}, {high}] must be finite; clip a ReLU at the largest value it takes.")
    if low >= high:
        raise InputError(f"low={low} must lie below high={high}; swap them, or widen the range.")
    if high - low < 1e-100 or max(abs(low), abs(high)) > 1e100:
        raise InputError(
            f"The range [{low}, {high}] is too small or too large to square; rescale the weights and the range."
        )
    return low, high


MOST = 10**12
"""Of tokens, features, anchors, heads or levels."""
MOST_BUILT = 10**8
"""Anchors of a network that is built: their numbers alone take gigabytes."""


def check_count(value: Any, name: str, least: int) -> int:
    """A whole number of at least `least` and at most MOST, of any integer type."""
    try:
        count = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = -1
    if count < least:
        raise InputError(f"{name}={value!r} must be a whole number of at least {least}.")
    if count > MOST:
        raise InputError(f"{name} is above {MOST:,}, the most that is counted here; take fewer.")
    return count


def output_rows(output_row: Any, anchors: int, output_features: int) -> Tensor:
    """The paper's G as an index per anchor: None (row 0), one row for all, a sequence, or a callable."""
    check_count(output_features, "output_features", 1)
    if anchors > MOST_BUILT:
        raise SizeError(f"{anchors:,} anchors would not fit in memory; take at most {MOST_BUILT:,}.")
    try:
        if output_row is None:
            rows = [0] * anchors
        elif callable(output_row):
            rows = [_row(output_row, k) for k in range(anchors)]
        elif hasattr(output_row, "__index__") and not isinstance(output_row, Tensor):
            rows = [operator.index(output_row)] * anchors
        else:
            rows = [operator.index(r) for r in output_row]
    except TypeError:
        raise InputError(
            f"output_row={output_row!r:.60} must be a row number, a sequence of them, or a callable from the index of "
            "an anchor to a row number: whole numbers, such as 0."
        ) from None
    if len(rows) != anchors:
        raise InputError(f"output_row has {len(rows)} entries for {anchors} anchors; give one row for each anchor.")
    bad = next((k for k, r in enumerate(rows) if not 0 <= r < output_features), None)
    if bad is not None:
        raise InputError(
            f"output_row sends anchor {bad} to row {rows[bad]}, but output_features={output_features} allows rows "
            f"0 to {output_features - 1}; raise output_features or change the map."
        )
    return torch.tensor(rows)


def _row(output_row: Any, k: int) -> int:
    """The row of an anchor that a callable names."""
    advice = "It is called with the index of an anchor and must return a row number, as lambda k: k % 2 does."
    found = asked(output_row, k, name="output_row", at=f"anchor {k}", advice=advice)
    try:
        return operator.index(found)
    except TypeError:
        raise InputError(f"output_row({k}) returned {found!r:.40}, which is no whole number. {advice}") from None
