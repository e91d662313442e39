"""What all fits of linear models share: the data as a prompt, and the size of a network for them.

The prompt is the data with columns centred, where an intercept takes up the means, and divided by their deviations;
labels are divided by theirs. Means are weighted by the examples' shares. From the data follow the bounds that a network
is made with, and from the eigenvalues of the moments, looked at plainly, how many steps its inverse takes. What is
learned, the network learns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from anchorhead.arithmetic import binary_ceiling
from anchorhead.in_context.replay import Run

MOST_LABELS = 64.0
"""Labels are bounded by this at least, so that heads made for one data set serve another."""
NEGLIGIBLE = 2.0**-44
"""Eigenvalues of moments below this share of their trace cannot be told from zero."""
SPARE = 3
"""Steps of Newton and Schulz beyond log2 of the condition: e^-8 is left of the inverse's error."""
Report = Callable[[str], None]


class Scaled(NamedTuple):
    """The prompt: centred and scaled columns, a last column of ones if `ones`, and shares where weights are given.

    basis: rows of length one, orthogonal, in the original columns, which the prompt's columns are scaled combinations
    along; None where they are the original ones.
    """

    X: Tensor
    mean: np.ndarray
    scale: np.ndarray
    shares: Tensor | None
    ones: bool
    basis: np.ndarray | None = None

    def penalties(self, value: float, power: int) -> list[float]:
        """A penalty on the coefficients of the original columns, by scaled column; none on the intercept."""
        by_column = np.full(len(self.scale), value)
        with np.errstate(over="ignore"):
            for _ in range(power):
                by_column = by_column / self.scale
        return [float(v) for v in by_column] + [0.0] * self.ones

    def eased(self, value: float) -> Scaled:
        """Columns whose l2 penalty outweighs their variance are smaller, so that curvatures are alike."""
        with np.errstate(over="ignore"):
            factor = np.maximum(math.sqrt(value) / self.scale, 1.0)
        columns = torch.tensor(np.append(factor, [1.0] * self.ones))
        return self._replace(X=self.X / columns, scale=self.scale * factor)

    def coefficients(self, w: Tensor, size: Any = 1.0) -> np.ndarray:
        """Coefficients of the original columns, (..., d), of labels that were divided by size."""
        with np.errstate(over="ignore", invalid="ignore"):
            found: np.ndarray = w[..., : len(self.scale)].numpy() / self.scale * size
            return found if self.basis is None else found @ self.basis

    def told(self, solved: Solved, middle: Any = 0.0, size: Any = 1.0) -> Solved:
        """The run of a fit with the units of the data, for labels that were less `middle` and over `size`."""
        return solved._replace(run=solved.run.into(self.mean, self.scale, middle, size, self.basis))

    def moments(self) -> Tensor:
        """Plainly, to look at their eigenvalues."""
        weighted = self.X / len(self.X) if self.shares is None else self.X * self.shares.unsqueeze(-1)
        return self.X.mT @ weighted


class Solved(NamedTuple):
    """The coefficients in scaled columns, the last run of a network, how many steps, and whether that was enough.

    blurred: what rounding may do to coefficients of columns that are nearly dependent, relatively (`fit_basis.py`).
    shortest: False where rounding hides which of all minimisers is the shortest (`fit_shortest.py`).
    """

    w: Tensor
    run: Run
    steps: int
    converged: bool
    blurred: float = 0.0
    shortest: bool = True


class Labels(NamedTuple):
    """Labels (targets, n) without their means and over their sizes, both (targets,)."""

    y: np.ndarray
    middle: np.ndarray
    size: np.ndarray


def shares_of(weights: np.ndarray | None) -> np.ndarray | None:
    """Weights over their sum, which is a little less than one."""
    if weights is None:
        return None
    near = weights / weights.max()
    shares: np.ndarray = near / near.sum() * (1 - 2.0**-40)
    return shares


