"""Compiled functions, examined: one head of one variable, and keys on a grid.

Promised is the certificate's bound. A `nearest` head is the paper's, with anchors evenly on the domain and
ln((p - 1)/ε) for its gap. The other heads are meant to blend: their β was searched together with their values, and
nothing but those numbers says what it should be. A grid is one softmax over p_1·…·p_m keys. Where its target cannot be
looked into, its own numbers in float64 stand for it: a dtype or a β can be judged so, an edit cannot.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anchorhead.errors import InputError
from anchorhead.head.grid_module import LiteralGrid
from anchorhead.head.module import HeadModule, LiteralHead
from anchorhead.lab.diagnosis.examined import SELECTION_ERROR, Examined, Snap, altered
from anchorhead.model.compiled import CompiledModel

NARROW = 10
"""A band next to an end is one spacing of the keys wide, and at most this part of the range."""


class ExaminedHead(Examined):
    """A compiled head on inputs of any shape."""

    def __init__(self, model: CompiledModel, x: Tensor, dtype: torch.dtype, score_factor: float) -> None:
        super().__init__(x.detach().reshape(-1), dtype, score_factor)
        self.model, self.u, head = model, self.x.double(), model.head
        low, high = model.claimed.domain[0]
        self.keys = self.per_row = head.keys
        self.bound = self._promised()
        self.numbers = None if model.claimed.level == "unproved" else (head.numbers, model.claim.head)
        self.ends = near_ends(self.u, low, high, head.keys)
        self.seams = near_seams(self.u, seams_of(head, score_factor))
        self.logits = head.numbers.logit_range(float(self.u.min()), float(self.u.max()))
        if model.method == "nearest":
            off = (self.u - low) / ((high - low) / (head.keys - 1))
            gap = math.log((head.keys - 1) / SELECTION_ERROR)
            self.snap = Snap(1 - 2 * (off - off.round()).abs(), (self.u >= low) & (self.u <= high), gap)

    def _promised(self) -> Tensor:
        """The certificate's bound at every query, and what the target itself is rounded by in float64."""
        exact = self.model.exact(self.u)
        own = 2**-50 * (exact.abs() if self.model.claimed.relative else 1 + exact.abs())
        promised: Tensor = self.model.claimed.allowed(self.u, exact) + own
        return promised

    def literal(self) -> LiteralHead:
        return self.model.head.literal()

    def look(self, literal: LiteralHead, x: Tensor) -> tuple[Tensor, Tensor]:
        return (literal(x).double() - self.model.exact(x.double())).abs(), literal.weights(x)

    def place(self, i: int) -> str:
        return f"{self.model.network.variable} = {self.u[i].item():.4g}"


def seams_of(head: HeadModule, score_factor: float) -> list[tuple[float, float]]:
    """Where the pieces of a kinked head meet, which is where their gates are level, and how far the gate reaches.

    A gate of steepness β costs t/(1 + exp(t)) over β at distance t/β: but for 4% of the area, within t = 5.
    """
    steep, level = head.gate_slopes.double().diff(), head.gate_levels.double().diff()
    return [(-(b / a).item(), 5 / (abs(a.item()) * score_factor)) for a, b in zip(steep, level, strict=True) if a != 0]


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


class ExaminedGrid(Examined):
    """A compiled grid on inputs (..., *input_shape)."""

    name = "the grid of keys"

    def __init__(self, model: CompiledModel, x: Tensor, dtype: torch.dtype, score_factor: float) -> None:
        core: Any = model.network
        super().__init__(core.rows(x).flatten(1), dtype, score_factor)
        self.model, self.grid = model, core.grid
        low, high = torch.tensor(model.claimed.domain, dtype=torch.float64).T
        edge = torch.minimum(self.x.double() - low, high - self.x.double()) / (high - low)
        self.keys = self.per_row = self.grid.keys
        self.bound = torch.full((len(self.x),), model.claimed.bound * (1 + 2**-40), dtype=torch.float64)
        self.ends, self.seams = (edge <= 1 / 20).any(-1), torch.zeros_like(self.bound, dtype=torch.bool)
        self.logits = model.resources.logit_range
        self.own = altered(self.literal(), torch.float64)

    def literal(self) -> LiteralGrid:
        found: LiteralGrid = self.grid.literal()
        return found

    def look(self, literal: LiteralGrid, x: Tensor) -> tuple[Tensor, Tensor]:
        return (literal(x).double() - self._target(x.double())).abs().amax(-1), literal.weights(x)

    def _target(self, x: Tensor) -> Tensor:
        try:
            return self.model.exact(x.reshape(-1, *self.model.input_shape)).reshape(len(x), -1)
        except InputError:
            return self.own(x)

    def place(self, i: int) -> str:
        return point(self.x[i])

    @staticmethod
    def against(part: Any) -> str:
        blind = "its own numbers in float64, since the function cannot be looked into"
        return blind if part.expression is None else "the target"


def point(x: Tensor) -> str:
    """A place of several coordinates, in words."""
    shown = ", ".join(f"{v:.4g}" for v in x[:4].tolist()) + (", ..." if len(x) > 4 else "")
    return f"x = ({shown})"
