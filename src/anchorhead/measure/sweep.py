"""`ah.sweep`: an implementation at every input of a sixteen-bit dtype, against correctly rounded values.

There are 65,536 numbers of such a dtype, so nothing is left to samples. For each finite one the target is enclosed in a
ball, at a higher precision until both its ends round to the same number of the dtype: that is the correctly rounded
value. An error is told in units in the last place, the spacing of the dtype's numbers at the exact value v:
2^(e - bits + 1) for 2^e <= |v| < 2^(e + 1), and never less than that of subnormal numbers. A correctly rounded value
is within 1/2. Where the target is not defined (a logarithm of -1 or of 0) an implementation gives nan or an infinity;
where it overflows, an infinity; at an infinite input its limit, if that is known. What gives something else is listed.
A compiled model is swept outside its domain too, which it says as wherever it is called, and so does what was found.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from flint import arb
from torch import Tensor

from anchorhead.compiler.target import expression_of
from anchorhead.digits import Up, exactly, interval
from anchorhead.enclosure.balls import enclose
from anchorhead.enclosure.precision import above, below, precision
from anchorhead.enclosure.tails import tail
from anchorhead.errors import AnchorheadError, DtypeError, InputError, ShapeError
from anchorhead.expression.domain import shown
from anchorhead.expression.graph import Node
from anchorhead.model.compiled import CompiledModel
from anchorhead.progress import Progress, telling

PRECISIONS = (64, 128, 256, 1024)
LISTED = 8
"""So many of the worst inputs are listed."""


class Format(NamedTuple):
    """Bits of the significand, with the leading one, and the exponents of the least normal and the largest numbers."""

    bits: int
    least: int
    most: int

    def spacing(self, values: np.ndarray) -> np.ndarray:
        """The distance of neighbouring numbers at some values."""
        exponents = np.maximum(np.frexp(values)[1] - 1, self.least)
        return np.ldexp(1.0, exponents - self.bits + 1)

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """The nearest numbers, ties to even, infinite beyond the largest."""
        unit = self.spacing(values)
        with np.errstate(invalid="ignore", over="ignore"):
            near = np.where(np.isfinite(values), np.rint(values / unit) * unit, values)
        return np.where(np.abs(near) >= 2.0 ** (self.most + 1), np.copysign(np.inf, near), near)


FORMATS = {torch.bfloat16: Format(8, -126, 127), torch.float16: Format(11, -14, 15)}


class Row(NamedTuple):
    """One input: what the implementation gives, the correctly rounded value, and its error in units, if it has one."""

    input: float
    got: float
    correct: float
    error: float


@dataclass(frozen=True)
class Sweep:
    """What an implementation does at every input of a dtype; made by `sweep`.

    inputs: how many were compared in units: finite ones with a finite value. largest: the largest error in units in the
    last place, at `at`. misrounded: how many values are not the correctly rounded ones. absolute: the largest distance
    from those, at `absolute_at`. worst: the worst inputs. special: those where a special value was due, or was given
    where none was due. errors: in units, at `places`, of every input that was compared. domain: where a compiled model
    is proved; None for what is no model.
    """

    target: str
    dtype: str
    inputs: int
    largest: float
    at: float
    absolute: float
    absolute_at: float
    misrounded: int
    worst: tuple[Row, ...]
    special: tuple[Row, ...]
    errors: np.ndarray = field(repr=False, compare=False)
    places: np.ndarray = field(repr=False, compare=False)
    domain: tuple[float, float] | None = None

    @property
    def outside(self) -> int:
        """How many of the inputs that were compared are outside a model's domain."""
        low, high = self.domain or (-math.inf, math.inf)
        return int(np.sum((self.places < low) | (self.places > high)))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is not finite becomes a string."""
        rows = {name: [{k: _json(v) for k, v in row._asdict().items()} for row in getattr(self, name)]
                for name in ("worst", "special")}  # fmt: skip
        names = ("target", "dtype", "inputs", "largest", "at", "absolute", "absolute_at", "misrounded")
        ends = None if self.domain is None else [_json(end) for end in self.domain]
        return {name: getattr(self, name) for name in names} | rows | {"domain": ends, "outside": self.outside}

    def __str__(self) -> str:
        share = 100 * self.misrounded / max(1, self.inputs)
        lines = [
            f"{self.target} in {self.dtype}: at most {Up(self.largest):.4g} ulp, at x = {exactly(self.at)}; "
            f"{self.misrounded:,} of {self.inputs:,} values are not correctly rounded ({share:.3g}%), "
            f"by at most {Up(self.absolute):.3g}"
        ]
        if self.domain is not None and self.outside:
            lines.append(f"the model is proved on {interval(self.domain)}, and {self.outside:,} inputs are outside")
        lines += [f"  x = {r.input:<14g} {r.got:<14g} correct {r.correct:<14g} {r.error:.4g} ulp" for r in self.worst]
        if self.special:
            lines.append(f"{len(self.special):,} special values are wrong:")
            lines += [f"  x = {r.input:<14g} {r.got:<14g} correct {r.correct:<14g}" for r in self.special[:LISTED]]
        return "\n".join(lines)


def sweep(
    function: Callable[[Tensor], Tensor],
    target: Any,
    dtype: torch.dtype = torch.bfloat16,
    *,
    progress: bool | Progress = True,
) -> Sweep:
    """An implementation of a function at all inputs of bfloat16 or float16, against correctly rounded values.

    function: called once with a tensor of all 65,536 numbers; a compiled model runs in its own dtype, and is rounded
    once; what it does outside its domain is counted, as its `outside` allows. target: the function as a formula.
    progress: as for `ah.compile`.

    >>> found = ah.sweep(torch.nn.functional.relu, "relu(x)", torch.bfloat16)
    >>> found.inputs, found.largest, found.misrounded
    (65280, 0.0, 0)
    """
    if dtype not in FORMATS:
        raise DtypeError(f"dtype={shown(dtype)} must be torch.bfloat16 or torch.float16: others have too many numbers.")
    expression = expression_of(target)
    if len(expression.outputs) != 1 or len(expression.variables) > 1:
        raise InputError(f"A sweep is of a function of one number, and {shown(target)} is another.")
    node, variable = expression.outputs[0], (*expression.variables, "x")[0]
    inputs = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    places, got = inputs.double().numpy(), _run(function, inputs, dtype)
    with telling(f"enclosing {expression} at all numbers of {dtype}", progress) as tell:
        low, high = _enclosed(node, variable, places, FORMATS[dtype], tell)
    found = _compared(str(expression), dtype, places, got, low, high)
    return replace(found, domain=function.certificate.domain[0]) if isinstance(function, CompiledModel) else found


def _run(function: Callable[[Tensor], Tensor], inputs: Tensor, dtype: torch.dtype) -> np.ndarray:
    if not callable(function):
        raise InputError(f"The implementation is {shown(function)}; give a function of a tensor, such as torch.tanh.")
    try:
        with torch.no_grad():
            if isinstance(function, CompiledModel):
                shape = (-1, *([1] * len(function.input_shape)))
                found = function(inputs.to(function.network.dtype).reshape(shape)).reshape(-1).to(dtype)
            else:
                found = function(inputs)
    except AnchorheadError:
        raise
    except Exception as error:
        raise InputError(f"The implementation failed on a tensor of {dtype}: {error}") from error
    if not isinstance(found, Tensor) or found.shape != inputs.shape:
        what = tuple(found.shape) if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ShapeError(f"The implementation must give a tensor of the input's shape, (65536,), and gave {what}.")
    if found.dtype != dtype:
        raise DtypeError(f"The implementation gave {found.dtype} for {dtype}; end it with .to({dtype}).")
    return found.double().numpy()


def _enclosed(
    node: Node, variable: str, places: np.ndarray, kind: Format, progress: Progress
) -> tuple[np.ndarray, np.ndarray]:
    """Ends between which the target lies at each input, so near that they round alike; nan where it is not defined."""
    low, high = np.full(places.shape, np.nan), np.full(places.shape, np.nan)
    for bits in PRECISIONS:
        undecided = np.nonzero(np.isfinite(places) & (kind.rounded(low) != kind.rounded(high)))[0]
        with precision(bits):
            for count, i in enumerate(undecided):
                value = enclose(node, {variable: arb(float(places[i]))})
                if value.is_finite():
                    low[i], high[i] = _ends(value, kind)
                if count % 8192 == 8191:
                    progress(f"{count + 1:,} of {len(undecided):,} inputs")
    for sign in (-1, 1):
        here = np.nonzero(places == sign * np.inf)[0]
        low[here] = high[here] = _limit(node, variable, sign)
    return low, high


def _ends(value: arb, kind: Format) -> tuple[float, float]:
    """Floats around a ball; one of them where the ball lies on one side of the tie between two neighbours."""
    low, high = below(value), above(value)
    first, second = kind.rounded(np.array([low, high])).tolist()
    if first != second and math.isfinite(first + second):
        tie = arb(first) + (arb(second) - arb(first)) / 2
        if value > tie:
            return high, high
        if value < tie:
            return low, low
    return low, high


def _limit(node: Node, variable: str, sign: int) -> float:
    """What the target tends to at infinity; nan where that is not known."""
    with precision():
        for start in (30.0, 3e4, 3e8):
            found = tail(node, variable, sign, start)
            if found is not None:
                slope = float(found.slope)
                return math.copysign(math.inf, sign * slope) if slope else float(found.intercept)
    return math.nan


def _compared(
    name: str, dtype: torch.dtype, places: np.ndarray, got: np.ndarray, low: np.ndarray, high: np.ndarray
) -> Sweep:
    kind = FORMATS[dtype]
    correct = kind.rounded(low)
    units = np.isfinite(correct) & np.isfinite(got) & np.isfinite(places)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(got == low, 0.0, np.maximum(np.abs(got - low), np.abs(got - high)))
        limit = np.isinf(places) & (np.isnan(low) | (np.abs(got - correct) <= kind.spacing(correct)))
    undefined = np.isnan(correct) & ~np.isfinite(got)
    wrong = np.nonzero(~units & ~(got == correct) & ~undefined & ~limit)[0]
    errors, index = (apart / kind.spacing(low))[units], np.nonzero(units)[0]

    def row(i: int, error: float = math.nan) -> Row:
        return Row(float(places[i]), float(got[i]), float(correct[i]), error)

    worst = [row(int(index[i]), float(errors[i])) for i in np.argsort(-errors, kind="stable")[:LISTED]]
    first = worst[0] if worst else Row(math.nan, math.nan, math.nan, 0.0)
    with np.errstate(invalid="ignore"):
        moved = np.where(units & (got != kind.rounded(high)), np.abs(got - correct), 0.0)
    furthest = int(np.argmax(moved))
    return Sweep(name, str(dtype).removeprefix("torch."), len(index), first.error, first.input, float(moved[furthest]),
                 float(places[furthest]), int((moved > 0).sum()), tuple(worst),
                 tuple(row(int(i)) for i in wrong), errors, places[units])  # fmt: skip


def _json(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
