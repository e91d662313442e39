"""max(u_1, ..., u_m) as attention: softmax of β u over values u."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from anchorhead.circuit.largest import Largest
from anchorhead.circuit.step import Use, Values
from anchorhead.head.module import HeadModule
from anchorhead.head.parameters import constant
from anchorhead.model.group import Group, HeadRows


class Maxima(Group):
    """Maxima of `size` numbers each; sharpness, their β, is (count,)."""

    def __init__(self, size: int, sharpness: Tensor) -> None:
        super().__init__()
        self.count, self.keys, self.head = len(sharpness), size, None
        self.sharpness = constant(sharpness)

    @classmethod
    def of(cls, steps: Sequence[Largest], use: Use, values: Sequence[Values], heads: Sequence[HeadModule],
           dtype: torch.dtype) -> Self:  # fmt: skip
        return cls(len(steps[0].arguments), torch.tensor([beta for beta, _, _ in values], dtype=dtype))

    @staticmethod
    def exact(step: Largest, rows: Tensor) -> Tensor:
        return rows.amax(-1, keepdim=True)

    def _each(self, rows: Tensor) -> Tensor:
        return rows.unflatten(-1, (self.count, self.keys))

    def weights(self, rows: Tensor) -> Tensor:
        return (self._each(rows) * self.sharpness[:, None]).softmax(-1)

    def forward(self, rows: Tensor) -> Tensor:
        return (self.weights(rows).unsqueeze(-2) @ self._each(rows).unsqueeze(-1)).squeeze(-1).squeeze(-1)

    def on_sequences(self, rows: Tensor) -> list[HeadRows]:
        """The keys are the numbers themselves, and the query is β."""
        found = []
        for beta, part in zip(self.sharpness.detach(), rows.split(self.keys), strict=True):
            query = torch.zeros(1, rows.shape[1], dtype=rows.dtype)
            query[0, -1] = beta
            found.append(HeadRows(query, None, part.unsqueeze(1), part))
        return found

    def numbers(self) -> Tensor:
        beta = self.sharpness.detach()
        return torch.stack([beta, torch.zeros_like(beta), torch.zeros_like(beta)])

    @property
    def beta(self) -> float:
        return self.sharpness.max().item()

    def looked_at(self, rows: Tensor) -> Tensor:
        """The lead of the largest."""
        largest = self._each(rows).topk(2, dim=-1).values
        return largest[..., 0] - largest[..., 1]

    def at_seams(self, u: Tensor, beta: float) -> Tensor:
        return u <= 5 / (self.sharpness.double() * beta)

    def logit_range(self, u: Tensor) -> float:
        return self.beta * float(u.abs().max())
