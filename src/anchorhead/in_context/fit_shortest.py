"""The shortest of all least-squares coefficients, where columns are linearly dependent, or outnumber the examples.

Columns z_j are the original ones over sizes s_j, so that Z is as well conditioned as it can be; v minimises for Z, and
w = v/s for the original columns. Coefficients make the same predictions as v where their products with V are v's, V an
orthonormal basis of what Z's rows span (`fit_basis.py`). The shortest w with V^T (s w) = V^T v lies in the span of the
columns of S V, S = diag(s). In units that are far apart so are its rows, and two things are needed for that to be right
in every one.

*A basis in the order of the units.* Entries of V are known to `blur`, and one that should be zero, times a large unit,
would outweigh those that count. So V is brought to a form where zeros are known: Gauss' elimination with complete
pivoting, the largest entry times its size first. A column is V g for some g, |g| >= 1 since V's columns are
orthonormal, and its entries are off by at most blur_j |g|: what is below that is set to zero, and only then the next
pivot is chosen; the largest entry, at least |g|/sqrt(d), is kept. So columns come out as V', with ones in their pivots
p_i, and A_ji = V'_ji s_j/s_{p_i} has a unit triangle in the rows p_i, and no entry above one.

*Householder's reflections, pivots first.* A = Q R, and w = Q R^-T (V'^T v)/s_p. Each reflection takes a column of A to
its pivot's row, where its entry is the largest or nearly, so that a row is changed by no more than a row of its size
may be, and errors are small in every row for itself (M. J. D. Powell, J. K. Reid, *On applying Householder
transformations to linear least squares problems*, IFIP 1968; A. J. Cox, N. J. Higham, *Stability of Householder QR
factorization for weighted least squares problems*, 1998).

What the result makes less than v, as far as V' does not span what V does, is made by the shortest coefficients that do.
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg import lapack, solve_triangular
from torch import Tensor

PASSES = 2
LEAST = sys.float_info.min


class Shortest(NamedTuple):
    """The map from coefficients of columns over their sizes to the shortest ones that make the same predictions.

    span: V, (d, r). columns: V'. sizes: (d,). order: of rows, the r pivots first. reflections, factors: Householder's,
    as LAPACK has them, with R above.
    """

    span: np.ndarray
    columns: np.ndarray
    sizes: np.ndarray
    order: np.ndarray
    reflections: np.ndarray
    factors: np.ndarray

    def __call__(self, v: Tensor) -> Tensor:
        """For v, (targets, d)."""
        size = v.abs().amax(-1).clamp(min=LEAST).numpy()
        wanted = v.numpy().T / size
        found, left = np.zeros_like(wanted), wanted
        for _ in range(PASSES):
            found = found + self._made(left)
            left = self.span @ (self.span.T @ (wanted - found))
        return torch.tensor(np.ascontiguousarray((found * size).T))

    def _made(self, v: np.ndarray) -> np.ndarray:
        """The shortest with the same products with V'."""
        rank = len(self.factors)
        rows = np.zeros_like(v)
        asked = (self.columns.T @ v) / self.sizes[self.order[:rank], None]
        rows[:rank] = solve_triangular(self.reflections[:rank], asked, trans="T")
        rows = lapack.dormqr("L", "N", self.reflections, self.factors, rows, max(1, rows.shape[1]))[0]
        found = np.empty_like(v)
        found[self.order] = rows * self.sizes[self.order, None]
        return found


def shortest(span: np.ndarray, blur: np.ndarray, sizes: np.ndarray) -> Shortest:
    """Of columns over `sizes`, (d,), whose rows span these orthonormal columns, (d, r), known to `blur`, (d,)."""
    sizes = np.maximum(sizes / (math.sqrt(sizes.min()) * math.sqrt(sizes.max())), LEAST * 2.0**64)
    columns, pivots = _echelon(span, np.minimum(blur, 0.5 / math.sqrt(len(span))), sizes)
    order = np.append(pivots, np.setdiff1d(np.arange(len(sizes)), pivots))
    with np.errstate(over="ignore", invalid="ignore"):  # where the entry is zero
        graded = np.where(columns == 0, 0.0, columns * (sizes[:, None] / sizes[pivots]))
    reflections, factors, _, _ = lapack.dgeqrf(graded[order])
    return Shortest(span, columns, sizes, order, reflections, factors)


def _echelon(span: np.ndarray, blur: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Columns with the same span, each one at its pivot, where later ones are zero; and the pivots."""
    columns, pivots = span.copy(), np.zeros(span.shape[1], dtype=np.int64)
    for i in range(len(pivots)):
        rest = columns[:, i:]
        entries = np.abs(rest)
        entries[entries <= blur[:, None] * np.sqrt(np.einsum("ji,ji->i", rest, rest))] = 0.0
        np.copyto(rest, 0.0, where=entries == 0)
        entries *= sizes[:, None]
        row, at = divmod(int(entries.argmax()), rest.shape[1])
        rest[:, [0, at]] = rest[:, [at, 0]]
        rest[:, 0] /= rest[row, 0]
        rest[:, 1:] -= rest[:, :1] * rest[row, 1:]
        rest[row, 1:] = 0.0
        pivots[i] = row
    return columns, pivots
