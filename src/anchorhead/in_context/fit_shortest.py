"""The shortest of all least-squares coefficients, where columns are linearly dependent: by least squares some more.

Columns z_j are the original ones over sizes s_j, so that Z is as well conditioned as it can be; v minimises for Z, and
w = v/s for the original columns. All minimisers are w plus S^-1 of the null space of Z, S = diag(s), and the shortest
is what least squares on that space leave of w. Z's null space comes with an orthonormal basis of its columns
(`fit_basis.py`); what Z makes of it, which should be zero, is removed by coefficients that make as much. One of S^-1
times it is had by a QR factorisation, plainly, and is d examples of one more fit, with w for its labels; its residual
is the shortest. Where that is far smaller than w, it has w's rounding, and least squares on it leave the rest.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from anchorhead.in_context.fit import largest

PASSES = 2
Solve = Callable[[Tensor, Tensor], Tensor]
"""Coefficients (targets, k) of an orthonormal basis times the root of its length, (d, k), for labels (targets, d)."""


def shortest(v: Tensor, null: Tensor, sizes: Tensor, solve: Solve) -> Tensor:
    """The coefficients v (targets, d), of columns over `sizes`, less what makes v/sizes longer than need be."""
    unscaled = _over((null / sizes.unsqueeze(-1)).mT)[0].mT
    basis = torch.linalg.qr(unscaled)[0] * len(null) ** 0.5
    w = v / sizes
    for _ in range(PASSES):
        labels, size = _over(w)
        w = (labels - solve(basis, labels) @ basis.mT) * size if largest(labels) else w
    return w * sizes


def _over(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows over their largest entries, and these."""
    size = rows.abs().amax(-1, keepdim=True)
    size = torch.where(size > 0, size, 1.0)
    return rows / size, size
