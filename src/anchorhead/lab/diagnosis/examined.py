"""What is examined: a head on the queries that it sees, run in any dtype and with its scores times any factor.

The model itself refuses a dtype that cannot hold it. Here a copy of its literal form is altered: the numbers that
scores are linear in are multiplied in float64, and everything is rounded to the dtype, as if it had been built so. A
softmax that the target itself has (`Attentions`) is part of what is computed, and keeps its scores.

In the model's own dtype, and in float64, the weights of a head of several pieces are taken within each piece and then
between pieces, as the model's own evaluation does, which is what its certificate is about: a steep gate costs the keys
within a piece no digits. In any other dtype scores are summed as written, since that is what would run there.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from anchorhead.head.grid_module import LiteralGrid
from anchorhead.head.head import Head
from anchorhead.head.module import LiteralHead
from anchorhead.model.attention import Attention
from anchorhead.model.largest import Maxima
from anchorhead.theorems.lookup import SoftmaxReadOut

Module = TypeVar("Module", bound=nn.Module)

SELECTION_ERROR = 1e-6
"""The default of the theorems, and that of `head/nearest.py`."""
CHUNK = 1 << 22
"""Attention weights at a time."""
SCORES: dict[type[nn.Module], tuple[str, ...]] = {
    Attention: ("query",),
    LiteralHead: ("slopes", "intercepts", "gate_slopes", "gate_levels"),
    LiteralGrid: ("slopes", "intercepts"),
    Maxima: ("sharpness",),
    SoftmaxReadOut: ("beta",),
}
"""The numbers by which all scores of a module are multiplied when they are."""


@dataclass(frozen=True)
class Run:
    """One run, query by query, each (queries,) in float64.

    error: distance of the output from the target, NaN where the output is. effective: how many keys share the weight,
    exp(entropy). top, second: the two largest weights. leader: the key with the largest.
    """

    error: Tensor
    effective: Tensor
    top: Tensor
    second: Tensor
    leader: Tensor

    @property
    def finite(self) -> Tensor:
        """Where output and weights are numbers."""
        return self.error.isfinite() & self.effective.isfinite()

    @property
    def worst(self) -> int:
        """The first query whose error is the largest up to a millionth: processors differ in the last bits of it."""
        error = self.error.nan_to_num(nan=math.inf)
        return int((error >= error.max() * (1 - 1e-6)).nonzero()[0])


@dataclass(frozen=True)
class Snap:
    """Of a head that selects: z = 1 - 2e/h of every query, e its distance from the nearest anchor; which queries count
    (`among`); and the `gap` that the theory derives, with weights of the two nearest like exp(gap·z) : 1."""

    z: Tensor
    among: Tensor
    gap: float


class Examined(ABC):
    """A head, or several that look at one number each, on the queries of `x`, (rows, ...).

    dtype, score_factor: the run that is examined. bound: what every query is held to, and standard: what that is called
    where it is not the network's own bound. ends, seams: the queries next to an end of the range, and next to a place
    where heads or pieces meet. logits: the largest absolute score at β = 1. keys: of one head. per_row: weights that
    one row of x takes. snap: of a head that selects. numbers: of a head, as they are, and as they were proved; None
    where that is not known. intact: whether all stored numbers are known to be those that were built.
    """

    bound: Tensor
    ends: Tensor
    seams: Tensor
    logits: float
    keys: int
    per_row: int
    snap: Snap | None = None
    numbers: tuple[Head, Head] | None = None
    intact = False
    name = "the head"
    standard = "bound"

    def __init__(self, x: Tensor, dtype: torch.dtype, score_factor: float) -> None:
        self.x, self.dtype, self.score_factor = x, dtype, score_factor

    @abstractmethod
    def literal(self) -> nn.Module:
        """The network of the head, as built."""

    @abstractmethod
    def look(self, literal: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """The literal network, altered, on some rows: errors (...) and attention weights (..., keys)."""

    @abstractmethod
    def place(self, i: int) -> str:
        """Where a query lies, in words."""

    def where(self, i: int) -> str:
        """Which head has a query."""
        return self.name

    def run(self, dtype: torch.dtype, scale: float, stride: int = 1) -> Run:
        """Every stride-th row, in a dtype and with scores times a factor."""
        literal = altered(self.literal(), dtype, scale)
        parts = self.x[::stride].to(dtype).split(max(1, CHUNK // self.per_row))
        return joined([observe(*self.look(literal, part)) for part in parts])

    @cached_property
    def as_run(self) -> Run:
        """The run that is examined."""
        return self.run(self.dtype, self.score_factor)

    @cached_property
    def plain(self) -> Run:
        """The same in float64."""
        return self.as_run if self.dtype == torch.float64 else self.run(torch.float64, self.score_factor)

    def thinned(self, per_query: Tensor, stride: int) -> Tensor:
        """What is left of a value for each query when every `stride`-th row is run."""
        return per_query.reshape(len(self.x), -1)[::stride].reshape(-1)

    @property
    def scores_kept(self) -> bool:
        """Whether its scores are known to be those that were proved."""
        if self.numbers is None or self.score_factor != 1:
            return False
        now, proved = self.numbers
        return all(getattr(now, name) == getattr(proved, name) for name in SCORES[LiteralHead])

    def promised(self) -> float:
        """The network's own bound."""
        return float(self.bound.max())

    def allows(self, dtype: torch.dtype, factor: float = 1.0) -> bool:
        """Whether the library would build this network in a dtype, with a β that is so many times its own."""
        return True

    def rescale(self, factor: float) -> str:
        """Advice, from the factor that scores need; here for heads whose values belong to one β."""
        if self.score_factor != 1 and factor == 1 / self.score_factor:
            return "Run it at score_factor=1: its values belong to the scores that it was compiled with."
        return (
            f"Multiply the scores (slopes, intercepts and gates) by {factor:.12g}, or compile it again: its values "
            "belong to the scores that it was compiled with."
        )

    def otherwise(self) -> tuple[str, str]:
        """What an error is from that neither the dtype nor β nor the ends explain, and advice."""
        if self.intact:
            why = "and no β that was tried mends it, while the stored numbers are those built: what is left is rounding"
            return why, "Keep the inputs inside what it was built for, or build it in a wider dtype."
        tried = "its scores are those built, other" if self.scores_kept else "no β that was tried mends it: the"
        why = f"and {tried} stored numbers are not{'' if self.scores_kept else ' those built'}"
        return why, "Build, compile or load the model again."

    def smaller(self, dtype: torch.dtype) -> str:
        """Advice for a dtype that cannot hold it, or nothing; here for compiled models."""
        if dtype == torch.float32:
            return "Or compile with dtype=torch.float32, which says the best tolerance that it can hold."
        return ""

    @staticmethod
    def against(part: Any) -> str:
        """What errors of a model are measured against."""
        return "the target"


def derived(factor: float, beta: float, whose: str) -> str:
    """Advice for heads of the paper, whose β is a formula."""
    return (
        f"Multiply the scores by {factor:.12g}: the β {whose}for a selection error of {SELECTION_ERROR:g} is "
        f"{beta:.6g}, which is derived where beta= is left out."
    )


def observe(error: Tensor, weights: Tensor) -> Run:
    """Error (...) and attention weights (..., keys) as a run."""
    weights = weights.double().reshape(-1, weights.shape[-1])
    entropy = -(weights * weights.clamp_min(1e-300).log()).sum(-1)
    largest = weights.topk(min(2, weights.shape[-1]), dim=-1)
    top, leader = largest.values[:, 0], largest.indices[:, 0]
    second = largest.values[:, 1] if weights.shape[-1] > 1 else torch.zeros_like(top)
    return Run(error.double().reshape(-1), entropy.exp(), top, second, leader)


def joined(runs: list[Run]) -> Run:
    """Runs of one part of the rows after the other as one."""
    return Run(*(torch.cat([getattr(run, field.name) for run in runs]) for field in fields(Run)))


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
def altered(literal: Module, dtype: torch.dtype, scale: float = 1.0) -> Module:
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
