"""Soft thresholding, the proximal step of an l1 penalty: v - t·clip(v/t, -1, 1), by a three-key head for clip on R."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from flint import arb
from torch import Tensor, nn

from anchorhead.compiler.compile import compile
from anchorhead.errors import InputError

ERROR = 1e-11
"""Of clip, so that a coordinate errs by this times its threshold."""


class Shrink(nn.Module):
    """(..., d) to (..., d): coordinate j is moved towards zero by thresholds[j]."""

    where: Tensor
    sizes: Tensor

    def __init__(self, thresholds: Sequence[float]) -> None:
        super().__init__()
        model = compile("clip(x, -1, 1)", None, tol=ERROR)
        self.head, self.certificate = model.head, model.certificate
        self.thresholds = tuple(thresholds)
        places = [j for j, t in enumerate(thresholds) if t > 0]
        self.register_buffer("where", torch.tensor(places, dtype=torch.long))
        self.register_buffer("sizes", torch.tensor([thresholds[j] for j in places], dtype=torch.float64))

    def error(self, size: arb) -> arb:
        """A bound on the error of a coordinate of absolute value up to `size`, before the last cast and difference.

        t·clip(v/t) is at most |v|; the threshold as stored, the quotient and the product each lose a unit of float64.
        """
        certificate, most = self.certificate, arb(max(self.thresholds))
        return most * certificate.approximation + certificate.rounding * (most + size) + 4 * arb(2.0**-53) * size

    def forward(self, v: Tensor) -> Tensor:
        return self.by(self.head, v)

    def by(self, head: nn.Module, v: Tensor) -> Tensor:
        """The same by a given evaluation of the head."""
        found = (self.sizes * head(v[..., self.where].double() / self.sizes)).to(v.dtype)
        if len(self.where) == v.shape[-1]:
            return v - found
        return v - torch.zeros_like(v).index_add(-1, self.where, found)


def shrinking(l1: Sequence[float], rate: float) -> Shrink:
    """The step for penalties l1 and a learning rate."""
    if not all(math.isfinite(rate * penalty) for penalty in l1):
        raise InputError(f"learning_rate={rate:g} times l1 is too large for float64; use smaller numbers.")
    return Shrink([rate * penalty for penalty in l1])
