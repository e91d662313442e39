"""What the two ramp theorems share: the target, its rows, and how an error is reported.

The target is the paper's truncated linear function, clip(w_i·x_i + t_i, low, high), one for each token, put
into output row G(k) where L_k is the anchor nearest to it and G is the caller's choice.

*Where G changes.* Halfway between two anchors softmax gives each half of the weight, at every β.
If both write to the same row that is the right blend. If they write to different rows, each row holds about
half of the target there, so no head can be within the theorem's bound of a one-hot target at that point;
only the sum over rows is. `bound` adds half the larger of the two anchors for such seams, `sum_bound` is
the theorem's number, and the two are equal when G never changes.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anchorhead.digits import Down, Up, counted, exactly
from anchorhead.errors import InputError, PrecisionError, ShapeError
from anchorhead.head.head import Head
from anchorhead.head.own_precision import in_own_precision
from anchorhead.model.network import Resources
from anchorhead.theorems.anchors import beta_for, check_beta, selection_error_at
from anchorhead.theorems.construction import Construction, check_dtype
from anchorhead.theorems.precision import AnchorHead


def read_ramps(weights: Any, bias: Any, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """`weights` as (n, d) and `bias` as (n,), finite, both in `dtype` (that of `weights` unless given)."""
    weights = _as_tensor(weights, "weights")
    bias = _as_tensor(bias, "bias")
    if weights.ndim != 2 or 0 in weights.shape:
        raise ShapeError(
            f"weights has shape {tuple(weights.shape)}; it must be (tokens, features), one row a token, with at least "
            "one token and one feature."
        )
    if tuple(bias.shape) != (weights.shape[0],):
        raise ShapeError(
            f"bias has shape {tuple(bias.shape)}; weights has {weights.shape[0]} rows, so bias must be "
            f"({weights.shape[0]},), one number a token."
        )
    for name, value in (("weights", weights), ("bias", bias)):
        if not value.double().isfinite().all():
            raise InputError(f"{name} holds a value that is not finite; replace NaN and infinity before building.")
    dtype = check_dtype(weights.dtype if dtype is None else dtype)
    cast = weights.detach().to(dtype), bias.detach().to(dtype)
    if not all(value.isfinite().all() for value in cast):
        raise PrecisionError(f"weights or bias overflow in {dtype}; use a wider dtype, or rescale them.")
    return cast


def _as_tensor(value: Any, name: str) -> Tensor:
    if not isinstance(value, Tensor):
        try:
            value = torch.as_tensor(np.asarray(value))
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} must be a tensor, an array or nested lists of numbers: {error}.") from error
    if value.is_complex():
        raise InputError(f"{name} is complex; anchors lie on the real line.")
    return value if value.is_floating_point() else value.to(torch.float64)


def ramp_head(bias: Tensor, low: float, high: float, anchors: int, points: int, losers: int,
              selection_error: float | None, beta: float | None) -> AnchorHead:  # fmt: skip
    """`points` even places on [low, high], `anchors` of which the theorem counts, at a β that leaves `selection_error`
    to `losers` keys unless it is given; refused where the dtype of `bias` cannot hold it. Usual is an error of 1e-6."""
    if beta is not None and selection_error is not None:
        raise InputError(
            f"beta={beta!r} and selection_error={selection_error!r} both say how sharp the head is: β is derived from "
            "selection_error where it is not given. Give one of the two."
        )
    error = 1e-6 if selection_error is None else selection_error
    beta = beta_for(error, losers, (high - low) / (points - 1)) if beta is None else check_beta(beta)
    head = even_head(bias, low, high, anchors, points, beta)
    head.require(bias.dtype)
    return head


def even_head(bias: Tensor, low: float, high: float, anchors: int, points: int, beta: float) -> AnchorHead:
    """The numbers that decide precision of `points` even places on [low, high], `anchors` of which the theorem counts,
    for tokens with these biases."""
    resolution, spacing = (high - low) / anchors, (high - low) / (points - 1)
    return AnchorHead(low, high, spacing, beta, resolution, _offset(bias, low, high))


def head_of_u(slopes: Tensor, levels: Tensor, values: Tensor, middle: float) -> Head:
    """A head of u whose keys look at u from the middle."""
    return Head.of(slopes=slopes, intercepts=levels - slopes * middle, constants=values, horner=False)


def _offset(bias: Tensor, low: float, high: float) -> float:
    """The largest |t - m|, m the middle of the range."""
    return (bias.double() - (low + high) / 2).abs().max().item()


class Ramps(Construction):
    """A network whose i-th token computes clip(w_i·x_i + t_i, low, high); see the top of this file."""

    weights: Tensor
    bias: Tensor
    anchors: Tensor
    rows: Tensor
    heads: int = 1
    sentinels: int = 0
    """At either end of the anchors, keys that carry the ends of the range."""

    def __init__(self, stages: list[nn.Module], head: AnchorHead, weights: Tensor, bias: Tensor, anchors: Tensor,
                 rows: Tensor, output_features: int, losers: int) -> None:  # fmt: skip
        """losers: how many keys must lose, which the theorem's ε counts."""
        super().__init__(stages)
        self._head, self.low, self.high, self.beta = head, head.low, head.high, head.beta
        self.spacing, self.losers, self.output_features = head.spacing, losers, output_features
        self.resolution = head.resolution
        """The theorem's second term: (high - low) over the number of anchors."""
        self.astray = selection_error_at(head.beta, losers, head.spacing)
        """The theorem's ε as its formula gives it; at small β it exceeds any weight."""
        for name, value in (("weights", weights), ("bias", bias), ("anchors", anchors), ("rows", rows)):
            self.register_buffer(name, value, persistent=False)
        self.built()

    @property
    def tokens(self) -> int:
        """n."""
        return self.weights.shape[0]

    @property
    def features(self) -> int:
        """d."""
        return self.weights.shape[1]

    @property
    def size(self) -> tuple[int, int]:
        return self.tokens, self.features

    @property
    def dtype(self) -> torch.dtype:
        return self.weights.dtype

    @property
    def keys(self) -> int:
        """Of one head."""
        return len(self.anchors)

    @property
    def precision(self) -> AnchorHead:
        """The numbers that decide which dtypes can hold this network."""
        return replace(self._head, offset=_offset(self.bias, self.low, self.high))

    @property
    def resources(self) -> Resources:
        parameters = sum(p.numel() for p in self.parameters())
        return Resources(1, self.heads, self.heads * self.keys, parameters, self.beta, self._head.logit_range)

    def numbers(self) -> dict[str, Tensor]:
        """Those of the stages, and the target: weights, bias, anchors and the output row of each."""
        target = {"weights": self.weights, "bias": self.bias, "anchors": self.anchors.double(), "rows": self.rows}
        return super().numbers() | target

    def described(self) -> dict[str, Any]:
        sizes = {"tokens": self.tokens, "features": self.features, "output_features": self.output_features}
        return sizes | {"low": self.low, "high": self.high, "beta": self.beta}

    def sentences(self) -> list[str]:
        n, d, rows = self.tokens, self.features, self.output_features
        to = "" if rows == 1 else f" in one of {rows} output rows"
        limit = f"where |w_1 x_1| + ... + |t - middle| <= {Down(self.summand_limit):.3g}"
        known = self.unproved or f"|network - exact| <= {Up(self.bound):.4g} by the theorem, {limit}"
        return [
            f"{self.theorem}: clip(w_i·x_i + t_i, {exactly(self.low)}, {exactly(self.high)}){to}, "
            f"{counted(n, 'token')} x {counted(d, 'feature')}, " + str(self.dtype).removeprefix("torch."),
            known,
            f"anchors p = {len(self.anchors):,}, spacing {self.spacing:.4g}, β = {self.beta:.6g}, selection error "
            f"ε = {self.selection_error:.3g}",
        ]

    def _fixed(self) -> list[Tensor]:
        """The target's numbers, too: the bound is on the distance from what `exact` computes with these."""
        return [*self.parameters(), *self.buffers()]

    def known_bound(self) -> float | None:
        return None if self.unproved else self.bound

    @property
    def without(self) -> dict[str, str]:
        """Where the theorem says nothing its bounds, too."""
        lost = dict.fromkeys(("bound", "sum_bound"), self.unproved) if self.unproved else {}
        return super().without | {"bound_for": "The bound of ramps needs nothing to be declared: it is .bound."} | lost

    @abstractmethod
    def fast(self, x: Tensor) -> Tensor:
        """The evaluation that uses what is known of the construction's weights."""

    def count(self, x: Tensor) -> int:
        """How many tokens there are in a batch."""
        return x.numel() // self.features

    def require(self, dtype: torch.dtype) -> None:
        self.precision.require(dtype)

    @in_own_precision
    def forward(self, x: Tensor) -> Tensor:
        """(..., n, d) to (..., n, output_features)."""
        self.check(x)
        return super().forward(x) if self.evaluated_literally else self.fast(x)

    def exact(self, x: Tensor) -> Tensor:
        """The target in the same dtype: the clipped value in row G(nearest anchor), zeros elsewhere."""
        self.check(x)
        ramp = ((x * self.weights).sum(-1) + self.bias).clamp(self.low, self.high)
        first, last = self.anchors[0].item(), self.anchors[-1].item()
        step = (last - first) / max(len(self.anchors) - 1, 1) or 1.0
        nearest = ((ramp.double() - first) / step).round().clamp(0, len(self.anchors) - 1).nan_to_num()
        rows = self.rows[nearest.long()]
        out = x.new_zeros(*ramp.shape, self.output_features)
        return out.scatter(-1, rows.unsqueeze(-1), ramp.unsqueeze(-1))

    @property
    def sum_bound(self) -> float:
        """The theorem's number, for the sum over output rows: max(|low|, |high|)·ε + (high - low)/anchors; at low
        β, where that says nothing, how far any output can be from any target."""
        return min(self._theorem(), self.widest(one_row=True))

    def _theorem(self) -> float:
        self.require_built()
        return self._head.theorem_bound(self.losers)

    @property
    def bound(self) -> float:
        """Bound on |network - exact| in every output row, for every input whose terms are within `summand_limit`:
        `sum_bound`, plus `seam_cost` where G changes rows."""
        seams = self.seam_cost
        return self.sum_bound if seams is None else min(self._theorem() + seams, self.widest(one_row=False))

    @property
    def seam_cost(self) -> float | None:
        """Half of the largest anchor at which G changes rows; None if it never does."""
        size = self.anchors.abs()
        largest = torch.maximum(size[1:], size[:-1])[self.rows[1:] != self.rows[:-1]]
        return largest.max().item() / 2 if len(largest) else None

    @abstractmethod
    def widest(self, *, one_row: bool) -> float:
        """How far any output can be from any target, in the sum over rows or, where there are several, in one of
        them: weights are not negative and sum to one, so outputs lie between the values."""

    def hull_rounding(self, keys: int) -> float:
        """How far rounding may put a sum of weights times values beyond the values: a unit for each, and a few more."""
        return (keys + 16) * torch.finfo(self.dtype).eps * max(abs(self.low), abs(self.high))

    @property
    def selection_error(self) -> float:
        """ε, the weight of a softmax that all but the two nearest anchors may keep: 1 where β says
        nothing better."""
        return min(1.0, self.astray)

    @property
    def summand_limit(self) -> float:
        """How large |w_1 x_1| + ... + |t - middle| may be for rounding of the sum to stay below the bound."""
        return self.precision.summand_limit(self.dtype, self.features)
