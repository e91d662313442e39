"""A head for one variable as a module: softmax over a fixed set of keys, applied to every element.

    h(x) = sum over k of  softmax_k(slope_k x + intercept_k) · (constant_k + gain_k x)

*Literal*: scores, softmax over keys, values, as written. *Fast*: as `evaluation.py` says.

*One set of numbers*, the parameters. The fast form is made of them as constants, and every eager call looks whether
they are still the ones that it was made of, so that an edit, an optimiser's step (also through `.data`) or
`load_state_dict` is what runs next; slopes that are no longer evenly spaced are summed key by key. Where a parameter
wants a gradient, or is being transformed by torch.func, the head is evaluated key by key from the parameters
themselves; where only values are trained (`train_values`), as `trained.py` says. Inside torch.compile and torch.export
Python cannot look at numbers: there the constants are those of the last eager call, of the last `load_state_dict`, or
of the construction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anchorhead.errors import StructureError
from anchorhead.head.evaluation import TORCH, Evaluation, evaluation_of, from_parameters, of_two_keys
from anchorhead.head.head import NUMBERS, Head
from anchorhead.head.own_precision import in_own_precision
from anchorhead.head.parameters import check_tensor, constant, followed, unchanged
from anchorhead.head.trained import Trained

CHUNK = 1 << 15
"""Elements at a time when evaluated without a compiler, so that temporaries stay in cache."""


CARRYING = "A head that carries a partner has constant values, and gains were edited into this one: it is no attention."


class HeadParameters(nn.Module):
    """The numbers of a head as parameters, by name; what its two evaluations share."""

    slopes: Tensor
    intercepts: Tensor
    constants: Tensor
    gains: Tensor
    gate_slopes: Tensor
    gate_levels: Tensor
    piece: Tensor

    def __init__(self, head: Head) -> None:
        super().__init__()
        for name in NUMBERS:
            self.register_parameter(name, constant(torch.tensor(getattr(head, name), dtype=TORCH[head.dtype])))
        self.register_buffer("piece", torch.arange(len(head.sizes)).repeat_interleave(torch.tensor(head.sizes)))

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return len(self.slopes)

    @property
    def dtype(self) -> torch.dtype:
        return self.slopes.dtype

    @in_own_precision
    def extra_repr(self) -> str:
        return f"{self.keys} keys, {str(self.dtype).removeprefix('torch.')}"

    def weights(self, x: Tensor) -> Tensor:
        """Attention weights as the formula reads, (..., keys)."""
        return self.scores(x).softmax(-1)

    def scores(self, x: Tensor) -> Tensor:
        """What softmax is taken of, (..., keys)."""
        x = x.unsqueeze(-1)
        gates = x * self.gate_slopes + self.gate_levels
        return x * self.slopes + self.intercepts + gates[..., self.piece]


class _Made(NamedTuple):
    """The fast evaluation and what it was made of: the numbers, and whether after an edit.

    seen: on the CPU each tensor, its place in memory, the memory, and what was there. Looking there takes a
    microsecond or two, which a small call can bear.
    """

    numbers: list[Tensor]
    seen: list[tuple[str, Tensor, int, Any, bytes]]
    head: Head
    evaluate: Evaluation
    edited: bool = False


class HeadModule(HeadParameters):
    """A head, elementwise on a tensor of any shape, evaluated fast."""

    def __init__(self, head: Head) -> None:
        super().__init__(head)
        self._by_horner, self._trains = head.horner, False
        self._made = self._make()

    def _tensors(self) -> list[Tensor]:
        return [getattr(self, name) for name in (*NUMBERS, "piece")]

    @property
    def numbers(self) -> Head:
        """The numbers as they are now, and how they are evaluated."""
        numbers = {name: getattr(self, name).detach().cpu() for name in NUMBERS}
        dtype = str(self.dtype).removeprefix("torch.")
        found = Head.of(**numbers, horner=False, sizes=self.sizes, dtype=dtype)
        return replace(found, horner=self._by_horner and found.evenly_spaced)

    def _make(self) -> _Made:
        """The fast evaluation of the numbers as they are now."""
        head = self.numbers
        return _Made([t.detach().clone() for t in self._tensors()], self._in_memory(), head, evaluation_of(head))

    def _in_memory(self) -> list[tuple[str, Tensor, int, Any, bytes]]:
        found = []
        for name, tensor in zip((*NUMBERS, "piece"), self._tensors(), strict=True):
            if tensor.device.type == "cpu":
                array = tensor.detach().numpy()
                found.append((name, tensor, tensor.data_ptr(), array, array.tobytes()))
        return found

    def evaluation(self) -> Evaluation | None:
        """The fast evaluation of the numbers as they are now, the same object for as long as they are the same.

        None where torch follows what is computed with them, so that they cannot be constants.
        """
        if not torch.compiler.is_compiling() and self._as_seen():
            return self._made.evaluate
        now = self._tensors()
        if followed(now):
            return None
        if not torch.compiler.is_compiling():
            if unchanged(now, self._made.numbers):
                self._made = self._made._replace(seen=self._in_memory())
            else:
                self._made = self._make()._replace(edited=True)
        return self._made.evaluate

    def _as_seen(self) -> bool:
        """Whether every number is the same, in the same tensors, and no gradient is wanted: what is usually so."""
        parameters, buffers, grad = self._parameters, self._buffers, torch.is_grad_enabled()
        for name, seen, place, array, number in self._made.seen:
            tensor = parameters.get(name) if name in parameters else buffers.get(name)
            if tensor is not seen or tensor.data_ptr() != place or array.tobytes() != number:
                return False
            if grad and tensor.requires_grad:
                return False
        return bool(self._made.seen)

    @property
    def edited(self) -> bool:
        """Whether the numbers were changed since they were given or loaded, as of the last evaluation."""
        return self._made.edited

    @property
    def sizes(self) -> tuple[int, ...]:
        """Keys of each piece."""
        if torch.compiler.is_compiling():
            return self._made.head.sizes
        return tuple(self.piece.bincount(minlength=len(self.gate_slopes)).tolist())

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_made"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._made = self._make()

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._made = self._make()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> HeadModule:
        """Moves to another device; the dtype stays, since the numbers are proved in that."""
        super()._apply(lambda t: t.to(fn(t).device), recurse)
        if self.slopes.device.type != "meta":
            self._made = self._make()
        return self

    def widen(self) -> None:
        """The same numbers in float64, and in the same parameters: whoever shares or trains them goes on."""
        super()._apply(lambda t: t.double() if t.is_floating_point() else t)
        self._made = self._make()

    def forward(self, x: Tensor, partner: Tensor | None = None) -> Tensor:
        """The fast evaluation; elementwise throughout, so that no setting for products reaches it.

        Where it carries a partner, times that: all values have the factor.
        """
        return self.value(x) if partner is None else self.value(x) * partner

    def value(self, x: Tensor) -> Tensor:
        """h at every element."""
        self.check(x)
        evaluate = self.evaluation()
        if evaluate is None and self._values_alone():
            slopes, intercepts = (a + b[self.piece] for a, b in ((self.slopes, self.gate_slopes),
                                                                 (self.intercepts, self.gate_levels)))  # fmt: skip
            trained: Any = Trained.apply
            found: Tensor = trained(x.reshape(-1), slopes, intercepts, self.constants, self.gains)
            return found.reshape(x.shape)
        if evaluate is None:
            numbers = {name: getattr(self, name) for name in NUMBERS}
            as_tanh = self._made.head.odd is not None
            return of_two_keys(numbers, x) if as_tanh else from_parameters(numbers, self.piece, self.sizes, x)
        if torch.compiler.is_compiling() or x.numel() <= CHUNK or (x.requires_grad and torch.is_grad_enabled()):
            return evaluate(x)
        return torch.cat([evaluate(part) for part in x.reshape(-1).split(CHUNK)]).reshape(x.shape)

    def train_values(self) -> None:
        """From now on constants want gradients, and gains where there are any; scores, where each counts, stay."""
        self._trains = True
        self.constants.requires_grad_()
        self.gains.requires_grad_(bool(self.gains.any()))

    @property
    def trains(self) -> bool:
        """Whether its values want gradients."""
        return self._trains

    def _values_alone(self) -> bool:
        """Whether the values are being trained, and nothing else is followed."""
        fixed = (self.slopes, self.intercepts, self.gate_slopes, self.gate_levels)
        if not self._trains or torch.compiler.is_compiling() or any(t.requires_grad for t in fixed):
            return False
        return torch._C._functorch.peek_interpreter_stack() is None

    def settle(self) -> None:
        """The numbers as they are now are those that count; none is an edit."""
        self._made = self._make()

    def check(self, x: Tensor) -> None:
        """Refuses what is not a tensor of the head's dtype."""
        check_tensor(x, self.dtype)

    def literal(self, *, carrying: bool = False) -> LiteralHead:
        """A copy of the numbers, evaluated as the formula reads; carrying: a partner, so that there are no gains."""
        if carrying and bool(self.gains.any()):
            raise StructureError(CARRYING)
        copied = LiteralHead(self.numbers)
        return copied if self.slopes.device.type == "cpu" else copied.to(self.slopes.device)


class LiteralHead(HeadParameters):
    """Scores, softmax over keys, values: each element of x is a query of its own.

    Where it carries a partner v, an element for each of x, a key's value is its constant times v. Constants and gains
    may be (count, keys), values of its own for each of the last elements of x.
    """

    def literal(self, *, carrying: bool = False) -> LiteralHead:
        """This is it."""
        return self

    @in_own_precision
    def forward(self, x: Tensor, partner: Tensor | None = None) -> Tensor:
        if partner is None:
            values = x.unsqueeze(-1) * self.gains + self.constants
        else:
            values = partner.unsqueeze(-1) * self.constants
        return (self.weights(x).unsqueeze(-2) @ values.unsqueeze(-1)).squeeze(-1).squeeze(-1)
