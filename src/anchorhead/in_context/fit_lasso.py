"""The lasso by `shrinkage`, on columns that take part, and at the end by Newton's steps on those that it kept.

*Which columns.* No more of them than there are examples need have a coefficient. So as many as that, those with the
steepest slopes, take part at first; from the minimiser over them, which is zero elsewhere, as many join whose slopes
exceed the penalty there, until none does.

*Newton's steps.* Splitting finds which coefficients are zero and the signs of the others long before it has their
digits. On those columns the penalty is linear, and the minimiser is one of least squares with a tilt, which
`newton_descent` solves. Of these and the iterates that with the least objective is kept, and it is taken if its least
subgradient is as small as asked for, or as rounding lets it be. Else splitting goes on, half as long again. Zeros for
all are tried as well: from some penalty on they are the minimiser. A last run of splitting starts there, and stays.

*The pull.* A step moves a coefficient by the squares' slope, which the inverse holds, and by at most l1/pull: with a
large pull and a small penalty coefficients creep, with a small one w and z stay apart. After a run the pull is
multiplied with the root of how far w and z are apart over how far z moves, both relative (Boyd, Parikh, Chu, Peleato
and Eckstein 2011, 3.4.1; Wohlberg 2017); runs grow longer, so that in the end it stays. pull·(u - z) is the slope
there, and is the same with the new one.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from anchorhead.dtypes import UNIT
from anchorhead.errors import InputError
from anchorhead.in_context.bounds import OutsideBoundsError
from anchorhead.in_context.fit import Report, Scaled, Solved, inversions, largest, least_eigenvalue, power
from anchorhead.in_context.fit_squares import in_basis, solve_squares
from anchorhead.in_context.replay import Run, given
from anchorhead.in_context.shrinkage import shrinkage

FIRST = 50
GROWTH = 1.5
EXACTER = 2
"""Steps more for the inverse, since splitting ends where the inverse says: e^-32 is left of its error."""
ZERO = 1e-8
"""Coefficients below this share of the largest are tried as zeros."""
BALANCED = 2.0
"""A factor of the pull that is worth another inverse."""
LONGEST = 10.0
"""The largest such factor."""
WEAKEST = 2.0**-27
"""The least pull, as a share of the moments' trace."""
SAME = 2.0**-40
"""Values of the objective that differ by this share may be the same but for rounding."""
ROUNDED = 4 * UNIT["float64"]
"""Of the terms of a subgradient."""
LARGE = 2.0
"""A penalty that keeps a coefficient at zero: a gradient of columns of variance one is at most the root of the mean
squared residual, which at a minimiser is at most that of the labels, which are at most one."""


def subgradient(data: Scaled, y: Tensor, l1: Tensor, w: Tensor) -> Tensor:
    """The least subgradient of the objective, plainly."""
    residual = data.X @ w - y
    gradient = (residual / len(y) if data.shares is None else residual * data.shares) @ data.X
    free = gradient.sign() * (gradient.abs() - l1).clamp(min=0)
    return torch.where(w == 0, free, gradient + l1 * w.sign())


def fit_lasso(data: Scaled, y: Tensor, l1: list[float], tol: float, most: int, report: Report) -> Solved:
    """Mean squared error/2 and l1·|w|, on centred columns and labels."""
    (n, d), penalty = data.X.shape, torch.tensor(l1, dtype=torch.float64)
    w, taking = torch.zeros(d, dtype=torch.float64), torch.zeros(d, dtype=torch.bool)
    goal = tol * (largest(subgradient(data, y, 0 * penalty, w)) or 1.0)
    joining, steps, pull = subgradient(data, y, 0 * penalty, w).abs().topk(min(n, d)).indices, 0, 0.0
    while True:
        taking[joining] = True
        own = taking.nonzero().flatten()
        some = _Splitting(data._replace(X=data.X[:, own]), y, penalty[own], goal, report)
        solved, pull = some.run(w[own], pull, steps, most)
        w, steps = torch.zeros(d, dtype=torch.float64).index_put((own,), solved.w), solved.steps
        beyond = torch.where(taking, 0.0, subgradient(data, y, penalty, w).abs())
        joining = beyond.topk(min(n, d)).indices
        joining = joining[beyond[joining] > goal]
        if steps >= most or not len(joining):
            run = solved.run
            if steps < most:
                run, _ = some.split(some.start(w[own], pull), pull, min(FIRST, most - steps))
                steps += run.network.steps
            return Solved(w, run.among(own.numpy(), d), steps, solved.converged and not len(joining))


