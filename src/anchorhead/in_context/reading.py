"""How an algorithm's heads are read. The algorithm is written once (`network.py`), as affine maps and calls of heads.

A call is phi(u)·v, for many u at a time: keys look at u, values carry v. *Exact*: phi itself, then a product. *Fast*:
the head's fast evaluation, then a product, by matrices where products are summed. *Literal*: scores, softmax over keys,
weights times values constant_k·v. `matrices.py` has a fourth, which writes every call as W_Q, W_K, W_V.

u may be an inner product of two things that the prompt holds, `match`: then it is a score itself, and costs no layer.

`blend` is attention over the prompt itself: the examples are the keys. With a *sink*, a twin of every key with value 0
and a constant score c, and what comes out times e^c, it is the mean over examples of exp(score)·value, but for a factor
between 1 - e^-c max exp(score) and 1: softmax without its normaliser. The fast evaluation leaves that factor out.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anchorhead.head.parameters import CHUNK_ENTRIES
from anchorhead.in_context.heads import InnerHead, Lookup


class Reading:
    """What an algorithm asks for, here by the heads' fast evaluation; u is given as a head's arguments, one or several
    tensors of one shape."""

    def __init__(self) -> None:
        self._looked: dict[InnerHead, tuple[Tensor, Tensor]] = {}

    def match(self, X: Tensor, W: Tensor) -> Any:
        """The inner products of rows, X (..., n, d) and W (..., m, d) to (..., n, m)."""
        return X @ W.mT

    def value(self, head: InnerHead, *at: Any) -> Tensor:
        """phi(u)."""
        found: Tensor = head(*at)
        return found

    def look_up(self, head: Lookup, *at: Any) -> Tensor:
        """The blend of a head's constant vectors, (..., c)."""
        found: Tensor = head(*at)
        return found

    def carry(self, head: InnerHead, at: tuple[Any, ...], v: Tensor) -> Tensor:
        """phi(u)·v, where v (..., c) is a vector for every u (...)."""
        return self.value(head, *at).unsqueeze(-1) * v

    def gather(self, head: InnerHead, at: tuple[Any, ...], v: Tensor) -> Tensor:
        """The sum over i of phi(u_i)·v_i: u (..., n) and v (..., n, c) to (..., c)."""
        return (self.value(head, *at).unsqueeze(-2) @ v).squeeze(-2)

    def product(self, head: InnerHead, left: Tensor, right: Tensor) -> Tensor:
        """phi(left) @ right; what a head says of a matrix is kept for the next product with that matrix."""
        kept = self._looked.get(head)
        if kept is None or kept[0] is not left:
            kept = self._looked[head] = left, self.value(head, left)
        return kept[1] @ right

    def blend(
        self, rows: Tensor, columns: Tensor, values: Tensor, mask: Tensor | None = None, sink: float | None = None
    ) -> Tensor:
        """Softmax over examples of rows (..., m, k) · columns (..., n, k), times values (..., n, c): (..., m, c).

        sink: see the top; the last entry of every row is 1.
        """
        if sink is None:
            some = max(1, CHUNK_ENTRIES // max(1, columns.shape[-2]))
            parts = [_scores(part, columns, mask).softmax(-1) @ values for part in rows.split(some, -2)]
            return torch.cat(parts, -2)
        if self._seen is None or self._seen[0] is not rows or self._seen[1] is not columns:
            count = columns.shape[-2] if mask is None else mask.sum(-1)[..., None, None]
            self._seen = rows, columns, _scores(rows, columns, mask).exp(), count
        return (self._seen[2] @ values) / self._seen[3]

    _seen: tuple[Tensor, Tensor, Tensor, Any] | None = None
    """The last kernel, with what it was made of: steps of one run share it."""


def with_sinks(columns: Tensor, values: Tensor, sink: float) -> tuple[Tensor, Tensor]:
    """Keys (..., n, k) and values (..., n, c) with a sink for every example behind them."""
    twin = torch.zeros_like(columns)
    twin = torch.cat([twin[..., :-1], twin[..., -1:] + sink], -1)
    return torch.cat([columns, twin], -2), torch.cat([values, torch.zeros_like(values)], -2)


def _scores(rows: Tensor, columns: Tensor, mask: Tensor | None) -> Tensor:
    scores = rows @ columns.mT
    return scores if mask is None else scores.masked_fill(~mask.unsqueeze(-2), -math.inf)


class Exact(Reading):
    """No head at all."""

    def value(self, head: InnerHead, *at: Any) -> Tensor:
        return head.exact(*at)


class Literal(Reading):
    """Scores, softmax, values as written: every call is one attention, and what is summed is summed afterwards.

    weights: the attention weights of every call, (..., keys).
    """

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []

    def value(self, head: InnerHead, *at: Any) -> Tensor:
        return self.attend(head, at, None).squeeze(-1)

    def look_up(self, head: Lookup, *at: Any) -> Tensor:
        return self.attend(head, at, None)

    def carry(self, head: InnerHead, at: tuple[Any, ...], v: Tensor) -> Tensor:
        return self.attend(head, at, v)

    def gather(self, head: InnerHead, at: tuple[Any, ...], v: Tensor) -> Tensor:
        return self.attend(head, at, v).sum(-2)

    def product(self, head: InnerHead, left: Tensor, right: Tensor) -> Tensor:
        return self.attend(head, (left,), right.unsqueeze(-3)).sum(-2)

    def blend(
        self, rows: Tensor, columns: Tensor, values: Tensor, mask: Tensor | None = None, sink: float | None = None
    ) -> Tensor:
        if sink is not None:
            columns, values = with_sinks(columns, values, sink)
            mask = None if mask is None else torch.cat([mask, mask], -1)
        found = self.give(self.weigh(_scores(rows, columns, mask)) @ values)
        return found * (1.0 if sink is None else math.exp(sink))

    def attend(self, head: InnerHead | Lookup, at: tuple[Any, ...], v: Tensor | None) -> Tensor:
        """Weights times values: (..., c), or (..., 1) of the head's own values where it carries nothing."""
        keys, scores = head.read_keys(), head.arguments(*at)
        total = keys.levels
        for u, slopes in zip(scores, keys.slopes, strict=True):
            total = u.unsqueeze(-1) * slopes + total
        return self.give((self.weigh(total).unsqueeze(-2) @ keys.values(scores[0], v)).squeeze(-2))

    def weigh(self, scores: Tensor) -> Tensor:
        """The weights of scores, over the last dimension."""
        self.weights.append(scores.softmax(-1))
        return self.weights[-1]

    def give(self, found: Tensor) -> Tensor:
        """What a call gives, which is weights times values."""
        return found
