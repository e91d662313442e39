"""Steps of one kind that a layer evaluates together: the torch side of what `circuit/step.py` says of a kind.

A group reads its rows, affine in the state (`circuit/layout.py` says in which order), and gives its steps' results. It
is softmax attention, a head for each step (or for each of a step's outputs), and knows its literal form, its weights,
its rows in self-attention, the numbers to store, and how the exact step is computed for comparison.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from anchorhead.circuit.step import Use, Values
from anchorhead.head.module import HeadModule


@dataclass
class HeadRows:
    """One head on a sequence: its query (numbers affine in the state), keys by k or from rows, and its value rows.

    query: (size, S + 1), affine in (state, 1). keys: (K, size) or (K, size, S + 1). values: (K, S + 1).
    """

    query: Tensor
    constant_keys: Tensor | None
    key_rows: Tensor | None
    values: Tensor


class Group(nn.Module):
    """`count` steps with `keys` keys and `width` outputs each."""

    count: int
    keys: int
    width: int = 1
    head: HeadModule | None

    @classmethod
    @abstractmethod
    def of(cls, steps: Sequence[Any], use: Use, values: Sequence[Values], heads: Sequence[HeadModule],
           dtype: torch.dtype) -> Self:  # fmt: skip
        """The group of these steps, which have the kind of use and its head in common."""

    @staticmethod
    @abstractmethod
    def exact(step: Any, rows: Tensor) -> Tensor:
        """The step itself on its lines (..., lines): (..., width)."""

    @abstractmethod
    def weights(self, rows: Tensor) -> Tensor:
        """Attention weights, (..., count, keys)."""

    @abstractmethod
    def on_sequences(self, rows: Tensor) -> list[HeadRows]:
        """Its heads on a sequence; rows are affine in (state, 1)."""

    def literal(self) -> Group:
        """A copy as scores, softmax and values."""
        return copy.deepcopy(self)

    def numbers(self) -> Tensor | None:
        """α, β, γ of every step, (3, count); None where every step takes its head as it is."""
        return None

    @property
    def beta(self) -> float:
        """How sharply it selects."""
        return 1.0

    @property
    def largest_value(self) -> float:
        """The largest |constant| or |gain| of a key, literally; zero where its values are numbers that it reads."""
        return 0.0

    def looked_at(self, rows: Tensor) -> Tensor:
        """What each head looks at, as one number: (..., count·width)."""
        return rows.new_zeros(*rows.shape[:-1], self.count * self.width)

    def at_seams(self, u: Tensor, beta: float) -> Tensor:
        """Where what its heads look at is where two of its values meet, the scores multiplied by beta."""
        return torch.zeros_like(u, dtype=torch.bool)

    def logit_range(self, u: Tensor) -> float:
        """The largest absolute score where that is what its heads look at; not a number where it does not say."""
        return float("nan")
