"""A network of heads with constant values as instructions of a program: tokens that one fixed layer runs.

The machine (`in_context/interpreter.py`) has registers r, their means m over all data tokens, and a pointer. An
instruction is a step of the network, a head with keys (slope_k, intercept_k) and constants on the line
t = a·(r, m) + a_0. Its tokens, one for each key, are

    key_k   = slope_k·a  on registers and means,  slope_k·a_0 + intercept_k  on the one
    value_k = scale·constant_k  to the wire's own register,  c·scale·constant_k  to each output with coefficient c

so that a query (r, m, 1) has the head's scores, and the softmax writes what the step adds to its wire and to the
outputs. From all scores a line is taken, which changes no softmax: the chord of the largest of them over the head's
domain. As that is convex, scores are then at most zero there, and no more negative than they must be. A mean is no
instruction: it is read where it is. What an output has of the inputs directly is put into its register with the data
(`start`). All numbers are rounded once, here; how far they lie from the head's is counted by the proof
(`interpretation.py`).

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
from anchorhead.circuit.pool import Pool
from anchorhead.circuit.rows import Row, StoredMap, Wiring, placed
from anchorhead.circuit.step import Step
from anchorhead.errors import StructureError
from anchorhead.proof.head_claim import HeadClaim


@dataclass(frozen=True)
class Read:
    """bias + sum of coefficient · column, exactly: registers are columns, and as many more are their means."""

    terms: dict[int, Fraction]
    bias: Fraction


@dataclass(frozen=True)
class Planned:
    """What an instruction does: a step's head on what it reads, times a factor and plus a constant to registers."""

    step: int
    read: Read
    writes: dict[int, tuple[float, float]]


@dataclass(frozen=True)
class Layout:
    """Which registers there are, and what each instruction does with them.

    Inputs have the first registers, then come outputs, or in a turn the changes of the state, then wires that are read
    again. wires: the registers of these, by step. outputs: of the results. changes: in a turn, by the step that carries
    it over, the registers of a change and of what it changes. start: what registers begin with, rows by register.
    """

    inputs: int
    wires: dict[int, int]
    outputs: tuple[int, ...]
    changes: dict[int, tuple[int, int]]
    planned: tuple[Planned, ...]
    start: StoredMap

    @property
    def registers(self) -> int:
        return len(self.start.bias)


@dataclass(frozen=True)
class Instructions:
    """Tokens, those of one instruction after the other; `starts` says where each begins, and the last ends.

    keys: rows by token, on registers and means, with what meets the one as bias. values: rows by token, on registers.
    """

    starts: tuple[int, ...]
    keys: StoredMap
    values: StoredMap

    @property
    def tokens(self) -> int:
        return self.starts[-1]


def turn_of(circuit: Circuit) -> Circuit:
    """One turn of w <- circuit(w): the steps, then identities that carry the changes over and clear the wires.

    w are the inputs after those of tokens. The outputs are w plus what was carried over. A change that the steps do not
    give is a step of the identity too.
    """
    inputs, first, steps, changes = len(circuit.inputs), circuit.tokens, list(circuit.steps), []
    for k, line in enumerate(circuit.outputs):
        change = line + Line({first + k: -1})
        direct = Line({wire: c for wire, c in change.terms.items() if wire < inputs})
        rest = Line({wire: c for wire, c in change.terms.items() if wire >= inputs}, change.bias)
        if direct.terms:
            steps.append(Apply(U, direct, "what a turn changes directly"))
            rest = rest + Line({inputs + len(steps) - 1: 1})
        if not rest.terms:
            raise StructureError(f"A turn moves {circuit.inputs[first + k]} by a constant or not at all; leave it out.")
        changes.append(rest)
    carried, again = inputs + len(steps), _read_again(steps, inputs)
    steps += [Apply(U, change, "carried over") for change in changes]
    steps += [Apply(U, Line({wire: 1}), "cleared") for wire in again]
    outputs = tuple(Line({first + k: 1, carried + k: 1}) for k in range(len(changes)))
    return replace(circuit, steps=tuple(steps), outputs=outputs)


def _read_again(steps: Sequence[Step], inputs: int) -> list[int]:
    """The wires of steps that a later one reads, but for means, which are read where they are."""
    found = {wire for step in steps for line in step.lines() for wire in line.terms if wire >= inputs}
    return sorted(wire for wire in found if not isinstance(steps[wire - inputs], Pool))


def laid_out(circuit: Circuit, wiring: Wiring, *, turning: bool) -> Layout:
    """Registers and instructions of a network; turning: its circuit is one that `turn_of` made."""
    return (_Turn if turning else _Once)(circuit, wiring).layout()


