"""A sequence-to-sequence map as formulas: one for each entry of the output, in the entries of the input.

Both are counted row by row: x1, ..., xd are the first token's features, x(d+1) is the first of the second token, and
the formulas are those of the first token's output features, then of the second's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from anchorhead.enclosure.singularities import singularities_in_box
from anchorhead.errors import InputError
from anchorhead.expression.parse import parse
from anchorhead.expression.tensors import evaluate

Target = Callable[[Tensor], Tensor]


class Formulas:
    """(..., n, d) to (..., n, d_out), by n·d_out formulas of x1, ..., x(nd)."""

    def __init__(self, texts: Sequence[str], tokens: int, features: int) -> None:
        self.expression = parse(texts, [f"x{i + 1}" for i in range(tokens * features)])
        self.texts, self.tokens = tuple(texts), tokens
        if len(self.texts) % tokens:
            raise InputError(
                f"{len(self.texts)} formulas are not the outputs of {tokens} tokens: give one for each entry of the "
                f"output, {tokens} or a multiple of that, row by row."
            )

    def require_defined(self, low: float, high: float) -> None:
        """Refuses formulas that are not finite, and so continuous, on the whole box."""
        for output in self.expression.outputs:
            singularities_in_box(output, dict.fromkeys(self.expression.variables, (low, high)))

    def __call__(self, x: Tensor) -> Tensor:
        found = evaluate(self.expression, dict(zip(self.expression.variables, x.flatten(-2).unbind(-1), strict=True)))
        parts = found if isinstance(found, list) else [found]
        return torch.stack(parts, -1).unflatten(-1, (self.tokens, -1))


def read_target(f: Any, tokens: int, features: int) -> Target:
    """f as a function of batches: itself, or what its formulas say."""
    if isinstance(f, str):
        return Formulas([f], tokens, features)
    if isinstance(f, Sequence) and f and all(isinstance(text, str) for text in f):
        return Formulas(f, tokens, features)
    if not callable(f):
        raise InputError(
            f"f must be a callable from (..., tokens, features) to (..., tokens, d_out), or formulas, not {f!r:.60}."
        )
    found: Target = f
    return found
