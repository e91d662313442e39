"""A target on NumPy arrays, in float64, with the same bits on every machine: what heads are fitted to.

The primitives of `primitives.py`, one after the other, each rounded once or to an ulp or two by `arithmetic.py`. For
speed and gradients, and in other dtypes, there is `tensors.py`, whose last bits are those of torch on the processor.
Where that loses digits, as 8 x sin(x/7) does at x = 1e5, whose sine has an argument that is off by 1e-12, a target of
one variable is rounded from balls (`sample_finely`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import numpy as np
from flint import arb

from anchorhead import arithmetic
from anchorhead.arithmetic import Array, pointwise
from anchorhead.enclosure.balls import Step, enclose, steps
from anchorhead.enclosure.exact import as_float
from anchorhead.enclosure.ranges import exact
from anchorhead.expression.graph import Expression

_FAST: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "mul": np.multiply,
    "neg": np.negative,
    "abs": np.abs,
    "min": np.minimum,
    "max": np.maximum,
    "exp": arithmetic.exp,
    "expm1": arithmetic.expm1,
    "log": arithmetic.log,
    "log1p": arithmetic.log1p,
    "sin": arithmetic.sin,
    "cos": arithmetic.cos,
    "sinh": arithmetic.sinh,
    "cosh": arithmetic.cosh,
    "tanh": arithmetic.tanh,
    "sigmoid": arithmetic.sigmoid,
    "softplus": arithmetic.softplus,
}
WORTH_SORTING = 1 << 10
LOOKS = 16
"""At how many places it is looked how many digits are lost."""
LOST = 2.0**-41
"""As a share of the largest value: errors of samples from which on they are rounded from balls."""


def sample(target: Expression, values: Mapping[str, Array]) -> list[Array]:
    """Every output at the values, arrays of one shape; NaN or infinite where the target is."""
    shape = np.broadcast_shapes(*(np.shape(v) for v in values.values()))
    listed, places = steps(target.outputs)
    found: list[Array] = []
    with np.errstate(all="ignore"):
        for step in listed:
            found.append(_apply(step, found, values))
    return [np.array(np.broadcast_to(found[place], shape)) for place in places]


def sample_finely(target: Expression, x: Array) -> Array:
    """The only output of a target of one variable, as `sample` has it or, where that loses digits, from balls."""
    (found,) = sample(target, {target.variables[0]: x})
    value = lambda point: enclose(target.outputs[0], {target.variables[0]: point})
    some = slice(None, None, -(-x.size // LOOKS) or 1)
    with np.errstate(all="ignore"):
        off = np.abs(_each(value, x[some]) - found[some])
        if not np.any(off > LOST * np.max(np.abs(found), initial=0.0, where=np.isfinite(found))):
            return found
        fine = _each(value, x)
    return np.where(np.isfinite(fine), fine, found)


def _apply(step: Step, found: Sequence[Array], values: Mapping[str, Array]) -> Array:
    op, args, value = step
    if op == "variable":
        return np.asarray(values[value], dtype=np.float64)
    if op == "constant":
        return np.array(as_float(value))
    if op == "power":
        return _power(found[args[0]], Fraction(value))
    if op == "pow":
        base, exponent = found[args[0]], found[args[1]]
        risen = arithmetic.exp(exponent * arithmetic.log(np.where(base > 0, base, np.nan)))
        return np.where((base == 0) & (exponent > 0), 0.0, risen)
    if op in _FAST:
        return _FAST[op](*(found[arg] for arg in args))
    return _each(getattr(arb, op), found[args[0]])


def _power(x: Array, exponent: Fraction) -> Array:
    """Whole powers by products, halves by the square root; others, of positive numbers, one by one."""
    if exponent < 0:
        return 1 / _power(x, -exponent)
    if exponent.denominator == 2:
        root = np.sqrt(x)
        return _power(root, 2 * exponent) if exponent.numerator > 1 else root
    if exponent.denominator != 1:
        return _each(lambda ball: ball ** exact(exponent), np.where(x >= 0, x, np.nan))
    result, rest, square = np.ones_like(x), exponent.numerator, x
    while rest:
        if rest & 1:
            result = result * square
        rest >>= 1
        square = square * square
    return result


def _each(f: Callable[[arb], arb], x: Array) -> Array:
    """f of every number; on a lattice most occur many times."""
    flat = np.ravel(x)
    if flat.size < WORTH_SORTING:
        return np.array(pointwise(f, flat.tolist())).reshape(np.shape(x))
    distinct, places = np.unique(flat, return_inverse=True)
    return np.array(pointwise(f, distinct.tolist()))[places].reshape(np.shape(x))
