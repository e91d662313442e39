"""What networks are made with, and what a prompt may hold: declared when one is made, checked when it is run.

x, y, w: the largest absolute entry of the examples, the labels and the iterates. Optional:
s: the largest |w·x_i|, by default features · x · w, which is what the others imply.
curvature: the largest eigenvalue of X^T X/n, by default features · x², likewise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorhead.digits import Down, Up
from anchorhead.errors import InputError, OutsideRangeError, ShapeError
from anchorhead.head.parameters import check_tensor
from anchorhead.model.outside import behind_transforms
from anchorhead.warned import warn_caller

DTYPES = {torch.float64: "float64", torch.float32: "float32"}
MOST = 1e60
"""Bounds are smaller than this."""
MANY = {"examples": 10**12}
"""The largest counts; a million of what has no entry."""
DEFAULTS = {"x": 6.0, "y": 50.0, "w": 20.0}
"""For standardised data."""
SLACK = 1e-9
"""Runs allow this much more than the declared bounds, relatively; proofs count it."""


class OutsideBoundsError(OutsideRangeError):
    """A prompt, or what the algorithm made of it, left the declared bounds.

    >>> descent = ah.in_context.gradient_descent("squared", features=1, examples=2, steps=5, learning_rate=0.5)
    >>> descent(torch.full((2, 1), 7.0, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    Traceback (most recent call last):
        ...
    anchorhead.in_context.bounds.OutsideBoundsError: ...
    """


class ClippedWarning(UserWarning):
    """A prompt was clipped to the declared bounds.

    >>> import warnings
    >>> arguments = {"features": 1, "examples": 2, "steps": 5, "learning_rate": 0.02, "outside": "clip"}
    >>> descent = ah.in_context.gradient_descent("squared", **arguments)
    >>> with warnings.catch_warnings(record=True) as said:
    ...     _ = descent(torch.full((2, 1), 7.0, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    >>> said[0].category.__name__
    'ClippedWarning'
    """


@dataclass(frozen=True)
class Bounds:
    """What a prompt may hold: the largest absolute entry of the examples x, the labels y and the iterates w.

    s: the largest |w·x_i|. curvature: the largest eigenvalue of X^T X/n. Both follow from the others unless declared.

    >>> descent = ah.in_context.gradient_descent("squared", features=2, examples=4, steps=5, learning_rate=0.5)
    >>> descent.bounds.x, descent.bounds.y, descent.bounds.w
    (6.0, 50.0, 20.0)
    """

    x: float
    y: float
    w: float
    s: float
    curvature: float

    @property
    def described(self) -> str:
        """For messages."""
        return ", ".join(f"|{name}| <= {value:g}" for name, value in (("x", self.x), ("y", self.y), ("w", self.w)))


def counts(**given: Any) -> list[int]:
    """Positive integers, in the order given."""
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise InputError(f"{name}={value!r} must be a positive integer.")
        if int(value) > MANY.get(name, 10**6):
            raise InputError(f"{name} must be at most {MANY.get(name, 10**6):,}.")
    return [int(value) for value in given.values()]


def is_number(value: Any) -> bool:
    """Whether it is a real number that a float can hold; True and False are none."""
    known = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    try:
        return known and math.isfinite(value)
    except OverflowError:
        return False


def positive(name: str, value: Any) -> float:
    """A positive finite number."""
    if not (is_number(value) and value > 0):
        raise InputError(f"{name}={_shown(value)} must be a positive finite number.")
    return float(value)


def _shown(value: Any) -> str:
    """An argument for a message; a very long one is cut."""
    if isinstance(value, int) and value.bit_length() > 200:
        return "a whole number too large for a float"
    text = repr(value)
    return text if len(text) < 80 else f"{text[:76]}..."


def read_sizes(bounds: Any, defaults: Mapping[str, float], known: Sequence[str] = ()) -> dict[str, float]:
    """Bounds by name: the declared ones and the rest by default; those `known` to the caller only where declared."""
    if bounds is not None and not isinstance(bounds, Mapping):
        raise InputError(f"bounds={_shown(bounds)} must be a dictionary such as {dict(defaults)}.")
    given = {str(name): value for name, value in (bounds or {}).items()}
    unknown = sorted(set(given) - {*defaults, *known})
    if unknown:
        *names, last = defaults
        more = f", and {' and '.join(known)} if you know them" if known else ""
        raise InputError(f"bounds has {', '.join(unknown)}; it takes {', '.join(names)} and {last}{more}.")
    for name, value in given.items():
        if not positive(f"bounds[{name!r}]", value) < MOST:
            raise InputError(f"bounds[{name!r}]={value:g} must be a positive finite number below {MOST:g}.")
    return {name: float(value) for name, value in {**defaults, **given}.items()}


def dtype_name(dtype: Any) -> str:
    """float64 or float32."""
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
        raise InputError(f"dtype={dtype!r} must be a dtype of torch: torch.float64 or torch.float32.")
    return DTYPES[dtype]


def read_bounds(bounds: Mapping[str, float] | None, features: int) -> Bounds:
    """Bounds from what the caller declares, the rest by default."""
    given = read_sizes(bounds, DEFAULTS, ("s", "curvature"))
    implied = {"s": features * given["x"] * given["w"], "curvature": features * given["x"] ** 2}
    return Bounds(**given | {name: min(given.get(name, value), value) for name, value in implied.items()})


def read_penalties(name: str, given: float | Sequence[float], features: int) -> tuple[float, ...]:
    """A penalty for each coordinate, from one number or one for each."""
    try:
        values = [float(given)] * features if isinstance(given, int | float) else [float(v) for v in given]
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} must be one number, or one for each of {features} features.") from error
    if len(values) != features:
        raise InputError(f"{name} has {len(values)} entries for {features} features; give one number, or one for each.")
    if isinstance(given, bool) or not all(math.isfinite(v) and v >= 0 for v in values):
        raise InputError(f"{name}={given!r} must be finite and not negative.")
    return tuple(values)


def mean_weights(X: Tensor, mask: Tensor | None) -> Tensor:
    """(..., n): 1/n for every example that counts, 0 for the others: uniform attention under a mask. Or the shares."""
    if mask is None:
        return X.new_full(X.shape[:-1], 1 / X.shape[-2])
    if mask.is_floating_point():
        return mask.to(X.dtype)
    count = mask.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(mask, 1 / count.to(X.dtype), X.new_zeros(()))


def largest(value: Tensor) -> float:
    """The largest absolute entry; not a number where one is not."""
    return behind_transforms(lambda v: float(v.abs().amax()), value) or 0.0 if value.numel() else 0.0


def check_examples(X: Tensor, y: Tensor, features: int, examples: int, dtype: torch.dtype) -> None:
    """Refuses prompts of another shape or type."""
    for name, value in (("X", X), ("y", y)):
        check_tensor(value, dtype, name=name, what="network")
    if X.ndim < 2 or X.shape[-1] != features:
        raise ShapeError(f"X must be (..., examples, {features}), and is {tuple(X.shape)}.")
    if not X.numel():
        raise ShapeError(f"X has no entries, {tuple(X.shape)}; give at least one prompt.")
    if y.shape != X.shape[:-1]:
        raise ShapeError(
            f"y must have the shape of X without features, {tuple(X.shape[:-1])}, and is {tuple(y.shape)}."
        )
    if not 1 <= X.shape[-2] <= examples:
        raise ShapeError(
            f"The prompt has {X.shape[-2]} examples and the network takes 1 to {examples}; make it with examples="
            f"{max(X.shape[-2], 1)}."
        )


def each_prompt(value: Any, shape: tuple[int, ...], X: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """What X has one of for each prompt, (..., *shape), from one for each or one for all."""
    check_tensor(value, dtype, name=name, what="network")
    whole = (*X.shape[:-2], *shape)
    sizes = zip(value.shape[::-1], whole[::-1], strict=False)
    fits = value.ndim >= len(shape) and tuple(value.shape[value.ndim - len(shape) :]) == shape
    if not fits or value.ndim > len(whole) or any(own not in (1, size) for own, size in sizes):
        raise ShapeError(
            f"{name} must be {whole}, one for each prompt, or {shape} for all; it is {tuple(value.shape)}."
        )
    return value.expand(whole)


def masked(X: Tensor, y: Tensor, mask: Tensor | None, neutral: float = 0.0) -> tuple[Tensor, Tensor]:
    """Examples that do not count as zeros with a neutral label; refuses a mask that is not one, or leaves nothing."""
    if mask is None:
        return X, y
    if isinstance(mask, Tensor) and mask.dtype == torch.float64 and mask.shape == X.shape[:-1]:
        if behind_transforms(lambda m: not ((m >= 0).all() and (m.sum(-1) <= 1).all() and m.any(-1).all()), mask):
            raise InputError("Shares of examples must not be negative, and be at most 1 in all, but not all zero.")
        return X, y
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != y.shape:
        raise ShapeError(f"mask must be boolean with the shape of y, {tuple(y.shape)}, True for examples that count.")
    if behind_transforms(lambda m: not m.any(-1).all(), mask):
        raise ShapeError("The mask leaves a prompt without examples.")
    return torch.where(mask.unsqueeze(-1), X, 0.0), torch.where(mask, y, neutral)


def within(value: Tensor, limit: float, name: str, *, clip: bool = False, option: str = "") -> Tensor:
    """The tensor, refused or clipped where an entry exceeds the limit, and refused where it is not finite."""
    most = largest(value)
    if not math.isfinite(most):
        raise InputError(f"{name} has an entry that is not finite; remove or impute it.")
    if most <= limit * (1 + SLACK):
        return value
    if not clip:
        raise OutsideBoundsError(
            f"An entry of {name} is {most:.6g} in absolute value, outside the declared {limit:g}. Standardise the "
            f"data, or declare bounds={{{name.lower().rstrip('0')!r}: {Up(most):.3g}}}{option}."
        )
    count = behind_transforms(lambda v: int((v.abs() > limit).sum()), value)
    warn_caller(f"{count} entries of {name} were clipped to [-{limit:g}, {limit:g}], the declared bound.",
                ClippedWarning)  # fmt: skip
    return value.clamp(-limit, limit)


def check_curvature(X: Tensor, mask: Tensor | None, bounds: Bounds, whose: str, advice: str) -> None:
    """Refuses a prompt that is more curved than the bounds allow; nothing to do if none is."""
    if bounds.curvature >= X.shape[-1] * bounds.x**2:
        return
    weights = mean_weights(X, mask)
    trace = largest((X.double().square().sum(-1) * weights.double()).sum(-1))
    if trace * (1 + 1e-6) <= bounds.curvature:  # weights are rounded in float32, and sums in float64
        return
    found = largest_curvature(X, weights)
    if not found <= bounds.curvature:
        raise OutsideBoundsError(
            f"The largest eigenvalue of X^T X/n is {found:.4g}, {found / bounds.curvature:.3g} times what {whose} "
            f"allows, {Down(bounds.curvature):.4g}. {advice}, or standardise the data."
        )


def largest_curvature(X: Tensor, weights: Tensor) -> float:
    """An upper bound of the largest eigenvalue of the mean of x_i x_i^T, over all prompts of a batch.

    In float64. A sum of n products errs by γ_(n + 4) of the sum of its absolute values, so the matrix by that times its
    trace, d times its norm at most; the eigenvalue routine by a multiple of d·ρ of the norm, for which 64 d is ample.
    """
    X, weights = X.double(), weights.double()
    weights = weights / weights.sum(-1, keepdim=True)  # 1/n rounded to float32 is another number
    n, d = X.shape[-2:]
    moments = X.mT @ (X * weights.unsqueeze(-1))
    eigenvalues = torch.linalg.eigvalsh(moments.detach())
    return largest(eigenvalues[..., -1]) * (1 + SLACK + 4 * d * (n + 64) * 2.0**-53)
