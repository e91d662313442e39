"""The route for one variable: fit -> search and proof -> model."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from anchorhead.compiler.method import Fit, Wish
from anchorhead.compiler.prove import certificate, prove_head, sampled_error
from anchorhead.compiler.search import Search
from anchorhead.compiler.target import Target
from anchorhead.errors import InputError, ToleranceError
from anchorhead.head.head import Head
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.head_core import HeadCore
from anchorhead.proof.head_claim import HeadClaim

FIRST_GOAL, SMALLEST_GOAL = 1e-3, 1e-14
"""In the fit's unit, where no tolerance is given."""
SIZES = (*range(1, 16), *range(16, 32, 2), *range(32, 64, 4), *range(64, 257, 16))
"""The sizes that `keys=` looks at, those up to it."""
SMALL = 4
STAGES = (8, 16, 32, 64)
SETTLED = 16.0
"""An error, in units of what float64 tells of the target, that many more keys do not improve."""
BEYOND = 2
"""How many times more keys than a settled error takes are worth a look."""
FAR = 30.0
MOST_PROOFS = 6
"""How many heads are tried to be proved, the best on samples first."""


def compile_head(target: Target, fit: Fit, wish: Wish) -> CompiledModel:
    """The smallest head that is proved to keep the tolerance, or the best that is proved with so many keys."""
    tol = FIRST_GOAL * target.error_unit(fit.unit) if wish.keys is not None else wish.tolerance(1e-6)
    search = Search(target, fit, tol, wish.dtype, wish.progress, wish.limit, hurried=wish.hurried,
                    largest=wish.largest_value)  # fmt: skip
    found = search.run() if wish.keys is None else _at_size(search, wish.keys)
    return head_model(target, found)


def head_model(target: Target, claim: HeadClaim) -> CompiledModel:
    """The model of a proved head."""
    return CompiledModel(HeadCore(claim), replace(certificate(target, claim), source=target.digest), claim.method)


def _at_size(search: Search, keys: int) -> HeadClaim:
    """The best proved head with at most that many keys: a smaller one is taken where it is better."""
    fit = search.fit
    if keys < fit.least:
        raise InputError(f"keys={keys}: method {fit.method!r} has {fit.least} to {fit.most} keys for this target.")
    if fit.exact:
        heads = [_of_size(search, keys)]
    else:
        heads = _of_known_size(search, keys) if fit.size is not None else _of_any_size(search, min(keys, fit.most))
    for error, head in heads[:MOST_PROOFS]:
        found = prove_head(search.target, head, max(1.5 * error, SMALLEST_GOAL * search.error_unit), fit.cuts(head),
                           fit.method)  # fmt: skip
        if isinstance(found, HeadClaim):
            return found
    error, head = heads[0]
    raise ToleranceError(
        f"A head with {head.keys} keys reaches about {error:.3g} on samples, but no bound close to that was proved. "
        "Take more keys."
    )


def _of_any_size(search: Search, keys: int) -> list[tuple[float, Head]]:
    """Errors on samples and heads, the best first: of sizes up to that one.

    Which sizes there are does not depend on `keys`, so that more keys have what fewer had: small ones, some on the way
    up until rounding is all that is left, then from the largest down until errors are far above the best.
    """
    sizes = [k for k in SIZES if search.fit.least <= k <= keys] or [search.fit.least]
    found: dict[int, tuple[float, Head]] = {}
    problem: Exception | None = None

    def error_of(size: int) -> float:
        nonlocal problem
        if size not in found:
            search.progress(f"{search.fit.method}: {size} of at most {keys:,} keys")
            try:
                found[size] = _of_size(search, size)
            except (np.linalg.LinAlgError, FloatingPointError) as reason:
                problem = reason
                return math.inf
        return found[size][0]

    settled = next((k for k in STAGES if k in sizes and error_of(k) <= SETTLED * search.rounding), max(sizes))
    if not any(error_of(k) <= search.rounding for k in sizes if k <= SMALL):  # more keys would only round more
        for size in (k for k in reversed(sizes) if SMALL < k <= BEYOND * settled):
            error = error_of(size)
            if error <= search.rounding or FAR * min(e for e, _ in found.values()) < error < math.inf:
                break
    if not found:
        raise ToleranceError(f"No head with {keys} keys could be fitted: {problem}. Take another number.")
    return sorted(found.values(), key=lambda f: f[0])


def _of_size(search: Search, keys: int) -> tuple[float, Head]:
    """The best of one size: fitted for ever smaller goals until it stops improving."""
    found: list[tuple[float, Head]] = []
    least = SMALLEST_GOAL * search.error_unit
    search.goal.error = FIRST_GOAL * search.error_unit
    for _ in range(8):
        try:
            head = search.head(keys)
        except (np.linalg.LinAlgError, FloatingPointError):
            if not found:
                raise
            break
        if found and head == found[-1][1]:
            break  # whatever the goal
        found.append((sampled_error(search.target, head, search.fit.cuts(head), search.goal.error), head))
        errors = [e for e, _ in found]
        if len(errors) > 2 and min(errors[-2:]) > 0.9 * min(errors[:-2]):
            break
        search.goal.error = max(min(errors) / 3, search.goal.error / 30, least)
    return min(found, key=lambda f: f[0])


def _of_known_size(search: Search, keys: int) -> list[tuple[float, Head]]:
    """Of a fit that knows the size of a goal: heads for ever smaller goals that at most so many keys keep."""
    found: list[tuple[float, Head]] = []
    search.goal.error = 10.0 * search.error_unit
    while search.goal.error > SMALLEST_GOAL * search.error_unit:
        size = search.size()
        if size is None or size > keys:
            break
        head = search.head(size)
        found.append((sampled_error(search.target, head, search.fit.cuts(head), search.goal.error), head))
        search.goal.error /= 4
    if not found:
        raise ToleranceError(f"{search.target.expression} has no head of at most {keys} keys. Take more keys.")
    return sorted(found, key=lambda f: f[0])
