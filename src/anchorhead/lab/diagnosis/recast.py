"""A literal network once more, in another dtype and with its scores multiplied: what would happen if.

The model itself refuses a dtype that cannot hold it. Here a copy of its literal form is made, the numbers that scores
are linear in are multiplied in float64, and everything is rounded to the dtype, as if it had been built so. A softmax
that the target itself has (`Attentions`) is part of what is computed, and keeps its scores.

In the model's own dtype, and in float64, the weights of a head of several pieces are taken within each piece and then
between pieces, as the model's own evaluation does, which is what its certificate is about: a steep gate costs the keys
within a piece no digits. In any other dtype scores are summed as written, since that is what would run there.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from anchorhead.head.grid_module import LiteralGrid
from anchorhead.head.module import LiteralHead
from anchorhead.model.attention import Attention
from anchorhead.model.largest import Maxima
from anchorhead.theorems.lookup import SoftmaxReadOut

Module = TypeVar("Module", bound=nn.Module)

SCORES: dict[type[nn.Module], tuple[str, ...]] = {
    Attention: ("query",),
    LiteralHead: ("slopes", "intercepts", "gate_slopes", "gate_levels"),
    LiteralGrid: ("slopes", "intercepts"),
    Maxima: ("sharpness",),
    SoftmaxReadOut: ("beta",),
}
"""The numbers by which all scores of a module are multiplied when they are."""


class ByPiece(LiteralHead):
    """A literal head whose weights are those within a piece times the piece's own."""

    def weights(self, x: Tensor) -> Tensor:
        """Attention weights, (..., keys)."""
        x = x.unsqueeze(-1)
        sizes = self.piece.bincount().tolist()
        parts = (x * self.slopes + self.intercepts).split(sizes, dim=-1)
        totals = torch.stack([part.logsumexp(-1) for part in parts], dim=-1)
        pieces = (totals + (x * self.gate_slopes + self.gate_levels)).softmax(-1)
        return torch.cat([part.softmax(-1) for part in parts], dim=-1) * pieces[..., self.piece]


@torch.no_grad()
def recast(literal: Module, dtype: torch.dtype, scale: float) -> Module:
    """A copy of a literal network in `dtype`, its scores times `scale`; the original is not touched."""
    found = copy.copy(literal)
    if "check" in vars(found):
        vars(found)["check"] = _accept  # its model's own, which knows one dtype only
    found = copy.deepcopy(found)
    own = next((p.dtype for p in literal.parameters()), dtype)
    for module in found.modules():
        if type(module) is LiteralHead and dtype in (own, torch.float64):
            module.__class__ = ByPiece
        for name in _scores(module):
            numbers: Tensor = getattr(module, name)
            numbers.data = numbers.data.double() * scale
    return found.to(dtype)


def _scores(module: nn.Module) -> tuple[str, ...]:
    return next((names for kind, names in SCORES.items() if isinstance(module, kind)), ())


def _accept(x: Tensor) -> None:
    """Every input is as good as another."""
