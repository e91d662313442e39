"""A torch module or function of numbers, read as an expression by torch.export; it is traced, never sampled.

The callable runs once on a dummy float64 tensor for each variable; torch records its operations, and each is looked up
in `aten`, on one number that stands for every element. Python numbers are the exact float64 numbers that they are, and
what is computed from them stays a formula. What is not elementwise or not known is refused with its place in the
caller's source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from anchorhead.errors import DiscontinuityError, ExpressionError
from anchorhead.expression.graph import Expression, Node, constant, variable
from anchorhead.expression.tensors import evaluate
from anchorhead.tracing.aten import OPERATIONS, SAME, Comparison, meaning
from anchorhead.tracing.calling import (
    as_module,
    attempt,
    called,
    check_calls,
    definition,
    evaluation_mode,
    export,
    name_of,
)
from anchorhead.tracing.steadiness import check_agreement, points_in
from anchorhead.tracing.walk import Walk

ADVICE = "write the target as text, such as 'sin(3*x) + x**2'"
SAMPLED = f"{ADVICE}, or have it sampled: lipschitz=L, or method='grid'"
CLOSE, COARSE = 1e-9, 1e-6
SIZES = (7, 5)
"""Lengths of the dummy inputs: a target that reads them off is not a function of each element."""

CHOOSING = ("index", "index_put", "masked_fill", "masked_scatter", "masked_select")
"""Operations of torch that take a condition on their argument, y[y < 0] and y[y < 0] = 0 among them."""


def trace(function: Callable[..., Any], variables: Sequence[str] = ("x",)) -> Expression:
    """The expression that a callable of one tensor for each variable computes for each element."""
    names = (variables,) if isinstance(variables, str) else tuple(variables)
    found = []
    for size in SIZES:
        with called(function):
            inputs = tuple(torch.full((size,), 0.5, dtype=torch.float64) for _ in names)
            program = export(as_module(function), inputs, SAMPLED)
        walked = _Numbers(program, [variable(name) for name in names], definition(function)).read()
        found.append([_output(part) for _, value in walked for part in (value if isinstance(value, list) else [value])])
    with called(function):
        _check_shapes(function, len(names))
    if found[0] != found[1]:
        raise ExpressionError(f"The target depends on the shape of its input, not on each element alone; {ADVICE}.")
    return Expression(found[0], names)


def check_traced(
    function: Callable[..., Any], traced: Expression, box: Sequence[tuple[float, float]]
) -> tuple[str, ...]:
    """Refuses a trace that says something else than the callable itself, at points of the box; what must be said."""
    points = torch.tensor(points_in(box), dtype=torch.float64)
    made = evaluate(traced, dict(zip(traced.variables, points.unbind(-1), strict=True)))
    with called(function):
        found = attempt(as_module(function), *points.unbind(-1))
    if not isinstance(made, Tensor):  # stacked along the first axis, or behind it
        made = torch.stack(list(made), -1)
        found = found.mT if found is not None and found.shape == made.mT.shape else found
    check_agreement(found, made, points, COARSE)
    return evaluation_mode(function, torch.float64, *_inputs(len(traced.variables)))


def _check_shapes(function: Callable[..., Any], count: int) -> None:
    """Refuses what is no function of its input, or one that looks at how many dimensions the input has."""
    inputs, module = _inputs(count), as_module(function)
    check_calls(function, module, (inputs, [x.flip(0) for x in inputs]), CLOSE)
    row = attempt(module, *inputs)
    for shape in ((2, 3), (6, 1)):
        other = attempt(module, *(x.reshape(shape) for x in inputs))
        if row is None or other is None or other.numel() != row.numel():
            continue
        if not torch.allclose(other.reshape(row.shape), row, rtol=CLOSE, atol=CLOSE, equal_nan=True):
            raise ExpressionError(
                f"The target gives other results for numbers in a tensor of shape {shape} than for the same numbers in "
                f"a row: it depends on the shape of its input, not on each element alone; {ADVICE}, or give the shape "
                "of one input with shape=."
            )


def _inputs(count: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.rand(6, generator=draw, dtype=torch.float64) / 2 + 0.25 for _ in range(count)]


def _output(value: Any) -> Node:
    if isinstance(value, Comparison):
        raise DiscontinuityError("The target returns a comparison, which jumps; return a continuous function.")
    return value if isinstance(value, Node) else constant(value)


class _Numbers(Walk):
    """A walk whose values are nodes of an expression, and comparisons of them."""

    result = "an expression"
    advice = ADVICE

    def stored(self, tensor: Tensor) -> Node:
        if tensor.numel() != 1:
            raise ExpressionError(
                f"The target uses a tensor of shape {tuple(tensor.shape)}, and an elementwise function can use single "
                f"numbers only; {ADVICE}."
            )
        return constant(tensor.to(torch.float64).item())

    def operate(self, node: Any, given: dict[str, Any]) -> Any:
        name = name_of(node)
        if name == "stack":
            return list(given["tensors"])
        taken = [self.values[each] for each in node.all_input_nodes]
        if any(isinstance(value, list) for value in taken):
            raise ExpressionError(
                f"torch's {name} is applied to what torch.stack put together; stack what is returned, and nothing else"
            )
        if name in CHOOSING and any(isinstance(value, Comparison) for value in taken):
            raise ExpressionError(
                f"torch's {name} chooses numbers by a condition, which is read where it is written as "
                "torch.where(condition, a, b)"
            )
        if name not in OPERATIONS or given.get("dim") is not None:
            raise ExpressionError(f"torch's {name} is not an elementwise operation that is known")
        if name in SAME:
            before, after = (each.meta["val"].dtype for each in (node.args[0], node))
            if after != before and after != torch.float64:
                raise DiscontinuityError(f"a conversion to {after} rounds, so it jumps")
        numbers = {key: constant(value) for key, value in given.items() if type(value) in (int, float)}
        return meaning(name, {key: value for key, value in given.items() if value is not None} | numbers)
