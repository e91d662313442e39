"""What the user gave in several variables, as a circuit on a box: formulas, Python functions, torch modules."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.doubling import Angle
from anchorhead.circuit.lower import lower
from anchorhead.circuit.program import MOST_INPUTS
from anchorhead.compiler.target import Target
from anchorhead.errors import ExpressionError, InputError, ShapeError
from anchorhead.expression.domain import Pair, read_box, shape_of
from anchorhead.expression.graph import Expression
from anchorhead.expression.parse import parse
from anchorhead.model.layered import exact_wires
from anchorhead.tracing.steadiness import check_agreement, points_in


@dataclass(frozen=True)
class CircuitTarget:
    """A target on a box. `circuit(fuse)` makes its circuit; `expression` is None for a traced tensor function."""

    name: str
    box: tuple[Pair, ...]
    circuit: Callable[[bool], Circuit]
    expression: Expression | None
    assumptions: tuple[str, ...] = ()
    digest: str = ""
    """Of a module's parameters."""

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the inputs, in order, where they have any of their own."""
        return () if self.expression is None else self.expression.variables

    def source(self, *, fused: bool, angles: Sequence[Angle] = ()) -> dict[str, Any]:
        """What a file says about where the circuit comes from."""
        if self.expression is None:
            return {"name": self.name.partition(" (")[0][:200]}
        return {"expressions": self.expression.text, "variables": list(self.expression.variables), "fused": fused,
                **({"doubled": [list(angle) for angle in angles]} if angles else {})}  # fmt: skip


def elementwise(target: Target) -> CircuitTarget:
    """A function of one variable as a circuit that takes every number of a tensor by itself, as one head does."""
    found = of_expression(target.expression, [(target.low, target.high)])
    circuit = lambda fuse: replace(found.circuit(fuse), input_shape=(), output_shape=())
    return replace(found, circuit=circuit, digest=target.digest, assumptions=target.assumptions)


def of_expression(expression: Expression, domain: Any, *, ordered: bool = False) -> CircuitTarget:
    """Formulas; unless `ordered`, their variables are in the order of the domain, where that names them."""
    names = expression.variables
    if (
        not ordered
        and isinstance(domain, Mapping)
        and set(domain) >= set(names)
        and all(isinstance(n, str) for n in domain)
    ):
        expression = Expression(expression.outputs, tuple(domain))
        names = expression.variables
    if not names:
        raise ExpressionError(f"{expression} has no variable; a constant needs no network.")
    box = read_box(domain, names)
    return CircuitTarget(str(expression), box, lambda fuse: lower(expression, fuse=fuse), expression)


def of_module(function: Callable[..., Any], domain: Any, shape: tuple[int, ...]) -> CircuitTarget:
    """A function of one tensor of a shape, traced."""
    from anchorhead.tracing.module import TensorFunction

    if math.prod(shape) > MOST_INPUTS:
        raise ShapeError(f"An input of that shape holds more numbers than the {MOST_INPUTS:,} that a model may take.")
    called = TensorFunction(function, shape)
    width = inferred_shape(function)
    if not called.runs and width is not None and len(shape) == 1 and width != shape:
        raise ShapeError(
            f"The module takes {width[0]} inputs, and the domain or shape= says {shape[0]}; give one for each."
        )
    circuit = cache(called.circuit)
    first = circuit(True)
    sizes = " x ".join(map(str, shape)), " x ".join(map(str, first.output_shape)) or "1"
    name = f"{name_of(function)} ({sizes[0]} -> {sizes[1]})"
    box = read_box(domain, first.inputs)
    points = torch.tensor(points_in(box), dtype=torch.float64).reshape(-1, *shape)
    found, close = called.values(points)
    check_agreement(found, exact_wires(first, points)[1], points, close)
    return CircuitTarget(name, box, circuit, None, called.assumptions(), source_digest(function))


def source_digest(function: Callable[..., Any]) -> str:
    """SHA-256 over the parameters and buffers of a module, by name; empty for what has none."""
    if not isinstance(function, nn.Module):
        return ""
    total = hashlib.sha256()
    for name, value in sorted(function.state_dict().items()):
        if isinstance(value, Tensor):
            plain = value.detach().cpu().contiguous().flatten().view(torch.uint8)
            total.update(f"{name} {value.dtype} {tuple(value.shape)}".encode() + b"\0" + plain.numpy().tobytes())
    return total.hexdigest()


def input_shape(function: Callable[..., Any], domain: Any, shape: Any) -> tuple[int, ...] | None:
    """The shape of one input of a callable, where it is given, in the domain, or can be read off a module."""
    if shape is not None:
        sizes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        if not sizes or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in sizes):
            raise InputError(f"shape={shape!r} must be the shape of one input, such as (64,) or (20, 5).")
        return sizes
    return shape_of(domain)


def inferred_shape(function: Callable[..., Any]) -> tuple[int, ...] | None:
    """The features that a module takes, if its layers say so."""
    if not isinstance(function, nn.Module):
        return None
    from anchorhead.tracing.module import infer_width

    width = infer_width(function)
    return None if width is None else (width,)


def arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a callable's arguments that must be given; of a module, those of its forward."""
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        found = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return ("x",)
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in found if p.kind in plain and p.default is inspect.Parameter.empty) or ("x",)


def of_arguments(function: Callable[..., Any], domain: Any, names: tuple[str, ...]) -> CircuitTarget:
    """A function of several numbers, f(x, y), traced for each element."""
    from anchorhead.tracing.function import check_traced, trace

    traced = trace(function, names)
    read = of_expression(parse(traced.text, traced.variables), domain, ordered=True)
    return replace(read, assumptions=check_traced(function, traced, read.box))


def name_of(function: Callable[..., Any]) -> str:
    """What a callable is called."""
    if isinstance(function, nn.Module):
        return type(function).__name__
    return getattr(function, "__name__", type(function).__name__)
