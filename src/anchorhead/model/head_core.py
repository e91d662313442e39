"""One head, for a function of one variable: applied to every element of a tensor of any shape, (..., 1) among them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorhead.expression.tensors import evaluate
from anchorhead.head.module import HeadModule, LiteralHead
from anchorhead.model.core import Core
from anchorhead.model.mechanism import Mechanism, single_head
from anchorhead.model.network import Resources
from anchorhead.model.self_attention import SelfAttention, head_on_sequences
from anchorhead.proof.certificate import Certificate
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.proof.network_claim import literal_claim

UNBOUNDED = 100.0
"""On an unbounded side scores are told for |x| up to this."""


class HeadCore(Core):
    """A head, and the claim that it was made of."""

    kind = "head"
    input_shape = output_shape = ()

    def __init__(self, claim: HeadClaim) -> None:
        super().__init__()
        self.head, self.claim = HeadModule(claim.head), claim

    @property
    def dtype(self) -> torch.dtype:
        return self.head.dtype

    @property
    def variable(self) -> str:
        """The name of the function's variable."""
        return self.claim.variable

    def widen(self) -> None:
        """The same numbers in float64: what is claimed of them in float32 holds there; evaluating rounds less."""
        self.head.widen()
        self.claim = replace(self.claim, head=self.head.numbers)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)

    def exact(self, x: Tensor) -> Tensor:
        return evaluate(self.claim.function, {self.variable: x})

    def literal(self) -> LiteralHead:
        return self.head.literal()

    def literal_certificate(self, certificate: Certificate) -> Certificate:
        if certificate.evaluation != "fast" or certificate.level != "proved":
            return certificate
        claim = literal_claim(self.claim)
        if not math.isfinite(claim.rounding):
            return replace(certificate.unproved(), evaluation="literal")
        return replace(certificate, approximation=claim.approximation, rounding=claim.rounding, relative=False,
                       evaluation="literal")  # fmt: skip

    @property
    def joined(self) -> bool:
        return self.claim.head.joined

    def attention(self, x: Tensor) -> list[Tensor]:
        """(*x.shape, 1, keys)."""
        self.check(x)
        return [self.head.weights(x).unsqueeze(-2)]

    def on_sequences(self, tokens: int) -> SelfAttention:
        return head_on_sequences(self.head, tokens)

    def mechanism(self, certificate: Certificate) -> Mechanism:
        return single_head(self.claim.function, self.variable, self.head.keys, certificate)

    def resources(self, certificate: Certificate) -> Resources:
        low, high = max(-UNBOUNDED, self.claim.low), min(UNBOUNDED, self.claim.high)
        head = self.head.numbers
        return Resources(1, 1, head.keys, self.parameter_count(), head.beta, head.logit_range(low, high))

    @property
    def largest_value(self) -> float:
        return self.head.numbers.largest_value

    def payload(self, certificate: Certificate) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        head = self.head.numbers
        record = {
            "kind": self.kind,
            "expressions": [certificate.expression],
            "variables": [self.variable],
            "uniform": head.horner,
            "sizes": list(head.sizes),
        }
        return record, self.claim.arrays(head)

    def __repr__(self) -> str:
        return f"{self.claim.method}, {self.head.keys} keys"