class _Once:
    """A network that is run once: its outputs have registers of their own."""

    def __init__(self, circuit: Circuit, wiring: Wiring) -> None:
        self.circuit, self.wiring = circuit, wiring
        self.inputs, self.count = len(circuit.inputs), len(circuit.outputs)
        self.again = self.kept()
        later = {wire: self.inputs + self.count + k for k, wire in enumerate(self.again)}
        self.place = {wire: wire for wire in range(self.inputs)} | later
        self.rows = self.collected()

    def kept(self) -> list[int]:
        """The wires that have registers."""
        return _read_again(self.circuit.steps, self.inputs)

    def collected(self) -> dict[int, Row]:
        """What the registers of outputs add up."""
        return {self.inputs + k: row for k, row in enumerate(self.wiring.outputs)}

    def layout(self) -> Layout:
        start = [self._started(register) for register in range(self.inputs + self.count + len(self.again))]
        planned = [self.body(i) for i, step in enumerate(self.circuit.steps) if not isinstance(step, Pool)]
        return Layout(self.inputs, self.wires(), tuple(self.rows), {}, tuple(planned),
                      placed(start, range(self.inputs)))  # fmt: skip

    def wires(self) -> dict[int, int]:
        return {wire - self.inputs: self.place[wire] for wire in self.again}

    def _started(self, register: int) -> Row:
        """What a register begins with: an input, what an output has of the inputs directly, or nothing."""
        if register < self.inputs:
            return Row({register: 1.0}, 0.0)
        row = self.rows.get(register, Row({}, 0.0))
        return Row({wire: c for wire, c in row.terms.items() if wire < self.inputs}, row.bias)

    def body(self, i: int) -> Planned:
        """A step of the target: to its wire's register, and to every output that has it."""
        wire = self.inputs + i
        writes = {self.place[wire]: (1.0, 0.0)} if wire in self.place else {}
        writes |= {register: (row.terms[wire], 0.0) for register, row in self.rows.items() if wire in row.terms}
        return Planned(i, self.read(self.wiring.rows[i][0]), writes)

    def read(self, row: Row) -> Read:
        """A row of wires as one of registers and of their means."""
        terms: dict[int, Fraction] = {}
        bias, registers = Fraction(row.bias), self.inputs + self.count + len(self.again)
        for wire, c in row.terms.items():
            if wire in self.place:
                terms[self.place[wire]] = terms.get(self.place[wire], Fraction(0)) + Fraction(c)
                continue
            meant = self.wiring.rows[wire - self.inputs][-1]
            bias += Fraction(c) * Fraction(meant.bias)
            for inner, factor in meant.terms.items():
                column = registers + self.place[inner]
                terms[column] = terms.get(column, Fraction(0)) + Fraction(c) * Fraction(factor)
        return Read(terms, bias)


class _Turn(_Once):
    """A turn: the changes of its state are collected as outputs are, from what the identities read that carry them."""

    def __init__(self, circuit: Circuit, wiring: Wiring) -> None:
        self.carry = max(circuit.outputs[0].terms) - len(circuit.inputs)
        super().__init__(circuit, wiring)

    def kept(self) -> list[int]:
        clearing = self.circuit.steps[self.carry + self.count :]
        return [next(iter(next(step.lines()).terms)) for step in clearing]

    def collected(self) -> dict[int, Row]:
        return {self.inputs + k: self.wiring.rows[self.carry + k][0] for k in range(self.count)}

    def layout(self) -> Layout:
        steps, first = self.circuit.steps, self.circuit.tokens
        planned = [self.body(i) for i in range(self.carry) if not isinstance(steps[i], Pool)]
        planned = _with_constants(planned, self.rows)
        changes = {self.carry + k: (self.inputs + k, first + k) for k in range(self.count)}
        for step, (change, state) in changes.items():
            planned.append(Planned(step, _only(change), {state: (1.0, 0.0), change: (-1.0, 0.0)}))
        for k, wire in enumerate(self.again):
            register = self.place[wire]
            planned.append(Planned(self.carry + self.count + k, _only(register), {register: (-1.0, 0.0)}))
        own = [Row({k: 1.0}, 0.0) for k in range(self.inputs)]
        start = own + [Row({}, 0.0)] * (self.count + len(self.again))
        return Layout(self.inputs, self.wires(), tuple(state for _, state in changes.values()), changes,
                      tuple(planned), placed(start, range(self.inputs)))  # fmt: skip


def _only(register: int) -> Read:
    return Read({register: Fraction(1)}, Fraction(0))


def _with_constants(planned: Sequence[Planned], rows: Mapping[int, Row]) -> list[Planned]:
    """The rows' constants, with the first instruction that writes to their registers: weights add up to one."""
    missing, found = {register: row.bias for register, row in rows.items() if row.bias}, []
    for one in planned:
        writes = {r: (factor, missing.pop(r, 0.0)) for r, (factor, _) in one.writes.items()}
        found.append(replace(one, writes=writes))
    return found


def instructions(layout: Layout, wiring: Wiring, heads: Sequence[HeadClaim]) -> Instructions:
    """The tokens of all instructions, rounded to float64."""
    keys, values, starts = [], [], [0]
    for planned in layout.planned:
        use, scale = wiring.uses[planned.step], Fraction(wiring.values[planned.step][0])
        claim = heads[use.head]
        for (slope, level), constant in zip(exact_scores(claim), claim.head.constants, strict=True):
            terms = {column: float(slope * c) for column, c in planned.read.terms.items()}
            keys.append(Row(_nonzero(terms), float(slope * planned.read.bias + level)))
            wrote = {r: float(Fraction(c) * scale * Fraction(constant) + Fraction(added))
                     for r, (c, added) in planned.writes.items()}  # fmt: skip
            values.append(Row(_nonzero(wrote), 0.0))
        starts.append(len(keys))
    held = range(2 * layout.registers)
    return Instructions(tuple(starts), placed(keys, held), placed(values, held))


def exact_scores(claim: HeadClaim) -> list[tuple[Fraction, Fraction]]:
    """Slope and intercept of every key, its gate's included, less the chord of the largest over the domain."""
    head, low, high = claim.head, Fraction(claim.low), Fraction(claim.high)
    parts = zip(head.slopes, head.intercepts, head.gates, strict=True)
    found = [(Fraction(s) + Fraction(g), Fraction(c) + Fraction(b)) for s, c, (g, b) in parts]
    left, right = (max(slope * end + level for slope, level in found) for end in (low, high))
    tilt = (right - left) / (high - low)
    return [(slope - tilt, level - left + tilt * low) for slope, level in found]


def _nonzero(terms: Mapping[int, float]) -> dict[int, float]:
    return {column: c for column, c in terms.items() if c != 0}
