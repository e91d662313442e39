"""phi(u), and phi(u)·v: a function of one line, by a head that may carry a partner.

A head looks at t = (u - c)/r, a line of its own, and the step is α' h(t) + β' t + γ'. The head keeps |h - g| <= a on
its domain, where phi(u) = α g(t) + β t + γ exactly, computed it adds b, and phi has slope at most L:
e = L r e_t + |α'|(a + b) + |α' - α||g| + |β' - β||t| + |γ' - γ|, and 4ρ(|α' h| + |β' t| + |γ'|) for computing the sum,
if the domain holds every t + [-e_t, e_t]. Three kinds: as it is (c = 0, r = 1, α = 1, β = γ = 0); the identity
(g = t, α = r, γ = c); the square (g = t², α = r², β = 2cr, γ = c²). The latter two let one head on [-1, 1] serve every
product and every square. Where a head keeps relative errors, (a + b)|g| is in the place of a + b; with c = 0 and r a
power of two scaling is exact, so that u·v and u² err by a few ρ of themselves.

*Squeezed.* Where phi ends at an end of the interval that u may reach, as sqrt at 0, errors would lead beyond it. The
head is then one for phi itself, at t = (u - c)/r a little inside. With d = |t - u| + e_t, in place of L r e_t stands
the most that phi moves within d, which is finite for every continuous phi.

*A partner.* With E the error of phi(u), phi(u)·v errs by  e = E(|v| + e_v) + |phi| e_v, and rounding the product ρ of
its size; literally it is the values constant·v that are rounded, which the head's own rounding counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flint import arb

from anchorhead.circuit.line import Line
from anchorhead.circuit.step import (
    PLAIN,
    Computed,
    Kept,
    OutsideDomain,
    Pair,
    ProvedHead,
    Step,
    Use,
    Valued,
    Values,
    size,
    widened,
)
from anchorhead.enclosure.exact import as_ball
from anchorhead.enclosure.precision import above, below, upper
from anchorhead.enclosure.variation import moved, steepest, value_range
from anchorhead.expression.graph import Node, constant, substituted, variable

if TYPE_CHECKING:
    from anchorhead.circuit.program import Reader

U = variable("u")
"""The variable of the functions in a circuit."""
SQUARE = Node("pow", (U, constant(2)))
SQUARES = (SQUARE, Node("square", (U,)), Node("mul", (U, U)))


STEEPEST = 2.0**900
"""In the place of an infinite slope, which times no error at all is none."""
NEAR = 2.0**-12
"""Of an interval's length: errors that are less share the largest slope within it."""


class NotFinite(Exception):
    """A step's function is not finite everywhere on an interval that its argument may reach."""

    def __init__(self, interval: Pair) -> None:
        super().__init__(f"not finite on {interval}")
        self.interval = interval


