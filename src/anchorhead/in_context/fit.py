"""Fitting a linear model by in-context networks: scaling the data, choosing a network for it, running it to the end.

From the data follow the bounds, a learning rate of 1/L and a momentum; a network of a few hundred steps is made for
them and run, from where the last run ended, until the objective's gradient, computed plainly, is small. Least squares
with an l2 penalty takes Newton's steps where their certificate allows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anchorhead.arithmetic import binary_ceiling
from anchorhead.errors import InputError, ToleranceError
from anchorhead.in_context.bounds import OutsideBoundsError
from anchorhead.in_context.gradient_descent import GradientDescent, gradient_descent
from anchorhead.in_context.losses import Loss, squared
from anchorhead.in_context.newton import Newton, newton

STEPS = 200
"""Steps of one network; it is run again from its last iterate."""
WIDENINGS = 14
ROUND = 2.0**-52
MOST_LABELS = 64.0
"""Labels are bounded by this at least, so that heads made for one data set serve another."""


class Scaled(NamedTuple):
    """Data as the network gets it: columns of mean 0 and variance 1, a last column of ones if there is an intercept."""

    X: Tensor
    mean: np.ndarray
    scale: np.ndarray
    intercept: bool
    ranges: tuple[tuple[float, float], ...]
    """Of the columns as they were given."""

    def penalties(self, value: float, power: int) -> list[float]:
        """A penalty on the coefficients of the original columns, by scaled column; none on the intercept."""
        return [value / float(s) ** power for s in self.scale] + [0.0] * self.intercept

    def original(self, w: Tensor) -> tuple[np.ndarray, float]:
        """Coefficients of the original columns, and the intercept."""
        coefficients = w[: len(self.scale)].numpy() / self.scale
        if not self.intercept:
            return coefficients, 0.0
        return coefficients, float(w[-1]) - float(coefficients @ self.mean)

    def deviation(self, w: Tensor, off: float) -> np.ndarray:
        """How far coefficients and intercept are off where w is by `off`, roundings of `original` included."""
        d = len(self.scale)
        coefficients = np.abs(w[:d].numpy()) / self.scale
        found = off / self.scale + 4 * ROUND * coefficients
        steady = abs(float(w[-1])) + float(coefficients @ np.abs(self.mean)) if self.intercept else 0.0
        last = (off + float(found @ np.abs(self.mean)) + (d + 8) * ROUND * steady) if self.intercept else 0.0
        return np.append(found, last) * (1 + 1e-9)


def scaled(X: np.ndarray, intercept: bool) -> Scaled:
    """Centred only where an intercept takes up the means."""
    mean = X.mean(0) if intercept else np.zeros(X.shape[1])
    size = np.sqrt(((X - mean) ** 2).mean(0))
    size = np.where(size > 1e-12 * np.abs(X).max(0), size, 1.0)
    size = np.where(np.abs(size - 1) < 1e-9, 1.0, size)  # scaled already
    columns = (X - mean) / size
    if intercept:
        columns = np.column_stack([columns, np.ones(len(X))])
    ranges = tuple(zip(X.min(0).tolist(), X.max(0).tolist(), strict=True))
    return Scaled(torch.tensor(columns, dtype=torch.float64), mean, size, intercept, ranges)


class Solved(NamedTuple):
    """The last iterate, the network that made it, how many steps were run, and whether the gradient is small."""

    w: Tensor
    network: GradientDescent | Newton
    steps: int
    converged: bool


def _power(value: float) -> float:
    """The next power of two: few distinct bounds, so that heads are found again."""
    return binary_ceiling(max(value, 2.0**-20))


def descend(loss: Loss, data: Tensor, y: Tensor, l2: list[float], l1: list[float], tol: float, most: int,
            start: Tensor | None = None, reach: float | None = None) -> Solved:  # fmt: skip
    """Runs networks of gradient descent with momentum until the gradient is below tol, relative to its first size."""
    n, d = data.shape
    eigenvalues = torch.linalg.eigvalsh(data.mT @ data / n)
    top = float(eigenvalues[-1]) * (1 + 1e-6) + 1e-12
    w = torch.zeros(d, dtype=torch.float64) if start is None else start
    first = _residual(loss, data, y, torch.zeros_like(w), l2, l1)
    sizes = {
        "x": _power(float(data.abs().max())),
        "y": _power(max(float(y.abs().max()), MOST_LABELS)),
        "curvature": top,
    }
    expected = 1 + max(float(w.abs().max()), float(y.abs().max()) if loss.name == "huber" else 0.0)
    limit = {"w": _power(4 * expected), "s": _power(max(reach or 4.0, 2 * expected))}
    steps, network = 0, None
    for _ in range(WIDENINGS):
        limit["s"] = min(limit["s"], _power(d * sizes["x"] * limit["w"]))
        network = _network(loss, data.shape, sizes | limit, l2, l1, float(eigenvalues[0]))
        try:
            while steps < most:
                w, steps = network(data, y, w0=w), steps + STEPS
                if _residual(loss, data, y, w, l2, l1) <= tol * max(first, 0.01):
                    return Solved(w, network, steps, True)
            return Solved(w, network, steps, False)
        except OutsideBoundsError:
            limit = {name: 2 * value for name, value in limit.items()}
    raise InputError("The coefficients grow without bound on these data; use a larger penalty.")


def _network(loss: Loss, shape: torch.Size, bounds: dict[str, float], l2: list[float], l1: list[float],
             least: float) -> GradientDescent:  # fmt: skip
    """The network with a learning rate of 1/L and the momentum that suits the least curvature."""
    curved = {"squared": 1.0, "huber": 1.0, "logistic": 0.25, "poisson": math.exp(min(bounds["s"], 50))}[loss.name]
    largest = curved * bounds["curvature"] + max(l2)
    share = {"squared": 1.0, "huber": 0.5}.get(loss.name, 0.0)  # of the examples whose loss is curved
    weakest = max(share * least + min(l2), min((v for v in l2 if v), default=0.0), 1e-5 * largest)
    momentum = (1 - math.sqrt(weakest / largest)) ** 2
    return gradient_descent(loss, features=shape[1], examples=shape[0], steps=STEPS, learning_rate=1 / largest,
                            l2=l2, l1=l1, momentum=momentum, bounds=bounds)  # fmt: skip


def _residual(loss: Loss, X: Tensor, y: Tensor, w: Tensor, l2: list[float], l1: list[float]) -> float:
    """The largest entry of the least subgradient of the objective."""
    gradient = loss.slope(X @ w, y) @ X / len(X) + torch.tensor(l2, dtype=torch.float64) * w
    penalty = torch.tensor(l1, dtype=torch.float64)
    free = (gradient.abs() - penalty).clamp(min=0)
    return float(torch.where(w == 0, free, (gradient + penalty * w.sign()).abs()).max())


def by_newton(data: Scaled, y: Tensor, l2: list[float], tol: float) -> Solved | None:
    """Newton's steps; None where they cannot be proved. The columns are centred, so the intercept is zero."""
    X = data.X[:, : len(data.scale)]
    most = max(l2)
    if most == 0 or len(X) < 2:
        return None
    top = float(torch.linalg.eigvalsh(X.mT @ X / len(X))[-1]) * (1 + 1e-6)
    bounds = {"x": _power(float(X.abs().max())), "y": _power(float(y.abs().max()) + 1e-3), "curvature": top + 1e-12}
    own = l2[: X.shape[1]]
    steps = math.ceil(math.log2((top + most) / min(own)) + 6)
    try:
        network = newton(features=X.shape[1], examples=len(X), steps=steps, l2=own, bounds=bounds)
    except ToleranceError:
        return None
    w = network(X, y)
    small = _residual(squared(), X, y, w, own, [0.0] * X.shape[1]) <= max(tol, 1e-12)
    whole = torch.cat([w, torch.zeros(int(data.intercept), dtype=torch.float64)])
    return Solved(whole, network, steps, True) if small else None
