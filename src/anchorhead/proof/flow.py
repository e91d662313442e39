"""How values and errors flow through a circuit whose steps are computed by heads (constructions 3.3, 3.4).

For each wire, over a box of inputs: an interval that holds what the target has there, and e, a bound on how far the
network is from it. ρ is the unit roundoff, γ_k = kρ/(1 - kρ).

*Lines.* The network has c' for c (`circuit/rows.py`). In exact arithmetic it errs by  sum |c'| e_w + |c' - c||w|;
computing the sum of k terms in any order adds γ_(k+1) sum |c'|(|w| + e_w). A wire by itself is passed on as it is.

*phi(u).* A head looks at t = (u - c)/r, a line of its own, and the step is α' h(t) + β' t + γ'. The head keeps
|h - g| <= a on its domain, where phi(u) = α g(t) + β t + γ exactly, computed it adds b, and phi has slope at most L:
e = L r e_t + |α'|(a + b) + |α' - α||g| + |β' - β||t| + |γ' - γ|, and 4ρ(|α' h| + |β' t| + |γ'|) for computing the sum,
if the domain holds every t + [-e_t, e_t]. Three kinds: as it is (c = 0, r = 1, α = 1, β = γ = 0); the identity
(g = t, α = r, γ = c); the square (g = t², α = r², β = 2cr, γ = c²). The latter two let one head on [-1, 1] serve every
product and every square.

*phi(u)·v.* With E the error of phi(u):  e = E(|v| + e_v) + |phi| e_v, and rounding the product 2ρ of its size.

*max.* Softmax of β u_j with values u_j. With t_j = β(M - u_j) >= 0 the output falls short of M by
(1/β) sum t_j e^(-t_j) / (1 + sum e^(-t_j)), which is largest where all t_j = 1 + λ with λ e^λ = (m-1)/e:
it is λ/β. Since max moves no more than its arguments do, e = max e_j + λ/β. β is a power of two, so β u_j is exact; the
differences Δ_j = β(u_j - M) err by ρΔ_j and exp by 4ρ, which moves the output by at most
2 sum W_j ρ(Δ_j + 4)|u_j - M| <= 2(m-1)ρ(0.55 + 4/e)/β, and the sum by γ_(m+3) max|u|.

*Softmax attention of the target itself.* If scores err by at most E, then each weight is off by a factor within
e^(±2E), and the output by at most  max e_v + (e^(2E) - 1)·spread,  spread the largest distance of a value from the
middle of all of them. Scores err as sums of products do; computing softmax adds ρ(Δ + 4 + m) to E, with Δ the range of
the scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flint import arb

from anchorhead.circuit.circuit import Apply, Attend, Circuit, Largest, Line, Step, Times
from anchorhead.circuit.rows import PLAIN, Row, Use, Wiring, lines_of
from anchorhead.enclosure.exact import as_ball
from anchorhead.enclosure.precision import above, ball, below, upper
from anchorhead.enclosure.softmax_range import blended, softmax_weights
from anchorhead.enclosure.variation import steepest, value_range
from anchorhead.errors import SingularityError

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24}
TINY = {"float64": 2.0**-1020, "float32": 2.0**-124}
LARGEST = {"float64": 2.0**1000, "float32": 2.0**120}
"""What no sum that a network forms may reach in absolute value, so that nothing in it overflows."""
Pair = tuple[float, float]
Valued = tuple[Pair, float]
"""A range, and an error."""


@dataclass(frozen=True)
class HeadFacts:
    """A head's domain, and its error there in exact arithmetic and from rounding."""

    low: float
    high: float
    approximation: float
    rounding: float


@dataclass(frozen=True)
class Flow:
    """For every wire its range and error, and for every output likewise; all are bounds for every input of a box."""

    ranges: list[Pair]
    errors: list[float]
    outputs: list[Pair]
    output_errors: list[float]
    arguments: list[tuple[Pair, ...]]
    """For each step the ranges of its lines, errors included."""


