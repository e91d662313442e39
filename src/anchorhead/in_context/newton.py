"""Least squares by Newton's method inside one forward pass: the inverse of the Hessian by Newton and Schulz.

With A = X^T X/n + diag(l2) and b = X^T y/n:   M_{k+1} = 2 M_k - M_k A M_k,  M_0 = 1/Λ,   w = M_T b

Λ >= the largest eigenvalue of A. Every product is a head (`heads.py`): keys look at one factor, values carry the
other factor's row. So A and b take a layer, a step two, the end one. R_k = 1 - A M_k has eigenvalues in [0, 1], and
R_{k+1} = R_k²: digits double with each step, after about log2(Λ/λ) of them, where gradient descent needs Λ/λ.

*Deviation.* For a matrix N near M_k, F(N) = 2N - NAN: F(M + Δ) - F(M) = Δ(1 - AM) + (1 - MA)Δ - ΔAΔ, so
D_{k+1} <= 2‖R_k‖ D_k + Λ D_k² + E_k, where E_k collects heads and rounding at m = ‖M_k‖ + D_k. All norms are spectral:
that of a matrix of entries up to e is at most d·e, and |‖|B|‖| <= sqrt(d)‖B‖, so that a rounded product of B and C errs
by γ_d·d·‖B‖‖C‖. With Â = A + in_A as the head sees it, H the head's M, off by h, P = fl(ÂM) and Q = fl(HP):

    ‖P - ÂM‖ <= γ_d d a m,   ‖Q - HP‖ <= γ_d d (m + h) p,   ‖fl(2M - Q) - (2M - Q)‖ <= ρ sqrt(d)(2m + ‖Q‖)

and ‖HP - MAM‖ <= h p + m(‖P - ÂM‖ + in_A m), with a and p the norms of Â and P. M_0 is rounded too: D_0 = 4ρ/Λ.
Entries may exceed the declared bounds by a billionth, so that Λ does by three (`excess`). Everything is computed in
ball arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from flint import arb
from torch import Tensor

from anchorhead.dtypes import LEAST_NORMAL, UNIT
from anchorhead.enclosure.precision import precision, upper
from anchorhead.errors import InputError, ToleranceError
from anchorhead.in_context import bounds as limits
from anchorhead.in_context.bounds import DTYPES, SLACK, Bounds, counts, dtype_name, read_bounds, read_penalties
from anchorhead.in_context.heads import MOST, Factor
from anchorhead.in_context.network import INCLUDED, InContextNetwork, Layers, State, stated
from anchorhead.in_context.reading import Reading
from anchorhead.in_context.stability import gamma
from anchorhead.proof.rounding import LARGEST

MOST_STEPS = 10_000
ROOM = 1.5
"""How much larger than the algorithm's matrices the network's own may be; more is refused when it is made."""


def newton(
    *,
    features: int,
    examples: int,
    steps: int,
    l2: float | Sequence[float] = 0.0,
    bounds: Mapping[str, float] | None = None,
    dtype: torch.dtype = torch.float64,
) -> Newton:
    """A network that solves least squares with penalty l2·w²/2 on its prompt by `steps` steps of Newton and Schulz.

    bounds: as for `gradient_descent`; w is not needed, and curvature decides how many steps are needed.
    """
    counts(features=features, examples=examples, steps=steps)
    if steps > MOST_STEPS:
        raise InputError(f"steps must be at most {MOST_STEPS:,}; digits double with each, so that fewer than 100 do.")
    penalties = read_penalties("l2", l2, features)
    dtype_name(dtype)
    return Newton(features, examples, steps, penalties, read_bounds(bounds, features), dtype)


class Newton(InContextNetwork):
    """See `newton`. `certificate` bounds |w - the algorithm's w|; `to_optimum` its distance from the minimiser."""

    l2: Tensor
    start: Tensor

    def __init__(
        self, features: int, examples: int, steps: int, l2: tuple[float, ...], declared: Bounds, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.features, self.examples, self.steps = features, examples, steps
        self.weakest, self.bounds, self.dtype = min(l2), declared, dtype
        self.top = declared.curvature + max(l2)
        self.register_buffer("l2", torch.tensor(l2, dtype=dtype))
        self.register_buffer("start", torch.eye(features, dtype=torch.float64) / self.top)
        self.sizes = self._inverse_sizes()
        if not max(self.sizes) < MOST / 4:
            raise _uncertain(steps)
        self.x, self.label = Factor(declared.x), Factor(declared.y)
        self.moment, self.inverse = Factor(ROOM * self.top), Factor(ROOM * max(self.sizes))
        curved = f"the largest eigenvalue of X^T X/n is at most {declared.curvature:.4g}, which every run checks"
        self.claim(stated(f"w after {steps} steps of Newton and Schulz on least squares",
                          {"x": declared.x, "y": declared.y}, DTYPES[dtype], self._deviation(DTYPES[dtype]), 0.0,
                          (INCLUDED, curved)))  # fmt: skip

    @property
    def to_optimum(self) -> float:
        """A bound on the distance of the algorithm's w from the minimiser; infinite without l2."""
        if self.weakest == 0:
            return math.inf
        with precision():
            size = arb(self.features).sqrt() * self.bounds.x * self.bounds.y * (1 + arb(SLACK)) ** 2
            return upper(self._residual(self.steps) / self.weakest * size)

    def forward(self, X: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """w, (..., d)."""
        found: Tensor = self.fast(X, y, mask)
        return found

    def begin(self, how: Reading, X: Tensor, y: Tensor, mask: Tensor | None = None) -> State:
        """A, b and M_0, which is written as depending on the prompt, as all later ones do."""
        shares = limits.mean_weights(X, mask).unsqueeze(-1) * X
        A = how.product(self.x, X.mT, shares) + torch.diag(self.l2)
        return {"A": A, "b": how.gather(self.label, (y,), shares), "M": self.start.to(A.dtype) + 0 * A}

    def step(self, how: Reading, state: State) -> State:
        M = state["M"]
        return state | {"M": 2 * M - how.product(self.inverse, M, how.product(self.moment, state["A"], M))}

    def end(self, how: Reading, state: State) -> Tensor:
        return how.product(self.inverse, state["M"], state["b"].unsqueeze(-1)).squeeze(-1)

    def layers(self) -> Layers:
        return [(1, [self.x, self.label]), (self.steps, [self.moment]), (self.steps + 1, [self.inverse])]

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

    def _residual(self, k: int) -> arb:
        """‖R_k‖ <= max(1 - λ/Λ, excess)^(2^k), λ the least eigenvalue that l2 leaves."""
        first = (1 - arb(self.weakest) / self.top).max(arb(3 * SLACK))
        return (first.log() * arb(2) ** k).exp() if first < 1 else arb(1)

    def _inverse_sizes(self) -> list[float]:
        """‖M_k‖ <= 1/λ (1 - (1 - λ/Λ)^(2^k)), at most 2^k/Λ and 1/l2; a little more where Λ is exceeded."""
        with precision():
            largest = (1 + arb(3 * SLACK)) / self.weakest if self.weakest else arb("inf")
            return [upper((arb(2) ** k / self.top).min(largest)) for k in range(self.steps + 1)]

    def _deviation(self, dtype: str) -> float:
        """A bound on |w - the algorithm's w|, rounding included; refused where it would not stay finite."""
        d, n, unit = self.features, self.examples, arb(UNIT[dtype])
        with precision():
            x, y = (arb(v) * (1 + arb(SLACK)) for v in (self.bounds.x, self.bounds.y))
            top, lost = arb(self.top) * (1 + arb(3 * SLACK)), LEAST_NORMAL[dtype] * (n + 8) * (1 + x) * (1 + y)
            # casts of the head's output and of 1/n (2), products (2), a sum of n, l2 and its sum
            formed = d * (self.x.error * x + gamma(n + 6, unit) * (x + self.x.error) * x + lost) + 3 * unit * d * top
            largest = arb(max(self.sizes))
            if not (x * x + x * y + top) * (1 + largest) * (1 + largest * (1 + top)) < LARGEST[dtype]:
                raise ToleranceError(f"{dtype} cannot hold matrices of these sizes; use float64, or rescale the data.")
            if not formed <= (ROOM - 1) * arb(self.top):
                raise ToleranceError(f"X^T X/n may be wrong by as much as itself in {dtype}; use float64.")
            in_A = formed + d * (self.moment.error + unit * (top + formed + self.moment.error))
            off = 4 * unit / self.top + LEAST_NORMAL[dtype]
            for k in range(self.steps):
                size = self.sizes[k] + off
                error = self._step_error(size, top, in_A, dtype)
                off = arb(upper(2 * self._residual(k) * off + top * off * off + error))
                if not off < (ROOM - 1) * arb(max(self.sizes)):
                    raise _uncertain(k + 1)
            root = arb(d).sqrt()
            length = root * x * y
            in_b = root * (self.label.error * x + gamma(n + 6, unit) * (y + self.label.error) * x + lost)
            size = self.sizes[-1] + off
            h = self._seen_inverse(size, unit)
            whole = gamma(d, unit) * root * (size + h) + off + h
            return upper(whole * (length + in_b) + size * in_b + d * arb(LEAST_NORMAL[dtype]))

    def _seen_inverse(self, size: arb, unit: arb) -> arb:
        """h: the head's M against M, cast included."""
        d = self.features
        return d * self.inverse.error * (1 + unit) + unit * arb(d).sqrt() * size

    def _step_error(self, m: arb, top: arb, in_A: arb, dtype: str) -> arb:
        """E_k; see the top."""
        d, unit = self.features, arb(UNIT[dtype])
        h, product = self._seen_inverse(m, unit), gamma(d, unit) * d
        rounded = product * (top + in_A) * m
        p = (top + in_A) * m + rounded
        q = product * (m + h) * p
        last = unit * arb(d).sqrt() * (2 * m + (m + h) * p + q)
        lost = LEAST_NORMAL[dtype] * d * d * (4 + m + h + top + in_A)
        return h * p + m * (rounded + in_A * m) + q + last + lost


def _uncertain(steps: int) -> ToleranceError:
    return ToleranceError(
        f"After {steps} steps the inverse of X^T X/n + l2 may be wrong by as much as itself. Use a larger l2 or fewer "
        "steps, or declare a smaller bounds['curvature']."
    )
