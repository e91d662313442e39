"""Fitting by Newton's steps: `newton_descent` and `Multinomial`, run again from where they ended until a step is small.

A step that does not lower the objective is halved, but where the objective is the same but for rounding and all slopes,
each in units of its column, get smaller. Whether the inverse had steps enough is seen from what it leaves of the linear
system, and where more of them leave less, it gets more; where their rounding leads out of all bounds, fewer. A fit has
converged once the objective's gradient, in units of the columns' sizes, is below tol, or rounding keeps it from falling
further, and the step is short beside the coefficients: of classes that are nearly separable the gradient is small long
before. Where the curvature is so small that the gradient's rounding alone moves the coefficients, no fit has converged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from anchorhead.dtypes import UNIT
from anchorhead.errors import InputError
from anchorhead.in_context.bounds import OutsideBoundsError
from anchorhead.in_context.fit import (
    MOST_LABELS,
    Report,
    Scaled,
    Solved,
    inversions,
    largest,
    least_eigenvalue,
    power,
)
from anchorhead.in_context.losses import Loss
from anchorhead.in_context.multinomial import Multinomial
from anchorhead.in_context.newton_descent import newton_descent
from anchorhead.in_context.replay import Run, given

HALVINGS = 40
MORE = 4
"""Steps that an inverse gets more of where it proved too coarse."""
MOST_INVERSIONS = 48
COARSE = 0.25
"""What an inverse may leave of a system before a deeper one is tried."""
LITTLE = 1e-4
SAME = 2.0**-40
"""Values that differ by this share may be the same but for rounding."""
REACHES = 4.0, 32.0, 128.0
"""Of exp's heads, each of which takes a search."""
NARROW = 2.0**-20
"""Of a column that moves predictions and is itself not moved."""
FLOOR = 1e-7
"""Below this, in units of tol's, a gradient that no longer falls is rounding."""
SHORT = 1e-5
"""A step that moves coefficients by this share, or this, is the last one: of Newton's the next is its square."""
BEYOND = 16.0
"""Of what is left of a label, in units of Huber's scale: all beyond is an outlier, for every epsilon that is less."""
BLURRED = 1e-3
"""The share of the coefficients that a gradient's rounding may move."""


