"""Kernel ridge regression, the mean of a Gaussian process, inside one forward pass: every step one head with a sink.

(K + n l2) α = y with K_ij = exp(-|x_i - x_j|²/(2 length²)), and f(q) = sum over j of k(q, x_j) α_j. With b = n α:

    (K/n + l2) b = y,        f(q) = mean over j of k(q, x_j) b_j

K b/n is attention over the examples with a sink (`reading.py`): values b, no normaliser, the same weights for every n.
A step is second-order Richardson iteration, which is Chebyshev's in the limit and has constant coefficients,

    b_{t+1} = b_t + η(y - l2 b_t - K b_t/n) + v_t,    v_{t+1} = μ(b_{t+1} - b_t),    b_0 = 0,  v_0 = -η y/2

η = (2/(sqrt(L) + sqrt(l)))², μ = ((sqrt(L) - sqrt(l))/(sqrt(L) + sqrt(l)))² for an interval [l, L] that holds the
eigenvalues s of M = K/n + l2: K is positive and has ones on its diagonal, so they lie in [l2, 1 + l2].

*Iteration.* Let ρ = sqrt(μ), c(s) = (1 + μ - ηs)/(2ρ) = cos θ in [-1, 1]. The error b_t - M^-1 y is -e_t(M) M^-1 y with
e_{t+1} = 2ρc e_t - ρ² e_{t-1}, e_0 = 1, e_1 = 1 - ηs/2, so that in Chebyshev's polynomials

    e_t = ρ^t (T_t(c) + κ U_{t-1}(c)),   κ = (1 - μ)/(2ρ),   |e_t| <= ρ^t (1 + κ t)

Norms of vectors are root mean squares over examples. For any d, |mean_j k(q, x_j) d_j| <= ‖(K/n)^{1/2} d‖: it is an
inner product with k(q, ·), which has length one. So f_T(q) is off by ‖y‖ max_s sqrt(s - l2)|e_T(s)|/s, at most
‖y‖ρ^T(1 + κT)/(2 sqrt(l2)).

*Squares.* Levels of scores that are off by δ_i, at most λ(X) =: δ (`kernels.py`), make K into K~ = E K E with E =
diag(e^{δ_i}): a positive matrix too, whose M~ has its eigenvalues in [l2, l2 + e^{2δ}]. The iteration's fixed point
becomes b~ with (K~/n + l2)b~ = y. For c = E b~ that is M c = y + v, v = (E^-1 - 1)y - l2(E^-2 - 1)c, and ‖b~‖ <=
‖y‖/l2. So ‖v‖ <= ((e^δ - 1) + e^δ(e^{2δ} - 1))‖y‖, and the prediction, e^{δ_q} mean k(q, x_j)c_j, moves by

    ((1 + ‖v‖/‖y‖)e^{δ_q} - 1)‖y‖/(2 sqrt(l2)),        about (3δ + δ_q)‖y‖/(2 sqrt(l2))

at most, and what is said of M above and below holds for M~, predictions times e^{δ_q}.

*Weights.* Of examples that count w_j, 0 < w_j <= 1, let S = diag(sqrt w_j). The prediction that they ask for is the
mean of k(q, x_j) sqrt(w_j) b_j with (S K S/n + l2) b = S y. So labels are multiplied with sqrt(w_j), and levels have
the *offset* ln sqrt(w_j): S K S is positive with a diagonal of at most ones, and steps are as above.

*Other perturbations.* Let the step commit p_t. Its effect on b is ρ^k U_k(c) p_t, k steps later. In plain norm that is
at most (k + 1)ρ^k, in all G = 1/(1 - ρ)². For the prediction, s - l2 <= (4ρ/η) sin²(θ/2) and |U_k| <= 1/sin θ give at
most min(sqrt(s)(k + 1), w)ρ^k with w = sqrt(ρ/η)/cos(θ/2), θ at the largest s: in all W = min(G, w/(1 - ρ)). L is
chosen a tenth above 1 + l2 for the sake of w. The sizes of p: with entries of K~ off by ε (scores by π, `kernels.py`;
exp by 5ρ; the sink by e^-c) the head errs by (ε + γ_{n+2}(1 + ε))‖b‖ =: ε_g‖b‖, since mean|b| <= ‖b‖, and the update's
eight roundings lose γ_8 of the sum of its terms' sizes.

*The size of b.* (1 - e_t(s))/s <= 1/l2 as long as tθ <= π/2, since both polynomials are positive there; beyond,
s - l2 >= (4ρ/η)/(4t²), and it is at most (1 + ρ^t(1 + κt))/s. With B_0 the largest over t, times ‖y‖, the network's own
b stays below B = (B_0 + G p_0)/(1 - G p_1) by induction, where p_0 + p_1‖b‖ bounds a step's perturbation.

*Bound.* The squares' part, and e^{δ_q} times ‖y‖ρ^T(1 + κT)/(2 sqrt(l2)) + W(p_0 + p_1 B), and ε_g B with the ε_g of
the queries. The exact answer does not enter: it is proved without a matrix being solved. No answer is larger than
‖y‖/(2 sqrt(l2)), so that a bound beyond twice that says nothing: then that is the bound, the level is `trivial`, and
runs refuse larger answers. What is known of one prompt is far more (`kernel_certificate.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from flint import arb
from torch import Tensor

from anchorhead.digits import Up
from anchorhead.dtypes import LEAST_NORMAL
from anchorhead.enclosure.precision import precision, upper
from anchorhead.errors import InputError, ToleranceError
from anchorhead.head.own_precision import in_own_precision
from anchorhead.in_context.bounds import SLACK, OutsideBoundsError, counts, positive
from anchorhead.in_context.kernels import KernelNetwork, squared_distances
from anchorhead.in_context.network import Layers, State, stated
from anchorhead.in_context.reading import Reading
from anchorhead.in_context.stability import gamma
from anchorhead.model.outside import behind_transforms
from anchorhead.progress import Progress, telling
from anchorhead.proof.certificate import Certificate, rest_above

SINK = 40.0
"""c: a sink's score, and e^-c its share of the error."""
BEYOND = 1.1
"""L - l2."""
WITHIN = 1 - 2.0**-20
"""l/l2."""
TOP = 1.01
"""What the largest eigenvalue of K~/n stays below."""
MOST_STEPS = 1_000_000
SETTLED = 1e-10
"""The iteration's share of the error that steps are chosen for, where they are not given, in units of y."""


