"""Rows of results: chosen, grouped and read by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from anchorhead.lab.experiment import Row, Value


class Rows:
    """A list of rows with the same names."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = list(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def where(self, **wanted: Value) -> Rows:
        """Those rows that have all the given values."""
        return Rows(r for r in self._rows if all(r[name] == value for name, value in wanted.items()))

    def values(self, name: str) -> list[Any]:
        """The different values of one name, in order of first appearance."""
        return list(dict.fromkeys(row[name] for row in self._rows))

    def by(self, name: str) -> Iterator[tuple[Any, Rows]]:
        """The rows in groups of one value of `name`, in order of first appearance."""
        for value in self.values(name):
            yield value, self.where(**{name: value})

    def column(self, name: str) -> np.ndarray:
        """One name's numbers, float64."""
        return np.array([row[name] for row in self._rows], dtype=np.float64)

    def mean(self, name: str) -> float:
        """The mean over the rows."""
        return float(self.column(name).mean())

    def median(self, name: str) -> float:
        """The median over the rows."""
        return float(np.median(self.column(name)))

    def largest(self, name: str) -> float:
        """The largest over the rows."""
        return float(self.column(name).max())

    def within_bounds(self, error: str = "sup", bound: str = "bound") -> bool:
        """Whether no error exceeds its bound, where there is one."""
        errors, bounds = self.column(error), self.column(bound)
        return bool((errors <= bounds)[~np.isnan(bounds)].all())

    def one(self, name: str) -> Any:
        """The value that all rows have."""
        (value,) = self.values(name)
        return value
