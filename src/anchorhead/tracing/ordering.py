"""Sorting by maxima and minima: what torch orders, on arrays of entries.

A *comparator* writes the smaller of two numbers in the place of the first and the larger in that of the second, so that
every order statistic is a continuous function of the numbers, made of `Largest` steps alone. Batcher's merge exchange
(Knuth, The Art of Computer Programming 3, 5.2.2, Algorithm M) says which pairs to compare, without looking at them:
about n (log2 n)²/4 comparators for n numbers, each of two heads, (log2 n)²/2 deep. What no output needs is not made.

That it sorts whatever it is given follows, by the zero-one principle, from its sorting every row of zeros and ones; the
tests try them all. The places that torch returns beside the values jump, and are refused where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from anchorhead.errors import ExpressionError
from anchorhead.tracing.elements import Array, Context, Given, Jumps, Operation, shaped
from anchorhead.tracing.entries import Entry

Pick = Callable[[Given, int], range]
"""Which of n numbers in increasing order are wanted, and in which order."""


def comparators(count: int) -> Iterator[tuple[int, int]]:
    """The pairs (i, j), i < j, that sort `count` numbers when compared one after the other."""
    top = 1 << max((count - 1).bit_length() - 1, 0)
    gap = top
    while gap > 0 and count > 1:
        reach, offset, distance = top, 0, gap
        while True:
            yield from ((i, i + distance) for i in range(count - distance) if i & gap == offset)
            if reach == gap:
                break
            distance, reach, offset = reach - gap, reach >> 1, gap
        gap >>= 1


def in_order(context: Context, row: list[Entry]) -> list[Entry]:
    """The entries in increasing order."""
    found = list(context.operands(row))
    for i, j in comparators(len(found)):
        pair = found[i], found[j]
        low, high = context.operands([context.largest(pair, -1), context.largest(pair, 1)])
        found[i], found[j] = low, high
    return list(found)


def ordered(pick: Pick, *, single: bool = False) -> Operation:
    """The picked order statistics along an axis, and the places, which jump; one number where it is single."""

    def apply(context: Context, given: Given) -> Array | list[Array | Jumps]:
        array, axis = given["self"], given.get("dim", -1)
        flat = single and "dim" not in given and "k" not in given  # median of everything, which has no places
        array = array.reshape(-1) if flat or not array.ndim else np.moveaxis(array, axis, -1)
        wanted = pick(given, array.shape[-1])
        rows = [in_order(context, list(row)) for row in array.reshape(-1, array.shape[-1])]
        found = shaped((row[i] for row in rows for i in wanted), (*array.shape[:-1], len(wanted)))
        if flat or not given["self"].ndim:
            return found.reshape(()) if flat else [found.reshape(()), PLACES]
        found = found if not single or given.get("keepdim") else found[..., 0]
        return [found if found.ndim < array.ndim else np.moveaxis(found, -1, axis), PLACES]

    return apply


PLACES = Jumps("the places of numbers in an order jump, and the numbers do not: return torch.sort(x).values alone")


def _sorted(given: Given, count: int) -> range:
    return range(count - 1, -1, -1) if given.get("descending") else range(count)


def _top(given: Given, count: int) -> range:
    kept = given["k"]
    return range(count - 1, count - 1 - kept, -1) if given.get("largest", True) else range(kept)


def _middle(given: Given, count: int) -> range:
    if not count:
        raise ExpressionError("The median of no numbers is not a number.")
    return range((count - 1) // 2, (count - 1) // 2 + 1)


def _kth(given: Given, count: int) -> range:
    return range(given["k"] - 1, given["k"])


def msort(context: Context, given: Given) -> Array:
    """Along the first axis, without places."""
    values = sort(context, {**given, "dim": 0})[0]
    return context.array(values)


sort, topk = ordered(_sorted), ordered(_top)
median, kthvalue = ordered(_middle, single=True), ordered(_kth, single=True)
