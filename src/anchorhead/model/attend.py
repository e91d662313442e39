"""The target's own softmax attention, as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from anchorhead.circuit.attend import Attend
from anchorhead.circuit.step import Use, Values
from anchorhead.head.module import HeadModule
from anchorhead.model.group import Group, HeadRows


class Attentions(Group):
    """`count` queries of size d over m keys each, with values of a width."""

    def __init__(self, count: int, size: int, keys: int, width: int) -> None:
        super().__init__()
        self.count, self.size, self.keys, self.width, self.head = count, size, keys, width, None

    @classmethod
    def of(cls, steps: Sequence[Attend], use: Use, values: Sequence[Values], heads: Sequence[HeadModule],
           dtype: torch.dtype) -> Self:  # fmt: skip
        return cls(len(steps), len(steps[0].query), len(steps[0].offsets), steps[0].width)

    @staticmethod
    def exact(step: Attend, rows: Tensor) -> Tensor:
        return Attentions(1, len(step.query), len(step.offsets), step.width)(rows)

    def _parts(self, rows: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries (count, 1, d), keys (count, m, d), offsets (count, m, 1), values (count, m, width), from dim on."""
        g, d, m, w = self.count, self.size, self.keys, self.width
        sizes = (g, 1, d), (g, m, d), (g, m, 1), (g, m, w)
        parts = rows.split([a * b * c for a, b, c in sizes], dim=dim)
        query, key, offset, value = (part.unflatten(dim, size) for part, size in zip(parts, sizes, strict=True))
        return query, key, offset, value

    def weights(self, rows: Tensor) -> Tensor:
        query, key, offset, _ = self._parts(rows, -1)
        one = rows.new_ones(1).expand(*query.shape[:-1], 1)
        return (torch.cat([query, one], dim=-1) @ torch.cat([key, offset], dim=-1).mT).softmax(-1).squeeze(-2)

    def forward(self, rows: Tensor) -> Tensor:
        return (self.weights(rows).unsqueeze(-2) @ self._parts(rows, -1)[3]).squeeze(-2).flatten(-2)

    def on_sequences(self, rows: Tensor) -> list[HeadRows]:
        """A head for each output: the query with a one, the keys with their offsets."""
        query, key, offset, value = self._parts(rows, 0)
        one = torch.zeros(self.count, 1, 1, rows.shape[1], dtype=rows.dtype)
        one[..., -1] = 1
        asked, keys = torch.cat([query, one], dim=2).squeeze(1), torch.cat([key, offset], dim=2)
        return [HeadRows(asked[i], None, keys[i], value[i, :, k])
                for i in range(self.count) for k in range(self.width)]  # fmt: skip
