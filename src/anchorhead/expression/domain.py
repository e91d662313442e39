"""The domain of a target in several variables, in every form in which it may be given, as one pair for each input."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Rational, Real
from typing import Any

import numpy as np

from anchorhead.errors import InputError, ShapeError
from anchorhead.expression.functions import check_names

Pair = tuple[float, float]
LARGEST = 1e100
"""Ends of a box beyond which products of two inputs are no longer floats."""


def shown(value: Any) -> str:
    """What was given, short enough for a sentence."""
    try:
        text = repr(value)
    except Exception:  # an integer of more digits than Python writes, or an object whose own repr fails
        text = f"a {type(value).__name__}"
    return text if len(text) <= 100 else text[:97] + "..."


def read_box(domain: Any, names: Sequence[str]) -> tuple[Pair, ...]:
    """A pair (low, high) for each input: from one pair for all, a mapping by name, a list of pairs, or two corners."""
    if domain is None:
        raise InputError(
            f"A target in several variables needs a bounded domain: give a box, such as {{'{names[0]}': (-1, 1), ...}}"
            ", or one interval for all inputs, such as (-1, 1)."
        )
    if isinstance(domain, Mapping):
        return _by_name(domain, names)
    corners = _corners(domain)
    if corners is not None:
        return _pairs(list(zip(*corners, strict=True)), names)
    if isinstance(domain, Sequence) and domain and all(_is_pair(part) for part in domain) and len(domain) == len(names):
        return _pairs(domain, names)
    if _is_pair(domain):
        return (_pair(domain, "every input"),) * len(names)
    raise InputError(
        f"The domain must be one interval (low, high) for all inputs, or a list of {len(names)} pairs, one for each "
        f"input, or a pair of arrays with the lowest and the highest inputs; got {shown(domain)}."
    )


def shape_of(domain: Any) -> tuple[int, ...] | None:
    """The shape of the inputs, where the domain says it: two corners, or a list of pairs."""
    if domain is None or isinstance(domain, Mapping):
        return None
    if isinstance(domain, tuple) and len(domain) == 2 and all(_is_array(part) for part in domain):
        shapes = [np.shape(part) for part in domain]
        if shapes[0] != shapes[1]:
            raise ShapeError(f"The corners of the domain have the shapes {shapes[0]} and {shapes[1]}; give them one.")
        return tuple(shapes[0]) or None
    if isinstance(domain, Sequence) and domain and not _is_pair(domain) and all(_is_pair(part) for part in domain):
        return (len(domain),)
    return None


def _corners(domain: Any) -> list[list[float]] | None:
    if shape_of(domain) is None or not _is_array(domain[0]):
        return None
    return [np.asarray(part, dtype=np.float64).reshape(-1).tolist() for part in domain]


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and np.ndim(value) > 0


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) == 2
        and all(np.ndim(end) == 0 and not isinstance(end, str) for end in value)
    )


def _by_name(domain: Mapping[str, Any], names: Sequence[str]) -> tuple[Pair, ...]:
    check_names(domain)
    missing, unknown = [n for n in names if n not in domain], [str(n) for n in domain if n not in names]
    if missing or unknown:
        said = f"has no interval for {', '.join(missing)}" if missing else f"names {', '.join(unknown)}"
        raise InputError(f"The domain {said}, and the target's variables are {', '.join(names)}; name each once.")
    return tuple(_pair(domain[name], name) for name in names)


def _pairs(pairs: Sequence[Any], names: Sequence[str]) -> tuple[Pair, ...]:
    if len(pairs) != len(names):
        raise ShapeError(
            f"The domain has {len(pairs)} intervals, and the target {len(names)} inputs; give one for each."
        )
    return tuple(_pair(pair, name) for pair, name in zip(pairs, names, strict=True))


def ends(pair: Any) -> Pair:
    """The two ends as floats; exact numbers that are none are rounded outward, so that what was asked is inside."""
    low, high = pair
    return _outward(low, -math.inf), _outward(high, math.inf)


def _outward(end: Any, towards: float) -> float:
    found = float(end)
    if not isinstance(end, Rational | Decimal) or not math.isfinite(found):
        return found
    short = Fraction(end) < found if towards < 0 else Fraction(end) > found
    return math.nextafter(found, towards) if short else found


def real(value: Any) -> float:
    """A real number, also an exact one or a tensor of one number, as a float that is not above it; NaN for another."""
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        return math.nan
    try:
        return _outward(value, -math.inf)
    except OverflowError:
        return math.inf


def whole(value: Any) -> int | None:
    """A whole number, also a tensor of one; None for another."""
    value = _plain(value)
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None


def _plain(value: Any) -> Any:
    """The number in an array or a tensor without axes; anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () else value


def _pair(pair: Any, name: str) -> Pair:
    try:
        low, high = ends(pair)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"The domain of {name}, {shown(pair)}, must be a pair (low, high) of numbers.") from None
    except OverflowError:
        raise InputError(f"The domain of {name}, {shown(pair)}, is too large for floating point; rescale it.") from None
    if math.isnan(low) or math.isnan(high):
        raise InputError(f"An end of the domain of {name}, ({low}, {high}), is not a number; give two numbers.")
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InputError(
            f"The domain of {name} is ({low}, {high}), and only one head, of one function of one variable, reaches to "
            "infinity. Give finite ends, such as (-10, 10)."
        )
    if max(abs(low), abs(high)) > LARGEST:
        raise InputError(
            f"The domain of {name} is ({low:g}, {high:g}), beyond {LARGEST:g}; rescale the variable to ordinary sizes."
        )
    if low > high:
        raise InputError(f"The domain of {name}, ({low}, {high}), must have low below high; swap them.")
    return low, high


def window(low: float, high: float, reach: float) -> tuple[float, float]:
    """The part of [low, high] to look at: all of it where it is bounded, else so far from zero or from its end."""
    if math.isfinite(low) and math.isfinite(high):
        return low, high
    if math.isfinite(low):
        return low, max(reach, low + 2 * reach)
    if math.isfinite(high):
        return min(-reach, high - 2 * reach), high
    return -reach, reach