class Objective:
    """The mean loss of predictions and its l2 penalty, plainly: what tells whether a step was one forward."""

    def __init__(self, data: Scaled, l2: list[float], value: Callable[[Tensor], Tensor],
                 slope: Callable[[Tensor], Tensor], curvature: Callable[[Tensor], Tensor]) -> None:  # fmt: skip
        """value, slope and curvature: of the predictions, (n, ...) to (n,), (n, ...) and (n, ...)."""
        self.X, self._value, self._slope, self.curvature = data.X, value, slope, curvature
        self.shares = torch.full((len(data.X),), 1 / len(data.X), dtype=torch.float64)
        if data.shares is not None:
            self.shares = data.shares
        self.l2 = torch.tensor(l2, dtype=torch.float64)
        sizes = self.shares @ data.X.abs()
        top = float(sizes.max()) or 1.0
        self.sizes = torch.where(sizes > 0, top * (sizes / top).log2().ceil().exp2(), 1.0)

    def predictions(self, w: Tensor) -> Tensor:
        """(n,) for w (d,), (n, classes) for w (classes, d)."""
        return self.X @ (w if w.ndim == 1 else w.mT)

    def value(self, w: Tensor) -> float:
        return float(self.shares @ self._value(self.predictions(w)) + (self.l2 * w * w).sum() / 2)

    def gradient(self, w: Tensor) -> Tensor:
        slopes = self._slope(self.predictions(w))
        weighted = self.shares * (slopes if w.ndim == 1 else slopes.mT)
        return weighted @ self.X + self.l2 * w

    def steepness(self, w: Tensor) -> float:
        """The largest slope, each in units of its column, the largest one's size over a power of two: columns that a
        penalty outweighs are small."""
        return largest(self.gradient(w) / self.sizes)

    def unsolved(self, w: Tensor, ahead: Tensor) -> float:
        """|H(w - ahead) - g|/|g|: what a step leaves of its linear system, H by a difference of gradients."""
        here = self.gradient(w) / self.sizes
        moved = (self.gradient(w + LITTLE * (ahead - w)) / self.sizes - here) / LITTLE
        found = float((moved + here).norm() / here.norm().clamp(min=1e-300))
        return found if math.isfinite(found) else math.inf

    def weakest(self, bent: float) -> float:
        """The least eigenvalue of a Hessian whose predictions have a sixteenth of this curvature, with the penalties:
        they hold columns that cannot be told apart, and leave others to their moments."""
        moments = self.X.mT @ (self.shares.unsqueeze(-1) * self.X)
        return least_eigenvalue(bent / 16 * moments + torch.diag(self.l2))[0]

    def known(self, w: Tensor) -> bool:
        """Whether the gradient's rounding leaves the coefficients where they are; of classes each by itself."""
        s = self.predictions(w)
        for bent in self.curvature(s).reshape(len(self.X), -1).mT:
            hessian = self.X.mT @ ((self.shares * bent).unsqueeze(-1) * self.X) + torch.diag(self.l2)
            least, rank = least_eigenvalue(hessian)
            rounding = UNIT["float64"] * largest(self.shares @ self.X.abs())
            if not rank or rounding > BLURRED * least * max(largest(w), 1.0):
                return False
        return True

    def forward(self, w: Tensor, ahead: Tensor, value: float, size: float) -> Tensor | None:
        """The step, halved until the value falls, or the gradient where rounding hides that; None where neither does.

        A gradient alone says little: of Huber's loss it is small far away, too, where all examples are outliers."""
        rounding = SAME * (abs(value) + 1)
        for halving in range(HALVINGS):
            tried = ahead if not halving else w + 0.5**halving * (ahead - w)
            found = self.value(tried)
            if found < value - rounding or (found <= value + rounding and self.steepness(tried) < size):
                return tried
        return None


Take = Callable[[Tensor, int], tuple[Run, Tensor]]
"""The run of a network for an iterate and so many steps of the inverse, and where it ends."""


class _Inverse:
    """How many steps the inverse takes; one of so many that their rounding leads away has fewer, for good."""

    def __init__(self, objective: Objective, take: Take, depth: int) -> None:
        self.objective, self.take, self.depth, self.accepted = objective, take, depth, COARSE / 2
        self.most = MOST_INVERSIONS

    def step(self, w: Tensor) -> tuple[Run, Tensor]:
        """The run and where it ends; with a deeper inverse if that leaves less of the system than half."""
        run, ahead, left = self._taken(w)
        while left > 2 * self.accepted and self.depth + MORE <= self.most:
            before, self.depth = self.depth, self.depth + MORE
            other, further, less = self._taken(w)
            if not less < left / 2:
                self.accepted, self.depth = left, before
                break
            run, ahead, left = other, further, less
        return run, ahead

    def _taken(self, w: Tensor) -> tuple[Run, Tensor, float]:
        """The run, where it ends, and what that leaves of the system."""
        while True:
            try:
                run, ahead = self.take(w, self.depth)
            except OutsideBoundsError:
                if self.depth <= MORE:
                    raise
                self.depth = self.most = self.depth - MORE
            else:
                return run, ahead, self.objective.unsolved(w, ahead)