class FunctionStep(Step):
    """What the two share."""

    function: Node
    argument: Line

    def alike(self, head: int) -> tuple[object, ...]:
        return self.name, head

    def read_lines(self, use: Use) -> list[Line]:
        """The query in place of the argument."""
        first, *rest = self.lines()
        return [use.query(first), *rest]

    def fits(self, use: Use, values: Values, heads: Sequence[ProvedHead]) -> bool:
        if use.head < 0 or not use.radius > 0:
            return False
        found = heads[use.head].function
        if use.kind == "plain":
            return found is self.function
        if use.kind == "identity":
            return self.function is U and found is U
        return use.kind == "square" and self.function in SQUARES and found is SQUARE

    def follow(self, lines: Sequence[Valued], argument: Pair, computed: Computed | None) -> list[Valued]:
        return [self.function_error(lines[0], argument, computed)]

    def function_error(self, query: Valued, argument: Pair, computed: Computed | None) -> Valued:
        """Range and error of phi(u)."""
        values = value_range(self.function, *argument)
        if values is None:
            raise NotFinite(argument)
        if computed is None:
            return values, 0.0
        if computed.facts is None:
            return values, math.inf
        use, kept, facts = computed.use, computed.values, computed.facts
        wide = widened(*query)
        if not (facts.low <= wide[0] and wide[1] <= facts.high):
            raise OutsideDomain(wide)
        # where tilts are added to the values, or a scale rounds them, they have two roundings more
        often = 1 if kept[1] == 0 and math.frexp(kept[0])[0] == 0.5 else 2
        total = arb(facts.approximation) + (often * facts.rounding if computed.unit else 0.0)
        if facts.relative:
            total = total * self._size_of_head(use, wide) + (often * facts.least if computed.unit else 0.0)
        total = abs(arb(kept[0])) * total
        for place, (factor, meant) in enumerate(zip(kept, use.values, strict=True)):
            if factor != meant:
                largest = (self._size_of_head(use, wide), size(wide), 1.0)[place]
                total = total + abs(arb(factor) - as_ball(meant)) * largest
        total = total + self._drift(use, query[1], argument, wide, facts)
        exact = kept[1:] == (0.0, 0.0) and abs(math.frexp(kept[0])[0]) == 0.5
        if computed.unit and exact and kept != PLAIN:
            total = total + computed.tiny
        elif computed.unit and kept != PLAIN:
            # |α h| <= |phi| + |β t| + |γ| + error
            beside = abs(arb(kept[1])) * size(wide) + abs(arb(kept[2]))
            total = total + 4 * computed.unit * (size(values) + 2 * beside + total) + computed.tiny
        return values, computed.within(total, size(values))

    def _drift(self, use: Use, error: float, argument: Pair, wide: Pair, facts: Kept) -> arb:
        """How far phi is at what the head looks at, in `wide`, from phi(u)."""
        if use.is_squeezed:
            low, high = min(argument[0], wide[0]), max(argument[1], wide[1])
            return arb(moved(self.function, low, high, upper(arb(use.shift(argument)) + error)))
        if not error:
            return arb(0)
        drift = upper(arb(use.radius) * error)
        near = self._slope_near(argument, drift)
        if use.kind == "plain":
            near = min(near, steepest(self.function, facts.low, facts.high))
        return arb(near) * drift

    def _slope_near(self, argument: Pair, drift: float) -> float:
        """The largest slope within `drift` of the interval; where that hardly matters, one for all small drifts."""
        room = NEAR * (argument[1] - argument[0])
        if drift < room:
            shared = steepest(self.function, *widened(argument, room))
            if shared <= 1.01 * steepest(self.function, *argument):
                return shared
        return steepest(self.function, *widened(argument, drift))

    def _size_of_head(self, use: Use, wide: Pair) -> float:
        """The largest |g| for the head's function g on what the step looks at."""
        if use.kind == "plain":
            found = value_range(self.function, *wide)
            return math.inf if found is None else size(found)
        return size(wide) if use.kind == "identity" else upper(arb(size(wide)) ** 2)

    def arrives(self, own: Any, use: Use, sizes: Sequence[Pair], lines: Sequence[Any], domain: Pair,
                most: Callable[[Sequence[Any]], Any]) -> Any:  # fmt: skip
        if use.is_squeezed:
            shift = use.shift(sizes[0])
            near = moved(self.function, *sizes[0], 2 * shift) / shift
        else:
            near = steepest(self.function, *sizes[0])
        if use.kind == "plain":
            near = min(near, steepest(self.function, *domain))
        return self.own_share(use, sizes[0]) * own + min(near, STEEPEST) * lines[0]

    def own_share(self, use: Use, argument: Pair) -> float:
        """Of an odd head, which has centre 0, as much as its result is large."""
        if use.kind == "plain" or use.centre:
            return float(use.values[0])
        return size(value_range(self.function, *argument) or (0.0, 0.0))

    @property
    def symbol(self) -> str:
        return "square" if self.function in SQUARES else self.function.op

    def roles(self) -> list[str]:
        return ["u", "v"][: len(self.parts())]

    def words(self, lines: Sequence[str], formula: str) -> str:
        return f"computes {formula if _named(lines) else f'{self.function} of u = {lines[0]}'}"

    def keys(self, heads: Sequence[ProvedHead], use: Use) -> int:
        return heads[use.head].keys

    def described(self, heads: Sequence[ProvedHead], use: Use) -> tuple[str, str]:
        return str(heads[use.head].function), heads[use.head].method


