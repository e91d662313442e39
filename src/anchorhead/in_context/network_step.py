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

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from flint import arb
from torch import Tensor

from anchorhead.circuit.line import Line
from anchorhead.dtypes import LEAST_NORMAL, UNIT
from anchorhead.enclosure.precision import precision, upper
from anchorhead.errors import InputError, ToleranceError
from anchorhead.expression.derivative import derivative
from anchorhead.expression.graph import Node, ordered
from anchorhead.expression.parse import parse
from anchorhead.in_context import bounds as limits
from anchorhead.in_context.bounds import DTYPES, Bounds, counts, dtype_name, positive, read_sizes
from anchorhead.in_context.gradient_terms import line_term
from anchorhead.in_context.heads import Factor
from anchorhead.in_context.network import INCLUDED, InContextNetwork, Layers, State, stated
from anchorhead.in_context.reading import Reading
from anchorhead.in_context.stability import gamma, rounded_products
from anchorhead.in_context.terms import Facts
from anchorhead.proof.rounding import LARGEST

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

    >>> step = ah.in_context.network_step(width=3, features=2, examples=4, learning_rate=0.1)
    >>> X, y, W, a = (torch.ones(*shape, dtype=torch.float64) for shape in ((4, 2), (4,), (3, 2), (3,)))
    >>> [tuple(part.shape) for part in step(X, y, W, a)]
    [(3, 2), (3,)]
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


class NetworkStep(InContextNetwork):
    """See `network_step`. `certificate` bounds every entry's distance from the exact step.

    >>> ah.in_context.network_step(width=3, features=2, examples=4, learning_rate=0.1).certificate.level
    'proved'
    """

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
        self.claim(stated(f"one step of {rate:g} for a two-layer network of width {width}", self.limits, DTYPES[dtype],
                          self._error(DTYPES[dtype]), 0.0, (INCLUDED,)))  # fmt: skip

    def forward(self, X: Tensor, y: Tensor, W: Tensor, a: Tensor) -> Parameters:
        """The parameters after the step, for examples X (..., n, d), labels y (..., n), W and a."""
        found: Parameters = self.fast(X, y, W, a)
        return found

    def begin(self, how: Reading, X: Tensor, y: Tensor, W: Tensor, a: Tensor) -> State:
        """The parameters after the step, layer by layer as at the top."""
        n, u, zero = X.shape[-2], how.match(X, W), X.new_zeros((*X.shape[:-1], self.width))
        h, g = how.value(self.value_head, u, zero), how.value(self.slope_head, u, zero)
        back = how.carry(self.outer, (a,), g.mT).mT
        minus = -torch.ones_like(a[..., :1])
        r = how.match(torch.cat([h, y.unsqueeze(-1)], -1), torch.cat([a, minus], -1).unsqueeze(-2)).squeeze(-1)
        on_a = how.gather(self.residual, (r,), h) / n
        on_W = how.product(self.inner_factor, how.carry(self.residual, (r,), back).mT, X) / n
        return {"W": W - self.rate * on_W, "a": a - self.rate * on_a}

    def end(self, how: Reading, state: State) -> Parameters:
        return Parameters(state["W"], state["a"])

    def joined(self, result: Parameters) -> Tensor:
        """(..., width, d + 1), a last."""
        return torch.cat([result.W, result.a.unsqueeze(-1)], -1)

    def layers(self) -> Layers:
        second, third = [self.outer], [self.residual, self.residual]
        return [(1, [self.value_head, self.slope_head]), (1, second), (1, third), (1, [self.inner_factor])]

    def shapes(self, examples: int) -> dict[str, tuple[int, ...]]:
        d, m = self.features, self.width
        return {"X": (examples, d), "y": (examples,), "W": (m, d), "a": (m,)}

    def checked(self, X: Tensor, y: Tensor, W: Tensor, a: Tensor) -> tuple[Any, ...]:
        limits.check_examples(X, y, self.features, self.examples, self.dtype)
        W = limits.each_prompt(W, (self.width, self.features), X, self.dtype, "W")
        a = limits.each_prompt(a, (self.width,), X, self.dtype, "a")
        for name, value in (("x", X), ("y", y), ("w", W), ("a", a)):
            limits.within(value, self.limits[name], name)
        return X, y, W, a

    def extra_repr(self) -> str:
        sizes = f"width {self.width}, {self.examples} x {self.features}"
        return f"one step of {self.rate:g} for a two-layer network with {self.phi}, {sizes}"

    def _error(self, dtype: str) -> float:
        """Of any entry: errors layer by layer, in ball arithmetic.

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
            return upper(rate * on_a.max(on_W) + gamma(4, unit) * (w.max(a) + rate * step) + lost)


def _seen(facts: Facts, unit: arb) -> tuple[arb, arb]:
    """A term's size, and its error with what moves it and the cast to the dtype."""
    size, error = arb(facts.size), arb(facts.error) + facts.moved
    return size, error + unit * (size + error)
