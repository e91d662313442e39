"""clip(w·x_i + t, a, b) with w and t in the prompt: the paper's first in-context result, with a smooth head.

The score of key k is slope_k·(w·x_i + t) + intercept_k, an inner product of (x_i, 1) with (slope_k w, slope_k t +
intercept_k): the weights of the network never see w. The paper selects one of p anchors and errs by (b - a)/p; the
head here is three pieces, a, a smooth head for the middle, b, joined by gates, and errs by about 1e-12 with ten keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from flint import arb
from torch import Tensor

from anchorhead.circuit.line import Line
from anchorhead.digits import exactly
from anchorhead.dtypes import LEAST_NORMAL, UNIT
from anchorhead.enclosure.precision import precision, upper
from anchorhead.errors import InputError, ShapeError
from anchorhead.expression.parse import parse
from anchorhead.head.parameters import check_tensor
from anchorhead.in_context import bounds as limits
from anchorhead.in_context.bounds import DTYPES, Bounds, counts, dtype_name, is_number, read_sizes
from anchorhead.in_context.gradient_terms import line_term
from anchorhead.in_context.losses import exact_text
from anchorhead.in_context.network import InContextNetwork, Layers, State, stated
from anchorhead.in_context.reading import Reading
from anchorhead.in_context.stability import rounded_products
from anchorhead.in_context.terms import Term
from anchorhead.progress import Progress, telling
from anchorhead.proof.certificate import Certificate

DEFAULTS = {"x": 6.0, "w": 20.0, "t": 50.0}


def truncated_linear(
    *,
    features: int,
    low: float,
    high: float,
    bounds: Mapping[str, float] | None = None,
    dtype: torch.dtype = torch.float64,
    progress: bool | Progress = True,
) -> TruncatedLinear:
    """A network that takes X (..., n, d), w (..., d) and t (...) and returns clip(w·x_i + t, low, high), (..., n).

    bounds: the largest absolute entry of x, w and t, by default 6, 20 and 50.
    progress: as for `ah.compile`.

    >>> clip = ah.in_context.truncated_linear(features=1, low=-1, high=1)
    >>> X, w, t = (torch.tensor(v, dtype=torch.float64) for v in ([[0.25], [3.0]], [2.0], 0.0))
    >>> [round(v, 6) for v in clip(X, w, t).tolist()]
    [0.5, 1.0]
    """
    counts(features=features)
    if not (is_number(low) and is_number(high) and low < high):
        raise InputError("low and high must be finite numbers, the lower first.")
    low, high = float(low), float(high)
    dtype_name(dtype)
    x, w, t = read_sizes(bounds, DEFAULTS).values()
    with telling("making a network for truncated linear functions", progress):
        return TruncatedLinear(features, low, high, Bounds(x, t, w, features * x * w, math.inf), dtype)


class TruncatedLinear(InContextNetwork):
    """See `truncated_linear`.

    >>> ah.in_context.truncated_linear(features=1, low=-1, high=1).certificate.level
    'proved'
    """

    def __init__(self, features: int, low: float, high: float, declared: Bounds, dtype: torch.dtype) -> None:
        super().__init__()
        self.features, self.low, self.high, self.bounds, self.dtype = features, low, high, declared, dtype
        self.term, certificate = _proved(features, low, high, declared, DTYPES[dtype])
        self.claim(certificate)

    @property
    def keys(self) -> int:
        """Keys an example attends to."""
        return self.term.keys

    def forward(self, X: Tensor, w: Tensor, t: Tensor) -> Tensor:
        """clip(w·x_i + t, low, high), (..., n)."""
        found: Tensor = self.fast(X, w, t)
        return found

    def begin(self, how: Reading, X: Tensor, w: Tensor, t: Tensor) -> State:
        return {
            "clipped": how.value(
                self.term, how.match(X, w.unsqueeze(-2)).squeeze(-1), t.unsqueeze(-1).expand(X.shape[:-1])
            )
        }

    def end(self, how: Reading, state: State) -> Tensor:
        return state["clipped"]

    def layers(self) -> Layers:
        return [(1, [self.term])]

    def shapes(self, examples: int) -> dict[str, tuple[int, ...]]:
        return {"X": (examples, self.features), "w": (self.features,), "t": ()}

    def checked(self, X: Tensor, w: Tensor, t: Tensor) -> tuple[Any, ...]:
        check_tensor(X, self.dtype, name="X", what="network")
        if X.ndim < 2 or X.shape[-1] != self.features:
            raise ShapeError(f"X must be (..., n, {self.features}), and is {tuple(X.shape)}.")
        w, t = (limits.each_prompt(v, own, X, self.dtype, name)
                for v, own, name in ((w, (self.features,), "w"), (t, (), "t")))  # fmt: skip
        for name, value, limit in (("X", X, self.bounds.x), ("w", w, self.bounds.w), ("t", t, self.bounds.y)):
            limits.within(value, limit, name)
        return X, w, t

    def extra_repr(self) -> str:
        return f"clip(w·x + t, {exactly(self.low)}, {exactly(self.high)}), {self.features} features, {self.keys} keys"


def _proved(features: int, low: float, high: float, declared: Bounds, dtype: str) -> tuple[Term, Certificate]:
    """The head, and what is proved of it: its own error, what rounding of w·x + t moves, and the last cast."""
    function = parse(f"clip(u, {exact_text(low)}, {exact_text(high)})", ("u",)).outputs[0]
    off = rounded_products(features, declared.x, declared.w, dtype)
    with precision():
        largest = upper(arb(declared.s) * (1 + 3 * arb(limits.SLACK)) + off)
    term = line_term(function, Line({0: 1, 1: 1}), (1, 0), replace(declared, s=largest), off)
    with precision():
        cast = arb(UNIT[dtype]) * (arb(term.facts.size) + term.facts.error + term.facts.moved) + LEAST_NORMAL[dtype]
        rounding = upper(cast + term.facts.moved)
    sizes = {"x": declared.x, "w": declared.w, "t": declared.y}
    said = f"clip(w·x + t, {exactly(low)}, {exactly(high)})"
    return term, stated(said, sizes, dtype, term.facts.error, rounding)
