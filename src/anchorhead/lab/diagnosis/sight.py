"""What a criterion sees of a head: how it can be run, on which queries, what was promised, and where the ends are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


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
    (`among`); `gap` that the theory derives, with weights of the two nearest like exp(gap·z) : 1; and the β
    of that gap, in the units of the head's own."""

    z: Tensor
    among: Tensor
    gap: float
    beta: float


@dataclass(frozen=True)
class Sight:
    """A head, or several that look at one number each, on the queries that they see.

    where: which head. run: from dtype, a factor for the scores and a stride over rows to what happens; queries come
    row by row, `rows` of them. dtype, beta: the run that is examined. bound: what was promised of each query.
    ends, seams: the queries next to an end of the range, and next to a place where heads or pieces meet.
    logits: the largest absolute score at β = 1. keys: of one head. place: where a query lies, in words.
    rescale: advice, from the factor that scores need. smaller: advice for a dtype that cannot hold it, or nothing.
    """

    where: Callable[[int], str]
    run: Callable[[torch.dtype, float, int], Run]
    rows: int
    dtype: torch.dtype
    beta: float
    bound: Tensor
    ends: Tensor
    seams: Tensor
    logits: float
    keys: int
    place: Callable[[int], str]
    rescale: Callable[[float], str]
    smaller: Callable[[torch.dtype], str]
    snap: Snap | None = None
    allows: Callable[[torch.dtype], bool] = lambda dtype: True
    """Whether the library would build this network in a dtype."""

    def thinned(self, per_query: Tensor, stride: int) -> Tensor:
        """What is left of a value for each query when every `stride`-th row is run."""
        return per_query.reshape(self.rows, -1)[::stride].reshape(-1)


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
    names = ("error", "effective", "top", "second", "leader")
    return Run(*(torch.cat([getattr(run, name) for run in runs]) for name in names))
