"""The heads inside an algorithm: each looks at a number u that the algorithm has, and its values carry what phi(u) is
multiplied with, so that softmax blends them to phi(u)·v.

*Products u·v*. The head for u on [-R, R] is R·h(u/R) with h one on [-1, 1], which is searched and proved once. R is a
power of two, so the scaling is exact, and the error, rounding included, is R times that of h. h is proved a little
beyond [-1, 1], since runs allow a billionth more than the declared bounds (`bounds.SLACK`).

*Labels*. Products y·x of a label and its example, which some losses need, are a head over y whose values carry x.
Labels of two kinds are told apart by two keys at a β at which softmax is exact to exp(-80); any others are multiplied
by the smooth head for y itself.

*Soft thresholding*, the proximal step of an l1 penalty, is v - t·clip(v/t, -1, 1), by a three-key head for clip on R.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from flint import arb
from torch import Tensor, nn

from anchorhead.arithmetic import binary_ceiling
from anchorhead.circuit.apply import U
from anchorhead.compiler.compile import compile
from anchorhead.compiler.constant_values import carrying_model
from anchorhead.enclosure.precision import precision, upper
from anchorhead.errors import InputError
from anchorhead.head.grid_module import GridModule
from anchorhead.head.head import Head
from anchorhead.head.module import HeadModule
from anchorhead.head.parameters import constant
from anchorhead.proof.certificate import Certificate
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.proof.rounding import Rounding

RELATIVE = 1e-13
"""The approximation asked for, in units of the function's largest value."""
BEYOND = 1 + 2.0**-26
"""The end of the interval on which h is proved."""
MOST = 2.0**450
"""The largest R: its scores and values are far from overflow and underflow."""
STEEP = 80.0
PAIRS = {"zero_one": (0.0, 1.0), "signs": (-1.0, 1.0)}
CLIP_ERROR = 1e-11
"""Of clip, so that a coordinate errs by this times its threshold."""


class Keys(NamedTuple):
    """The keys of a head: score k is the sum of slopes_jk u_j over its arguments, and level_k; its value is constant_k
    times what it carries, or constant_k + gain_k u. slopes is (arguments, keys), the others (keys,); constants of a
    head that carries nothing may be vectors, (keys, c)."""

    slopes: Tensor
    levels: Tensor
    constants: Tensor
    gains: Tensor | None = None

    def width(self, v: Tensor | None) -> int:
        """c: how many numbers the head gives."""
        return v.shape[-1] if v is not None else 1 if self.constants.ndim == 1 else self.constants.shape[1]

    def values(self, u: Any, v: Tensor | None) -> Tensor:
        """The value of every key, (..., keys, c), where v (..., c) is carried, or nothing."""
        if self.constants.ndim == 2:
            return self.constants
        if v is not None:
            return v.unsqueeze(-2) * self.constants.unsqueeze(-1)
        tilted = self.constants if self.gains is None else u.unsqueeze(-1) * self.gains + self.constants
        return tilted.unsqueeze(-1)


class InnerHead(nn.Module):
    """phi(u), (...) to (...), in float64 inside; `error` bounds |output - phi(u)| before the last cast, for |u| up to
    `reach`."""

    tilted = False
    """Whether values have gains."""

    def __init__(self, head: HeadModule | GridModule, error: float, reach: float) -> None:
        super().__init__()
        self.head, self.error, self.reach = head, error, reach

    def arguments(self, *at: Any) -> list[Any]:
        """What the keys look at."""
        return list(at)

    def forward(self, *at: Tensor) -> Tensor:
        (u,) = self.arguments(*(v.double() for v in at))
        found: Tensor = self.head(u)
        return found.to(at[0].dtype)

    def exact(self, *at: Tensor) -> Tensor:
        """phi itself, here u."""
        return at[0]

    def read_keys(self) -> Keys:
        """The keys' numbers as they are now."""
        if isinstance(self.head, GridModule):
            grid = self.head.literal()
            return Keys(grid.slopes.detach(), grid.intercepts.detach(), grid.values.detach().squeeze(-1))
        numbers, piece = self.head, self.head.piece
        slopes, levels = numbers.slopes + numbers.gate_slopes[piece], numbers.intercepts + numbers.gate_levels[piece]
        gains = numbers.gains.detach() if self.tilted else None
        return Keys(slopes.detach().unsqueeze(0), levels.detach(), numbers.constants.detach(), gains)

    @property
    def keys(self) -> int:
        return self.head.keys

    @property
    def beta(self) -> float:
        """The steepest difference of slopes between neighbouring keys."""
        slopes = self.read_keys().slopes.sort(-1).values
        return float(slopes.diff().max()) if slopes.shape[-1] > 1 else 0.0

    @property
    def logit_range(self) -> float:
        """The largest absolute score within its reach."""
        keys = self.read_keys()
        return float((keys.slopes.abs().sum(0) * self.reach + keys.levels.abs()).max())


