"""What an experiment is: a grid of tasks, a function from a setting and a seed to numbers, figures, and findings.

An experiment is one file in `experiments/` that ends in `EXPERIMENT = Experiment(...)` and is listed in
`experiments/__init__.py`. Its numbers depend on nothing but the setting and the seed: it draws from its own
`torch.Generator`, and runs on one thread, so that every worker gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from anchorhead.lab.rows import Rows

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
    figures: Callable[[Rows], dict[str, Figure]]
    findings: Callable[[Rows], list[Finding]]
    clocked: tuple[str, ...] = ()


def _short(value: Value) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
