"""Entries of the page: a formula of one variable with every head of the gallery that exists for it, or a saved model.

Each (method, number of keys) is compiled and proved by itself. What is refused is left out, and a method that is
left out altogether says why. A saved head stands beside the gallery's; those of a saved network stand one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anchorhead.compiler.compile import compile_formula
from anchorhead.compiler.head_methods import usual
from anchorhead.compiler.methods import HEADS
from anchorhead.compiler.target import Domain, Target, expression_of, read_target
from anchorhead.errors import AnchorheadError, InputError
from anchorhead.explore.network import network_entries
from anchorhead.explore.numbers import NEAR, domain_text, entry, model_numbers
from anchorhead.explore.theorems import theorem_entries
from anchorhead.expression.domain import window
from anchorhead.expression.graph import Expression
from anchorhead.expression.parse import parse
from anchorhead.in_context.load import load
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.layered_core import LayeredCore
from anchorhead.model.mapped_core import MappedCore
from anchorhead.progress import Progress

FAST = ("gated", "smooth", "kinked")
SIZES = (2, 3, 4, 5, 6, 8, 10, 12, 16)
"""Keys of the fast heads."""
PAPER_SIZES = (4, 8, 16, 32, 64)
"""Keys of the paper's head."""
TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6)
"""For kinked heads whose number of keys does not depend on the error."""
ENOUGH = 1e-11
"""A bound below which more keys show nothing more."""
SMALL = 1e-6
"""A bound at which three sizes without progress mean that there is none to come."""
TELLING = 1e-4
"""The page opens with the smallest fast head that keeps this."""


def formula_entry(formula: str, domain: Domain = None, progress: Progress | None = None) -> dict[str, Any]:
    """The entry of a formula; AnchorheadError if it is not of one variable, or no head exists for it."""
    expression = one_variable(formula)
    target, notes = _on_domain(expression, domain)
    heads, refused = compiled_heads(target, progress)
    if not heads:
        raise InputError(f"No head could be compiled for {formula}: {refused[0]}")
    return entry(target, heads, notes + refused, start(heads)) | {"name": formula}


def one_variable(formula: str) -> Expression:
    """The formula, parsed; refused if it has several variables or outputs."""
    expression = expression_of(formula)
    if len(expression.variables) > 1:
        names = ", ".join(expression.variables)
        raise InputError(
            f"{formula} has the variables {names}, and the page draws functions of one. Fix the others at numbers, or "
            'save the network, anchorhead compile "..." -o model.safetensors, and explore that file: its heads are '
            "functions of one variable each."
        )
    return expression


def _on_domain(expression: Expression, domain: Domain) -> tuple[Target, list[str]]:
    """The target on the domain; without one, on all of R or, where no head reaches that, on a window."""
    if domain is not None:
        return read_target(expression, domain), []
    try:
        target = read_target(expression, None)
        usual(target).fit(target)
    except AnchorheadError as refusal:
        target = read_target(expression, (-NEAR, NEAR))
        where = domain_text(-NEAR, NEAR)
        return target, [f"This page takes {where}, since no domain was given and R cannot be had: {refusal}"]
    return target, []


def compiled_heads(target: Target, progress: Progress | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """The numbers of every head that exists, and a sentence for each method that does not."""
    heads: list[dict[str, Any]] = []
    notes: list[str] = []
    for method in (*FAST, "nearest"):
        if method == "kinked" and not target.kinks:
            continue
        on = target if method in ("gated", "kinked") or target.bounded else _bounded(target)
        found, refusal = _of_method(on, method, progress or (lambda text: None))
        heads += found
        if not found:
            notes.append(f"{method} is not among the heads: {_why(on, method, refusal)}")
    return heads, notes


def _why(target: Target, method: str, refusal: str) -> str:
    if method == "gated" and target.kinks:
        where = domain_text(target.low, target.high)
        return f"none was proved on {where}, since the function has a kink; kinked heads are made for that."
    return refusal


def _bounded(target: Target) -> Target:
    """The same function on a window, for heads with constant values."""
    return Target(target.expression, *window(target.low, target.high, NEAR))


def _of_method(target: Target, method: str, progress: Progress) -> tuple[list[dict[str, Any]], str]:
    """Heads by size until they are good enough or stop improving; two refusals in a row end it."""
    found: list[dict[str, Any]] = []
    bounds: list[float] = []
    refusals: list[str] = []
    try:
        wanted = list(_wanted(target, method))
    except AnchorheadError as refusal:
        return [], str(refusal)
    for keys, tol in wanted:
        progress(f"{target.expression}: {method}, " + (f"{keys} keys" if tol is None else f"within {tol:g}"))
        try:
            model = compile_formula(target.expression, (target.low, target.high), method=method, keys=keys, tol=tol)
        except AnchorheadError as refusal:
            refusals.append(str(refusal))
            if len(refusals) > 1:
                break
            continue
        refusals.clear()
        found.append(model_numbers(model, tol))
        bounds.append(model.certificate.bound)
        if bounds[-1] < ENOUGH or (len(bounds) > 3 and min(bounds[-3:]) >= min(bounds[:-3]) < SMALL):
            break
    return found, refusals[0] if refusals else ""


def _wanted(target: Target, method: str) -> Iterator[tuple[int | None, float | None]]:
    """Numbers of keys, or tolerances where the number is fixed."""
    fit = next(m for m in HEADS if m.name == method).fit(target)
    if method == "kinked" and target.is_straight:
        yield from ((None, tol) for tol in TOLERANCES)
    elif method == "gated" and target.is_straight:
        yield 1, None  # one line is the function
    else:
        sizes = PAPER_SIZES if method == "nearest" else SIZES
        yield from ((keys, None) for keys in sizes if fit.least <= keys <= fit.most)


def start(heads: list[dict[str, Any]]) -> int:
    """Where the page opens: the first fast head whose error is just too small to see in the curve."""
    order = ("kinked", "gated", "smooth", "nearest")
    method = next(m for m in order if any(h["method"] == m for h in heads))
    of_method = [i for i, h in enumerate(heads) if h["method"] == method]
    return next((i for i in of_method if heads[i]["claim"]["approximation"] <= TELLING), of_method[-1])


def file_entries(path: Path, progress: Progress | None = None) -> list[dict[str, Any]]:
    """The entries of a saved model."""
    model = load(path)
    if not isinstance(model, CompiledModel):
        return theorem_entries(model)
    if isinstance(model.network, MappedCore):
        raise InputError(
            f"{path} holds {model.certificate.expression} under the row map {model.network.row_map.name}, and the page "
            "draws softmax attention. model.plot() draws it."
        )
    if isinstance(model.network, LayeredCore):
        return network_entries(model, model.network)
    if not model.input_shape:
        return [_head_entry(model, progress)]
    raise InputError(
        f"{path} holds {model.certificate.expression}, sampled over a grid of keys; the page draws heads of one "
        "variable. Explore a model that was compiled from a formula or a traced function instead."
    )


def _head_entry(model: CompiledModel, progress: Progress | None) -> dict[str, Any]:
    """The saved head first, then what the compiler finds for the same function and domain."""
    certificate = model.certificate
    target = read_target(parse(certificate.expression, certificate.variables), certificate.domain[0])
    saved = model_numbers(model) | {"saved": True}
    try:
        others, notes = compiled_heads(target, progress)
    except AnchorheadError as refusal:
        others, notes = [], [f"Only the saved head is shown, since no other could be compiled: {refusal}"]
    return entry(target, [saved, *others], notes, 0)
