"""Products u·v by a head: keys look at u on a range, values are constants times v, so softmax blends them to u·v."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anchorhead.compiler.carrying import carrying_model
from anchorhead.in_context.terms import RELATIVE
from anchorhead.network.head_attention import HeadAttention, LiteralHead


class Factor(nn.Module):
    """u as a head sees it, for |u| <= reach: (...) to (...). `error` bounds |output - u|, rounding included."""

    def __init__(self, reach: float) -> None:
        super().__init__()
        model = carrying_model("x", (-reach, reach), RELATIVE * reach, torch.float64)
        self.head: HeadAttention | LiteralHead = model.head
        self.reach, self.error = reach, model.certificate.bound

    def forward(self, u: Tensor) -> Tensor:
        found: Tensor = self.head(u.double())
        return found.to(u.dtype)


class LiteralFactor(nn.Module):
    """The same with its softmax written out; a product with it is weights times values."""

    def __init__(self, factor: Factor) -> None:
        super().__init__()
        self.head = factor.head.literal()

    def times(self, u: Tensor, v: Tensor) -> Tensor:
        """u·v elementwise, as attention: weights over keys times constants · v."""
        weights = self.head.weights(u.double())
        values = v.double().unsqueeze(-1) * self.head.constants
        return (weights.unsqueeze(-2) @ values.unsqueeze(-1)).squeeze(-1).squeeze(-1)
