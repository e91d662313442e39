"""Which coefficients of a lasso are not zero: an active set, whose least squares a network solves.

F(w) = mean squared error/2 + l1·|w|, columns K with signs s: there F_s(w) = mean squared error/2 + l1·(s w) is least
squares with a tilt, of which `newton_descent` finds the minimiser v. F = F_s where the signs of w are s.

- *v has the signs s*: w goes to v. Outside of K the column joins whose slope exceeds the penalty most, with the sign
  that lowers F; where none does, w is the minimiser.
- *v has not*: F_s is convex and falls from w to v. w goes as far as its signs last, and the column whose coefficient is
  zero first leaves K.
- *Columns of K are dependent*, as far as floats tell (`fit_basis.py`): w goes along p with X p = 0, to where the
  penalty does not grow, until a coefficient is zero, and its column leaves. So those of K are independent in the end.

F never grows, and of the signs none come again (Osborne, Presnell and Turlach 2000; Lee, Battle, Raina and Ng 2007):
where they do, or a column leaves as it joins, rounding decides, and floats tell no more. So columns that are nearly
equal, between which splitting creeps, are told apart by a slope that differs in its last digits.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from anchorhead.dtypes import UNIT
from anchorhead.errors import ToleranceError
from anchorhead.in_context.fit import Report, Scaled, Solved, largest, least_eigenvalue
from anchorhead.in_context.fit_basis import basis_of
from anchorhead.in_context.fit_squares import ILL, in_basis, solve_squares

PIVOTS = 16
"""Networks in a row."""
SAME = 2.0**-40
"""Values of the objective that differ by this share may be the same but for rounding."""
LEVEL = 2.0**-40
"""A slope of the penalty along p, over the penalty's, that is rounding."""
ROUNDED = 4 * UNIT["float64"]
"""Of the terms of a slope."""
SOLVED = 1e-10


class Settled(NamedTuple):
    """Coefficients, the steps of the networks that found them, and whether there is no more to be told."""

    w: Tensor
    steps: int
    done: bool