def kernel_ridge(
    features: int,
    length: float,
    l2: float,
    steps: int | None = None,
    *,
    examples: int = 1000,
    bounds: Mapping[str, float] | None = None,
    dtype: torch.dtype = torch.float64,
    progress: bool | Progress = True,
) -> KernelRidgeNetwork:
    """A network that predicts by kernel ridge regression: model(X, y, query), for every number of examples.

    length: of the kernel exp(-|x - x'|²/(2 length²)); scikit-learn's gamma is 1/(2 length²), its alpha n·l2.
    steps: of the iteration; by default as many as leave it an error of 1e-10 of the largest label.
    examples: the largest number of them; only rounding depends on it.
    bounds: the largest absolute entry of x, query and y, by default 6, 6 and 50.
    progress: as for `ah.compile`.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    >>> y = X @ torch.tensor([1.0, 2.0], dtype=torch.float64)
    >>> model = ah.in_context.kernel_ridge(features=2, length=1.0, l2=0.1, examples=4)
    >>> model(X, y, X[:1]).shape, model.certificate.level
    (torch.Size([1]), 'proved')
    """
    size, penalty = positive("length", length), positive("l2", l2)
    coefficients = coefficients_for(penalty)
    if steps is None:
        steps = enough_steps(penalty, SETTLED)
    (count,) = counts(steps=steps)
    with telling("making a network for kernel ridge regression", progress):
        return KernelRidgeNetwork(features, examples, size, penalty, count, coefficients, bounds, dtype)


