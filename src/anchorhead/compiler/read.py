"""What the user gave, as a function of one variable or as a target for the graph: formulas, functions, modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anchorhead.compiler.circuit_target import (
    GraphTarget,
    arguments,
    inferred_shape,
    input_shape,
    of_arguments,
    of_expression,
    of_module,
)
from anchorhead.compiler.fits import METHODS
from anchorhead.compiler.target import Target, expression_of, read_target
from anchorhead.errors import ExpressionError, InputError
from anchorhead.expression.graph import Expression

GRAPH_METHODS = ("auto", "graph", "grid")


def read_any(target: Any, domain: Any, shape: Any, method: str) -> Target | GraphTarget:
    """One variable and one output, or anything else."""
    if method == "two_layer":
        raise InputError("method='two_layer' samples a Python function; give one, or use method='auto' for a formula.")
    if method not in (*METHODS, *GRAPH_METHODS):
        known = (*METHODS, *GRAPH_METHODS[1:], "two_layer")
        raise InputError(f"method={method!r} must be one of {', '.join(known)}.")
    read = _read(target, domain, shape, method)
    if isinstance(read, GraphTarget) and method not in GRAPH_METHODS:
        raise InputError(
            f"method={method!r} is for functions of one variable with one output, and {read.name} is not one; use "
            "method='auto'."
        )
    return read


def _read(target: Any, domain: Any, shape: Any, method: str) -> Target | GraphTarget:
    if not callable(target) or isinstance(target, Expression):
        if shape is not None:
            raise InputError("shape= is for functions and modules of tensors; a formula's variables are numbers.")
        expression = expression_of(target)
        if (
            method in GRAPH_METHODS[1:]
            or len(expression.outputs) > 1
            or len(expression.variables) > 1
            or _several(domain)
        ):
            return of_expression(expression, domain)
        return read_target(expression, domain)
    names = arguments(target)
    if len(names) > 1:
        return of_arguments(target, domain, names)
    found = input_shape(target, domain, shape)
    if found is None:
        try:
            return read_target(target, domain)
        except ExpressionError as error:
            found = inferred_shape(target)
            if found is None:
                raise ExpressionError(
                    f"{error} If it takes a tensor of several numbers, give shape=, such as (3,)."
                ) from None
    return of_module(target, domain, found)


def _several(domain: Any) -> bool:
    return isinstance(domain, Mapping) and len(domain) > 1