def newton_steps(objective: Objective, w: Tensor, tol: float, most: int, take: Take, depth: int,
                 report: Report) -> Solved:  # fmt: skip
    """Steps until the gradient is small; depth: how many steps the inverse takes at first."""
    inverse, run, value = _Inverse(objective, take, depth), None, objective.value(w)
    size = objective.steepness(w)
    for step in range(1, most + 1):
        report(f"step {step}: gradient {size:.1e}")
        run, ahead = inverse.step(w)
        tried = objective.forward(w, ahead, value, size)
        short = largest(ahead - w) <= SHORT * max(largest(w), 1.0)
        if tried is None:
            return Solved(w, run, step, size <= max(tol, FLOOR) and short and objective.known(w))
        w, value, before, size = tried, objective.value(tried), size, objective.steepness(tried)
        if size <= tol and short and (size <= tol / 100 or size > before / 4):
            return Solved(w, run, step, objective.known(w))
    if run is None:
        raise InputError(f"max_iter={most} leaves no step to take.")
    return Solved(w, run, most, False)


def fit_smooth(loss: Loss, value: Callable[[Tensor, Tensor], Tensor], data: Scaled, y: Tensor, l2: list[float],
               tol: float, most: int, report: Report, start: Tensor | None = None) -> Solved:  # fmt: skip
    """A loss of one prediction; value: the loss itself, plainly."""
    X, shares = data.X, data.shares
    n, d = X.shape
    squares = X.square().sum(1)

    def curvature(s: Tensor) -> Tensor:
        found = torch.ones(n, dtype=torch.float64)
        for factor in loss.factors:
            found = found * factor.slope(s, y)
        return found

    objective = Objective(data, l2, lambda s: value(s, y), lambda s: loss.slope(s, y), curvature)

    def take(w: Tensor, depth: int) -> tuple[Run, Tensor]:
        bent = objective.shares * curvature(X @ w)
        own = _counts_prompt(data, y, w, l2, bent) if loss.name == "poisson" else _prompt(loss, data, y, w, l2)
        trace = own.factor * float(bent @ own.X.square().sum(1)) * (1 + 1e-6) + 1e-12
        bounds = {"x": power(largest(own.X)), "y": power(max(largest(own.y), MOST_LABELS)), "curvature": trace,
                  "w": power(2.0**10 * (1 + largest(own.w)))}  # fmt: skip
        for _ in range(4):
            bounds["s"] = min(own.reach, power(d * bounds["x"] * bounds["w"]))
            network = newton_descent(own.loss, features=len(own.w), examples=n, inversions=depth, l2=own.l2,
                                     bounds=bounds)  # fmt: skip
            run = Run(network, given(own.X, own.y, own.w, shares, own.tilt), own.shift)
            try:
                return run, run.scaled()
            except OutsideBoundsError:
                bounds["w"] *= 2.0**10
        raise OutsideBoundsError("The coefficients grow without bound on these data; use a larger penalty.")

    w = torch.zeros(d, dtype=torch.float64) if start is None else start
    bent = curvature(X @ w)
    share = float(objective.shares @ bent)
    top = float((objective.shares * bent) @ squares) + max(l2)
    weakest = max(objective.weakest(share), 1e-12 * top, 1e-300)
    return newton_steps(objective, w, tol, most, take, min(inversions(top, weakest), MOST_INVERSIONS), report)


class _Prompt(NamedTuple):
    """What a network is given at an iterate: a loss and its largest |s|, examples, labels, coefficients, penalties and
    tilt; what is added to the coefficients that it returns; and what the objective was multiplied with."""

    loss: Loss
    reach: float
    X: Tensor
    y: Tensor
    w: Tensor
    l2: list[float]
    tilt: Tensor | None = None
    shift: Tensor | None = None
    factor: float = 1.0


def _prompt(loss: Loss, data: Scaled, y: Tensor, w: Tensor, l2: list[float]) -> _Prompt:
    """The data as they are; of Huber's loss what w leaves of the labels, since outliers and small scales make them
    large beside it. There a step starts at zero, the penalty's slope at w is a tilt, and what is left is moved to
    BEYOND where it is more, for from there it pulls alike."""
    if loss.name == "huber":
        left, tilt = (y - data.X @ w).clamp(-BEYOND, BEYOND), torch.tensor(l2, dtype=torch.float64) * w
        return _Prompt(loss, 4.0, data.X, left, torch.zeros_like(w), l2, tilt, w)
    return _Prompt(loss, power(max(largest(data.X @ w) * 1.01, 4.0)), data.X, y, w, l2)


