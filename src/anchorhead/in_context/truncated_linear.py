"""clip(w·x_i + t, a, b) with w and t in the prompt: the paper's first in-context result, with a smooth head.

The score of key k is slope_k·(w·x_i + t) + intercept_k, an inner product of (x_i, 1) with (slope_k w, slope_k t +
intercept_k): the weights of the network never see w. The paper selects one of p anchors and errs by (b - a)/p; the
head here is three pieces, a, a smooth head for the middle, b, joined by gates, and errs by about 1e-12 with ten keys.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from flint import arb
from torch import Tensor, nn

from anchorhead.circuit.line import Line
from anchorhead.dtypes import LEAST_NORMAL, UNIT
from anchorhead.enclosure.precision import precision, upper
from anchorhead.errors import InputError, ShapeError
from anchorhead.expression.parse import parse
from anchorhead.head.own_precision import in_own_precision
from anchorhead.head.parameters import check_tensor
from anchorhead.in_context import bounds as limits
from anchorhead.in_context.arguments import DTYPES, counts, dtype_name, is_number, read_sizes
from anchorhead.in_context.bounds import Bounds
from anchorhead.in_context.gradient_terms import line_term
from anchorhead.in_context.literal import attention
from anchorhead.in_context.losses import exact_text
from anchorhead.in_context.self_attention import Head
from anchorhead.in_context.stability import rounded_products
from anchorhead.in_context.terms import Term
from anchorhead.proof.certificate import Certificate
from anchorhead.proof.rounding import ASSUMPTIONS

DEFAULTS = {"x": 6.0, "w": 20.0, "t": 50.0}


def truncated_linear(
    *,
    features: int,
    low: float,
    high: float,
    bounds: Mapping[str, float] | None = None,
    dtype: torch.dtype = torch.float64,
) -> TruncatedLinear:
    """A network that takes X (..., n, d), w (..., d) and t (...) and returns clip(w·x_i + t, low, high), (..., n).

    bounds: the largest absolute entry of x, w and t, by default 6, 20 and 50.
    """
    counts(features=features)
    if not (is_number(low) and is_number(high) and low < high):
        raise InputError("low and high must be finite numbers, the lower first.")
    low, high = float(low), float(high)
    dtype_name(dtype)
    x, w, t = read_sizes(bounds, DEFAULTS).values()
    return TruncatedLinear(features, low, high, Bounds(x, t, w, features * x * w, math.inf), dtype)


class TruncatedLinear(limits.Claimed):
    """See `truncated_linear`."""

    def __init__(self, features: int, low: float, high: float, declared: Bounds, dtype: torch.dtype) -> None:
        super().__init__()
        self.features, self.low, self.high, self.bounds, self.dtype = features, low, high, declared, dtype
        self.term, certificate = _proved(features, low, high, declared, DTYPES[dtype])
        self.claim(certificate)

    @property
    def keys(self) -> int:
        """Keys an example attends to."""
        return len(self.term.keys)

    @in_own_precision
    def forward(self, X: Tensor, w: Tensor, t: Tensor) -> Tensor:
        return self.term(*self._scores(X, w, t))

    def exact(self, X: Tensor, w: Tensor, t: Tensor) -> Tensor:
        """clip(w·x + t, low, high) in float64."""
        return ((X.double() @ w.double().unsqueeze(-1)).squeeze(-1) + t.double().unsqueeze(-1)).clamp(
            self.low, self.high
        )

    def literal(self) -> LiteralTruncated:
        """The same with its softmax written out."""
        return LiteralTruncated(self)

    def as_self_attention(self, examples: int) -> SelfAttentionTruncated:
        """The same as self-attention with its matrices."""
        (examples,) = counts(examples=examples)
        return SelfAttentionTruncated(self, examples)

    def _scores(self, X: Tensor, w: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """w·x and t, both (..., n), checked."""
        for name, value, limit in (("X", X, self.bounds.x), ("w", w, self.bounds.w), ("t", t, self.bounds.y)):
            check_tensor(value, self.dtype, name=name, what="network")
            limits.within(value, limit, name, clip=False)
        if X.ndim < 2 or X.shape[-1] != self.features or w.shape[-1:] != X.shape[-1:]:
            raise ShapeError(
                f"X must be (..., n, {self.features}) and w (..., {self.features}); they are {tuple(X.shape)} and "
                f"{tuple(w.shape)}."
            )
        if w.shape[:-1] not in (X.shape[:-2], ()) or t.shape not in (X.shape[:-2], ()):
            raise ShapeError(
                f"w and t are one for each prompt: with X {tuple(X.shape)} they must be "
                f"{(*X.shape[:-2], self.features)} and {tuple(X.shape[:-2])}, and are {tuple(w.shape)} and "
                f"{tuple(t.shape)}."
            )
        s = (X @ w.unsqueeze(-1)).squeeze(-1)
        return s, t.unsqueeze(-1).expand_as(s)


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
    certificate = Certificate(
        expression=f"clip(w·x + t, {low:g}, {high:g})",
        domain=tuple((-v, v) for v in (declared.x, declared.w, declared.y)),
        dtype=dtype,
        level="proved",
        approximation=term.facts.error,
        rounding=rounding,
        boxes=0,
        assumptions=tuple(ASSUMPTIONS),
        variables=("x", "w", "t"),
    )
    return term, certificate


class LiteralTruncated(nn.Module):
    """Scores, softmax, values, in float64."""

    def __init__(self, model: TruncatedLinear) -> None:
        super().__init__()
        self.keys = copy.deepcopy(model.term.keys)

    def forward(self, X: Tensor, w: Tensor, t: Tensor) -> Tensor:
        s = (X.double() @ w.double().unsqueeze(-1)).squeeze(-1)
        return attention(self.keys, s, t.double().unsqueeze(-1).expand(s.shape)) @ self.keys.value


class SelfAttentionTruncated(nn.Module):
    """n·K tokens (x_i, 1, 1 | on_s_k w, on_y_k t, level_k | value_k); an example's tokens see each other only."""

    def __init__(self, model: TruncatedLinear, examples: int) -> None:
        super().__init__()
        n, d, keys = examples, model.features, model.term.keys
        self.sizes = [n * d, d, 1]

        def tokens(z: Tensor) -> Tensor:
            X, w, t = z.split(self.sizes)
            query = torch.cat([X.reshape(n, d), torch.ones(n, 2, dtype=torch.float64)], -1)
            key = torch.cat([torch.outer(keys.on_s, w), torch.outer(keys.on_y, t), keys.level.unsqueeze(-1)], -1)
            value = keys.value.unsqueeze(-1).repeat(n, 1)
            return torch.cat([query.repeat_interleave(len(keys), 0), key.repeat(n, 1), value], -1)

        self.head = Head(tokens, sum(self.sizes), d + 2, torch.arange(n).repeat_interleave(len(keys)))
        self.first = len(keys)

    def matrices(self) -> dict[str, Tensor]:
        """Every matrix and mask by name."""
        return dict(self.named_buffers())

    def forward(self, X: Tensor, w: Tensor, t: Tensor) -> Tensor:
        z = torch.cat([X.flatten(-2), w, t.unsqueeze(-1)], -1).double()
        found: Tensor = self.head(z)[..., :: self.first, 0]
        return found
