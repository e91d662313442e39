"""What torch's operations do to values that depend on the data: affine, softmax attention, or nonlinear.

Each tensor has, by its storage, what it depends on, in three marks:

    TOKEN      integer and boolean inputs: tokens, positions, masks, and whatever is computed from them alone
    MODEL      tensors of the model: parameters, buffers, attributes; lists of numbers, and random numbers
    DATA       floating inputs, and where tokens meet the model's tensors, as in an embedding

Where tokens meet the model's tensors, the operation must be a lookup, or in the tables of `affine.py`, too; integers
that are looked up are DATA once they are made floating, and may be looked up with before, but not what is COMPUTED of
several of them.
Without DATA a value is a constant of tokens and positions, whatever made it: masks, rotary factors, position biases.
With DATA an operation is affine if it is in the tables of `affine.py`, with DATA only in places where it is linear. A
matrix product of two such values is *open*: it is a score if a softmax takes it. A softmax of such scores is open: it
is attention if its weights meet DATA in a matrix product over the axis along which they sum to one. All of these are
noted, with what they are made of, so that `substance.py` can tell whether that depends on the data in earnest.
Everything else is nonlinear, and so is what is still open in a value that outlives the run, or that anything nonlinear
takes. A tensor that is neither the model's nor made by an operation comes from nowhere, and is noted where it meets
DATA. Tokens that become numbers of Python, or shapes, are noted: what is done with them is not seen; but truth values
may decide which way a forward goes.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cached_property, reduce
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.conversion.affine import (
    ATTENTION,
    COUNTS,
    DRAWN,
    FACTORS,
    KEEPS_WEIGHTS,
    LOOKUPS,
    MATRIX,
    SHAPE_ONLY,
    SOFTMAX,
)
from anchorhead.conversion.states import (
    COMPUTED,
    DATA,
    MODEL,
    NOWHERE,
    TOKEN,
    Call,
    Event,
    State,
    alive,
    both,
    is_real,
    storage_of,
    tensors_in,
)
from anchorhead.conversion.substance import Record, constant, moved

NEAR = 0.01
LIBRARIES = {"builtins", "collections", "torch", "transformers", "typing", "abc"}
FEW = 8
"""How many numbers of Python that become a tensor are constants, and not a table."""
BRANCHES = 4
"""How often a line of code may ask for a truth value of tokens in one call before it counts as reading them."""


class Operations:
    """What is nonlinear so far, where the model's own attention is, what it is made of, and the states of all storages.

    other: numbers by which what tokens make of the model's tensors is moved, for a run with other data.
    """

    def __init__(
        self, model: nn.Module, inputs: Any, event: Callable[[str], Event], other: torch.Generator | None = None
    ) -> None:
        self.event, self.other = event, other
        self.states: dict[int, tuple[Any, State]] = {}
        self.left: dict[Event, None] = {}
        self.attention: dict[tuple[str, str], None] = {}
        self.counts = Counter[Any]()
        self.records: dict[Any, Record] = {}
        self.noted: dict[Any, Event] = {}
        self.products: dict[Any, tuple[Event, ...]] = {}
        self.branches, self.within, self.making = Counter[tuple[str, str]](), 0, 0
        for module in model.modules():
            for tensor in tensors_in([vars(module), module._parameters, module._buffers]):
                self.set(tensor, State(MODEL))
        self.takes(inputs)

    def takes(self, inputs: Any) -> None:
        """Another call begins."""
        self.branches.clear()
        for tensor in tensors_in(inputs):
            self.set(tensor, State(DATA if is_real(tensor) else TOKEN))

    def set(self, tensor: Tensor, state: State) -> None:
        key, held = storage_of(tensor)
        self.states[key] = (held, state)

    def get(self, tensor: Tensor) -> State:
        """The state of a tensor; one that is neither the model's nor made by an operation comes from nowhere, but for
        single numbers, which scripted code makes unseen."""
        found = self.states.get(storage_of(tensor)[0])
        return found[1] if found is not None else State(NOWHERE if tensor.ndim and tensor.numel() else 0)

    def head(self, args: Any, output: Any, *, scores: bool = False) -> None:
        """A head took these and returned that; scores: its values are constants, so that what it takes goes into its
        softmax and nowhere else, and products in it are scores of that, and still scores after it, as after a
        softcap."""
        states = [self.get(tensor) for tensor in tensors_in(args)]
        self.left |= dict.fromkeys(e for s in states for e in s.open if not scores or e.operation == "softmax")
        for tensor in tensors_in(output):
            self.set(tensor, State(DATA, scores=scores and any(s.scores for s in states)))

    def leaves(self, name: str, tensor: Any) -> None:
        """The numbers of a tensor are handed to something other than torch."""
        state = self.get(tensor) if isinstance(tensor, Tensor) else State()
        if state.marks & (DATA | TOKEN | NOWHERE):
            self.left |= dict.fromkeys(
                (*state.open, self.event("number" if state.marks & (DATA | TOKEN) == TOKEN else name))
            )

    def see(self, func: Any, args: Any, kwargs: Any, found: Any) -> None:
        """Marks what an operation returns or writes to, once it is known what it does to DATA."""
        call = self.call(func, args, kwargs, found)
        total, name = call.total, call.name
        if call.by_computed(lambda t: self.get(t).marks):
            self.left[self.event("computed")] = None
        if name in DRAWN:
            total = State(MODEL)
        elif name in SHAPE_ONLY:
            total = State()
        elif name == "lift_fresh" and self.making:  # torch.tensor(...) of plain numbers: many of them are weights
            many = any(is_real(t) and t.numel() > FEW for t in call.results)
            total = replace(total, marks=total.marks & ~NOWHERE | MODEL * many)
        elif total.marks & DATA:
            if total.marks & NOWHERE:
                self.left[self.event("nowhere")] = None
            total = replace(self.classified(call), marks=DATA)
        elif total.marks & TOKEN:
            self.token(call)
            if total.marks & (MODEL | NOWHERE):
                total = self.born(call)
        for tensor in call.results:
            kept = self.get(tensor) if any(tensor is t for t in call.written) else State()  # the rest of its storage
            self.set(tensor, replace(both(total, kept), weights=total.weights))

    def call(self, func: Any, args: Any, kwargs: Any, found: Any) -> Call:
        schema = getattr(func, "_schema", None)  # a higher-order operation, such as torch.cond, has none
        arguments = schema.arguments if schema else ()
        name = schema.name.removeprefix("aten::").rstrip("_") if schema else func.name()
        given = dict(zip((a.name for a in arguments), args, strict=False)) | kwargs if schema else {"all": list(args)}
        tensors = {n: held for n, value in given.items() if (held := tensors_in(value))}
        states = {n: reduce(both, map(self.get, held)) for n, held in tensors.items()}
        written = [t for a in arguments if a.alias_info and a.alias_info.is_write for t in tensors.get(a.name, ())]
        data = {n: s for n, s in states.items() if s.marks & DATA}
        total = reduce(both, states.values(), State())
        overload = schema.overload_name if schema else ""
        return Call(name, overload, given, tensors, data, total, written, [*tensors_in(found), *written])

    def token(self, call: Call) -> None:
        """Tokens that become numbers of Python, or shapes; a truth value may decide a branch, a few times in a line."""
        if call.name == "_local_scalar_dense" and not self.within:
            event = self.event("number")
            self.branches[event.place, event.source] += 1
            if call.tensors["self"][0].dtype != torch.bool or self.branches[event.place, event.source] > BRANCHES:
                self.left[event] = None
        by_mask = call.name == "index" and any(t.dtype in (torch.bool, torch.uint8) for t in call.tensors["indices"])
        if call.name in COUNTS or by_mask:
            self.left[self.event("shape")] = None

    def born(self, call: Call) -> State:
        """Tokens have met the model's tensors; what is looked up is other data in a run with such."""
        if not call.meets(lambda t: self.get(t).marks):
            self.left[self.event(call.name)] = None
        found = [t for t in call.results if is_real(t)]
        if call.name in LOOKUPS and self.other is not None:
            for tensor in found:
                tensor.copy_(moved(tensor, self.other))
        if found:
            return State(DATA)
        mixed = call.mixes(lambda t: self.get(t).marks)
        return replace(call.total, marks=call.total.marks | COMPUTED) if mixed else call.total

    def classified(self, call: Call) -> State:
        """What is open in the result of an operation on DATA; what it is, if it is not affine, is noted."""
        opened = frozenset[Event]().union(*(s.open for s in call.data.values()))
        if call.name in SOFTMAX:
            return self.softmax(call, opened)
        if call.name in ATTENTION:
            self.counts.update(softmax=1, scores=1)
            self.left |= dict.fromkeys(opened)
            self.fused(call)
            return State()
        factors = [n for n in FACTORS.get(call.name, ()) if n in call.data]
        if len(factors) > 1:
            return self.product(call, factors)
        if call.affine:
            self.counts["affine"] += 1
            kept = {s.weights for s in call.data.values()} if call.name in KEEPS_WEIGHTS else {None}
            scores = any(s.scores for s in call.data.values())
            if scores:
                self.addends(call, list(call.data), *(e for s in call.data.values() if s.scores for e in s.open))
            return State(open=opened, weights=kept.pop() if len(kept) == 1 else None, scores=scores)
        self.left |= dict.fromkeys(opened)
        self.left[self.event(call.name)] = None
        return State()

    def softmax(self, call: Call, opened: frozenset[Event]) -> State:
        """Of scores, or nonlinear."""
        self.counts["softmax"] += 1
        self.left |= dict.fromkeys(e for e in opened if e.operation == "softmax")
        softmax = self.event("softmax")
        if not softmax.written_out and not all(s.scores for s in call.data.values()):
            self.left |= dict.fromkeys((*opened, softmax))
            return State()
        return State(open=frozenset([softmax]), weights=softmax, scores=softmax.written_out and call.total.scores)

    def fused(self, call: Call) -> None:
        """torch's attention: the same of its arguments."""
        softmax = self.event("softmax")
        if not {"query", "key", "value"} <= set(call.data):
            self.left[replace(softmax, operation="softmax with queries, keys or values that are constants")] = None
            return
        query, key, value = (call.tensors[n][0] for n in ("query", "key", "value"))
        if query.ndim == key.ndim > 2 and key.shape[-3] not in (1, query.shape[-3]):  # groups share keys and values
            key, value = (t.repeat_interleave(query.shape[-3] // key.shape[-3], -3) for t in (key, value))
        masks = [t for n in ("attn_mask", "attn_bias", "mask") for t in call.tensors.get(n, ())]
        weights = query.new_ones(*query.shape[:-1], key.shape[-2]) / key.shape[-2]
        if masks and call.name != "_native_multi_head_attention":
            mask = torch.where(masks[0], 0.0, -torch.inf) if masks[0].dtype == torch.bool else masks[0]
            weights = (0 * weights + mask).softmax(-1)
        self.note("scores", softmax, query, key.mT)
        self.addends(call, [n for n in call.data if n in ("attn_mask", "attn_bias", "mask")])
        self.attends(softmax, weights, value)

    def product(self, call: Call, factors: list[str]) -> State:
        """Two values that depend on the data are multiplied: weights and values, scores, or something nonlinear."""
        first, second = (call.tensors[n][0] for n in factors[:2])
        for side, factor in enumerate(factors[:2]):
            weights = call.data[factor].weights
            if call.name in MATRIX and weights is not None and _sums_to_one(call.tensors[factor][0], side):
                self.attends(weights, *((first, second) if side == 0 else (_turned(second), _turned(first))))
                rest = [s.open for n, s in call.data.items() if n != factor]
                opened = (call.data[factor].open - {weights}).union(*rest)
                return State(open=opened, scores=weights.written_out and call.total.scores)  # after a softcap
        added = frozenset[Event]().union(*(s.open for n, s in call.data.items() if n not in factors))
        self.left |= dict.fromkeys(e for n in factors for e in call.data[n].open)
        event = self.event(call.name)
        if call.name in MATRIX:
            self.counts["scores"] += 1
            self.note("scores", event, first, second)
            self.addends(call, [n for n in call.data if n not in factors], event)
            return State(open=added | {event}, scores=True)
        self.left[event] = None
        return State(open=added)

    def addends(self, call: Call, names: list[str], *products: Event) -> None:
        """What is added to scores, or stands beside them, and is none itself; products: those that made the scores."""
        for tensor in (t for n in names for t in call.tensors[n]):
            state = self.get(tensor)
            if state.marks & DATA and not state.scores:
                self.note("addend", self.event(call.name), tensor, products=products)

    def attends(self, softmax: Event, weights: Tensor, values: Tensor) -> None:
        self.note("values", softmax, weights, values if values.ndim > 1 else values.unsqueeze(-1))
        self.attention[softmax.place, softmax.module] = None

    def note(self, role: str, event: Event, *tensors: Tensor, products: tuple[Event, ...] = ()) -> None:
        """What takes part in attention, for `substance.py`; a head is proved."""
        if not event.written_out:
            name = (role, event.place, event.operation, event.source)
            self.counts[name] += 1
            key = (*name, self.counts[name])
            self.noted[key], self.products[key] = event, products
            self.records[key] = Record(role, tuple(t.detach().clone() for t in tensors))

    def without_substance(self, others: Callable[[], Operations]) -> list[Event]:
        """What looks like attention, and does not move with the data as that does; others: those of a run with other
        data, which are others every time. What is added to products that are no scores, and are listed themselves, is
        a sum."""
        first = others().records
        found = constant(self.records, first)
        if any(self.records[key].role == "values" for key in found):
            found = constant(self.records, first, others().records)
        sums = {key for key, made in self.products.items() if made and all(e in self.left for e in made)}
        events = [(self.noted[key], why) for key, why in found.items() if key not in sums]
        return [replace(e, operation=f"{e.operation} with {why}") for e, why in events if e not in self.left]

    def finish(self, output: Any) -> None:
        """What is open in a value that outlives the run is not attention, and neither is an output from nowhere, or one
        that is yet to be computed."""
        if any(self.get(t).marks & NOWHERE for t in tensors_in(output)):
            self.left[self.event("nowhere")] = None
        if _later(output):
            self.left[self.event("later")] = None
        if any(state.open and alive(held) for held, state in self.states.values()):
            gc.collect()
        for held, state in self.states.values():
            if state.open and alive(held):
                self.left |= dict.fromkeys(state.open)


def _sums_to_one(weights: Tensor, side: int) -> bool:
    """Along the axis that a matrix product sums over; rows that are masked out altogether are zero or not numbers."""
    sums = weights.detach().float().sum(-1 if side == 0 or weights.ndim == 1 else -2)
    return not bool((((sums - 1).abs() > NEAR) & (sums != 0)).any())


def _turned(tensor: Tensor) -> Tensor:
    return tensor.mT if tensor.ndim > 1 else tensor


def _later(value: Any) -> bool:
    """Whether something in an output is yet to be computed: a generator, a function or a bound method, something to be
    awaited, a property of a class of outputs that is not of a library."""
    if isinstance(value, Mapping | list | tuple) or (is_dataclass(value) and not isinstance(value, type)):
        own = [kind for kind in type(value).__mro__ if kind.__module__.partition(".")[0] not in LIBRARIES]
        if any(isinstance(held, property | cached_property) for kind in own for held in vars(kind).values()):
            return True
        if not isinstance(value, Mapping | list | tuple):
            return any(_later(getattr(value, part.name)) for part in fields(value))
        return any(map(_later, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, Iterator | Awaitable) or (callable(value) and not isinstance(value, Tensor))
