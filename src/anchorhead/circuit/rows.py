"""The affine numbers of a network as they are stored, line by line of its circuit: what runs, and what is proved.

The target has exact lines; the network has rows of floats, one for each line that a step or an output reads, and for
each step three numbers (α, β, γ) with which it uses its head, α h(t) + β t + γ (for a maximum α is its sharpness). A
compiler rounds them once (`rounded`); from then on these floats are placed in matrices, saved, loaded and run, and the
proof (`proof/flow.py`) is about them, whatever they are: how far they lie from the exact ones is part of the error.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.layout import LayerPlan, rows_of, states
from anchorhead.circuit.line import Line
from anchorhead.circuit.step import Use, Values
from anchorhead.enclosure.exact import all_stored, stored


@dataclass(frozen=True)
class Row:
    """bias + sum of coefficient · wire, in floats; no coefficient is zero."""

    terms: dict[int, float]
    bias: float

    @property
    def wire(self) -> int | None:
        """The wire that the row passes on as it is, if that is all it does."""
        only = next(iter(self.terms)) if len(self.terms) == 1 and self.bias == 0 else None
        return only if only is not None and self.terms[only] == 1 else None


@dataclass(frozen=True)
class Wiring:
    """rows: for each step those that it reads, by `Step.read_lines`; outputs: one for each; values: by step."""

    uses: tuple[Use, ...]
    rows: tuple[tuple[Row, ...], ...]
    outputs: tuple[Row, ...]
    values: tuple[Values, ...]

    def sharpened(self, steps: Collection[int], beta: float) -> Wiring:
        """With that β for these steps."""
        found = [(beta, 0.0, 0.0) if i in steps else values for i, values in enumerate(self.values)]
        return replace(self, values=tuple(found))


@dataclass(frozen=True)
class StoredMap:
    """An affine map as a file holds it: row r has entries[starts[r]:starts[r + 1]] in those columns, and bias[r]."""

    entries: tuple[float, ...]
    columns: tuple[int, ...]
    starts: tuple[int, ...]
    bias: tuple[float, ...]

    def problem(self, width: int) -> str | None:
        """Why this is no map on `width` numbers; None if it is."""
        if len(self.starts) != len(self.bias) + 1 or self.starts[0] != 0 or self.starts[-1] != len(self.entries):
            return "its rows do not begin and end with its entries"
        if any(a > b for a, b in zip(self.starts, self.starts[1:], strict=False)):
            return "its rows are not in order"
        if len(self.columns) != len(self.entries) or not all(0 <= c < width for c in self.columns):
            return f"its columns are not those of {width} numbers"
        if any(len(set(self.columns[a:b])) < b - a for a, b in zip(self.starts, self.starts[1:], strict=False)):
            return "a row names a column twice"
        return None

    def row(self, index: int, held: Sequence[int]) -> Row:
        """A row in terms of the wires that the places hold."""
        part = range(self.starts[index], self.starts[index + 1])
        return Row({held[self.columns[k]]: self.entries[k] for k in part if self.entries[k] != 0}, self.bias[index])


def rounded(circuit: Circuit, uses: Sequence[Use], dtype: str) -> Wiring:
    """The wiring with every number rounded to the dtype."""
    known: dict[Line, Row] = {}

    def row(line: Line) -> Row:
        if line not in known:
            known[line] = rounded_row(line, dtype)
        return known[line]

    rows = [tuple(row(line) for line in step.read_lines(use)) for step, use in zip(circuit.steps, uses, strict=True)]
    values = [(stored(a, dtype), stored(b, dtype), stored(c, dtype)) for a, b, c in (use.values for use in uses)]
    return Wiring(tuple(uses), tuple(rows), tuple(row(line) for line in circuit.outputs), tuple(values))


def rounded_row(line: Line, dtype: str) -> Row:
    """The line with every number rounded to the dtype."""
    terms = dict(zip(line.terms, all_stored(list(line.terms.values()), dtype), strict=True))
    return Row({wire: c for wire, c in terms.items() if c != 0}, stored(line.bias, dtype))


def maps_of(circuit: Circuit, plans: Sequence[LayerPlan], wiring: Wiring) -> list[StoredMap]:
    """The affine map before each layer, and the outputs', with the rows in their places."""
    wanted = [[wiring.rows[i][k] for group in plan.groups for i, k in rows_of(circuit, group)] for plan in plans]
    return [placed(rows, held) for rows, held in zip([*wanted, wiring.outputs], states(circuit, plans), strict=True)]


def placed(rows: Sequence[Row], held: Sequence[int]) -> StoredMap:
    """The rows as one map on a state that holds these wires."""
    place = {wire: k for k, wire in enumerate(held)}
    entries: list[float] = []
    columns: list[int] = []
    starts = [0]
    for row in rows:
        columns += [place[wire] for wire in row.terms]
        entries += row.terms.values()
        starts.append(len(entries))
    return StoredMap(tuple(entries), tuple(columns), tuple(starts), tuple(row.bias for row in rows))


def wiring_of(circuit: Circuit, plans: Sequence[LayerPlan], maps: Sequence[StoredMap], uses: Sequence[Use],
              values: Sequence[Values]) -> Wiring:  # fmt: skip
    """The wiring that stored maps amount to: the inverse of `maps_of`. The maps fit the layers."""
    rows: list[dict[int, Row]] = [{} for _ in circuit.steps]
    held_by_layer = list(states(circuit, plans))
    for plan, held, affine in zip(plans, held_by_layer, maps, strict=False):
        owners = [owner for group in plan.groups for owner in rows_of(circuit, group)]
        for r, (i, k) in enumerate(owners):
            rows[i][k] = affine.row(r, held)
    outputs = tuple(maps[-1].row(r, held_by_layer[-1]) for r in range(len(circuit.outputs)))
    listed = tuple(tuple(found[k] for k in range(len(found))) for found in rows)
    return Wiring(tuple(uses), listed, outputs, tuple(values))
