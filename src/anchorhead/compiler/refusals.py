"""How a search ends without a head: the sentence that says why, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anchorhead.compiler.target import Target
from anchorhead.digits import Up
from anchorhead.errors import ToleranceError
from anchorhead.proof.head_claim import HeadClaim

if TYPE_CHECKING:
    from anchorhead.compiler.search import Search

PATIENCE = 3
"""How many sizes whose heads keep the goal on samples may fail to be proved: rounding is then what prevents it. A size
after one of them that does not keep it counts as half of one."""

NEAR_UNIT = 16.0
"""A search whose best error is at most so many times what float64 tells of the target ends for that reason."""


class BelowDtype(ToleranceError):
    """Rounding in the dtype is what prevents a tolerance, so that no other route would keep it."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a search; `claim` is the smallest head that was proved to keep the tolerance by then, if any."""

    def __init__(self, target: Target, claim: HeadClaim | None, best: str) -> None:
        super().__init__(f"Interrupted while a head for {target.expression} was searched for. {best}")
        self.target, self.claim = target, claim


def refusal(search: Search) -> ToleranceError:
    """Why no head keeps the tolerance, what was reached, and what to do."""
    found = _refusal(search)
    found.best = search.best if search.best_keys else found.best
    return found


def _refusal(search: Search) -> ToleranceError:
    what = f"tol={search.tol:g} for {search.target.expression} in {search.dtype}"
    what = f"A relative {what}" if search.target.relative else what
    what += "" if search.largest is None else f" with values of at most {search.largest:g}"
    if search.rounding >= search.tol:
        return BelowDtype(
            f"{what} is below what the dtype can hold: evaluating alone may round by {Up(search.rounding):.3g}. Use a "
            "larger tol or a wider dtype."
        )
    if search.unproved >= PATIENCE:
        return BelowDtype(
            f"{what} could not be proved: heads keep it on samples, but evaluating them may round by more than is "
            f"left. {best_so_far(search)} Use a larger tol or a wider dtype."
        )
    if search.needed:
        return ToleranceError(
            f"{what} takes {search.needed} keys with method {search.fit.method!r}, and {search.most} may be used. "
            "Use a larger tol, a smaller domain, or another method."
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
    other = "a smaller domain, or method='auto', which tries other routes too"
    return ToleranceError(
        f"{what} takes more than {search.most} keys with method {search.fit.method!r}, the most that may be used. "
        f"{best_so_far(search)} Use a larger tol, or {other if search.target.bounded else 'a bounded domain'}."
    )


def best_so_far(search: Search) -> str:
    """The best head that was found, for a sentence."""
    if not search.best_keys:
        return "No head came close."
    return f"The best found is {Up(search.best):.3g} with {search.best_keys} keys."
