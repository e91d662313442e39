"""One gradient step of a two-layer network, inside attention: the network being trained is in the prompt.

Model f(x) = a·φ(Wx), loss mean (f(x_i) - y_i)²/2. With h = φ(W x_i), g = φ'(W x_i), r = a·h - y_i:

    a' = a - η mean r h          W' = W - η mean (r a∘g) x^T

*Layer 1*: scores are inner products of x_i with slope_k W_j: two heads, values φ(L_k) and φ'(L_k): h and g.
*Layer 2*: a_j·g_ij, a head over a_j whose values carry g_ij.
*Layer 3*: r_i is an inner product of (h_i, y_i) with (a, -1), so it is a score itself: one head for r whose values
carry h_i, and one whose values carry a∘g_i.
*Layer 4*: a head over (r a∘g)_ij whose values carry x_i. Means over examples and the step are affine.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anchorhead.certify.certificate import Certificate
from anchorhead.certify.rounding import ASSUMPTIONS
from anchorhead.certify.variation import steepest
from anchorhead.errors import InputError, ShapeError, ToleranceError
from anchorhead.expression.circuit import Line
from anchorhead.expression.derivative import derivative
from anchorhead.expression.graph import Expression, Node
from anchorhead.expression.parse import parse
from anchorhead.expression.tensors import evaluate
from anchorhead.in_context import bounds as limits
from anchorhead.in_context.arguments import DTYPES, counts, dtype_name
from anchorhead.in_context.bounds import Bounds
from anchorhead.in_context.literal import attention
from anchorhead.in_context.products import Factor, LiteralFactor
from anchorhead.in_context.stability import UNIT, gamma
from anchorhead.in_context.terms import line_term
from anchorhead.network.own_precision import in_own_precision

DEFAULTS = {"x": 6.0, "y": 50.0, "w": 2.0, "a": 2.0}


class Parameters(NamedTuple):
    """The network's parameters after the step: W (..., width, d), a (..., width)."""

    W: Tensor
    a: Tensor


def network_step(
    activation: str = "tanh(u)",
    *,
    width: int,
    features: int,
    examples: int,
    learning_rate: float,
    bounds: Mapping[str, float] | None = None,
    dtype: torch.dtype = torch.float64,
) -> NetworkStep:
    """A network that takes X, y and the parameters W, a of a two-layer network, and returns them after one step.

    activation: a smooth formula in u.
    bounds: the largest absolute entry of x, y, W (`w`) and a, by default 6, 50, 2 and 2.
    """
    counts(width=width, features=features, examples=examples)
    if not (isinstance(learning_rate, int | float) and math.isfinite(learning_rate) and learning_rate > 0):
        raise InputError(f"learning_rate={learning_rate!r} must be a positive finite number.")
    dtype_name(dtype)
    given = dict(bounds or {})
    if set(given) - set(DEFAULTS) or not all(math.isfinite(v) and v > 0 for v in given.values()):
        raise InputError(f"bounds={given!r} must give positive numbers for x, y, w and a.")
    phi = parse(activation, ("u",)).outputs[0]
    return NetworkStep(phi, width, features, examples, float(learning_rate), DEFAULTS | given, dtype)


