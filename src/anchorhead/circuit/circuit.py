"""A target as a circuit: what has to become attention, and exact affine maps in between.

A *wire* carries one real number: first the inputs, then the results of the steps, in order. A *line* (`line.py`) is an
affine combination of wires with exact coefficients. Everything affine in a target is folded into lines, so that steps
are the nonlinear operations only, each of which becomes a head:

    Apply    phi(u)                      a function of one variable
    Times    phi(u) · v                  a function that carries a partner; a product if phi is the identity
    Largest  max(u_1, ..., u_m)
    Attend   sum_j softmax_j(q·k_j + offset_j) v_j      the target's own softmax attention, as it is
    Pool     the same over the tokens of a prompt, however many; a mean, where all weigh the same

with lines for all their arguments; phi is an expression in the variable u. `step.py` says what a kind of step knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from anchorhead.circuit.apply import Apply, Times, U
from anchorhead.circuit.attend import Attend
from anchorhead.circuit.largest import Largest
from anchorhead.circuit.line import Line
from anchorhead.circuit.places import Place, places_of
from anchorhead.circuit.pool import Pool
from anchorhead.circuit.step import Step
from anchorhead.enclosure.exact import Number, times
from anchorhead.expression.graph import Node

__all__ = ["KINDS", "Apply", "Attend", "Circuit", "Largest", "Line", "Pool", "Step", "Times", "U"]

KINDS: dict[str, type[Step]] = {kind.name: kind for kind in (Apply, Times, Largest, Attend, Pool)}
"""The kinds of steps, by their names in files."""


@dataclass(frozen=True)
class Circuit:
    """inputs: names of the input wires. steps: in order. outputs: lines; the shapes are those of one input and output.

    The wires of step i are `starts[i]` to `starts[i] + steps[i].width - 1`. tokens: how many inputs, the first ones,
    every token of a prompt has for itself; state: how many of the next the prompt has, for all of them; the others are
    a query's (`places.py`).
    """

    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Line, ...]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    tokens: int = 0
    state: int = 0
    starts: tuple[int, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        starts, wire = [], len(self.inputs)
        for step in self.steps:
            starts.append(wire)
            wire += step.width
        object.__setattr__(self, "starts", tuple(starts))

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Where every wire lives."""
        return places_of(len(self.inputs), self.tokens, self.steps, self.state)

    def place(self, step: int) -> Place:
        """Where a step is computed."""
        return self.places[self.starts[step]]

    @property
    def answers(self) -> Place:
        """Where the outputs are read: at every query, or of the prompt where there are none."""
        return Place.QUERY if self.tokens + self.state < len(self.inputs) else Place.PROMPT

    @property
    def wires(self) -> int:
        return len(self.inputs) + sum(step.width for step in self.steps)

    def wire_name(self, wire: int) -> str:
        """What a wire carries, in the user's own terms."""
        if wire < len(self.inputs):
            return self.inputs[wire]
        for step, start in zip(self.steps, self.starts, strict=True):
            if start <= wire < start + step.width:
                return step.label or f"step {start}"
        raise IndexError(wire)

    def line_name(self, line: Line) -> str:
        """What a line with a few terms says, in the user's own terms; empty where it is long."""
        if len(line.terms) > 3:
            return ""
        text = ""
        for wire, c in line.terms.items():
            name = self.wire_name(wire)
            minus = not isinstance(c, Node) and c < 0
            size = times(-1, c) if minus else c
            term = name if size == 1 else f"{_digits(size)}*{name if name.isidentifier() else f'({name})'}"
            text += (" - " if minus else " + ") + term
        if line.bias != 0:
            text += f" + {_digits(line.bias)}"
        return text.removeprefix(" + ").strip()

    def depths(self) -> list[int]:
        """For each step the number of its layer, from 1: one more than the deepest step that it needs."""
        at = [0] * len(self.inputs)
        found = []
        for step in self.steps:
            depth = 1 + max((at[w] for line in step.lines() for w in line.terms), default=0)
            found.append(depth)
            at += [depth] * step.width
        return found


def _digits(number: Number) -> str:
    return str(number) if isinstance(number, Node) else f"{float(number):g}"
