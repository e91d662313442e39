"""A step of a circuit, and what each kind of step knows of itself: all that the passes ask for, but what needs torch.

A kind is one class in one file (`apply.py`, `largest.py`, `attend.py`), registered in `circuit.py`: which lines it
reads and in which order a group of such steps wants them, its form in a file, which head computes it, how ranges and
errors pass through it, how sensitive it is, and what it costs. Its module is in `model/`, under the same name.

*Errors.* For each line of a step there is an interval that holds what the target has there, and a bound e on how far
the network is from it. From them follow interval and error of the step's results, with ρ the unit roundoff and
γ_k = kρ/(1 - kρ). Each kind derives its own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from flint import arb

from anchorhead.circuit.line import Line
from anchorhead.circuit.places import Place, joined
from anchorhead.dtypes import LARGEST, LEAST_NORMAL
from anchorhead.enclosure.precision import upper
from anchorhead.expression.graph import Node

if TYPE_CHECKING:
    from anchorhead.circuit.program import Reader

Pair = tuple[float, float]
Valued = tuple[Pair, float]
"""A range, and an error."""
Values = tuple[float, float, float]
PLAIN: Values = (1.0, 0.0, 0.0)
TINY = {name: 4 * least for name, least in LEAST_NORMAL.items()}


@dataclass(frozen=True)
class Use:
    """How a step uses its head: which one it is, and the centre c and radius r of what it looks at, t = (u - c)/r.

    kind: "plain", "identity" or "square"; "largest" for a maximum; "attend" for the target's own attention.
    """

    kind: str
    head: int = -1
    centre: float = 0.0
    radius: float = 1.0

    def query(self, argument: Line) -> Line:
        """t = (u - c)/r as a line."""
        if self.centre == 0 and self.radius == 1:
            return argument
        return argument.shifted(-Fraction(self.centre)).scaled(1 / Fraction(self.radius))

    @property
    def is_squeezed(self) -> bool:
        """Whether a head for the step's own function looks at t in place of u."""
        return self.kind == "plain" and (self.centre, self.radius) != (0.0, 1.0)

    def shift(self, argument: Pair) -> float:
        """The largest |t - u| for u in the interval."""
        return max(upper(abs((arb(end) - self.centre) / self.radius - end)) for end in argument)

    @property
    def values(self) -> tuple[Fraction, Fraction, Fraction]:
        """α, β, γ with phi(u) = α g(t) + β t + γ, exactly, where the head is one for g."""
        c, r = Fraction(self.centre), Fraction(self.radius)
        if self.kind == "identity":
            return r, Fraction(0), c
        if self.kind == "square":
            return r**2, 2 * c * r, c**2
        return Fraction(1), Fraction(0), Fraction(0)


class Kept(Protocol):
    """Of a head, or one to be found: its domain, and its error there in exact arithmetic and from rounding.

    relative: both are multiples of its function's absolute value, and evaluation may add `least` more.
    """

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def approximation(self) -> float: ...
    @property
    def rounding(self) -> float: ...
    @property
    def relative(self) -> bool: ...
    @property
    def least(self) -> float: ...


class ProvedHead(Kept, Protocol):
    """What a step asks of a head that computes it (`proof/head_claim.py`)."""

    @property
    def function(self) -> Node: ...
    @property
    def keys(self) -> int: ...
    @property
    def constant_values(self) -> bool: ...
    @property
    def method(self) -> str: ...


@dataclass(frozen=True)
class HeadFacts:
    """The facts of a head that is not there yet."""

    low: float
    high: float
    approximation: float
    rounding: float
    relative: bool = False
    least: float = 0.0


@dataclass(frozen=True)
class Computed:
    """How a network computes a step: its use of a head, with which three numbers, and in which arithmetic.

    unit: the unit roundoff of the dtype; zero where rounding is left out. literal: whether every softmax is written
    out.
    """

    use: Use
    values: Values
    facts: Kept | None
    dtype: str
    unit: float
    literal: bool = False

    @property
    def tiny(self) -> float:
        """What a sum or product may lose by underflow."""
        return TINY[self.dtype] if self.unit else 0.0

    def within(self, error: arb, size: float) -> float:
        """The error as a float, or infinity where what is computed may be too large for the dtype."""
        return upper(error) if upper(error + size) < LARGEST[self.dtype] else math.inf


class OutsideDomain(Exception):
    """A step's argument may leave the domain of its head; `step` is its number once that is known."""

    def __init__(self, needed: Pair) -> None:
        super().__init__(f"an argument may reach {needed}")
        self.step, self.needed = -1, needed


