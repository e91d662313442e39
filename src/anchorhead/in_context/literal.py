"""In-context gradient descent with every softmax written out, for the walker and for looking at attention.

Scores are on_s·(w·x_i) + on_y·y_i + level, an inner product of (x_i, y_i, 1) with (on_s w, on_y, level); values are
constant_k·(p x_i + q y_i x_i). The mean over examples is attention with equal scores.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from anchorhead.errors import InputError
from anchorhead.in_context.bounds import mean_weights
from anchorhead.in_context.terms import Keys

if TYPE_CHECKING:
    from anchorhead.in_context.gradient_descent import GradientDescent


def attention(keys: Keys, s: Tensor | None, y: Tensor) -> Tensor:
    """Weights (..., n, keys) of every example over a head's keys."""
    scores = y.unsqueeze(-1) * keys.on_y + keys.level
    return (scores if s is None else s.unsqueeze(-1) * keys.on_s + scores).softmax(-1)


def carried(weights: Tensor, keys: Keys, features: Tensor) -> Tensor:
    """The head's output, (..., n, d): weights times values constant_k · features."""
    values = features.unsqueeze(-2) * keys.value.unsqueeze(-1)
    return (weights.unsqueeze(-2) @ values).squeeze(-2)


class LiteralDescent(nn.Module):
    """The network of a `GradientDescent`, evaluated as it reads, in float64 throughout."""

    def __init__(self, model: GradientDescent) -> None:
        super().__init__()
        self.algorithm, self.gradient = model.algorithm, copy.deepcopy(model.gradient)
        self.labels = copy.deepcopy(model.labels)
        self.shrink = copy.deepcopy(model.shrink)
        self.clip = None if model.shrink is None else model.shrink.head.literal()

    def forward(self, X: Tensor, y: Tensor, w0: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """w_T, in float64."""
        return self.run(X, y, w0, mask)[0]

    def attention(self, X: Tensor, y: Tensor, w0: Tensor | None = None, mask: Tensor | None = None) -> list[Tensor]:
        """The attention weights of every step's heads, (..., n, keys) each, in order."""
        return self.run(X, y, w0, mask)[1]

    def run(self, X: Tensor, y: Tensor, w0: Tensor | None, mask: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        if not (isinstance(X, Tensor) and isinstance(y, Tensor)):
            raise InputError("X and y must be torch tensors; use torch.as_tensor.")
        X, y, algorithm = X.double(), y.double(), self.algorithm
        mean = mean_weights(X, mask).unsqueeze(-2)
        products = None
        if self.labels is not None:
            products = carried(attention(self.labels.keys, None, y), self.labels.keys, X)
        before = w = X.new_zeros((*X.shape[:-2], X.shape[-1])) if w0 is None else w0.double()
        l2, seen = torch.tensor(algorithm.l2, dtype=torch.float64), []
        for _ in range(algorithm.steps):
            s = (X @ w.unsqueeze(-1)).squeeze(-1)
            outputs = self.gradient.constant * X
            if products is not None:
                outputs = outputs + self.gradient.on_label * products
            for term in self.gradient.terms:
                seen.append(attention(term.keys, s, y))
                value = term.carry[0] * X
                if products is not None and term.carry[1]:
                    value = value + term.carry[1] * products
                outputs = outputs + carried(seen[-1], term.keys, value)
            step = (mean @ outputs).squeeze(-2) + l2 * w
            before, w = w, w - algorithm.rate * step + algorithm.momentum * (w - before)
            if self.shrink is not None and self.clip is not None:
                w = self.shrink.by(self.clip, w)
        return w, seen
