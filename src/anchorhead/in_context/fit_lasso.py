"""The lasso by `shrinkage`, on columns that take part, and at the end by Newton's steps on those that it kept.

*Which columns.* No more of them than there are examples need have a coefficient. So as many as that, those with the
steepest slopes, take part at first; from the minimiser over them, which is zero elsewhere, as many join whose slopes
exceed the penalty there, until none does.

*Newton's steps.* Splitting finds most of the zeros, and the signs of the others, long before it has their digits. From
there an active set goes on (`fit_support.py`), which gives up columns and takes others until the conditions of the
minimiser hold to rounding. Of its end and the iterates that with the least objective is kept, and it is taken if its
least subgradient is as small as asked for, and the active set is at its end, or as small as rounding lets it be. Else
splitting goes on, half as long again. Zeros for all are tried as well: from some penalty on they are the minimiser. A
last run of splitting starts there, and stays.

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

from anchorhead.errors import InputError
from anchorhead.in_context.bounds import OutsideBoundsError
from anchorhead.in_context.fit import Report, Scaled, Solved, inversions, largest, least_eigenvalue, power
from anchorhead.in_context.fit_support import Penalised
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
LARGE = 2.0
"""A penalty that keeps a coefficient at zero: a gradient of columns of variance one is at most the root of the mean
squared residual, which at a minimiser is at most that of the labels, which are at most one."""


def fit_lasso(data: Scaled, y: Tensor, l1: list[float], tol: float, most: int, report: Report) -> Solved:
    """Mean squared error/2 and l1·|w|, on centred columns and labels."""
    (n, d), penalty = data.X.shape, torch.tensor(l1, dtype=torch.float64)
    w, taking = torch.zeros(d, dtype=torch.float64), torch.zeros(d, dtype=torch.bool)
    whole = Penalised(data, y, penalty)
    first = whole.slope(w).abs()
    goal = tol * (largest(first) or 1.0)
    joining, steps, pull = first.topk(min(n, d)).indices, 0, 0.0
    while True:
        taking[joining] = True
        own = taking.nonzero().flatten()
        some = _Splitting(Penalised(data._replace(X=data.X[:, own]), y, penalty[own]), goal, report)
        solved, pull = some.run(w[own], pull, steps, most)
        w, steps = torch.zeros(d, dtype=torch.float64).index_put((own,), solved.w), solved.steps
        beyond = torch.where(taking, 0.0, whole.slope(w).abs() - penalty - whole.rounded(w))
        joining = beyond.topk(min(n, d)).indices
        joining = joining[beyond[joining] > 0]
        if steps >= most or not len(joining):
            run = solved.run
            if steps < most:
                run, _ = some.split(some.start(w[own], pull), pull, min(FIRST, most - steps))
                steps += run.network.steps
            return Solved(w, run.among(own.numpy(), d), steps, solved.converged and not len(joining))


class _Splitting:
    """The lasso on columns that take part; goal: how small a subgradient is asked for."""

    def __init__(self, wanted: Penalised, goal: float, report: Report) -> None:
        self.wanted, self.goal, self.report = wanted, goal, report
        self.data, self.y, self.l1, self.moments = wanted.data, wanted.y, wanted.l1, wanted.moments
        self.top = float(self.moments.trace()) * (1 + 1e-6) + 1e-12
        self.b = -wanted.slope(0 * self.l1)

    def run(self, w: Tensor, pull: float, steps: int, most: int) -> tuple[Solved, float]:
        """From w, after so many steps; zero stands for a pull that is not known yet."""
        wanted, zero, best, count = self.wanted, 0 * w, w, float(FIRST)
        pull = pull or math.sqrt(least_eigenvalue(self.moments)[0] * self.top)
        pull = min(max(pull, WEAKEST * self.top), self.top)
        u = self.start(w, pull)
        while True:
            left = wanted.left(best)
            self.report(f"lasso: {len(w):,} columns, {steps:,} steps, subgradient {left:.1e} (tol: {self.goal:.1e})")
            run, (z, u) = self.split(u, pull, min(int(count), max(most - steps, 1)))
            steps, cut = steps + run.network.steps, torch.where(z.abs() > ZERO * largest(z), z, 0.0)
            for tried in (zero, cut):
                best = tried if wanted.better(tried, best) else best
            found = wanted.settled(best, most - steps, self.report)
            best, steps = found.w if wanted.better(found.w, best) else best, steps + found.steps
            left, rounding = wanted.left(best), largest(wanted.rounded(best))
            enough = left <= rounding or (found.done and left <= self.goal)
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
