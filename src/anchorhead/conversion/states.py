"""What is known of the tensors of a run: on what each depends, what is open in it, what an operation takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from anchorhead.conversion.affine import (
    FACTORS,
    GATHERS,
    KEEPS_WEIGHTS,
    LOOKUPS,
    MATRIX,
    SHIFTS,
    is_affine,
    is_plain,
    listed,
    steering,
)

DATA, TOKEN, MODEL, NOWHERE, COMPUTED = 1, 2, 4, 8, 16
SAID = {
    "_local_scalar_dense": "item, or a branch",
    "nowhere": "a tensor that torch did not make",
    "number": "tokens that become numbers of Python",
    "shape": "tokens that decide a shape",
    "computed": "a lookup by what was computed of integers that were looked up",
    "shared": "a head within a mode, a tensor class or hooks of others, which may change what it computes",
    "later": "something that is computed later, and was not seen",
}


@dataclass(frozen=True, eq=False)
class Event:
    """Something nonlinear, where: the module's path and class, and the line of code that is not torch's; written_out:
    it stands in a head."""

    place: str
    module: str
    operation: str
    source: str
    written_out: bool = False

    def __str__(self) -> str:
        said = SAID.get(self.operation, self.operation)
        return f"{said} at {self.source}" if self.source else said


@dataclass(frozen=True)
class State:
    """What a storage depends on; which events are open in it; the softmax whose weights it holds unchanged; and whether
    it is made of scores."""

    marks: int = 0
    open: frozenset[Event] = frozenset()
    weights: Event | None = None
    scores: bool = False


@dataclass(frozen=True)
class Call:
    """One operation: its arguments, the tensors among them, the states of those with DATA, what they depend on
    together, and what it wrote to, or made."""

    name: str
    overload: str
    given: dict[str, Any]
    tensors: dict[str, list[Tensor]]
    data: dict[str, State]
    total: State
    written: list[Tensor]
    results: list[Tensor]

    @property
    def affine(self) -> bool:
        """Whether it is in the table, steered by constants, and what it makes are floating numbers."""
        numbers = all(is_real(t) and t.element_size() > 1 for t in self.results)  # eight bits are a quantisation
        return numbers and is_plain(self.overload, self.given) and is_affine(self.name, self.data)

    def mixes(self, marks: Callable[[Tensor], int]) -> bool:
        """Whether integers that tokens looked up are computed with, more than by a constant for each."""
        tokens = [n for n, held in self.tensors.items() if any(marks(t) & TOKEN for t in held)]
        alone = self.name in SHIFTS and len(tokens) == 1
        return not (alone or self.name in KEEPS_WEIGHTS | GATHERS | (LOOKUPS - set(MATRIX)))

    def by_computed(self, marks: Callable[[Tensor], int]) -> bool:
        """Whether such integers say where to look."""
        return any(marks(t) & COMPUTED for n in steering(self.name) for t in self.tensors.get(n, ()))

    def meets(self, marks: Callable[[Tensor], int]) -> bool:
        """Whether tokens meet the model's tensors in a lookup, or affinely in one of the two.

        Integers may steer; those that are looked up keep their size, and are compared with nothing.
        """
        own = [t for held in self.tensors.values() for t in held if marks(t) & (MODEL | NOWHERE)]
        size = max((t.element_size() for t in own if not is_real(t)), default=0)
        numbers = all(
            t.element_size() > 1 if is_real(t) else
            not any(map(is_real, own)) and t.element_size() >= size and (t.dtype != torch.bool or _are(own, torch.bool))
            for t in (self.results[:1] if self.name in LOOKUPS else self.results)  # a bag returns what it counted, too
        )  # fmt: skip
        steers = [t for n in steering(self.name) for t in self.tensors.get(n, ()) if is_real(t)]
        linear = any(not any(marks(t) & one for t in steers) for one in (MODEL | NOWHERE, TOKEN))
        met = [t for n in FACTORS.get(self.name, ()) for t in self.tensors.get(n, ()) if marks(t) & TOKEN]
        linear &= sum(bool(marks(t) & (MODEL | NOWHERE)) for t in met) < 2
        return numbers and linear and listed(self.name) and is_plain(self.overload, self.given)


def _are(tensors: list[Tensor], dtype: torch.dtype) -> bool:
    return all(t.dtype == dtype for t in tensors)


def storage_of(tensor: Tensor) -> tuple[int, StorageWeakRef | Tensor]:
    """Its identity, and what keeps that from being another's: for sparse tensors, which have none, the tensor; of what
    torch.func wraps that of the tensor within."""
    tensor = unwrapped(tensor)
    try:
        with torch._C.DisableTorchFunction():  # hooks run where leaving torch is noted
            storage = tensor.untyped_storage()
    except NotImplementedError:
        return -id(tensor), tensor
    return storage._cdata, StorageWeakRef(storage)


def unwrapped(tensor: Tensor) -> Tensor:
    """The tensor within those that torch.func makes, as for a batch or a gradient."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def alive(held: StorageWeakRef | Tensor) -> bool:
    return isinstance(held, Tensor) or not held.expired()


def both(a: State, b: State) -> State:
    weights = a.weights if a.weights == b.weights else None
    return State(a.marks | b.marks, a.open | b.open, weights, a.scores or b.scores)


def is_real(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in a value, or in a container of values."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    return [t for item in value for t in tensors_in(item)] if isinstance(value, list | tuple) else []
