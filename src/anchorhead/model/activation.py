"""What stands in the place of an activation or a gate: proved heads by role, elementwise on tensors of any shape.

Heads are evaluated in their own dtype, float32 or float64, and the result is rounded to that of the model, as torch
does in bfloat16 and float16. Large inputs go through the same evaluation fused into one kernel (`fused.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from anchorhead.head.module import HeadModule, LiteralHead
from anchorhead.model.fused import evaluate
from anchorhead.model.outside import WHOLE, Watched
from anchorhead.proof.composed import Bound, composed
from anchorhead.proof.head_claim import HeadClaim

if TYPE_CHECKING:
    from anchorhead.model.compiled import CompiledModel

ADVICE = "Convert again with inputs like these"


class Placed(Watched):
    """Heads by their role, what they compute together as a formula, and the bound that they keep.

    compiled: the models whose heads these are, for their claims and their files. `kind` says how the claims compose
    (`proof/composed.py`). in_place: the first argument is overwritten, as by nn.ReLU(inplace=True). `outside` says what
    an argument does that leaves an interval of the heads, if they have one (`watch`).
    """

    kind: ClassVar[str]
    in_place = False
    compiled: dict[str, CompiledModel]
    _like: Tensor

    def __init__(self, formula: str, compiled: Mapping[str, CompiledModel], dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.formula = formula
        self.heads = nn.ModuleDict({role: model.head for role, model in compiled.items()})
        vars(self)["compiled"] = dict(compiled)  # without becoming their owner
        like = torch.empty(0, dtype=self.head.dtype if dtype is None else dtype)
        self.register_buffer("_like", like, persistent=False)
        self.watch([WHOLE], f"the heads for {formula}", ADVICE)

    @property
    def head(self) -> HeadModule:
        """The head of the activation itself: the first."""
        found: Any = next(iter(self.heads.values()))
        return found

    @property
    def keys(self) -> int:
        """Of all heads together."""
        heads: Any = self.heads.values()
        return sum(head.keys for head in heads)

    @property
    def dtype(self) -> str:
        """The dtype of the model around it as it is now, to which results are rounded."""
        return str(self._like.dtype).removeprefix("torch.")

    @property
    def proved(self) -> bool:
        """Whether the numbers of all heads are those that were proved."""
        return all(model.certificate.level == "proved" for model in self.compiled.values())

    @property
    def claims(self) -> dict[str, HeadClaim]:
        """What was proved of each head."""
        return {role: model.claim for role, model in self.compiled.items()}

    @property
    def bound(self) -> Bound:
        """What is proved of the heads together, as they are now; infinite where their numbers were changed."""
        found = composed(self.kind, self.claims, self.dtype)
        return found if self.proved else replace(found, error=math.inf, rounding=math.inf, relative=math.inf)

    def value(self, u: Tensor) -> Tensor:
        """The first head at every element, in its own dtype, and back in that of u."""
        return evaluate(self.head, u.to(self.head.dtype)).to(u.dtype)

    def extra_repr(self) -> str:
        return f"{self.formula}, {self.keys} keys"


class ActivationHead(Placed):
    """phi(x) for every element: softmax over fixed keys, values affine in x. `formula` says what phi is."""

    kind = "activation"

    def forward(self, x: Tensor) -> Tensor:
        if not self.in_place:
            return self.value(x)
        return x.copy_(self.value(x.clone() if x.requires_grad else x))  # gradients need x as it was

    def literal(self) -> LiteralHead:
        """The same numbers as scores, softmax and values."""
        return self.head.literal()


class GateHead(Placed):
    """phi(u)·v for every element: phi's head with two channels of values, and a product (`proof/composed.py`)."""

    kind = "gate"

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return self.value(u) * v

    def literal(self) -> LiteralGate:
        """The same numbers as scores, softmax and values, of u and v."""
        heads: Any = self.heads.values()
        return LiteralGate(*(head.literal() for head in heads))


class LiteralGate(nn.Module):
    """Two heads one after the other: sum W_k constant_k v and sum W_k gain_k v, then the second carried by u's product.

    Without a product values are constants times v.
    """

    def __init__(self, activation: LiteralHead, product: LiteralHead | None = None) -> None:
        super().__init__()
        self.activation, self.product = activation, product

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        if self.product is None:
            return self.activation(u, v)
        weights, partner = self.activation.weights(u).unsqueeze(-2), v.unsqueeze(-1)
        channels = [partner * self.activation.constants, partner * self.activation.gains]
        constant, gain = ((weights @ values.unsqueeze(-1)).squeeze(-1).squeeze(-1) for values in channels)
        return constant + self.product(u, gain)
