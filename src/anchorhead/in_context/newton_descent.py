"""Newton's method for any smooth loss inside one forward pass: gradient, Hessian and its inverse by attention.

    w_{t+1} = w_t - M (mean of l'(w_t·x_i, y_i) x_i + l2 w_t + tilt)
    M ≈ (mean of l''(w_0·x_i, y_i) x_i x_i^T + l2)^-1

*The Hessian* A. l'' is a product of factors, each a head of s = w·x and y (`losses.py`): two sigmoids for the logistic
loss, exp for counts. The first carries x_i, every other what the one before gave, so that l''·x_i has as many layers as
factors; then a head that looks at x_i carries it, which are the products, and uniform attention is their mean. The
inverse M is `inverse.py`'s. *The gradient* is gradient descent's own (`gradient_descent.py`), and one more head, which
looks at M, multiplies it. `tilt` is a vector of the prompt, entries up to w, zero unless
given: an l1 penalty at known signs is linear.

M stays that of w_0 for all steps. For squares that is the Hessian, so that later steps remove what rounding left of
the residual; for other losses one step is Newton's, and the network is run again from where it ended.

*Deviation*, from the same steps in exact arithmetic. Let g be the gradient, at most G long and off by e as the network
computes it. M g is then off by E (`Inversion.applied`), and w_1 by E and its last rounding. For squares
‖1 - M A‖ <= 1, so that D_{t+1} <= D_t + E. For other losses no more than one step is proved. Where the bound is no
better than that two iterates lie within |w| <= w, the level is `trivial`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from flint import arb
from torch import Tensor, nn

from anchorhead.digits import Down
from anchorhead.dtypes import LEAST_NORMAL, UNIT
from anchorhead.enclosure.precision import precision, upper
from anchorhead.errors import InputError, ToleranceError
from anchorhead.in_context import bounds as limits
from anchorhead.in_context.bounds import DTYPES, SLACK, Bounds, OutsideBoundsError
from anchorhead.in_context.certificate import Proof, gradient_parts, step_error
from anchorhead.in_context.gradient_descent import Algorithm, GradientDescent, read_algorithm
from anchorhead.in_context.gradient_terms import gradient_terms
from anchorhead.in_context.heads import Factor
from anchorhead.in_context.inverse import Inversion
from anchorhead.in_context.losses import Loss, read_loss
from anchorhead.in_context.network import INCLUDED, Layers, State, stated
from anchorhead.in_context.reading import Reading
from anchorhead.in_context.stability import gamma, rounded_products
from anchorhead.in_context.terms import Gradient, Term
from anchorhead.model.outside import behind_transforms


def newton_descent(
    loss: str | Loss,
    *,
    features: int,
    examples: int,
    inversions: int,
    steps: int = 1,
    l2: float | Sequence[float] = 0.0,
    bounds: Mapping[str, float] | None = None,
    dtype: torch.dtype = torch.float64,
) -> NewtonDescent:
    """A network that takes Newton's steps on the prompt it is given: model(X, y, w0, mask, tilt) returns w.

    loss, l2, bounds: as for `gradient_descent`, but curvature is the largest trace of the Hessian without l2.
    inversions: steps of Newton and Schulz for the inverse, about log2 of the Hessian's condition and a few.
    steps: with that inverse. More than one pays for the squared loss.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    >>> y = X @ torch.tensor([1.0, 2.0], dtype=torch.float64)
    >>> model = ah.in_context.newton_descent("squared", features=2, examples=4, inversions=12, steps=4)
    >>> [round(w, 6) for w in model(X, y).tolist()]
    [1.0, 2.0]
    """
    algorithm = read_algorithm(read_loss(loss), features, examples, steps, 1.0, l2, 0.0, 0.0)
    limits.counts(inversions=inversions)
    declared = limits.read_bounds(bounds, algorithm.features)
    off = rounded_products(algorithm.features, declared.x, declared.w, limits.dtype_name(dtype))
    gradient = gradient_terms(algorithm.loss, declared, off)
    factors = [_factor(part, declared, off) for part in algorithm.loss.factors]
    steepest = math.prod(term.facts.size for term in factors)
    most = float((bounds or {}).get("curvature", declared.curvature * max(steepest, 1.0)))
    declared = replace(declared, curvature=most)
    inversion = Inversion(algorithm.features, inversions, declared.curvature + max(algorithm.l2), min(algorithm.l2))
    return NewtonDescent(algorithm, gradient, factors, inversion, declared, dtype)


def _factor(part: Loss, declared: Bounds, off: float) -> Term:
    """The one head for a factor of l''."""
    found = gradient_terms(part, declared, off)
    if len(found.terms) != 1 or found.terms[0].carry != (1.0, 0.0) or found.constant or found.on_label:
        raise InputError(
            f"The curvature {part.gradient} of the loss {part.name} is not one head. Give ah.in_context.Loss("
            "gradient, curvature=(...)) formulas whose product it is, each a function of one combination of s and y."
        )
    return found.terms[0]


class NewtonDescent(GradientDescent):
    """The network; see `newton_descent`. Labels may have more dimensions than X: several sets of them for one X.

    >>> ah.in_context.newton_descent("logistic", features=2, examples=4, inversions=8, l2=0.1).certificate.level
    'proved'
    """

    def __init__(self, algorithm: Algorithm, gradient: Gradient, factors: list[Term], inversion: Inversion,
                 declared: Bounds, dtype: torch.dtype) -> None:  # fmt: skip
        self.inversions = inversion.steps
        self._parts = factors, inversion
        super().__init__(algorithm, gradient, declared, dtype, clip=False)
        self.factors, self.inversion, self.x = nn.ModuleList(factors), inversion, Factor(declared.x)
        self.claim(self.proof.certificate)

    def forward(self, X: Tensor, y: Tensor, w0: Tensor | None = None, mask: Tensor | None = None,
                tilt: Tensor | None = None) -> Tensor:  # fmt: skip
        """As gradient descent's; tilt (..., d) is added to the gradient."""
        return self._iterates(X, y, w0, mask, tilt)[-1]

    def _proved(self, declared: Bounds) -> Proof:
        """As at the top."""
        algorithm, unit = self.algorithm, DTYPES[self.dtype]
        with precision():
            diameter = upper(2 * arb(algorithm.features).sqrt() * declared.w * (1 + arb(SLACK)))
        try:
            found = self._deviations(declared, unit)
        except ToleranceError:
            found = [diameter] * (algorithm.steps + 1)
        proved = found[-1] < diameter and (algorithm.steps == 1 or not algorithm.loss.factors)
        conditions = [
            INCLUDED,
            f"the iterates stay within |w| <= {declared.w:g} and |w·x| <= {declared.s:g}, and the trace of the Hessian "
            f"without l2 within {Down(declared.curvature):.4g}, which every run checks",
            "distances are Euclidean; the algorithm's iterates are those of exact arithmetic",
        ]
        if not proved:
            found = [min(value, diameter) for value in found[:-1]] + [diameter]
            conditions.append(
                f"the algorithm's own iterates stay within |w| <= {declared.w:g} too, which nothing checks"
            )
        certificate = stated(
            f"w after Newton's steps on the loss {algorithm.loss.name}, {algorithm.steps} with one inverse of "
            f"{self.inversions} steps", {name: getattr(declared, name) for name in "xyw"}, unit, found[-1], 0.0,
            conditions, "proved" if proved else "trivial")  # fmt: skip
        return Proof(certificate, found, declared, (0.0, 0.0), 0.0, step_error(
            algorithm, self.gradient, declared, self.labels, None, unit), diameter)  # fmt: skip

    def _deviations(self, declared: Bounds, name: str) -> list[float]:
        """D_0, ..., D_T."""
        d, n, unit, (factors, inversion) = (
            self.algorithm.features,
            self.algorithm.examples,
            arb(UNIT[name]),
            self._parts,
        )
        with precision():
            x, w = (arb(v) * (1 + arb(SLACK)) for v in (declared.x, declared.w))
            wrong, size = arb(0), arb(1)
            for term in factors:
                facts = term.facts
                wrong = wrong * (facts.size + arb(facts.error) + facts.moved) + size * (arb(facts.error) + facts.moved)
                size = size * (facts.size + arb(facts.error) + facts.moved)
            head, lost = Factor(declared.x).error, LEAST_NORMAL[name] * (n + 16) * (1 + x) ** 2 * (1 + size)
            roundings = gamma(n + 8 + 3 * len(factors), unit) * (x + head) * x * size
            formed = d * (x * x * wrong + head * x * size + roundings + lost) + 3 * unit * d * arb(inversion.top)
            root, error = arb(d).sqrt(), step_error(self.algorithm, self.gradient, declared, self.labels, None, name)
            length = root * (gradient_parts(self.gradient, declared, self.labels)[2] + w * (max(self.algorithm.l2) + 1))
            step = inversion.applied(formed, length, root * (arb(error.heads) + error.rounding), name)
            step += gamma(3, unit) * root * 2 * w + inversion.sizes[-1] * gamma(2, unit) * root * w
            return [upper(t * step) for t in range(self.algorithm.steps + 1)]

    def begin(self, how: Reading, X: Tensor, y: Tensor, w0: Tensor | None = None, mask: Tensor | None = None,
              tilt: Tensor | None = None) -> State:  # fmt: skip
        """What gradient descent begins with, and M."""
        state = super().begin(how, X, y, w0, mask)
        if tilt is not None:
            state["shift"] = state["shift"] + tilt
        carried = X
        if self.factors:
            s = how.match(X, state["w"].unsqueeze(-2)).squeeze(-1)
            for term in self._parts[0]:
                carried = how.carry(term, (s, y), carried)
        A = how.product(self.x, X.mT, limits.mean_weights(X, mask).unsqueeze(-1) * carried)
        A = A + torch.diag(self.l2.to(A.dtype))
        M = self.inversion.begin(A)
        for _ in range(self.inversions):
            M = self.inversion.step(how, A, M)
        return state | {"A": A, "M": M}

    def step(self, how: Reading, state: State) -> State:
        gradient = self.slope(how, state)[1]
        moved = how.product(self.inversion.inverse, state["M"], gradient.unsqueeze(-1)).squeeze(-1)
        return state | {"w": state["w"] - moved, "before": state["w"]}

    def _check_curvature(self, X: Tensor, mask: Tensor | None) -> None:
        """The Hessian's trace is looked at once there is one."""

    def _check_state(self, state: State) -> None:
        if torch.compiler.is_compiling():
            return
        traces = state["A"].diagonal(dim1=-2, dim2=-1).sum(-1) - self.l2.sum()
        most = behind_transforms(lambda v: float(v.max()), traces)
        if most is not None and not most <= self.bounds.curvature * (1 + 2 * SLACK) + 1e-12 * float(self.l2.sum()):
            raise OutsideBoundsError(
                f"The trace of the Hessian is {most:.6g}, more than the declared {Down(self.bounds.curvature):.6g}. "
                "Declare a larger bounds['curvature']."
            )

    def layers(self) -> Layers:
        inner = self.inversion
        labels = [] if self.labels is None else [(1, [self.labels])]
        parts: Layers = [*labels, *((1, [term]) for term in self.factors), (1, [self.x])]
        return [*parts, (self.inversions, [inner.moment]), (self.inversions, [inner.inverse]),
                (self.steps, self.gradient.terms), (self.steps, [inner.inverse])]  # fmt: skip

    def checked(self, X: Tensor, y: Tensor, w0: Tensor | None = None, mask: Tensor | None = None,
                tilt: Tensor | None = None) -> tuple[Any, ...]:  # fmt: skip
        extra = y.ndim - X.ndim + 1 if isinstance(y, Tensor) and isinstance(X, Tensor) else 0
        one = y[(0,) * extra] if extra > 0 else y
        X, _, _, mask = super().checked(X, one, None, mask)
        self.algorithm.loss.check_labels(y)
        y = limits.within(y, self.bounds.y, "y")
        start = X.new_zeros(self.algorithm.features) if w0 is None else w0
        start = limits.within(start, self.bounds.w, "w0").expand(*y.shape[:-1], -1)
        return X, y, start, mask, None if tilt is None else limits.within(tilt, self.bounds.w, "tilt")

    def shapes(self, examples: int) -> dict[str, tuple[int, ...]]:
        features = self.algorithm.features
        return {"X": (examples, features), "y": (examples,), "w0": (features,)}
