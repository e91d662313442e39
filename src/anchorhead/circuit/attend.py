"""Softmax attention of the target itself, as it is: sum over j of softmax_j(query · key_j + offset_j) · value_j.

If scores err by at most E, then each weight is off by a factor within e^(±2E), and the output by at most
max e_v + (e^(2E) - 1)(spread + max e_v),  spread the largest distance of a value from the middle of all of them. Scores
err as sums of products do; computing softmax adds ρ(Δ + 4 + m) to E, with Δ twice the largest score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from flint import arb

from anchorhead.circuit.line import Line
from anchorhead.circuit.step import Computed, Pair, ProvedHead, Step, Use, Valued, Values, gamma, size
from anchorhead.dtypes import LARGEST
from anchorhead.enclosure.precision import above, below, upper
from anchorhead.enclosure.softmax_range import blended, softmax_weights

if TYPE_CHECKING:
    from anchorhead.circuit.program import Reader

Rows = tuple[tuple[Line, ...], ...]
MOST_SAID = 400
"""Letters of words that say every line."""


@dataclass(frozen=True)
class Attend(Step):
    """The query and the keys may have no entries."""

    query: tuple[Line, ...]
    key_rows: Rows
    offsets: tuple[Line, ...]
    values: Rows
    label: str = field(default="", compare=False)

    name = "attend"
    items = 6

    @property
    def width(self) -> int:
        return len(self.values[0])

    def parts(self) -> Sequence[range]:
        """Queries, keys, offsets, values."""
        d, m = len(self.query), len(self.offsets)
        return [range(a, b) for a, b in pairwise(accumulate((d, m * d, m, m * self.width), initial=0))]

    def _split(self, lines: Sequence[Any]) -> tuple[list[Any], list[list[Any]], list[Any], list[Any]]:
        """Query, keys one by one, offsets, and values one after the other."""
        query, keys, offsets, values = ([lines[k] for k in part] for part in self.parts())
        d = len(query)
        return query, [keys[j * d : (j + 1) * d] for j in range(len(offsets))], offsets, values

    @property
    def symbol(self) -> str:
        return "attention"

    def words(self, lines: Sequence[str], formula: str) -> str:
        which = f" {self.label}" if self.label.endswith("]") else ""
        own = f"is the target's own softmax attention{which} over {len(self.offsets)} keys"
        if sum(map(len, lines)) > MOST_SAID:
            return own
        query, keys, offsets, values = self._split(lines)
        scores = [f"({', '.join(key)})·({', '.join(query)})" for key in keys] if query else [""] * len(keys)
        plus = [f"{score} + {offset}".removeprefix(" + ").removesuffix(" + 0")
                for score, offset in zip(scores, offsets, strict=True)]  # fmt: skip
        return f"{own}, with the scores {'; '.join(plus)} and the values {', '.join(values)}"

    def roles(self) -> list[str]:
        d, m = range(len(self.query)), range(len(self.offsets))
        scores = [*(f"query[{i}]" for i in d), *(f"key[{j}][{i}]" for j in m for i in d), *(f"offset[{j}]" for j in m)]
        return scores + [f"value[{j}][{k}]" for j in m for k in range(self.width)]

    def alike(self, head: int) -> tuple[object, ...]:
        return self.name, len(self.query), len(self.offsets), self.width

    @classmethod
    def read(cls, items: list[Any], label: str, reader: Reader) -> Attend:
        query, offsets = reader.lines(items[0]), reader.lines(items[2])
        keys, values = (tuple(reader.lines(row) for row in reader.listed(rows)) for rows in (items[1], items[3]))
        reader.require(len(keys) == len(offsets) == len(values) > 0, "keys and values differ in number")
        reader.require({len(row) for row in keys} == {len(query)}, "queries and keys differ in size")
        widths = {len(row) for row in values}
        reader.require(len(widths) == 1 and min(widths) > 0, "values differ in size, or have none")
        return cls(query, keys, offsets, values, label)

    def fits(self, use: Use, values: Values, heads: Sequence[ProvedHead]) -> bool:
        return use == Use(self.name)

    def follow(self, lines: Sequence[Valued], argument: Pair, computed: Computed | None) -> list[Valued]:
        query, keys, offsets, values = self._split(lines)
        pairs = list(zip(keys, offsets, strict=True))
        weights = softmax_weights([_range(query, row, offset) for row, offset in pairs])
        slip, unit = arb(0), 0.0
        if computed is not None:
            unit = computed.unit
            slip = _slip([score_error(query, row, offset, unit) for row, offset in pairs], computed)
        found = []
        for i in range(self.width):
            column = values[i :: self.width]
            low, high = min(r[0] for r, _ in column), max(r[1] for r, _ in column)
            error = max(e for _, e in column)
            total = arb(error) + slip * ((arb(high) - low) / 2 + error)
            total = total + gamma(len(offsets) + 4, unit) * (size((low, high)) + error)
            found.append((blended(weights, [r for r, _ in column]), 0.0 if computed is None else upper(total)))
        return found

    def arrives(self, own: Any, use: Use, sizes: Sequence[Pair], lines: Sequence[Any], domain: Pair,
                most: Callable[[Sequence[Any]], Any]) -> Any:  # fmt: skip
        query, keys, offsets, values = self._split(list(zip(sizes, lines, strict=True)))
        scores = []
        for row, (_, offset) in zip(keys, offsets, strict=True):
            for (q, along_q), (k, along_k) in zip(query, row, strict=True):
                offset = offset + size(q) * along_k + size(k) * along_q
            scores.append(offset)
        spread = max(pair[1] for pair, _ in values) - min(pair[0] for pair, _ in values)
        return most([along for _, along in values]) + spread * most(scores)

    def keys(self, heads: Sequence[ProvedHead], use: Use) -> int:
        return len(self.offsets)

    def logits(self, sizes: Sequence[float], values: Values) -> float:
        query, keys, offsets, _ = self._split(sizes)
        scores = (sum(q * k for q, k in zip(query, row, strict=True)) for row in keys)
        return max(score + offset for score, offset in zip(scores, offsets, strict=True))

    def described(self, heads: Sequence[ProvedHead], use: Use) -> tuple[str, str]:
        return "softmax", "as it is"


def score_error(query: Sequence[Valued], key: Sequence[Valued], offset: Valued, unit: float) -> tuple[float, arb]:
    """The largest a score can be in absolute value, and its error."""
    total, error = arb(size(offset[0])) + offset[1], arb(offset[1])
    for (q, eq), (k, ek) in zip(query, key, strict=True):
        error = error + arb(size(q)) * ek + arb(size(k)) * eq + arb(eq) * ek
        total = total + (arb(size(q)) + eq) * (arb(size(k)) + ek)
    return upper(total), error + gamma(len(query) + 2, unit) * total


def _slip(scores: Sequence[tuple[float, arb]], computed: Computed) -> arb:
    """e^(2E) - 1."""
    worst = max((e for _, e in scores), key=upper)
    spread = 2 * max(s for s, _ in scores)
    if not spread < LARGEST[computed.dtype]:
        return arb("inf")
    return (2 * (worst + computed.unit * (spread + 4 + len(scores)))).expm1()


def _range(query: Sequence[Valued], key: Sequence[Valued], offset: Valued) -> Pair:
    """The range of query · key + offset."""
    low, high = arb(offset[0][0]), arb(offset[0][1])
    for (q, _), (k, _) in zip(query, key, strict=True):
        products = [arb(a) * b for a in q for b in k]
        low, high = low + min(below(p) for p in products), high + max(above(p) for p in products)
    return below(low), above(high)
