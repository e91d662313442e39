"""A target as a circuit: what has to become attention, and exact affine maps in between.

A *wire* carries one real number: first the inputs, then the results of the steps, in order. A *line* is an affine
combination of wires with exact coefficients. Everything affine in a target is folded into lines, so that steps are
the nonlinear operations only, each of which becomes a head:

    Apply    phi(u)                      a function of one variable
    Times    phi(u) · v                  a function that carries a partner; a product if phi is the identity
    Largest  max(u_1, ..., u_m)
    Attend   sum_j softmax_j(q·k_j + offset_j) v_j      the target's own softmax attention, as it is

with lines for all their arguments; phi is an expression in the variable u.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from anchorhead.enclosure.exact import Number, over, plus, times
from anchorhead.expression.graph import Node, variable

U = variable("u")
"""The variable of the functions in a circuit."""


class Line:
    """bias + sum of coefficient · wire; never changes, and is equal to a line with the same numbers."""

    __slots__ = ("_hash", "bias", "terms")

    def __init__(self, terms: Mapping[int, Number], bias: Number = 0) -> None:
        self.terms: dict[int, Number] = {wire: c for wire, c in terms.items() if c != 0}
        self.bias = bias
        self._hash: int | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((frozenset(self.terms.items()), self.bias))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Line) and self.bias == other.bias and self.terms == other.terms

    def __repr__(self) -> str:
        return f"Line({self.terms}, {self.bias})"

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def scaled(self, factor: Number) -> Line:
        if factor == 1:
            return self
        return Line({w: times(c, factor) for w, c in self.terms.items()}, times(self.bias, factor))

    def shifted(self, by: Number) -> Line:
        return Line(self.terms, plus(self.bias, by))

    def __add__(self, other: Line) -> Line:
        terms = dict(self.terms)
        for wire, c in other.terms.items():
            terms[wire] = plus(terms[wire], c) if wire in terms else c
        return Line(terms, plus(self.bias, other.bias))

    def __neg__(self) -> Line:
        return self.scaled(-1)

    def in_terms_of(self, other: Line) -> tuple[Number, Number] | None:
        """(a, b) with self = a·other + b, if there are such numbers; both lines have terms."""
        if self.terms.keys() != other.terms.keys():
            return None
        if self.terms == other.terms:
            return 1, plus(self.bias, times(-1, other.bias))
        ratios = [over(c, other.terms[wire]) for wire, c in self.terms.items()]
        ratio = ratios[0]
        if any(isinstance(found, Node) or found != ratio for found in ratios):
            return None
        return ratio, plus(self.bias, times(times(-1, ratio), other.bias))


def combination(coefficients: Sequence[Number], lines: Sequence[Line], bias: Number = 0) -> Line:
    """bias + sum of coefficient · line, exactly."""
    terms: dict[int, Number] = {}
    for c, line in zip(coefficients, lines, strict=True):
        if c == 0:
            continue
        for wire, inner in line.terms.items():
            product = times(c, inner)
            terms[wire] = plus(terms[wire], product) if wire in terms else product
        if line.bias != 0:
            bias = plus(bias, times(c, line.bias))
    return Line(terms, bias)


@dataclass(frozen=True)
class Apply:
    """phi(argument)."""

    function: Node
    argument: Line
    label: str = field(default="", compare=False)

    width = 1

    def lines(self) -> Iterator[Line]:
        yield self.argument


@dataclass(frozen=True)
class Times:
    """phi(argument) · partner."""

    function: Node
    argument: Line
    partner: Line
    label: str = field(default="", compare=False)

    width = 1

    def lines(self) -> Iterator[Line]:
        yield self.argument
        yield self.partner


@dataclass(frozen=True)
class Largest:
    """The largest of the arguments."""

    arguments: tuple[Line, ...]
    label: str = field(default="", compare=False)

    width = 1

    def lines(self) -> Iterator[Line]:
        yield from self.arguments


@dataclass(frozen=True)
class Attend:
    """sum over j of softmax_j(query · key_j + offset_j) · value_j; the query and the keys may have no entries."""

    query: tuple[Line, ...]
    keys: tuple[tuple[Line, ...], ...]
    offsets: tuple[Line, ...]
    values: tuple[tuple[Line, ...], ...]
    label: str = field(default="", compare=False)

    @property
    def width(self) -> int:
        return len(self.values[0])

    def lines(self) -> Iterator[Line]:
        yield from self.query
        for row in self.keys:
            yield from row
        yield from self.offsets
        for row in self.values:
            yield from row


Step = Apply | Times | Largest | Attend


@dataclass(frozen=True)
class Circuit:
    """inputs: names of the input wires. steps: in order. outputs: lines; the shapes are those of one input and output.

    The wires of step i are `starts[i]` to `starts[i] + steps[i].width - 1`.
    """

    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Line, ...]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    starts: tuple[int, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        starts, wire = [], len(self.inputs)
        for step in self.steps:
            starts.append(wire)
            wire += step.width
        object.__setattr__(self, "starts", tuple(starts))

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
