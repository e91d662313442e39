"""The entries of a traced tensor: operands, and what may still become the target's own softmax attention.

Scores q·k are kept as `Bilinear` and not multiplied out, and a softmax gives `Weight`s that no step computes yet. When
weights are multiplied with values and added up, all of it is one `Attend` of the circuit, which is exact; where they
are used in any other way they are worked out: scores as sums of products, weights by an attention whose values are
constants. An entry at minus infinity is `MASKED`: attention leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from anchorhead.circuit.line import Line
from anchorhead.circuit.lower import Builder
from anchorhead.circuit.operands import Operand, Pending, is_constant
from anchorhead.enclosure.exact import Number, largest, over, sign_of, times
from anchorhead.errors import DiscontinuityError, ExpressionError
from anchorhead.tracing.aten import USED_AS_NUMBER, Comparison

ZERO, ONE = Line({}), Line({}, 1)


class Masked:
    """Minus infinity."""


MASKED = Masked()


@dataclass(frozen=True, eq=False)
class Bilinear:
    """offset + factor · sum of left_i · right_i."""

    left: tuple[Operand, ...]
    right: tuple[Operand, ...]
    factor: Number
    offset: Operand
    label: str


@dataclass(eq=False)
class Softmax:
    """softmax_j(query · key_j + offset_j) for all j; `weights` holds them once they have been worked out."""

    query: tuple[Operand, ...]
    keys: list[tuple[Operand, ...]]
    offsets: list[Operand]
    label: str
    weights: list[Operand] | None = None


@dataclass(frozen=True, eq=False)
class Weight:
    """value · (weight `index` of a softmax)."""

    softmax: Softmax
    index: int
    value: Operand


Entry = Line | Pending | Bilinear | Weight | Masked | Comparison
PLAIN = frozenset((Line, Pending))


class Sum(NamedTuple):
    """bias + sum of coefficient · entry; no coefficient is 0."""

    coefficients: Sequence[Number]
    entries: Sequence[Entry]
    bias: Number = 0


class Entries:
    """What can be done with entries; the steps go to the builder."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.label = ""
        """What steps that are made are called."""

    def operands(self, entries: Iterable[Entry]) -> list[Operand]:
        """All entries worked out; the weights of one softmax together."""
        given = list(entries)
        carried = [place for place, e in enumerate(given) if isinstance(e, Weight) and not is_constant(e.value)]
        sums = [Sum((1,), (given[place],)) for place in carried]
        summed = dict(zip(carried, self._added(sums), strict=True))
        return [self._operand(summed.get(place, entry)) for place, entry in enumerate(given)]

    def _operand(self, entry: Entry) -> Operand:
        if isinstance(entry, Line | Pending):
            return entry
        if isinstance(entry, Bilinear):
            pairs = zip(entry.left, entry.right, strict=True)
            products = [self.builder.product(pair, entry.label) for pair in pairs]
            return self.builder.sum([entry.factor] * len(products) + [1], [*products, entry.offset], 0, entry.label)
        if isinstance(entry, Weight):
            if not isinstance(entry.value, Line):
                raise ExpressionError("A weight of a softmax is scaled by what is no constant; multiply the two.")
            return self.builder.scale(self._weights(entry.softmax)[entry.index], entry.value.bias)
        if isinstance(entry, Comparison):
            raise DiscontinuityError(USED_AS_NUMBER)
        raise ExpressionError("Minus infinity is used as a number; only masks of a softmax or a maximum may hold it.")

    def _weights(self, softmax: Softmax) -> list[Operand]:
        if softmax.weights is None:
            count = len(softmax.offsets)
            values = [[ONE if i == j else ZERO for i in range(count)] for j in range(count)]
            softmax.weights = self._attend(softmax, values)
        return softmax.weights

    def _attend(self, softmax: Softmax, values: Sequence[Sequence[Operand]]) -> list[Operand]:
        return self.builder.attend(softmax.query, softmax.keys, softmax.offsets, values, softmax.label)

    def scale(self, entry: Entry, factor: Number) -> Entry:
        if factor == 1:
            return entry
        if factor == 0 and isinstance(entry, Line | Bilinear | Weight):
            return ZERO
        if isinstance(entry, Line | Pending):
            return self.builder.scale(entry, factor)
        if isinstance(entry, Weight):
            return replace(entry, value=self.builder.scale(entry.value, factor))
        if isinstance(entry, Bilinear):
            offset = self.builder.scale(entry.offset, factor)
            return replace(entry, factor=times(entry.factor, factor), offset=offset)
        if isinstance(entry, Masked) and sign_of(factor) == 1:
            return entry
        return self.builder.scale(self._operand(entry), factor)

    def sums(self, wanted: Sequence[Sum]) -> list[Entry]:
        """All sums; one attention for all values that meet the weights of one softmax."""
        found: list[Entry] = [ZERO] * len(wanted)
        lazy = []
        for place, (coefficients, entries, bias) in enumerate(wanted):
            if len(entries) == 1 and bias == 0:
                found[place] = self.scale(entries[0], coefficients[0])
            elif all(entry.__class__ in PLAIN for entry in entries):
                found[place] = self.builder.sum(coefficients, cast(Sequence[Operand], entries), bias, self.label)
            else:
                lazy.append(place)
        for place, entry in zip(lazy, self._added([wanted[place] for place in lazy]), strict=True):
            found[place] = entry
        return found

    def _added(self, wanted: Sequence[Sum]) -> list[Entry]:
        """The sums, whose weights are all put into attentions."""
        found: list[Entry] = []
        carried: dict[Softmax, dict[int, dict[int, Operand]]] = {}
        for place, (coefficients, entries, bias) in enumerate(wanted):
            rest = []
            for c, entry in zip(coefficients, entries, strict=True):
                if isinstance(entry, Weight):
                    column = carried.setdefault(entry.softmax, {}).setdefault(place, {})
                    value = self.builder.scale(entry.value, c)
                    before = column.get(entry.index)
                    column[entry.index] = value if before is None else self._plain_sum(before, value)
                else:
                    rest.append((c, entry))
            found.append(self._without_weights(rest, bias))
        for softmax, columns in carried.items():
            values = [[column.get(j, ZERO) for column in columns.values()] for j in range(len(softmax.keys))]
            for place, operand in zip(columns, self._attend(softmax, values), strict=True):
                found[place] = self._plus(found[place], operand)
        return found

    def _plain_sum(self, a: Operand, b: Operand) -> Operand:
        return self.builder.sum([1, 1], [a, b], 0, self.label)

    def mixed(self, weights: Sequence[Entry], values: Sequence[Sequence[Entry]]) -> list[Operand] | None:
        """The sums of weight · value, if the weights are those of one softmax as it made them (and zeros)."""
        given = [weight for weight in weights if isinstance(weight, Weight)]
        places = {weight.index: j for j, weight in enumerate(weights) if isinstance(weight, Weight)}
        if not given or len(places) < len(given) or any(w.softmax is not given[0].softmax for w in given):
            return None
        others = [weight for weight in weights if not isinstance(weight, Weight)]
        if any(w.value is not ONE for w in given) or any(entry is not ZERO for entry in others):
            return None
        softmax, nothing = given[0].softmax, [ZERO] * len(values[0])
        rows = [values[places[j]] if j in places else nothing for j in range(len(softmax.keys))]
        return self._attend(softmax, [self.operands(row) for row in rows])

    def _without_weights(self, terms: Sequence[tuple[Number, Entry]], bias: Number) -> Entry:
        if any(isinstance(entry, Masked) for _, entry in terms):
            if all(sign_of(c) == 1 for c, entry in terms if isinstance(entry, Masked)):
                return MASKED
            raise ExpressionError("Minus infinity is subtracted, and plus infinity is not a number.")
        products = [(c, entry) for c, entry in terms if isinstance(entry, Bilinear)]
        plain = [(c, self._operand(e)) for c, e in terms if not isinstance(e, Bilinear)]
        plain += [(c, entry.offset) for c, entry in products if entry.offset is not ZERO]
        offset = self.builder.sum([c for c, _ in plain], [operand for _, operand in plain], bias, self.label)
        if not products:
            return offset
        if len(products) == 1:
            c, only = products[0]
            return replace(only, factor=times(only.factor, c), offset=offset)
        scaled = [(times(c, entry.factor), entry) for c, entry in products]
        left = tuple(self.builder.scale(operand, c) for c, entry in scaled for operand in entry.left)
        return Bilinear(left, tuple(operand for _, entry in products for operand in entry.right), 1, offset, self.label)

    def _plus(self, entry: Entry, operand: Operand) -> Entry:
        if isinstance(entry, Bilinear):
            return replace(entry, offset=self._plain_sum(entry.offset, operand))
        if isinstance(entry, Masked):
            return entry
        return operand if entry == ZERO else self._plain_sum(self._operand(entry), operand)

    def product(self, a: Entry, b: Entry) -> Entry:
        for entry, other in ((a, b), (b, a)):
            if isinstance(other, Line) and other.is_constant:
                return self.scale(entry, other.bias)
        for entry, other in ((a, b), (b, a)):
            if isinstance(entry, Weight):
                [operand] = self.operands([other])
                return replace(entry, value=self.builder.product([entry.value, operand], self.label))
        return self.builder.product([self._operand(a), self._operand(b)], self.label)

    def largest(self, entries: Sequence[Entry], sign: int = 1) -> Entry:
        """The largest, or with sign -1 the smallest."""
        moving = [entry for entry in entries if not isinstance(entry, Masked)]
        if not moving or (sign < 0 and len(moving) < len(entries)):
            return MASKED
        operands = list(dict.fromkeys(self.operands(moving)))
        constants = [operand for operand in operands if isinstance(operand, Line) and operand.is_constant]
        if len(constants) > 1:
            best = Line({}, times(sign, largest([times(sign, line.bias) for line in constants])))
            operands = [*(operand for operand in operands if not is_constant(operand)), best]
        return operands[0] if len(operands) == 1 else self.builder.largest(operands, self.label, sign)

    def choice(self, condition: Entry, yes: Entry, no: Entry) -> Operand:
        """yes where above > below, else no: continuous where yes - no is k·(above - below), no + k·relu of that."""
        if not isinstance(condition, Comparison):
            raise DiscontinuityError("torch.where has a condition that is not a comparison.")
        above, below, first, second = (
            self.builder.line(operand) for operand in self.operands([condition.above, condition.below, yes, no])
        )
        gap, change = above + -below, first + -second
        side = sign_of(gap.bias) if gap.is_constant else 0
        if side is None:
            raise DiscontinuityError(f"The condition of torch.where, {gap.bias} > 0, cannot be told from equality.")
        if side != 0:
            return first if side > 0 else second
        if change.is_constant and change.bias == 0:
            return second
        found = None if gap.is_constant or change.is_constant else change.in_terms_of(gap)
        if found is None or found[1] != 0:
            raise DiscontinuityError(
                "torch.where may jump where its condition changes, and its two sides are not seen to meet there; write "
                "it with torch.maximum, torch.minimum, torch.abs, torch.clamp or torch.relu."
            )
        return self.builder.sum([1, found[0]], [second, self.builder.largest([gap, ZERO], self.label)], 0, self.label)

    def softmax(self, entries: Sequence[Entry], *, safe: bool = False) -> list[Entry]:
        """The weights; `safe` gives zeros if everything is masked."""
        places = [place for place, entry in enumerate(entries) if not isinstance(entry, Masked)]
        if not places and not safe:
            raise ExpressionError("A softmax has nothing but masked entries in a row, so its weights are not numbers.")
        found: list[Entry] = [ZERO] * len(entries)
        if len(places) == 1:
            found[places[0]] = ONE
        elif places:
            made = self._softmax([entries[place] for place in places])
            for index, place in enumerate(places):
                found[place] = Weight(made, index, ONE)
        return found

    def _softmax(self, entries: Sequence[Entry]) -> Softmax:
        scores = [entry for entry in entries if isinstance(entry, Bilinear)]
        for side in ("left", "right") if scores else ():
            query = getattr(scores[0], side)
            if all(getattr(score, side) == query for score in scores):
                return self._attention(query, entries, "right" if side == "left" else "left")
        operands = self.operands(entries)
        return Softmax((), [()] * len(operands), operands, self.label)

    def _attention(self, query: tuple[Operand, ...], entries: Sequence[Entry], side: str) -> Softmax:
        """Scores of one query; the scale goes into the query, and entries that are no scores have the key 0."""
        factor = next(entry.factor for entry in entries if isinstance(entry, Bilinear))
        keys: list[tuple[Operand, ...]] = []
        for entry in entries:
            if isinstance(entry, Bilinear):
                ratio = 1 if entry.factor == factor else over(entry.factor, factor)
                keys.append(tuple(self.builder.scale(operand, ratio) for operand in getattr(entry, side)))
            else:
                keys.append((ZERO,) * len(query))
        rest = [entry.offset if isinstance(entry, Bilinear) else entry for entry in entries]
        scaled = tuple(self.builder.scale(operand, factor) for operand in query)
        return Softmax(scaled, keys, self.operands(rest), self.label)
