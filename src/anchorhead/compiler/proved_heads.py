"""A proved head for each request and error, searched once: heads are shared between steps and between compilations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal

from anchorhead.compiler.head_methods import Pieces, Smooth, usual
from anchorhead.compiler.head_requests import Request
from anchorhead.compiler.method import Progress
from anchorhead.compiler.search import BelowDtype, Search
from anchorhead.enclosure.singularities import singularities
from anchorhead.errors import ToleranceError
from anchorhead.expression.graph import Node
from anchorhead.proof.head_claim import HeadClaim

_known: dict[tuple[Node, float, float, bool, str, float], Choice] = {}
MOST_KNOWN = 2000
SMALLEST, LARGEST = 1e-300, 1e100
"""Of errors that are asked for: below no float is left to say so, above it makes no difference."""


@dataclass(frozen=True)
class Choice:
    """A head that keeps an error, and the error that one key fewer had on samples (infinite if not tried)."""

    claim: HeadClaim
    fewer: float

    @property
    def keys(self) -> int:
        return self.claim.head.keys

    @property
    def error(self) -> float:
        return self.claim.approximation + self.claim.rounding


def choose(request: Request, error: float, dtype: str, progress: Progress, most: int | None = None) -> Choice:
    """The smallest proved head for the request; ToleranceError with `best`, the error that was reached, if none.

    most: keys, at the most, where there is a limit.
    """
    if not error > SMALLEST:
        raise ToleranceError(f"An error of {error:.3g} was asked of {request.function}, and none so small is proved.")
    error = _two_digits(min(error, LARGEST))
    key = (request.function, request.low, request.high, request.carries, dtype, error)
    found = _known.get(key)
    if found is None:
        found = _search(request, error, dtype, progress, most)
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        _known[key] = found
    return found


def _search(request: Request, error: float, dtype: str, progress: Progress, most: int | None) -> Choice:
    target = request.target
    singularities(request.function, "u", request.low, request.high)
    first = Smooth() if request.carries else usual(target)
    search = Search(target, first.fit(target), error, dtype, progress, most, hurried=True)
    try:
        claim = search.run()
    except ToleranceError as refusal:
        hopeless = not math.isfinite(search.best) and search.rounding > 0  # below the dtype: nothing was even tried
        refusal.best = 3 * search.rounding if hopeless else search.best
        if request.carries or isinstance(refusal, BelowDtype):
            raise
        try:
            claim = Search(target, Pieces().fit(target), error, dtype, progress, most).run()
        except ToleranceError:
            raise refusal from None
    return Choice(claim, search.errors.get(claim.head.keys - 1, math.inf))


def _two_digits(error: float) -> float:
    """Rounded down to two digits, so that nearly equal requests meet."""
    exact = Decimal(error * (1 + 1e-12))
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 1), ROUND_DOWN))
