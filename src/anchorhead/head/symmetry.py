"""Heads of symmetric functions, made exactly symmetric.

If f(u) = f(-u) + tilt·u (gelu, softplus, silu, every even function) or f(u) = shift - f(-u) (sigmoid, every odd
function), then so may its head be: key -k mirrors key k, with constant_{-k} = constant_k and gain_{-k} = tilt - gain_k,
or the reverse. A fit finds this up to its own accuracy; here it is made exact, in numbers of the dtype, by
averaging and by rounding gains (or constants) to a grid on which the subtraction is exact. The fast evaluation then
needs one polynomial for both signs of u.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from anchorhead.arithmetic import Array, binary_ceiling
from anchorhead.head.head import Head
from anchorhead.head.solve import Function


def symmetric(head: Head, f: Function, reach: float, bits: int) -> Head | None:
    """The head with its symmetry exact for numbers of that many bits; None if f or its keys have none."""
    if not head.horner or head.keys < 2 or head.intercepts != head.intercepts[::-1]:
        return None
    u = np.linspace(0.01, 1.0, 53) * min(reach, 8.0)
    up, down = f(u), f(-u)
    size = 1e-13 * (1 + np.abs(up).max() + np.abs(down).max())
    tilt = float((up[-1] - down[-1]) / u[-1])
    old = head.arrays
    plain = not old["gains"].any()  # constant values stay constant: a product carries its partner in them
    if np.abs(up - down - round(tilt, 12) * u).max() < size and not (plain and round(tilt, 12)):
        gains = _mirrored(old["gains"], round(tilt, 12), bits)
        if gains is not None:
            return replace(head, constants=_means(old["constants"]), gains=tuple(gains.tolist()))
    shift = float(up[-1] + down[-1])
    if np.abs(up + down - round(shift, 12)).max() < size:
        constants = _mirrored(old["constants"], round(shift, 12), bits)
        if constants is not None:
            return replace(head, gains=_means(old["gains"]), constants=tuple(constants.tolist()))
    return None


def _means(numbers: Array) -> tuple[float, ...]:
    """The means of what mirrors each other."""
    return tuple(((numbers + numbers[::-1]) / 2).tolist())


def _mirrored(numbers: Array, total: float, bits: int) -> Array | None:
    """The nearest numbers with numbers[-1 - k] = total - numbers[k], exactly; None if `total` is off their grid."""
    top = max(float(np.abs(numbers).max()), abs(total))
    if top == 0:
        return numbers.copy()
    grid = math.ldexp(binary_ceiling(top), -bits)
    if grid == 0 or total != round(total / grid) * grid:
        return None
    halves = np.round((numbers + (total - numbers[::-1])) / 2 / grid) * grid
    first = len(numbers) // 2
    out = halves.copy()
    out[len(numbers) - first :] = total - halves[:first][::-1]
    if len(numbers) % 2:
        out[first] = total / 2
    return out
