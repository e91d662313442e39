"""Kernel ridge regression with the inverse of its matrix, for small penalties: steps do not grow with 1/sqrt(l2).

    b_{t+1} = b_t + M(y - l2 b_t - K b_t/n),     M ≈ (K/n + l2)^-1 by Newton and Schulz (`inverse.py`)

K/n is attention over the examples with a sink, as in `kernel_ridge.py`, whose values are the rows of the identity: the
examples' own places. Newton and Schulz take log2((1 + l2)/λ) steps and a few, λ the least eigenvalue of K/n + l2, where
Richardson's iteration takes sqrt(1/l2) times the digits wanted; but a step multiplies matrices, n³ where that is n².
The steps with M remove what rounding left of it, as long as it left less than all: each multiplies the error by
1 - M(K/n + l2), and the residual is taken from the kernel itself.

For every prompt nothing is proved but how large answers are; for one prompt, `kernel_certificate.py` proves what any b
is worth.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anchorhead.in_context.fit import inversions
from anchorhead.in_context.inverse import Inversion
from anchorhead.in_context.kernel_ridge import SINK, TOP, KernelRidgeNetwork
from anchorhead.in_context.network import Layers, State
from anchorhead.in_context.reading import Reading
from anchorhead.proof.certificate import Certificate

REFINEMENTS = 8
WEAKEST = 2.0**-40
"""The least eigenvalue whose inverse, as heads see it, still shrinks errors."""


class KernelInverseNetwork(KernelRidgeNetwork):
    """See the file. weakest: the least eigenvalue of K/n + l2, at least l2.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    >>> y = X @ torch.tensor([1.0, 2.0], dtype=torch.float64)
    >>> from anchorhead.in_context.kernel_inverse import KernelInverseNetwork
    >>> model = KernelInverseNetwork(features=2, examples=4, length=1.0, l2=1e-6, weakest=0.05)
    >>> bool((model(X, y, X) - y).abs().max() < 1e-4), model.certificate.level
    (True, 'trivial')
    """

    def __init__(self, features: int, examples: int, length: float, l2: float, weakest: float, bounds: Any = None,
                 dtype: torch.dtype = torch.float64) -> None:  # fmt: skip
        super().__init__(features, examples, length, l2, REFINEMENTS, (1.0, 0.0), bounds, dtype)
        top = TOP + l2
        self.inversions = inversions(top, weakest)
        self.inversion = Inversion(examples, self.inversions, top, weakest)
        self.claim(self._proved())

    def _proved(self) -> Certificate:
        return self._trivial()

    def started(self, how: Reading, X: Tensor, y: Tensor, query: Tensor, mask: Tensor | None = None,
                offsets: Tensor | None = None) -> State:  # fmt: skip
        """As Richardson's iteration, and M."""
        state = super().started(how, X, y, query, mask, offsets)
        eye = torch.eye(X.shape[-2], dtype=X.dtype, device=X.device).expand(*X.shape[:-2], -1, -1)
        A = how.blend(state["rows"], state["columns"], eye, mask, SINK)
        A = (A if mask is None else A * mask.unsqueeze(-1).to(A.dtype)) + self.coefficients[2].to(A.dtype) * eye
        M = self.inversion.begin(A)
        for _ in range(self.inversions):
            M = self.inversion.step(how, A, M)
        return state | {"M": M}

    def step(self, how: Reading, state: State) -> State:
        b = state["b"]
        mean = how.blend(state["rows"], state["columns"], b, state.get("mask"), SINK)
        left = state["y"] - self.coefficients[2].to(b.dtype) * b - mean
        return state | {"b": b + how.product(self.inversion.inverse, state["M"], left)}

    def answered(self, X: Tensor, b: Tensor, query: Tensor, offsets: Tensor | None = None) -> Tensor:
        """No inverse is needed once b is known."""
        how = Reading()
        return self._answers(how, super().started(how, X, b, query, offsets=offsets) | {"b": b})

    def layers(self) -> Layers:
        inner, over = self.inversion, self.prompt_head(2)
        return [(1, [self.square]), (1, [over]), (self.inversions, [inner.moment]), (self.inversions, [inner.inverse]),
                (self.steps, [over]), (self.steps, [inner.inverse]), (1, [over])]  # fmt: skip

    def extra_repr(self) -> str:
        return f"kernel ridge, length {self.length:g}, l2 {self.l2:g}, inverse of {self.inversions} steps"
