"""Reductions and normalisations, on arrays of entries.

Each is its defining formula, in exact numbers: a mean of n divides by n, a normalisation is (x - mean) times
rsqrt(variance + eps). Constants such as the scale of a batch norm are those that torch computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from anchorhead.circuit.line import Line
from anchorhead.enclosure.exact import over
from anchorhead.errors import ExpressionError
from anchorhead.tracing.elements import (
    Array,
    Context,
    Given,
    Jumps,
    Operation,
    added,
    finite,
    largest_of_two,
    multiplied,
    shaped,
)
from anchorhead.tracing.entries import ZERO, Entry, Masked, Sum


def _over_axes(work: Callable[[Context, list[list[Entry]], Given], Sequence[Entry]]) -> Operation:
    """An operation that makes one entry of all along some axes: one, several, or all if torch names none."""

    def apply(context: Context, given: Given) -> Array:
        array, dims = given["self"], given.get("dim")
        named = [dims] if isinstance(dims, int) else list(dims or ())
        axes = sorted(axis % max(array.ndim, 1) for axis in named) if named else list(range(array.ndim))
        kept = [axis for axis in range(array.ndim) if axis not in axes]
        shape = tuple(array.shape[axis] for axis in kept)
        rows = array.transpose(kept + axes).reshape(math.prod(shape), -1)
        if given.get("keepdim"):
            shape = tuple(1 if axis in axes else size for axis, size in enumerate(array.shape))
        return shaped(work(context, rows.tolist(), given), shape)

    return apply


def reduction(reduce: Callable[[Context, list[Entry], Given], Entry]) -> Operation:
    return _over_axes(lambda context, rows, given: [reduce(context, row, given) for row in rows])


def summed(mean: bool) -> Operation:
    """All sums at once, so that weights of one softmax meet all their values in one attention."""

    def work(context: Context, rows: list[list[Entry]], given: Given) -> list[Entry]:
        found = context.sums([Sum([1] * len(row), row) for row in rows])
        return [context.scale(entry, Fraction(1, len(rows[0])) if mean else 1) for entry in found]

    return _over_axes(work)


def extreme(sign: int) -> Operation:
    reduce = reduction(lambda context, row, given: context.largest(row, sign))
    pair = largest_of_two(sign)

    def apply(context: Context, given: Given) -> Any:
        if "other" in given:
            return pair(context, given)
        values = reduce(context, given)
        if "dim" in given and context.target._schema.name in ("aten::max", "aten::min"):
            return [values, Jumps("the indices of a maximum or minimum jump, its value does not: return .values alone")]
        return values

    return apply


def product(context: Context, row: list[Entry], given: Given) -> Entry:
    return context.builder.product(context.operands(row), context.label)


def centred(context: Context, row: Sequence[Entry]) -> list[Entry]:
    """Each entry minus the mean of all."""
    if len(row) == 1:
        return [ZERO]
    mean = context.scale(context.sum(row), Fraction(1, len(row)))
    return context.sums([Sum((1, -1), (entry, mean)) for entry in row])


def variance(context: Context, row: list[Entry], given: Given) -> Entry:
    correction = given.get("correction", 1 if given.get("unbiased", True) else 0)
    below = len(row) - (1 if correction is None else correction)
    if below <= 0:
        raise ExpressionError("A variance of too few numbers for its correction is not a number.")
    return context.sum([context.square(entry) for entry in centred(context, row)], over(1, below))


def deviation(context: Context, row: list[Entry], given: Given) -> Entry:
    return context.unary("sqrt", variance(context, row, given))


def norm(context: Context, row: list[Entry], given: Given) -> Entry:
    order = given.get("ord", given.get("p", 2))
    order = 2 if order is None else order
    if order == 2:
        return context.unary("sqrt", context.sum([context.square(entry) for entry in row]))
    sizes: list[Entry] = [context.unary("abs", entry) for entry in row]
    if order == 1:
        return context.sum(sizes)
    if order == math.inf:
        return context.largest(sizes)
    raise ExpressionError(f"The norm of order {order} is not known; 1, 2 and inf are.")


def log_sum_exp(context: Context, row: list[Entry], given: Given) -> Entry:
    exponentials: list[Entry] = [context.unary("exp", entry) for entry in row if not isinstance(entry, Masked)]
    return context.unary("log", context.sum(exponentials))


def along(work: Callable[[Context, list[Entry]], list[Entry]]) -> Operation:
    """An operation on the entries along one axis that gives as many again."""

    def apply(context: Context, given: Given) -> Array:
        array = np.moveaxis(given["self"], given["dim"], -1) if given["self"].ndim else given["self"].reshape(1)
        rows = array.reshape(-1, array.shape[-1])
        found = shaped((entry for row in rows for entry in work(context, list(row))), array.shape)
        return np.moveaxis(found, -1, given["dim"]) if given["self"].ndim else found.reshape(())

    return apply


def weights(context: Context, given: Given) -> Array:
    safe = "safe" in context.target._schema.name
    array = np.moveaxis(given["self"], given["dim"], -1) if given["self"].ndim else given["self"].reshape(1)
    found = weights_of_rows(context, array, safe)
    return np.moveaxis(found, -1, given["dim"]) if given["self"].ndim else found.reshape(())


def weights_of_rows(context: Context, scores: Array, safe: bool) -> Array:
    """Softmax along the last axis. The label of each row has its place along the others that are longer than one: of
    attention, the head and the token that asks."""
    label, long = context.label, [axis for axis, size in enumerate(scores.shape[:-1]) if size > 1]
    found: list[Entry] = []
    for place in np.ndindex(scores.shape[:-1]):
        context.label = f"{label}{[place[axis] for axis in long]}" if long else label
        found += context.softmax(list(scores[place]), safe=safe)
    context.label = label
    return shaped(found, scores.shape)


def log_weights(context: Context, row: list[Entry]) -> list[Entry]:
    row = list(context.operands(row))
    total = log_sum_exp(context, row, {})
    return context.sums([Sum((1, -1), (entry, total)) for entry in row])


def running_sums(context: Context, row: list[Entry]) -> list[Entry]:
    return context.sums([Sum([1] * (i + 1), row[: i + 1]) for i in range(len(row))])


def running_products(context: Context, row: list[Entry]) -> list[Entry]:
    return [product(context, row[: i + 1], {}) for i in range(len(row))]


def _affine(context: Context, array: Array, weight: Any, bias: Any) -> Array:
    if weight is not None:
        array = multiplied(context, {"self": array, "other": weight})
    return array if bias is None else added(1)(context, {"self": array, "other": bias})


def _mean_square(context: Context, row: Sequence[Entry], eps: float) -> Entry:
    return context.sum([context.square(entry) for entry in row], Fraction(1, len(row)), finite(eps))


def _standardised(context: Context, given: Given, rows: Array, centre: bool = True) -> Array:
    """(x - mean) · rsqrt(variance + eps) for each entry of each row, without the mean if it is not to be centred."""
    eps = given.get("eps", 1e-5 if centre else None)
    eps = torch.finfo(torch.float64).eps if eps is None else eps
    found: list[Entry] = []
    for row in rows:
        moved: list[Entry] = centred(context, row) if centre else list(row)
        size = _mean_square(context, moved, eps)
        if isinstance(size, Line):  # of several lines: as squares of lines it is seen to be a norm (`circuit/norm.py`)
            moved = [context.builder.line(operand) for operand in context.operands(moved)]
            size = _mean_square(context, moved, eps)
        factor = context.unary("rsqrt", size)
        found += [context.product(entry, factor) for entry in moved]
    return shaped(found, given["input"].shape)


def _over_last(centre: bool) -> Operation:
    """layer_norm, or rms_norm without a centre."""

    def apply(context: Context, given: Given) -> Array:
        rows = given["input"].reshape(-1, math.prod(given["normalized_shape"]))
        return _affine(context, _standardised(context, given, rows, centre), given.get("weight"), given.get("bias"))

    return apply


def over_channels(vector: Any, axes: int) -> Any:
    """A vector of numbers for each channel, to be broadcast along the second axis."""
    return None if vector is None else vector.reshape([1, -1] + [1] * (axes - 2))


def group_norm(context: Context, given: Given) -> Array:
    array = given["input"]
    groups = given["num_groups"] if "num_groups" in given else given["group"]
    weight, bias = (over_channels(given.get(key), array.ndim) for key in ("weight", "bias"))
    return _affine(context, _standardised(context, given, array.reshape(len(array) * groups, -1)), weight, bias)


def batch_norm(context: Context, given: Given) -> Array:
    if given.get("training"):
        raise ExpressionError("batch_norm in training depends on the other inputs of a batch")
    array, mean, variance = given["input"], given["running_mean"], given["running_var"]
    scale = 1 / torch.sqrt(variance + given.get("eps", 1e-5))
    scale = scale if given.get("weight") is None else scale * given["weight"]
    shift = -mean * scale if given.get("bias") is None else given["bias"] - mean * scale
    return _affine(context, array, over_channels(scale, array.ndim), over_channels(shift, array.ndim))


def instance_norm(context: Context, given: Given) -> Array:
    if not given["use_input_stats"]:
        return batch_norm(context, given)
    return group_norm(context, {**given, "num_groups": given["input"].shape[1]})


layer_norm, rms_norm = _over_last(True), _over_last(False)
