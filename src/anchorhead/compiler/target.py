"""First pass: what the user gave, as an expression on a domain that it is defined on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from flint import arb

from anchorhead.arithmetic import Array, binary_floor, geometric, log_of
from anchorhead.compiler.places import Places
from anchorhead.enclosure.arrays import sample_finely
from anchorhead.enclosure.balls import jet
from anchorhead.enclosure.pieces import Piece, pieces, singularities
from anchorhead.enclosure.precision import precision
from anchorhead.enclosure.tails import tail
from anchorhead.errors import ExpressionError, InputError
from anchorhead.expression.domain import ends, shown
from anchorhead.expression.functions import check_names
from anchorhead.expression.graph import Expression, Node, constant
from anchorhead.expression.parse import parse
from anchorhead.head.solve import Affine

Domain = tuple[float, float] | Mapping[str, tuple[float, float]] | None
ORDINARY, LARGEST_UNIT = 2.0**10, 2.0**900
"""Sizes up to the first, and down to one over it, are fitted as they are, and those beyond the second."""


@dataclass(frozen=True)
class Target:
    """A continuous function of one variable on [low, high], either of which may be infinite."""

    expression: Expression
    low: float
    high: float
    assumptions: tuple[str, ...] = ()
    digest: str = ""
    """Of the parameters of a module that it was traced from."""
    relative: bool = False
    """Whether its error is measured in units of |f|, which then has no zero on the bounded domain."""
    evaluation: str = ""
    """Of which evaluation rounding is to be proved: `fast`, or both."""
    written: Expression | None = None
    """What was asked for, where this is that over a unit: what messages speak of."""

    @property
    def node(self) -> Node:
        return self.expression.outputs[0]

    @property
    def name(self) -> Expression:
        """The target as it was asked for, for a sentence."""
        return self.written or self.expression

    @property
    def variable(self) -> str:
        return self.expression.variables[0]

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def decades(self) -> float:
        """Over how many powers of ten the variable goes; zero where it changes its sign."""
        if self.low <= 0 <= self.high or not self.bounded:
            return 0.0
        return abs(log_of(self.high / self.low)) / log_of(10.0)

    @cached_property
    def unit(self) -> float:
        """A power of two in which the target is fitted: about its size, or 1 where that is ordinary.

        On R the size is that of a line, over 1 + |u|. Of a relative error it is the middle of the sizes on a
        logarithmic scale.
        """
        low, high = max(self.low, -1e9), min(self.high, 1e9)
        out = geometric(1e-6, 1e9, 190)
        u = np.linspace(low, high, 1001) if self.bounded else np.concatenate([-out, out])
        u = u[(u >= low) & (u <= high)]
        with np.errstate(all="ignore"):
            sizes = np.abs(self.function()(u)) / (1.0 if self.bounded else 1 + np.abs(u))
        size = float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))
        if self.relative:
            size = math.sqrt(size) * math.sqrt(float(np.min(sizes, initial=size, where=sizes > 0)))
        ordinary = 1 / ORDINARY <= size <= ORDINARY or not 1 / LARGEST_UNIT <= size <= LARGEST_UNIT
        return 1.0 if ordinary else binary_floor(size)

    def error_unit(self, unit: float) -> float:
        """What a 1 of an error stands for where values have this unit: a relative error has none."""
        return 1.0 if self.relative else unit

    def in_units(self) -> Target:
        """The target over its unit: what is fitted, so that no search depends on the units that it is given in."""
        if self.unit == 1:
            return self
        node = Node("mul", (constant(1 / Fraction(self.unit)), self.node))
        return replace(self, expression=Expression((node,), (self.variable,)), written=self.name)

    def function(self, node: Node | None = None) -> Callable[[Array], Array]:
        """The target, or one of its pieces, on arrays."""
        whole = self.expression if node is None else Expression((node,), (self.variable,))
        return lambda u: _sampled(whole, np.asarray(u, dtype=np.float64).tobytes()).reshape(np.shape(u))

    @cached_property
    def pieces(self) -> list[Piece]:
        """The smooth pieces between kinks with slopes; at others, as of sqrt(abs(x)), keys crowd instead."""
        joined: list[Piece] = []
        for piece in pieces(self.node, self.variable, self.low, self.high):
            if joined and not all(self._has_slope(side.node, piece.low) for side in (joined[-1], piece)):
                joined[-1] = Piece(joined[-1].low, piece.high, self.node)
            else:
                joined.append(piece)
        return joined

    def _has_slope(self, node: Node, place: float) -> bool:
        found = jet(node, self.variable, arb(place), 1)
        return len(found) > 1 and bool(found[1].is_finite())

    @cached_property
    def places(self) -> Places:
        """Where it needs samples, in its window."""
        return Places(self.function(), *self.window)

    @property
    def kinks(self) -> list[float]:
        """Where pieces meet."""
        return [piece.low for piece in self.pieces[1:]]

    @property
    def is_straight(self) -> bool:
        """Whether every piece is affine."""
        return all(affine_form(p.node, self.variable, p.low, p.high) is not None for p in self.pieces)

    def asymptote(self, sign: int) -> tuple[Affine, float | None] | None:
        """The asymptote on a side, and the rate at which it is approached, None for faster than exponentially.

        None where the target has no affine asymptote. Its rule may hold only from far out on, so starts are tried.
        """
        for start in (30.0, 300.0, 3e4, 3e6, 3e8):
            with precision():  # its constants may cancel
                found, later = (tail(self.node, self.variable, sign, place) for place in (start, 2 * start))
            if found is not None and later is not None:
                rates = [abs(float(t.rate.mid())) for t in (found, later)]
                exact = rates[0] if math.isclose(*rates, rel_tol=1e-9) and 0 < rates[0] < 1e12 else None
                return Affine(float(found.intercept), float(found.slope)), exact
        return None

    def settled(self, sign: int, asymptote: Affine, error: float) -> float:
        """A place on that side beyond which the target is within `error` of its asymptote, as far as samples show.

        Both are rounded to about the asymptote's own size, which is no distance.
        """
        distances = geometric(1e-6, 1e9, 190)
        u = sign * distances
        with np.errstate(all="ignore"):
            gap = np.abs(self.function()(u) - asymptote.constant - asymptote.gain * u)
        steep = max(self.unit, abs(asymptote.gain))
        allowed = max(error, 1e-14 * self.unit) + 1e-15 * (abs(asymptote.constant) + steep * np.abs(u))
        apart = np.nonzero(~(gap <= allowed))[0]
        reached = float(distances[min(apart[-1] + 1, len(u) - 1)]) if len(apart) else float(distances[0])
        return sign * 1.7 * reached  # a head must be seen to settle too

    @cached_property
    def window(self) -> tuple[float, float]:
        """The part of the domain to sample: all of it, or on an infinite side as far as the target has settled."""
        ends = []
        for sign, end, other in ((-1, self.low, self.high), (1, self.high, self.low)):
            if math.isinf(end):
                found = self.asymptote(sign)
                place = self.settled(sign, found[0], 0.0) if found is not None else sign * 60.0
                start = other if math.isfinite(other) else 0.0
                end = max(60.0, place, start + 60.0) if sign > 0 else min(-60.0, place, start - 60.0)
            ends.append(end)
        return ends[0], ends[1]


@lru_cache(maxsize=64)
def _sampled(expression: Expression, points: bytes) -> Array:
    """The values at float64 numbers; a search asks for the same ones again and again."""
    values = sample_finely(expression, np.frombuffer(points))
    values.flags.writeable = False
    return values


def affine_form(node: Node, variable: str, low: float, high: float) -> Affine | None:
    """constant and gain, if the node is affine on [low, high] by its formula; None otherwise."""
    low, high = max(low, -1e6), min(high, 1e6)
    whole = jet(node, variable, arb(low).union(arb(high)), 2)
    if len(whole) < 3 or not _is_zero(whole[2]):
        return None
    place = min(max(0.0, low), high)
    at = jet(node, variable, arb(place), 1)
    gain = at[1]
    return Affine(float((at[0] - gain * arb(place)).mid()), float(gain.mid()))


def _is_zero(value: arb) -> bool:
    return bool(value == 0)


def read_target(target: Any, domain: Domain) -> Target:
    """Parses text, traces a Python function or module, and checks the domain; refuses what cannot be compiled."""
    expression = expression_of(target)
    if len(expression.outputs) != 1 or len(expression.variables) > 1:
        names = ", ".join(expression.variables)
        raise ExpressionError(
            f"The target has {len(expression.outputs)} outputs in the variables {names}; functions of one variable "
            "with one output can be compiled. Fix the other variables at numbers, and give each output by itself."
        )
    if not expression.variables:
        expression = Expression(expression.outputs, ("x",))
    low, high = read_interval(domain, expression.variables[0])
    singularities(expression.outputs[0], expression.variables[0], low, high)
    return Target(expression, low, high, _checked(target, expression, low, high))


def _checked(target: Any, expression: Expression, low: float, high: float) -> tuple[str, ...]:
    """What must be said of a callable beside its trace, which is compared with it on the domain."""
    if not callable(target) or isinstance(target, Expression):
        return ()
    from anchorhead.tracing.function import check_traced

    return check_traced(target, expression, [(low, high)])


def expression_of(target: Any) -> Expression:
    """A formula parsed, or a function of one number traced."""
    if isinstance(target, str):
        return parse(target)
    if isinstance(target, Expression):
        return target
    if isinstance(target, list | tuple) and all(isinstance(part, str) for part in target):
        return parse(list(target))
    if isinstance(target, list | tuple):
        odd = next(part for part in target if not isinstance(part, str))
        raise ExpressionError(
            f"A list of targets holds formulas as texts, one for each output, and {odd!r} is not one."
        )
    if callable(target):
        from anchorhead.tracing.function import trace

        traced = trace(target)
        return parse(traced.text, traced.variables)  # what a file can say, and a checker can read
    if isinstance(target, int | float):
        raise ExpressionError(
            f"The target is the number {target!r}; give a constant, too, as a formula as text: '{target!r}'."
        )
    if hasattr(target, "coefs_") and hasattr(target, "intercepts_"):
        raise ExpressionError(
            f"The target is a {type(target).__name__}, a fitted perceptron of scikit-learn; make an nn.Sequential of "
            "its coefs_ and intercepts_, as docs/compiling.md has it after 'A perceptron of scikit-learn', and compile "
            "that."
        )
    raise ExpressionError(
        f"The target is a {type(target).__name__}; give a formula as text, such as 'sin(3*x)', or a Python function or "
        "module made of torch operations."
    )


def read_interval(domain: Domain, variable: str) -> tuple[float, float]:
    """The two ends of a domain of one variable; the whole line for None."""
    if domain is None:
        return -math.inf, math.inf
    if isinstance(domain, Mapping):
        check_names(domain)
        if set(domain) != {variable}:
            names = ", ".join(map(str, domain)) or "nothing"
            raise InputError(
                f"The domain names {names}, and the target's variable is {variable}; "
                f"write {{'{variable}': (low, high)}}."
            )
        domain = domain[variable]
    if isinstance(domain, set | frozenset | str | bytes):
        raise InputError(f"The domain {shown(domain)} has no lower and upper end; give a pair (low, high).")
    try:
        low, high = ends(domain)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"The domain {shown(domain)} must be a pair (low, high), or None for the whole real line."
        ) from None
    except OverflowError:
        raise InputError(
            f"An end of the domain {shown(domain)} is too large for floating point; use infinity, or rescale."
        ) from None
    if math.isnan(low) or math.isnan(high):
        raise InputError(f"An end of the domain ({low}, {high}) is not a number; give two numbers, low below high.")
    if low >= high:
        raise InputError(f"The domain ({low}, {high}) must have low below high; swap them, or widen it.")
    return low, high
