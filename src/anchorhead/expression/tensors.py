"""A target in torch: batched, differentiable, in the dtype and on the device of the tensors that are given.

Activations are torch.nn.functional's own. The one exception is softplus, where torch switches to x at 20 and so jumps
by 2e-9; the switch is moved to 50, where it is below the rounding of float64. Constants become 0-dimensional tensors
of the inputs' dtype, rounded once from their exact value.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorhead.errors import ExpressionError
from anchorhead.expression.functions import FUNCTIONS
from anchorhead.expression.graph import Expression, Node, number_of, ordered, rational

_NAMES = ["neg", *(name for name, function in FUNCTIONS.items() if function.most == 1 and name != "gelu_tanh")]
_UNARY: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(F, name, None) or getattr(torch, name) for name in _NAMES},
    "gelu_tanh": lambda u: F.gelu(u, approximate="tanh"),
    "prelu": F.leaky_relu,
    "rrelu": lambda u, lower, upper: F.leaky_relu(u, (lower + upper) / 2),
    "softplus": lambda u, beta=1.0: F.softplus(u, beta, 50.0),
}

_SEVERAL: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "clip": lambda u, low, high: torch.minimum(torch.maximum(u, low), high),
    "min": lambda *parts: reduce(torch.minimum, parts),
    "max": lambda *parts: reduce(torch.maximum, parts),
}


def evaluate(target: Expression | Node, values: Mapping[str, Tensor]) -> Any:
    """The target at the tensors, which broadcast against each other; a list when there are several outputs."""
    outputs = (target,) if isinstance(target, Node) else target.outputs
    like = _common(values)
    results: dict[Node, Tensor] = {}
    parts = ordered(outputs)
    uses = Counter(arg for part in parts for arg in part.args) + Counter(outputs)
    for node in parts:
        results[node] = _apply(node, results, values, like)
        for arg in node.args:
            uses[arg] -= 1
            if not uses[arg]:
                del results[arg]  # a formula of a thousand operations holds a few of them at a time
    shape = torch.broadcast_shapes(*(value.shape for value in values.values()))
    finished = [results[node] if results[node].shape == shape else results[node].expand(shape) for node in outputs]
    return finished[0] if len(finished) == 1 else finished


def _common(values: Mapping[str, Tensor]) -> Tensor:
    if not values:
        raise ExpressionError("An expression was evaluated without tensors; give one for each variable.")
    tensors = list(values.values())
    like = tensors[0]
    if not like.is_floating_point():
        raise ExpressionError(f"An expression evaluates on floating point tensors, and {like.dtype} was given.")
    for other in tensors[1:]:
        if other.dtype != like.dtype or other.device != like.device:
            raise ExpressionError(
                f"The variables have different types ({like.dtype} on {like.device} and {other.dtype} on "
                f"{other.device}); give all of them the same dtype and device."
            )
    return like


def _apply(node: Node, results: Mapping[Node, Tensor], values: Mapping[str, Tensor], like: Tensor) -> Tensor:
    if node.op == "variable":
        name = str(node.value)
        if name not in values:
            raise ExpressionError(f"The expression uses {name}, and no tensor was given for it; give one.")
        return values[name]
    if not node.args:
        return torch.tensor(_number(node), dtype=like.dtype, device=like.device)
    args = [results[arg] for arg in node.args]
    if node.op in ("power", "pow"):
        exponent = number_of(node) if node.op == "power" else rational(node.args[1])
        return torch.pow(*args) if exponent is None else _power(args[0], exponent)
    if node.op in _UNARY:
        return _UNARY[node.op](args[0], *(_number(arg) for arg in node.args[1:]))
    return _SEVERAL[node.op](*args)


def _power(base: Tensor, exponent: Fraction) -> Tensor:
    """A rational exponent is given to torch as a number, which is valid for negative x when it is an integer."""
    whole = exponent.denominator == 1 and abs(exponent) < 2**31
    return torch.pow(base, int(exponent) if whole else _as_float(exponent))


def _number(node: Node) -> float:
    if node.op == "constant":
        return _as_float(number_of(node))
    return math.pi if node.op == "pi" else math.e


def _as_float(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
