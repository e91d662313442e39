"""Attention over the tokens of a prompt: steps that ask alike, in one place.

*Fast*: sums over the tokens in pairs, and pairs of pairs (`paired_sum`), so that rounding does not grow with their
number; queries in chunks. *Literal*: scores, softmax, weights times values, its sums in float64. (`circuit/pool.py`)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from anchorhead.circuit.pool import Pool
from anchorhead.circuit.step import Use, Values
from anchorhead.errors import InputError
from anchorhead.head.module import HeadModule
from anchorhead.head.parameters import CHUNK_ENTRIES
from anchorhead.model.group import Group, HeadRows


class Pools(Group):
    """`count` queries of size d; every token has as many keys, offsets and values."""

    keys = 0
    head = None

    def __init__(self, count: int, size: int, *, mean: bool) -> None:
        super().__init__()
        self.count, self.size, self.mean, self.is_literal = count, size, mean, False

    @classmethod
    def of(cls, steps: Sequence[Pool], use: Use, values: Sequence[Values], heads: Sequence[HeadModule],
           dtype: torch.dtype) -> Self:  # fmt: skip
        return cls(len(steps), len(steps[0].query), mean=steps[0].is_mean)

    @staticmethod
    def exact(step: Any, rows: Tensor) -> Tensor:
        raise InputError("Attention over a prompt's tokens is no function of the rows of one token.")

    def forward(self, query: Tensor, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Queries (..., m, count·d) and tokens (..., n, count·(d + 2)) to (..., m, count)."""
        if self.is_literal:
            values, weights = self._token_parts(tokens)[-1], self.token_weights(query, tokens, mask)
            return (weights.double() @ values.double()).to(values.dtype).squeeze(-1).mT
        if self.mean:
            return paired_mean(tokens[..., -self.count :], mask)
        rows = max(1, CHUNK_ENTRIES // max(1, math.prod(tokens.shape[:-1]) * self.count))
        return torch.cat([self._pooled(part, tokens, mask) for part in query.split(rows, dim=-2)], dim=-2)

    def _pooled(self, query: Tensor, tokens: Tensor, mask: Tensor | None) -> Tensor:
        scores = self._scores(query, tokens, mask)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        values = self._token_parts(tokens)[-1].mT
        return (paired_sum(weights * values) / paired_sum(weights)).squeeze(-1).mT

    def _token_parts(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys (..., count, n, d), offsets and values (..., count, n, 1)."""
        g, d = self.count, self.size
        parts = tokens.split([g * d, g, g], dim=-1)
        key, offset, value = (part.unflatten(-1, (g, w)).transpose(-3, -2)
                              for part, w in zip(parts, (d, 1, 1), strict=True))  # fmt: skip
        return key, offset, value

    def _scores(self, query: Tensor, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """(..., count, m, n), tokens that do not count at minus infinity."""
        key, offset, _ = self._token_parts(tokens)
        asked = query.unflatten(-1, (self.count, self.size)).transpose(-3, -2)
        one = asked.new_ones(1).expand(*asked.shape[:-1], 1)
        scores = torch.cat([asked, one], dim=-1) @ torch.cat([key, offset], dim=-1).mT
        return scores if mask is None else scores.masked_fill(~mask[..., None, None, :], -math.inf)

    def token_weights(self, query: Tensor, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """The weight of every token, (..., count, m, n)."""
        scores = self._scores(query, tokens, mask)
        return scores.softmax(-1, dtype=torch.float64).to(scores.dtype)

    def weights(self, rows: Tensor) -> Tensor:
        raise InputError("Attention over a prompt's tokens has weights at its tokens, and none at the rows of one.")

    def on_sequences(self, rows: Tensor) -> list[HeadRows]:
        """Each pool at a position: the score is query · key + 1 · offset, and each token has one key and one value."""
        g, d = self.count, self.size
        query, key, offset, value = rows.split([g * d, g * d, g, g])
        one = torch.zeros_like(rows[:1])
        one[0, -1] = 1
        return [HeadRows(torch.cat([asked, one]), None, torch.cat([found, level])[None], given)
                for asked, found, level, given in zip(query.unflatten(0, (g, d)), key.unflatten(0, (g, d)),
                                                      offset.split(1), value.split(1), strict=True)]  # fmt: skip

    def literal(self) -> Pools:
        found = copy.deepcopy(self)
        found.is_literal = True
        return found


def paired_sum(x: Tensor) -> Tensor:
    """The sum over the last dimension, which stays with length one: halves are added until one number is left."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        added = x[..., :half] + x[..., half : 2 * half]
        x = added if x.shape[-1] == 2 * half else torch.cat([added, x[..., 2 * half :]], dim=-1)
    return x


def paired_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over tokens, (..., n, c) to (..., 1, c); of those that count, where there is a mask (..., n)."""
    if mask is None:
        return paired_sum(x.mT).mT / x.shape[-2]
    total = paired_sum(torch.where(mask.unsqueeze(-1), x, 0.0).mT).mT
    return total / mask.sum(-1)[..., None, None].to(x.dtype)