class Penalised:
    """F, plainly, on columns that take part."""

    def __init__(self, data: Scaled, y: Tensor, l1: Tensor) -> None:
        self.data, self.y, self.l1 = data, y, l1
        self.moments = data.moments()
        sizes = data.X.abs()
        self.weighted = sizes / len(sizes) if data.shares is None else sizes * data.shares.unsqueeze(-1)

    def value(self, w: Tensor) -> float:
        squares = (self.data.X @ w - self.y).square()
        mean = squares.mean() if self.data.shares is None else self.data.shares @ squares
        return float(mean / 2 + self.l1 @ w.abs())

    def slope(self, w: Tensor) -> Tensor:
        """Of the squares."""
        residual = self.data.X @ w - self.y
        weighted = residual / len(self.y) if self.data.shares is None else residual * self.data.shares
        return weighted @ self.data.X

    def subgradient(self, w: Tensor) -> Tensor:
        """The least one."""
        slope = self.slope(w)
        free = slope.sign() * (slope.abs() - self.l1).clamp(min=0)
        return torch.where(w == 0, free, slope + self.l1 * w.sign())

    def left(self, w: Tensor) -> float:
        return largest(self.subgradient(w))

    def rounded(self, w: Tensor) -> Tensor:
        """What rounding may make of slopes."""
        return ROUNDED * ((self.data.X.abs() @ w.abs() + self.y.abs()) @ self.weighted)

    def better(self, w: Tensor, than: Tensor) -> bool:
        """By the objective, or where it is the same but for rounding by the subgradient."""
        found, other = self.value(w), self.value(than)
        same = abs(found - other) <= SAME * (found + other)
        return self.left(w) < self.left(than) if same else found < other

    def settled(self, w: Tensor, most: int, report: Report) -> Settled:
        """The active set from w, of networks with about so many steps."""
        signs, seen, joined, steps = w.sign(), set[bytes](), -1, 0
        for _ in range(PIVOTS):
            w, signs = self._independent(w, signs)
            if steps >= most:
                break
            name, solved = signs.numpy().tobytes(), self._minimiser(signs, report)
            if solved is None or name in seen:
                return Settled(w, steps, True)
            seen.add(name)
            v, steps = solved.w, steps + solved.steps
            wrong = v.sign() != signs
            if wrong.any():
                part, first = torch.where(wrong, torch.where(w == 0, 0.0, w / (w - v)), math.inf).min(0)
                if not part > 0 and first == joined:
                    return Settled(w, steps, True)
                w, signs = _without(w + part * (v - w), signs, int(first))
                continue
            w, slope = v, self.slope(v)
            beyond = torch.where(signs == 0, slope.abs() - self.l1 - self.rounded(w), 0.0)
            if not (beyond > 0).any():
                return Settled(w, steps, True)
            joined = int(beyond.argmax())
            signs = signs.index_put((torch.tensor(joined),), -slope[joined].sign())
        return Settled(w, steps, False)

    def _of(self, signs: Tensor) -> tuple[Tensor, Scaled, bool]:
        """K, its columns, and whether moments tell them apart."""
        kept = signs.nonzero().flatten()
        own = self.moments[kept][:, kept]
        apart = len(kept) <= len(self.y) and bool(torch.linalg.eigvalsh(own).min() >= ILL * own.trace())
        data = self.data
        return kept, data._replace(X=data.X[:, kept], mean=data.mean[kept], scale=data.scale[kept]), apart

    def _independent(self, w: Tensor, signs: Tensor) -> tuple[Tensor, Tensor]:
        """Without columns that depend on others of K."""
        if not signs.any():
            return w, signs
        kept, some, apart = self._of(signs)
        if apart:
            return w, signs
        back = basis_of(some, [0.0] * len(kept)).back
        null = torch.linalg.qr(back.mT / back.norm(dim=1), mode="complete")[0][:, len(back) :]
        while null.shape[1]:
            tilt = (self.l1 * signs)[kept]
            down = null @ (null.mT @ -tilt)
            p = torch.zeros_like(w)
            p[kept] = down if down.norm() > LEVEL * tilt.norm() else null[:, 0]
            p = p if (signs * p < 0).any() else -p
            steps = torch.where(signs * p < 0, -w / p, math.inf)
            first = int(steps.argmin())
            w, signs = _without(w + steps[first] * p, signs, first)
            row = null[kept == first]
            null = null @ torch.linalg.qr(row.mT, mode="complete")[0][:, 1:]
            null[kept == first] = 0.0
        return w, signs

    def _minimiser(self, signs: Tensor, report: Report) -> Settled | None:
        """v; None where networks do not find it."""
        whole, steps = torch.zeros_like(signs), 0
        if not signs.any():
            return Settled(whole, 0, True)
        kept, some, apart = self._of(signs)
        zeros, tilt, own = [0.0] * len(kept), (self.l1 * signs)[kept], self.moments[kept][:, kept]
        solved: Solved | None = None
        if apart:
            least, trace = least_eigenvalue(own)[0], float(own.trace())
            solved = solve_squares(some.X, self.y, some.shares, zeros, trace, least, SOLVED, report, tilt)
        if solved is None or not solved.converged:
            steps = 0 if solved is None else solved.steps
            try:
                solved = in_basis(some, self.y, zeros, SOLVED, report, tilt)
            except ToleranceError:
                return None
        whole[kept] = solved.w
        return Settled(whole, steps + solved.steps, True)


def _without(w: Tensor, signs: Tensor, column: int) -> tuple[Tensor, Tensor]:
    """K without a column; coefficients that rounding moved past zero are zero."""
    signs = signs.clone()
    signs[column] = 0.0
    return signs * (signs * w).clamp(min=0), signs
