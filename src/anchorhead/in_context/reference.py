"""The algorithms themselves in plain float64, for comparison: no heads, no attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anchorhead.expression.tensors import evaluate

if TYPE_CHECKING:
    from anchorhead.in_context.gradient_descent import Algorithm, Prompt
    from anchorhead.in_context.losses import Loss


def slope(loss: Loss, s: Tensor, y: Tensor) -> Tensor:
    """dl/ds."""
    found = evaluate(loss.expression, {"s": s, "y": y})
    value: Tensor = found[0] if isinstance(found, list | tuple) else found
    return value.expand_as(s)


def plain_iterates(algorithm: Algorithm, prompt: Prompt) -> Tensor:
    """w_0, ..., w_T, (..., steps + 1, d)."""
    X, y, weights = prompt.X.double(), prompt.y.double(), prompt.weights.double()
    weights = weights / weights.sum(-1, keepdim=True)
    l2 = torch.tensor(algorithm.l2, dtype=torch.float64)
    shrink = algorithm.rate * torch.tensor(algorithm.l1, dtype=torch.float64)
    before = w = prompt.start.double()
    kept = [w]
    for _ in range(algorithm.steps):
        s = (X @ w.unsqueeze(-1)).squeeze(-1)
        gradient = ((slope(algorithm.loss, s, y) * weights).unsqueeze(-2) @ X).squeeze(-2) + l2 * w
        v = w - algorithm.rate * gradient + algorithm.momentum * (w - before)
        before, w = w, v - torch.maximum(torch.minimum(v, shrink), -shrink)
        kept.append(w)
    return torch.stack(kept, dim=-2)