@dataclass(frozen=True)
class Apply(FunctionStep):
    """phi(argument)."""

    function: Node
    argument: Line
    label: str = field(default="", compare=False)

    name = "apply"
    items = 4

    @classmethod
    def read(cls, items: list[Any], label: str, reader: Reader) -> Apply:
        return cls(reader.function(items[0]), reader.line(items[1]), label)

    def formula(self, line: Callable[[Line], Node]) -> Node:
        return substituted(self.function, {"u": line(self.argument)})

    def factors(self) -> tuple[Node, Line, Line]:
        return self.function, self.argument, Line({}, 1)

    def wanted(self) -> tuple[str, Node, bool]:
        return ("square", SQUARE, False) if self.function in SQUARES else ("plain", self.function, False)


@dataclass(frozen=True)
class Times(FunctionStep):
    """phi(argument) · partner."""

    function: Node
    argument: Line
    partner: Line
    label: str = field(default="", compare=False)

    name = "times"
    items = 5

    @classmethod
    def read(cls, items: list[Any], label: str, reader: Reader) -> Times:
        return cls(reader.function(items[0]), reader.line(items[1]), reader.line(items[2]), label)

    def parts(self) -> Sequence[range]:
        """All queries, then all partners."""
        return [range(1), range(1, 2)]

    def factors(self) -> tuple[Node, Line, Line]:
        return self.function, self.argument, self.partner

    def formula(self, line: Callable[[Line], Node]) -> Node:
        return Node("mul", (substituted(self.function, {"u": line(self.argument)}), line(self.partner)))

    @property
    def symbol(self) -> str:
        return "product" if self.function is U else super().symbol

    def words(self, lines: Sequence[str], formula: str) -> str:
        what = "the product u·v" if self.function is U else f"({self.function})·v"
        return f"computes {formula if _named(lines) else f'{what} of u = {lines[0]} and v = {lines[1]}'}"

    def wanted(self) -> tuple[str, Node, bool]:
        return ("identity", U, True) if self.function is U else ("plain", self.function, True)

    def fits(self, use: Use, values: Values, heads: Sequence[ProvedHead]) -> bool:
        """A partner is carried in constants only."""
        return super().fits(use, values, heads) and heads[use.head].constant_values

    def follow(self, lines: Sequence[Valued], argument: Pair, computed: Computed | None) -> list[Valued]:
        (values, error), (partner, partner_error) = self.function_error(lines[0], argument, computed), lines[1]
        corners = [arb(a) * b for a in values for b in partner]
        exact = min(below(c) for c in corners), max(above(c) for c in corners)
        if computed is None:
            return [(exact, 0.0)]
        phi, v = arb(size(values)), arb(size(partner))
        total = error * (v + partner_error) + phi * partner_error
        total = total + computed.unit * (phi + error) * (v + partner_error) + computed.tiny
        return [(exact, computed.within(total, max(size(exact), upper(v + partner_error))))]

    def arrives(self, own: Any, use: Use, sizes: Sequence[Pair], lines: Sequence[Any], domain: Pair,
                most: Callable[[Sequence[Any]], Any]) -> Any:  # fmt: skip
        values = value_range(self.function, *sizes[0]) or (0.0, 0.0)
        return super().arrives(own, use, sizes, lines, domain, most) * size(sizes[1]) + size(values) * lines[1]

    def described(self, heads: Sequence[ProvedHead], use: Use) -> tuple[str, str]:
        function, method = super().described(heads, use)
        return "u·v" if function == "u" else f"({function})·v", method


def _named(lines: Sequence[str]) -> bool:
    """Whether u or v, the names of what a step reads, are those of something else in it."""
    return any(re.search(r"\b[uv]\b", line) for line in lines)
