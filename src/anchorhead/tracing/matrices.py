"""Products of matrices, attention and convolutions, on arrays of entries.

A product of two matrices that both depend on the input is kept as scores, and one whose rows are weights of a softmax
is attention, so that attention written by hand stays attention (see `entries`). A convolution is a product of
the matrix of its windows, which torch itself lays out on a tensor that numbers the entries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorhead.circuit.line import Line
from anchorhead.enclosure.exact import Number, over
from anchorhead.errors import ExpressionError
from anchorhead.tracing.elements import (
    Array,
    Context,
    Given,
    Operation,
    added,
    finite,
    multiplied,
    shaped,
    taken,
)
from anchorhead.tracing.entries import MASKED, ZERO, Bilinear, Entry, Sum, Weight
from anchorhead.tracing.sums import weights_of_rows


def product_of_matrices(context: Context, left: Any, right: Any, bias: Any = None) -> Array:
    """left @ right as torch.matmul has it, plus a constant bias for each column."""
    if isinstance(right, Tensor) and right.ndim == 2 and isinstance(left, np.ndarray) and left.ndim > 0:
        found = _by_numbers(context, left, right, bias)
        if found is not None:
            return found
    a, b = context.array(left), context.array(right)
    rows, columns = (a[None] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    batch = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])
    rows = np.broadcast_to(rows, batch + rows.shape[-2:])
    columns = np.broadcast_to(columns, batch + columns.shape[-2:])
    biases = [0] * columns.shape[-1] if bias is None else [finite(number) for number in bias.tolist()]
    found = np.empty((*batch, rows.shape[-2], columns.shape[-1]), dtype=object)
    for place in np.ndindex(*batch):
        found[place] = _matrix(context, rows[place], columns[place], biases)
    if a.ndim == 1:
        found = found[..., 0, :]
    return found[..., 0] if b.ndim == 1 else found


def _by_numbers(context: Context, left: Array, right: Tensor, bias: Any) -> Array | None:
    """left @ right for a matrix of numbers, as numbers; None where one is not finite or weights need another way."""
    if right.is_complex() or not bool(right.isfinite().all()):
        return None
    if any(isinstance(entry, Weight) for entry in left.ravel()):
        return None
    biases = [0] * right.shape[1] if bias is None else [finite(number) for number in bias.tolist()]
    columns = right.T.tolist()
    places = [None if all(column) else [k for k, c in enumerate(column) if c] for column in columns]
    wanted = []
    for row in left.reshape(-1, left.shape[-1]):
        entries = list(row)
        for column, kept, own in zip(columns, places, biases, strict=True):
            if kept is None:
                wanted.append(Sum(column, entries, own))
            else:
                wanted.append(Sum([column[k] for k in kept], [entries[k] for k in kept], own))
    return shaped(context.sums(wanted), (*left.shape[:-1], len(columns)))


def _matrix(context: Context, rows: Array, columns: Array, biases: Sequence[Number]) -> Array:
    shape = (len(rows), columns.shape[1])
    weights, numbers = _constants(columns.T), _constants(rows)
    terms = None
    if weights is not None and not any(isinstance(entry, Weight) for entry in rows.ravel()):
        terms = [(c, list(row[places])) for row in rows for c, places in weights]
    elif numbers is not None:
        terms = [(c, list(column[places])) for c, places in numbers for column in columns.T]
    if terms is not None:
        wanted = [Sum(*term, bias) for term, bias in zip(terms, cycle(biases), strict=False)]
        return shaped(context.sums(wanted), shape)
    found = _mixed_rows(context, rows, columns)
    if found is None and (turned := _mixed_rows(context, columns.T, rows.T)) is not None:
        found = turned.T
    if found is None:
        found = _scores(context, rows, columns)
    if any(bias != 0 for bias in biases):
        found = added(1)(context, {"self": found, "other": np.array([Line({}, bias) for bias in biases], dtype=object)})
    return found


def _constants(rows: Array) -> list[tuple[list[Number], list[int]]] | None:
    """The numbers that are not 0 and their places in each row, if all of them are constants."""
    found = []
    for row in rows:
        if not all(isinstance(entry, Line) and not entry.terms for entry in row):
            return None
        places = [k for k, entry in enumerate(row) if entry.bias != 0]
        found.append(([row[k].bias for k in places], places))
    return found


def _mixed_rows(context: Context, rows: Array, columns: Array) -> Array | None:
    """Weights of a softmax times values, if the rows hold weights."""
    if not any(isinstance(entry, Weight) for entry in rows.ravel()):
        return None
    found: list[Entry] = []
    for row in rows:
        mixed = context.mixed(list(row), columns.tolist())
        if mixed is None:
            products = [[context.product(a, b) for a, b in zip(row, column, strict=True)]
                        for column in columns.T]  # fmt: skip
            wanted = [Sum([1] * len(row), terms) for terms in products]
            found += context.sums(wanted)
        else:
            found += mixed
    return shaped(found, (len(rows), columns.shape[1]))


def _scores(context: Context, rows: Array, columns: Array) -> Array:
    left, right = ([tuple(context.operands(row)) for row in matrix] for matrix in (rows, columns.T))
    return shaped((Bilinear(a, b, 1, ZERO, context.label) for a in left for b in right), (len(left), len(right)))


def linear(context: Context, given: Given) -> Array:
    weight, bias = given["weight"], given.get("bias")
    known = isinstance(bias, Tensor)
    turned = weight.T if weight.ndim == 2 else weight
    found = product_of_matrices(context, given["input"], turned, bias if known else None)
    return found if bias is None or known else added(1)(context, {"self": found, "other": bias})


def matmul(first: str, second: str) -> Operation:
    return lambda context, given: product_of_matrices(context, given[first], given[second])


def added_product(base: str, first: str, second: str) -> Operation:
    """beta · base + alpha · first @ second."""

    def apply(context: Context, given: Given) -> Array:
        found = product_of_matrices(context, given[first], given[second])
        found = multiplied(context, {"self": found, "other": given.get("alpha", 1)})
        rest = context.array(given[base])
        if given.get("beta", 1) == 0:
            return found
        return added(1)(context, {"self": found, "other": rest, "alpha": given.get("beta", 1)})

    return apply


def attention(context: Context, given: Given) -> Array:
    """scaled_dot_product_attention: softmax(scale · query keyᵀ + mask) value, without what is masked. Its rows are
    called those of a softmax, which they are, so that `need_weights=` of a module changes no name."""
    context.label = context.label.replace("scaled_dot_product_attention", "softmax")
    if given.get("dropout_p", 0) > 0:
        raise ExpressionError("attention with dropout is random")
    query, key, value = (context.array(given[name]) for name in ("query", "key", "value"))
    if given.get("enable_gqa"):
        key, value = (np.repeat(array, query.shape[-3] // array.shape[-3], axis=-3) for array in (key, value))
    scale = given.get("scale")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = product_of_matrices(context, query, key.swapaxes(-1, -2))
    scores = multiplied(context, {"self": scores, "other": scale})
    mask = given.get("attn_mask")
    if given.get("is_causal"):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        kept = np.broadcast_to(mask.numpy(), scores.shape)
        scores = shaped(map(lambda e, k: e if k else MASKED, scores.ravel(), kept.ravel()), scores.shape)
    elif mask is not None:
        scores = added(1)(context, {"self": scores, "other": mask})
    return product_of_matrices(context, weights_of_rows(context, scores, True), value)


def _windows(array: Array, size: Sequence[int], given: Given, outside: Entry) -> Array:
    """The entries under a window at each place: (batch, channels, *places, *window)."""
    count = len(size)
    numbers = torch.arange(1, array.size + 1, dtype=torch.float64).reshape(array.shape)
    stride = _each(given.get("stride") or size, count)
    dilation = _each(given.get("dilation", 1), count)
    padding = _each(given.get("padding", 0), count)
    numbers = torch.nn.functional.pad(numbers, [p for p in reversed(padding) for _ in range(2)])
    for axis in range(count):
        reach = dilation[axis] * (size[axis] - 1) + 1
        numbers = numbers.unfold(2 + axis, reach, stride[axis])[..., :: dilation[axis]]
    return taken(np.concatenate([shaped([outside], (1,)), array.ravel()]), numbers)


def _each(value: Any, count: int) -> list[int]:
    listed = [value] if isinstance(value, int) else list(value)
    return listed * count if len(listed) == 1 else listed


def convolution(context: Context, given: Given) -> Array:
    if given.get("transposed"):
        raise ExpressionError("A transposed convolution is not known")
    array, weight, bias, groups = given["input"], given["weight"], given.get("bias"), given.get("groups", 1)
    if not isinstance(weight, Tensor):
        raise ExpressionError("A convolution whose kernel depends on the input is not known")
    size = tuple(weight.shape[2:])
    windows = _windows(array, size, given, ZERO)
    places = windows.shape[2 : 2 + len(size)]
    outputs, inputs = len(weight) // groups, array.shape[1] // groups
    parts = []
    for group in range(groups):
        taken = np.moveaxis(windows[:, group * inputs : (group + 1) * inputs], 1, 1 + len(size))
        kernel = weight[group * outputs : (group + 1) * outputs].reshape(outputs, -1).T
        shift = None if bias is None else bias[group * outputs : (group + 1) * outputs]
        parts.append(product_of_matrices(context, taken.reshape(-1, kernel.shape[0]), kernel, shift))
    found = np.concatenate(parts, axis=1).reshape(len(array), *places, groups * outputs)
    return np.moveaxis(found, -1, 1)


def pooling(largest: bool, axes: int) -> Operation:
    """max_pool and avg_pool, of one input or a batch."""

    def apply(context: Context, given: Given) -> Array:
        array = given["self"]
        if given.get("ceil_mode") or given.get("divisor_override"):
            raise ExpressionError("Pooling with ceil_mode or divisor_override is not known")
        if not largest and any(_each(given.get("padding", 0), axes)) and not given.get("count_include_pad", True):
            raise ExpressionError("Average pooling that does not count its padding is not known")
        batch = array if array.ndim == axes + 2 else array[None]
        size = _each(given["kernel_size"], axes)
        windows = _windows(batch, size, given, MASKED if largest else ZERO)
        shape = windows.shape[: 2 + axes]
        rows = windows.reshape(-1, math.prod(size))
        if largest:
            found = shaped((context.largest(list(row)) for row in rows), shape)
        else:
            found = product_of_matrices(context, rows, torch.ones(rows.shape[1])).reshape(shape)
            found = multiplied(context, {"self": found, "other": shaped([Line({}, over(1, math.prod(size)))], ())})
        return found if batch is array else found[0]

    return apply


def adaptive_average(context: Context, given: Given) -> Array:
    """adaptive_avg_pool: the mean over windows that cover each axis evenly."""
    found = given["self"]
    size = list(given["output_size"])
    for axis, count in zip(range(found.ndim - len(size), found.ndim), size, strict=True):
        length = found.shape[axis]
        shares = [[Fraction(0)] * length for _ in range(count)]
        for place in range(count):
            start, end = place * length // count, -(-(place + 1) * length // count)
            shares[place][start:end] = [Fraction(1, end - start)] * (end - start)
        numbers = shaped((Line({}, share) for row in shares for share in row), (count, length))
        found = np.moveaxis(product_of_matrices(context, np.moveaxis(found, axis, -1), numbers.T), -1, axis)
    return found
