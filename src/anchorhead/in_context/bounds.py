"""What a prompt may hold, declared when the network is made and checked when it is run.

x, y, w: the largest absolute entry of the examples, the labels and the iterates. Optional:
s: the largest |w·x_i|, by default features · x · w, which is what the others imply.
curvature: the largest eigenvalue of X^T X/n, by default features · x², likewise.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anchorhead.errors import InputError, OutsideRangeError, ShapeError
from anchorhead.head.parameters import check_tensor
from anchorhead.in_context.arguments import MOST, positive
from anchorhead.in_context.losses import LABELS
from anchorhead.model.compiled import fingerprint
from anchorhead.proof.certificate import Certificate

DEFAULTS = {"x": 6.0, "y": 50.0, "w": 20.0}
"""For standardised data."""
SLACK = 1e-9
"""Runs allow this much more than the declared bounds, relatively; proofs count it."""


class OutsideBoundsError(OutsideRangeError):
    """A prompt, or what the algorithm made of it, left the declared bounds."""


class ClippedWarning(UserWarning):
    """A prompt was clipped to the declared bounds."""


@dataclass(frozen=True)
class Bounds:
    """Declared bounds; see the top of this file."""

    x: float
    y: float
    w: float
    s: float
    curvature: float

    @property
    def described(self) -> str:
        return ", ".join(f"|{name}| <= {value:g}" for name, value in (("x", self.x), ("y", self.y), ("w", self.w)))


def read_bounds(bounds: Mapping[str, float] | None, features: int) -> Bounds:
    """Bounds from what the caller declares, the rest by default."""
    if bounds is not None and not isinstance(bounds, Mapping):
        raise InputError(f"bounds={bounds!r} must be a dictionary such as {DEFAULTS}.")
    given = {str(name): value for name, value in (bounds or {}).items()}
    unknown = sorted(set(given) - {"x", "y", "w", "s", "curvature"})
    if unknown:
        raise InputError(f"bounds has {', '.join(unknown)}; it takes x, y, w, and s and curvature if you know them.")
    for name, value in given.items():
        if not positive(f"bounds[{name!r}]", value) < MOST:
            raise InputError(f"bounds[{name!r}]={value:g} must be a positive finite number below {MOST:g}.")
    values = {name: float(given.get(name, default)) for name, default in DEFAULTS.items()}
    implied = {"s": features * values["x"] * values["w"], "curvature": features * values["x"] ** 2}
    return Bounds(**values, **{n: min(float(given.get(n, v)), v) for n, v in implied.items()})


def read_penalties(name: str, given: float | Sequence[float], features: int) -> tuple[float, ...]:
    """A penalty for each coordinate, from one number or one for each."""
    try:
        values = [float(given)] * features if isinstance(given, int | float) else [float(v) for v in given]
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} must be one number, or one for each of {features} features.") from error
    if len(values) != features:
        raise InputError(f"{name} has {len(values)} entries for {features} features; give one number, or one for each.")
    if not all(math.isfinite(v) and v >= 0 for v in values):
        raise InputError(f"{name}={given!r} must be finite and not negative.")
    return tuple(values)


class Claimed(nn.Module):
    """A module with a certificate: it moves between devices and keeps its numbers, since those were proved."""

    def claim(self, certificate: Certificate) -> None:
        """Remembers the numbers as those that the certificate is about; the making of a network ends so."""
        self._claimed, self._sealed = certificate, fingerprint(self)

    @property
    def certificate(self) -> Certificate:
        """What is proved of the network; `unproved` once its numbers are not those that were proved."""
        return self._claimed if fingerprint(self) == self._sealed else self._claimed.unproved()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Claimed:
        super()._apply(lambda t: t.to(fn(t).device), recurse)
        return self


def mean_weights(X: Tensor, mask: Tensor | None) -> Tensor:
    """(..., n): 1/n for every example that counts, 0 for the others: uniform attention under a mask."""
    if mask is None:
        return X.new_full(X.shape[:-1], 1 / X.shape[-2])
    count = mask.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(mask, 1 / count.to(X.dtype), X.new_zeros(()))


def check_shapes(X: Tensor, y: Tensor, features: int, examples: int, dtype: torch.dtype) -> None:
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


def check_mask(mask: Tensor | None, y: Tensor) -> None:
    """Refuses a mask that is not one, or that leaves a prompt without examples."""
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != y.shape:
        raise ShapeError(f"mask must be boolean with the shape of y, {tuple(y.shape)}, True for examples that count.")
    if not mask.any(-1).all():
        raise ShapeError("The mask leaves a prompt without examples.")


def check_labels(y: Tensor, kind: str, name: str) -> None:
    """Refuses labels outside the loss's domain."""
    right = {
        "real": lambda: torch.isfinite(y),
        "nonnegative": lambda: y >= 0,
        "zero_one": lambda: (y == 0) | (y == 1),
        "signs": lambda: y.abs() == 1,
    }[kind]()
    if not right.all():
        wrong = y[~right].flatten()[0].item()
        raise InputError(f"A label is {wrong:g}; the loss {name} takes {LABELS[kind]}.")


def within(value: Tensor, limit: float, name: str, *, clip: bool, option: str = "") -> Tensor:
    """The tensor, refused or clipped where an entry exceeds the limit, and refused where it is not finite."""
    if not torch.isfinite(value).all():
        raise InputError(f"{name} has an entry that is not finite; remove or impute it.")
    largest = value.abs().max().item() if value.numel() else 0.0
    if largest <= limit * (1 + SLACK):
        return value
    if not clip:
        raise OutsideBoundsError(
            f"An entry of {name} is {largest:.6g} in absolute value, outside the declared {limit:g}. Standardise the "
            f"data, or declare bounds={{{name.lower().rstrip('0')!r}: {largest:.3g}}}{option}."
        )
    count = int((value.abs() > limit).sum())
    warnings.warn(f"{count} entries of {name} were clipped to [-{limit:g}, {limit:g}], the declared bound.",
                  ClippedWarning, stacklevel=4)  # fmt: skip
    return value.clamp(-limit, limit)


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
    return float(eigenvalues[..., -1].max()) * (1 + SLACK + 4 * d * (n + 64) * 2.0**-53)
