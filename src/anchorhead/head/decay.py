"""exp(-t) for t >= 0 in float32 as a kernel computes it, inline: a call of exp would cost it more than all the rest.

    n = t/ln 2, rounded;  r = t - n·ln 2;  exp(-t) = 2^(-n-1)·P(r),  P(r) = 2 - 2r + ... of degree 6

It is right to 4ρ, the 2 units in the last place that `proof/rounding.py` assumes of exp, ρ = 2^-24:

*Reduction.* n is at most 128, and right but for 2ρ·128 before it is rounded, so |r| < 0.3467. ln 2 is taken in two
parts. The first has 16 bits, so that n times it is exact, and so is what it leaves of t: a multiple of 2^-25 below 1/2.
The second part's rounding, its product's and the last subtraction's move r by (3·128·1.5e-6 + 0.3467)ρ < 0.35ρ.

*Polynomial.* |P(r)/(2e^(-r)) - 1| < ρ/10 for |r| <= 0.3467. A step of Horner's rule, s_k = r·s_(k+1) + c_k, fused or
not, errs by e_k <= |r|e_(k+1) + ρ(|r·s_(k+1)| + |s_k|): at both ends, where that is largest, by less than 2.1ρ of P(r)
at last. A power of two rounds nothing: 0.35ρ + 0.1ρ + 2.1ρ is less than 4ρ.

*Underflow.* The exponent of 2^(-n-1) is set bit by bit, from max(126 - n, 0): zero from n = 126 on, which is where
exp(-t) is below √2 times the least normal number. No result is other than zero or normal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

FAR = 88.5
"""From here on it is zero; t must not be larger, or r would not be small."""
PER_DOUBLING = float.fromhex("0x1.715476p+0")
LN2, LN2_REST = float.fromhex("0x1.62e4p-1"), float.fromhex("0x1.7f7d1cp-20")
ROUNDED = 1.5 * 2.0**23
"""Added to a number, its last digit is 1: what is added to it is rounded to an integer."""
POLYNOMIAL = tuple(
    map(
        float.fromhex,
        ("0x1.6a23fp-9", "-0x1.123a0cp-6", "0x1.5558f2p-4", "-0x1.555492p-2", "0x1.fffffcp-1", "-0x1p1", "0x1p1"),
    )
)
"""Coefficients of P, the highest power's first."""

_traced: ContextVar[bool] = ContextVar("traced", default=False)


@contextmanager
def for_kernel() -> Iterator[None]:
    """What is traced meanwhile becomes a kernel, for inputs that want no gradient."""
    token = _traced.set(True)
    try:
        yield
    finally:
        _traced.reset(token)


def in_kernel() -> bool:
    """Whether what is written now becomes a kernel without gradients, by itself or with the model around it."""
    if torch.compiler.is_compiling():
        return not (torch.compiler.is_exporting() or torch.is_grad_enabled())
    return _traced.get()


def decay(t: Tensor) -> Tensor:
    """exp(-t), for t in [0, FAR]."""
    whole = t * PER_DOUBLING + ROUNDED
    n = whole - ROUNDED
    r = t - n * LN2 - n * LN2_REST
    found = r * POLYNOMIAL[0] + POLYNOMIAL[1]
    for coefficient in POLYNOMIAL[2:]:
        found = found * r + coefficient
    exponent = torch.relu(ROUNDED + 126 - whole).to(torch.int32)
    return found * (exponent << 23).view(torch.float32)
