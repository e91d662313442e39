"""Least squares in an orthonormal basis of the columns, where columns are dependent, or nearly so.

Moments have the square of the columns' condition: what is told apart by fewer than half of all digits is lost in them.
So, plainly and outside of the network, Z = U S V^T by a QR factorisation and the singular values of its triangle, and
the prompt has the columns of U, of which the network finds the coefficients u; those of Z are V S^-1 u. Weights are
multiplied into rows. A penalty is further rows, sqrt(n l2_j) for column j, with labels zero. Of more columns than
examples Z is first reduced to its coordinates in the span of the examples, in which a penalty that is the same for all
columns still is.

*What counts as zero.* Columns are known to `UNIT` times their entries before they were centred. So a singular value is
told from zero only where it exceeds what such an error of Z makes of its direction v, sqrt(n) times the length of (v_j
noise_j), and what factorisations make of the largest. Directions below that are left out. The other ones are known to
the ratio of both, `blurred` for the worst.

*How well the span is known.* An error E of Z turns a direction v that is kept, of size t, by sum of h_i b_i, h_i the
ones that are left out, with b_i = h_i^T E^T u/t to first order. What E makes of h_i is below its blur. So entry j of a
combination V g of such directions is off by at most |g| times the largest blur over the least size, times the length of
(h_ij), which is the root of 1 - |row j of V|².
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anchorhead.dtypes import UNIT
from anchorhead.in_context.fit import NEGLIGIBLE, Scaled

LOST = 8 * UNIT["float64"]


class Basis(NamedTuple):
    """X: the basis times sqrt(rows), (rows, r). roots: of rows that are examples. back: w @ back are coefficients of
    the scaled columns, (r, d). span: orthonormal columns that their rows span, (d, r), with entries that are known to
    `blur`, (d,). blurred: what rounding of the data may do to coefficients, relatively, where moments would not have
    told columns apart; else zero."""

    X: Tensor
    roots: Tensor
    back: Tensor
    span: np.ndarray
    blur: np.ndarray
    blurred: float

    def labels(self, y: Tensor) -> Tensor:
        """Labels (targets, n) of the rows."""
        found = y.new_zeros(*y.shape[:-1], len(self.X))
        found[..., : len(self.roots)] = y * self.roots
        return found

    def tilt(self, tilt: Tensor) -> Tensor:
        """A linear term in the coefficients of the scaled columns, as one in those of the basis."""
        return (self.back @ tilt) * (len(self.roots) / len(self.X))


def basis_of(data: Scaled, l2: list[float]) -> Basis:
    """Of the columns and their penalties; of more columns than examples these are all alike."""
    Z, (n, d) = data.X.numpy(), data.X.shape
    roots = np.ones(n) if data.shares is None else np.sqrt(data.shares.numpy() * n)
    noise = np.abs(data.mean) / data.scale + np.abs(Z).max(0)
    A, first = roots[:, None] * Z, np.eye(d)
    if d > n:
        left, sizes, first = np.linalg.svd(A, full_matrices=False)
        A = left * sizes
    if any(l2):
        A = np.vstack([A, np.diag(np.sqrt(n * np.array(l2[: A.shape[1]])))])
    rows = len(A)
    orthogonal, triangle = np.linalg.qr(A)
    left, sizes, right = np.linalg.svd(triangle)
    right = right @ first
    blur = LOST * (math.sqrt(rows) * np.linalg.norm(right * noise, axis=1) + math.sqrt(max(n, d)) * sizes[0])
    kept = sizes > blur
    kept[0] = True
    sizes = np.where(sizes > 0, sizes, 1.0)
    near = sizes[kept] ** 2 <= NEGLIGIBLE * np.sum(sizes**2)
    return Basis(
        X=torch.tensor(orthogonal @ left[:, kept] * math.sqrt(rows)),
        roots=torch.tensor(roots),
        back=torch.tensor(right[kept] / sizes[kept, None] * math.sqrt(rows)),
        span=right[kept].T,
        blur=LOST + blur.max() / sizes[kept].min() * np.sqrt(np.maximum(1 - np.sum(right[kept] ** 2, 0), LOST)),
        blurred=float((blur[kept] / sizes[kept])[near].max(initial=0.0)),
    )
