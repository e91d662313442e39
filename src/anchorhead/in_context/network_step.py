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
from flint import arb
from torch import Tensor, nn

from anchorhead.circuit.line import Line
from anchorhead.dtypes import LEAST_NORMAL, UNIT
from anchorhead.enclosure.precision import precision, upper
from anchorhead.errors import InputError, ShapeError, ToleranceError
from anchorhead.expression.derivative import derivative
from anchorhead.expression.graph import Expression, Node, ordered
from anchorhead.expression.parse import parse
from anchorhead.expression.tensors import evaluate
from anchorhead.head.own_precision import in_own_precision
from anchorhead.head.parameters import check_tensor
from anchorhead.in_context import bounds as limits
from anchorhead.in_context.arguments import DTYPES, counts, dtype_name, positive, read_sizes
from anchorhead.in_context.bounds import Bounds
from anchorhead.in_context.gradient_terms import line_term
from anchorhead.in_context.literal import attention
from anchorhead.in_context.products import Factor, LiteralFactor
from anchorhead.in_context.stability import gamma, rounded_products
from anchorhead.in_context.terms import Facts
from anchorhead.proof.certificate import Certificate
from anchorhead.proof.rounding import ASSUMPTIONS, LARGEST

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
    rate = positive("learning_rate", learning_rate)
    dtype_name(dtype)
    sizes = read_sizes(bounds, DEFAULTS)
    if not isinstance(activation, str):
        raise InputError(f"activation={activation!r} must be a formula in u, such as tanh(u).")
    phi = parse(activation, ("u",)).outputs[0]
    if not any(part.op == "variable" for part in ordered([derivative(phi, "u")])):
        raise InputError(f"activation={activation!r} is affine, so that there is nothing to select; use another one.")
    return NetworkStep(phi, width, features, examples, rate, sizes, dtype)


class NetworkStep(limits.Claimed):
    """See `network_step`. `certificate` bounds every entry's distance from the exact step."""

    def __init__(self, phi: Node, width: int, features: int, examples: int, rate: float, sizes: Mapping[str, float],
                 dtype: torch.dtype) -> None:  # fmt: skip
        super().__init__()
        self.width, self.features, self.examples, self.rate, self.dtype = width, features, examples, rate, dtype
        self.limits, self.phi, self.slope = dict(sizes), phi, derivative(phi, "u")
        off = rounded_products(features, sizes["x"], sizes["w"], DTYPES[dtype])
        with precision():
            reach = upper(arb(features) * sizes["x"] * sizes["w"] * (1 + 3 * arb(limits.SLACK)) + off)
        inner = Bounds(sizes["x"], 1.0, sizes["w"], reach, math.inf)
        self.value_head = line_term(phi, Line({0: 1}), (1, 0), inner, off)
        self.slope_head = line_term(self.slope, Line({0: 1}), (1, 0), inner, off)
        h, g = self.value_head.facts.size, self.slope_head.facts.size
        self.most = width * sizes["a"] * h + sizes["y"]
        self.outer, self.residual = Factor(sizes["a"]), Factor(1.01 * self.most)
        self.inner_factor = Factor(1.02 * self.most * sizes["a"] * g)
        self.claim(self._certify(DTYPES[dtype]))

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
        for name, value in (("W", W), ("a", a)):
            check_tensor(value, self.dtype, name=name, what="network")
        batches = [v for v in (W.shape[:-2], a.shape[:-1]) if v not in (X.shape[:-2], ())]
        if batches:
            raise ShapeError(f"W and a are one for each prompt; X has {tuple(X.shape[:-2])}, they {tuple(batches[0])}.")
        if W.shape[-2:] != (self.width, self.features) or a.shape[-1:] != (self.width,):
            raise ShapeError(
                f"W must be (..., {self.width}, {self.features}) and a (..., {self.width}); they are "
                f"{tuple(W.shape)} and {tuple(a.shape)}."
            )
        for name, value in (("x", X), ("y", y), ("w", W), ("a", a)):
            limits.within(value, self.limits[name], name, clip=False)

    def _certify(self, dtype: str) -> Certificate:
        """Errors layer by layer, in ball arithmetic.

        A cast or a product loses ρ of its size, a sum of k numbers γ_k of the sum of absolute values; hats and errors
        are of what the layer before hands on, so that products are bounded with both factors' own errors.
        """
        x, w, a, y = (arb(self.limits[name]) * (1 + arb(limits.SLACK)) for name in ("x", "w", "a", "y"))
        n, m, unit, rate = self.examples, self.width, arb(UNIT[dtype]), arb(self.rate)
        with precision():
            h, h_error = _seen(self.value_head.facts, unit)
            g, g_error = _seen(self.slope_head.facts, unit)
            most = m * a * h + y
            before = m * a * h_error + gamma(m + 2, unit) * (m * a * (h + h_error) + y)
            r_error = before + self.residual.error + unit * (most + before + self.residual.error)
            a_error = self.outer.error + unit * (a + self.outer.error)
            back_error = a * g_error + a_error * (g + g_error) + unit * (a + a_error) * (g + g_error)
            r, back = most + r_error, a * g + back_error
            if not (most + before <= self.residual.reach and r * back * (1 + unit) <= self.inner_factor.reach):
                raise ToleranceError(f"{dtype} cannot hold this step for these bounds; use float64 or smaller bounds.")
            on_a = r_error * (h + h_error) + most * h_error + gamma(n + 3, unit) * r * (h + h_error)
            q_error = r_error * back + most * back_error + unit * r * back
            q = most * a * g + q_error
            q_error += self.inner_factor.error + unit * (q + self.inner_factor.error)
            on_W = (q_error + gamma(n + 3, unit) * (q + q_error)) * x
            step = (r * (h + h_error) + on_a).max((q + q_error) * x + on_W)
            lost = (
                LEAST_NORMAL[dtype] * (n + m + 16) * (1 + rate) * (1 + x) * (1 + r) * (1 + back) * (1 + h + h_error + a)
            )
            if not (w + a + rate * step) * (1 + n * step) < LARGEST[dtype]:
                raise ToleranceError(f"{dtype} overflows in this step for these bounds; use float64 or smaller bounds.")
            total = upper(rate * on_a.max(on_W) + gamma(4, unit) * (w.max(a) + rate * step) + lost)
        names = ("x", "y", "w", "a")
        return Certificate(
            expression=f"one step of {self.rate:g} for a two-layer network of width {m}",
            domain=tuple((-self.limits[name], self.limits[name]) for name in names),
            dtype=dtype,
            level="proved",
            approximation=total,
            rounding=0.0,
            boxes=0,
            assumptions=(*ASSUMPTIONS, "rounding is included in the approximation"),
            variables=names,
        )


def _seen(facts: Facts, unit: arb) -> tuple[arb, arb]:
    """A term's size, and its error with what moves it and the cast to the dtype."""
    size, error = arb(facts.size), arb(facts.error) + facts.moved
    return size, error + unit * (size + error)


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