def coefficients_for(l2: float) -> tuple[float, float]:
    """η and μ."""
    low, high = math.sqrt(l2 * WITHIN), math.sqrt(l2 + BEYOND)
    return (2 / (high + low)) ** 2, ((high - low) / (high + low)) ** 2


def enough_steps(l2: float, tol: float) -> int:
    """The fewest steps whose iteration error is at most `tol` in units of ‖y‖; refused where they are too many."""
    rates = Rates.of(*coefficients_for(l2), l2)
    low, high = 0, 1
    with precision():
        while not rates.left(high) <= tol:
            low, high = high, 2 * high
            if high > 2 * MOST_STEPS:
                raise ToleranceError(
                    f"l2={l2:g} needs more than {MOST_STEPS:,} steps for an error of {tol:g} of the labels; use a "
                    "larger l2."
                )
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if rates.left(middle) <= tol else (middle, high)
    return high


class Rates(NamedTuple):
    """How the iteration converges and spreads what is committed on its way; symbols of the top, for stored η and μ."""

    l2: arb
    rate: arb
    root: arb
    extra: arb
    slack: arb
    widest: arb

    @classmethod
    def of(cls, rate: float, momentum: float, l2: float) -> Rates:
        """Refused where rounding the coefficients leads out of the interval in which the polynomials are bounded."""
        with precision():
            root, push = arb(momentum).sqrt(), arb(momentum)
            first, last = ((1 + push - arb(rate) * s) / (2 * root) for s in (arb(l2), arb(l2) + TOP))
            if not (first <= 1 and last > -1):
                raise ToleranceError(f"l2={l2:g} is too small for float64, where the kernel's eigenvalues go up to 1.")
            widest = (root / rate).sqrt() / ((1 + last) / 2).sqrt()
            return cls(arb(l2), arb(rate), root, (1 - push) / (2 * root), 1 - first, widest)

    def shrunk(self, t: int) -> arb:
        """ρ^t (1 + κ t)."""
        return self.root**t * (1 + self.extra * t)

    def left(self, steps: int) -> arb:
        """The iteration's error in a prediction, in units of ‖y‖."""
        return self.shrunk(steps) / (2 * self.l2.sqrt())

    def spread(self) -> tuple[arb, arb]:
        """G and W."""
        plain = 1 / (1 - self.root) ** 2
        return plain, (TOP * plain).min(self.widest / (1 - self.root))

    def growth(self, steps: int) -> arb:
        """B_0 in units of ‖y‖."""
        found, t = arb(1), 1
        while t <= steps:
            above = (self.root / self.rate * (1 / arb(t) ** 2 - 2 * self.slack)).max(arb(0))
            found = found.max((1 + self.shrunk(t)) / (1 + above / self.l2))
            if self.shrunk(t) < 2.0**-6 and t * (1 - self.root) > 2:
                return found.max(1 + self.shrunk(t)) / self.l2
            t += 1
        return found / self.l2


