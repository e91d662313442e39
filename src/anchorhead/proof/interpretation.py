"""How far a program that an interpreter runs is from its target (docs/mathematics.md 6.4).

Let instruction i have tokens with keys a_k and values v_k, and let |r_c| <= B_c for the machine's registers. The
pointer b has L entries near ±1, and a token of instruction i has M b_i, so that its score is  a_k·(r, 1) + M b·b_i.

*Leak.* Pointers of two instructions differ in one entry at least, which costs 2M. With |a_k·(r, 1)| <= S for all N
tokens, those of other instructions together have at most  λ = N exp(2S - 2M(1 - Ld))  of the weight of the pointer's
own, where d is how far entries have drifted from ±1. They move what is written by 2λ max|v|.

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

*Turns.* A state w with error e becomes the map's own value at w, which is off by what the map makes of e, and is then
computed with the error of one run from an exact state: the two are added, turn by turn, with the state's range.

*Drift.* Each step moves an entry of the pointer by 0 or ±2, up to 2(γ_(2K+6) + 2λ) + 2ρ.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from flint import arb, fmpq

from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.rows import rounded
from anchorhead.circuit.step import HeadFacts, Pair, Use, gamma, size, widened
from anchorhead.dtypes import UNIT
from anchorhead.enclosure.precision import above, below, precision, upper
from anchorhead.errors import PrecisionError, ToleranceError
from anchorhead.proof.flow import Flow, Tracker
from anchorhead.proof.instructions import Instructions, Layout, Planned, exact_scores
from anchorhead.proof.network_claim import NetworkClaim, cells, worst

RHO = UNIT["float64"]
ROOM = 2.0**-10
"""How much larger than the target's values those of the machine are allowed to be, relative to one and to them."""
LEAST = 1e-20
"""What may leak at most: pointers then drift by less than rounding moves them."""


class LeakError(PrecisionError):
    """A gap that does not tell instructions apart."""


@dataclass(frozen=True)
class Interpreted:
    """A network and its instructions; gap is M, a power of two.

    body: of a map that is applied `turns` times, the circuit of one; the network is then that of a turn. None, and one
    turn, for what is run once.
    """

    claim: NetworkClaim
    layout: Layout
    code: Instructions
    gap: float
    body: Circuit | None = None
    turns: int = 1

    @property
    def bits(self) -> int:
        """Entries that a pointer needs."""
        return max(1, (len(self.layout.planned) - 1).bit_length())

    @property
    def steps(self) -> int:
        """How often the machine's layer is applied."""
        return self.turns * len(self.layout.planned)


def output_bounds(program: Interpreted, *, machine: bool = True) -> list[float]:
    """For each output a bound on |machine - target|, for every input in the box; without the machine, of its heads."""
    with precision():
        found = worst([_one_run(program, cell, machine) for cell in cells(program.claim.box)])
        return found if program.body is None else _turned(program, program.body, found)


def _one_run(program: Interpreted, cell: Sequence[Pair], machine: bool) -> list[float]:
    """The bounds for one run through the instructions, from inputs in a cell of the box."""
    exact = Tracker(program.claim.circuit, program.claim.dtype).follow(cell)
    extra = (_Extra if machine else _Nothing)(program, exact, cell)
    flow = extra.flow(cell)
    largest = max([*flow.errors, *flow.output_errors], default=0.0)
    if not largest < ROOM / 2:
        raise ToleranceError(
            f"The errors of this program may reach {largest:.3g}, more than its registers have room for. Make it with a "
            "smaller tol or on a smaller domain."
        )
    return [upper(arb(e) + extra.of_output(k)) for k, e in enumerate(flow.output_errors)]


def _turned(program: Interpreted, body: Circuit, own: Sequence[float]) -> list[float]:
    """The bounds after all turns, given those of one from an exact state anywhere in the box."""
    box, dtype = program.claim.box, program.claim.dtype
    uses = [Use("plain", i) for i in range(len(body.steps))]
    ideal = Tracker(body, dtype, rounded(body, uses, dtype),
                    [HeadFacts(-math.inf, math.inf, 0.0, 0.0)] * len(uses), rounding=False)  # fmt: skip
    cell, errors = list(box), [0.0] * len(box)
    for _ in range(program.turns):
        near = [widened(pair, error) for pair, error in zip(cell, errors, strict=True)]
        for (low, high), (a, b), name in zip(box, near, body.inputs, strict=True):
            if not (low <= a and b <= high):
                raise ToleranceError(
                    f"A turn may lead {name} to [{a:.6g}, {b:.6g}], and it is proved on [{low:.6g}, {high:.6g}]. Give a "
                    "domain that the map takes into itself, with a little room."
                )
        carried = ideal.follow(cell, errors)
        errors = [upper(arb(a) + b) for a, b in zip(own, carried.output_errors, strict=True)]
        cell = carried.outputs
    return errors


