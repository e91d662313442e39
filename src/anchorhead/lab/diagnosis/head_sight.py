"""A head of one variable as a sight: of a compiled function, or of a node of a network.

Promised is the certificate's bound. A `nearest` head is the paper's, with anchors evenly on the domain and
ln((p - 1)/ε) for its gap. The other heads are meant to blend: their β was searched together with their
values, and nothing but those numbers says what it should be.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anchorhead.head.module import HeadModule, LiteralHead
from anchorhead.lab.diagnosis.recast import recast
from anchorhead.lab.diagnosis.sight import Run, Sight, Snap, joined, observe
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.head_core import HeadCore

SELECTION_ERROR = 1e-6
"""That of `head/nearest.py`."""
CHUNK = 1 << 22
"""Attention weights at a time."""
NARROW = 10
"""A band next to an end is one spacing of the keys wide, and at most this part of the range."""


def head_sight(model: CompiledModel, part: HeadCore, x: Tensor, dtype: torch.dtype, beta: float) -> Sight:
    """What is to be seen of a compiled head on inputs of any shape."""
    x = x.detach().reshape(-1)
    u = x.double()
    low, high = model.claimed.domain[0]

    def run(kind: torch.dtype, scale: float, stride: int) -> Run:
        literal = recast(part.literal(), kind, scale)
        parts = x[::stride].to(kind).split(max(1, CHUNK // model.head.keys))
        return joined([_part(model, literal, part) for part in parts])

    return Sight(
        where=lambda i: "the head",
        run=run,
        rows=len(x),
        dtype=dtype,
        beta=beta,
        bound=promised(model, u),
        ends=near_ends(u, low, high, model.head.keys),
        seams=near_seams(u, seams_of(model.head, beta)),
        logits=model.head.numbers.logit_range(float(u.min()), float(u.max())),
        keys=model.head.keys,
        place=lambda i: f"{part.variable} = {u[i].item():.4g}",
        rescale=lambda factor: solved_for(factor, beta),
        smaller=coarser,
        snap=_snap(model, u) if model.method == "nearest" else None,
    )


def _part(model: CompiledModel, literal: LiteralHead, x: Tensor) -> Run:
    return observe((literal(x).double() - model.exact(x.double())).abs(), literal.weights(x))


def promised(model: CompiledModel, u: Tensor) -> Tensor:
    """The certificate's bound at every query, and what the target itself is rounded by in float64."""
    certificate = model.claimed
    grown = certificate.rounding * (1 + u.abs()) if not certificate.bounded else torch.zeros_like(u)
    return certificate.bound + grown + 2**-50 * (1 + model.exact(u).abs())


def solved_for(factor: float, beta: float) -> str:
    """Advice for heads whose values belong to one β."""
    if beta != 1 and (factor < 1) == (beta > 1):
        return "Run it at beta=1: its values belong to the scores that it was compiled with."
    return (
        f"Multiply the scores (slopes, intercepts and gates) by {factor:.3g}, or compile it again: its values belong "
        "to the scores that it was compiled with."
    )


def coarser(dtype: torch.dtype) -> str:
    """Advice for a dtype that does not hold a compiled model."""
    if dtype == torch.float32:
        return "Or compile with dtype=torch.float32, which says the best tolerance that it can hold."
    return ""


def seams_of(head: HeadModule, beta: float) -> list[tuple[float, float]]:
    """Where the pieces of a kinked head meet, which is where their gates are level, and how far the gate reaches.

    A gate of steepness β costs t/(1 + exp(t)) over β at distance t/β: but for 4% of the area, within t = 5.
    """
    steep, level = head.gate_slopes.double().diff(), head.gate_levels.double().diff()
    return [(-(b / a).item(), 5 / (abs(a.item()) * beta)) for a, b in zip(steep, level, strict=True) if a != 0]


def near_ends(u: Tensor, low: float, high: float, keys: int) -> Tensor:
    """Queries within a spacing of a finite end of [low, high]."""
    if not (math.isfinite(low) or math.isfinite(high)):
        return torch.zeros_like(u, dtype=torch.bool)
    width = min(high, float(u.max())) - max(low, float(u.min()))
    band = width / max(keys - 1, NARROW)
    return (u <= low + band) | (u >= high - band)


def near_seams(u: Tensor, seams: list[tuple[float, float]]) -> Tensor:
    """Queries next to a seam: within the gate's reach, or a narrow band."""
    found = torch.zeros_like(u, dtype=torch.bool)
    for seam, reach in seams:
        found |= (u - seam).abs() <= max(reach, float(u.max() - u.min()) / (2 * NARROW))
    return found


def _snap(model: CompiledModel, u: Tensor) -> Snap:
    low, high = model.claimed.domain[0]
    spacing = (high - low) / (model.head.keys - 1)
    off = (u - low) / spacing
    gap = math.log((model.head.keys - 1) / SELECTION_ERROR)
    return Snap(1 - 2 * (off - off.round()).abs(), (u >= low) & (u <= high), gap, gap / spacing**2)
