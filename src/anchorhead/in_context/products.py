"""Products u·v by a head: keys look at u on a range, values are constants times v, so softmax blends them to u·v.

The head for u on [-R, R] is R·h(u/R) with h one on [-1, 1], which is searched and proved once. R is a power of two, so
the scaling is exact, and the error, rounding included, is R times that of h. h is proved a little beyond [-1, 1], since
runs allow a billionth more than the declared bounds (`bounds.SLACK`).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from anchorhead.arithmetic import binary_ceiling
from anchorhead.compiler.constant_values import carrying_model
from anchorhead.errors import InputError
from anchorhead.head.module import HeadModule

RELATIVE = 1e-13
"""The approximation asked for, in units of the function's largest value."""
BEYOND = 1 + 2.0**-26
"""The end of the interval on which h is proved."""
MOST = 2.0**450
"""The largest R: its scores and values are far from overflow and underflow."""


def identity_head(reach: float) -> tuple[HeadModule, float, float]:
    """The head for u itself on [-R, R], R the next power of two, R, and a bound on its error, rounding included."""
    if not 1 / MOST <= reach <= MOST:
        raise InputError(f"A head for numbers up to {reach:g} cannot be held in float64; rescale the data.")
    power = binary_ceiling(reach)
    model = carrying_model("x", (-BEYOND, BEYOND), RELATIVE, torch.float64)
    head = model.head.numbers
    slopes, constants = (tuple(v * f for v in part) for part, f in ((head.slopes, 1 / power), (head.constants, power)))
    return HeadModule(replace(head, slopes=slopes, constants=constants)), power, model.certificate.bound * power


class Factor(nn.Module):
    """u as a head sees it, for |u| <= reach: (...) to (...). `error` bounds |output - u| before the last cast."""

    def __init__(self, reach: float) -> None:
        super().__init__()
        self.head, self.reach, self.error = identity_head(reach)

    def forward(self, u: Tensor) -> Tensor:
        found: Tensor = self.head(u.double())
        return found.to(u.dtype)


class LiteralFactor(nn.Module):
    """The same with its softmax written out; a product with it is weights times values."""

    def __init__(self, factor: Factor) -> None:
        super().__init__()
        self.head = factor.head.literal()

    def times(self, u: Tensor, v: Tensor) -> Tensor:
        """u·v elementwise, as attention: weights over keys times constants · v."""
        weights = self.head.weights(u.double())
        values = v.double().unsqueeze(-1) * self.head.constants
        return (weights.unsqueeze(-2) @ values.unsqueeze(-1)).squeeze(-1).squeeze(-1)