class Step(ABC):
    """One nonlinear operation on lines. `label` is what it computes in the user's own terms."""

    name: ClassVar[str]
    """Of the kind, in files."""
    items: ClassVar[int]
    """How many entries a step of this kind has in a file, name and label included."""
    label: str

    @property
    def width(self) -> int:
        """How many wires it gives."""
        return 1

    @property
    def entries(self) -> tuple[Any, ...]:
        """What it is made of but for its label, in order: functions, lines, and tuples of them."""
        return tuple(value for name, value in vars(self).items() if name != "label")

    def lines(self) -> Iterator[Line]:
        """The lines that it reads, in order."""
        return _lines(self.entries)

    def mapped(self, change: Callable[[Line], Line]) -> Self:
        """The same step of other lines."""
        make: Any = type(self)
        found: Self = make(*_changed(self.entries, change, lambda node: node, tuple), self.label)
        return found

    def parts(self) -> Sequence[range]:
        """The numbers of its lines in the parts in which a group of steps reads them, part by part."""
        return [range(sum(1 for _ in self.lines()))]

    def place(self, lines: Sequence[Place]) -> Place:
        """Where it is computed, given where each of its lines is; `Misplaced` where it cannot be."""
        return joined(lines)

    def read_at(self, own: Place) -> list[Place]:
        """Where each of its lines is read by a network that computes it in its own place."""
        return [own] * sum(1 for _ in self.lines())

    @abstractmethod
    def alike(self, head: int) -> tuple[object, ...]:
        """What steps must have in common to be evaluated together."""

    def read_lines(self, use: Use) -> list[Line]:
        """The lines that a network reads for it, given how it uses its head."""
        return list(self.lines())

    def written(self, line: Callable[[Line], list[Any]], function: Callable[[Node], int]) -> list[Any]:
        """Its entries in a file after name and label."""
        found: list[Any] = _changed(self.entries, line, function, list)
        return found

    @classmethod
    @abstractmethod
    def read(cls, items: list[Any], label: str, reader: Reader) -> Step:
        """The step of such entries, none of which is trusted."""

    def factors(self) -> tuple[Node, Line, Line] | None:
        """(phi, u, v) of a step phi(u)·v; None if it is something else."""
        return None

    def formula(self, line: Callable[[Line], Node]) -> Node | None:
        """Its result as a formula, given what its lines are; None where it is more than one can write."""
        return None

    @property
    def symbol(self) -> str:
        """What its results are called, with a number, where a formula would be too long."""
        return self.name

    @abstractmethod
    def words(self, lines: Sequence[str], formula: str) -> str:
        """What a head that computes it does, given what its lines are called, and its formula where there is one."""

    def roles(self) -> list[str]:
        """What each of its lines is to it."""
        return [f"u{k}" for k, _ in enumerate(self.lines())]

    def wanted(self) -> tuple[str, Node, bool] | None:
        """The kind of use, the function of the head that computes it, and whether that carries a partner.

        None for a step that needs no head but its own softmax; its use has the name of its kind.
        """
        return None

    @abstractmethod
    def fits(self, use: Use, values: Values, heads: Sequence[ProvedHead]) -> bool:
        """Whether the use computes this step, as far as its form goes."""

    @abstractmethod
    def follow(self, lines: Sequence[Valued], argument: Pair, computed: Computed | None) -> list[Valued]:
        """Range and error of each result; exact ranges alone where nothing says how it is computed.

        argument: the range of what the first line stands for, where a network reads another in its place.
        """

    @abstractmethod
    def arrives(self, own: Any, use: Use, sizes: Sequence[Pair], lines: Sequence[Any], domain: Pair,
                most: Callable[[Sequence[Any]], Any]) -> Any:  # fmt: skip
        """How much of every head's error arrives at the results, to first order, given what arrives at the lines.

        own: one, for the head that the step uses. sizes: the lines' ranges. domain: the head's. most: the largest of
        each entry.
        """

    def own_share(self, use: Use, argument: Pair) -> float:
        """How much of its head's error arrives at its result, where its first line is in this interval."""
        return float(use.values[0])

    def beta_for(self, error: float) -> float:
        """Of a step with a β of its own: at which computing it adds at most so much; zero for others."""
        return 0.0

    @abstractmethod
    def keys(self, heads: Sequence[ProvedHead], use: Use) -> int:
        """Keys of the head that computes it."""

    def own_error(self, heads: Sequence[ProvedHead], use: Use, values: Values) -> float:
        """What computing it adds, beside the errors of its lines."""
        return 0.0

    def logits(self, sizes: Sequence[float], values: Values) -> float:
        """The largest absolute score that depends on the target, for lines of these sizes."""
        return 0.0

    @abstractmethod
    def described(self, heads: Sequence[ProvedHead], use: Use) -> tuple[str, str]:
        """The function that its head computes and the method by which it was found, for a report."""


def _lines(entry: Any) -> Iterator[Line]:
    if isinstance(entry, Line):
        yield entry
    elif isinstance(entry, tuple):
        for part in entry:
            yield from _lines(part)


def _changed(entry: Any, line: Callable[[Line], Any], function: Callable[[Node], Any], several: type) -> Any:
    """An entry with its lines and functions changed, and its tuples as `several`."""
    if isinstance(entry, tuple):
        return several(_changed(part, line, function, several) for part in entry)
    return line(entry) if isinstance(entry, Line) else function(entry)


def gamma(k: int, unit: float) -> arb:
    """γ_k."""
    return k * arb(unit) / (1 - k * arb(unit))


def size(pair: Pair) -> float:
    """The largest absolute value."""
    return max(abs(pair[0]), abs(pair[1]))


def widened(pair: Pair, error: float) -> Pair:
    """The interval, `error` longer on both sides."""
    if error == 0:
        return pair
    return math.nextafter(pair[0] - error, -math.inf), math.nextafter(pair[1] + error, math.inf)