class _Extra:
    """What the machine adds to the errors of heads in one run through the instructions."""

    def __init__(self, program: Interpreted, exact: Flow, cell: Sequence[Pair]) -> None:
        self.program, self.exact = program, exact
        claim, layout = program.claim, program.layout
        self.sizes = [arb(0)] * layout.registers
        for k, pair in enumerate(cell):
            self.sizes[k] = _room(size(pair))
        first = len(claim.circuit.inputs)
        for i, planned in enumerate(layout.planned):
            step = _room(size(exact.ranges[first + planned.step]))
            for register, (factor, added) in planned.writes.items():
                self.sizes[register] = self.sizes[register] + abs(arb(factor)) * step + abs(arb(added))
        for register in range(len(cell), layout.registers):
            row = layout.start.row(register, range(layout.inputs))
            total = abs(arb(row.bias)) + sum((abs(arb(c)) * self.sizes[w] for w, c in row.terms.items()), arb(0))
            self.sizes[register] = self.sizes[register] + total
        self._scores()
        self.own = [self._instruction(i, planned) for i, planned in enumerate(layout.planned)]

    def _scores(self) -> None:
        """S, the leak and the largest value."""
        code, gap = self.program.code, self.program.gap
        held = range(self.program.layout.registers)
        self.keys = [code.keys.row(k, held) for k in range(code.tokens)]
        self.values = [code.values.row(k, held) for k in range(code.tokens)]
        reach = [abs(arb(row.bias)) + sum((abs(arb(c)) * self.sizes[r] for r, c in row.terms.items()), arb(0))
                 for row in self.keys]  # fmt: skip
        self.reach = reach
        self.largest = max((abs(c) for row in self.values for c in row.terms.values()), default=0.0)
        most = arb(max(upper(found) for found in reach))
        self.rounded = gamma(2 * max(b - a for a, b in zip(code.starts, code.starts[1:], strict=False)) + 6, RHO)
        drift = self.program.steps * (2 * self.rounded + 3 * arb(RHO))
        self.leak = code.tokens * (2 * most - 2 * gap * (1 - self.program.bits * drift)).exp()
        if not self.leak < LEAST:
            raise LeakError(
                f"The scores of this program reach {upper(most):.3g}, and its instructions are told apart by {2 * gap:g}"
                " only. Make it again with a larger gap."
            )

    def _instruction(self, i: int, planned: Planned) -> dict[int, arb]:
        """E for every register that the instruction writes."""
        wiring, code = self.program.claim.wiring, self.program.code
        use, scale = wiring.uses[planned.step], Fraction(wiring.values[planned.step][0])
        head = self.program.claim.heads[use.head].head
        own, exact = range(code.starts[i], code.starts[i + 1]), exact_scores(head)
        offset = max(level for _, level in exact)
        moved = arb(0)
        for k, (slope, level) in zip(own, exact, strict=True):
            moved = moved.max(self._score(k, planned, slope, level - offset))
        found = {}
        for register, (factor, added) in planned.writes.items():
            stored = [self.values[k].terms.get(register, 0.0) for k in own]
            span = arb(max(stored)) - min(stored)
            meant = [Fraction(factor) * scale * Fraction(c) + Fraction(added) for c in head.constants]
            off = max((upper(abs(arb(v) - _ball(m))) for v, m in zip(stored, meant, strict=True)), default=0.0)
            top = max(map(abs, stored))
            error = span * moved / 2 + self.rounded * top + off + self._leaked() + 2 * arb(RHO) * self.sizes[register]
            found[register] = error
        return found

    def _score(self, k: int, planned: Planned, slope: Fraction, level: Fraction) -> arb:
        """How far a token's computed score may be from its head's."""
        row, bits = self.keys[k], self.program.bits
        off = abs(arb(row.bias) - _ball(slope * Fraction(planned.read.bias) + level))
        for register in {*row.terms, *planned.read.terms}:
            meant = slope * Fraction(planned.read.terms.get(register, 0.0))
            off = off + abs(arb(row.terms.get(register, 0.0)) - _ball(meant)) * self.sizes[register]
        total = self.reach[k] + 2 * bits * arb(self.program.gap)
        return off + gamma(len(row.terms) + bits + 2, RHO) * total + 2 * arb(RHO) * self.reach[k] + 6 * arb(RHO)

    def _leaked(self) -> arb:
        """What other instructions add while one is run, and to a register that is not written while all are."""
        return (4 * self.program.code.tokens + 4 + 2 * self.program.steps) * self.leak * self.largest

    def _wrote(self, register: int, steps: Collection[int] = ()) -> arb:
        """What all instructions add to a register's error, or those of some steps."""
        pairs = zip(self.own, self.program.layout.planned, strict=True)
        return sum((own[register] for own, planned in pairs
                    if register in own and (not steps or planned.step in steps)), arb(0))  # fmt: skip

    def of_step(self, i: int) -> tuple[arb, arb]:
        """What the machine adds to a step's argument, beside the errors of what it reads, and to its result.

        What clears a register leaves there what its head and the machine err by.
        """
        layout, claim = self.program.layout, self.program.claim
        change = layout.changes.get(i)
        if change is not None:
            state = change - layout.inputs
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
        if self.program.body is not None:
            return arb(0)
        register = layout.outputs[k]
        row = layout.start.row(register, range(layout.inputs))
        begun = abs(arb(row.bias)) + sum((abs(arb(c)) * self.sizes[w] for w, c in row.terms.items()), arb(0))
        return self._wrote(register) + gamma(len(row.terms) + 1, RHO) * begun + self._leaked()

    def flow(self, cell: Sequence[Pair]) -> Flow:
        """Ranges and errors with what the machine adds to every head."""
        claim, facts = self.program.claim, []
        for i, use in enumerate(claim.wiring.uses):
            head, scale = claim.heads[use.head], abs(arb(claim.wiring.values[i][0]))
            before, after = self.of_step(i)  # of a change, whose function is the identity, both arrive as they are
            low, high = above(arb(head.low) + before), below(arb(head.high) - before)
            facts.append(HeadFacts(low, high, upper(head.approximation + (before + after) / scale), 0.0))
        uses = tuple(replace(use, head=i) for i, use in enumerate(claim.wiring.uses))
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
    return arb(value) * (1 + arb(ROOM)) + ROOM


def _ball(number: Fraction) -> arb:
    return arb(fmpq(number.numerator, number.denominator))
