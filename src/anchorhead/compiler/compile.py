"""The pipeline: what the user gave -> a target -> a method -> a proved model."""

from __future__ import annotations

from typing import Any

import torch
from threadpoolctl import threadpool_limits

from anchorhead.compiler.circuit_target import name_of
from anchorhead.compiler.head_route import head_model
from anchorhead.compiler.method import Method, Wish
from anchorhead.compiler.methods import named
from anchorhead.compiler.read import read
from anchorhead.compiler.refusals import Interrupted
from anchorhead.compiler.row_map_route import compile_mapped
from anchorhead.compiler.target import Domain, Target, read_target
from anchorhead.digits import Up
from anchorhead.errors import InputError, ToleranceError
from anchorhead.expression.graph import Expression
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.outside import check_policy
from anchorhead.model.report import shortened
from anchorhead.progress import LOG, Progress, telling
from anchorhead.row_maps import RowMap


def compile(
    target: Any,
    domain: Any = None,
    *,
    tol: float | None = None,
    relative: bool = False,
    method: str | Method = "auto",
    dtype: torch.dtype = torch.float64,
    keys: int | None = None,
    shape: tuple[int, ...] | int | None = None,
    lipschitz: float | None = None,
    outside: str = "warn",
    evaluation: str = "fast",
    limit: int | None = None,
    largest_value: float | None = None,
    row_map: RowMap | None = None,
    progress: bool | Progress = True,
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
    relative: of one variable, on a bounded domain where the target has no zero: tol and all bounds of the certificate
        are multiples of |target|, |model/target - 1| <= tol.
    method: auto; for one variable gated (values affine in x), smooth (constant values), gamma (keys in geometric
        progression, for powers over many decades), kinked (pieces joined by gates at kinks), pieces (cut wherever that
        saves keys) or nearest (the paper's); for any number graph (a head for each node); for several grid (one layer,
        p^m keys). With grid or two_layer (the paper's two layers) a callable is not looked into but sampled. Or a
        `Method` of your own (docs/extending.md).
    keys: for one variable, a number of keys instead of a tolerance: the best error that is proved with at most so many.
    shape: the shape of one input of a function or module of tensors, such as (64,) or (20, 5), where the domain does
        not say it. A callable is taken to map batches, (batch, *shape), if it can, and single inputs otherwise.
    lipschitz: for a callable that cannot be looked into, a constant L with |f(x) - f(y)| <= L|x - y| in the Euclidean
        metric, for each output; the certificate is conditional on it. Without it (method="grid" or "two_layer") the
        error is measured only, and the certificate says so.
    outside: what an input outside the domain does when the model is run: "warn", once, "error" or "ignore";
        `model.outside` is the same and can be changed.
    evaluation: for which evaluation products and squares are built: "fast", what the model computes, where they take
        two keys and lose no digits; or "literal", the softmax written out, for `literal()`, ONNX and other exports,
        which in float32 takes more keys and a larger tol. `model.literal_certificate()` says what that form keeps.
    limit: the most keys that a model may have; what takes more is refused.
    largest_value: for one variable, as one head: no constant or gain of it may be larger, at the price of keys. Small
        values keep more of a head where its softmax is computed in few bits (docs/row_maps.md).
    row_map: for a formula in one variable on a bounded domain: another map from scores to weights than softmax, for
        which the values are solved, such as `ah.row_maps.Sigmoid()`.
    progress: True shows on a terminal and in a notebook what is tried, once that has taken two seconds; False is
        silent; a function is called with a line of text for each step. It is the same keyword in every call. Ctrl-C
        ends with the smallest head that was proved to keep the tolerance, if there is one, and else in a
        KeyboardInterrupt that says how far the search came.

    >>> model = ah.compile("sin(3*x*y)", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-4)
    >>> model(torch.tensor([0.5, 0.25], dtype=torch.float64)).shape, model.certificate.bound <= 1e-4
    (torch.Size([1]), True)
    """
    check_policy(outside)
    if evaluation not in ("fast", "literal"):
        raise InputError(f'evaluation={evaluation!r:.40} must be "fast" or "literal".')
    chosen = named(method)
    with telling(f"compiling {_named(target)}", progress) as tell:
        wish = Wish(tol, keys, dtype, lipschitz, tell, limit, literal=evaluation == "literal",
                    largest_value=largest_value)  # fmt: skip
        found = read(target, domain, shape, chosen, sampled=lipschitz is not None, relative=relative)
        if largest_value is not None and not isinstance(found, Target):
            raise InputError("largest_value= is for functions of one variable, which are one head; leave it out.")
        with threadpool_limits(1):  # thousands of small least squares: threads would only wait for each other
            try:
                model = chosen.compile(found, wish) if row_map is None else compile_mapped(found, row_map, wish)
            except Interrupted as stop:
                if stop.claim is None or stop.target is not found:
                    raise
                model = head_model(stop.target, stop.claim)
        if wish.limit is not None:
            wish.check_limit(model.resources.keys)
        if wish.literal and keys is None and row_map is None:
            _check_literal(model, wish.tolerance(1e-6))
        LOG.info("made by %s, %d keys: %s", model.method, model.resources.keys, model.claimed)
    model.outside = outside
    return model


def _check_literal(model: CompiledModel, tol: float) -> None:
    """Refuses what keeps the tolerance as it runs, and not as a literal softmax, for which it was asked."""
    kept = model.literal_certificate()
    if kept.evaluation == "literal" and not kept.bound <= tol:
        wider = "" if kept.dtype == "float64" else "float64, "
        refusal = ToleranceError(
            f"tol={tol:g} is not kept by the literal softmax, for which {Up(kept.bound):.3g} is proved: pieces are "
            f"joined by gates so steep that beside them the scores of keys lose digits. Use {wider}a larger tol, or "
            f"leave evaluation out; what the model computes keeps {Up(model.certificate.bound):.3g}."
        )
        refusal.best = kept.bound
        raise refusal


def _named(target: Any) -> str:
    """What is compiled, for a line of text."""
    return shortened(target, 60) if isinstance(target, str) else name_of(target) if callable(target) else "formulas"


def compile_formula(formula: str | Expression, domain: Domain, *, method: str | Method = "auto",
                    tol: float | None = None, keys: int | None = None,
                    dtype: torch.dtype = torch.float64) -> CompiledModel:  # fmt: skip
    """`compile` of a formula in one variable with one output, which is one head."""
    with telling(f"compiling {formula}") as tell, threadpool_limits(1):
        return named(method).compile(read_target(formula, domain), Wish(tol, keys, dtype, progress=tell))
