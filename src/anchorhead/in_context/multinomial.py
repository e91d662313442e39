"""Multinomial logistic regression inside one forward pass: softmax over classes is attention itself.

    p_ic = softmax_c(w_c·x_i),   g_c = mean of (p_ic - y_ic) x_i + l2 w_c,   W <- W - M g

The queries are the examples, the keys the classes' coefficients, the values unit vectors: one head, and exact. A head
that looks at p_ic - y_ic carries x_i, so that the gradient of a small column is small by as many digits. The Hessian
has the blocks A_ab = mean of (p_ia δ_ab - p_ia p_ib) x_i x_i^T + l2 δ_ab. A head that looks at p_ic carries x_i, which
makes v_i = (p_ic x_i)_c, and heads that look at x_i, and at v_i, carry v_i: the products, of which uniform attention is
the mean. M is its inverse by `inverse.py`. What all w_c have in common changes no probability: the gradient has nothing
there, and A gets `top`/classes in these directions, so that it has an inverse.

Nothing is proved of a run but what `inverse.py` says of M; `certificate` has the level `trivial`: entries up to w.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from flint import arb
from torch import Tensor

from anchorhead.enclosure.precision import precision, upper
from anchorhead.in_context import bounds as limits
from anchorhead.in_context.bounds import SLACK, OutsideBoundsError, counts, read_penalties
from anchorhead.in_context.heads import Factor
from anchorhead.in_context.inverse import Inversion
from anchorhead.in_context.network import InContextNetwork, Layers, State, stated
from anchorhead.in_context.reading import Reading


class Multinomial(InContextNetwork):
    """One step of Newton's: model(X, Y, W0, mask) with Y (n, classes) the shares of classes, W (classes, d).

    bounds: x and w as elsewhere; curvature: of the trace of the Hessian without l2.
    """

    l2: Tensor

    def __init__(self, *, features: int, classes: int, examples: int, inversions: int, l2: float | Sequence[float],
                 x: float, w: float, curvature: float) -> None:  # fmt: skip
        super().__init__()
        counts(features=features, classes=classes, examples=examples, inversions=inversions)
        self.features, self.classes, self.examples, self.inversions = features, classes, examples, inversions
        self.limits, self.dtype = {"x": x, "y": 1.0, "w": w}, torch.float64
        penalties = read_penalties("l2", l2, features)
        self.curvature, self.common = curvature, curvature / classes
        self.register_buffer("l2", torch.tensor(penalties, dtype=torch.float64))
        top = curvature + max(penalties) + self.common * classes
        self.inversion = Inversion(features * classes, inversions, top, min(penalties))
        self.x, self.share = Factor(x), Factor(1.0)
        with precision():
            trivial = upper(2 * arb(features * classes).sqrt() * w * (1 + arb(SLACK)))
        self.claim(stated("coefficients after a step of Newton's on multinomial logistic regression", self.limits,
                          "float64", trivial, 0.0, ("the step in exact arithmetic stays within w too, which nothing "
                          "checks",), "trivial"))  # fmt: skip

    def forward(self, X: Tensor, Y: Tensor, W0: Tensor, mask: Tensor | None = None) -> Tensor:
        """W, (classes, d)."""
        found: Tensor = self.fast(X, Y, W0, mask)
        most = limits.largest(found)
        if not most <= self.limits["w"] * (1 + SLACK):
            raise OutsideBoundsError(
                f"After the step an entry of w is {most:.6g}, outside the declared {self.limits['w']:g}. Declare a "
                f"larger w, use a larger l2, or fewer than {self.inversions} inversions: their rounding adds up."
            )
        return found

    def begin(self, how: Reading, X: Tensor, Y: Tensor, W0: Tensor, mask: Tensor | None = None) -> State:
        """The gradient and M."""
        count, shares = self.classes, limits.mean_weights(X, mask).unsqueeze(-1)
        chances = how.blend(X, W0, torch.eye(count, dtype=X.dtype).expand(*X.shape[:-2], -1, -1))
        gradient = how.product(self.share, (chances - Y).mT, shares * X) + self.l2 * W0
        split = how.carry(self.share, (chances,), X.unsqueeze(-2).expand(*chances.shape, -1))
        split = split.flatten(-2)
        own = how.product(self.x, X.mT, shares * split).unflatten(-1, (count, self.features))
        both = how.product(self.x, split.mT, shares * split)
        A = _blocks(own) - both + self._constant(X)
        M = self.inversion.begin(A)
        for _ in range(self.inversions):
            M = self.inversion.step(how, A, M)
        return {"W": W0, "g": gradient.flatten(-2), "M": M}

    def _constant(self, X: Tensor) -> Tensor:
        """l2, and what keeps the common part from being singular."""
        same = torch.full((self.classes, self.classes), self.common, dtype=X.dtype)
        return torch.kron(same, torch.eye(self.features, dtype=X.dtype)) + torch.diag(self.l2.repeat(self.classes))

    def end(self, how: Reading, state: State) -> Tensor:
        moved = how.product(self.inversion.inverse, state["M"], state["g"].unsqueeze(-1)).squeeze(-1)
        return state["W"] - moved.unflatten(-1, (self.classes, self.features))

    def layers(self) -> Layers:
        inner = self.inversion
        return [(1, [self.share]), (1, [self.share]), (1, [self.x, self.x]), (self.inversions, [inner.moment]),
                (self.inversions + 1, [inner.inverse])]  # fmt: skip

    def shapes(self, examples: int) -> dict[str, tuple[int, ...]]:
        sizes = (examples, self.features), (examples, self.classes), (self.classes, self.features)
        return dict(zip(("X", "Y", "W0"), sizes, strict=True))

    def checked(self, X: Tensor, Y: Tensor, W0: Tensor, mask: Tensor | None = None) -> tuple[Any, ...]:
        limits.check_examples(X, Y[..., 0], self.features, self.examples, self.dtype)
        X, _ = limits.masked(X, Y[..., 0], mask)
        X, Y = limits.within(X, self.limits["x"], "X"), limits.within(Y, 1.0, "Y")
        return X, Y, limits.within(W0, self.limits["w"], "w"), mask

    def extra_repr(self) -> str:
        return f"multinomial, {self.classes} classes, {self.examples} x {self.features}"


def _blocks(own: Tensor) -> Tensor:
    """(..., d, classes, d) to the block-diagonal matrix (..., classes·d, classes·d)."""
    features, classes = own.shape[-3], own.shape[-2]
    eye = torch.eye(classes, dtype=own.dtype)
    spread = own.movedim(-2, -3).unsqueeze(-2) * eye.unsqueeze(-1).unsqueeze(-3)
    return spread.reshape(*own.shape[:-3], classes * features, classes * features)
