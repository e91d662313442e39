"""Nelder and Mead's search, several at once, with the same bits on every machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence

import numpy as np

from anchorhead.arithmetic import Array


def descend(f: Callable[[list[Array]], list[float]], simplices: Sequence[Array], tries: int,
            close: float = 1e-4) -> list[tuple[float, Array]]:  # fmt: skip
    """Nelder and Mead's search from each simplex of points: the smallest value found with so many tries, and where.

    f is asked for several points at once. A search ends early once all points of its simplex lie within `close` of the
    best, and so do their values.
    """
    found: list[tuple[float, Array]] = [(math.inf, simplex[0]) for simplex in simplices]
    running = {i: _search(simplex, tries, close) for i, simplex in enumerate(simplices)}
    wanted = {i: next(search) for i, search in running.items()}
    while wanted:
        values = iter(f([point for points in wanted.values() for point in points]))
        for i, points in list(wanted.items()):
            try:
                wanted[i] = running[i].send([next(values) for _ in points])
            except StopIteration as end:
                found[i] = end.value
                del wanted[i]
    return found


Search = Generator[Sequence[Array], list[float], tuple[float, Array]]


def _search(simplex: Array, tries: int, close: float) -> Search:
    """Yields points, is sent their values, and returns the best."""
    count = 0

    def asked(points: Sequence[Array]) -> Generator[Sequence[Array], list[float], list[tuple[float, int, Array]]]:
        nonlocal count
        values = yield points
        count += len(points)
        return [
            (value, count - len(points) + i, point) for i, (value, point) in enumerate(zip(values, points, strict=True))
        ]

    def ranked(found: list[tuple[float, int, Array]]) -> list[tuple[float, int, Array]]:
        return sorted(found, key=lambda entry: entry[:2])

    entries = ranked((yield from asked(list(simplex))))
    while count < tries:
        best, worst = entries[0], entries[-1]
        apart = max(float(np.abs(p - best[2]).max()) for _, _, p in entries[1:])
        if worst[0] - best[0] <= close and apart <= close:
            break
        middle = np.add.reduce([p for _, _, p in entries[:-1]], 0) / (len(entries) - 1)
        (new,) = yield from asked([middle + (middle - worst[2])])
        if new[0] < best[0]:
            (further,) = yield from asked([middle + 2 * (middle - worst[2])])
            new = min(new, further, key=lambda entry: entry[:2])
        elif not new[0] < entries[-2][0]:
            outside = new[0] < worst[0]
            (inner,) = yield from asked([middle + (middle - worst[2]) / (2 if outside else -2)])
            if not inner[0] < min(new[0], worst[0]):
                entries = ranked([best, *(yield from asked([best[2] + (p - best[2]) / 2 for _, _, p in entries[1:]]))])
                continue
            new = inner
        entries = ranked([*entries[:-1], new])
    return entries[0][0], entries[0][2]
