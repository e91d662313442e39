"""A loss's gradient as attention heads: dl/ds times x is a sum of terms phi(u)·(p + q y)·x, u affine in s and y.

One head a term. Its query comes from the example, (x, y, 1), its keys from the iterate, (slope_k w, ...), so the
score slope_k·(a w·x + b y + c) + intercept_k is one inner product: the product w·x costs no layer of its own. The
values are constant_k·(p + q y)·x, linear in what the example holds, since phi's head has constant values. So its
output is phi(u)·(p + q y)·x, in one softmax. What is affine in y alone needs no iterate and is summed once.

Which terms there are follows from lowering the formula to a circuit, exactly (`expression/forms.py`). A formula that
is no such sum is taken as a function of the two variables s and y, by one head over a grid of keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from flint import arb
from torch import Tensor, nn

from anchorhead.certify.variation import steepest, value_range
from anchorhead.compiler.carrying import carrying_model
from anchorhead.compiler.compile import compile
from anchorhead.compiler.target import Target
from anchorhead.errors import AnchorheadError, InputError, ToleranceError
from anchorhead.expression.balls import enclose, gradient_enclosure
from anchorhead.expression.circuit import Apply, Line, Times, U
from anchorhead.expression.derivative import derivative
from anchorhead.expression.exact import as_float
from anchorhead.expression.forms import lower
from anchorhead.expression.graph import Expression, Node
from anchorhead.in_context.bounds import Bounds
from anchorhead.in_context.losses import Loss
from anchorhead.in_context.products import RELATIVE, identity_head
from anchorhead.network.activation_head import evaluate
from anchorhead.network.compiled_grid import CompiledGrid
from anchorhead.network.compiled_head import CompiledHead
from anchorhead.network.grid_attention import GridAttention
from anchorhead.network.head_attention import HeadAttention

FUSED = 1 << 13
"""Examples in a batch from which on a head is fused into one kernel, which takes seconds once."""


@dataclass(frozen=True)
class Keys:
    """The keys of a head: score k is on_s·s + on_y·y + level, its value is a constant. Each (keys,), float64."""

    on_s: Tensor
    on_y: Tensor
    level: Tensor
    value: Tensor

    def __len__(self) -> int:
        return len(self.value)


@dataclass(frozen=True)
class Facts:
    """What is proved of a term on the declared bounds.

    error: |head - phi|, rounding included. size: |phi|. slope: range of the derivative of phi(u) in s. steep: the
    largest |dphi/ds|·|s| + |dphi/dy|·|y| + |dphi/dc|: how much relative rounding of u's parts moves phi.
    """

    error: float
    size: float
    slope: tuple[float, float]
    steep: float


class Term(nn.Module):
    """phi(u)·(p + q y): the head's value from s and y, its keys, and what is proved of it.

    line: (a, b, c) with u = a s + b y + c, or None for a head that looks at s and y by themselves.
    """

    def __init__(self, head: nn.Module, line: tuple[float, float, float] | None, keys: Keys, facts: Facts,
                 carry: tuple[float, float], label: str) -> None:  # fmt: skip
        super().__init__()
        self.head, self.line, self.keys, self.facts, self.carry, self.label = head, line, keys, facts, carry, label

    def forward(self, s: Tensor, y: Tensor) -> Tensor:
        """phi(u), in float64 whatever the dtype of s: keys are few, and digits cost little here."""
        dtype, s, y = s.dtype, s.double(), y.double()
        if self.line is None:
            found: Tensor = self.head(torch.stack([s, y], -1)).squeeze(-1)
        else:
            a, b, c = self.line
            u = s if a == 1 else a * s
            u = u + b * y if b else u
            u = u + c if c else u
            found = evaluate(self.head, u, FUSED) if isinstance(self.head, HeadAttention) else self.head(u)
        return found.to(dtype)


@dataclass(frozen=True)
class Gradient:
    """dl/ds = sum of terms + constant + on_label·y."""

    terms: tuple[Term, ...]
    constant: float
    on_label: float

    @property
    def carries_labels(self) -> bool:
        """Whether products y·x are needed."""
        return self.on_label != 0 or any(term.carry[1] != 0 for term in self.terms)


def gradient_terms(loss: Loss, bounds: Bounds) -> Gradient:
    """The terms of a loss, each with a proved head on the declared bounds."""
    circuit = lower(loss.expression)
    output, terms = circuit.outputs[0], []
    rest = Line({w: c for w, c in output.terms.items() if w < 2}, output.bias)
    try:
        for step, wire in zip(circuit.steps, circuit.starts, strict=True):
            factor = as_float(output.terms.get(wire, 0))
            partner = _partner(step)
            simple = isinstance(step, Apply | Times) and all(w <= 1 for w in step.argument.terms)
            if partner is None or not simple:
                return Gradient((_grid_term(loss, bounds),), 0.0, 0.0)
            assert isinstance(step, Apply | Times)
            carry = (factor * partner[0], factor * partner[1])
            terms.append(line_term(step.function, step.argument, carry, bounds))
        if 0 in rest.terms:
            terms.append(line_term(U, rest, (1.0, 0.0), bounds))
            rest = Line({}, 0)
    except AnchorheadError as error:
        raise InputError(
            f"The gradient of the loss {loss.name}, {loss.gradient}, cannot be held for {bounds.described}, "
            f"|w·x| <= {bounds.s:g}: {error} Declare smaller bounds, for instance bounds={{'s': ...}}, the largest "
            "|w·x|."
        ) from error
    return Gradient(tuple(terms), as_float(rest.bias), as_float(rest.terms.get(1, 0)))


def _partner(step: object) -> tuple[float, float] | None:
    """(p, q) of a step phi(u)·(p + q y); None if it is something else."""
    if isinstance(step, Apply):
        return 1.0, 0.0
    if not isinstance(step, Times) or any(w != 1 for w in step.partner.terms):
        return None
    return as_float(step.partner.bias), as_float(step.partner.terms.get(1, 0))


def line_term(function: Node, line: Line, carry: tuple[float, float], bounds: Bounds) -> Term:
    """The head for a function of u = a s + b y + c."""
    a, b = (as_float(line.terms.get(wire, 0)) for wire in (0, 1))
    c = as_float(line.bias)
    reach = (abs(a) * bounds.s + abs(b) * bounds.y) * (1 + 1e-8)  # runs allow a billionth more than the bounds
    low, high = c - reach, c + reach
    if function is U:
        numbers, _, error = identity_head(max(-low, high))
    else:
        model = _on_the_line(function) or _carrying(function, low, high)
        numbers, proof = model.head, model.certificate
        error = proof.bound if proof.bounded else proof.approximation + proof.rounding * (1 + max(-low, high))
    pieces = torch.arange(len(numbers.sizes)).repeat_interleave(torch.tensor(numbers.sizes))
    slopes = numbers.slopes.detach() + numbers.gate_slopes.detach()[pieces]
    levels = numbers.intercepts.detach() + numbers.gate_levels.detach()[pieces]
    keys = Keys(a * slopes, b * slopes, c * slopes + levels, numbers.constants.detach().clone())
    values = value_range(function, low, high)
    assert values is not None
    lipschitz = steepest(function, low, high)
    first, last = slope_range(function, low, high)
    slope = (min(a * first, a * last), max(a * first, a * last))
    facts = Facts(error, max(map(abs, values)), slope, lipschitz * (reach + abs(c)))
    return Term(numbers, (a, b, c), keys, facts, carry, f"{function} of {_text(line)}")


@lru_cache(maxsize=500)
def _on_the_line(function: Node) -> CompiledHead | None:
    """A head on all of R, for functions that settle on constants: one for all bounds. None if there is none."""
    formula = Expression((function,), ("u",))
    ends = [Target(formula, -math.inf, math.inf).asymptote(sign) for sign in (-1, 1)]
    if any(end is None or end[0].gain != 0 for end in ends):
        return None
    for relative in (1, 10, 100, 1e3):
        try:
            return carrying_model(formula, None, RELATIVE * relative, torch.float64)
        except ToleranceError:
            continue
        except AnchorheadError:
            return None
    return None


@lru_cache(maxsize=500)
def _carrying(function: Node, low: float, high: float) -> CompiledHead:
    """The head with the smallest error that the search reaches, to a power of ten."""
    formula = Expression((function,), ("u",))
    values = value_range(function, low, high)
    if values is None or max(map(abs, values)) > 1e12:
        raise InputError(f"{function} is not finite, or larger than 1e12, for u in [{low:.4g}, {high:.4g}].")
    scale = max(map(abs, values))
    for relative in (1, 10, 100, 1e3, 1e4, 1e6, 1e8):
        try:
            return carrying_model(formula, (low, high), RELATIVE * relative * scale, torch.float64)
        except ToleranceError as error:
            refusal: Exception = error
        except (ArithmeticError, ValueError, np.linalg.LinAlgError) as error:
            if isinstance(error, AnchorheadError):
                raise
            raise InputError(f"No head was found for {function} on [{low:.4g}, {high:.4g}]: {error}.") from error
    raise refusal


@lru_cache(maxsize=500)
def slope_range(function: Node, low: float, high: float) -> tuple[float, float]:
    """Bounds of function' on [low, high]; kinks count with the slopes on both sides."""
    if function is U:
        return 1.0, 1.0
    try:
        found = value_range(derivative(function, "u"), low, high)
    except InputError:
        found = _slopes_by_boxes(function, low, high)
    return (-math.inf, math.inf) if found is None else found


