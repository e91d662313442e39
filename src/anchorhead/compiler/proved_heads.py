"""A proved head for each request and error, searched once: heads are shared between steps and between compilations."""

from __future__ import annotations

import itertools
import math
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import ROUND_DOWN, Decimal

import numpy as np

from anchorhead.compiler.head_methods import Pieces, Smooth, settling, usual
from anchorhead.compiler.head_requests import Request
from anchorhead.compiler.method import Progress
from anchorhead.compiler.odd_model import odd_claim
from anchorhead.compiler.prove import prove_head
from anchorhead.compiler.refusals import BelowDtype
from anchorhead.compiler.search import Search
from anchorhead.compiler.target import Target
from anchorhead.digits import Up
from anchorhead.dtypes import UNIT
from anchorhead.enclosure.singularities import singularities
from anchorhead.errors import ToleranceError
from anchorhead.expression.graph import Node
from anchorhead.head.head import Odd
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.proof.odd import relative_rounding

_known: dict[tuple[Node, float, float, bool, bool, str, float, float], Choice] = {}
_nearest: dict[tuple[Node, float, float, bool, bool, str], HeadClaim | None] = {}
"""For each request the head that rounds least, where rounding prevented what was asked."""
SIZES, LIMITS = (4, 6, 8, 10, 12, 14, 16), (2.0, 1.0)
FEW = 6
"""A head of so few keys that is blended from constants is taken; with more a smooth one may do better."""
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


def choose(request: Request, error: float, dtype: str, progress: Progress, most: int | None = None, *,
           hurried: bool = False) -> Choice:  # fmt: skip
    """The smallest proved head for the request; ToleranceError with `best`, the error that was reached, if none.

    most: keys, at the most, where there is a limit. hurried: whether it is given up where it would take pieces.
    """
    if not error > SMALLEST:
        raise ToleranceError(f"An error of {error:.3g} was asked of {request.function}, and none so small is proved.")
    error = _two_digits(min(error, LARGEST))
    key = (request.function, request.low, request.high, request.carries, request.literal, dtype, request.unit, error)
    found = _known.get(key)
    if found is None:
        found = _odd(request, error, dtype) if request.odd else _search(request, error, dtype, progress, most, hurried)
        if len(_known) >= MOST_KNOWN:
            _known.clear()
            _nearest.clear()
        _known[key] = found
    return found


def _odd(request: Request, error: float, dtype: str) -> Choice:
    """Two keys with c a power of two: as small as half of the error allows, for that is best for other evaluations.

    In exact arithmetic they err by 1/3c², and evaluating them rounds by a number that does not depend on c.
    """
    alone = float(relative_rounding(Odd(1.0, 1.0, not request.carries), dtype))
    share = max(min(error / 2, error - 1.01 * alone), UNIT[dtype] / 8)
    claim = odd_claim(request.function, "u", request.high, share, dtype)
    if not claim.bound <= error:
        refusal = ToleranceError(
            f"A relative error of {error:.3g} was asked of {request.function}, and evaluating it in {dtype} rounds by "
            f"{Up(claim.rounding):.3g}."
        )
        refusal.best = claim.bound
        raise refusal
    return Choice(claim, math.inf)


def _search(request: Request, error: float, dtype: str, progress: Progress, most: int | None,
            hurried: bool) -> Choice:  # fmt: skip
    """The smallest head; where rounding prevents it, the one that rounds least, if that keeps the error."""
    # in float64 the bound for both evaluations is small enough; in float32 that of the fast one is what is needed
    fast = dtype == "float32" and not request.literal
    target = replace(request.target, evaluation="fast" if fast else "")
    singularities(request.function, "u", request.low, request.high)
    settled = _settled(request, target, error, dtype, progress, most) if request.carries else None
    if settled is not None:
        if settled.keys <= FEW:
            return settled
        most = settled.keys - 1
    fit = (Smooth() if request.carries else usual(target)).scaled_fit(target)
    try:
        search = Search(target, fit, error, dtype, progress, most, hurried=True, unit=request.unit)
        claim = search.run()
    except ToleranceError as refusal:
        if settled is not None:
            return settled
        hopeless = not math.isfinite(search.best) and search.rounding > 0  # below the dtype: nothing was even tried
        refusal.best = 3 * search.rounding if hopeless else refusal.best
        if hopeless or ((request.carries or hurried) and not isinstance(refusal, BelowDtype)):
            raise
        if not isinstance(refusal, BelowDtype):
            return Choice(_in_pieces(target, error, dtype, progress, most, refusal), math.inf)
        key = request.function, request.low, request.high, request.carries, request.literal, dtype
        if key not in _nearest:
            _nearest[key] = _least_rounding(search, error)
        nearest = _nearest[key]
        if nearest is None or not nearest.bound <= error:
            refusal.best = refusal.best if nearest is None else nearest.bound
            raise
        return Choice(nearest, math.inf)
    return Choice(claim, search.errors.get(claim.head.keys - 1, math.inf))


def _settled(request: Request, target: Target, error: float, dtype: str, progress: Progress,
             most: int | None) -> Choice | None:  # fmt: skip
    """A head that is blended from the constants on which a function settles; None where it is not found."""
    fit = settling(target)
    if fit is None:
        return None
    search = Search(target, fit, error, dtype, progress, most, hurried=True, unit=request.unit)
    with suppress(ToleranceError):
        claim = search.run()
        return Choice(claim, search.errors.get(claim.head.keys - 1, math.inf))
    return None


def _in_pieces(target: Target, error: float, dtype: str, progress: Progress, most: int | None,
               refusal: ToleranceError) -> HeadClaim:  # fmt: skip
    """A head of pieces, where one by itself is refused."""
    try:
        return Search(target, Pieces().scaled_fit(target), error, dtype, progress, most).run()
    except ToleranceError:
        raise refusal from None


def _least_rounding(search: Search, error: float) -> HeadClaim | None:
    """Of heads of some sizes and some limits on their values the one with the smallest bound, within four errors."""
    proved = []
    for keys, limit in itertools.product(SIZES, LIMITS):
        search.goal.error, search.goal.limit = error / 4, limit * search.fit.unit
        try:
            found = prove_head(search.target, search.head(keys), 4 * error, [], search.fit.method)
        except (np.linalg.LinAlgError, FloatingPointError):
            continue
        if isinstance(found, HeadClaim):
            proved.append(found)
    return min(proved, key=lambda claim: claim.bound, default=None)


def _two_digits(error: float) -> float:
    """Rounded down to two digits, so that nearly equal requests meet."""
    exact = Decimal(error * (1 + 1e-12))
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 1), ROUND_DOWN))
