"""The compiled model: a head, its certificate, and what it costs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.network.head_attention import HeadAttention, LiteralHead
from anchorhead.network.resources import Resources
from anchorhead.network.saving import save
from anchorhead.network.self_attention import SelfAttention, head_as_self_attention


class CompiledModel(nn.Module):
    """A function of one variable as softmax attention, with a certificate.

    Calling it applies the function to every element of a tensor of any shape, `(..., 1)` to `(..., 1)` among
    them. `certificate` says how far it is from the target; `resources` what it costs; `method` how it was built.
    """

    def __init__(self, head: HeadAttention, certificate: Any, method: str, record: dict[str, Any]) -> None:
        super().__init__()
        self.head = head
        self.certificate = certificate
        self.method = method
        self.record = record
        """What a file needs beside the numbers: expression, domain, proof."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)

    def literal(self) -> LiteralHead:
        """The same network as scores, softmax and values: what export and the walker see."""
        return self.head.literal()

    def attention(self, x: Tensor) -> list[Tensor]:
        """The attention weights, one entry a layer: (*x.shape, heads, keys), summing to one over keys."""
        self.head.check(x)
        return [self.head.literal().weights(x).unsqueeze(-2)]

    def as_self_attention(self, tokens: int) -> SelfAttention:
        """The same function on sequences (..., tokens, 1), as literal W_Q, W_K, W_V, W_O matrices."""
        return head_as_self_attention(self.head, tokens)

    @property
    def resources(self) -> Resources:
        """What this model costs; the logit range is over the domain, or |x| <= 100 where it is unbounded."""
        head = self.head
        ends = [max(-100.0, self.certificate.domain[0][0]), min(100.0, self.certificate.domain[0][1])]
        x = torch.tensor(ends, dtype=torch.float64)[:, None]
        sizes = torch.tensor(head.sizes)
        slopes = head.slopes.double() + head.gate_slopes.double().repeat_interleave(sizes)
        scores = x * slopes + head.intercepts.double() + head.gate_levels.double().repeat_interleave(sizes)
        gaps = slopes.sort().values.diff().abs()
        return Resources(
            layers=1,
            heads=1,
            keys=head.keys,
            parameters=sum(p.numel() for p in head.parameters()),
            temperature=gaps.max().item() if len(gaps) else 0.0,
            logit_range=scores.abs().max().item(),
        )

    @property
    def largest_value(self) -> float:
        """max|value|: the largest constant or gain. Rounding grows with it."""
        return max(self.head.constants.abs().max().item(), self.head.gains.abs().max().item())

    def save(self, path: Any) -> None:
        """Writes one safetensors file that holds all that `ah.load` and `ah.verify` need."""
        save(self, path)

    def __repr__(self) -> str:
        return f"CompiledModel({self.method}, {self.head.keys} keys; {self.certificate})"
