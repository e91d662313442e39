"""The largest of several numbers, by softmax of β u_j with values u_j.

*What it falls short.* With t_j = β(M - u_j) >= 0 the output falls short of the maximum M by
(1/β) sum t_j e^(-t_j) / (1 + sum e^(-t_j)), which is largest where all t_j = 1 + λ with λ e^λ = (m-1)/e: it is λ/β.
Since max moves no more than its arguments do, e = max e_j + λ/β.

*Rounding.* β is a power of two, so β u_j is exact; the differences Δ_j = β(u_j - M) err by ρΔ_j and exp by 4ρ, which
moves the output by at most 2 sum W_j ρ(Δ_j + 4)|u_j - M| <= 2(m-1)ρ(0.55 + 4/e)/β, and the sum by γ_(m+3) max|u|.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flint import arb

from anchorhead.circuit.line import Line
from anchorhead.circuit.step import Computed, Pair, ProvedHead, Step, Use, Valued, Values, gamma, size
from anchorhead.enclosure.precision import upper
from anchorhead.expression.graph import Node, negate, number_of
from anchorhead.expression.primitives import minus

if TYPE_CHECKING:
    from anchorhead.circuit.program import Reader


@dataclass(frozen=True)
class Largest(Step):
    """The largest of the arguments."""

    arguments: tuple[Line, ...]
    label: str = field(default="", compare=False)

    name = "largest"
    items = 3

    def alike(self, head: int) -> tuple[object, ...]:
        return self.name, len(self.arguments)

    @classmethod
    def read(cls, items: list[Any], label: str, reader: Reader) -> Largest:
        arguments = reader.lines(items[0])
        reader.require(len(arguments) > 1, "a maximum of fewer than two")
        return cls(arguments, label)

    def fits(self, use: Use, values: Values, heads: Sequence[ProvedHead]) -> bool:
        return use == Use(self.name) and values[0] > 0 and math.frexp(values[0])[0] == 0.5

    def follow(self, lines: Sequence[Valued], argument: Pair, computed: Computed | None) -> list[Valued]:
        value = max(r[0] for r, _ in lines), max(r[1] for r, _ in lines)
        if computed is None:
            return [(value, 0.0)]
        beta, m = computed.values[0], len(lines)
        largest = max(upper(arb(size(r)) + e) for r, e in lines)
        error = arb(max(e for _, e in lines)) + arb(shortfall(m)) / beta
        error = error + 2.1 * 2 * (m - 1) * computed.unit / beta + gamma(m + 4, computed.unit) * largest
        error = error + m * computed.tiny
        return [(value, computed.within(error, upper((1 + arb(beta)) * largest)))]

    def arrives(self, own: Any, use: Use, sizes: Sequence[Pair], lines: Sequence[Any], domain: Pair,
                most: Callable[[Sequence[Any]], Any]) -> Any:  # fmt: skip
        return most(lines) + own

    def beta_for(self, error: float) -> float:
        return shortfall(len(self.arguments)) / error

    def formula(self, line: Callable[[Line], Node]) -> Node:
        """Minus a minimum where all arguments have a minus."""
        parts = [line(part) for part in self.arguments]
        if all(map(_falls, parts)):
            return negate(Node("min", list(map(minus, parts))))
        return Node("max", parts)

    def words(self, lines: Sequence[str], formula: str) -> str:
        return f"computes {formula}"

    @property
    def symbol(self) -> str:
        return "max"

    def keys(self, heads: Sequence[ProvedHead], use: Use) -> int:
        return len(self.arguments)

    def own_error(self, heads: Sequence[ProvedHead], use: Use, values: Values) -> float:
        return shortfall(len(self.arguments)) / values[0]

    def logits(self, sizes: Sequence[float], values: Values) -> float:
        return values[0] * max(sizes)

    def described(self, heads: Sequence[ProvedHead], use: Use) -> tuple[str, str]:
        return "max", "maximum"


def _falls(node: Node) -> bool:
    """Whether a formula begins with a minus."""
    front = node.args[0] if node.op == "mul" else node
    return node.op == "neg" or (front.op == "constant" and number_of(front) < 0)


def shortfall(count: int) -> float:
    """λ with λ e^λ = (m-1)/e, rounded up: how far β times a soft maximum of m numbers falls short, at most."""
    return upper((arb(count - 1) * arb(-1).exp()).lambertw())
