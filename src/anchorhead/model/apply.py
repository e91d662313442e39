"""phi(u) and phi(u)·v as attention: the steps of a layer that share a head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from anchorhead.circuit.apply import FunctionStep
from anchorhead.circuit.step import PLAIN, Use, Values
from anchorhead.errors import StructureError
from anchorhead.expression.tensors import evaluate
from anchorhead.head.module import CARRYING, HeadModule, HeadParameters, LiteralHead
from anchorhead.head.parameters import constant
from anchorhead.model.fused import evaluate as fused_value
from anchorhead.model.group import Group, HeadRows


class Heads(Group):
    """Steps of one head, α h(t) + β t + γ, times a partner each or not: `count` queries t, then the partners.

    That is a head with values α·value_k + β t + γ over the same keys; values holds (α, β, γ) as (3, count), or nothing
    where every step takes its head as it is. *Fast*: the head as `head/evaluation.py` evaluates it; where it carries a
    partner, times the partner, which is the same since all values have that factor.
    """

    head: Any
    """A `HeadModule`, or in a literal copy a `LiteralHead`."""

    def __init__(self, head: HeadParameters, count: int, values: Tensor | None, *, partners: bool) -> None:
        super().__init__()
        self.head, self.count, self.partners, self.keys = head, count, partners, head.keys
        self.values = None if values is None else constant(values)

    @classmethod
    def of(cls, steps: Sequence[FunctionStep], use: Use, values: Sequence[Values], heads: Sequence[HeadModule],
           dtype: torch.dtype) -> Self:  # fmt: skip
        kept = None if all(v == PLAIN for v in values) else torch.tensor(values, dtype=dtype).T
        return cls(heads[use.head], len(steps), kept, partners=len(steps[0].parts()) > 1)

    @staticmethod
    def exact(step: FunctionStep, rows: Tensor) -> Tensor:
        value: Tensor = evaluate(step.function, {"u": rows[..., 0]})
        return rows[..., 1:].prod(-1, keepdim=True) * value.unsqueeze(-1)

    def forward(self, rows: Tensor) -> Tensor:
        queries, partners = rows[..., : self.count], rows[..., self.count :] if self.partners else None
        if isinstance(self.head, LiteralHead):
            return self.head(queries, partners)
        found = fused_value(self.head, queries)
        if self.values is not None:
            scale, tilt, shift = self.values
            found = found * scale + (queries * tilt + shift)
        return found if partners is None else found * partners

    def warm(self) -> None:
        """Makes the head's kernel."""
        if isinstance(self.head, HeadModule):
            fused_value(self.head, torch.zeros(64, dtype=self.head.dtype, device=self.head.slopes.device))

    def weights(self, rows: Tensor) -> Tensor:
        return self.head.weights(rows[..., : self.count])

    def literal(self) -> Heads:
        """Scores, softmax over keys, values: those of a literal head, of its own for each step where they differ."""
        head = self.head.literal()
        if self.values is not None:
            head.constants, head.gains = map(constant, self._key_values())
        if self.partners and bool(head.gains.any()):
            raise StructureError(CARRYING)
        return Heads(head, self.count, None, partners=self.partners)

    def _key_values(self) -> tuple[Tensor, Tensor]:
        """Constants and gains of the keys, (keys,) of all steps alike, or (count, keys)."""
        constants, gains = self.head.constants, self.head.gains
        if self.values is None:
            return constants, gains
        scale, tilt, shift = (v[:, None] for v in self.values)
        return scale * constants + shift, scale * gains + tilt

    @property
    def largest_value(self) -> float:
        return max(values.detach().abs().max().item() for values in self._key_values())

    def on_sequences(self, rows: Tensor) -> list[HeadRows]:
        """The query is (u, 1, u, 1), against slope, intercept, gate slope and gate level of every key."""
        literal, numbers = self.literal().head, self.head.numbers
        scores = torch.tensor(list(zip(numbers.slopes, numbers.intercepts, *zip(*numbers.gates, strict=True),
                                       strict=True)), dtype=rows.dtype)  # fmt: skip
        one = torch.zeros_like(rows[0])
        one[-1] = 1
        found = []
        for i in range(self.count):
            constants, gains = (v.detach().expand(self.count, -1)[i] for v in (literal.constants, literal.gains))
            values = constants[:, None] * (rows[self.count + i] if self.partners else one)
            if not self.partners:
                values = values + gains[:, None] * rows[i]
            found.append(HeadRows(torch.stack([rows[i], one, rows[i], one]), scores, None, values))
        return found

    def numbers(self) -> Tensor | None:
        return self.values

    @property
    def beta(self) -> float:
        return self.head.numbers.beta

    def looked_at(self, rows: Tensor) -> Tensor:
        return rows[..., : self.count]

    def logit_range(self, u: Tensor) -> float:
        return self.head.numbers.logit_range(float(u.min()), float(u.max()))
