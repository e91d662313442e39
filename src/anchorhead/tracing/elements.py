"""Operations on each entry of a tensor, and operations that move entries about.

A tensor that depends on the input is a numpy array of entries; any other is a torch tensor. Elementwise operations are
those of `aten` for each entry, but for affine ones and products, which are made at once. Operations that only move
entries are run by torch itself, on a tensor that numbers the entries: whatever torch does with views, indices, padding
or writing into a part of a tensor, that is what is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anchorhead.circuit.apply import U
from anchorhead.circuit.line import Line
from anchorhead.circuit.lower import RECIPROCAL
from anchorhead.circuit.operands import Operand
from anchorhead.enclosure.exact import Number, over, times
from anchorhead.errors import DiscontinuityError, ExpressionError
from anchorhead.expression.graph import Node, constant, substituted, variable
from anchorhead.tracing import aten
from anchorhead.tracing.aten import Comparison
from anchorhead.tracing.entries import MASKED, ZERO, Entries, Entry, Masked, Sum

Array = NDArray[np.object_]
Given = Mapping[str, Any]


@dataclass(frozen=True)
class Jumps:
    """A result that jumps, such as the indices of a maximum, refused only where it is used."""

    why: str


class Context(Entries):
    """Entries where an operation meets them: `label` says which it is, `target` is torch's own."""

    target: Any = None

    def array(self, value: Any) -> Array:
        """Entries of a tensor of any kind."""
        if isinstance(value, np.ndarray):
            return value
        numbers, shape = (
            (value.reshape(-1).tolist(), tuple(value.shape)) if isinstance(value, Tensor) else ([value], ())
        )
        return shaped(map(_entry, numbers), shape)

    def ready(self, array: Array) -> Array:
        """The entries worked out all at once, but for minus infinity."""
        entries = list(array.ravel())
        operands = iter(self.operands([entry for entry in entries if entry is not MASKED]))
        return shaped([entry if entry is MASKED else next(operands) for entry in entries], array.shape)

    def unary(self, name: str, entry: Entry) -> Operand:
        [operand] = self.operands([entry])
        return self.builder.unary(Node(name, (U,)), operand, self.label)

    def sum(self, entries: Sequence[Entry], coefficient: Number = 1, bias: Number = 0) -> Entry:
        return self.sums([Sum([coefficient] * len(entries), entries, bias)])[0]

    def square(self, entry: Entry) -> Entry:
        return self.product(entry, entry)

    def call(self, given: Given) -> Any:
        """torch's own operation on these arguments."""
        names = [a.name for a in self.target._schema.arguments if not a.kwarg_only]
        count = next((i for i, name in enumerate(names) if name not in given), len(names))
        return self.target(*(given[name] for name in names[:count]),
                           **{key: value for key, value in given.items() if key not in names[:count]})  # fmt: skip


Operation = Callable[[Context, Given], Any]


def shaped(entries: Iterable[Any], shape: tuple[int, ...]) -> Array:
    listed = list(entries)
    flat = np.empty(len(listed), dtype=object)
    flat[:] = listed
    return flat.reshape(shape)


def finite(number: float) -> float:
    if not math.isfinite(number):
        raise ExpressionError(f"A constant of the target is {number}; constants must be finite numbers.")
    return number


def _entry(number: Any) -> Entry:
    if isinstance(number, complex):
        raise ExpressionError("A constant of the target is complex; constants must be real numbers.")
    return MASKED if number == -math.inf else Line({}, finite(number)) if number != 0 else ZERO


def _broadcast(context: Context, *values: Any) -> tuple[list[list[Entry]], tuple[int, ...]]:
    arrays = np.broadcast_arrays(*(context.array(value) for value in values))
    return [list(array.ravel()) for array in arrays], arrays[0].shape


def added(sign: int, first: str = "self", second: str = "other") -> Operation:
    def add(context: Context, given: Given) -> Array:
        (left, right), shape = _broadcast(context, given[first], given[second])
        factor = times(given.get("alpha", 1), sign)
        wanted = [Sum((1, factor), pair) for pair in zip(left, right, strict=True)]
        return shaped(context.sums([_with_bias(s) for s in wanted]), shape)

    return add


def _with_bias(wanted: Sum) -> Sum:
    """The sum, with its constant entries in the bias."""
    kept = [(c, e) for c, e in zip(*wanted[:2], strict=True) if not (isinstance(e, Line) and e.is_constant)]
    constants = [times(c, e.bias) for c, e in zip(*wanted[:2], strict=True) if isinstance(e, Line) and e.is_constant]
    nonzero = [number for number in [wanted.bias, *constants] if number != 0]
    if len(nonzero) > 1:
        return wanted
    return Sum([c for c, _ in kept], [e for _, e in kept], nonzero[0] if nonzero else 0)


def mapped(work: Callable[..., Entry], *names: str) -> Operation:
    """An operation that does the same with each entry of the arguments."""

    def apply(context: Context, given: Given) -> Array:
        parts, shape = _broadcast(context, *(given[name] for name in names))
        return shaped((work(context, *row) for row in zip(*parts, strict=True)), shape)

    return apply


multiplied = mapped(Context.product, "self", "other")
negated = mapped(lambda context, entry: context.scale(entry, -1), "self")


def divided(context: Context, given: Given) -> Array:
    if given.get("rounding_mode") is not None:
        raise DiscontinuityError(aten.ROUNDED_DIVISION)
    below = context.array(given["other"])
    inverse = shaped((_inverse(context, operand) for operand in context.operands(below.ravel())), below.shape)
    return multiplied(context, {"self": given["self"], "other": inverse})


