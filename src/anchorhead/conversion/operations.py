"""What torch's operations do to values that depend on the data: affine, softmax attention, or nonlinear.

Each tensor has, by its storage, what it depends on, in three marks:

    TOKEN      integer and boolean inputs: tokens, positions, masks, and whatever is computed from them alone
    PARAMETER  trained parameters
    DATA       floating inputs, and where tokens and parameters meet, as in an embedding

Without DATA a value is a constant of tokens and positions, whatever made it: masks, rotary factors, position biases.
With DATA an operation is affine if it is in the tables of `affine.py`, with DATA only in places where it is linear. A
matrix product of two such values is *open*: it is a score if a softmax takes it. A softmax is open: it is attention if
its weights meet DATA in a matrix product over the axis along which they sum to one. Everything else is nonlinear, and
so is what is still open in a value that outlives the run, or that anything nonlinear takes. A tensor that is neither
the model's nor made by an operation comes from nowhere, and is noted where it meets DATA.
"""

from __future__ import annotations

import dataclasses
import gc
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from anchorhead.conversion.affine import ATTENTION, FACTORS, KEEPS_WEIGHTS, MATRIX, SHAPE_ONLY, SOFTMAX, is_affine

DATA, TOKEN, PARAMETER, NOWHERE = 1, 2, 4, 8
NEAR = 0.01
SAID = {"_local_scalar_dense": "item, or a branch", "nowhere": "a tensor that torch did not make"}


@dataclass(frozen=True, eq=False)
class Event:
    """Something nonlinear, where: the module's path and class, and the line of code that is not torch's."""

    place: str
    module: str
    operation: str
    source: str

    def __str__(self) -> str:
        said = SAID.get(self.operation, self.operation)
        return f"{said} at {self.source}" if self.source else said


@dataclass(frozen=True)
class State:
    """What a storage depends on; which events are open in it; and the softmax whose weights it holds unchanged."""

    marks: int = 0
    open: frozenset[Event] = frozenset()
    weights: Event | None = None


