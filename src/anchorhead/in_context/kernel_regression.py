"""Nadaraya-Watson regression is one head over the prompt, and its cold limit the nearest neighbour.

    sum over i of  softmax_i(a q·x_i - a|x_i|²/2) y_i,        a = 1/bandwidth²

are the weights exp(-|q - x_i|²/(2 bandwidth²)) over their sum, for every number of examples.

*Bound.* If every score is off by at most δ and the labels span V, the answer is off by at most V tanh(δ/2): raise the
scores of a set with weight p by δ and lower the others, so that p/(1 - p) becomes e^{2δ} times as large; the weight
that moves is largest at p = 1/(1 + e^δ), and there tanh(δ/2). δ is λ(X) + π of `kernels.py`, and for the softmax
itself: the largest score is taken away (2ρ times the largest |score| more), exp is right to 2 ulp. The sums over n
examples add γ_{2n+4} max|y|, and exponentials that underflow 2nτ of it.

*Nearest neighbour.* If every example with another label than the nearest one's is further from q by `margin` in square,
then at a = 2β those have together at most (n - 1)e^{2δ - β margin} of the weight, and the answer errs by that times V.
β = ln((n - 1)/selection_error)/margin, n the largest number of examples. Every run checks the margin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from flint import arb
from torch import Tensor

from anchorhead.arithmetic import binary_ceiling, log_of
from anchorhead.digits import Up
from anchorhead.dtypes import LEAST_NORMAL
from anchorhead.enclosure.precision import precision, upper
from anchorhead.errors import InputError, ToleranceError
from anchorhead.head.parameters import CHUNK_ENTRIES
from anchorhead.in_context.bounds import SLACK, OutsideBoundsError, counts, is_number, positive
from anchorhead.in_context.kernels import KernelNetwork, squared_distances
from anchorhead.in_context.network import Layers, State, stated
from anchorhead.in_context.reading import Reading
from anchorhead.in_context.stability import gamma
from anchorhead.model.outside import behind_transforms
from anchorhead.progress import Progress, telling
from anchorhead.proof.certificate import Certificate, rest_above

EXAMPLES = 100_000
"""The largest prompt, where none is declared."""


def kernel_regression(
    features: int,
    bandwidth: float,
    *,
    examples: int = EXAMPLES,
    bounds: Mapping[str, float] | None = None,
    dtype: torch.dtype = torch.float64,
    progress: bool | Progress = True,
) -> KernelRegression:
    """A network that predicts by Nadaraya-Watson regression: model(X, y, query), for every number of examples.

    bandwidth: of the weights exp(-|q - x|²/(2 bandwidth²)).
    examples: the largest number of them; only rounding depends on it.
    bounds: the largest absolute entry of x, query and y, by default 6, 6 and 50.
    progress: as for `ah.compile`.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    >>> y = X @ torch.tensor([1.0, 2.0], dtype=torch.float64)
    >>> model = ah.in_context.kernel_regression(features=2, bandwidth=0.1)
    >>> round(model(X, y, X[:1]).item(), 3)
    1.0
    """
    width = positive("bandwidth", bandwidth)
    with telling("making a network for kernel regression", progress):
        return KernelRegression(features, examples, width, bounds, dtype)


class Blend(KernelNetwork):
    """One head over the prompt, whose values are the labels."""

    def begin(self, how: Reading, X: Tensor, y: Tensor, query: Tensor, mask: Tensor | None = None) -> State:
        columns = torch.cat([X, self.columns(how, X)], -1)
        rows = torch.cat([query * self.scale.to(query.dtype), torch.ones_like(query[..., :1])], -1)
        return {"found": how.blend(rows, columns, y.unsqueeze(-1), mask).squeeze(-1)}

    def end(self, how: Reading, state: State) -> Tensor:
        return state["found"]

    def layers(self) -> Layers:
        return [(1, [self.square]), (1, [self.prompt_head()])]

    def moved_scores(self, wanted: arb, unit: float) -> arb:
        """δ of the top."""
        with precision():
            largest = arb(self.prompt_head().logit_range) * (1 + 4 * arb(SLACK))
            own = self.level_error("x", unit) + self.product_error(wanted, "query", unit)
            return own + 2 * arb(unit) * largest + 5 * arb(unit)

    def summed(self, size: arb, unit: float) -> arb:
        """What the sums over the prompt add, for labels up to `size`."""
        lost = arb(LEAST_NORMAL[self.unit_name]) * 2 * self.examples if unit else arb(0)
        return (gamma(2 * self.examples + 4, unit) + lost) * size

    def certified(self, said: str, error: Any, *assumptions: str) -> Certificate:
        """The certificate for an error as a function of the unit roundoff."""
        with precision():
            exact, whole = upper(error(0.0)), upper(error(self.unit))
        sizes = dict(self.limits)
        if not whole < 2 * sizes["y"]:
            raise ToleranceError(
                f"In {self.unit_name} the answer may be off by {Up(whole):.3g}, as much as labels differ at all. Use "
                "float64, smaller bounds, a larger bandwidth or margin, or fewer examples."
            )
        at_most = f"prompts have at most {self.examples:,} examples, which every run checks"
        return stated(said, sizes, self.unit_name, exact, rest_above(whole, exact), (at_most, *assumptions))


class KernelRegression(Blend):
    """See `kernel_regression`.

    >>> ah.in_context.kernel_regression(features=2, bandwidth=0.5).certificate.level
    'proved'
    """

    def __init__(self, features: int, examples: int, width: float, bounds: Any, dtype: torch.dtype) -> None:
        super().__init__(features, examples, (1 / width) * (1 / width), bounds, dtype)
        self.bandwidth = width
        self.claim(self.certified(f"Nadaraya-Watson regression of bandwidth {width:g}", self._error))

    def _error(self, unit: float) -> arb:
        size = arb(self.limits["y"]) * (1 + arb(SLACK))
        return 2 * size * (self.moved_scores(1 / arb(self.bandwidth) ** 2, unit) / 2).tanh() + self.summed(size, unit)

    def target(self, X: Tensor, y: Tensor, query: Tensor, mask: Tensor) -> Tensor:
        scores = squared_distances(query, X) / (-2 * self.bandwidth**2)
        weights = scores.masked_fill(~mask.unsqueeze(-2), -math.inf).softmax(-1)
        return (weights @ y.unsqueeze(-1)).squeeze(-1)

    def extra_repr(self) -> str:
        return f"Nadaraya-Watson, bandwidth {self.bandwidth:g}, {self.features} features"


def nearest_neighbour(
    features: int,
    margin: float,
    *,
    examples: int = EXAMPLES,
    selection_error: float = 1e-12,
    bounds: Mapping[str, float] | None = None,
    dtype: torch.dtype = torch.float64,
    progress: bool | Progress = True,
) -> NearestNeighbour:
    """A network that predicts the label of the nearest example: model(X, y, query).

    margin: by how much |q - x|² is larger for examples with other labels than for the nearest; every run checks it.
    selection_error: the weight that examples with other labels may keep together, for the largest prompt.
    examples, bounds: as for `kernel_regression`.
    progress: as for `ah.compile`.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    >>> y = X @ torch.tensor([1.0, 2.0], dtype=torch.float64)
    >>> model = ah.in_context.nearest_neighbour(features=2, margin=0.1)
    >>> round(model(X, y, X[1:2] + 0.1).item(), 6)
    2.0
    """
    gap = positive("margin", margin)
    if not (is_number(selection_error) and 0 < selection_error < 1):
        raise InputError(f"selection_error={selection_error!r} must lie strictly between 0 and 1.")
    (most,) = counts(examples=examples)
    beta = binary_ceiling(max(log_of(max(most - 1, 1) / float(selection_error)), 1.0) / gap)
    with telling("making a network for a nearest neighbour", progress):
        return NearestNeighbour(features, most, gap, beta, bounds, dtype)


class NearestNeighbour(Blend):
    """See `nearest_neighbour`; beta is a power of two.

    >>> ah.in_context.nearest_neighbour(features=2, margin=0.1).certificate.level
    'proved'
    """

    def __init__(self, features: int, examples: int, margin: float, beta: float, bounds: Any, dtype: torch.dtype):
        super().__init__(features, examples, 2 * beta, bounds, dtype)
        self.margin, self.beta = margin, beta
        said = f"the nearest example with another label is further by {margin:g} in square, which every run checks"
        self.claim(self.certified("the label of the nearest example", self._error, said))

    def _error(self, unit: float) -> arb:
        size = arb(self.limits["y"]) * (1 + arb(SLACK))
        moved = self.moved_scores(2 * arb(self.beta), unit)
        leak = (self.examples - 1) * (2 * moved - arb(self.beta) * (arb(self.margin) - self._blur())).exp()
        return 2 * size * leak + self.summed(size, unit)

    def _blur(self) -> arb:
        """How far the difference of two squared distances may be off as the margin's check computes it, in float64."""
        reach = 2 * arb(max(self.limits["x"], self.limits["query"])) * (1 + arb(SLACK))
        return 2 * gamma(self.features + 4, 2.0**-53) * self.features * reach * reach

    def target(self, X: Tensor, y: Tensor, query: Tensor, mask: Tensor) -> Tensor:
        distances = squared_distances(query, X).masked_fill(~mask.unsqueeze(-2), math.inf)
        return y.unsqueeze(-2).expand_as(distances).gather(-1, distances.argmin(-1, keepdim=True)).squeeze(-1)

    def checked(self, *prompt: Any, **named: Any) -> tuple[Any, ...]:
        X, y, query, mask = super().checked(*prompt, **named)
        for part in query.split(max(1, CHUNK_ENTRIES // X.shape[-2]), -2):
            if part.numel():
                self._check_margin(X.double(), y, part.double(), mask)
        return X, y, query, mask

    def _check_margin(self, X: Tensor, y: Tensor, query: Tensor, mask: Tensor | None) -> None:
        distances = squared_distances(query, X)
        if mask is not None:
            distances = distances.masked_fill(~mask.unsqueeze(-2), math.inf)
        nearest, index = distances.min(-1, keepdim=True)
        labels = y.unsqueeze(-2).expand_as(distances)
        others = distances.masked_fill(labels == labels.gather(-1, index), math.inf).amin(-1, keepdim=True)
        least = behind_transforms(lambda gaps: float(gaps.amin()), others - nearest)
        if least is not None and not least >= self.margin:
            raise OutsideBoundsError(
                f"For one of the queries an example with another label is further than the nearest by {least:.4g} in "
                f"square, below the declared margin={self.margin:g}; a nearest neighbour that is so close to a tie "
                "needs a smaller margin."
            )

    def extra_repr(self) -> str:
        return f"nearest neighbour, margin {self.margin:g}, {self.features} features"
