"""Least squares with an l1 penalty inside one forward pass: Douglas and Rachford's splitting on the prompt's moments.

With A = X^T X/n, b = X^T y/n, M ≈ (A + pull)^-1 (`inverse.py`) and S soft thresholding at l1/pull:

    w_t = M (pull·u_t + b),    z_t = S(2 w_t - u_t),    u_{t+1} = u_t + z_t - w_t,        the result is z_T

A layer forms A and b, from then on nothing looks at the examples: a step is a head that looks at M, one for clip
(`heads.py`), and affine maps of d numbers, however long the prompt is. Where w = z both are the minimiser: w minimises
the squares plus pull/2·|w - u|², z the penalty plus pull/2·|z - (2w - u)|².

*Deviation* from the same steps in exact arithmetic. u to u_{t+1} is nonexpansive: pull·M, whose eigenvalues lie in
[0, 1], and S are proximal maps (Eckstein and Bertsekas 1992). A step of the network errs by at most E = 3 E_w + E_S,
E_w of M(pull·u + b) (`Inversion.applied`), so that D_{t+1} <= D_t + E; and z moves by at most 3 D_T + E.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from flint import arb
from torch import Tensor

from anchorhead.digits import Down
from anchorhead.dtypes import LEAST_NORMAL, UNIT
from anchorhead.enclosure.precision import precision, upper
from anchorhead.errors import ToleranceError
from anchorhead.in_context import bounds as limits
from anchorhead.in_context.bounds import DTYPES, SLACK, Bounds, OutsideBoundsError, counts, positive, read_penalties
from anchorhead.in_context.heads import Clip, Factor
from anchorhead.in_context.inverse import Inversion
from anchorhead.in_context.network import INCLUDED, InContextNetwork, Layers, State, stated
from anchorhead.in_context.reading import Reading
from anchorhead.in_context.stability import gamma
from anchorhead.model.outside import behind_transforms


def shrinkage(
    *,
    features: int,
    examples: int,
    steps: int,
    inversions: int,
    pull: float,
    l1: float | Sequence[float],
    bounds: Mapping[str, float] | None = None,
    dtype: torch.dtype = torch.float64,
) -> Shrinkage:
    """A network that minimises mean squared error/2 + l1·|w|: model(X, y, u0, mask) returns (z, u), (..., 2, d).

    pull: about the root of the product of the least and the largest eigenvalue of X^T X/n. inversions: about log2 of
    the largest over pull, and five: what the inverse is off by, the result is. bounds: as for `newton`, w bounds all of
    w, z and u, which every run checks.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    >>> y = X @ torch.tensor([1.0, 0.0], dtype=torch.float64)
    >>> model = ah.in_context.shrinkage(features=2, examples=4, steps=40, inversions=10, pull=0.7, l1=0.1)
    >>> [round(w, 4) for w in model(X, y)[0].tolist()]
    [0.8667, 0.0]
    """
    counts(features=features, examples=examples, steps=steps, inversions=inversions)
    declared, penalties = limits.read_bounds(bounds, features), read_penalties("l1", l1, features)
    limits.dtype_name(dtype)
    return Shrinkage(features, examples, steps, inversions, positive("pull", pull), penalties, declared, dtype)


class Shrinkage(InContextNetwork):
    """The network; see `shrinkage`.

    >>> ah.in_context.shrinkage(features=2, examples=4, steps=4, inversions=4, pull=0.7, l1=0.1).certificate.level
    'proved'
    """

    def __init__(self, features: int, examples: int, steps: int, inversions: int, pull: float, l1: tuple[float, ...],
                 declared: Bounds, dtype: torch.dtype) -> None:  # fmt: skip
        super().__init__()
        self.features, self.examples, self.steps, self.inversions = features, examples, steps, inversions
        self.pull, self.bounds, self.dtype = pull, declared, dtype
        self.inversion = Inversion(features, inversions, declared.curvature + pull, pull)
        self.x, self.label, self.shrink = Factor(declared.x), Factor(declared.y), Clip(l1, 1 / pull)
        self.claim(self._certified())

    def forward(self, X: Tensor, y: Tensor, u0: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """z and u, (..., 2, d)."""
        found: Tensor = self.fast(X, y, u0, mask)
        self.check_run((), found)
        return found

    def check_run(self, states: Sequence[State], result: Tensor) -> None:
        most = behind_transforms(lambda v: float(v.abs().max()), result)
        if most is not None and not most <= self.bounds.w * (1 + SLACK):
            raise OutsideBoundsError(
                f"An iterate reached {most:.6g}, outside the declared {self.bounds.w:g}. Declare a larger bounds['w']."
            )

    def begin(self, how: Reading, X: Tensor, y: Tensor, u0: Tensor | None = None, mask: Tensor | None = None) -> State:
        """M, b and u_0."""
        shares = limits.mean_weights(X, mask).unsqueeze(-1) * X
        A = how.product(self.x, X.mT, shares) + self.pull * torch.eye(self.features, dtype=X.dtype)
        M = self.inversion.begin(A)
        for _ in range(self.inversions):
            M = self.inversion.step(how, A, M)
        b = how.gather(self.label, (y,), shares)
        u = 0 * b if u0 is None else u0
        return {"M": M, "b": b, "u": u, "z": 0 * u}

    def step(self, how: Reading, state: State) -> State:
        u = state["u"]
        right = (self.pull * u + state["b"]).unsqueeze(-1)
        w = how.product(self.inversion.inverse, state["M"], right).squeeze(-1)
        ahead = 2 * w - u
        clipped = how.value(self.shrink, ahead.double() / self.shrink.scales)
        z = ahead - (self.shrink.sizes * clipped).to(u.dtype)
        return state | {"u": u + z - w, "z": z}

    def end(self, how: Reading, state: State) -> Tensor:
        return torch.stack([state["z"], state["u"]], -2)

    def layers(self) -> Layers:
        inner = self.inversion
        return [(1, [self.x, self.label]), (self.inversions, [inner.moment]), (self.inversions, [inner.inverse]),
                (self.steps, [inner.inverse]), (self.steps, [self.shrink])]  # fmt: skip

    def shapes(self, examples: int) -> dict[str, tuple[int, ...]]:
        return {"X": (examples, self.features), "y": (examples,), "u0": (self.features,)}

    def checked(self, X: Tensor, y: Tensor, u0: Tensor | None = None, mask: Tensor | None = None) -> tuple[Any, ...]:
        limits.check_examples(X, y, self.features, self.examples, self.dtype)
        X, y = limits.masked(X, y, mask)
        X, y = limits.within(X, self.bounds.x, "X"), limits.within(y, self.bounds.y, "y")
        limits.check_curvature(X, mask, self.bounds, "the declared curvature", "Declare a larger bounds['curvature']")
        start = X.new_zeros(self.features) if u0 is None else u0
        start = limits.each_prompt(start, (self.features,), X, self.dtype, "u0")
        return X, y, limits.within(start, self.bounds.w, "w"), mask

    def extra_repr(self) -> str:
        return f"l1, {self.steps} steps of Douglas and Rachford, {self.examples} x {self.features}"

    def _certified(self) -> Any:
        """As at the top; nothing useful where the inverse is not known well enough."""
        name, said = DTYPES[self.dtype], f"w after {self.steps} steps of Douglas and Rachford on least squares with l1"
        with precision():
            trivial = upper(2 * arb(self.features).sqrt() * self.bounds.w * (1 + arb(SLACK)))
        try:
            found, level = self._deviation(name), "proved"
        except ToleranceError:
            found, level = trivial, "trivial"
        if not found < trivial:
            found, level = trivial, "trivial"
        most = Down(self.bounds.curvature)
        curved = f"the largest eigenvalue of X^T X/n is at most {most:.4g}, which every run checks"
        stays = f"w, z and u stay within {self.bounds.w:g}, of which every run checks the last"
        sizes = {"x": self.bounds.x, "y": self.bounds.y}
        return stated(said, sizes, name, found, 0.0, (INCLUDED, curved, stays), level)

    def _deviation(self, name: str) -> float:
        d, n, unit, pull = self.features, self.examples, arb(UNIT[name]), arb(self.pull)
        with precision():
            x, y, w = (arb(v) * (1 + arb(SLACK)) for v in (self.bounds.x, self.bounds.y, self.bounds.w))
            lost, root = LEAST_NORMAL[name] * (n + 8) * (1 + x) * (1 + y) * (1 + w), arb(d).sqrt()
            formed = d * (self.x.error * x + gamma(n + 6, unit) * (x + self.x.error) * x + lost)
            formed += 3 * unit * d * arb(self.inversion.top) * (1 + arb(3 * SLACK))
            in_b = root * (self.label.error * x + gamma(n + 6, unit) * (y + self.label.error) * x + lost)
            in_b += root * 3 * unit * (pull * w + x * y)
            inner = self.inversion.applied(formed, root * (pull * w + x * y), in_b, name)
            shrunk = root * (self.shrink.step_error(3 * w) + gamma(6, unit) * 8 * w + lost)
            step = 3 * inner + shrunk
            return upper(3 * self.steps * step + step)
