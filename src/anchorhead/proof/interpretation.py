"""How far a program that an interpreter runs is from its target (docs/mathematics.md 7.9).

Let instruction i have tokens with keys a_k and values v_k, and let |r_c| <= B_c for the machine's registers. The
pointer b has L entries near ±1, and a token of instruction i has M b_i, so that its score is  a_k·(r, 1) + M b·b_i.

*Leak.* Pointers of two instructions differ in one entry at least, which costs 2M. Let a_k·(r, 1) be at most S for all N
tokens, and the largest of an instruction's own, in its turn, at least -T: a head's argument is in its domain, and the
largest score is convex there. Then the tokens of other instructions together have at most
λ = N exp(S + T - 2M(1 - Ld))  of the weight of the pointer's own, where d is how far entries have drifted from ±1. They
move what is written by 2λ max|v|.

*Scores.* Among the tokens of one instruction the pointer's share is the same and cancels, offset likewise. A score is
off by what its numbers are off from slope_k·a and intercept_k, by the rounding of a sum of n + L + 1 terms of total
size a + ML, by that of the difference to the largest and by exp: δ together. Scores that move by at most δ move a head
whose values span V by at most  V tanh(δ/2) <= Vδ/2: in the worst case some keys are raised by δ and all others
lowered, so that the log-odds of the former's weight move by 2δ, and their weight by σ(δ) - σ(-δ) = tanh(δ/2).

*Sums.* Numerator and denominator are sums of K terms, and of others that are a λ-th of them: γ_(2K+6) max|v|, and
4Nλ max|v|. Adding to a register of size B rounds by ρB if the instruction writes there, and moves it by at most 2λ
max|v| if not, since r is itself a float, in each of the steps that are run.

All that is an error of the instruction, E, beside that of its head in exact arithmetic: ranges and errors then flow as
in any network (`flow.py`), without rounding. B is taken with room for errors, and it is checked that they fit.

*Means* of a register are those of sums in pairs, rounded at most 34 times for 2^32 tokens (`circuit/pool.py`); that,
too, moves scores. Every data token runs every instruction, with numbers in the box for inputs that it does not have.

*Drift.* Each step moves an entry of the pointer by 0 or ±2, up to 2(γ_(2K+6) + 2λ) + 2ρ.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from flint import arb

from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.constant_form import constant_form
from anchorhead.circuit.pool import LENGTHS, PAIRINGS
from anchorhead.circuit.step import HeadFacts, Pair, gamma, size
from anchorhead.digits import Up
from anchorhead.dtypes import UNIT
from anchorhead.enclosure.precision import above, below, precision, upper
from anchorhead.enclosure.ranges import exact
from anchorhead.errors import PrecisionError, ToleranceError
from anchorhead.proof.flow import Flow, Tracker
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.proof.instructions import Instructions, Layout, Planned, exact_scores, turn_of
from anchorhead.proof.network_claim import NetworkClaim, argument_ranges, cells, worst
from anchorhead.proof.turns import EXACT, WATCHED, turned

RHO = UNIT["float64"]
ROOM = 2.0**-10
"""How much larger than the target's values those of the machine are allowed to be, relative to one and to them."""
LEAST = 1e-20
"""What may leak at most: pointers then drift by less than rounding moves them."""
PARTS = 32
"""Of a domain, on each of which the largest score is bounded from below."""


class NoRoomError(ToleranceError):
    """Errors for which registers have no room: less of them has."""


class LeakError(PrecisionError):
    """A gap that does not tell instructions apart."""


@dataclass(frozen=True)
class Interpreted:
    """The circuit of a target, its network of constant values, and the instructions that are run; gap is M.

    turns: how often the target is applied, each time to its own result; the network is then that of a turn. None for
    what is run once. watched: that the state stays in the box is not proved, but looked at in every turn.
    """

    target: Circuit
    claim: NetworkClaim
    layout: Layout
    code: Instructions
    gap: float
    turns: int | None = None
    watched: bool = False

    @property
    def bits(self) -> int:
        """Entries that a pointer needs."""
        return max(1, (len(self.layout.planned) - 1).bit_length())

    @property
    def steps(self) -> int:
        """How often the machine's layer is applied."""
        return (self.turns or 1) * len(self.layout.planned)


def network_circuit(target: Circuit, box: Sequence[Pair], *, turning: bool) -> Circuit:
    """The circuit of the network that a program for this target has."""
    found = constant_form(target, argument_ranges(target, box, "float64"))
    return turn_of(found) if turning else found


def assumed(program: Interpreted) -> tuple[str, ...]:
    """What the bounds rest on beside the arithmetic."""
    return (LENGTHS,) * bool(program.claim.circuit.tokens) + (WATCHED,) * program.watched