class _Splitting:
    """The lasso on columns that take part; goal: how small a subgradient is asked for."""

    def __init__(self, data: Scaled, y: Tensor, l1: Tensor, goal: float, report: Report) -> None:
        self.data, self.y, self.l1, self.goal, self.report = data, y, l1, goal, report
        self.moments = data.moments()
        self.top = float(self.moments.trace()) * (1 + 1e-6) + 1e-12
        self.b = -subgradient(data, y, 0 * l1, 0 * l1)

    def run(self, w: Tensor, pull: float, steps: int, most: int) -> tuple[Solved, float]:
        """From w, after so many steps; zero stands for a pull that is not known yet."""
        zero, best, count = 0 * w, w, float(FIRST)
        pull = pull or math.sqrt(least_eigenvalue(self.moments)[0] * self.top)
        pull = min(max(pull, WEAKEST * self.top), self.top)
        u = self.start(w, pull)
        while True:
            left = self._left(best)
            self.report(f"lasso: {len(w):,} columns, {steps:,} steps, subgradient {left:.1e} (tol: {self.goal:.1e})")
            run, (z, u) = self.split(u, pull, min(int(count), max(most - steps, 1)))
            steps, cut = steps + run.network.steps, torch.where(z.abs() > ZERO * largest(z), z, 0.0)
            for tried in (zero, cut, _on_kept(self.data, self.y, self.l1, cut, self.moments, self.report)):
                if tried is not None and self._better(tried, best):
                    best = tried
            enough = self._left(best) <= self._enough(best)
            if enough or steps >= most:
                return Solved(best, replace(run, shift=best - z), steps, enough), pull
            before, pull = pull, self._balanced(pull, z, u)
            u, count = z + (u - z) * (before / pull), count * GROWTH

    def start(self, w: Tensor, pull: float) -> Tensor:
        """u from which a step goes to w, and stays there if it is the minimiser."""
        return w + (self.moments @ w - self.b) / pull

    def split(self, u: Tensor, pull: float, steps: int) -> tuple[Run, Tensor]:
        """The run of a network from u, and where it ends."""
        X, y, (n, d) = self.data.X, self.y, self.data.X.shape
        wide, depth = power(64 * (1 + largest(y)) + 4 * largest(u)), inversions(self.top + pull, pull) + EXACTER
        for _ in range(12):
            bounds = {"x": power(largest(X)), "y": power(max(largest(y), 1.0)), "w": wide, "curvature": self.top}
            network = shrinkage(features=d, examples=n, steps=steps, inversions=depth, pull=pull,
                                l1=self.l1.tolist(), bounds=bounds)  # fmt: skip
            try:
                return Run(network, given(X, y, u, self.data.shares)), network(X, y, u, self.data.shares)
            except OutsideBoundsError:
                wide *= 64
        raise InputError("The coefficients grow without bound on these data; use a larger penalty.")

    def _enough(self, w: Tensor) -> float:
        """How small a subgradient is enough: what is asked for, or rounding."""
        sizes = self.data.X.abs()
        weighted = sizes / len(sizes) if self.data.shares is None else sizes * self.data.shares.unsqueeze(-1)
        return max(self.goal, ROUNDED * largest((sizes @ w.abs() + self.y.abs()) @ weighted))

    def _better(self, w: Tensor, than: Tensor) -> bool:
        """By the objective, or where it is the same but for rounding by the subgradient."""
        found, other = (self._value(v) for v in (w, than))
        same = abs(found - other) <= SAME * (found + other)
        return self._left(w) < self._left(than) if same else found < other

    def _value(self, w: Tensor) -> float:
        squares = (self.data.X @ w - self.y).square()
        mean = squares.mean() if self.data.shares is None else self.data.shares @ squares
        return float(mean / 2 + self.l1 @ w.abs())

    def _left(self, w: Tensor) -> float:
        return largest(subgradient(self.data, self.y, self.l1, w))

    def _balanced(self, pull: float, z: Tensor, u: Tensor) -> float:
        """The pull for the next run, from a step that is taken plainly; see the top."""
        eye = torch.eye(len(z), dtype=torch.float64)
        w = torch.linalg.solve(self.moments + pull * eye, pull * u + self.b)
        ahead = 2 * w - u
        ahead = ahead.sign() * (ahead.abs() - self.l1 / pull).clamp(min=0)
        apart = float((w - ahead).norm()) * float((u - z).norm())
        moved = float((ahead - z).norm()) * max(float(w.norm()), float(ahead.norm()))
        factor = min(max(math.sqrt(apart / moved), 1 / LONGEST), LONGEST) if moved else LONGEST
        factor = 1.0 if 1 / BALANCED < factor < BALANCED else factor
        return min(max(pull * factor, WEAKEST * self.top), self.top)


def _on_kept(data: Scaled, y: Tensor, l1: Tensor, z: Tensor, moments: Tensor, report: Report) -> Tensor | None:
    """The minimiser on the columns where z is not zero, with its signs; None where that changes a sign."""
    kept = z.nonzero().flatten()
    if not 0 < len(kept) <= len(y):
        return None
    own = moments[kept][:, kept]
    least, rank = least_eigenvalue(own)
    signs, zeros = z[kept].sign(), [0.0] * len(kept)
    some = data._replace(X=data.X[:, kept], mean=data.mean[kept], scale=data.scale[kept])
    solved = None
    if rank == len(kept):
        solved = solve_squares(
            some.X, y, data.shares, zeros, float(own.trace()), least, 1e-10, report, l1[kept] * signs
        )
    if solved is None or not solved.converged:
        solved = in_basis(some, y, zeros, 1e-10, report, l1[kept] * signs)
    if not bool((solved.w.sign() == signs).all()):
        return None
    whole = torch.zeros_like(z)
    whole[kept] = solved.w
    return whole
