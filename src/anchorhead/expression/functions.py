"""The functions an expression may name: how many arguments, which parameters, and which names are refused and why.

Names, parameters and defaults of activations are those of torch.nn.functional. A parameter is a number, not an
expression, and is stored as a constant argument after the function's own arguments, so every evaluation sees it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from anchorhead.errors import ExpressionError

SELU_ALPHA = Fraction("1.6732632423543772848170429916717")
SELU_SCALE = Fraction("1.0507009873554804934193349852946")
GELU_CUBIC = Fraction("0.044715")


@dataclass(frozen=True)
class Parameter:
    """A number that a function takes after its arguments; `default` is None where torch has none."""

    name: str
    default: Fraction | None


@dataclass(frozen=True)
class Function:
    """`least` to `most` arguments (`most` None: any number), then the parameters, which must satisfy `rule`."""

    least: int = 1
    most: int | None = 1
    parameters: tuple[Parameter, ...] = ()
    rule: Callable[..., bool] | None = None
    rule_text: str = ""


def _one(name: str, default: str | None) -> tuple[Parameter, ...]:
    return (Parameter(name, None if default is None else Fraction(default)),)


_PLAIN = """exp expm1 exp2 log log1p log2 log10 sqrt rsqrt square reciprocal sin cos tan asin acos atan sinh cosh tanh
asinh acosh atanh erf erfc abs relu relu6 selu gelu gelu_tanh silu mish softsign logsigmoid sigmoid hardsigmoid
hardswish tanhshrink""".split()

FUNCTIONS: dict[str, Function] = {name: Function() for name in _PLAIN} | {
    "min": Function(2, None),
    "max": Function(2, None),
    "clip": Function(3, 3),
    "pow": Function(2, 2),
    "leaky_relu": Function(parameters=_one("negative_slope", "0.01")),
    "prelu": Function(parameters=_one("weight", None)),
    "rrelu": Function(
        parameters=(Parameter("lower", Fraction(1, 8)), Parameter("upper", Fraction(1, 3))),
        rule=lambda lower, upper: bool(lower <= upper),
        rule_text="lower must not exceed upper",
    ),
    "elu": Function(parameters=_one("alpha", "1")),
    "celu": Function(parameters=_one("alpha", "1"), rule=lambda a: bool(a != 0), rule_text="alpha must not be 0"),
    "softplus": Function(parameters=_one("beta", "1"), rule=lambda b: bool(b > 0), rule_text="beta must be positive"),
    "softshrink": Function(
        parameters=_one("lambd", "0.5"), rule=lambda a: bool(a >= 0), rule_text="lambd must not be negative"
    ),
    "hardtanh": Function(
        parameters=(Parameter("min_val", Fraction(-1)), Parameter("max_val", Fraction(1))),
        rule=lambda low, high: bool(low < high),
        rule_text="min_val must be below max_val",
    ),
}

ALIASES = {
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
    "ln": "log",
    "absolute": "abs",
    "minimum": "min",
    "maximum": "max",
    "clamp": "clip",
    "power": "pow",
    "swish": "silu",
    "expit": "sigmoid",
}

CONSTANTS = {"pi": "3.14159...", "e": "2.71828..."}

POOLS = {"mean": 1, "var": 1, "std": 1, "cov": 2, "attend": 2}
"""What formulas of a prompt say of all its tokens, with the number of arguments: mean, variance, standard deviation
and covariance with equal weights 1/n, and attend(score, value), the mean with weights softmax(score)."""

_ROUNDS = "it is constant between jumps"

DISCONTINUOUS = {
    "hardshrink": "it jumps at -lambd and lambd (softshrink is its continuous relative)",
    "threshold": "it jumps at the threshold (relu, or max(x, value), is its continuous relative)",
    "sign": "it jumps at 0 (tanh(k*x) or clip(k*x, -1, 1) with a large k is a continuous relative)",
    "sgn": "it jumps at 0 (tanh(k*x) or clip(k*x, -1, 1) with a large k is a continuous relative)",
    "heaviside": "it jumps at 0 (sigmoid(k*x) or clip(k*x, 0, 1) with a large k is a continuous relative)",
    "step": "it jumps at 0 (sigmoid(k*x) or clip(k*x, 0, 1) with a large k is a continuous relative)",
    "floor": _ROUNDS,
    "ceil": _ROUNDS,
    "round": _ROUNDS,
    "trunc": _ROUNDS,
    "fix": _ROUNDS,
    "int": _ROUNDS,
    "frac": "it jumps at every integer",
    "fmod": "it jumps at multiples of the divisor",
    "remainder": "it jumps at multiples of the divisor",
    "mod": "it jumps at multiples of the divisor",
    "where": "it may jump where its condition changes (min, max, abs, clip and relu are continuous choices)",
}


def canonical(name: str) -> str:
    return ALIASES.get(name, name)


def check_names(names: Iterable[Any], words: Collection[str] = ()) -> None:
    """Refuses names that variables cannot have: those that formulas read as something else, `words` among them."""
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", name):
            raise ExpressionError(f"{name!r:.60} cannot name a variable; use letters, digits and underscores.")
        if name in CONSTANTS:
            raise ExpressionError(f"{name} is a number in every formula, {CONSTANTS[name]}; rename the variable.")
        if name.startswith("__") or name.lower() in ("nan", "inf", "infinity"):
            raise ExpressionError(f"{name} cannot name a variable; rename it.")
        if name in FUNCTIONS or name in ALIASES or name in DISCONTINUOUS or name in words:
            raise ExpressionError(f"The name {name} already means something in an expression; rename the variable.")