def _counts_prompt(data: Scaled, y: Tensor, w: Tensor, l2: list[float], bent: Tensor) -> _Prompt:
    """exp, held where it is largest; bent: the examples' shares times their curvatures.

    exp(s) - y s is e^(m - c) times exp(t + c) - y e^(c - m) t and a constant, t = s - m. A head for |t| <= reach errs
    by a share of its largest value, exp(reach + c) = e^4; so m puts the largest prediction there. An intercept takes up
    m. Without one the prompt has a further column, all NARROW, whose coefficient is -m/NARROW: it has a share of NARROW
    in the gradient and of its square in the Hessian, and a penalty, as large as the others' mean curvature, that holds
    it where it is. So the other coefficients step as they would without it, but for NARROW² of their step.
    """
    s, one = data.X @ w, torch.ones(1, dtype=torch.float64)
    wanted = float(s.max() - s.min()) / 2 * 1.01
    reach = next((size for size in REACHES if size >= wanted), power(wanted))
    middle = float(s.max()) - reach * (1 - 2.0**-10)
    factor = math.exp(4 - reach - middle)
    lowered = Loss(f"exp(s - {int(reach) - 4}) - y", "poisson", "nonnegative")
    penalties = [v * factor for v in l2]
    if data.ones:
        shift = torch.cat([torch.zeros(len(w) - 1, dtype=torch.float64), one * middle])
        return _Prompt(lowered, reach, data.X, y * factor, w - shift, penalties, None, shift, factor)
    held, beside = power(factor * float(bent @ data.X.square().sum(1)) / len(w)), -one * (middle / NARROW)
    X = torch.cat([data.X, torch.full((len(y), 1), NARROW, dtype=torch.float64)], 1)
    tilt = torch.cat([torch.zeros_like(w), -held * beside])
    return _Prompt(lowered, reach, X, y * factor, torch.cat([w, beside]), [*penalties, held], tilt,
                   torch.zeros_like(w), factor)  # fmt: skip


def fit_classes(data: Scaled, labels: Tensor, classes: int, l2: list[float], tol: float, most: int,
                report: Report) -> Solved:  # fmt: skip
    """Multinomial logistic regression of labels 0, ..., classes - 1."""
    X, shares = data.X, data.shares
    n, d = X.shape
    Y = torch.nn.functional.one_hot(labels, classes).double()
    objective = Objective(data, l2, lambda s: s.logsumexp(1) - (s * Y).sum(1), lambda s: s.softmax(1) - Y,
                          lambda s: s.softmax(1) * (1 - s.softmax(1)))  # fmt: skip
    squares = X.square().sum(1)

    def take(W: Tensor, depth: int) -> tuple[Run, Tensor]:
        p = (X @ W.mT).softmax(1)
        trace = float(objective.shares @ ((p - p * p).sum(1) * squares)) * (1 + 1e-6) + 1e-12
        bound = power(2.0**10 * (1 + largest(W)))
        for _ in range(4):
            network = Multinomial(features=d, classes=classes, examples=n, inversions=depth, l2=l2,
                                  x=power(largest(X)), w=bound, curvature=trace)  # fmt: skip
            try:
                return Run(network, given(X, Y, W, shares)), network(X, Y, W, shares)
            except OutsideBoundsError:
                bound *= 2.0**10
        raise OutsideBoundsError("The coefficients grow without bound on these data; use a larger penalty.")

    top = float(objective.shares @ squares) * (1 - 1 / classes) + max(l2)
    depth = inversions(top, objective.weakest(1 / classes))
    start = torch.zeros(classes, d, dtype=torch.float64)
    return newton_steps(objective, start, tol, most, take, min(depth, MOST_INVERSIONS), report)
