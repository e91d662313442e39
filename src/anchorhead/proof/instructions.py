"""A network of heads with constant values as instructions of a program: tokens that one fixed attention layer runs.

The machine (`in_context/interpreter.py`) has registers r and a pointer. Instruction i is step i of the network, a head
with keys (slope_k, intercept_k) and constants on the line t = a·r + a_0. Its tokens, one for each key, are

    key_k   = slope_k·a  on the registers,  slope_k·a_0 + intercept_k - offset  on the one
    value_k = scale·constant_k  to the wire's own register,  c·scale·constant_k  to each output with coefficient c

so that a query (r, 1) has the head's scores, less an offset that all of them share, and the softmax writes what the
step adds to its wire and to the outputs. What an output has of the inputs directly is put into its register with the
data (`start`). All numbers are rounded once, here; how far they lie from the head's is counted by the proof
(`proof/interpretation.py`).

*Turns.* A program that is run again and again must leave its registers as it found them. The network of such a turn
ends with steps of the identity, by heads as well: h(d) is added to the state and taken from the register d that held
its change, and h(w) is taken from each wire's register w. What is left there is what these heads err by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from anchorhead.circuit.apply import Apply, U
from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.line import Line
from anchorhead.circuit.rows import Row, StoredMap, Wiring, placed
from anchorhead.circuit.step import Step
from anchorhead.errors import StructureError
from anchorhead.head.head import Head


@dataclass(frozen=True)
class Planned:
    """What an instruction does: a step's head on a row of registers, times a factor and plus a constant to registers."""

    step: int
    read: Row
    writes: dict[int, tuple[float, float]]


@dataclass(frozen=True)
class Layout:
    """Which registers there are, and what each instruction does with them.

    Inputs have the first registers, then come outputs, or in a turn the changes of the inputs, then wires that are read
    again. wires: the registers of these, by step. outputs: of the results. changes: in a turn, by the step that carries
    it over, the register of an input's change. start: what registers begin with, rows by register, on inputs.
    """

    inputs: int
    wires: dict[int, int]
    outputs: tuple[int, ...]
    changes: dict[int, int]
    planned: tuple[Planned, ...]
    start: StoredMap

    @property
    def registers(self) -> int:
        return len(self.start.bias)


@dataclass(frozen=True)
class Instructions:
    """Tokens, those of one instruction after the other; `starts` says where each begins, and the last ends.

    keys: rows by token, on registers, with what meets the one as bias. values: rows by token, on registers.
    """

    starts: tuple[int, ...]
    keys: StoredMap
    values: StoredMap

    @property
    def tokens(self) -> int:
        return self.starts[-1]


def turn_of(circuit: Circuit) -> Circuit:
    """One turn of w <- circuit(w): the steps, then identities that carry the changes over and clear the wires.

    Its outputs are w plus what was carried over. A change that the steps do not give is a step of the identity too.
    """
    size, steps, changes = len(circuit.inputs), list(circuit.steps), []
    for k, line in enumerate(circuit.outputs):
        change = line + Line({k: -1})
        direct = Line({wire: c for wire, c in change.terms.items() if wire < size})
        rest = Line({wire: c for wire, c in change.terms.items() if wire >= size}, change.bias)
        if direct.terms:
            steps.append(Apply(U, direct, "what a turn changes directly"))
            rest = rest + Line({size + len(steps) - 1: 1})
        if not rest.terms:
            raise StructureError(f"A turn moves {circuit.inputs[k]} by a constant or not at all; leave it out.")
        changes.append(rest)
    first = size + len(steps)
    again = _read_again(steps, size)
    steps += [Apply(U, change, "carried over") for change in changes]
    steps += [Apply(U, Line({wire: 1}), "cleared") for wire in again]
    outputs = tuple(Line({k: 1, first + k: 1}) for k in range(size))
    return Circuit(circuit.inputs, tuple(steps), outputs, circuit.input_shape, circuit.output_shape)


def _read_again(steps: Sequence[Step], inputs: int) -> list[int]:
    """The wires of steps that a later one reads."""
    return sorted({wire for step in steps for line in step.lines() for wire in line.terms if wire >= inputs})


def laid_out(circuit: Circuit, wiring: Wiring, *, turning: bool) -> Layout:
    """Registers and instructions of a network; turning: its circuit is one that `turn_of` made."""
    inputs, outputs = len(circuit.inputs), len(circuit.outputs)
    if turning:
        return _turn(circuit, wiring)
    again = _read_again(circuit.steps, inputs)
    place = {wire: wire for wire in range(inputs)} | {wire: inputs + outputs + k for k, wire in enumerate(again)}
    rows = {inputs + k: row for k, row in enumerate(wiring.outputs)}
    planned = [_body(i, inputs, wiring, place, rows) for i in range(len(circuit.steps))]
    start = [_started(register, inputs, rows) for register in range(inputs + outputs + len(again))]
    wires = {wire - inputs: place[wire] for wire in again}
    return Layout(inputs, wires, tuple(rows), {}, tuple(planned), placed(start, range(inputs)))


