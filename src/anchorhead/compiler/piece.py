"""A head for one smooth piece of a target: where to fit it, what to pin, where its keys belong.

A side that extends to infinity is cut where the target has settled on its asymptote, and the outermost key is pinned to
that; so is a side of a bounded domain on which the target settles long before the end. The middle key sits where the
target goes over from one asymptote to the other. On an interval without asymptotes keys are evenly spaced, or crowd
at one place if that is found to be better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from anchorhead.arithmetic import Array, binary_floor, exp_of, geometric, log_of
from anchorhead.compiler.method import Goal
from anchorhead.compiler.places import Places
from anchorhead.compiler.target import Target, affine_form
from anchorhead.enclosure.pieces import Piece
from anchorhead.errors import InputError
from anchorhead.head.gated import gated
from anchorhead.head.head import Head
from anchorhead.head.kinked import single_key
from anchorhead.head.solve import MANY, Affine, Crowd, Found, least_keys
from anchorhead.head.uniform_keys import Uniform
from anchorhead.head.warped_keys import Warped

CROWDED_FROM = 4
"""The smallest number of keys that may crowd."""
LIKELY = 3
"""So many choices of where to crowd are followed to many keys."""
LIKELY_CELLS = 10
"""And so many layouts of each."""
SETTLED = 0.25
"""A bounded piece is fitted on less than all of it if no more than this is away from asymptotes."""
MOST_FAMILIES = 64
HOPEFUL = 4.0
"""Crowded keys are searched where a glance gives them this many times the goal, in e-folds, or less."""

BOUNDED = "; give a bounded domain"
"""What can be done about a target that no head follows to infinity, where there is a domain to give."""


class Layout:
    """Evenly spaced keys, or keys that crowd at one of some places where that is found to fit better."""

    def __init__(
        self,
        family: Callable[[int, Goal, Sequence[Crowd]], Uniform | Warped],
        places: Callable[[Goal], Sequence[Sequence[Crowd]]],
    ) -> None:
        self.made, self.places = family, places
        self.families: dict[tuple[int, float, float, int, tuple[Crowd, ...]], Uniform | Warped] = {}
        self.known: dict[tuple[Crowd, ...], tuple[int, Array]] = {}
        """Sizes and layouts of large heads that were found, by where they crowd."""
        self.likely: list[Sequence[Crowd]] = []
        self.learnt = False
        self.best_cells: dict[tuple[Crowd, ...], list[int]] = {}

    def family(self, keys: int, goal: Goal, crowds: Sequence[Crowd]) -> Uniform | Warped:
        """Heads of that size, for a goal, that crowd there; what was found of them is remembered."""
        key = keys, goal.error, goal.limit, len(goal.extra), tuple(crowds)
        if key not in self.families:
            if len(self.families) >= MOST_FAMILIES:
                self.families.clear()
            self.families[key] = self.made(keys, goal, crowds)
            self.families[key].likely = self.best_cells.get(tuple(crowds)) if keys > MANY and crowds else None
        return self.families[key]

    def _glance(self, keys: int, goal: Goal, crowds: Sequence[Crowd]) -> float:
        """What such heads cost at a glance; of many keys, at the layouts that were best for fewer."""
        looked = self.family(keys, goal, crowds).ranked()
        if 6 < keys <= MANY:
            self.best_cells[tuple(crowds)] = [i for _, i in looked[:LIKELY_CELLS]]
        return looked[0][0]

    def estimate(self, keys: int, goal: Goal) -> float:
        """About the error that a head with so many keys has: what a glance at a few layouts shows."""
        even = self.family(keys, goal, ())
        if keys < least_keys(even.problem):
            return math.inf
        found = self._glance(keys, goal, ())
        if found > log_of(goal.error) and keys >= CROWDED_FROM:
            found = min([found, *(glance for glance, _ in self._glances(keys, goal))])
        return exp_of(min(found, 300.0))

    def build(self, keys: int, goal: Goal) -> Head:
        """Evenly spaced keys if they keep the goal; the best of all otherwise."""
        glances = self._glances(keys, goal) if keys >= CROWDED_FROM else []
        even = self.family(keys, goal, ())
        found: list[Found] = []
        if keys <= MANY or not glances or self._glance(keys, goal, ()) < glances[0][0] + HOPEFUL:
            found.append(self._best(even, ()))
            if found[0].error <= goal.error:
                return found[0].head
        for glance, crowds in glances[:2]:
            near = glance < glances[0][0] + HOPEFUL / 2 and glance < log_of(max(goal.error, 1e-300)) + HOPEFUL
            if not found or near or glance < log_of(max(found[0].error, 1e-300)):
                found.append(self._best(self.family(keys, goal, crowds), tuple(crowds)))
        return min(found, key=lambda one: one.error).head

    def _best(self, family: Uniform | Warped, crowds: tuple[Crowd, ...]) -> Found:
        """The best of a family; of a large one, from the layout that was found for nearly the same size."""
        size, layout = self.known.get(crowds, (0, None))
        found = family.best(layout if abs(size - family.count) <= family.count // 10 else None)
        if family.count > MANY and found.layout is not None:
            self.known[crowds] = family.count, found.layout
        return found

    def _glances(self, keys: int, goal: Goal) -> list[tuple[float, Sequence[Crowd]]]:
        """What keys that crowd cost at a glance, by where they do, cheapest first.

        Many keys are looked at only where fewer were best: each glance takes its time. Several places together are
        not given up, and the fewer are then as many as are looked at in full: a dozen keys do not serve two ends.
        """
        places = self.likely if keys > MANY and self.likely else self.places(goal)
        for crowds in places if keys > MANY and not self.learnt else ():
            self.learnt = True
            if len(crowds) > 1:
                self._glance(MANY, goal, crowds)
        found = [(self._glance(keys, goal, crowds), crowds) for crowds in places]
        found.sort(key=lambda pair: pair[0])
        if keys <= MANY:
            self.likely = [crowds for i, (_, crowds) in enumerate(found) if i < LIKELY or len(crowds) > 1]
        return found


def bounded_part(target: Target) -> str:
    """An interval of the domain, for a sentence."""
    low = target.low if math.isfinite(target.low) else min(-20.0, target.high - 20)
    high = target.high if math.isfinite(target.high) else max(20.0, target.low + 20)
    return f"({low:g}, {high:g})"


class PieceFit:
    """A gated head for one smooth piece, fitted a little past its kinks, or to its asymptotes where it is infinite."""

    def __init__(self, target: Target, piece: Piece, *, pins: bool = True, constant: bool = False) -> None:
        self.piece, self.relative, self.name = piece, target.relative, target.name
        self.unpinned: PieceFit | None = None
        self.constant = constant
        self.f = target.function(piece.node)
        self.affine = affine_form(piece.node, target.variable, piece.low, piece.high)
        self.some = bounded_part(target)
        self.left = self.right = None
        self.low, self.high = piece.low, piece.high
        self.rates: list[float] = []
        self.layout = Layout(self._family, lambda goal: self.places.crowds(goal.error) if self._free else [])
        if self.affine is None:
            self.local = local = Target(
                type(target.expression)((piece.node,), (target.variable,)), piece.low, piece.high
            )
            bounded = math.isfinite(piece.high - piece.low)
            if pins or not bounded:
                self.left, self.right = (self._pin(local, sign) for sign in (-1, 1))
            if bounded and (self.left is not None or self.right is not None):
                self.unpinned = PieceFit(target, piece, pins=False)

    @property
    def least(self) -> int:
        return 1 if self.affine is not None else max(1, (self.left is not None) + (self.right is not None))

    def _pin(self, local: Target, sign: int) -> Affine | None:
        found = local.asymptote(sign)
        end = local.high if sign > 0 else local.low
        if math.isfinite(end):
            return self._reached(found, end)
        if found is None:
            side = "right" if sign > 0 else "left"
            raise InputError(
                f"{self.name} is not seen to approach a line exponentially on the {side}, as a head that "
                f"follows it to infinity does{BOUNDED}, such as {self.some}."
            )
        if found[1] is not None:
            self.rates.append(found[1])
        return found[0]

    def _reached(self, found: tuple[Affine, float | None] | None, end: float) -> Affine | None:
        """The asymptote on a bounded side, if the target has settled on it well before the end of the domain."""
        if found is None:
            return None
        u = np.append(np.linspace(*self.local.window, 257), end / 2)
        gap = np.abs(self.f(u) - found[0].constant - found[0].gain * u)
        from_zero = abs(end) >= 4 and gap[-1] < 1e-2 * (1 + abs(found[0].gain))
        if not (from_zero or gap[64 if end == self.low else -66] <= 1e-2 * gap.max()):
            return None
        if found[1] is not None:
            self.rates.append(found[1])
        return found[0]

    def extend(self, before: float, after: float) -> None:
        """Fits this far past the piece's ends from now on, where the piece's formula is finite there."""
        low, high = self.piece.low - before, self.piece.high + after
        ends = np.array([e for e in (low, high) if math.isfinite(e)])
        finite = bool(np.isfinite(self.f(ends)).all())
        found = (low, high) if finite else (self.piece.low, self.piece.high)
        if found != (self.low, self.high):
            self.low, self.high = found
            self.__dict__.pop("places", None)
            self.layout.families.clear()
        if self.unpinned is not None:
            self.unpinned.extend(before, after)

    @property
    def _free(self) -> bool:
        """Whether nothing is pinned, so that keys may crowd."""
        return self.left is None and self.right is None and not self._is_unbounded

    @property
    def _is_unbounded(self) -> bool:
        return not math.isfinite(self.high - self.low)

    def build(self, keys: int, goal: Goal) -> Head:
        if self.affine is not None and keys == 1:
            return single_key(self.affine.constant, self.affine.gain)
        constant, apart = self._level() if keys == 1 else (0.0, math.inf)
        if apart <= goal.error:
            return single_key(constant, 0.0)
        head = self.layout.build(keys, goal)
        if self.unpinned is None or self.error(head, goal) <= goal.error:
            return head
        other = self.unpinned.build(keys, goal)
        return min((head, other), key=lambda h: self.error(h, goal))

    def estimate(self, keys: int, goal: Goal) -> float:
        """About the error of a head with so many keys."""
        if self.affine is not None:
            return 0.0
        if keys == 1 and self._level()[1] <= goal.error:
            return self._level()[1]
        return self.layout.estimate(keys, goal) if self._free else goal.error  # pinned keys show it only when fitted

    def error(self, head: Head, goal: Goal) -> float:
        """The largest error on a sample of where the head is fitted, finer than that of the fit."""
        if self.affine is not None and head.keys == 1:
            return 0.0
        low, high = self._interval(goal.error / 10)
        u = np.concatenate([np.linspace(low, high, 1501), low + (high - low) * geometric(1e-6, 0.1, 100),
                            high - (high - low) * geometric(1e-6, 0.1, 100)])  # fmt: skip
        if not self._is_unbounded:
            u = np.concatenate([u, self.places.fine(goal.error)])
        exact = self.f(u)
        errors = np.abs(head(u) - exact)
        return float((errors / np.abs(exact) if self.relative else errors).max())

    def _level(self) -> tuple[float, float]:
        """The constant in the middle of its values, and how far they are from it, on samples; a head that is steep has
        gains beyond any limit on so narrow a piece. Infinitely far where sides or units ask for another head."""
        if not self._free or self.relative:
            return 0.0, math.inf
        values = self.f(np.linspace(self.low, self.high, 1501))
        low, high = float(values.min()), float(values.max())
        return (low + high) / 2, (high - low) / 2

    @cached_property
    def places(self) -> Places:
        """Where the piece needs samples, if it is bounded."""
        return Places(self.f, self.low, self.high)

    def _family(self, keys: int, goal: Goal, crowds: Sequence[Crowd]) -> Uniform | Warped:
        low, high = self._interval(goal.error / 10)
        rates = [rate for rate in dict.fromkeys(self.rates)]
        extra = goal.extra if self._is_unbounded else np.concatenate([goal.extra, self.places.needed(goal.error)])
        return gated(self.f, low, high, keys, left=self.left, right=self.right, rates=rates, crowds=crowds,
                     centre=self._centre(low, high), goal=goal.error, limit=goal.limit, extra=extra,
                     relative=self.relative, affine=not self.constant)  # fmt: skip

    def _interval(self, error: float) -> tuple[float, float]:
        """Where to fit: the piece, cut where the target has settled on infinite sides, and long before an end."""
        if not self._is_unbounded:
            return self._unsettled(error)
        low, high = self.low, self.high
        if math.isinf(low) and self.left is not None:
            low = self.local.settled(-1, self.left, error)
        if math.isinf(high) and self.right is not None:
            high = self.local.settled(1, self.right, error)
        if math.isinf(self.low):
            low = min(low, high - 1e-5)
        if math.isinf(self.high):
            high = max(high, low + 1e-5)
        return low, high

    def _unsettled(self, error: float) -> tuple[float, float]:
        """The part of a bounded piece that is not on a pinned asymptote, and half as much again, where it is small."""
        low, high = self.low, self.high
        if self.left is None and self.right is None:
            return low, high
        u = self.places.fine(error)
        first, last = 0, len(u) - 1
        for line, side in ((self.left, 0), (self.right, -1)):
            if line is None:
                continue
            apart = np.nonzero(np.abs(self.f(u) - line.constant - line.gain * u) > error)[0]
            if len(apart):
                first, last = (int(apart[0]), last) if side == 0 else (first, int(apart[-1]))
        reach = float(u[last] - u[first])
        if not 0 < reach < SETTLED * (high - low):
            return low, high
        return (low if self.left is None else max(low, float(u[first]) - reach / 2),
                high if self.right is None else min(high, float(u[last]) + reach / 2))  # fmt: skip

    def _away(self, line: Affine, low: float, high: float) -> tuple[float, float]:
        """Where the target is away from its one asymptote, by more than a hundredth of what it ever is."""
        u = np.linspace(low, high, 1001)
        gap = np.abs(self.f(u) - line.constant - line.gain * u)
        apart = u[gap > 0.01 * gap.max()]
        return (float(apart[0]), float(apart[-1])) if len(apart) else (low, high)

    def _bump(self, line: Affine, low: float, high: float) -> float:
        """The middle of where it is away from the line on both its sides, in few bits; zero if that is within."""
        first, last = self._away(line, low, high)
        room = (last - first) / 4
        low, high = self._away(line, max(low, first - room), min(high, last + room))
        grain = binary_floor(max(high - low, 1e-300)) / 128
        return 0.0 if low <= 0 <= high else round((low + high) / 2 / grain) * grain

    def _centre(self, low: float, high: float) -> float:
        """Where the middle key belongs: where the target goes over from one asymptote to the other, or is away."""
        left, right = self.left, self.right
        if left is not None and left == right:
            return self._bump(left, low, high)
        if left is None or right is None:
            line = left or right
            if line is None:
                return (low + high) / 2
            low, high = self._away(line, low, high)
            return 0.0 if low <= 0 <= high else (low + high) / 2
        nearest_to_zero = min(max(0.0, low), high)

        def balance(u: float) -> float:
            value = float(self.f(np.array([u]))[0])
            first, second = (line.constant + line.gain * u for line in (left, right))
            return abs(value - first) - abs(value - second)

        if balance(nearest_to_zero) == 0 or not balance(low) < 0 < balance(high):
            return nearest_to_zero
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if balance(middle) < 0 else (low, middle)
        return round(low, 10) + 0.0
