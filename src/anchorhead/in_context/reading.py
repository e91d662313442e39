"""How an algorithm's heads are read. The algorithm is written once (`network.py`), as affine maps and calls of heads.

A call is phi(u)·v, for many u at a time: keys look at u, values carry v. *Exact*: phi itself, then a product. *Fast*:
the head's fast evaluation, then a product, by matrices where products are summed. *Literal*: scores, softmax over keys,
weights times values constant_k·v. `matrices.py` has a fourth, which writes every call as W_Q, W_K, W_V.

u may be an inner product of two things that the prompt holds, `match`: then it is a score itself, and costs no layer.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anchorhead.in_context.heads import InnerHead


class Reading:
    """What an algorithm asks for, here by the heads' fast evaluation; u is given as a head's arguments, one or several
    tensors of one shape."""

    def match(self, X: Tensor, W: Tensor) -> Any:
        """The inner products of rows, X (..., n, d) and W (..., m, d) to (..., n, m)."""
        return X @ W.mT

    def value(self, head: InnerHead, *at: Any) -> Tensor:
        """phi(u)."""
        found: Tensor = head(*at)
        return found

    def carry(self, head: InnerHead, at: tuple[Any, ...], v: Tensor) -> Tensor:
        """phi(u)·v, where v (..., c) is a vector for every u (...)."""
        return self.value(head, *at).unsqueeze(-1) * v

    def gather(self, head: InnerHead, at: tuple[Any, ...], v: Tensor) -> Tensor:
        """The sum over i of phi(u_i)·v_i: u (..., n) and v (..., n, c) to (..., c)."""
        return (self.value(head, *at).unsqueeze(-2) @ v).squeeze(-2)

    def product(self, head: InnerHead, left: Tensor, right: Tensor) -> Tensor:
        """phi(left) @ right."""
        return self.value(head, left) @ right


class Exact(Reading):
    """No head at all."""

    def value(self, head: InnerHead, *at: Any) -> Tensor:
        return head.exact(*at)


class Literal(Reading):
    """Scores, softmax, values as written: every call is one attention, and what is summed is summed afterwards.

    weights: the attention weights of every call, (..., keys).
    """

    def __init__(self) -> None:
        self.weights: list[Tensor] = []

    def value(self, head: InnerHead, *at: Any) -> Tensor:
        return self.attend(head, at, None).squeeze(-1)

    def carry(self, head: InnerHead, at: tuple[Any, ...], v: Tensor) -> Tensor:
        return self.attend(head, at, v)

    def gather(self, head: InnerHead, at: tuple[Any, ...], v: Tensor) -> Tensor:
        return self.attend(head, at, v).sum(-2)

    def product(self, head: InnerHead, left: Tensor, right: Tensor) -> Tensor:
        return self.attend(head, (left,), right.unsqueeze(-3)).sum(-2)

    def attend(self, head: InnerHead, at: tuple[Any, ...], v: Tensor | None) -> Tensor:
        """Weights times values: (..., c), or (..., 1) of the head's own values where it carries nothing."""
        keys, scores = head.read_keys(), head.arguments(*at)
        total = keys.levels
        for u, slopes in zip(scores, keys.slopes, strict=True):
            total = u.unsqueeze(-1) * slopes + total
        weights = total.softmax(-1)
        self.weights.append(weights)
        return (weights.unsqueeze(-2) @ keys.values(scores[0], v)).squeeze(-2)