def output_bounds(program: Interpreted, *, machine: bool = True) -> list[float]:
    """For each output a bound on |machine - target|, for every input in the box; without the machine, of its heads."""
    with precision():
        circuit, parts = program.claim.circuit, cells(program.claim.box, program.claim.circuit.tokens)
        followed = [Tracker(circuit, program.claim.dtype).follow(cell).ranges for cell in parts]
        ranges = [(min(a for a, _ in wire), max(b for _, b in wire)) for wire in zip(*followed, strict=True)]
        extra = (_Extra if machine else _Nothing)(program, ranges)
        found = worst([_one_run(extra, cell) for cell in parts])
        return found if program.turns is None else turned(program, program.turns, found)


def _one_run(extra: _Extra, cell: Sequence[Pair]) -> list[float]:
    """The bounds for one run through the instructions, from inputs in a cell of the box."""
    flow = extra.flow(cell)
    largest = max([*flow.errors, *flow.output_errors], default=0.0)
    if not largest < ROOM / 2:
        raise NoRoomError(
            f"The errors of this program may reach {Up(largest):.3g}, more than its registers have room for. Make it "
            "with a smaller tol or on a smaller domain."
        )
    return [upper(arb(e) + extra.of_output(k)) for k, e in enumerate(flow.output_errors)]


