"""How a search ends without a head: the sentence that says why, and what to do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from flint import arb

from anchorhead.compiler.prove import FAR, prove_head, sampled_error
from anchorhead.compiler.target import Target
from anchorhead.digits import Up
from anchorhead.enclosure.asymptotes import Coefficient
from anchorhead.enclosure.balls import jet
from anchorhead.enclosure.precision import precision
from anchorhead.enclosure.tails import tail
from anchorhead.errors import ToleranceError
from anchorhead.proof.head_claim import HeadClaim

if TYPE_CHECKING:
    from anchorhead.compiler.search import Search

PATIENCE = 3
"""How many sizes whose heads keep the goal on samples may fail to be proved: more keys do not help then. A size after
one of them that does not keep it counts as half of one."""

PROVABLE = 1.5
"""How many times its error on samples a head is tried to be proved to keep."""
NEAR_UNIT = 16.0
"""A search whose best error is at most so many times what float64 tells of the target ends for that reason."""


class BelowDtype(ToleranceError):
    """Rounding in the dtype, or a place that no proof gets past, prevents a tolerance: no other route would keep it."""


class RoundsMore(ToleranceError):
    """Heads come near enough, and evaluating them rounds by more than the tolerance; pieces may round by less."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a search; `claim` is the smallest head that was proved to keep the tolerance by then, if any."""

    def __init__(self, target: Target, claim: HeadClaim | None, best: str) -> None:
        super().__init__(f"Interrupted while a head for {target.expression} was searched for. {best}")
        self.target, self.claim = target, claim


def check_values(search: Search) -> None:
    """Refuses a formula whose own values float64 gives with larger errors than the tolerance."""
    target, (low, high) = search.target, search.target.window
    places = [low + (high - low) * share for share in (0.0, 0.1357, 0.3819, 0.618, 0.8642, 1.0)]
    for place, value in zip(places, target.function()(np.array(places)).tolist(), strict=True):
        with precision():
            exact = jet(target.node, target.variable, arb(place), 0)[0]
            off = float(abs(exact - arb(value)).lower()) if exact.is_finite() and math.isfinite(value) else 0.0
        spread = 0.0 if target.bounded else abs(place)  # rounding is stated for each unit of it then
        if off > search.tol * (abs(value) if target.relative else 1.0 + spread):
            raise BelowDtype(
                f"tol={search.tol:g} for {target.expression} is below what float64 can tell of it: the formula's own "
                f"terms round by {off:.3g} at {target.variable} = {place:.6g}. Use a larger tol, or rewrite it so that "
                "large terms do not cancel, as by taking whole turns off an angle."
            )


def refusal(search: Search) -> ToleranceError:
    """Why no head keeps the tolerance, what was reached, and what to do."""
    _prove_best(search)
    found = _refusal(search)
    found.best = search.best if search.kept is None else search.kept.bound
    return found


def _prove_best(search: Search) -> None:
    """A bound for the head that promises the least, where that is less than what was proved."""
    head, before = search.best_head, math.inf if search.kept is None else search.kept.bound
    if head is None or not search.best < before:
        return
    cuts = search.fit.cuts(head)
    error = sampled_error(search.target, head, cuts, search.goal.error)
    found = prove_head(search.target, head, PROVABLE * error, cuts, search.fit.method)
    if isinstance(found, HeadClaim) and found.telling:
        search.keep(found)


def _refusal(search: Search) -> ToleranceError:
    what = f"tol={search.tol:g} for {search.target.expression} in {search.dtype}"
    what = f"A relative {what}" if search.target.relative else what
    what += "" if search.largest is None else f" with values of at most {search.largest:g}"
    wider = f"Use a larger tol or a {'smaller domain' if search.dtype == 'float64' else 'wider dtype'}."
    if search.rounding >= search.tol:
        return BelowDtype(
            f"{what} is below what the dtype can hold: evaluating alone may round by {Up(search.rounding):.3g}. "
            + wider
        )
    between = _between_numbers(search)
    if between:
        advice = "Use a larger tol." if search.dtype == "float64" else wider
        return BelowDtype(f"{what} is not reached: {between}. {advice}")
    if search.unproved >= PATIENCE:
        return _unproved(search, f"{what} could not be proved: heads", wider)
    if search.target.bounded and search.rounds is not None and search.rounds >= search.tol:
        return RoundsMore(
            f"{what} is not reached: heads keep it on samples, but {_rounds(search, search.rounds)}. "
            f"{best_so_far(search)} {wider}"
        )
    limited = search.most < search.fit.most
    if search.needed:
        raised = "Raise limit=, or use a larger tol or a smaller domain."
        return ToleranceError(
            f"{what} takes {search.needed} keys with method {search.fit.method!r}, and {search.most} may be used. "
            + (raised if limited else "Use a larger tol, a smaller domain, or another method.")
        )
    if search.fit.size is not None:
        return ToleranceError(
            f"{what} is not reached with method {search.fit.method!r}, however the domain is cut, as far as was "
            f"looked. {best_so_far(search)} Use a larger tol or a smaller domain."
        )
    if not search.target.relative and search.best <= NEAR_UNIT * search.told:
        return BelowDtype(
            f"{what} is not reached: values as large as the target's are told apart by {2 * search.told:.3g} in "
            f"float64, in which heads are fitted. {best_so_far(search)} Use a larger tol."
        )
    if search.rounded:
        return ToleranceError(
            f"{what} is not reached: the numbers of a head are rounded to {search.dtype}, and more of them round more. "
            f"{best_so_far(search)} {wider}"
        )
    other = "a smaller domain, or method='auto', which tries other routes too"
    return ToleranceError(
        f"{what} takes more than {search.most} keys with method {search.fit.method!r}, the most that may be used. "
        f"{best_so_far(search)} {'Raise limit=, or use' if limited else 'Use'} a larger tol, or "
        f"{other if search.target.bounded else 'a bounded domain'}."
    )


