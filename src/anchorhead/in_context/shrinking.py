"""Soft thresholding, the proximal step of an l1 penalty: v - clip(v, -t, t), with a three-key head for clip on R."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from anchorhead.compiler.compile import compile
from anchorhead.in_context.losses import exact_text
from anchorhead.network.compiled_head import CompiledHead

RELATIVE = 1e-11
"""The error of clip, in units of its threshold."""


class Shrink(nn.Module):
    """(..., d) to (..., d): coordinate j is moved towards zero by thresholds[j]."""

    def __init__(self, thresholds: Sequence[float]) -> None:
        super().__init__()
        self.thresholds = tuple(thresholds)
        self.models: dict[float, CompiledHead] = {t: _clip(t) for t in sorted(set(thresholds)) if t > 0}
        self.heads = nn.ModuleList(model.head for model in self.models.values())
        places = {t: [j for j, own in enumerate(thresholds) if own == t] for t in self.models}
        self.places = {t: torch.tensor(where) for t, where in places.items()}

    def error(self, size: float) -> float:
        """A bound on the error of a coordinate of absolute value up to `size`."""
        return max(m.certificate.approximation + m.certificate.rounding * (1 + size) for m in self.models.values())

    def forward(self, v: Tensor) -> Tensor:
        return self.apply_heads(v, [model.head for model in self.models.values()])

    def apply_heads(self, v: Tensor, heads: Sequence[nn.Module]) -> Tensor:
        """The same by given evaluations of the heads, one for each threshold."""
        clipped = torch.zeros_like(v)
        for where, head in zip(self.places.values(), heads, strict=True):
            found = head(v[..., where].double()).to(v.dtype)
            clipped = found if len(where) == v.shape[-1] else clipped.index_add(-1, where, found)
        return v - clipped


def _clip(threshold: float) -> CompiledHead:
    size = exact_text(threshold)
    model = compile(f"clip(x, -{size}, {size})", None, tol=RELATIVE * threshold)
    assert isinstance(model, CompiledHead)
    return model


def shrinking(l1: Sequence[float], rate: float) -> Shrink:
    """The step for penalties l1 and a learning rate."""
    return Shrink([rate * penalty for penalty in l1])
