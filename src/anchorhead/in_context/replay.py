"""The last run of a fit, to be run again: a network, its prompt, and the way from its result to coefficients.

A network returns coefficients w of the prompt's columns, which are those of the data less `mean` over `scale`, of
labels less `middle` over `size`; a last one is the intercept's where the prompt has a column of ones. So, in the units
of the data,

    coef = w/scale · size,     intercept = middle + w_last · size - coef · mean

where coef is multiplied with `basis` if the prompt's columns are combinations of the data's (`fit.spanned`). w is what
`shrinkage` returns first; of more columns than examples the network is given X^T and returns β, of which w is X^T β/n
(`fit_squares.py`); and of dependent columns it returns coefficients in a basis, which are multiplied with `turn`
(`fit_basis.py`). `shift` is added to it: of counts, whose predictions are shifted and may have a last
column for nothing else (`fit_smooth.py`), and where the last run fitted what one before left. Of dependent columns
`short` goes on to the shortest coefficients (`fit_shortest.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from anchorhead.in_context.fit_shortest import Shortest
from anchorhead.in_context.network import InContextNetwork
from anchorhead.in_context.shrinkage import Shrinkage


@dataclass(frozen=True)
class Run:
    """A run of a network on a prompt; the units are those of the data once `into` was told them."""

    network: InContextNetwork
    prompt: tuple[Tensor | None, ...]
    shift: Tensor | None = None
    dual: bool = False
    turn: Tensor | None = None
    short: Shortest | None = None
    mean: Any = 0.0
    scale: Any = 1.0
    middle: Any = 0.0
    size: Any = 1.0
    columns: np.ndarray | None = None
    count: int = 0
    basis: np.ndarray | None = None

    def into(self, mean: np.ndarray, scale: np.ndarray, middle: Any, size: Any, basis: np.ndarray | None) -> Run:
        """The same run with the units of the data."""
        own = slice(None) if self.columns is None else self.columns
        return replace(self, mean=mean[own], scale=scale[own], middle=middle, size=size, basis=basis)

    def among(self, columns: np.ndarray, count: int) -> Run:
        """The same run on some of more columns; the coefficients of the others are zero."""
        return replace(self, columns=columns, count=count)

    def scaled(self) -> Tensor:
        """w: what the network returns, in the units of the prompt's columns."""
        found: Tensor = self.network(*self.prompt)
        if isinstance(self.network, Shrinkage):
            found = found[..., 0, :]
        if self.dual and self.prompt[0] is not None:
            flat = self.prompt[0]
            found = found @ flat.mT / math.sqrt(flat.numel())
        found = found if self.turn is None else found @ self.turn
        found = found if self.shift is None else found[..., : self.shift.shape[-1]] + self.shift
        return found if self.short is None else self.short(found)

    def again(self) -> tuple[np.ndarray, np.ndarray]:
        """coef and intercept, by running the network again."""
        w, d = self.scaled().numpy(), len(self.scale)
        size = np.asarray(self.size)[..., None]
        coefficients = w[..., :d] / self.scale * size
        coefficients = coefficients if self.basis is None else coefficients @ self.basis
        last = w[..., d] * np.asarray(self.size) if w.shape[-1] > d else 0.0
        intercept = self.middle + last - coefficients @ self.mean
        if self.columns is not None:
            whole = np.zeros((*coefficients.shape[:-1], self.count))
            whole[..., self.columns] = coefficients
            coefficients = whole
        return coefficients, np.asarray(intercept)


def given(*prompt: Tensor | None) -> tuple[Tensor | None, ...]:
    """The prompt without what was not given at its end."""
    count = max(i for i, v in enumerate(prompt) if v is not None) + 1
    return prompt[:count]