class OutsideDomain(Exception):
    """A step's argument may leave the domain of its head."""

    def __init__(self, step: int, needed: Pair) -> None:
        super().__init__(f"step {step} may reach {needed}")
        self.step, self.needed = step, needed


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
        facts: Sequence[HeadFacts] = (),
        *,
        rounding: bool = True,
    ) -> None:
        self.circuit, self.dtype, self.wiring, self.facts = circuit, dtype, wiring, facts
        self.rounding = rounding and wiring is not None
        self.unit = UNIT[dtype] if self.rounding else 0.0
        self._numbers: dict[tuple[int, int], list[_Term]] = {}

    def follow(self, cell: Sequence[Pair]) -> Flow:
        """Ranges and errors for inputs in a box."""
        ranges, errors = list(cell), [0.0] * len(cell)
        arguments = []
        for i, step in enumerate(self.circuit.steps):
            if self.wiring is None:
                lines = [self.line((i, k), line, None, ranges, errors) for k, line in enumerate(step.lines())]
                found, error = self._step(i, step, lines, lines[0][0])
            else:
                exact, rows = lines_of(step, self.wiring.uses[i]), self.wiring.rows[i]
                pairs = enumerate(zip(exact, rows, strict=True))
                lines = [self.line((i, k), line, row, ranges, errors) for k, (line, row) in pairs]
                found, error = self._step(i, step, lines, self._argument(i, step, lines, ranges, errors))
            ranges += found
            errors += error
            arguments.append(tuple(widened(*line) for line in lines))
        last: Sequence[Row | None] = [None] * len(self.circuit.outputs)
        if self.wiring is not None:
            last = self.wiring.outputs
        outputs = [self.line((-1, k), line, row, ranges, errors)
                   for k, (line, row) in enumerate(zip(self.circuit.outputs, last, strict=True))]  # fmt: skip
        return Flow(ranges, errors, [r for r, _ in outputs], [e for _, e in outputs], arguments)

    def _argument(self, i: int, step: Step, lines: list[Valued], ranges: list[Pair], errors: list[float]) -> Pair:
        """The range of a function's argument u, which its query is (u - c)/r of."""
        if self.wiring is None or not isinstance(step, Apply | Times) or self.wiring.uses[i].kind == "plain":
            return lines[0][0]
        return self.line((i, -1), step.argument, None, ranges, errors)[0]

    def line(self, key: tuple[int, int], line: Line, row: Row | None, ranges: Sequence[Pair],
             errors: Sequence[float]) -> Valued:  # fmt: skip
        """The range of a line, and the error of the row that stands for it."""
        if len(line.terms) == 1 and line.bias == 0:
            ((wire, c),) = line.terms.items()
            if c == 1 and (row is None or row.wire == wire):
                return ranges[wire], errors[wire]
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
            error = error + size * _gamma(len(row.terms) + 2, self.unit) + TINY[self.dtype]
        return found, upper(error) if upper(size) < LARGEST[self.dtype] else math.inf

    def _terms(self, key: tuple[int, int], line: Line, row: Row | None) -> list[_Term]:
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

    def _step(self, index: int, step: Step, lines: list[Valued], argument: Pair) -> tuple[list[Pair], list[float]]:
        if isinstance(step, Attend):
            return self._attend(step, lines)
        if isinstance(step, Largest):
            value, error = self._largest(index, lines)
        else:
            value, error = self._function(index, step, argument, *lines[0])
            if isinstance(step, Times):
                value, error = self._product(value, error, *lines[1])
        return [value], [error]

    def _function(self, index: int, step: Apply | Times, argument: Pair, query: Pair, error: float) -> Valued:
        values = value_range(step.function, *argument)
        if values is None:
            low, high = argument
            name = self.circuit.line_name(step.argument)
            raise SingularityError(
                f"{step.label or step.function}: {step.function} is not finite everywhere on [{low:.6g}, {high:.6g}], "
                f"the interval that {'u = ' + name if name else 'its argument u'} may reach. Choose a smaller domain, "
                "or rewrite the formula so that this interval keeps away from the singularity."
            )
        if self.wiring is None:
            return values, 0.0
        use, kept = self.wiring.uses[index], self.wiring.values[index]
        facts = self.facts[use.head]
        wide = widened(query, error)
        if not (facts.low <= wide[0] and wide[1] <= facts.high):
            raise OutsideDomain(index, wide)
        plain = kept == PLAIN
        # where tilts are added to the values, or a scale rounds them, they have two roundings more
        evaluation = facts.rounding * (1 if kept[1] == 0 and math.frexp(kept[0])[0] == 0.5 else 2)
        total = abs(arb(kept[0])) * (arb(facts.approximation) + (evaluation if self.rounding else 0.0))
        sizes = self._size_of_head(use, step, wide), _size(wide), 1.0
        for factor, meant, size in zip(kept, use.values, sizes, strict=True):
            if factor != meant:
                total = total + abs(arb(factor) - as_ball(meant)) * size
        if error:
            drift = upper(arb(use.radius) * error)
            near = steepest(step.function, *widened(argument, drift))
            if use.kind == "plain":
                near = min(near, steepest(step.function, facts.low, facts.high))
            total = total + arb(near) * drift
        if self.rounding and not plain:
            # |α h| <= |phi| + |β t| + |γ| + error
            beside = abs(arb(kept[1])) * _size(wide) + abs(arb(kept[2]))
            total = total + 4 * self.unit * (_size(values) + 2 * beside + total) + TINY[self.dtype]
        return values, self._within(total, _size(values))

    def _size_of_head(self, use: Use, step: Apply | Times, wide: Pair) -> float:
        """The largest |g| for the head's function g on what the step looks at."""
        if use.kind == "plain":
            found = value_range(step.function, *wide)
            return math.inf if found is None else _size(found)
        return _size(wide) if use.kind == "identity" else upper(arb(_size(wide)) ** 2)

    def _within(self, error: arb, size: float) -> float:
        """The error as a float, or infinity where what is computed may be too large for the dtype."""
        return upper(error) if upper(error + size) < LARGEST[self.dtype] else math.inf

    def _product(self, values: Pair, error: float, partner: Pair, partner_error: float) -> Valued:
        corners = [arb(a) * b for a in values for b in partner]
        exact = min(below(c) for c in corners), max(above(c) for c in corners)
        if self.wiring is None:
            return exact, 0.0
        phi, v = arb(_size(values)), arb(_size(partner))
        total = error * (v + partner_error) + phi * partner_error
        if self.rounding:
            total = total + 2 * self.unit * (phi + error) * (v + partner_error) + TINY[self.dtype]
        return exact, self._within(total, max(_size(exact), upper(v + partner_error)))

    def _largest(self, index: int, lines: list[Valued]) -> Valued:
        value = max(r[0] for r, _ in lines), max(r[1] for r, _ in lines)
        if self.wiring is None:
            return value, 0.0
        sharpness, m = self.wiring.values[index][0], len(lines)
        size = max(upper(arb(_size(r)) + e) for r, e in lines)
        error = arb(max(e for _, e in lines)) + arb(shortfall(m)) / sharpness
        if self.rounding:
            error = error + 2.1 * 2 * (m - 1) * self.unit / sharpness + _gamma(m + 4, self.unit) * size
            error = error + m * TINY[self.dtype]
        return value, self._within(error, upper((1 + arb(sharpness)) * size))

    def _attend(self, step: Attend, lines: list[Valued]) -> tuple[list[Pair], list[float]]:
        d, m, width = len(step.query), len(step.offsets), step.width
        query, rest = lines[:d], lines[d:]
        keys = [rest[j * d : (j + 1) * d] for j in range(m)]
        offsets, values = rest[m * d : m * d + m], rest[m * d + m :]
        weights = softmax_weights([_scores(query, row, offset) for row, offset in zip(keys, offsets, strict=True)])
        slip = arb(0)
        if self.wiring is not None:
            slip = self._slip([self._score(query, row, offset) for row, offset in zip(keys, offsets, strict=True)])
        found, errors = [], []
        for i in range(width):
            column = values[i::width]
            low, high = min(r[0] for r, _ in column), max(r[1] for r, _ in column)
            error = max(e for _, e in column)
            total = arb(error) + slip * ((arb(high) - low) / 2 + error)
            total = total + _gamma(m + 4, self.unit) * (_size((low, high)) + error)
            found.append(blended(weights, [r for r, _ in column]))
            errors.append(upper(total) if self.wiring is not None else 0.0)
        return found, errors

    def _score(self, query: Sequence[Valued], key: Sequence[Valued], offset: Valued) -> tuple[float, arb]:
        """The largest a score can be in absolute value, and its error."""
        size, error = arb(_size(offset[0])) + offset[1], arb(offset[1])
        for (q, eq), (k, ek) in zip(query, key, strict=True):
            error = error + arb(_size(q)) * ek + arb(_size(k)) * eq + arb(eq) * ek
            size = size + (arb(_size(q)) + eq) * (arb(_size(k)) + ek)
        return upper(size), error + _gamma(len(query) + 2, self.unit) * size

    def _slip(self, scores: Sequence[tuple[float, arb]]) -> arb:
        """e^(2E) - 1."""
        worst = max((e for _, e in scores), key=upper)
        spread = 2 * max(s for s, _ in scores)
        if not spread < LARGEST[self.dtype]:
            return arb("inf")
        return (2 * (worst + self.unit * (spread + 4 + len(scores)))).expm1()


def _scores(query: Sequence[Valued], key: Sequence[Valued], offset: Valued) -> Pair:
    """The range of query · key + offset."""
    low, high = arb(offset[0][0]), arb(offset[0][1])
    for (q, _), (k, _) in zip(query, key, strict=True):
        products = [arb(a) * b for a in q for b in k]
        low, high = low + min(below(p) for p in products), high + max(above(p) for p in products)
    return below(low), above(high)


def _gamma(k: int, unit: float) -> arb:
    return k * arb(unit) / (1 - k * arb(unit))


def _size(pair: Pair) -> float:
    return max(abs(pair[0]), abs(pair[1]))


def widened(pair: Pair, error: float) -> Pair:
    """The interval, `error` longer on both sides."""
    if error == 0:
        return pair
    return math.nextafter(pair[0] - error, -math.inf), math.nextafter(pair[1] + error, math.inf)


def shortfall(count: int) -> float:
    """λ with λ e^λ = (m-1)/e, rounded up: how far β times a soft maximum of m numbers falls short, at most."""
    return upper((arb(count - 1) * arb(-1).exp()).lambertw())
