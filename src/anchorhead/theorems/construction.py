"""What the networks of all theorems share: a lift, an attention layer, and dtypes that can or cannot hold them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from anchorhead.errors import PrecisionError
from anchorhead.head.parameters import check_tensor
from anchorhead.model.attention import Attention
from anchorhead.model.network import Network
from anchorhead.model.stock import to_stock_attention


class Construction(Network, ABC):
    """Stages that begin with the lift and the theorem's first attention layer, on sequences of one size."""

    @property
    @abstractmethod
    def size(self) -> tuple[int, int]:
        """Tokens and features."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Of its numbers and inputs."""

    @abstractmethod
    def require(self, dtype: torch.dtype) -> None:
        """Refuses a dtype that cannot hold the network."""

    @property
    def lift(self) -> nn.Sequential:
        """The affine map before the first layer."""
        return cast(nn.Sequential, self.stages[0])

    @property
    def attention(self) -> Attention:
        """The first attention layer."""
        return cast(Attention, self.stages[1])

    def check(self, x: Tensor) -> None:
        check_tensor(x, self.dtype, self.size, what="network")

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """`.to(dtype)` and the like: refused where the new dtype cannot hold the network."""
        after = fn(self.attention.value[:0]).dtype
        if after != self.dtype:
            self.require(after)
        super()._apply(fn, recurse)
        return self

    def to_stock_attention(self) -> nn.Module:
        """The same network as stock nn.MultiheadAttention and nn.Linear, on (batch, n, d)."""
        return to_stock_attention(self)


def check_dtype(dtype: Any) -> torch.dtype:
    """A floating dtype."""
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise PrecisionError(f"dtype={dtype!r} must be a floating dtype of torch, such as torch.float64.")
    return dtype