class KernelRidgeNetwork(KernelNetwork):
    """See `kernel_ridge`. The certificate bounds the distance from the answer of kernel ridge regression itself.

    >>> ah.in_context.kernel_ridge(features=2, length=1.0, l2=0.1, examples=4).certificate.level
    'proved'
    """

    coefficients: Tensor

    def __init__(self, features: int, examples: int, length: float, l2: float, steps: int,
                 coefficients: tuple[float, float], bounds: Any, dtype: torch.dtype) -> None:  # fmt: skip
        super().__init__(features, examples, (1 / length) * (1 / length), bounds, dtype)
        self.length, self.l2, self.steps = length, l2, steps
        self.gain = 1 + 0.5 / math.sqrt(l2)  # |f(q)| <= ‖y‖/(2 sqrt(l2)), as at the top
        self.register_buffer("coefficients", torch.tensor([*coefficients, l2], dtype=dtype))
        self.claim(self._proved())

    def _proved(self) -> Certificate:
        """The bound of the top, or, where that says less, what follows from how large answers may be."""
        with precision():
            exact, whole = upper(self._error(0.0)), upper(self._error(self.unit))
        if not whole < self._apart():
            return self._trivial()
        return self._stated(exact, rest_above(whole, exact), ())

    def _stated(self, exact: float, rounding: float, said: tuple[str, ...], level: str = "proved") -> Certificate:
        at_most = f"prompts have at most {self.examples:,} examples, which every run checks"
        return stated(f"kernel ridge regression of length {self.length:g} and l2 = {self.l2:g}", dict(self.limits),
                      self.unit_name, exact, rounding, (at_most, *said), level)  # fmt: skip

    def _trivial(self) -> Certificate:
        said = f"answers are at most {Up(self._apart() / 2):.4g} in absolute value, which every run checks"
        return self._stated(self._apart(), 0.0, (said,), "trivial")

    def _apart(self) -> float:
        """How far two answers may be apart: twice |f(q)| <= ‖y‖/(2 sqrt(l2))."""
        with precision():
            return upper(arb(self.limits["y"]) * (1 + arb(SLACK)) / arb(self.l2).sqrt())

    def forward(self, X: Tensor, y: Tensor, query: Tensor, mask: Tensor | None = None) -> Tensor:
        found: Tensor = super().forward(X, y, query, mask)
        self.check_run((), found)
        return found

    def check_run(self, states: Sequence[State], result: Tensor) -> None:
        if self._claimed.level == "trivial" and not torch.compiler.is_compiling():
            most = behind_transforms(lambda v: float(v.abs().amax()), result) if result.numel() else None
            if most is not None and not most <= self._apart() / 2:
                raise OutsideBoundsError(
                    f"An answer is {most:.4g}, more than kernel ridge regression can answer, "
                    f"{Up(self._apart() / 2):.4g}: rounding has taken over. Use an l2 larger than {self.l2:g}."
                )

    def begin(self, how: Reading, X: Tensor, y: Tensor, query: Tensor, mask: Tensor | None = None) -> State:
        """Rows and columns of the examples and rows of the queries as at the top of `kernels.py`, and b_0, v_0."""
        return self.started(how, X, y.unsqueeze(-1), query, mask)

    def started(self, how: Reading, X: Tensor, y: Tensor, query: Tensor, mask: Tensor | None = None,
                offsets: Tensor | None = None) -> State:  # fmt: skip
        """The same for several sets of labels, y (..., n, targets); offsets (n, 1) of levels, as at the top."""
        scale, one = self.scale.to(X.dtype), torch.ones_like(X[..., :1])
        squares, asked = self.columns(how, X), self.columns(how, query)
        squares = squares if offsets is None else squares + offsets
        state = {
            "rows": torch.cat([X * scale, squares, one], -1),
            "columns": torch.cat([X, one, squares], -1),
            "asked": torch.cat([query * scale, asked, torch.ones_like(query[..., :1])], -1),
            "y": y,
            "b": 0 * y,
            "push": y * (-self.coefficients[0].to(X.dtype) / 2),
        }
        return state if mask is None else state | {"mask": mask}

    @in_own_precision
    def learned(self, X: Tensor, Y: Tensor, offsets: Tensor | None = None, report: Progress | None = None) -> Tensor:
        """b for several sets of labels, (n, targets) for Y (n, targets): what a run has before it looks at queries."""
        how = Reading()
        state = self.started(how, X, Y, X[:1], offsets=offsets)
        for step in range(self.steps):
            if report is not None and step % 100 == 0:
                report(f"step {step + 1:,} of {self.steps:,} on {len(X):,} examples")
            state = self.step(how, state)
        return state["b"]

    @in_own_precision
    def answered(self, X: Tensor, b: Tensor, query: Tensor, offsets: Tensor | None = None) -> Tensor:
        """What a run answers with such b, (m, targets)."""
        how = Reading()
        return self._answers(how, self.started(how, X, b, query, offsets=offsets) | {"b": b})

    def step(self, how: Reading, state: State) -> State:
        rate, momentum, l2 = self.coefficients.to(state["b"].dtype)
        b = state["b"]
        mean = how.blend(state["rows"], state["columns"], b, state.get("mask"), SINK)
        after = b + rate * (state["y"] - l2 * b - mean) + state["push"]
        return state | {"b": after, "push": momentum * (after - b)}

    def end(self, how: Reading, state: State) -> Tensor:
        return self._answers(how, state).squeeze(-1)

    def _answers(self, how: Reading, state: State) -> Tensor:
        return how.blend(state["asked"], state["columns"], state["b"], state.get("mask"), SINK)

    def layers(self) -> Layers:
        return [(1, [self.square]), (self.steps + 1, [self.prompt_head(2)])]

    def target(self, X: Tensor, y: Tensor, query: Tensor, mask: Tensor) -> Tensor:
        """By a Cholesky factor; examples that do not count have a kernel of zero with all others."""
        both = mask.unsqueeze(-1) & mask.unsqueeze(-2)
        kernel, asked = (squared_distances(q, X).mul(-0.5 / self.length**2).exp() for q in (X, query))
        eye, count = torch.eye(X.shape[-2], dtype=X.dtype, device=X.device), mask.sum(-1).to(X.dtype)[..., None, None]
        factor = torch.linalg.cholesky(torch.where(both, kernel, 0.0) + count * self.l2 * eye)
        weights = torch.cholesky_solve(torch.where(mask, y, 0.0).unsqueeze(-1), factor)
        return (asked @ weights).squeeze(-1)

    def extra_repr(self) -> str:
        return f"kernel ridge, length {self.length:g}, l2 {self.l2:g}, {self.steps} steps, {self.features} features"

    def kernel_error(self, other: str, unit: float, offset: float = 0.0) -> arb:
        """ε_g, for queries of the size that `other` names, and examples with offsets up to this size."""
        moved = self.product_error(1 / arb(self.length) ** 2, other, unit) + gamma(self.features + 4, unit) * offset
        entry = TOP * (moved.expm1() * (1 + 5 * arb(unit)) + 5 * arb(unit) + 2 * arb(-SINK).exp())
        return entry + gamma(self.examples + 2, unit) * (TOP + entry)

    def _error(self, unit: float) -> arb:
        """The bound of the top, for this unit roundoff."""
        size, stored = arb(self.limits["y"]) * (1 + arb(SLACK)), self.coefficients.double().tolist()
        rates, (rate, momentum, l2) = Rates.of(*stored), map(arb, stored)
        level, asked_level = self.level_error("x", unit), self.level_error("query", unit)
        error, asked = self.kernel_error("x", unit), self.kernel_error("query", unit)
        plain, seen = rates.spread()
        lost = LEAST_NORMAL[self.unit_name] * (self.examples + 20) * (1 + rate) * (1 + l2)
        fixed = gamma(12, unit) * rate * size + lost
        share = rate * error + gamma(8, unit) * (1 + rate * l2 + 2 * momentum + rate * (TOP + error))
        share += rate * abs(l2 - arb(self.l2))
        if not (plain * share < 0.5 and (level + asked_level).exp() < TOP):
            raise ToleranceError(
                f"In {self.unit_name} a step's errors may grow beyond the answer for l2={self.l2:g} and "
                f"length={self.length:g}. Use float64, a larger l2 or length, smaller bounds, or fewer examples."
            )
        reach = (rates.growth(self.steps) * size + plain * fixed) / (1 - plain * share)
        if not reach < 2.0**100:
            raise InputError(f"The weights of the examples may reach {Up(upper(reach)):.3g}; use a larger l2.")
        squares = level.expm1() + level.exp() * (2 * level).expm1()
        squares = ((1 + squares) * asked_level.exp() - 1) * size / (2 * l2.sqrt())
        return (
            squares
            + asked_level.exp() * (rates.left(self.steps) * size + seen * (fixed + share * reach))
            + asked * reach
        )