class _Extra:
    """What the machine adds to the errors of heads in one run through the instructions."""

    def __init__(self, program: Interpreted, ranges: Sequence[Pair]) -> None:
        self.program = program
        layout, inputs = program.layout, program.layout.inputs
        self.sizes = [self._begun(register, ranges) for register in range(layout.registers)]
        for planned in layout.planned:
            step = _room(size(ranges[inputs + planned.step]))
            for register, (factor, added) in planned.writes.items():
                self.sizes[register] = self.sizes[register] + abs(arb(factor)) * step + abs(arb(added))
        self.spans = [(-found, found) for found in self.sizes]
        for k, register in [*enumerate(range(inputs)), *((inputs + i, r) for i, r in layout.wires.items())]:
            low, high = ranges[k] if k < inputs else (min(ranges[k][0], 0.0), max(ranges[k][1], 0.0))
            self.spans[register] = low - (_room(low) - abs(low)), high + (_room(high) - abs(high))
        self.sizes += self.sizes  # means
        self.spans += self.spans
        self._scores()
        self.own = [self._instruction(i, planned) for i, planned in enumerate(layout.planned)]

    def _begun(self, register: int, ranges: Sequence[Pair]) -> arb:
        """The size of what a register begins with."""
        row = self.program.layout.start.row(register, range(self.program.layout.inputs))
        return sum((abs(arb(c)) * _room(size(ranges[w])) for w, c in row.terms.items()), abs(arb(row.bias)))

    def _scores(self) -> None:
        """How large scores are, the leak, and the largest value."""
        code, gap = self.program.code, self.program.gap
        held = range(2 * self.program.layout.registers)
        self.keys = [code.keys.row(k, held) for k in range(code.tokens)]
        self.values = [code.values.row(k, held) for k in range(code.tokens)]
        self.reach = [sum((abs(arb(c)) * self.sizes[r] for r, c in row.terms.items()), abs(arb(row.bias)))
                      for row in self.keys]  # fmt: skip
        most = max(upper(sum(((arb(c) * self.spans[r][c > 0]) for r, c in row.terms.items()), arb(row.bias)))
                   for row in self.keys)  # fmt: skip
        uses, wiring = self.program.layout.planned, self.program.claim.wiring
        least = min(_leading(self.program.claim.heads[wiring.uses[planned.step].head]) for planned in uses)
        self.largest = max((abs(c) for row in self.values for c in row.terms.values()), default=0.0)
        self.rounded = gamma(2 * max(b - a for a, b in zip(code.starts, code.starts[1:], strict=False)) + 6, RHO)
        drift = self.program.steps * (2 * self.rounded + 3 * arb(RHO))
        self.leak = code.tokens * (arb(most) - least + 1 - 2 * gap * (1 - self.program.bits * drift)).exp()
        if not self.leak < LEAST:
            raise LeakError(
                f"The scores of this program reach from {least:.3g} to {most:.3g}, and its instructions are told apart "
                f"by {2 * gap:g} only. Make it again with a larger gap."
            )

    def _instruction(self, i: int, planned: Planned) -> dict[int, arb]:
        """E for every register that the instruction writes."""
        wiring, code = self.program.claim.wiring, self.program.code
        use, scale = wiring.uses[planned.step], Fraction(wiring.values[planned.step][0])
        claim = self.program.claim.heads[use.head]
        head, own, scores = claim.head, range(code.starts[i], code.starts[i + 1]), exact_scores(claim)
        moved = arb(0)
        for k, (slope, level) in zip(own, scores, strict=True):
            moved = moved.max(self._score(k, planned, slope, level))
        found = {}
        for register, (factor, added) in planned.writes.items():
            stored = [self.values[k].terms.get(register, 0.0) for k in own]
            span = arb(max(stored)) - min(stored)
            meant = [Fraction(factor) * scale * Fraction(c) + Fraction(added) for c in head.constants]
            off = max((upper(abs(arb(v) - exact(m))) for v, m in zip(stored, meant, strict=True)), default=0.0)
            top = max(map(abs, stored))
            error = span * moved / 2 + self.rounded * top + off + self._leaked() + 2 * arb(RHO) * self.sizes[register]
            found[register] = error
        return found

    def _score(self, k: int, planned: Planned, slope: Fraction, level: Fraction) -> arb:
        """How far a token's computed score may be from its head's."""
        row, bits = self.keys[k], self.program.bits
        off = abs(arb(row.bias) - exact(slope * planned.read.bias + level))
        for column in {*row.terms, *planned.read.terms}:
            kept, meant = arb(row.terms.get(column, 0.0)), slope * planned.read.terms.get(column, Fraction(0))
            off = off + abs(kept - exact(meant)) * self.sizes[column]
            if column >= self.program.layout.registers:
                off = off + abs(kept) * gamma(PAIRINGS + 2, RHO) * self.sizes[column]
        total = self.reach[k] + 1.001 * bits * arb(self.program.gap)
        return off + gamma(len(row.terms) + bits + 2, RHO) * total + 2 * arb(RHO) * self.reach[k] + 6 * arb(RHO)

    def _leaked(self) -> arb:
        """What other instructions add while one is run, and to a register that is not written while all are."""
        return (4 * self.program.code.tokens + 4 + 2 * self.program.steps) * self.leak * self.largest

    def _wrote(self, register: int) -> arb:
        """What all instructions add to a register's error."""
        return sum((own[register] for own in self.own if register in own), arb(0))

    def of_step(self, i: int) -> tuple[arb, arb]:
        """What the machine adds to a step's argument, beside the errors of what it reads, and to its result.

        What clears a register leaves there what its head and the machine err by.
        """
        layout, claim = self.program.layout, self.program.claim
        if i in layout.changes:
            change, state = layout.changes[i]
            return self._wrote(change) + claim.heads[claim.wiring.uses[i].head].approximation, self._wrote(state)
        register = layout.wires.get(i)
        if register is None:
            return arb(0), arb(0)
        cleared = [one.step for one in layout.planned if one.step != i and register in one.writes]
        left = sum((arb(claim.heads[claim.wiring.uses[k].head].approximation) for k in cleared), arb(0))
        return arb(0), self._wrote(register) + left

    def of_output(self, k: int) -> arb:
        """What the machine adds to an output beside the errors of wires: collecting it, and putting the data there."""
        layout = self.program.layout
        if self.program.turns is not None:
            return arb(0)
        register = layout.outputs[k]
        row = layout.start.row(register, range(layout.inputs))
        begun = abs(arb(row.bias)) + sum((abs(arb(c)) * self.sizes[w] for w, c in row.terms.items()), arb(0))
        return self._wrote(register) + gamma(len(row.terms) + 1, RHO) * begun + self._leaked()

    def flow(self, cell: Sequence[Pair]) -> Flow:
        """Ranges and errors with what the machine adds to every head."""
        claim, facts = self.program.claim, []
        for i, use in enumerate(claim.wiring.uses):
            if use.head < 0:  # a mean
                facts.append(EXACT)
                continue
            head, scale = claim.heads[use.head], abs(arb(claim.wiring.values[i][0]))
            before, after = self.of_step(i)  # of a change, whose function is the identity, both arrive as they are
            low, high = above(arb(head.low) + before), below(arb(head.high) - before)
            facts.append(HeadFacts(low, high, upper(head.approximation + (before + after) / scale), 0.0))
        uses = tuple(use if use.head < 0 else replace(use, head=i) for i, use in enumerate(claim.wiring.uses))
        wiring = replace(claim.wiring, uses=uses)
        return Tracker(claim.circuit, claim.dtype, wiring, facts, rounding=False).follow(cell)


class _Nothing(_Extra):
    """Of a machine that is exact: what heads leave in registers, and no more."""

    def _scores(self) -> None:
        self.leak, self.largest = arb(0), 0.0

    def _instruction(self, i: int, planned: Planned) -> dict[int, arb]:
        return dict.fromkeys(planned.writes, arb(0))

    def of_output(self, k: int) -> arb:
        return arb(0)


def _room(value: float) -> arb:
    """The size of a number, and room for errors."""
    return abs(arb(value)) * (1 + arb(ROOM)) + ROOM


def _leading(claim: HeadClaim) -> float:
    """A number that the largest score of a head is not below anywhere on its domain."""
    marks = [claim.low + (claim.high - claim.low) * k / PARTS for k in range(PARTS)] + [claim.high]
    scores, found = exact_scores(claim), []
    for a, b in itertools.pairwise(marks):
        found.append(max(min(slope * Fraction(a), slope * Fraction(b)) + level for slope, level in scores))
    return below(exact(min(found)))
