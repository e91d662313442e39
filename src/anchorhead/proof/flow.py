"""How values and errors flow through a circuit whose steps are computed by heads (docs/mathematics.md 3.6).

For each wire, over a box of inputs: an interval that holds what the target has there, and e, a bound on how far the
network is from it. ρ is the unit roundoff, γ_k = kρ/(1 - kρ).

*Lines.* The network has c' for c (`circuit/rows.py`). In exact arithmetic it errs by  sum |c'| e_w + |c' - c||w|;
computing the sum of k terms in any order, the bias among them if it is not zero, adds γ_k sum |c'|(|w| + e_w): a term
is multiplied once and added to k - 1 others, and zeros change nothing. Where all c' are powers of two, γ_(k-1): so a
wire that is scaled by one is exact. A wire by itself is passed on as it is. Long lines: `long_lines.py`.

*Steps.* Each kind of step knows how ranges and errors pass through it: `circuit/apply.py`, `largest.py`, `attend.py`.
Of the steps of a norm, of a variance, and of a covariance over a prompt's tokens, more is known together than one by
one: `circuit/norm.py`, `variance.py`, `spread.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flint import arb

from anchorhead.circuit.apply import NotFinite
from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.line import Line
from anchorhead.circuit.norm import norms
from anchorhead.circuit.places import Place
from anchorhead.circuit.rows import Row, Wiring
from anchorhead.circuit.spread import spreads
from anchorhead.circuit.step import TINY, Computed, Kept, OutsideDomain, Pair, Step, Valued, gamma, widened
from anchorhead.circuit.variance import Variance, squares, variance_of
from anchorhead.dtypes import LARGEST, UNIT
from anchorhead.enclosure.exact import as_ball
from anchorhead.enclosure.precision import above, ball, below, upper
from anchorhead.errors import SingularityError
from anchorhead.proof.long_lines import LongLine
from anchorhead.proof.norms import joint
from anchorhead.proof.spreads import joint_spread

NARROWER = "Choose a smaller domain, or rewrite the formula so that this interval keeps away from the singularity."
ADDED = (
    "A variance is zero where all tokens are alike, whatever their domain: add a constant to it, as in "
    "sqrt(var(x) + 0.1) in the place of std(x)."
)
Key = tuple[int, ...]
"""Tells a line from others: the step that reads it, its number there, and more where it stands for one."""


def _roundings(row: Row) -> int:
    """How often a term of the sum is rounded."""
    exact = all(abs(math.frexp(c)[0]) == 0.5 for c in row.terms.values())
    return max(len(row.terms) + (row.bias != 0) - exact, 0)


def has_unknown(lines: Sequence[Valued]) -> bool:
    """Whether a line has no bound for its error."""
    return any(error == math.inf for _, error in lines)


@dataclass(frozen=True)
class Flow:
    """For every wire its range and error, and for every output likewise; all are bounds for every input of a box."""

    ranges: list[Pair]
    errors: list[float]
    outputs: list[Pair]
    output_errors: list[float]
    arguments: list[tuple[Pair, ...]]
    """For each step the ranges of its lines, errors included."""


@dataclass(frozen=True)
class _Term:
    """One wire of a line: the exact coefficient, its sign where that is certain, |c'| and |c' - c|."""

    wire: int
    exact: arb
    sign: int | None
    kept: arb
    off: arb

    def ends(self, low: float, high: float) -> tuple[arb, arb]:
        """Balls around the least and the most that coefficient · wire can be."""
        if self.sign is None:
            both = self.exact * ball(low, high)
            return both, both
        ends = self.exact * low, self.exact * high
        return ends if self.sign >= 0 else (ends[1], ends[0])


class Tracker:
    """Follows one circuit whose steps use heads with these facts through this wiring; without one, ranges alone."""

    def __init__(
        self,
        circuit: Circuit,
        dtype: str,
        wiring: Wiring | None = None,
        facts: Sequence[Kept] = (),
        *,
        rounding: bool = True,
        literal: bool = False,
    ) -> None:
        self.circuit, self.dtype, self.wiring, self.facts = circuit, dtype, wiring, facts
        self.rounding, self.literal = rounding and wiring is not None, literal
        self.unit = UNIT[dtype] if self.rounding else 0.0
        self._numbers: dict[Key, list[_Term]] = {}
        self._long_lines: dict[Key, LongLine | None] = {}
        self._variances: dict[Key, Variance | None] = {}
        self._norms, self._spreads, self._squares = norms(circuit), spreads(circuit), squares(circuit)

    def follow(self, cell: Sequence[Pair], given: Sequence[float] | None = None, *, partly: bool = False) -> Flow:
        """Ranges and errors for inputs in a box, which may have errors themselves.

        partly: a step whose argument may leave the domain of its head has infinite errors, and so have those that
        depend on it; otherwise `OutsideDomain` is raised.
        """
        ranges, errors = list(cell), [0.0] * len(cell) if given is None else list(given)
        arguments = []
        for i, step in enumerate(self.circuit.steps):
            lines, argument, computed = self.read(i, step, ranges, errors)
            unknown = partly and has_unknown(lines)
            try:
                found = step.follow(lines, argument, None if unknown else computed)
            except OutsideDomain as reached:
                reached.step, unknown = i, partly
                if not partly:
                    raise
                found = step.follow(lines, argument, None)
            except NotFinite as problem:
                raise self._singular(step, problem.interval) from None
            # a step of which something is known depends on no wire of which nothing is
            known = [0.0 if error == math.inf else error for error in errors] if partly else errors
            if i in self._norms:
                found = [joint(self, i, self._norms[i], found[0], ranges, known)]
            elif i in self._spreads:
                found = [joint_spread(self, i, self._spreads[i], found[0], ranges, known)]
            ranges += [value for value, _ in found]
            errors += [math.inf if unknown else error for _, error in found]
            arguments.append(tuple(widened(*line) for line in lines))
        last: Sequence[Row | None] = [None] * len(self.circuit.outputs)
        if self.wiring is not None:
            last = self.wiring.outputs
        outputs = [self._kept((-1, k), line, row, ranges, errors)
                   for k, (line, row) in enumerate(zip(self.circuit.outputs, last, strict=True))]  # fmt: skip
        return Flow(ranges, errors, [r for r, _ in outputs], [e for _, e in outputs], arguments)

    def step(self, i: int, ranges: Sequence[Pair], errors: Sequence[float]) -> list[Valued]:
        """Ranges and errors of the results of one step by itself."""
        step = self.circuit.steps[i]
        return step.follow(*self.read(i, step, ranges, errors, self.line))

    def own(self, i: int, ranges: Sequence[Pair]) -> list[Valued]:
        """Ranges and errors of the results of one step of a flow with these ranges, if all before it were exact."""
        step = self.circuit.steps[i]
        return step.follow(*self.read(i, step, ranges, [0.0] * len(ranges)))

    def read(
        self, i: int, step: Step, ranges: Sequence[Pair], errors: Sequence[float],
        read: Callable[..., Valued] | None = None,
    ) -> tuple[list[Valued], Pair, Computed | None]:  # fmt: skip
        """A step's lines with their errors, the range of its first as the target has it, and how it is computed."""
        read = self._kept if read is None else read
        if self.wiring is None:
            exact = [read((i, k), line, None, ranges, errors) for k, line in enumerate(step.lines())]
            return exact, exact[0][0], None
        use = self.wiring.uses[i]
        pairs = enumerate(zip(step.read_lines(use), self.wiring.rows[i], strict=True))
        lines = [read((i, k), line, row, ranges, errors) for k, (line, row) in pairs]
        facts = self.facts[use.head] if use.head >= 0 else None
        argument = lines[0][0]
        if (use.centre, use.radius) != (0.0, 1.0) or use.kind in ("identity", "square"):
            argument = read((i, -1), next(step.lines()), None, ranges, errors)[0]
        return lines, argument, Computed(use, self.wiring.values[i], facts, self.dtype, self.unit, self.literal)

    def _singular(self, step: Step, interval: Pair) -> SingularityError:
        first = next(step.lines())
        function, name = getattr(step, "function", ""), self.circuit.line_name(first)
        advice = NARROWER if interval[0] < 0 or not self._varied(first) else ADDED
        return SingularityError(
            f"{step.label or function}: {function} was not found to be bounded on [{interval[0]:.6g}, "
            f"{interval[1]:.6g}], the interval that {'u = ' + name if name else 'its argument u'} may reach: it has a "
            f"singularity there, or comes too near one to tell. {advice}"
        )

    def _varied(self, line: Line) -> bool:
        """Whether it is made of variances over a prompt's tokens, within the prompt."""
        made = [i for i, start in enumerate(self.circuit.starts) if start in line.terms]
        return any(
            self._spreads[i].left == self._spreads[i].right
            if i in self._spreads
            else self.circuit.place(i) is not Place.TOKEN and any(map(self._varied, self.circuit.steps[i].lines()))
            for i in made
        )

    def _kept(self, key: Key, line: Line, row: Row | None, ranges: Sequence[Pair],
              errors: Sequence[float]) -> Valued:  # fmt: skip
        """`line` where the ranges are the target's own: a variance is no larger than what it is of allows."""
        (low, high), error = self.line(key, line, row, ranges, errors)
        if key not in self._variances:
            self._variances[key] = variance_of(line, self._squares)
        found = self._variances[key]
        if found is not None:
            moved = [self.line((*key, j), part, None, ranges, errors)[0] for j, part in enumerate(found.moved)]
            high = min(high, found.most(moved))
        return (low, high), error

    def line(self, key: Key, line: Line, row: Row | None, ranges: Sequence[Pair],
             errors: Sequence[float]) -> Valued:  # fmt: skip
        """The range of a line, and the error of the row that stands for it."""
        if len(line.terms) == 1 and line.bias == 0:
            ((wire, c),) = line.terms.items()
            if c == 1 and (row is None or row.wire == wire):
                return ranges[wire], errors[wire]
        long = self._long(key, line, row)
        try:
            if long is not None:
                return self._followed(long, row, ranges, errors)
        except (OverflowError, ValueError):  # of fsum: numbers too large for floats
            pass
        low = high = as_ball(line.bias)
        error, size = (arb(0), arb(0)) if row is None else (abs(arb(row.bias) - low), abs(arb(row.bias)))
        for term in self._terms(key, line, row):
            a, b = ranges[term.wire]
            least, most = term.ends(a, b)
            low, high = low + least, high + most
            if row is not None:
                largest = max(abs(a), abs(b))
                error = error + term.kept * errors[term.wire] + term.off * largest
                size = size + term.kept * (largest + errors[term.wire])
        found = below(low), above(high)
        if row is None:
            return found, 0.0
        if self.rounding:
            error = error + size * gamma(_roundings(row), self.unit) + TINY[self.dtype]
        return found, upper(error) if upper(size) < LARGEST[self.dtype] else math.inf

    def _long(self, key: Key, line: Line, row: Row | None) -> LongLine | None:
        if key not in self._long_lines:
            self._long_lines[key] = LongLine.of(line, row)
        return self._long_lines[key]

    def _followed(self, long: LongLine, row: Row | None, ranges: Sequence[Pair], errors: Sequence[float]) -> Valued:
        found = long.range(ranges)
        if row is None:
            return found, 0.0
        error, size = long.error(ranges, errors)
        if self.rounding and error < math.inf:
            error = upper(arb(error) + arb(size) * gamma(_roundings(row), self.unit) + TINY[self.dtype])
        return found, error if size < LARGEST[self.dtype] else math.inf

    def _terms(self, key: Key, line: Line, row: Row | None) -> list[_Term]:
        """Every wire that the line or its row has, which may be another."""
        found = self._numbers.get(key)
        if found is None:
            found = []
            stored = {} if row is None else row.terms
            for wire in {**line.terms, **stored}:
                exact, kept = as_ball(line.terms.get(wire, 0)), arb(stored.get(wire, 0.0))
                sign = 1 if exact >= 0 else -1 if exact <= 0 else None
                found.append(_Term(wire, exact, sign, abs(kept), abs(kept - exact)))
            self._numbers[key] = found
        return found
