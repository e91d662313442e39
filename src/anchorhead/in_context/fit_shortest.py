"""The shortest of all least-squares coefficients, where columns are linearly dependent: by least squares some more.

Columns z_j are the original ones over sizes s_j, so that Z is as well conditioned as it can be; v minimises for Z, and
w = v/s for the original columns. All minimisers are w plus S^-1 of the null space of Z, S = diag(s), and the shortest
is what least squares on that space leave of w.

*The null space.* Least squares with the columns of Z as labels, all at once, have P = Z⁺Z for coefficients, and Q = 1 -
P projects on the null space. Labels are met exactly, so that gradients vanish, and nothing is left for the inverse to
enlarge; least squares on Z Q, which should be zero, remove what they left. Then Z Q is zero to the rounding of a
product. As many columns of Q as there are dependencies span it, those that a QR factorisation with pivots puts first.

*What is left.* These columns over s, and over their own sizes, are examples of one more fit, d of them, with w for its
labels; its residual is the shortest. Where that is far smaller than w, it has w's rounding, and least squares on it
leave the rest.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from scipy.linalg import qr
from torch import Tensor

from anchorhead.in_context.fit import largest, least_eigenvalue

PASSES = 2
Solve = Callable[[Tensor, Tensor, Tensor | None, float, float], Tensor]
"""Coefficients (targets, d) of examples (n, d), labels (targets, n), shares, the trace and the least eigenvalue."""


def shortest(Z: Tensor, v: Tensor, sizes: Tensor, shares: Tensor | None, solve: Solve) -> Tensor:
    """The coefficients v (targets, d), of columns Z over `sizes`, less what makes v/sizes longer than need be."""
    weighted = Z / len(Z) if shares is None else Z * shares.unsqueeze(-1)
    moments = Z.mT @ weighted
    trace, (least, rank) = float(moments.trace()), least_eigenvalue(moments)
    Q = torch.eye(len(moments), dtype=torch.float64)
    for _ in range(PASSES):
        labels, size = _over(Q.mT @ Z.mT)
        Q = Q - (size * solve(Z, labels, shares, trace, least)).mT
    pivots = qr(Q.numpy(), mode="r", pivoting=True)[1][: len(moments) - rank]
    null = _over((Q[:, pivots.tolist()] / sizes.unsqueeze(-1)).mT)[0].mT
    w = v / sizes
    for _ in range(PASSES):
        w = _left(null, w, solve)
    return w * sizes


def _over(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows over their largest entries, and these."""
    size = rows.abs().amax(-1, keepdim=True)
    size = torch.where(size > 0, size, 1.0)
    return rows / size, size


def _left(null: Tensor, w: Tensor, solve: Solve) -> Tensor:
    """w (targets, d) without its part in the span of the columns of `null`."""
    labels, size = _over(w)
    if not largest(labels):
        return w
    moments = null.mT @ null / len(null)
    found = solve(null, labels, None, float(moments.trace()), least_eigenvalue(moments)[0])
    return (labels - found @ null.mT) * size
