"""A head in the place of an activation function: elementwise on a tensor of any shape, as fast as the machine allows.

Large inputs go through the same evaluation fused into one kernel (`fused.py`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from anchorhead.head.module import HeadModule, LiteralHead
from anchorhead.model.fused import evaluate
from anchorhead.model.outside import Watched

if TYPE_CHECKING:
    from anchorhead.model.compiled import CompiledModel

CONVERTED = "Convert again with wider ranges, or calibrate with data like these"


class _Placed(Watched):
    """A head with its formula and the interval on which it is proved; `outside` says what leaving that does."""

    def __init__(self, head: HeadModule, formula: str, low: float = -math.inf, high: float = math.inf) -> None:
        super().__init__()
        self.head, self.formula = head, formula
        self.low, self.high = low, high
        self.watch([(low, high)], f"the head for {formula}", CONVERTED)

    def remember(self, compiled: CompiledModel) -> None:
        """Keeps the model whose head this is, for its certificate and its file, without becoming its owner."""
        vars(self)["compiled"] = compiled

    @property
    def keys(self) -> int:
        return self.head.keys

    def value(self, u: Tensor) -> Tensor:
        """The head at every element, in its own dtype, and back in that of u."""
        self.look(u)
        return evaluate(self.head, u.to(self.head.dtype)).to(u.dtype)

    def extra_repr(self) -> str:
        where = "" if (self.low, self.high) == (-math.inf, math.inf) else f" on [{self.low:g}, {self.high:g}]"
        return f"{self.formula}{where}, {self.keys} keys"


class ActivationHead(_Placed):
    """phi(x) for every element: softmax over fixed keys, values affine in x. `formula` says what phi is.

    in_place: x is overwritten with it, as by nn.ReLU(inplace=True), which may be called for that alone.
    """

    in_place = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.in_place:
            return self.value(x)
        return x.copy_(self.value(x.clone() if x.requires_grad else x))  # gradients need x as it was

    def literal(self) -> LiteralHead:
        """The same numbers as scores, softmax and values."""
        return self.head.literal()


class GateHead(_Placed):
    """phi(u)·v for every element: softmax over fixed keys, whose values are constants times v."""

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return self.value(u) * v

    def literal(self) -> LiteralHead:
        """The same numbers as scores, softmax and values, of u and v."""
        return self.head.literal(carrying=True)