def _inverse(context: Context, operand: Operand) -> Operand:
    if isinstance(operand, Line) and operand.is_constant:
        if operand.bias == 0:
            raise ExpressionError("A division by the constant 0 is not a number.")
        return Line({}, over(1, operand.bias))
    return context.builder.unary(RECIPROCAL, operand, context.label)


def elementwise(name: str) -> Operation:
    """An operation of `aten` on each entry; constants are put into the function, one for each entry if they differ."""

    def apply(context: Context, given: Given) -> Array:
        given = _channels(given) if name == "prelu" else given
        given = {key: context.ready(value) if isinstance(value, np.ndarray) else value for key, value in given.items()}
        tensors = {key: value for key, value in given.items() if isinstance(value, Tensor | np.ndarray)}
        fixed = {key: _fixed(value) for key, value in given.items() if key not in tensors and value is not None}
        parts, shape = _broadcast(context, *tensors.values())
        moving = [key for key, value in tensors.items() if isinstance(value, np.ndarray)]
        functions: dict[tuple[Any, ...], Node] = {}
        found = []
        for row in zip(*parts, strict=True):
            entries = dict(zip(tensors, row, strict=True))
            constants = tuple((key, _number(entries[key])) for key in tensors if key not in moving)
            if constants not in functions:
                values = {key: constant(number) for key, number in constants} | {key: variable(key) for key in moving}
                functions[constants] = aten.meaning(name, values | fixed)
            found.append(_applied(context, functions[constants], {key: entries[key] for key in moving}))
        return shaped(found, shape)

    return apply


def _applied(context: Context, function: Node, values: Mapping[str, Entry]) -> Operand:
    if function.op == "exp" and any(isinstance(entry, Masked) for entry in values.values()):
        return ZERO
    builder = context.builder
    operands = dict(zip(values, context.operands(values.values()), strict=True))
    if len(operands) == 1:
        [(key, operand)] = operands.items()
        return builder.unary(substituted(function, {key: U}), operand, context.label)
    return builder.lower(function, operands, context.label)


def _fixed(value: Any) -> Any:
    return constant(finite(value)) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _number(entry: Entry) -> Any:
    if isinstance(entry, Masked):
        raise ExpressionError("A constant of the target is -inf; constants must be finite numbers.")
    if not isinstance(entry, Line):
        raise ExpressionError("A number of the target depends on its inputs where a constant is needed.")
    return entry.bias


def _channels(given: Given) -> Given:
    """prelu's weights lie along the second axis."""
    axes = given["self"].ndim
    return {**given, "weight": given["weight"].reshape([1, -1] + [1] * (axes - 2) if axes > 1 else [-1])}


def largest_of_two(sign: int) -> Operation:
    return mapped(lambda context, *pair: context.largest(pair, sign), "self", "other")


def compared(reverse: bool) -> Operation:
    def compare(context: Context, given: Given) -> Array:
        pairs, shape = _broadcast(context, given["self"], given["other"])
        left, right = (context.operands(part) for part in (pairs[::-1] if reverse else pairs))
        return shaped(map(Comparison, left, right), shape)

    return compare


def chosen(context: Context, given: Given) -> Any:
    known = isinstance(given["condition"], Tensor)
    return (moved if known else mapped(Context.choice, "condition", "self", "other"))(context, given)


def _opposite(context: Context, entry: Entry) -> Comparison:
    if not isinstance(entry, Comparison):
        raise DiscontinuityError("The opposite of what is not a comparison jumps.")
    return Comparison(entry.below, entry.above)


opposite = mapped(_opposite, "self")
INDICES = frozenset("indices index mask condition repeats".split())


def moved(context: Context, given: Given) -> Any:
    """torch's operation on numbers that stand for the entries; number 0 is the entry 0, which torch fills in."""
    if given.get("accumulate") or given.get("reduce"):
        raise ExpressionError("Writing into a tensor what is added to it is not known; add it in a step of its own.")
    table: list[Array] = [shaped([ZERO], (1,))]
    count = 1

    def numbered(value: Any) -> Tensor:
        nonlocal count
        array = context.array(value)
        table.append(array.ravel())
        count += array.size
        return torch.arange(count - array.size, count, dtype=torch.float64).reshape(array.shape)

    def numbers(key: str, value: Any) -> Any:
        if key in INDICES:
            if any(isinstance(v, np.ndarray) for v in (value if isinstance(value, list) else [value])):
                raise DiscontinuityError("An index or a mask depends on the input, so that the result jumps.")
            return value
        if isinstance(value, list | tuple) and any(isinstance(v, Tensor | np.ndarray) for v in value):
            return [numbered(v) for v in value]
        if isinstance(value, Tensor | np.ndarray):
            return numbered(value)
        scalar = key in ("value", "self", "other") and isinstance(value, int | float)
        return numbered(value).item() if scalar else value

    result = context.call({key: numbers(key, value) for key, value in given.items()})
    entries = np.concatenate(table)
    return taken(entries, result) if isinstance(result, Tensor) else [taken(entries, part) for part in result]


def taken(entries: Array, numbers: Tensor) -> Array:
    """The entries that the numbers stand for."""
    return entries[numbers.long().reshape(-1).numpy()].reshape(tuple(numbers.shape))


def filled(context: Context, given: Given) -> Tensor:
    """A tensor of constants that has only the shape of the input."""
    zeros = {k: torch.zeros(v.shape, dtype=torch.float64) for k, v in given.items() if isinstance(v, np.ndarray)}
    made = context.call({**given, **zeros})
    return torch.zeros_like(made) if "empty" in context.target._schema.name else made
