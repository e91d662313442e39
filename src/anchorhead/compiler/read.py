"""What the user gave, as a target of a kind that the method takes: formulas, functions, modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from anchorhead.compiler.circuit_target import (
    CircuitTarget,
    arguments,
    inferred_shape,
    input_shape,
    of_arguments,
    of_expression,
    of_module,
    source_digest,
)
from anchorhead.compiler.method import Method
from anchorhead.compiler.sizes import relative as in_relative_units
from anchorhead.compiler.target import Target, expression_of, read_target
from anchorhead.errors import ExpressionError, InputError
from anchorhead.expression.graph import Expression
from anchorhead.tracing.calling import require_instance
from anchorhead.tracing.opaque import Opaque, read_opaque


def read(
    target: Any, domain: Any, shape: Any, method: Method, *, sampled: bool = False, relative: bool = False
) -> Target | CircuitTarget | Opaque:
    """The target; with `sampled`, or for a method that samples, a callable is not looked into.

    relative: its error is to be measured in units of its own size.
    """
    if relative:
        return in_relative_units(read(target, domain, shape, method, sampled=sampled))
    require_instance(target)
    function = callable(target) and not isinstance(target, Expression)
    if sampled and not function:
        raise InputError(
            "lipschitz= is for a Python function that cannot be looked into; a formula is proved without it, so leave "
            "it out."
        )
    if sampled and "opaque" not in method.takes:
        raise InputError(f"method={method.name!r} with lipschitz= must be auto, grid or two_layer.")
    if function and (sampled or method.samples):
        return read_opaque(target, domain, arguments(target), input_shape(target, domain, shape))
    if method.takes == ("opaque",):
        raise InputError(
            f"method={method.name!r} samples a Python function; give one, or use method='auto' for a formula."
        )
    found = _function(target, domain, shape) if function else _formulas(target, domain, shape, method)
    if isinstance(found, CircuitTarget) and "several" not in method.takes:
        raise InputError(
            f"method={method.name!r} is for functions of one variable with one output, and {found.name} is not one; "
            "use method='auto'."
        )
    return found


def _formulas(target: Any, domain: Any, shape: Any, method: Method) -> Target | CircuitTarget:
    if shape is not None:
        raise InputError("shape= is for functions and modules of tensors; a formula's variables are numbers.")
    expression = expression_of(target)
    several = len(expression.outputs) > 1 or len(expression.variables) > 1
    several = several or (isinstance(domain, Mapping) and len(domain) > 1)
    return (
        of_expression(expression, domain) if several or "one" not in method.takes else read_target(expression, domain)
    )


def _function(target: Any, domain: Any, shape: Any) -> Target | CircuitTarget:
    names = arguments(target)
    if len(names) > 1 and shape is not None:
        raise InputError(
            f"shape={shape!r:.60} is for a target of one tensor, and this one takes {', '.join(names)}; wrap it in a "
            f"function of one that returns one, such as lambda x: target({', '.join('x' for _ in names)})."
        )
    if len(names) > 1:
        return of_arguments(target, domain, names)
    found = input_shape(target, domain, shape)
    if found is None:
        try:
            return replace(read_target(target, domain), digest=source_digest(target))
        except ExpressionError as error:
            found = inferred_shape(target)
            if found is None and _gives_several(target):
                return of_arguments(target, domain, names)
            if found is None:
                raise ExpressionError(
                    f"{error} If it takes a tensor of several numbers, give shape=, such as (3,)."
                ) from None
    return of_module(target, domain, found)


def _gives_several(target: Any) -> bool:
    """Whether a callable gives several results for each number."""
    try:
        return len(expression_of(target).outputs) > 1
    except ExpressionError:
        return False
