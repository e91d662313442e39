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

from abc import ABC, abstractmethod
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from anchorhead.errors import AnchorheadError, InputError, PrecisionError, ShapeError
from anchorhead.head.own_precision import in_own_precision
from anchorhead.head.parameters import AsBuilt, check_tensor
from anchorhead.model.attention import Attention
from anchorhead.model.network import Network
from anchorhead.model.stock import to_stock_attention
from anchorhead.theorems.precision import AnchorHead


def read_ramps(weights: Any, bias: Any, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """`weights` as (n, d) and `bias` as (n,), finite, both in `dtype` (that of `weights` unless given)."""
    weights = _as_tensor(weights, "weights")
    bias = _as_tensor(bias, "bias")
    if weights.ndim != 2 or 0 in weights.shape:
        raise ShapeError(f"weights has shape {tuple(weights.shape)}; it must be (tokens, features), one row a token.")
    if tuple(bias.shape) != (weights.shape[0],):
        raise ShapeError(
            f"bias has shape {tuple(bias.shape)}; weights has {weights.shape[0]} rows, so bias must be "
            f"({weights.shape[0]},), one number a token."
        )
    for name, value in (("weights", weights), ("bias", bias)):
        if not value.isfinite().all():
            raise InputError(f"{name} holds a value that is not finite; replace NaN and infinity before building.")
    dtype = weights.dtype if dtype is None else dtype
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise PrecisionError(f"dtype={dtype!r} must be a floating dtype of torch, such as torch.float64.")
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


class Ramps(AsBuilt, Network, ABC):
    """A network whose i-th token computes clip(w_i·x_i + t_i, low, high); see the top of this file."""

    weights: Tensor
    bias: Tensor
    anchors: Tensor
    rows: Tensor
    beta: float
    astray: float
    """The theorem's ε as its formula gives it; at small β it exceeds any weight."""
    resolution: float
    """The theorem's second term: (high - low) over the number of anchors."""

    def __init__(self, stages: list[nn.Module], weights: Tensor, bias: Tensor, low: float, high: float,
                 anchors: Tensor, rows: Tensor, output_features: int) -> None:  # fmt: skip
        super().__init__(stages)
        self.low, self.high = low, high
        self.output_features = output_features
        for name, value in (("weights", weights), ("bias", bias), ("anchors", anchors), ("rows", rows)):
            self.register_buffer(name, value, persistent=False)
        self.built()

    @property
    def lift(self) -> nn.Sequential:
        """The affine map A of the theorem."""
        return cast(nn.Sequential, self.stages[0])

    @property
    def attention(self) -> Attention:
        """The attention layer of the theorem."""
        return cast(Attention, self.stages[1])

    @property
    def tokens(self) -> int:
        return self.weights.shape[0]

    @property
    def features(self) -> int:
        return self.weights.shape[1]

    @property
    def size(self) -> tuple[int, int]:
        return self.tokens, self.features

    @property
    def dtype(self) -> torch.dtype:
        return self.weights.dtype

    @property
    @abstractmethod
    def precision(self) -> AnchorHead:
        """The numbers that decide which dtypes can hold this network."""

    @abstractmethod
    def fast(self, x: Tensor) -> Tensor:
        """The evaluation that uses what is known of the construction's weights."""

    def count(self, x: Tensor) -> int:
        """How many tokens there are in a batch."""
        return x.numel() // self.features

    def check(self, x: Tensor) -> None:
        check_tensor(x, self.dtype, (self.tokens, self.features), what="network")

    @in_own_precision
    def forward(self, x: Tensor) -> Tensor:
        """(..., n, d) to (..., n, output_features)."""
        self.check(x)
        return super().forward(x) if self.edited else self.fast(x)

    def _apply(self, fn: Any, recurse: bool = True) -> Ramps:
        """`.to(dtype)` and the like: refused where the new dtype cannot hold the network."""
        after = fn(self.weights[:0]).dtype
        if after != self.dtype:
            self.precision.require(after)
        super()._apply(fn, recurse)
        return self

    def to_stock_attention(self) -> nn.Module:
        """The same network as stock nn.MultiheadAttention and nn.Linear, on (batch, n, d)."""
        return to_stock_attention(self)

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
        if self.edited:
            raise AnchorheadError(
                "The weights were changed since the network was built; the theorem says nothing of them."
            )
        return max(abs(self.low), abs(self.high)) * self.astray + self.resolution

    @property
    def bound(self) -> float:
        """Bound on |network - exact| in every output row, for every input whose terms are within `summand_limit`:
        `sum_bound`, plus half of the largest anchor at which G changes rows, if it does."""
        seams = self.rows[1:] != self.rows[:-1]
        size = self.anchors.abs()
        largest = torch.maximum(size[1:], size[:-1])[seams]
        if not len(largest):
            return self.sum_bound
        return min(self._theorem() + largest.max().item() / 2, self.widest(one_row=False))

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