def _turn(circuit: Circuit, wiring: Wiring) -> Layout:
    """The changes of w are collected as outputs are, from what the identities that carry them over read."""
    size = len(circuit.inputs)
    steps = len(circuit.steps)
    carry = next(iter(wire for wire in circuit.outputs[0].terms if wire >= size)) - size
    again = [next(iter(next(circuit.steps[i].lines()).terms)) for i in range(carry + size, steps)]
    place = {wire: wire for wire in range(size)} | {wire: 2 * size + k for k, wire in enumerate(again)}
    rows = {size + k: wiring.rows[carry + k][0] for k in range(size)}
    planned = [_body(i, size, wiring, place, rows) for i in range(carry)]
    planned = _with_constants(planned, rows)
    for k in range(size):
        planned.append(Planned(carry + k, Row({size + k: 1.0}, 0.0), {k: (1.0, 0.0), size + k: (-1.0, 0.0)}))
    for i, wire in enumerate(again):
        planned.append(Planned(carry + size + i, Row({place[wire]: 1.0}, 0.0), {place[wire]: (-1.0, 0.0)}))
    own = [Row({k: 1.0}, 0.0) for k in range(size)]
    start = own + [Row({}, 0.0)] * (size + len(again))
    wires, changes = {wire - size: place[wire] for wire in again}, {carry + k: size + k for k in range(size)}
    return Layout(size, wires, tuple(range(size)), changes, tuple(planned), placed(start, range(size)))


def _body(i: int, inputs: int, wiring: Wiring, place: Mapping[int, int], rows: Mapping[int, Row]) -> Planned:
    """A step of the target: to its wire's register, and to every output that has it."""
    wire, row = inputs + i, wiring.rows[i][0]
    writes = {place[wire]: (1.0, 0.0)} if wire in place else {}
    writes |= {register: (found.terms[wire], 0.0) for register, found in rows.items() if wire in found.terms}
    return Planned(i, Row({place[w]: c for w, c in row.terms.items()}, row.bias), writes)


def _with_constants(planned: Sequence[Planned], rows: Mapping[int, Row]) -> list[Planned]:
    """The rows' constants, with the first instruction that writes to their registers: weights add up to one."""
    missing, found = {register: row.bias for register, row in rows.items() if row.bias}, []
    for one in planned:
        writes = {r: (factor, missing.pop(r, 0.0)) for r, (factor, _) in one.writes.items()}
        found.append(replace(one, writes=writes))
    return found


def _started(register: int, inputs: int, rows: Mapping[int, Row]) -> Row:
    """What a register begins with: an input, what an output has of the inputs directly, or nothing."""
    if register < inputs:
        return Row({register: 1.0}, 0.0)
    row = rows.get(register, Row({}, 0.0))
    return Row({wire: c for wire, c in row.terms.items() if wire < inputs}, row.bias)


def instructions(layout: Layout, wiring: Wiring, heads: Sequence[Head]) -> Instructions:
    """The tokens of all instructions, rounded to float64."""
    keys, values, starts = [], [], [0]
    for planned in layout.planned:
        use, scale = wiring.uses[planned.step], Fraction(wiring.values[planned.step][0])
        head = heads[use.head]
        scores = exact_scores(head)
        offset = _offset(scores)
        for (slope, level), constant in zip(scores, head.constants, strict=True):
            terms = {register: float(slope * Fraction(c)) for register, c in planned.read.terms.items()}
            keys.append(Row(_nonzero(terms), float(slope * Fraction(planned.read.bias) + level - offset)))
            wrote = {r: float(Fraction(c) * scale * Fraction(constant) + Fraction(added))
                     for r, (c, added) in planned.writes.items()}  # fmt: skip
            values.append(Row(_nonzero(wrote), 0.0))
        starts.append(len(keys))
    held = range(layout.registers)
    return Instructions(tuple(starts), placed(keys, held), placed(values, held))


def exact_scores(head: Head) -> list[tuple[Fraction, Fraction]]:
    """Slope and intercept of every key, its gate's included."""
    parts = zip(head.slopes, head.intercepts, head.gates, strict=True)
    return [(Fraction(s) + Fraction(g), Fraction(c) + Fraction(b)) for s, c, (g, b) in parts]


def _offset(scores: Sequence[tuple[Fraction, Fraction]]) -> Fraction:
    """What is taken from all scores of a head so that they stay small: the largest intercept."""
    return max(level for _, level in scores)


def _nonzero(terms: Mapping[int, float]) -> dict[int, float]:
    return {register: c for register, c in terms.items() if c != 0}
