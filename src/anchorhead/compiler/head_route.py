"""The route for one variable: fit -> search and proof -> model."""

from __future__ import annotations

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
from anchorhead.proof.approximation import Refutation
from anchorhead.proof.head_claim import HeadClaim


def compile_head(target: Target, fit: Fit, wish: Wish) -> CompiledModel:
    """The smallest head that is proved to keep the tolerance, or the best that is proved with so many keys."""
    tol = 1e-3 if wish.keys is not None else wish.tolerance(1e-6)
    search = Search(target, fit, tol, wish.dtype, wish.progress, wish.limit)
    found = search.run() if wish.keys is None else _at_size(search, wish.keys)
    return CompiledModel(HeadCore(found), replace(certificate(target, found), source=target.digest), fit.method)


def _at_size(search: Search, keys: int) -> HeadClaim:
    """The best proved head with that many keys: fitted for ever smaller goals until it stops improving."""
    if isinstance(keys, bool) or not isinstance(keys, int) or keys < 1:
        raise InputError(f"keys={keys!r} must be a whole number of at least 1.")
    if not search.fit.least <= keys <= search.fit.most:
        raise InputError(
            f"keys={keys}: method {search.fit.method!r} can have {search.fit.least} to {search.fit.most} keys for this "
            "target."
        )
    candidates: list[tuple[float, Head]] = []
    for _ in range(8):
        try:
            head = search.head(keys)
        except (np.linalg.LinAlgError, FloatingPointError) as problem:
            if candidates:
                break
            raise ToleranceError(f"No head with {keys} keys could be fitted: {problem}. Take another number.") from None
        candidates.append((sampled_error(search.target, head, search.fit.cuts(head)), head))
        errors = [e for e, _ in candidates]
        if len(errors) > 2 and min(errors[-2:]) > 0.9 * min(errors[:-2]):
            break
        search.goal.error = max(min(errors) / 3, search.goal.error / 30, 1e-14)
    error, head = min(candidates, key=lambda c: c[0])
    goal = max(1.5 * error, 1e-14)
    found = prove_head(search.target, head, goal, search.fit.cuts(head), search.fit.method)
    if isinstance(found, Refutation):
        raise ToleranceError(
            f"A head with {keys} keys reaches about {error:.3g} on samples, but near {found.place:g} no bound close to "
            "that could be proved. Take more keys."
        )
    return found