def _slopes_by_boxes(function: Node, low: float, high: float, boxes: int = 2000) -> tuple[float, float] | None:
    """Clarke's slopes over boxes."""
    least, most = math.inf, -math.inf
    for i in range(boxes):
        a, b = low + (high - low) * i / boxes, low + (high - low) * (i + 1) / boxes
        slope = gradient_enclosure(function, {"u": arb((a + b) / 2, (b - a) / 2 * (1 + 1e-9))})["u"]
        if not slope.is_finite():
            return None
        least = min(least, math.nextafter(float(slope.lower()), -math.inf))
        most = max(most, math.nextafter(float(slope.upper()), math.inf))
    tiny = 1e-12 * max(abs(least), abs(most))
    return (0.0 if -tiny < least < 0 else least), most


def _grid_term(loss: Loss, bounds: Bounds) -> Term:
    """A function of s and y that is no sum of terms: one head over a tensor grid of keys."""
    reach, most = bounds.s * (1 + 1e-8), bounds.y * (1 + 1e-8)
    box = {"s": (-reach, reach), "y": (-most, most)}
    node = loss.expression.outputs[0]
    s, y = arb(0, reach), arb(0, most)
    size = float(abs(enclose(node, {"s": s, "y": y})).upper())
    model = None
    for relative in (1e-10, 1e-8, 1e-6, 1e-4, 1e-3):
        try:
            model = compile(loss.gradient, box, tol=relative * max(size, 1e-6), method="grid")
            break
        except (ToleranceError, AnchorheadError) as error:
            refusal = error
    if not isinstance(model, CompiledGrid):
        raise InputError(
            f"{loss.gradient} is no function of one combination of s and y, and as a function of both it is refused: "
            f"{refusal} Where the labels are -1 and 1, write y*s as s - y if you can, as ah.in_context.hinge does."
        )
    slopes = gradient_enclosure(node, {"s": s, "y": y})
    low, high = (float(v) for v in (slopes["s"].lower(), slopes["s"].upper()))
    steep = float(abs(slopes["s"]).upper()) * bounds.s + float(abs(slopes["y"]).upper()) * bounds.y
    grid = model.grid
    facts = Facts(model.certificate.bound, size, (low, high), steep)
    return Term(grid, None, _grid_keys(grid), facts, (1.0, 0.0), f"{loss.gradient} over a grid")


def _grid_keys(grid: GridAttention) -> Keys:
    slopes, levels = ([p.detach() for p in axes] for axes in (grid.slopes, grid.intercepts))
    first, second = (len(s) for s in slopes)
    return Keys(
        slopes[0].repeat_interleave(second),
        slopes[1].repeat(first),
        levels[0].repeat_interleave(second) + levels[1].repeat(first),
        grid.values.detach().reshape(-1),
    )


def _text(line: Line) -> str:
    parts = [f"{as_float(c):g}·{'sy'[w]}" for w, c in sorted(line.terms.items())]
    bias = as_float(line.bias)
    return " + ".join([*parts, f"{bias:g}"] if bias else parts)
