"""First pass: what the user gave, as an expression on a domain that it is defined on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from flint import arb

from anchorhead.errors import ExpressionError, InputError
from anchorhead.expression.balls import jet
from anchorhead.expression.graph import Expression, Node
from anchorhead.expression.parse import parse
from anchorhead.expression.pieces import Piece, pieces, singularities
from anchorhead.expression.tails import tail
from anchorhead.expression.tensors import evaluate
from anchorhead.heads.fitting import Affine
from anchorhead.heads.head import Array

Domain = tuple[float, float] | Mapping[str, tuple[float, float]] | None


@dataclass(frozen=True)
class Target:
    """A continuous function of one variable on [low, high], either of which may be infinite."""

    expression: Expression
    low: float
    high: float

    @property
    def node(self) -> Node:
        return self.expression.outputs[0]

    @property
    def variable(self) -> str:
        return self.expression.variables[0]

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    def function(self, node: Node | None = None) -> Callable[[Array], Array]:
        """The target, or one of its pieces, on arrays."""
        whole = self.expression if node is None else Expression((node,), (self.variable,))

        def f(u: Array) -> Array:
            x = torch.as_tensor(np.asarray(u, dtype=np.float64))
            found = evaluate(whole, {self.variable: x})
            value = found[0] if isinstance(found, list | tuple) else found
            return np.asarray(value.expand_as(x), dtype=np.float64)

        return f

    @cached_property
    def pieces(self) -> list[Piece]:
        """The smooth pieces between kinks."""
        return pieces(self.node, self.variable, self.low, self.high)

    @property
    def kinks(self) -> list[float]:
        """Where pieces meet."""
        return [piece.low for piece in self.pieces[1:]]

    def asymptote(self, sign: int) -> tuple[Affine, float] | None:
        """On an infinite side: the asymptote and the rate at which it is approached; None if there is no affine one."""
        found = tail(self.node, self.variable, sign, 30.0)
        if found is None:
            return None
        slope, intercept = float(found.slope.mid()), float(found.intercept.mid())
        return Affine(intercept, slope), abs(float(found.rate.mid()))


def affine_form(node: Node, variable: str, low: float, high: float) -> Affine | None:
    """constant and gain, if the node is affine on [low, high] by its formula; None otherwise."""
    low, high = max(low, -1e6), min(high, 1e6)
    whole = jet(node, variable, arb(low).union(arb(high)), 2)
    if len(whole) < 3 or not _is_zero(whole[2]):
        return None
    place = min(max(0.0, low), high)
    at = jet(node, variable, arb(place), 1)
    gain = at[1]
    return Affine(float((at[0] - gain * arb(place)).mid()), float(gain.mid()))


def _is_zero(value: arb) -> bool:
    return bool(value == 0)


def read_target(target: Any, domain: Domain) -> Target:
    """Parses text, traces a Python function or module, and checks the domain; refuses what cannot be compiled."""
    expression = _expression(target)
    if len(expression.outputs) != 1 or len(expression.variables) > 1:
        names = ", ".join(expression.variables)
        raise ExpressionError(
            f"The target has {len(expression.outputs)} outputs in the variables {names}; functions of one variable "
            "with one output can be compiled. Fix the other variables at numbers, and give each output by itself."
        )
    if not expression.variables:
        expression = Expression(expression.outputs, ("x",))
    low, high = _read_domain(domain, expression.variables[0])
    singularities(expression.outputs[0], expression.variables[0], low, high)
    return Target(expression, low, high)


def _expression(target: Any) -> Expression:
    if isinstance(target, str):
        return parse(target)
    if isinstance(target, Expression):
        return target
    if isinstance(target, list | tuple) and all(isinstance(part, str) for part in target):
        return parse(list(target))
    if callable(target):
        from anchorhead.expression.trace import trace

        traced = trace(target)
        return parse(traced.text, traced.variables)  # what a file can say, and a checker can read
    raise ExpressionError(
        f"The target is a {type(target).__name__}; give a formula as text, such as 'sin(3*x)', or a Python function or "
        "module made of torch operations."
    )


def _read_domain(domain: Domain, variable: str) -> tuple[float, float]:
    if domain is None:
        return -math.inf, math.inf
    if isinstance(domain, Mapping):
        if set(domain) != {variable}:
            names = ", ".join(map(str, domain)) or "nothing"
            raise InputError(
                f"The domain names {names}, and the target's variable is {variable}; "
                f"write {{'{variable}': (low, high)}}."
            )
        domain = domain[variable]
    try:
        low, high = (float(end) for end in domain)
    except (TypeError, ValueError):
        raise InputError(
            f"The domain {domain!r} must be a pair (low, high), or None for the whole real line."
        ) from None
    if math.isnan(low) or math.isnan(high) or low >= high:
        raise InputError(f"The domain ({low}, {high}) must have low below high; swap them, or widen it.")
    return low, high