def _unproved(search: Search, what: str, wider: str) -> BelowDtype:
    """Of heads that keep the tolerance, or come near it, on samples, and are not proved."""
    if search.stuck is not None:
        return BelowDtype(
            f"{what} keep it on samples, but boxes as small and many as there may be give "
            f"no bound near {search.target.variable} = {search.stuck:.6g}. "
            + (f"{best_so_far(search)} " if search.kept else "")
            + "Use a larger tol, a domain that keeps away from there, or another form of the formula."
        )
    if search.rounds is not None:
        advice = wider if search.target.bounded else "Use a smaller, bounded domain."
        return BelowDtype(
            f"{what} keep it on samples, but {_rounds(search, search.rounds)}. "
            + (f"{best_so_far(search)} {advice}" if search.kept else advice)
        )
    if search.best_head is None and not search.target.bounded:
        return BelowDtype(
            f"{what} keep it on samples, but no proof follows them and the target to infinity. Use a bounded domain."
        )
    return BelowDtype(f"{what} come near it on samples, and do not keep it everywhere. {best_so_far(search)} {wider}")


def _between_numbers(search: Search) -> str:
    """Which number of an asymptote is none of the dtype, and too far from one for the tolerance; empty if none is.

    Beyond where a proof hands over to asymptotes a slope counts as rounding, and before that as what the head errs by.
    """
    target = search.target
    ends = (("left", -1, target.low), ("right", 1, target.high))
    for side, sign in ((side, sign) for side, sign, end in ends if math.isinf(end)):
        with precision():
            line = tail(target.node, target.variable, sign, FAR[-1])
            numbers = () if line is None else (line.slope, line.intercept)
            off = [_off(number, search.dtype) for number in numbers]
        for what, exact, apart, reach in zip(("slope", "constant"), numbers, off, (FAR[0], 1.0), strict=False):
            if apart * reach > search.tol:
                return (
                    f"the line that it follows on the {side} has the {what} {float(arb(exact).mid()):.9g}, which is no "
                    f"number of {search.dtype}: the nearest is off by {apart:.3g}"
                    + f" for each unit of {target.variable}"
                    * (what == "slope")
                )
    return ""


def _off(exact: Coefficient, dtype: str) -> float:
    """How far a number is from the nearest of the dtype."""
    nearest = float(np.dtype(dtype).type(float(arb(exact).mid())))
    return float(abs(arb(exact) - arb(nearest)).lower())


def _rounds(search: Search, rounds: float) -> str:
    """What is wrong with the rounding of heads that are near enough."""
    if rounds == math.inf:
        wide = "with scores that large" if search.target.bounded else "on so wide a domain, where scores are as large"
        return f"what evaluating them may round by has no bound {wide}"
    if search.target.bounded:
        return f"evaluating them may round by {Up(rounds):.3g}"
    return f"evaluating them may round by {Up(rounds):.3g} (1 + |{search.target.variable}|), and they are no larger"


def best_so_far(search: Search) -> str:
    """The best bound that was proved, for a sentence."""
    if search.kept is not None:
        return f"The best that this search proved is {Up(search.kept.bound):.3g} with {search.kept.head.keys} keys."
    if search.best_head is None and search.missed is not None:
        where = f"{search.target.variable} = {search.missed.place:.9g}"
        return f"Heads that keep it elsewhere err by {search.missed.error:.3g} at {where}, as by a narrow peak."
    return "No head came close." if search.best_head is None else seen_so_far(search)


def seen_so_far(search: Search) -> str:
    """The best head on samples, for a sentence."""
    if search.best_head is None:
        return "No head was finished by then."
    return f"The best on samples errs by about {search.best:.3g} with {search.best_head.keys} keys, and is not proved."
