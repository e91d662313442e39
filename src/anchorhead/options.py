"""Options of the commands, and how their texts are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer

from anchorhead.errors import InputError
from anchorhead.expression.domain import ends

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Domain = Annotated[
    list[str] | None,
    typer.Option(
        "--domain",
        "-d",
        help="x=LOW:HIGH, the option once for each variable, or LOW:HIGH for all. Ratios as 1/3 are allowed, and of "
        "one variable inf and -inf; left out: the whole line.",
    ),
]
Tokens = Annotated[
    list[str] | None,
    typer.Option(
        help="Of a function of a prompt: x=LOW:HIGH, the option once for each variable of a token, over which formulas "
        "may say mean, var, std, cov, attend(score, value)."
    ),
]
Query = Annotated[
    list[str] | None, typer.Option(help="With --tokens: q=LOW:HIGH, the option once for each variable of a query.")
]
Dtype = Annotated[str, typer.Option(help="float64 or float32.")]
Theorem = Annotated[
    str | None, typer.Option(help="Of the paper: single_head, multi_head, two_layer or attention_then_softmax.")
]
Metric = Annotated[str, typer.Option(help="Theorem: the distance that --lipschitz is of, euclidean or sup.")]
Columns = Annotated[str, typer.Option(help="Theorem: appended; or own, of attention_then_softmax.")]
Lipschitz = Annotated[float | None, typer.Option(help="Theorem: Lipschitz constant of f, for the last two.")]
Causal = Annotated[bool, typer.Option("--causal", help="Theorem: single_head, anchors in their own columns.")]
Plot = Annotated[
    Path | None,
    typer.Option(
        help="Draw function, error under its bound and attention, or the errors of a converted model's places, to "
        "this file, in the format that its name ends with: .png, .pdf, .svg or any other that matplotlib writes."
    ),
]
Relative = Annotated[bool, typer.Option("--relative", help="--tol is a multiple of the function's own size.")]

MethodName = Annotated[
    str,
    typer.Option(
        help="auto; of one variable gated, smooth, gamma, kinked, pieces, nearest or graph; of several graph or grid."
    ),
]
RowMapName = Annotated[
    str | None,
    typer.Option(
        "--row-map",
        help="Something else than softmax: sigmoid, relu, sparsemax or polynomial:DEGREE, for which values are solved; "
        "or fixed_point:ARGUMENT_BITS,EXP_BITS, linear_attention:DEGREE, rexp, lut_2d, entmax15, hardmax, "
        "gated_recurrence, under which the head for softmax is evaluated.",
    ),
]
LargestValue = Annotated[
    float | None,
    typer.Option(help="Of one head: no constant or gain beyond this, at the price of keys, for a softmax in few bits."),
]


INTERVAL = r"\s*[^\W\d]\w*\s*=[^=:]*:[^:]*"
"""NAME=LOW:HIGH, which no formula is."""
FOR_FORMULAS = ("domain", "dtype", "relative", "largest_value")
FOR_THEOREMS = ("low", "high", "tokens", "features", "lipschitz", "metric", "columns", "causal")


def require_planned(context: typer.Context, expression: Sequence[str] | None, theorem: str | None) -> None:
    """Refuses a plan of both or of neither, and options on the command line that what is planned does not read."""
    if bool(expression) == bool(theorem):
        raise InputError('Plan either a formula, anchorhead plan "gelu(x)", or a construction, --theorem single_head.')
    others, what = (FOR_FORMULAS, theorem) if theorem else (FOR_THEOREMS, "a formula")
    given = [name for name in others if str(context.get_parameter_source(name)).endswith("COMMANDLINE")]
    if given:
        named = ", ".join("--" + name.replace("_", "-") for name in given)
        raise InputError(f"{named} would say nothing of {what}; leave it out.")


def read_formulas(texts: list[str]) -> str | list[str]:
    """One formula, or a list of several; not an interval that followed another one without its option."""
    for text in texts:
        if re.fullmatch(INTERVAL, text):
            raise InputError(
                f"{text!r} is an interval and was read as a formula, since an option takes one value. Repeat the "
                f"option for each variable: --domain x=-1:1 --domain {text.strip()}; so with --tokens and --query."
            )
    return texts[0] if len(texts) == 1 else texts


def read_domain(parts: list[str] | None) -> dict[str, tuple[float, float]] | tuple[float, float] | None:
    """--domain x=-1:1 as {"x": (-1.0, 1.0)}, and --domain=-1:1, for all variables, as (-1.0, 1.0)."""
    if not parts:
        return None
    parts = [part.removeprefix("=") for part in parts]  # of -d=-1:1, which is --domain=-1:1
    if len(parts) == 1 and "=" not in parts[0]:
        return read_intervals([f"x={parts[0]}"])["x"]
    return read_intervals(parts)


def read_intervals(parts: list[str], option: str = "--domain") -> dict[str, tuple[float, float]]:
    """NAME=LOW:HIGH, once for each name."""
    found: dict[str, tuple[float, float]] = {}
    for part in parts:
        name, equals, interval = part.partition("=")
        if name.strip() in found:
            raise InputError(f"{option} gives {name.strip()} twice; give each variable one interval.")
        low, colon, high = interval.partition(":")
        try:
            pair = ends((_number(low), _number(high)))
        except (ValueError, ZeroDivisionError, OverflowError):
            equals = ""
        if not (equals and colon and name.strip()):
            one = ", or LOW:HIGH for all variables, as in --domain=-1:1" if option == "--domain" else ""
            raise InputError(f"{option} {part!r} must read NAME=LOW:HIGH, such as x=-1:1{one}.")
        found[name.strip()] = pair
    return found


def _number(text: str) -> float | Fraction:
    """A number, or a ratio such as 1/3, which is exact."""
    return Fraction(text) if "/" in text else float(text)


def read_dtype(name: str) -> Any:
    """The dtype by its name."""
    import torch

    if name not in ("float64", "float32"):
        raise InputError(f"--dtype {name!r} must be float64 or float32.")
    return getattr(torch, name)
