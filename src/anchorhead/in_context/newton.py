"""Least squares by Newton's method inside one forward pass: the inverse of the Hessian by Newton and Schulz.

With A = X^T X/n + diag(l2) and b = X^T y/n:   M_{k+1} = 2 M_k - M_k A M_k,  M_0 = 1/Λ,   w = M_T b

`inverse.py` has the iteration and its bound. A and b take a layer, a step two, the end one. About log2(Λ/λ) steps are
enough, where gradient descent needs Λ/λ of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from flint import arb
from torch import Tensor

from anchorhead.digits import Down
from anchorhead.dtypes import LEAST_NORMAL, UNIT
from anchorhead.enclosure.precision import precision, upper
from anchorhead.errors import InputError, ToleranceError
from anchorhead.in_context import bounds as limits
from anchorhead.in_context.bounds import DTYPES, SLACK, Bounds, counts, dtype_name, read_bounds, read_penalties
from anchorhead.in_context.heads import Factor
from anchorhead.in_context.inverse import Inversion
from anchorhead.in_context.network import INCLUDED, InContextNetwork, Layers, State, stated
from anchorhead.in_context.reading import Reading
from anchorhead.in_context.stability import gamma
from anchorhead.progress import Progress, telling
from anchorhead.proof.rounding import LARGEST

MOST_STEPS = 10_000


def newton(
    *,
    features: int,
    examples: int,
    steps: int,
    l2: float | Sequence[float] = 0.0,
    bounds: Mapping[str, float] | None = None,
    dtype: torch.dtype = torch.float64,
    progress: bool | Progress = True,
) -> Newton:
    """A network that solves least squares with penalty l2·w²/2 on its prompt by `steps` steps of Newton and Schulz.

    bounds: as for `gradient_descent`; w is not needed, and curvature decides how many steps are needed.
    progress: as for `ah.compile`.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    >>> y = X @ torch.tensor([1.0, 2.0], dtype=torch.float64)
    >>> newton = ah.in_context.newton(features=2, examples=4, steps=20)
    >>> [round(w, 6) for w in newton(X, y).tolist()]
    [1.0, 2.0]
    """
    counts(features=features, examples=examples, steps=steps)
    if steps > MOST_STEPS:
        raise InputError(f"steps must be at most {MOST_STEPS:,}; digits double with each, so that fewer than 100 do.")
    penalties = read_penalties("l2", l2, features)
    dtype_name(dtype)
    with telling("making a network for least squares by Newton and Schulz", progress):
        return Newton(features, examples, steps, penalties, read_bounds(bounds, features), dtype)


class Newton(InContextNetwork):
    """See `newton`. `certificate` bounds |w - the algorithm's w|; `to_optimum` its distance from the minimiser.

    >>> ah.in_context.newton(features=2, examples=4, steps=20).certificate.level
    'proved'
    """

    l2: Tensor

    def __init__(
        self, features: int, examples: int, steps: int, l2: tuple[float, ...], declared: Bounds, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.features, self.examples, self.steps = features, examples, steps
        self.bounds, self.dtype = declared, dtype
        self.register_buffer("l2", torch.tensor(l2, dtype=dtype))
        self.inversion = Inversion(features, steps, declared.curvature + max(l2), min(l2))
        self.x, self.label = Factor(declared.x), Factor(declared.y)
        curved = f"the largest eigenvalue of X^T X/n is at most {Down(declared.curvature):.4g}, which every run checks"
        self.claim(stated(f"w after {steps} steps of Newton and Schulz on least squares",
                          {"x": declared.x, "y": declared.y}, DTYPES[dtype], self._deviation(DTYPES[dtype]), 0.0,
                          (INCLUDED, curved)))  # fmt: skip

    @property
    def to_optimum(self) -> float:
        """A bound on the distance of the algorithm's w from the minimiser; infinite without l2."""
        weakest = self.inversion.weakest
        if weakest == 0:
            return math.inf
        with precision():
            size = arb(self.features).sqrt() * self.bounds.x * self.bounds.y * (1 + arb(SLACK)) ** 2
            return upper(self.inversion.residual(self.steps) / weakest * size)

    def forward(self, X: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """w, (..., d)."""
        found: Tensor = self.fast(X, y, mask)
        return found

    def begin(self, how: Reading, X: Tensor, y: Tensor, mask: Tensor | None = None) -> State:
        """A, b and M_0."""
        shares = limits.mean_weights(X, mask).unsqueeze(-1) * X
        A = how.product(self.x, X.mT, shares) + torch.diag(self.l2)
        return {"A": A, "b": how.gather(self.label, (y,), shares), "M": self.inversion.begin(A)}

    def step(self, how: Reading, state: State) -> State:
        return state | {"M": self.inversion.step(how, state["A"], state["M"])}

    def end(self, how: Reading, state: State) -> Tensor:
        return how.product(self.inversion.inverse, state["M"], state["b"].unsqueeze(-1)).squeeze(-1)

    def layers(self) -> Layers:
        return [(1, [self.x, self.label]), (self.steps, [self.inversion.moment]),
                (self.steps + 1, [self.inversion.inverse])]  # fmt: skip

    def shapes(self, examples: int) -> dict[str, tuple[int, ...]]:
        return {"X": (examples, self.features), "y": (examples,)}

    def checked(self, X: Tensor, y: Tensor, mask: Tensor | None = None) -> tuple[Any, ...]:
        limits.check_examples(X, y, self.features, self.examples, self.dtype)
        X, y = limits.masked(X, y, mask)
        X, y = limits.within(X, self.bounds.x, "X"), limits.within(y, self.bounds.y, "y")
        limits.check_curvature(X, mask, self.bounds, "the declared curvature", "Declare a larger bounds['curvature']")
        return X, y, mask

    def extra_repr(self) -> str:
        return f"least squares, {self.steps} steps of Newton and Schulz, {self.examples} x {self.features}"

    def _deviation(self, dtype: str) -> float:
        """A bound on |w - the algorithm's w|, rounding included; refused where it would not stay finite."""
        d, n, unit, top = self.features, self.examples, arb(UNIT[dtype]), self.inversion.top
        with precision():
            x, y = (arb(v) * (1 + arb(SLACK)) for v in (self.bounds.x, self.bounds.y))
            lost = LEAST_NORMAL[dtype] * (n + 8) * (1 + x) * (1 + y)
            # casts of the head's output and of 1/n (2), products (2), a sum of n, l2 and its sum
            formed = d * (self.x.error * x + gamma(n + 6, unit) * (x + self.x.error) * x + lost)
            formed += 3 * unit * d * arb(top) * (1 + arb(3 * SLACK))
            largest = arb(max(self.inversion.sizes))
            if not (x * x + x * y + top) * (1 + largest) * (1 + largest * (1 + top)) < LARGEST[dtype]:
                raise ToleranceError(f"{dtype} cannot hold matrices of these sizes; use float64, or rescale the data.")
            root = arb(d).sqrt()
            in_b = root * (self.label.error * x + gamma(n + 6, unit) * (y + self.label.error) * x + lost)
            return upper(self.inversion.applied(formed, root * x * y, in_b, dtype))
