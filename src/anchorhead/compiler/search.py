"""Fourth pass: the smallest number of keys whose head is proved to keep the tolerance.

The error falls geometrically in the number of keys, once there are enough of them. Estimates, of a few layouts each,
show where; the search goes there and walks to the smallest number that is proved.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from anchorhead.arithmetic import geometric, log_of
from anchorhead.compiler.method import Fit, Goal, Progress
from anchorhead.compiler.prove import offset_rounding, prove_head, sampled_error, shown_rounding
from anchorhead.compiler.refusals import PATIENCE, Interrupted, check_values, refusal, seen_so_far
from anchorhead.compiler.sizes import size_of
from anchorhead.compiler.target import Target
from anchorhead.dtypes import BITS, UNIT
from anchorhead.errors import InputError
from anchorhead.head.head import EVEN, Head
from anchorhead.head.symmetry import symmetric
from anchorhead.progress import LOG
from anchorhead.proof.approximation import Refutation
from anchorhead.proof.head_claim import HeadClaim

LARGEST_VALUE = 1e3
SMALL = 12
"""Up to so many keys a fit costs no more than a closer look at estimates."""
LARGE = 20
"""From so many keys on, sizes are tried a fifth apart: each takes its time."""
SHOWN = 1.1
"""By how much rounding on boxes is above what points show, about."""
STEEP = 10.0
"""Rounding of a large head that is this many times the tolerance does not come from its values, which are limited."""
SHRINKS = 5
"""How often a fit whose values are too large is done again for smaller ones."""
HOPE = 100.0
"""A size whose estimate is this many times the goal is fitted."""


class Search:
    """Heads of growing size for one target, dtype and tolerance, each tried once.

    unit: what scores round by relative to one, where that is more than the dtype's own: values are kept small then.
    largest: no head may have a larger value, where it is given.
    """

    def __init__(self, target: Target, fit: Fit, tol: float, dtype: str, progress: Progress,
                 most: int | None = None, *, hurried: bool = False, unit: float = 0.0,
                 largest: float | None = None) -> None:  # fmt: skip
        self.target, self.fit, self.tol, self.dtype, self.progress = target, fit, tol, dtype, progress
        found = size_of(target, tol, dtype)
        scale = 1.0 if target.relative else found
        # Rounding costs about a dozen units of the largest value that has weight: leave it room.
        self.rounding = 8 * UNIT[dtype] * scale if target.bounded else 0.0
        if target.bounded and not target.relative:
            self.rounding = max(self.rounding, offset_rounding(target, dtype))
        self.told = UNIT["float64"] * scale / 2
        """What float64 tells of the target at the most: half a unit of its largest value."""
        if not target.bounded and tol <= self.told and not target.is_straight:
            self.rounding = self.told
        self.error_unit = target.error_unit(fit.unit)
        size = fit.unit * scale / self.error_unit
        floor = 2.0 * fit.unit if fit.large_values else 1.5 * size
        ceiling = max(LARGEST_VALUE * fit.unit, 2 * size)
        held = fit.unit / self.error_unit * tol / (40 * (unit or UNIT[dtype]))
        self.goal = Goal(tol - self.rounding, min(ceiling, max(floor, held)))
        self.largest = largest
        if largest is not None:
            self.goal.limit = min(self.goal.limit, largest)
        self.allowed = self.goal.error, self.goal.limit
        """Of the goal, before an attempt asks for smaller values."""
        self.tried: dict[int, HeadClaim | None] = {}
        self.errors: dict[int, float] = {}
        self.estimates: dict[int, float] = {}
        self.unproved, self.hurried = 0.0, hurried
        self.share = 1.0
        """Of the goal, what a fit of known size aims at: its pieces may add up to more."""
        self.most = fit.most if most is None else min(fit.most, most)
        self.needed = 0
        self.stuck: float | None = None
        """A place that the last proof did not get past."""
        self.missed: Refutation | None = None
        """Where the last head that kept the goal on samples did not."""
        self.rounds: float | None = None
        """The least that evaluating a head rounds by which keeps the goal on samples, if there was one."""
        self.rounded = False
        """Whether more keys do not help, since their numbers are rounded."""
        self.best = math.inf
        """The least that a head errs by on samples, and rounds by at some points; `best_head` does."""
        self.best_head: Head | None = None
        self.kept: HeadClaim | None = None
        """The least bound that was proved."""

    def run(self) -> HeadClaim:
        """The smallest proved head; ToleranceError with the best that was found if there is none."""
        try:
            found, name = self._run(), self.target.expression
            LOG.info("%s: %s, %d keys, proved %.3g", name, self.fit.method, found.head.keys, found.bound)
            return found
        except KeyboardInterrupt:
            proved = [claim for claim in self.tried.values() if claim is not None]
            smallest = min(proved, key=lambda claim: claim.head.keys, default=None)
            raise Interrupted(self.target, smallest, seen_so_far(self)) from None

    def _run(self) -> HeadClaim:
        if self.goal.error <= 0:
            raise refusal(self)
        check_values(self)
        keys = self._known_size() if self.fit.size is not None else self._first_success()
        if keys is None:
            return self._nearest()
        if self.fit.size is not None:
            return self.tried[keys] or self._nearest()
        failed = max((k for k, proved in self.tried.items() if k < keys and proved is None), default=self.fit.least - 1)
        while keys - failed > 1:
            between = self._between(failed, keys)
            if (between <= SMALL or self._within_reach(between)) and self.attempt(between):
                keys = between
            else:
                failed = between
        return self.tried[keys] or self._nearest()

    def _between(self, failed: int, keys: int) -> int:
        """A size between one that failed and one that was proved: where a geometric decay would meet the goal."""
        before, after = self.errors.get(failed, math.inf), self.errors[keys]
        if not (0 < after <= before < math.inf):
            return keys - 1 if keys - failed <= 4 else (keys + failed) // 2
        spare = log_of(self.allowed[0] / after) / max(log_of(before / after), 1e-9)
        return min(max(keys - int(spare * (keys - failed)), failed + 1), keys - 1)

    def _nearest(self) -> HeadClaim:
        """The head with the least bound, where that keeps the tolerance though not the aim; the refusal where not."""
        problem = refusal(self)
        if self.kept is None or not self.kept.bound <= self.tol:
            raise problem
        return self.kept

    def _known_size(self) -> int | None:
        """The size that the fit says the goal takes, or a share of the goal where its head fails."""
        for _ in range(4):
            keys = self.size()
            if keys is None or keys > self.most:
                self.needed = keys or 0
                return None
            self.tried.pop(keys, None)
            if self.attempt(keys):
                return keys
            if self.unproved >= PATIENCE:
                return None
            self.share *= 0.6
        return None

    def size(self) -> int | None:
        """The size that the goal takes, of a fit that knows it; None if it is not reached."""
        goal = replace(self.goal, error=self.share * self.goal.error)
        return None if self.fit.size is None else self.fit.size(self._in_units(goal))

    def _in_units(self, goal: Goal) -> Goal:
        """A goal for the fit."""
        error = min(goal.error / self.error_unit, LARGEST_VALUE)  # beyond its size any error is as good
        return replace(goal, error=error, limit=goal.limit / self.fit.unit)

    def _first_success(self) -> int | None:
        """A size that keeps the tolerance: small ones one by one, then where estimates and the last fits point to.

        Errors that do not fall yet are no reason to stop: an oscillating function is all plateau until there are
        enough keys. The largest size is.
        """
        keys = self.fit.least
        while keys <= self.most and self.estimate(keys) == math.inf:
            keys += 1
        while keys <= self.most:
            if self.attempt(keys):
                return keys
            if keys == self.most or self.unproved >= PATIENCE or (self.hurried and self._hardly_gains(keys)):
                break
            if self._only_rounds(keys):
                self.rounded = True
                break
            keys = min(self._next(keys), self.most)
            if keys == self.most and self.hurried and not self._within_reach(keys):
                return self._likeliest()
        return None

    def _likeliest(self) -> int | None:
        """The size with the least estimate, where it keeps the tolerance: estimates of many keys may be far off."""
        keys = min(self.estimates, key=lambda k: self.estimates[k])
        worth = self.estimates[keys] < min(self.errors.values(), default=math.inf)
        return keys if worth and self.attempt(keys) else None

    def _hardly_gains(self, keys: int) -> bool:
        """Whether the last four large sizes fell by less than half."""
        large = [error for k, error in sorted(self.errors.items()) if LARGE <= k <= keys]
        return len(large) > 3 and large[-1] > 0.5 * large[-4]

    def _only_rounds(self, keys: int) -> bool:
        """Whether the last three large sizes are worse than a smaller one that is within a unit of the dtype: what is
        left is the rounding of stored numbers, and more of them round more."""
        last = [error for k, error in sorted(self.errors.items()) if LARGE <= k <= keys][-3:]
        best = min(self.errors.values())
        return len(last) == 3 and best <= UNIT[self.dtype] * self.error_unit and best < min(last)

    def _next(self, keys: int) -> int:
        """The next size to try after one that failed."""
        if keys < 4:
            return keys + 1
        if self.fit.estimate is None:
            return keys + max(1, keys // 4)
        ahead = max(self._predicted(keys), keys + keys // 5 if keys >= LARGE else 0)
        while ahead < self.most and not self._within_reach(ahead):
            ahead += max(1, ahead // (2 if self.hurried and ahead >= SMALL else 4))
        return ahead

    def _within_reach(self, keys: int) -> bool:
        """Whether an estimate leaves hope; a fit is often much better than a glance."""
        return self.estimate(keys) <= HOPE * self.goal.error

    def estimate(self, keys: int) -> float:
        """About the error of a head with so many keys; infinite where fewer than it takes."""
        if self.fit.estimate is None:
            return self.goal.error
        if keys not in self.estimates:
            self.estimates[keys] = self.error_unit * self.fit.estimate(keys, self._in_units(self.goal))
        return self.estimates[keys]

    def _predicted(self, last: int) -> int:
        """Where a geometric decay through the last two fits meets the goal, within reason; the next size if none."""
        before = max((k for k in self.errors if k < last), default=last)
        fall = log_of(max(self.errors[before], 1e-300) / max(self.errors[last], 1e-300)) / max(last - before, 1)
        missing = log_of(max(self.errors[last], 1e-300) / self.goal.error)
        ahead = math.ceil(0.8 * missing / fall) if fall > 0.05 else 1
        return last + max(1, min(ahead, last // 4 + 1))

    def attempt(self, keys: int) -> bool:
        """Fits, rounds and proves a head of that size; True if it keeps the tolerance."""
        if keys in self.tried:
            return self.tried[keys] is not None
        self.progress(f"{self.fit.method}: {keys} keys")
        if self.fit.size is None:
            self.goal.error, self.goal.limit = self.allowed
        proved: HeadClaim | None = None
        rounding, share = math.inf, self.share
        for _ in range(6):
            try:
                head = self.head(keys, share)
            except (np.linalg.LinAlgError, FloatingPointError):
                self.errors[keys] = math.inf
                break
            cuts = self.fit.cuts(head)
            self.errors[keys] = sampled_error(self.target, head, cuts, self.goal.error)
            if not self.errors[keys] <= self.goal.error:
                if self.errors[keys] < self.best:
                    self._note(self.errors[keys] + shown_rounding(self.target, head), head)
                if self.fit.size is None or share < self.share or self.errors[keys] > 2 * self.goal.error:
                    break
                share /= 2  # the numbers of the dtype take the rest
                continue
            self.progress(f"{self.fit.method}: {keys} keys, proving {self.errors[keys]:.2e}")
            found = self._examined(head, cuts, self.errors[keys])
            if isinstance(found, Refutation):
                if not found.certain or not math.isfinite(found.place):
                    self.stuck = found.place if math.isfinite(found.place) else self.stuck
                    break
                self._include(found)
                continue
            lost = found if isinstance(found, float) else found.rounding
            self.rounds = min(lost, math.inf if self.rounds is None else self.rounds)
            telling = isinstance(found, float) or found.telling
            if telling:
                self._note(self.errors[keys] + lost if isinstance(found, float) else found.bound, head)
            if isinstance(found, HeadClaim) and telling:
                self.keep(found)
                if found.bound <= self.tol:
                    proved = found
                    break
            # rounding does not fall with the values, or is not theirs: scores round where slopes are steep
            stays = keys >= LARGE and lost > min(0.9 * rounding, STEEP * self.tol)
            if stays or not self._smaller_values(lost):
                self.unproved += PATIENCE * (keys >= LARGE and lost > self.tol)
                break
            rounding = lost
        if proved is None and self.errors[keys] <= max(self.goal.error, 4 * self.rounding):
            self.unproved += 1
        elif proved is None and self.unproved:  # more keys round more
            self.unproved += 0.5
        self.tried[keys] = proved
        return proved is not None

    def _examined(self, head: Head, cuts: list[float], error: float) -> HeadClaim | Refutation | float:
        """The proof of a head with such an error on samples; or about its rounding, if that leaves nothing to prove."""
        lost = shown_rounding(self.target, head)
        if error + lost > self.tol:
            return SHOWN * lost
        return prove_head(self.target, head, self.goal.error, cuts, self.fit.method)

    def _smaller_values(self, rounding: float) -> bool:
        """After a proof whose rounding is too large: smaller values, more room. False if there is no room to make."""
        room = self.tol - 1.02 * rounding
        smaller = self.goal.limit / 2
        if smaller < 0.25 * self.fit.unit:
            return False
        self.goal.limit = smaller
        self.goal.error = min(self.goal.error, max(room, 0.1 * self.tol))
        return True

    def head(self, keys: int, share: float = 1.0) -> Head:
        """The head fitted to a share of the error, with numbers of the dtype, and values that may be so large."""
        head, limit = self._fitted(keys, share), self.goal.limit
        for _ in range(SHRINKS):
            if self.largest is None or head.largest_value <= self.largest:
                return head
            self.goal.limit *= 0.8 * self.largest / head.largest_value
            head = self._fitted(keys, share)
        self.goal.limit = limit
        raise FloatingPointError(f"the head of {keys} keys has values up to {head.largest_value:g}")

    def _fitted(self, keys: int, share: float) -> Head:
        """The head fitted to a share of the error, in numbers of the dtype, exactly symmetric where the target is."""
        head = self.fit.build(keys, self._in_units(replace(self.goal, error=share * self.goal.error)))
        if not isinstance(head, Head):
            raise InputError(f"The method {self.fit.method!r} gave a {type(head).__name__} in place of an ah.Head.")
        if not all(np.isfinite(numbers).all() for numbers in head.arrays.values()):
            raise FloatingPointError(f"{self.fit.method} gave a head of {keys} keys with numbers that are not finite")
        if -self.target.low == self.target.high:
            f = self.target.in_units().function()
            mirrored = symmetric(head, f, self.target.high, BITS[self.dtype])
            if mirrored is not None and (not self.target.relative or mirrored.reflection == EVEN):
                head = mirrored  # a relative error at a large value is not to become one at a small value
        return head.times(self.fit.unit).rounded(self.dtype)

    def _include(self, missed: Refutation) -> None:
        """Samples around a point that the fit missed: a spike between two samples is no longer between them."""
        self.missed, span = missed, self.target.window[1] - self.target.window[0]
        around = missed.place + span * np.concatenate([s * geometric(1e-2, 1e-9, 29) for s in (-1, 1)])
        self.goal.extra = np.concatenate([self.goal.extra, around, [missed.place]])
        self.errors = dict.fromkeys(self.errors, math.inf)  # they were of another sample

    def _note(self, error: float, head: Head) -> None:
        if error < self.best:
            self.best, self.best_head = error, head

    def keep(self, claim: HeadClaim) -> None:
        """Remembers a claim that was proved, if none has a smaller bound."""
        if self.kept is None or claim.bound < self.kept.bound:
            self.kept = claim
