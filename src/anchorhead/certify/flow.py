"""How values and errors flow through a circuit whose steps are computed by heads (constructions 3.3, 3.4).

For each wire, over a box of inputs: an interval that holds what the target has there, and e, a bound on how far the
network is from it. ρ is the unit roundoff, γ_k = kρ/(1 - kρ).

*Lines.* The network stores c' for c. In exact arithmetic it errs by  sum |c'| e_w + |c' - c||w|; computing the sum of k
terms in any order adds γ_(k+1) sum |c'|(|w| + e_w). A wire by itself is passed on as it is.

*phi(u).* A head looks at t = (u - c)/r, a line of its own, and the step is α h(t) + β t + γ. The head keeps
|h - g| <= a on its domain, where phi(u) = α g(t) + β t + γ exactly, computed it adds b, and phi has slope at most L:
e = L r e_t + |α|(a + b), and 4ρ(|α h| + |β t| + |γ|) for computing the sum, if the domain holds every t + [-e_t, e_t].
Three kinds: as it is (c = 0, r = 1, α = 1, β = γ = 0); the identity (g = t, α = r, γ = c); the square (g = t²,
α = r², β = 2cr, γ = c²). The latter two let one head on [-1, 1] serve every product and every square.

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
from fractions import Fraction

from flint import arb, ctx

from anchorhead.certify.softmax_range import blended, softmax_weights
from anchorhead.certify.statement import upper
from anchorhead.certify.variation import above, below, steepest, value_range
from anchorhead.errors import SingularityError
from anchorhead.expression.circuit import Apply, Attend, Circuit, Largest, Line, Step, Times
from anchorhead.expression.exact import as_ball, stored

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24}
TINY = {"float64": 2.0**-1020, "float32": 2.0**-124}
Pair = tuple[float, float]
Valued = tuple[Pair, float]
"""A range, and an error."""


@dataclass(frozen=True)
class Use:
    """How a step uses its head: which one it is, and the centre c and radius r of what it looks at.

    kind: "plain", "identity" or "square"; for a maximum "largest", with its sharpness; "attend" for the target's own.
    """

    kind: str
    head: int = -1
    centre: float = 0.0
    radius: float = 1.0
    sharpness: float = 0.0

    def query(self, argument: Line) -> Line:
        """t = (u - c)/r as a line."""
        if self.centre == 0 and self.radius == 1:
            return argument
        return argument.shifted(-Fraction(self.centre)).scaled(1 / Fraction(self.radius))

    @property
    def values(self) -> tuple[float, float, float]:
        """α, β, γ of the step α h(t) + β t + γ."""
        if self.kind == "identity":
            return self.radius, 0.0, self.centre
        if self.kind == "square":
            return self.radius**2, 2 * self.centre * self.radius, self.centre**2
        return 1.0, 0.0, 0.0


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


class Tracker:
    """Follows one circuit whose steps use heads with these facts; without `uses`, ranges alone."""

    def __init__(
        self,
        circuit: Circuit,
        dtype: str,
        uses: Sequence[Use] | None = None,
        facts: Sequence[HeadFacts] = (),
        *,
        rounding: bool = True,
    ) -> None:
        self.circuit, self.dtype, self.uses, self.facts = circuit, dtype, uses, facts
        self.rounding = rounding and uses is not None
        self.unit = UNIT[dtype] if self.rounding else 0.0
        self._numbers: dict[Line, list[tuple[int, arb, bool, arb, arb]]] = {}

    def follow(self, cell: Sequence[Pair]) -> Flow:
        """Ranges and errors for inputs in a box."""
        ranges, errors = list(cell), [0.0] * len(cell)
        arguments = []
        for i, step in enumerate(self.circuit.steps):
            lines = [self.line(line, ranges, errors) for line in step.lines()]
            if self.uses is not None and isinstance(step, Apply | Times):
                query = self.line(self.uses[i].query(step.argument), ranges, errors)
                found, error = self._step(i, step, lines, query)
            else:
                found, error = self._step(i, step, lines, lines[0])
            ranges += found
            errors += error
            arguments.append(tuple(widened(*line) for line in lines))
        outputs = [self.line(line, ranges, errors) for line in self.circuit.outputs]
        return Flow(ranges, errors, [r for r, _ in outputs], [e for _, e in outputs], arguments)

    def line(self, line: Line, ranges: Sequence[Pair], errors: Sequence[float]) -> Valued:
        """The range of a line, and its error."""
        if len(line.terms) == 1 and line.bias == 0:
            ((wire, c),) = line.terms.items()
            if c == 1:
                return ranges[wire], errors[wire]
        bias, kept_bias = as_ball(line.bias), abs(arb(stored(line.bias, self.dtype)))
        low = high = bias
        error, size, drift = arb(0), kept_bias, abs(kept_bias - abs(bias))
        for wire, exact, positive, kept, off in self._coefficients(line):
            a, b = ranges[wire]
            low, high = (low + exact * a, high + exact * b) if positive else (low + exact * b, high + exact * a)
            if self.uses is not None:
                largest = max(abs(a), abs(b))
                error = error + kept * errors[wire]
                size = size + kept * (largest + errors[wire])
                drift = drift + off * largest
        if self.uses is None:
            return (below(low), above(high)), 0.0
        total = error + drift
        if self.rounding:
            total = total + size * _gamma(len(line.terms) + 2, self.unit) + TINY[self.dtype]
        return (below(low), above(high)), upper(total) if total != 0 else 0.0

    def _coefficients(self, line: Line) -> list[tuple[int, arb, bool, arb, arb]]:
        """(wire, c, whether c > 0, |c'|, |c' - c|) for each term."""
        found = self._numbers.get(line)
        if found is None:
            found = []
            for wire, c in line.terms.items():
                exact, kept = as_ball(c), arb(stored(c, self.dtype))
                found.append((wire, exact, bool(exact > 0), abs(kept), abs(kept - exact)))
            self._numbers[line] = found
        return found

    def _step(self, index: int, step: Step, lines: list[Valued], query: Valued) -> tuple[list[Pair], list[float]]:
        if isinstance(step, Attend):
            return self._attend(step, lines)
        if isinstance(step, Largest):
            value, error = self._largest(index, lines)
        else:
            value, error = self._function(index, step, lines[0][0], *query)
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
        if self.uses is None:
            return values, 0.0
        use = self.uses[index]
        facts = self.facts[use.head]
        wide = widened(query, error)
        if not (facts.low <= wide[0] and wide[1] <= facts.high):
            raise OutsideDomain(index, wide)
        scale, tilt, shift = (abs(arb(v)) for v in use.values)
        evaluation = facts.rounding * (2 if use.kind == "square" else 1)  # its values have two roundings more
        total = scale * (arb(facts.approximation) + (evaluation if self.rounding else 0.0))
        if error:
            drift = upper(arb(use.radius) * error)
            near = steepest(step.function, *widened(argument, drift))
            if use.kind == "plain":
                near = min(near, steepest(step.function, facts.low, facts.high))
            total = total + arb(near) * drift
        if self.rounding and use.kind != "plain":
            # |α h| <= |phi| + |β t| + |γ| + error
            total = total + 4 * self.unit * (_size(values) + 2 * (tilt * _size(wide) + shift) + total)
        return values, upper(total)

    def _product(self, values: Pair, error: float, partner: Pair, partner_error: float) -> Valued:
        corners = [arb(a) * b for a in values for b in partner]
        exact = min(below(c) for c in corners), max(above(c) for c in corners)
        if self.uses is None:
            return exact, 0.0
        phi, v = arb(_size(values)), arb(_size(partner))
        total = error * (v + partner_error) + phi * partner_error
        if self.rounding:
            total = total + 2 * self.unit * (phi + error) * (v + partner_error) + TINY[self.dtype]
        return exact, upper(total)

    def _largest(self, index: int, lines: list[Valued]) -> Valued:
        value = max(r[0] for r, _ in lines), max(r[1] for r, _ in lines)
        if self.uses is None:
            return value, 0.0
        sharpness, m = self.uses[index].sharpness, len(lines)
        error = arb(max(e for _, e in lines)) + shortfall(m) / sharpness
        if self.rounding:
            size = max(_size(r) + e for r, e in lines)
            error = error + 2.1 * 2 * (m - 1) * self.unit / sharpness + _gamma(m + 4, self.unit) * size
        return value, upper(error)

    def _attend(self, step: Attend, lines: list[Valued]) -> tuple[list[Pair], list[float]]:
        d, m, width = len(step.query), len(step.offsets), step.width
        query, rest = lines[:d], lines[d:]
        keys = [rest[j * d : (j + 1) * d] for j in range(m)]
        offsets, values = rest[m * d : m * d + m], rest[m * d + m :]
        weights = softmax_weights([_scores(query, row, offset) for row, offset in zip(keys, offsets, strict=True)])
        slip = arb(0)
        if self.uses is not None:
            slip = self._slip([self._score(query, row, offset) for row, offset in zip(keys, offsets, strict=True)])
        found, errors = [], []
        for i in range(width):
            column = values[i::width]
            low, high = min(r[0] for r, _ in column), max(r[1] for r, _ in column)
            error = max(e for _, e in column)
            total = arb(error) + slip * ((arb(high) - low) / 2 + error)
            total = total + _gamma(m + 4, self.unit) * (_size((low, high)) + error)
            found.append(blended(weights, [r for r, _ in column]))
            errors.append(upper(total) if self.uses is not None else 0.0)
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
    with ctx.workprec(80):
        return float((arb(count - 1) / arb(1).exp()).lambertw().upper()) * (1 + 1e-12)
