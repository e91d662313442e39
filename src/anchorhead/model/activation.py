"""What stands in the place of an activation or a gate: proved heads by role, elementwise on tensors of any shape.

Heads are evaluated in their own dtype, float32 or float64, and the result is rounded to that of the model, as torch
does in bfloat16 and float16. Large inputs go through the same evaluation fused into one kernel (`fused.py`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from anchorhead.errors import DtypeError
from anchorhead.head.module import HeadModule, LiteralHead
from anchorhead.model.fused import Kernel, evaluate, fused, worth_fusing
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
        found = composed(self.kind, self.claims, self.dtype, self.formula)
        return found if self.proved else replace(found, error=math.inf, rounding=math.inf, relative=math.inf)

    def value(self, u: Tensor) -> Tensor:
        """The first head at every element, in its own dtype, and back in that of u."""
        if u.is_complex():
            said = str(u.dtype).removeprefix("torch.")
            raise DtypeError(
                f"The head for {self.formula} is one of real numbers, and its argument is {said}. Convert those "
                "modules that compute with real numbers, and put them into the model."
            )
        own = self.head.dtype
        return evaluate(self.head, u) if u.dtype == own else self.fused(_cast, u)

    def written(self, x: Tensor) -> Tensor:
        """The value at x, in the place of x if it belongs there."""
        if not self.in_place:
            return self.value(x)
        return x.copy_(self.value(x.clone() if x.requires_grad else x))  # gradients need x as it was

    def fused(self, made: Callable[[Any, torch.dtype], Kernel], *args: Tensor) -> Tensor:
        """What `made` makes of the first head, elementwise: one kernel where that pays, else in plain torch."""
        head = self.head
        evaluation = head.evaluation() if worth_fusing(args[0]) and all(t.is_contiguous() for t in args) else None
        if evaluation is None or head.edited:
            return made(head, head.dtype)(*args)
        flat = [t.reshape(-1) for t in args]
        run = fused(_kernel(made, evaluation, head.dtype), lambda: (made, head.numbers), *flat)
        return made(head, head.dtype)(*args) if run is None else run(*flat).reshape(args[0].shape)

    def carried(self, out: Tensor) -> Tensor:
        """What a relative error is a share of, or more, where this is the result."""
        return out.abs()

    def arguments(self, u: Tensor, v: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """u and v, of what the forward takes; a partner may be a number, or a mask."""
        return u, torch.as_tensor(1.0 if v is None else v, dtype=u.dtype, device=u.device)

    def seen_in(self, dtype: torch.dtype) -> None:
        """The model computes in this dtype here, whatever that of its parameters is."""
        self._like = self._like.to(dtype)
        self._widen()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Placed:
        """Heads keep their numbers; in a model that becomes float64 they are evaluated in that."""
        super()._apply(fn, recurse)
        self._widen()
        return self

    def _widen(self) -> None:
        if self._like.dtype == torch.float64 and self.head.dtype != torch.float64:
            for model in self.compiled.values():
                model.widen()

    def warm(self) -> None:
        """Makes its kernel."""
        self(*self.few())

    def few(self) -> tuple[Tensor, ...]:
        """A few numbers that it takes, in the model's dtype."""
        return (torch.zeros(64, dtype=self._like.dtype, device=self._like.device),)

    def extra_repr(self) -> str:
        return f"{self.formula}, {self.keys} keys"


class ActivationHead(Placed):
    """phi(x) for every element: softmax over fixed keys, values affine in x. `formula` says what phi is."""

    kind = "activation"

    def forward(self, x: Tensor) -> Tensor:
        return self.written(x)

    def literal(self) -> LiteralHead:
        """The same numbers as scores, softmax and values."""
        return self.head.literal()


class GateHead(Placed):
    """phi(u)·v for every element: phi's head with two channels of values, and a product (`proof/composed.py`).

    carries: the dimension along which one argument holds both, v and then u, as for nn.GLU.
    """

    kind = "gate"

    carries: int | None = None

    def forward(self, u: Tensor, v: Tensor | None = None) -> Tensor:
        if v is not None and not (isinstance(v, Tensor) and v.is_floating_point()):
            return self.value(u) * v
        rounded_once, (u, v) = v is None, self.arguments(u, v)
        if rounded_once or (u.dtype == v.dtype == self.head.dtype and u.shape == v.shape):
            return self.fused(_gate, u, v)
        return self.value(u) * v  # in a shorter dtype torch rounds both, too

    def arguments(self, u: Tensor, v: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return _halves(u, self.carries) if v is None and self.carries is not None else super().arguments(u, v)

    def few(self) -> tuple[Tensor, ...]:
        return super().few() * 2

    def literal(self) -> LiteralGate:
        """The same numbers as scores, softmax and values, of u and v."""
        heads: Any = self.heads.values()
        return LiteralGate(self.carries, *(head.literal() for head in heads))


class SquareHead(Placed):
    """phi(u)², which is phi(u)·u where phi is a ramp: a gate whose partner is u itself."""

    kind = "square"

    def forward(self, x: Tensor) -> Tensor:
        return self.written(x)

    def value(self, u: Tensor) -> Tensor:
        return self.fused(_gate, u, u) if u.dtype == self.head.dtype else super().value(u) * u

    def arguments(self, u: Tensor, v: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return u, u

    def literal(self) -> LiteralGate:
        """The same numbers as scores, softmax and values, of u alone."""
        heads: Any = self.heads.values()
        return LiteralGate(None, *(head.literal() for head in heads))


class LiteralGate(nn.Module):
    """Two heads one after the other: sum W_k constant_k v and sum W_k gain_k v, then the second carried by u's product.

    Without a product values are constants times v.
    """

    def __init__(self, carries: int | None, activation: LiteralHead, product: LiteralHead | None = None) -> None:
        super().__init__()
        self.carries, self.activation, self.product = carries, activation, product

    def forward(self, u: Tensor, v: Tensor | None = None) -> Tensor:
        if v is None:
            u, v = _halves(u, self.carries) if self.carries is not None else (u, u)
        if self.product is None:
            return self.activation(u, v)
        weights, partner = self.activation.weights(u).unsqueeze(-2), v.unsqueeze(-1)
        channels = [partner * self.activation.constants, partner * self.activation.gains]
        constant, gain = ((weights @ values.unsqueeze(-1)).squeeze(-1).squeeze(-1) for values in channels)
        return constant + self.product(u, gain)


def _halves(x: Tensor, dim: int | None) -> tuple[Tensor, Tensor]:
    """u and v, the second half and the first."""
    v, u = x.chunk(2, -1 if dim is None else dim)
    return u, v


def _cast(head: Kernel, own: torch.dtype) -> Kernel:
    """In another dtype, and back: rounded once."""
    return lambda x: head(x.to(own)).to(x.dtype)


def _gate(head: Kernel, own: torch.dtype) -> Kernel:
    """Times a partner, and rounded once."""
    return lambda u, v: (head(u.to(own)) * v.to(own)).to(u.dtype)


@functools.lru_cache(maxsize=256)
def _kernel(made: Callable[[Any, torch.dtype], Kernel], evaluation: Kernel, own: torch.dtype) -> Kernel:
    """One object for one evaluation, by which its kernel is found."""
    return made(evaluation, own)