def averages(values: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Weighted means of rows; those of equal numbers are these numbers."""
    unit = np.frexp(np.abs(values).max(-1, keepdims=True))[1]
    near = np.ldexp(values, -unit)
    found = np.average(near, axis=-1, weights=None if weights is None else weights / weights.max())
    found = np.where((near == near[..., :1]).all(-1), near[..., 0], found)
    result: np.ndarray = np.ldexp(found, unit[..., 0])
    return result


def centred_labels(Y: np.ndarray, weights: np.ndarray | None, centre: bool) -> Labels:
    """Labels (targets, n) as a prompt has them; labels that are all alike become zeros."""
    middle = averages(Y, weights) if centre else np.zeros(len(Y))
    apart = Y - middle[:, None]
    size = np.abs(apart).max(1)
    size = np.where(size > 0, size, 1.0)
    return Labels(apart / size[:, None], middle, size)


def scaled(X: np.ndarray, weights: np.ndarray | None, *, centre: bool, ones: bool = False,
           alike: bool = False) -> Scaled:  # fmt: skip
    """The prompt of the data; alike: all columns divided by one number, so that lengths of coefficients compare."""
    shares = shares_of(weights)
    mean = averages(X.T, weights) if centre else np.zeros(X.shape[1])
    centred = X - mean
    tops = np.abs(centred).max(0)
    tops = np.where(tops > 1e-13 * np.abs(X).max(0), tops, 0.0)  # what is left of a constant column
    centred = np.where(tops > 0, centred, 0.0)
    safe = np.where(tops > 0, tops, 1.0)
    size = safe * np.sqrt(np.average((centred / safe) ** 2, axis=0, weights=weights))
    size = np.where(size > 0, size, safe)
    if alike:
        size = np.full_like(size, (size[tops > 0].max() if (tops > 0).any() else 1.0))
    size = np.where(np.abs(size - 1) < 1e-9, 1.0, size)  # scaled already
    columns = centred / size
    if shares is not None:
        columns = np.where((shares > 0)[:, None], columns, 0.0)
    if ones:
        columns = np.column_stack([columns, np.ones(len(X))])
    return Scaled(torch.tensor(columns), mean, size, None if shares is None else torch.tensor(shares), ones)


def spanned(X: np.ndarray, weights: np.ndarray | None, *, centre: bool) -> Scaled:
    """The prompt of a loss with an l2 penalty, with a column of ones where it is centred.

    A minimiser, without a penalty the shortest, lies in the span of the centred examples, or its part there would have
    the same predictions and be shorter. So of more columns than examples the prompt has coordinates in an orthonormal
    basis of that span, in which lengths, and the penalty, are what they were: as many columns as examples at most.
    """
    if X.shape[1] <= len(X):
        return scaled(X, weights, centre=centre, ones=centre)
    plain = scaled(X, weights, centre=centre, alike=True)
    columns = plain.X.numpy()
    _, sizes, basis = np.linalg.svd(columns, full_matrices=False)
    kept = sizes > len(X) * np.finfo(float).eps * sizes[0]
    kept[0] = True
    basis = np.where(columns.any(0), basis[kept], 0.0)
    turned = scaled(columns @ basis.T, weights, centre=False, ones=centre)
    return turned._replace(mean=plain.mean, scale=turned.scale * plain.scale[0], basis=basis)


def power(value: float) -> float:
    """The next power of two: few distinct bounds, so that heads are found again."""
    return binary_ceiling(max(value, 2.0**-20))


def largest(value: Tensor) -> float:
    """The largest absolute entry."""
    return float(value.abs().max()) if value.numel() else 0.0


def least_eigenvalue(moments: Tensor) -> tuple[float, int]:
    """The least eigenvalue that can be told from zero, and how many can."""
    values = torch.linalg.eigvalsh(moments)
    kept = values[values > NEGLIGIBLE * values.clamp(min=0).sum()]
    return (float(kept.min()), len(kept)) if len(kept) else (1.0, 0)


def inversions(top: float, least: float) -> int:
    """Steps for an inverse of matrices with eigenvalues in [least, top]."""
    return max(1, math.ceil(math.log2(max(top / least, 1.0)))) + SPARE
