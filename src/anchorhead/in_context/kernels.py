"""Kernel methods are attention over the prompt: what the networks of this kind share (docs/mathematics.md 7.7).

With a = 1/length², a Gaussian kernel is the exponential of a score,

    exp(-|q - x|²/(2 length²)) = exp(a q·x - a|x|²/2 - a|q|²/2)

an inner product of (a q, -a|q|²/2, 1) with (x, 1, -a|x|²/2): a query and a key. Where softmax divides by a sum over
examples, the part that belongs to the query alone drops out. The squares are heads (`heads.Factor`) whose keys look at
a coordinate and whose values carry it. Nothing depends on the number of examples, but rounding does.

*How far a score is off.* Let entries of x be at most X, of q at most Q, in d features; F the error of a head for a
number; â the stored a, ρ the unit of the dtype. A square errs by e(X) = d(FX + γ_{d+3}(X + F)X): the head's output is
cast and multiplied, and d are added. So a *level* -a|x|²/2 is off, from what it is with â, by

    λ(X) = â e(X)/2 + γ_3 â(dX² + e(X))/2

which belongs to the example alone, and is the same in all scores that it is in. A score is a sum of d + 2 products, one
of them with one more rounding: beside its levels it is off by

    π = |â - a| d(X + Q)²/2 + γ_{d+4} â(dQX + (dX² + e(X) + dQ² + e(Q))/2)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flint import arb
from torch import Tensor

from anchorhead.dtypes import LARGEST, LEAST_NORMAL, UNIT
from anchorhead.enclosure.precision import precision, upper
from anchorhead.errors import InputError, ShapeError
from anchorhead.in_context import bounds as limits
from anchorhead.in_context.bounds import DTYPES, SLACK, counts, dtype_name, read_sizes
from anchorhead.in_context.heads import Factor
from anchorhead.in_context.network import InContextNetwork, in_double
from anchorhead.in_context.reading import Reading
from anchorhead.in_context.stability import gamma

DEFAULTS = {"x": 6.0, "query": 6.0, "y": 50.0}
"""For standardised data: the largest absolute entries of the examples, the queries and the labels."""


@dataclass(frozen=True)
class PromptHead:
    """A head whose keys are the examples, for the largest prompt; see `Resources`."""

    keys: int
    beta: float
    logit_range: float


class KernelNetwork(InContextNetwork, ABC):
    """A network for examples X (..., n, d), labels y (..., n) and queries (..., m, d), with scores as at the top."""

    scale: Tensor
    gain = 1.0
    """How much larger than the largest label, or a change of all labels, an answer can be."""

    def __init__(
        self, features: int, examples: int, scale: float, bounds: Mapping[str, float] | None, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.features, self.examples = counts(features=features, examples=examples)
        self.unit_name = dtype_name(dtype)
        self.dtype = dtype
        self.limits = read_sizes(bounds, DEFAULTS)
        self.square = Factor(max(self.limits["x"], self.limits["query"]))
        self.register_buffer("scale", torch.tensor(scale, dtype=dtype))
        stored, reach = arb(float(self.scale)), arb(self.features) * self.square.reach**2
        least, most = LEAST_NORMAL[self.unit_name], LARGEST[self.unit_name]
        if not (least < stored and 2 * (1 + stored) * (1 + reach) * (1 + self.limits["y"]) < most):
            raise InputError(
                f"{self.unit_name} cannot hold |x - x'|² times {scale:.4g} for |x| <= {self.limits['x']:g}; rescale "
                "the data, or use another length."
            )

    def forward(self, X: Tensor, y: Tensor, query: Tensor, mask: Tensor | None = None) -> Tensor:
        """The prediction for every query, (..., m); mask (..., n) is True for examples that count."""
        found: Tensor = self.fast(X, y, query, mask)
        return found

    @abstractmethod
    def target(self, X: Tensor, y: Tensor, query: Tensor, mask: Tensor) -> Tensor:
        """What the network stands for, plainly in float64."""

    def exact(self, *prompt: Any, **named: Any) -> Tensor:
        """The method itself at a prompt, plainly in float64: distances, exponentials, no heads."""
        X, y, query, mask = in_double(self.checked(*prompt, **named))
        return self.target(X, y, query, torch.ones_like(y, dtype=torch.bool) if mask is None else mask)

    def columns(self, how: Reading, X: Tensor) -> Tensor:
        """-a|x|²/2 of every row, (..., n, 1)."""
        squares = how.carry(self.square, (X,), X.unsqueeze(-1)).squeeze(-1).sum(-1, keepdim=True)
        return squares * (-self.scale.to(X.dtype) / 2)

    def shapes(self, examples: int) -> dict[str, tuple[int, ...]]:
        """One query."""
        return {"X": (examples, self.features), "y": (examples,), "query": (1, self.features)}

    def checked(self, X: Tensor, y: Tensor, query: Tensor, mask: Tensor | None = None) -> tuple[Any, ...]:
        limits.check_examples(X, y, self.features, self.examples, self.dtype)
        if not isinstance(query, Tensor) or query.ndim < 2 or query.shape[-1] != self.features:
            given = tuple(query.shape) if isinstance(query, Tensor) else f"a {type(query).__name__}"
            raise ShapeError(f"query must be a tensor (..., queries, {self.features}), and is {given}.")
        query = limits.each_prompt(query, tuple(query.shape[-2:]), X, self.dtype, "query")
        X, y = limits.masked(X, y, mask)
        for name, value in (("x", X), ("y", y), ("query", query)):
            limits.within(value, self.limits[name], name)
        return X, y, query, mask

    def prompt_head(self, keys: int = 1) -> PromptHead:
        """The head over a prompt of the largest size, with so many keys for an example."""
        scale, x, q = float(self.scale), self.limits["x"], self.limits["query"]
        return PromptHead(keys * self.examples, scale, scale * self.features * (x * max(x, q) + max(x, q) ** 2))

    def squares_error(self, size: arb, unit: float) -> arb:
        """e(size) of the top."""
        d, head = arb(self.features), arb(self.square.error)
        return d * (head * size + gamma(self.features + 3, unit) * (size + head) * size)

    def level_error(self, name: str, unit: float) -> arb:
        """λ of the top, for rows of the size that `name` has."""
        with precision():
            size, stored = arb(self.limits[name]) * (1 + arb(SLACK)), arb(float(self.scale))
            wrong = self.squares_error(size, unit)
            rounded = gamma(3, unit) * (self.features * size * size + wrong)
            lost = LEAST_NORMAL[self.unit_name] * (self.features + 8) * (1 + stored) * (1 + size)
            return arb(upper(stored * (wrong + rounded) / 2 + lost))

    def product_error(self, wanted: arb, other: str, unit: float) -> arb:
        """π of the top for queries of the size that `other` names, where `wanted` is a itself."""
        with precision():
            X, Q = (arb(self.limits[name]) * (1 + arb(SLACK)) for name in ("x", other))
            d, stored = arb(self.features), arb(float(self.scale))
            levels = (d * X * X + self.squares_error(X, unit) + d * Q * Q + self.squares_error(Q, unit)) / 2
            found = abs(stored - wanted) * d * (X + Q) ** 2 / 2
            found += gamma(self.features + 4, unit) * stored * (d * Q * X + levels)
            return arb(upper(found + LEAST_NORMAL[self.unit_name] * (self.features + 8) * (1 + stored) * (1 + X + Q)))

    @property
    def unit(self) -> float:
        """The unit roundoff of the dtype."""
        return UNIT[DTYPES[self.dtype]]


def squared_distances(query: Tensor, X: Tensor) -> Tensor:
    """|q - x|², (..., m, d) and (..., n, d) to (..., m, n), by differences."""
    parts = zip(query.unbind(-1), X.unbind(-1), strict=True)
    return sum(((q.unsqueeze(-1) - x.unsqueeze(-2)).square() for q, x in parts), X.new_zeros(()))
