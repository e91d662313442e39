"""The pipeline: target -> fit -> search and proof -> model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from anchorhead.certify.approximation import Refutation
from anchorhead.compiler.fits import fit_for
from anchorhead.compiler.proving import Proved, prove_head, sampled_error
from anchorhead.compiler.search import Progress, Search
from anchorhead.compiler.target import Domain, read_target
from anchorhead.errors import InputError, PrecisionError, ToleranceError
from anchorhead.heads.head import Head
from anchorhead.network.compiled import CompiledModel
from anchorhead.network.file import NUMBERS
from anchorhead.network.head_attention import HeadAttention

DTYPES = {torch.float64: "float64", torch.float32: "float32"}


def compile(
    target: Any,
    domain: Domain = None,
    *,
    tol: float | None = None,
    method: str = "auto",
    dtype: torch.dtype = torch.float64,
    keys: int | None = None,
    progress: Progress | None = None,
) -> CompiledModel:
    """A function of one variable as softmax attention, with a proof of its error.

    target: a formula as text, or a Python function or module of torch operations (traced, not sampled).
    domain: (low, high), {"x": (low, high)}, or None for the whole real line.
    tol: the error to keep, 1e-6 unless given. On a bounded domain it covers approximation and rounding; on an
        unbounded one the approximation, and rounding is stated as a multiple of 1 + |x|.
    method: auto, gated (values affine in x), smooth (constant values), kinked (pieces joined by gates) or nearest (the
        paper's).
    keys: a fixed number of keys instead of a tolerance; the model has the best error that is proved at that size.
    progress: called with a line of text for each step.
    """
    name = _dtype_name(dtype)
    read = read_target(target, domain)
    fit = fit_for(read, method)
    report = progress or (lambda text: None)
    if keys is not None and tol is not None:
        raise InputError("Give tol or keys, not both: tol searches the number of keys, keys the best error.")
    with threadpool_limits(1):  # thousands of small least squares: threads would only wait for each other
        if keys is not None:
            found = _at_size(Search(read, fit, 1e-3, name, report), keys)
        else:
            found = Search(read, fit, check_tol(1e-6 if tol is None else tol), name, report).run()
    return _model(found, fit.method, dtype, read.variable)


def _at_size(search: Search, keys: int) -> Proved:
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
        head = search.head(keys)
        candidates.append((sampled_error(search.target, head, search.fit.cuts(head)), head))
        errors = [e for e, _ in candidates]
        if len(errors) > 2 and min(errors[-2:]) > 0.9 * min(errors[:-2]):
            break
        search.goal.error = max(min(errors) / 3, search.goal.error / 30, 1e-14)
    error, head = min(candidates, key=lambda c: c[0])
    found = prove_head(search.target, head, search.dtype, max(1.5 * error, 1e-14), search.fit.cuts(head))
    if isinstance(found, Refutation):
        raise ToleranceError(
            f"A head with {keys} keys reaches about {error:.3g} on samples, but near {found.place:g} no bound close to "
            "that could be proved. Take more keys."
        )
    return found


def check_tol(tol: float) -> float:
    """A tolerance as a positive finite number."""
    if not (isinstance(tol, int | float | np.floating) and math.isfinite(tol) and tol > 0):
        raise InputError(f"tol={tol!r} must be a positive finite number, the error that you can accept.")
    return float(tol)


def _dtype_name(dtype: torch.dtype) -> str:
    if dtype not in DTYPES:
        raise PrecisionError(f"dtype={dtype} has no certified evaluation; use torch.float64 or torch.float32.")
    return DTYPES[dtype]


def _model(found: Proved, method: str, dtype: torch.dtype, variable: str) -> CompiledModel:
    head = found.head
    numbers = {name: torch.as_tensor(getattr(head, name).copy()).to(dtype) for name in NUMBERS}
    record = {"variable": variable, "edges": found.edges}
    layer = HeadAttention(**numbers, uniform=head.uniform, sizes=head.sizes)
    return CompiledModel(layer, found.certificate, method, record)