class Lookup(nn.Module):
    """A head whose values are constant vectors: keys, levels and values as in `Keys`, in their own dtype."""

    def __init__(self, slopes: Tensor, levels: Tensor, values: Tensor, beta: float, logit_range: float) -> None:
        super().__init__()
        self.slopes, self.levels, self.constants = constant(slopes), constant(levels), constant(values)
        self.beta, self.logit_range = beta, logit_range

    @property
    def keys(self) -> int:
        return len(self.levels)

    def arguments(self, *at: Any) -> list[Any]:
        """What the keys look at."""
        return list(at)

    def read_keys(self) -> Keys:
        """The keys' numbers as they are now, in float64."""
        return Keys(*(v.detach().double() for v in (self.slopes, self.levels, self.constants)))

    def forward(self, *at: Tensor) -> Tensor:
        """The blend of the values, (..., c)."""
        return (torch.stack(at, -1) @ self.slopes + self.levels).softmax(-1) @ self.constants


@lru_cache(maxsize=1)
def _unit_product() -> tuple[Head, float]:
    """The numbers of h and its error."""
    model = carrying_model("x", (-BEYOND, BEYOND), RELATIVE, torch.float64)
    return model.head.numbers, model.certificate.bound


class Factor(InnerHead):
    """u itself as a head sees it, for |u| <= R, the next power of two; `error` includes rounding."""

    def __init__(self, reach: float) -> None:
        if not 1 / MOST <= reach <= MOST:
            raise InputError(f"A head for numbers up to {reach:g} cannot be held in float64; rescale the data.")
        power, (head, error) = binary_ceiling(reach), _unit_product()
        slopes, constants = tuple(v / power for v in head.slopes), tuple(v * power for v in head.constants)
        scaled = HeadModule(replace(head, slopes=slopes, constants=constants))
        super().__init__(scaled, error * power, power)


def label_head(labels: str, largest: float) -> InnerHead:
    """The head for a loss's labels: y from y."""
    if labels not in PAIRS:
        return Factor(largest)
    head = _selecting(*PAIRS[labels])
    return InnerHead(head, _selection_error(head, PAIRS[labels]), 1.0)


def _selecting(low: float, high: float) -> HeadModule:
    """Two keys, one for each label: scores ±STEEP/2 at the labels, on opposite sides; all numbers are exact."""
    slope = STEEP / (high - low)
    intercepts = slope * (low + high) / 2, -slope * (low + high) / 2
    return HeadModule(Head((-slope, slope), intercepts, (low, high), (0.0, 0.0), horner=True))


def _selection_error(head: HeadModule, labels: tuple[float, float]) -> float:
    """At the labels the other key has exp(-STEEP) of the weight, at most; rounding as it is proved of any head."""
    claim = HeadClaim(U, "u", *labels, head.numbers)
    rounding = max(Rounding(claim).on_box(label, label) for label in labels)
    with precision():
        return upper((labels[1] - labels[0]) * arb(-STEEP).exp() + rounding)


@lru_cache(maxsize=1)
def _unit_clip() -> tuple[Head, Certificate]:
    """The numbers of clip(u, -1, 1) on R and what is proved of it."""
    model = compile("clip(x, -1, 1)", None, tol=CLIP_ERROR, progress=False)
    return model.head.numbers, model.certificate


class Clip(InnerHead):
    """clip(u, -1, 1) on R, and the thresholds of every coordinate for which it is used."""

    tilted = True
    sizes: Tensor
    scales: Tensor

    def __init__(self, l1: Sequence[float], rate: float) -> None:
        if not all(math.isfinite(rate * penalty) for penalty in l1):
            raise InputError(f"learning_rate={rate:g} times l1 is too large for float64; use smaller numbers.")
        numbers, self.proof = _unit_clip()
        super().__init__(HeadModule(numbers), self.proof.approximation, 1.0)
        self.largest = max(rate * penalty for penalty in l1)
        sizes = torch.tensor([rate * penalty for penalty in l1], dtype=torch.float64)
        self.register_buffer("sizes", sizes)
        self.register_buffer("scales", torch.where(sizes > 0, sizes, 1.0))

    def exact(self, *at: Tensor) -> Tensor:
        return at[0].clamp(-1, 1)

    def step_error(self, size: arb) -> arb:
        """A bound on the error of a coordinate of absolute value up to `size`, before the last cast and difference.

        t·clip(v/t) is at most |v|; the threshold as stored, the quotient and the product each lose a unit of float64.
        A coordinate without a threshold is left as it is: zero times a finite number is taken away.
        """
        most = arb(self.largest)
        return most * self.proof.approximation + self.proof.rounding * (most + size) + 4 * arb(2.0**-53) * size