class Operations:
    """What is nonlinear so far, where the model's own attention is, and the states of all storages."""

    def __init__(self, model: nn.Module, inputs: Any, event: Callable[[str], Event]) -> None:
        self.event = event
        self.states: dict[int, tuple[Any, State]] = {}
        self.left: dict[Event, None] = {}
        self.attention: dict[tuple[str, str], None] = {}
        self.counts = Counter[str]()
        trained = {id(p) for p in model.parameters()}
        for module in model.modules():
            for tensor in tensors_in([vars(module), module._parameters, module._buffers]):
                self.set(tensor, State(PARAMETER if id(tensor) in trained else 0))
        for tensor in tensors_in(inputs):
            self.set(tensor, State(DATA if _real(tensor) else TOKEN))

    def set(self, tensor: Tensor, state: State) -> None:
        key, held = _storage(tensor)
        self.states[key] = (held, state)

    def get(self, tensor: Tensor) -> State:
        """The state of a tensor; one that is neither the model's nor made by an operation comes from nowhere, but for
        single numbers, which scripted code makes unseen."""
        found = self.states.get(_storage(tensor)[0])
        return found[1] if found is not None else State(NOWHERE if tensor.ndim and tensor.numel() else 0)

    def head(self, args: Any, output: Any, *, scores: bool = False) -> None:
        """A head took these and returned that; scores: its values are constants, so that what it takes goes into its
        softmax and nowhere else, and products in it are scores of that."""
        for tensor in tensors_in(args):
            opened = self.get(tensor).open
            self.left |= dict.fromkeys(e for e in opened if not scores or e.operation == "softmax")
        for tensor in tensors_in(output):
            self.set(tensor, State(DATA))

    def leaves(self, name: str, tensor: Any) -> None:
        """The numbers of a tensor are handed to something other than torch."""
        state = self.get(tensor) if isinstance(tensor, Tensor) else State()
        if state.marks & DATA:
            self.left |= dict.fromkeys((*state.open, self.event(name)))

    def see(self, func: Any, args: Any, kwargs: Any, found: Any) -> None:
        """Marks what an operation returns or writes to, once it is known what it does to DATA."""
        schema = getattr(func, "_schema", None)  # a higher-order operation, such as torch.cond, has none
        arguments = schema.arguments if schema else ()
        name = schema.name.removeprefix("aten::").rstrip("_") if schema else func.name()
        given = dict(zip((a.name for a in arguments), args, strict=False)) | kwargs if schema else {"all": list(args)}
        tensors = {n: held for n, value in given.items() if (held := tensors_in(value))}
        states = {n: reduce(_both, map(self.get, held)) for n, held in tensors.items()}
        total = reduce(_both, states.values(), State())
        written = [t for a in arguments if a.alias_info and a.alias_info.is_write for t in tensors.get(a.name, ())]
        results = [*tensors_in(found), *written]
        if name in SHAPE_ONLY:
            total = State()
        elif name == "lift_fresh":  # torch.tensor(...) of plain numbers
            total = replace(total, marks=total.marks & ~NOWHERE)
        elif total.marks & DATA:
            if total.marks & NOWHERE:
                self.left[self.event("nowhere")] = None
            data = {n: s for n, s in states.items() if s.marks & DATA}
            made = self.classified(_Call(name, schema.overload_name if schema else "", given, tensors, data, results))
            total = State(DATA, made.open, made.weights)
        elif total.marks & TOKEN and total.marks & PARAMETER and any(map(_real, results)):
            total = State(DATA)
        for tensor in results:
            kept = self.get(tensor) if any(tensor is t for t in written) else State()  # the rest of its storage
            self.set(tensor, State(total.marks | kept.marks, total.open | kept.open, total.weights))

    def classified(self, call: _Call) -> State:
        """What is open in the result of an operation on DATA; what it is, if it is not affine, is noted."""
        opened = frozenset[Event]().union(*(s.open for s in call.data.values()))
        if call.name in SOFTMAX:
            self.counts["softmax"] += 1
            self.left |= dict.fromkeys(e for e in opened if e.operation == "softmax")
            softmax = self.event("softmax")
            return State(open=frozenset([softmax]), weights=softmax)
        if call.name in ATTENTION:
            self.counts.update(softmax=1, scores=1)
            self.left |= dict.fromkeys(opened)
            self.attends(self.event("softmax"))
            return State()
        factors = [n for n in FACTORS.get(call.name, ()) if n in call.data]
        if len(factors) > 1:
            return self.product(call, factors)
        if call.affine:
            self.counts["affine"] += 1
            kept = {s.weights for s in call.data.values()} if call.name in KEEPS_WEIGHTS else {None}
            return State(open=opened, weights=kept.pop() if len(kept) == 1 else None)
        self.left |= dict.fromkeys(opened)
        self.left[self.event(call.name)] = None
        return State()

    def product(self, call: _Call, factors: list[str]) -> State:
        """Two values that depend on the data are multiplied: weights and values, scores, or something nonlinear."""
        for side, factor in enumerate(factors):
            weights = call.data[factor].weights
            if call.name in MATRIX and weights is not None and _sums_to_one(call.tensors[factor][0], side):
                self.attends(weights)
                rest = [s.open for n, s in call.data.items() if n != factor]
                return State(open=(call.data[factor].open - {weights}).union(*rest))
        added = frozenset[Event]().union(*(s.open for n, s in call.data.items() if n not in factors))
        self.left |= dict.fromkeys(e for n in factors for e in call.data[n].open)
        event = self.event(call.name)
        if call.name in MATRIX:
            self.counts["scores"] += 1
            return State(open=added | {event})
        self.left[event] = None
        return State(open=added)

    def attends(self, softmax: Event) -> None:
        self.attention[softmax.place, softmax.module] = None

    def finish(self, output: Any) -> None:
        """What is open in a value that outlives the run is not attention, and neither is an output from nowhere."""
        if any(self.get(t).marks & NOWHERE for t in tensors_in(output)):
            self.left[self.event("nowhere")] = None
        if any(state.open and _alive(held) for held, state in self.states.values()):
            gc.collect()
        for held, state in self.states.values():
            if state.open and _alive(held):
                self.left |= dict.fromkeys(state.open)


@dataclass(frozen=True)
class _Call:
    """One operation: its arguments, the tensors among them, the states of those with DATA, what it made or wrote."""

    name: str
    overload: str
    given: dict[str, Any]
    tensors: dict[str, list[Tensor]]
    data: dict[str, State]
    results: list[Tensor]

    @property
    def affine(self) -> bool:
        """Whether it is in the table, steered by constants, and what it makes are floating numbers."""
        exact = self.overload != "dtype" and self.given.get("rounding_mode") is None and not self.given.get("training")
        return exact and is_affine(self.name, self.data) and all(map(_real, self.results))


def _storage(tensor: Tensor) -> tuple[int, StorageWeakRef | Tensor]:
    """Its identity, and what keeps that from being another's: for sparse tensors, which have none, the tensor."""
    try:
        with torch._C.DisableTorchFunction():  # hooks run where leaving torch is noted
            storage = tensor.untyped_storage()
    except NotImplementedError:
        return -id(tensor), tensor
    return storage._cdata, StorageWeakRef(storage)


def _alive(held: StorageWeakRef | Tensor) -> bool:
    return isinstance(held, Tensor) or not held.expired()


def _both(a: State, b: State) -> State:
    return State(a.marks | b.marks, a.open | b.open, a.weights if a.weights == b.weights else None)


def _real(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _sums_to_one(weights: Tensor, side: int) -> bool:
    """Along the axis that a matrix product sums over; rows that are masked out altogether are zero or not numbers."""
    sums = weights.detach().float().sum(-1 if side == 0 or weights.ndim == 1 else -2)
    return not bool((((sums - 1).abs() > NEAR) & (sums != 0)).any())


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in a value, or in a container of values."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    return [t for item in value for t in tensors_in(item)] if isinstance(value, list | tuple) else []