class NetworkStep(limits.FixedDtype):
    """See `network_step`. `certificate` bounds every entry's distance from the exact step."""

    def __init__(self, phi: Node, width: int, features: int, examples: int, rate: float, sizes: Mapping[str, float],
                 dtype: torch.dtype) -> None:  # fmt: skip
        super().__init__()
        self.width, self.features, self.examples, self.rate, self.dtype = width, features, examples, rate, dtype
        self.limits, self.phi, self.slope = dict(sizes), phi, derivative(phi, "u")
        reach = features * sizes["x"] * sizes["w"]
        inner = Bounds(sizes["x"], 1.0, sizes["w"], reach, math.inf)
        self.value_head = line_term(phi, Line({0: 1}), (1.0, 0.0), inner)
        self.slope_head = line_term(self.slope, Line({0: 1}), (1.0, 0.0), inner)
        h, g = self.value_head.facts.size, self.slope_head.facts.size
        self.most = width * sizes["a"] * h + sizes["y"]
        self.outer, self.residual = Factor(sizes["a"]), Factor(1.01 * self.most)
        self.inner_factor = Factor(1.02 * self.most * sizes["a"] * g)
        self.certificate = self._certify(UNIT[DTYPES[dtype]], reach, h, g)

    @in_own_precision
    def forward(self, X: Tensor, y: Tensor, W: Tensor, a: Tensor) -> Parameters:
        self._check(X, y, W, a)
        n = X.shape[-2]
        u = X @ W.mT
        zero = torch.zeros_like(u)
        h, g = self.value_head(u, zero), self.slope_head(u, zero)
        back = self.outer(a).unsqueeze(-2) * g
        r = self.residual((h @ a.unsqueeze(-1)).squeeze(-1) - y).unsqueeze(-1)
        on_a = (r * h).mean(-2)
        on_W = self.inner_factor(r * back).mT @ X / n
        return Parameters(W - self.rate * on_W, a - self.rate * on_a)

    def exact(self, X: Tensor, y: Tensor, W: Tensor, a: Tensor) -> Parameters:
        """The step itself in float64."""
        X, y, W, a = (v.double() for v in (X, y, W, a))
        u = X @ W.mT
        h, g = (self._plain(node, u) for node in (self.phi, self.slope))
        r = ((h @ a.unsqueeze(-1)).squeeze(-1) - y).unsqueeze(-1)
        on_W = (r * g * a.unsqueeze(-2)).mT @ X / X.shape[-2]
        return Parameters(W - self.rate * on_W, a - self.rate * (r * h).mean(-2))

    def literal(self) -> LiteralNetworkStep:
        """The same with every softmax written out; returns one tensor, (..., width, d + 1), a last."""
        return LiteralNetworkStep(self)

    def _plain(self, node: Node, u: Tensor) -> Tensor:
        found = evaluate(Expression((node,), ("u",)), {"u": u})
        value: Tensor = found[0] if isinstance(found, list | tuple) else found
        return value.expand_as(u)

    def _check(self, X: Tensor, y: Tensor, W: Tensor, a: Tensor) -> None:
        limits.check_shapes(X, y, self.features, self.examples, self.dtype)
        if not (isinstance(W, Tensor) and isinstance(a, Tensor)):
            raise ShapeError(f"W and a must be torch tensors, not {type(W).__name__} and {type(a).__name__}.")
        batches = [v for v in (W.shape[:-2], a.shape[:-1]) if v not in (X.shape[:-2], ())]
        if batches:
            raise ShapeError(f"W and a are one for each prompt; X has {tuple(X.shape[:-2])}, they {tuple(batches[0])}.")
        if W.shape[-2:] != (self.width, self.features) or a.shape[-1:] != (self.width,):
            raise ShapeError(
                f"W must be (..., {self.width}, {self.features}) and a (..., {self.width}); they are "
                f"{tuple(W.shape)} and {tuple(a.shape)}."
            )
        for name, value in (("x", X), ("y", y), ("w", W), ("a", a)):
            if value.dtype != self.dtype:
                raise ShapeError(f"{name} is {value.dtype} and the network {self.dtype}.")
            limits.within(value, self.limits[name], name, clip=False)

    def _certify(self, unit: float, reach: float, h: float, g: float) -> Certificate:
        """Errors layer by layer; ρ of every sum is that of all its terms' absolute values."""
        x, a, n, m = self.limits["x"], self.limits["a"], self.examples, self.width
        u_error = gamma(self.features + 2, unit) * reach
        steep = (steepest(self.phi, -reach, reach), steepest(self.slope, -reach, reach))
        h_error = self.value_head.facts.error + steep[0] * u_error + 4 * unit * h
        g_error = self.slope_head.facts.error + steep[1] * u_error + 4 * unit * g
        before = m * a * h_error + gamma(m + 4, unit) * self.most
        r_error = before + self.residual.error + unit * self.most
        back_error = a * g_error + (g + g_error) * (self.outer.error + 2 * unit * a)
        most, back = self.most + r_error, a * g + back_error
        if self.most + before > self.residual.reach or most * back > self.inner_factor.reach:
            raise ToleranceError(
                f"{DTYPES[self.dtype]} cannot hold this step for these bounds; use float64 or smaller."
            )
        on_a = r_error * (h + h_error) + most * h_error + gamma(n + 4, unit) * most * h
        q_error = r_error * back + most * back_error + self.inner_factor.error + 2 * unit * most * back
        on_W = (q_error + gamma(n + 4, unit) * most * back) * x
        total = self.rate * max(on_a, on_W) + 4 * unit * (
            max(self.limits["w"], a) + self.rate * most * max(h, back * x)
        )
        names = ("x", "y", "w", "a")
        return Certificate(
            expression=f"one step of {self.rate:g} for a two-layer network of width {m}",
            domain=tuple((-self.limits[name], self.limits[name]) for name in names),
            dtype=DTYPES[self.dtype],
            level="proved",
            approximation=total,
            rounding=0.0,
            boxes=0,
            assumptions=(*ASSUMPTIONS, "rounding is included in the approximation"),
            variables=names,
        )


class LiteralNetworkStep(nn.Module):
    """Every softmax as written, in float64."""

    def __init__(self, model: NetworkStep) -> None:
        super().__init__()
        self.rate = model.rate
        self.value_keys, self.slope_keys = copy.deepcopy((model.value_head.keys, model.slope_head.keys))
        self.outer, self.residual = LiteralFactor(model.outer), LiteralFactor(model.residual)
        self.inner = LiteralFactor(model.inner_factor)

    def forward(self, X: Tensor, y: Tensor, W: Tensor, a: Tensor) -> Tensor:
        X, y, W, a = (v.double() for v in (X, y, W, a))
        u = X @ W.mT
        zero = torch.zeros(u.shape, dtype=torch.float64)
        h = attention(self.value_keys, u, zero) @ self.value_keys.value
        g = attention(self.slope_keys, u, zero) @ self.slope_keys.value
        back = self.outer.times(a.unsqueeze(-2).expand_as(g), g)
        r = ((h @ a.unsqueeze(-1)).squeeze(-1) - y).unsqueeze(-1).expand_as(h)
        on_a, q = self.residual.times(r, h).mean(-2), self.residual.times(r, back)
        wide = (*q.shape, X.shape[-1])
        on_W = self.inner.times(q.unsqueeze(-1).expand(wide), X.unsqueeze(-2).expand(wide)).mean(-3)
        return torch.cat([W - self.rate * on_W, (a - self.rate * on_a).unsqueeze(-1)], -1)
