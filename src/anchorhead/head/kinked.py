"""Kinked heads: smooth pieces joined by gates (docs/mathematics.md 2.4).

Pieces g_0, ..., g_m meet at kinks c_1 < ... < c_m. Every piece has a head of its own (one key, if it is affine);
all keys go into one softmax, and those of piece i have their scores raised by the sum of β_j(u - c_j) over
j <= i. Let D_i be the normaliser of piece i. At kink j the keys left and right of it compete like
D_{j-1} : exp(β_j(u - c_j)) D_j, so scores are first shifted, by an affine function for each piece, to make
D = 1 at both of the piece's kinks. Then the head is (1 - σ) g_l + σ g_r with σ = sigmoid(β(u - c) + O(u - c)).

**What a gate costs.** At distance τ from a kink where the slope jumps by J the pieces differ by J|τ|, and
|τ|/(1 + exp(β|τ|)) <= W(1/e)/β: the cost is 0.2785 J/β. Where only the curvature jumps, by C, it is
C τ²/2 /(1 + exp(βτ)) <= 0.2420 C/β². A β for any tolerance, at no cost in keys: ReLU is two keys, clip is
three, however small the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anchorhead.arithmetic import exp, log_of
from anchorhead.head.head import Head

LAMBERT = 0.27846454276107
"""W(1/e), the largest t/(1 + exp(t))."""
HALF_SQUARE = 0.24205
"""Just above the largest t²/2/(1 + exp(t))."""


@dataclass(frozen=True)
class Kink:
    """A point where two pieces meet, and how much slope and curvature jump there."""

    place: float
    slope_jump: float
    curvature_jump: float

    def sharpness(self, tolerance: float) -> float:
        """The β at which the gate here costs at most `tolerance`: nine tenths of it for slope, one for curvature."""
        if self.slope_jump < 1e-9 * (1 + self.curvature_jump):
            return math.sqrt(HALF_SQUARE * max(self.curvature_jump, 1e-12) / tolerance)
        if self.curvature_jump == 0:
            return LAMBERT * self.slope_jump / tolerance
        return LAMBERT * self.slope_jump / (0.9 * tolerance) + math.sqrt(
            HALF_SQUARE * self.curvature_jump / (0.1 * tolerance)
        )


def single_key(constant: float, gain: float) -> Head:
    """An affine piece: one key."""
    return Head((0.0,), (0.0,), (constant,), (gain,), horner=False)


def kinked(pieces: Sequence[Head], places: Sequence[float], sharpness: Sequence[float]) -> Head:
    """One head out of the pieces' heads, gated at `places` with β's `sharpness`."""
    betas = [
        b + _steepest(left) + _steepest(right) for b, left, right in zip(sharpness, pieces, pieces[1:], strict=False)
    ]
    gate_slopes = np.concatenate([[0.0], np.cumsum(betas)])
    gate_levels = np.concatenate([[0.0], np.cumsum([-b * c for b, c in zip(betas, places, strict=True)])])
    middle = (len(pieces) - 1) // 2
    slopes, intercepts = [], []
    for i, piece in enumerate(pieces):
        ends = [places[j] for j in (i - 1, i) if 0 <= j < len(places)]
        slope, level = _normaliser(piece, ends)
        slopes.append(piece.arrays["slopes"] - slope)
        intercepts.append(piece.arrays["intercepts"] - level)
    return Head.of(
        slopes=np.concatenate(slopes),
        intercepts=np.concatenate(intercepts),
        constants=[constant for piece in pieces for constant in piece.constants],
        gains=[gain for piece in pieces for gain in piece.gains],
        horner=False,
        sizes=[piece.keys for piece in pieces],
        gate_slopes=gate_slopes - gate_slopes[middle],
        gate_levels=gate_levels - gate_levels[middle],
    )


def _steepest(piece: Head) -> float:
    return max(piece.slopes) - min(piece.slopes)


def _normaliser(piece: Head, ends: Sequence[float]) -> tuple[float, float]:
    """Slope and level of the affine function that equals log D at the piece's kinks."""
    if piece.keys == 1:
        return piece.slopes[0], piece.intercepts[0]
    values = [_log_normaliser(piece, u) for u in ends]
    if len(ends) == 1:
        return 0.0, values[0]
    slope = (values[1] - values[0]) / (ends[1] - ends[0])
    return slope, values[0] - slope * ends[0]


def _log_normaliser(piece: Head, u: float) -> float:
    scores = piece.arrays["slopes"] * u + piece.arrays["intercepts"]
    return float(scores.max()) + log_of(float(exp(scores - scores.max()).sum()))
