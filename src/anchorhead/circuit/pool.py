"""Softmax attention over the tokens of a prompt, however many there are:

    sum over tokens i of softmax_i(query · key_i + offset_i) · value_i

A mean is one without a query, whose scores are all the same. The result lies among the values, so its range is theirs.

*Perturbed scores.* If every score moves by at most δ, the odds of any set of tokens move by a factor of at most e^(2δ),
and so its weight p by at most the largest σ(t + 2δ) - σ(t), σ the logistic function, which is tanh(δ/2), at t = -δ.
Half the sum of |w' - w| is such a difference of weights. So if values span V and err by at most e_v, the result errs by
at most  e_v + V tanh(δ/2):  nothing here depends on the number of tokens. A mean errs by e_v.

*Rounding.* Sums over tokens are formed in pairs, pairs of pairs, and so on: with at most 2^K tokens a term is rounded K
times. The differences from the largest score, at most D in size, err by ρD and exp by 4ρ, which is a δ of ρ(D + 5);
products, sums and quotient are γ_(2K+4) of the values' size. What underflows of a weight is lost, 2^K times at most.
A mean is γ_(K+2): sum, and division by a count that may be rounded. The literal softmax sums over at most N tokens in
any order, in float64 whatever the dtype is: γ_(2N+8) with the ρ of float64, and γ_2 with that of the dtype, to which a
weight is rounded, and the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from flint import arb

from anchorhead.circuit.attend import score_error
from anchorhead.circuit.line import Line
from anchorhead.circuit.places import Misplaced, Place, joined
from anchorhead.circuit.step import Computed, Pair, ProvedHead, Step, Use, Valued, Values, gamma, size
from anchorhead.dtypes import UNIT
from anchorhead.enclosure.precision import upper
from anchorhead.expression.graph import Node
from anchorhead.expression.primitives import add, mul

if TYPE_CHECKING:
    from anchorhead.circuit.program import Reader

PAIRINGS = 32
"""K: a prompt may have 2^K tokens."""
MOST_LITERAL = 1 << 16
"""N: tokens up to which the literal softmax is bounded."""
LENGTHS = f"a prompt has at most 2^{PAIRINGS} tokens, and at most {MOST_LITERAL:,} where its softmax is written out"


@dataclass(frozen=True)
class Pool(Step):
    """The query is read in its own place, all the rest at every token; a mean has no query and a constant offset."""

    query: tuple[Line, ...]
    key: tuple[Line, ...]
    offset: Line
    value: Line
    label: str = field(default="", compare=False)

    name = "pool"
    items = 6

    @property
    def is_mean(self) -> bool:
        """Whether all tokens weigh the same."""
        return not self.query and self.offset.is_constant

    @property
    def symbol(self) -> str:
        return "mean" if self.is_mean else "attention_over_tokens"

    def formula(self, line: Callable[[Line], Node]) -> Node:
        value = line(self.value)
        if self.is_mean:
            return Node("mean", (value,))
        parts = [mul(line(q), line(k)) for q, k in zip(self.query, self.key, strict=True)]
        parts += [line(self.offset)] if self.offset.terms or not parts else []
        plus = lambda a, b: Node("sub", (a, b.args[0])) if b.op == "neg" else add(a, b)
        return Node("attend", (reduce(plus, parts), value))

    def words(self, lines: Sequence[str], formula: str) -> str:
        if self.is_mean:
            return f"computes the mean over the prompt's tokens of {lines[-1]}"
        query, key = (f"({', '.join(lines[i] for i in part)})" for part in self.parts()[:2])
        score = f"{key}·{query} + {lines[-2]}".removesuffix(" + 0") if self.query else lines[-2]
        return f"computes the mean over the prompt's tokens of {lines[-1]}, weighted by softmax of {score}"

    def roles(self) -> list[str]:
        d = range(len(self.query))
        return [*(f"query[{i}]" for i in d), *(f"key[{i}]" for i in d), "offset", "value"]

    def parts(self) -> Sequence[range]:
        """Queries, keys, offsets, values."""
        d = len(self.query)
        return [range(a, b) for a, b in pairwise(accumulate((d, d, 1, 1), initial=0))]

    def place(self, lines: Sequence[Place]) -> Place:
        d = len(self.query)
        own = joined(lines[:d])
        if own is Place.TOKEN or joined(lines[d:]) is Place.QUERY:
            raise Misplaced("a pool asks with a number of a token, or looks up one of a query")
        return own

    def read_at(self, own: Place) -> list[Place]:
        return [own] * len(self.query) + [Place.TOKEN] * (len(self.key) + 2)

    def alike(self, head: int) -> tuple[object, ...]:
        return self.name, len(self.query), self.is_mean

    @classmethod
    def read(cls, items: list[Any], label: str, reader: Reader) -> Pool:
        query, key = reader.lines(items[0]), reader.lines(items[1])
        reader.require(len(query) == len(key), "query and key differ in size")
        return cls(query, key, reader.line(items[2]), reader.line(items[3]), label)

    def fits(self, use: Use, values: Values, heads: Sequence[ProvedHead]) -> bool:
        return use == Use(self.name)

    def follow(self, lines: Sequence[Valued], argument: Pair, computed: Computed | None) -> list[Valued]:
        d = len(self.query)
        values, error = lines[-1]
        if computed is None:
            return [(values, 0.0)]
        largest, score, total = arb(size(values)) + error, 0.0, arb(error)
        if not self.is_mean:
            score, slip = score_error(lines[:d], lines[d:-2], lines[-2], computed.unit)
            slip = slip + computed.unit * (2 * arb(score) + 5)
            total = total + (arb(values[1]) - values[0]) * (slip / 2).tanh()
        total = total + (self._rounds(computed) + 2.0**PAIRINGS * computed.tiny) * largest + computed.tiny
        return [(values, computed.within(total, upper(largest + 2 * arb(score))))]

    def _rounds(self, computed: Computed) -> arb:
        """Of the values' size, what weights, products, sums and quotient round by."""
        if computed.literal:
            wide = gamma(2 * MOST_LITERAL + 8, min(computed.unit, UNIT["float64"]))
            return (1 + wide) * (1 + gamma(2, computed.unit)) - 1
        return gamma(PAIRINGS + 2 if self.is_mean else 2 * PAIRINGS + 4, computed.unit)

    def arrives(self, own: Any, use: Use, sizes: Sequence[Pair], lines: Sequence[Any], domain: Pair,
                most: Callable[[Sequence[Any]], Any]) -> Any:  # fmt: skip
        d, span = len(self.query), sizes[-1][1] - sizes[-1][0]
        scores = lines[-2]
        for k in range(d):
            scores = scores + size(sizes[k]) * lines[d + k] + size(sizes[d + k]) * lines[k]
        return lines[-1] + span / 2 * scores

    def keys(self, heads: Sequence[ProvedHead], use: Use) -> int:
        """None of its own: the keys are the prompt's tokens."""
        return 0

    def logits(self, sizes: Sequence[float], values: Values) -> float:
        d = len(self.query)
        return sizes[-2] + sum(q * k for q, k in zip(sizes[:d], sizes[d:-2], strict=True))

    def described(self, heads: Sequence[ProvedHead], use: Use) -> tuple[str, str]:
        return ("mean" if self.is_mean else "softmax over tokens"), "as it is"
