"""The pipeline: target -> fit -> search and proof -> model, for one variable; `circuit_route.py` does several."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from anchorhead.compiler.circuit_target import GraphTarget, arguments, input_shape, source_digest
from anchorhead.compiler.fits import fit_for
from anchorhead.compiler.grid_route import compile_opaque
from anchorhead.compiler.prove import certificate, prove_head, sampled_error
from anchorhead.compiler.read import read_any
from anchorhead.compiler.routes import compile_routed, dtype_name
from anchorhead.compiler.search import Progress, Search
from anchorhead.compiler.target import Domain, Target, read_target
from anchorhead.compiler.two_layer_route import compile_two_layer
from anchorhead.errors import InputError, ToleranceError
from anchorhead.expression.domain import shown
from anchorhead.expression.graph import Expression
from anchorhead.head.head import Head
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.head_form import HeadForm
from anchorhead.model.outside import check_policy
from anchorhead.proof.approximation import Refutation
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.tracing.opaque import read_opaque

OPAQUE_METHODS = ("grid", "two_layer")
LARGEST_TOL = 1e100


def compile(
    target: Any,
    domain: Any = None,
    *,
    tol: float | None = None,
    method: str = "auto",
    dtype: torch.dtype = torch.float64,
    keys: int | None = None,
    shape: tuple[int, ...] | int | None = None,
    lipschitz: float | None = None,
    outside: str = "warn",
    progress: Progress | None = None,
) -> CompiledModel:
    """A function as softmax attention, with a proof of its error.

    target: a formula as text, or a list of formulas, one for each output; or a Python function or `nn.Module` of torch
        operations (traced, not sampled), of one tensor or of several numbers. A module is read in evaluation mode.
    domain: of one variable (low, high), {"x": (low, high)}, or None for the whole real line. Of several: a box, as
        {"x": (-1, 1), "y": (0, 1)}, a list of pairs, or a pair of arrays (lowest, highest); or one interval for all.
        The model's inputs are in the order of a function's arguments, or for formulas of the domain's names, or else
        of first appearance; `model.certificate.variables` says it.
    tol: the error to keep, 1e-6 unless given. On a bounded domain it covers approximation and rounding; on an
        unbounded one the approximation, and rounding is stated as a multiple of 1 + |x|.
    method: auto; for one variable gated (values affine in x), smooth (constant values), kinked (pieces joined by
        gates) or nearest (the paper's); for several graph (a head for each node) or grid (one layer, p^m keys). With
        grid or two_layer (the paper's two layers) a callable is not looked into but sampled.
    keys: for one variable, a number of keys instead of a tolerance: the best error that is proved at that size.
    shape: the shape of one input of a function or module of tensors, such as (64,) or (20, 5), where the domain does
        not say it. A callable is taken to map batches, (batch, *shape), if it can, and single inputs otherwise.
    lipschitz: for a callable that cannot be looked into, a constant L with |f(x) - f(y)| <= L|x - y| in the Euclidean
        metric, for each output; the certificate is conditional on it. Without it (method="grid" or "two_layer") the
        error is measured only, and the certificate says so.
    outside: what an input outside the domain does when the model is run: "warn", once, "error" or "ignore";
        `model.outside` is the same and can be changed.
    progress: called with a line of text for each step.
    """
    check_policy(outside)
    model = _compiled(target, domain, tol, method, dtype, keys, shape, lipschitz, progress)
    model.outside = outside
    return model


def _compiled(target: Any, domain: Any, tol: float | None, method: str, dtype: torch.dtype, keys: int | None,
              shape: tuple[int, ...] | int | None, lipschitz: float | None,
              progress: Progress | None) -> CompiledModel:  # fmt: skip
    name = dtype_name(dtype)
    report = progress or (lambda text: None)
    if keys is not None and tol is not None:
        raise InputError("Give tol or keys, not both: tol searches the number of keys, keys the best error.")
    if lipschitz is not None or (method in OPAQUE_METHODS and _is_function(target)):
        return _opaque(target, domain, shape, method, tol, lipschitz, dtype, report)
    read = read_any(target, domain, shape, method)
    with threadpool_limits(1):  # thousands of small least squares: threads would only wait for each other
        if isinstance(read, GraphTarget):
            if keys is not None:
                raise InputError("keys= is for functions of one variable; give tol, and the keys are shared out.")
            return compile_routed(read, method, check_tol(1e-6 if tol is None else tol), dtype, report)
        return _one(read, method, tol, keys, name, report, source_digest(target))


def compile_head(formula: str | Expression, domain: Domain, *, method: str = "auto", tol: float | None = None,
                 keys: int | None = None, dtype: torch.dtype = torch.float64) -> CompiledModel:  # fmt: skip
    """`compile` of a formula in one variable with one output, which is one head."""
    with threadpool_limits(1):
        return _one(read_target(formula, domain), method, tol, keys, dtype_name(dtype), lambda text: None)


def _one(read: Target, method: str, tol: float | None, keys: int | None, dtype: str, report: Progress,
         source: str = "") -> CompiledModel:  # fmt: skip
    fit = fit_for(read, method)
    if keys is not None:
        found = _at_size(Search(read, fit, 1e-3, dtype, report), keys)
    else:
        found = Search(read, fit, check_tol(1e-6 if tol is None else tol), dtype, report).run()
    return CompiledModel(HeadForm(found), replace(certificate(read, found), source=source), fit.method)


def _is_function(target: Any) -> bool:
    return callable(target) and not isinstance(target, Expression)


def _opaque(target: Any, domain: Any, shape: Any, method: str, tol: float | None, lipschitz: float | None,
            dtype: torch.dtype, progress: Progress) -> CompiledModel:  # fmt: skip
    """A callable that is not looked into."""
    if not _is_function(target):
        raise InputError(
            "lipschitz= is for a Python function that cannot be looked into; a formula is proved without it, so leave "
            "it out."
        )
    if method not in ("auto", *OPAQUE_METHODS):
        raise InputError(f"method={method!r} with lipschitz= must be auto, {' or '.join(OPAQUE_METHODS)}.")
    if lipschitz is not None and not (isinstance(lipschitz, int | float) and 0 <= lipschitz < LARGEST_TOL):
        raise InputError(f"lipschitz={shown(lipschitz)} must be a number from 0 to {LARGEST_TOL:g}.")
    read = read_opaque(target, domain, arguments(target), input_shape(target, domain, shape))
    with threadpool_limits(1):
        route = compile_two_layer if method == "two_layer" else compile_opaque
        return route(read, check_tol(1e-2 if tol is None else tol), lipschitz, dtype, progress)


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
        head = search.head(keys)
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


def check_tol(tol: float) -> float:
    """A tolerance as a positive finite number."""
    if not (isinstance(tol, int | float | np.floating) and 0 < tol < LARGEST_TOL):
        raise InputError(
            f"tol={shown(tol)} must be a positive number below {LARGEST_TOL:g}, the error that you can accept."
        )
    return float(tol)
