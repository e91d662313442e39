"""What an experiment is: a grid of tasks, a function from a setting and a seed to rows of numbers, figures, findings.

An experiment is one file in `experiments/`, listed in `experiments/__init__.py`, whose name is its name: its TITLE,
what it is ABOUT, and the functions `tasks`, `run`, `figures` and `findings`. Its numbers depend on nothing but the
setting and the seed: it draws from its own `torch.Generator`, and runs on one thread, so that every worker gives the
same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

Value = str | int | float
Setting = dict[str, Value]
Row = dict[str, Value]

SEEDS = tuple(range(1234, 1245))
"""The eleven seeds of the published scripts."""


@dataclass(frozen=True)
class Task:
    """One thing to run: a setting (names to values, the same names throughout an experiment) and a seed."""

    setting: Setting
    seed: int

    def __str__(self) -> str:
        said = ", ".join(f"{name} {_short(value)}" for name, value in self.setting.items())
        return f"{said}, seed {self.seed}"


@dataclass(frozen=True)
class Table:
    """Numbers for the report, as they are to be read."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


Finding = str | Table
"""A sentence or a table, made from the numbers."""


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

    def by(self, name: str, *names: str) -> Iterator[tuple[Any, ...]]:
        """The rows in groups of one value of each name, after those values, in order of first appearance."""
        for value in self.values(name):
            mine = self.where(**{name: value})
            yield from ((value, *group) for group in mine.by(*names)) if names else [(value, mine)]

    def ordered(self, name: str) -> Rows:
        """The rows from the smallest to the largest of one name's numbers."""
        return Rows(sorted(self._rows, key=lambda row: float(row[name])))

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


@dataclass(frozen=True)
class Experiment:
    """See the top of this file.

    tasks: from `quick` to what is to be run, long tasks first; quick tasks should be among the others.
    run: from setting and seed to rows of numbers, with the same names for every task.
    figures: from the rows to figures by name, each narrow enough to be read on a phone.
    findings: from the rows to sentences and tables.
    clocked: names of numbers that depend on the machine's speed; they are kept in a CSV of their own.
    """

    name: str
    title: str
    about: str
    tasks: Callable[[bool], list[Task]]
    run: Callable[[Setting, int], list[Row]]
    figures: Callable[[Rows], Mapping[str, Figure]]
    findings: Callable[[Rows], list[Finding]]
    clocked: tuple[str, ...] = ()

    @classmethod
    def of(cls, file: ModuleType) -> Experiment:
        """The experiment that a file is."""
        name, clocked = file.__name__.rpartition(".")[2], getattr(file, "CLOCKED", ())
        return cls(name, file.TITLE, file.ABOUT, file.tasks, file.run, file.figures, file.findings, clocked)


def measured(error: Tensor, bound: float, keys: int) -> Row:
    """What is told of a network's errors on some inputs."""
    return {"keys": keys, "sup": error.abs().max().item(), "mean_square": error.square().mean().item(), "bound": bound}


def known(value: float, form: str = ".1e") -> str:
    """A number for a table; nothing where there is none."""
    return "" if math.isnan(value) else format(value, form)


def _short(value: Value) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
