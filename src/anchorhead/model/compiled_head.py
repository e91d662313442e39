"""A function of one variable as one head, applied to every element of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from anchorhead.expression.parse import parse
from anchorhead.expression.tensors import evaluate
from anchorhead.head.head import Head
from anchorhead.head.module import HeadModule, LiteralHead
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.resources import Resources
from anchorhead.model.self_attention import SelfAttention, head_as_self_attention
from anchorhead.proof.certificate import Certificate
from anchorhead.proof.head_claim import HeadClaim


class CompiledHead(CompiledModel):
    """One head. Calling it applies the function to every element of a tensor of any shape, (..., 1) among them."""

    def __init__(self, claim: HeadClaim, certificate: Certificate) -> None:
        super().__init__(certificate, claim.method)
        self.head, self.edges = HeadModule(claim.head), claim.edges
        self.seal()

    @property
    def variable(self) -> str:
        """The name of the function's variable."""
        return self._claimed.variables[0]

    def forward(self, x: Tensor) -> Tensor:
        self.look(x)
        return self.head(x)

    def exact(self, x: Tensor) -> Tensor:
        return evaluate(parse(self._claimed.expression, [self.variable]), {self.variable: x})

    def literal(self) -> LiteralHead:
        return self.head.literal()

    def attention(self, x: Tensor) -> list[Tensor]:
        """The attention weights, one entry a layer: (*x.shape, heads, keys), summing to one over keys."""
        self.head.check(x)
        return [self.head.weights(x).unsqueeze(-2)]

    def as_self_attention(self, tokens: int) -> SelfAttention:
        """The same function on sequences (..., tokens, 1), as literal W_Q, W_K, W_V, W_O matrices."""
        return head_as_self_attention(self.head, tokens)

    @property
    def resources(self) -> Resources:
        """What this model costs; the logit range is over the domain, or |x| <= 100 where it is unbounded."""
        (low, high), head = self._claimed.domain[0], self.head.numbers
        return Resources(
            layers=1,
            heads=1,
            keys=head.keys,
            parameters=sum(p.numel() for p in self.head.parameters()),
            beta=head.beta,
            logit_range=head.logit_range(max(-100.0, low), min(100.0, high)),
        )

    @property
    def largest_value(self) -> float:
        return self.head.numbers.largest_value

    def payload(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        head = self.head.numbers
        record = {
            "kind": "head",
            "expressions": [self._claimed.expression],
            "variables": [self.variable],
            "uniform": head.horner,
            "sizes": list(head.sizes),
        }
        return record, head_arrays("", head, self.edges)

    def __repr__(self) -> str:
        return f"CompiledModel({self.method}, {self.head.keys} keys; {self.certificate})"


def head_arrays(prefix: str, head: Head, edges: Sequence[float]) -> dict[str, np.ndarray]:
    """The numbers of one head, by their names in a file."""
    arrays: dict[str, np.ndarray] = {prefix + name: array.astype(head.dtype) for name, array in head.arrays.items()}
    return arrays | {prefix + "edges": np.asarray(edges, dtype=np.float64)}
