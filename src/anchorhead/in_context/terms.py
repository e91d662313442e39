"""A loss's gradient as attention heads: dl/ds times x is a sum of terms phi(u)·(p + q y)·x, u affine in s and y.

One head a term. Its query comes from the example, (x, y, 1), its keys from the iterate, (slope_k w, ...), so the
score slope_k·(a w·x + b y + c) + intercept_k is one inner product: the product w·x costs no layer of its own. The
values are constant_k·(p + q y)·x, linear in what the example holds, since phi's head has constant values. So its
output is phi(u)·(p + q y)·x, in one softmax. What is affine in y alone needs no iterate and is summed once.

Which terms there are follows from lowering the formula to a circuit, exactly (`circuit/lower.py`). A formula that
is no such sum is taken as a function of the two variables s and y, by one head over a grid of keys.

What is stored are floats: a, b, c, p, q and the heads' numbers. What is proved is of those floats, against the
formula's own coefficients, which are exact: how far each is from the formula's is part of `Facts`. The certificate is
of the fast form; the literal forms multiply and add these floats once more, and hold no certificate.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from flint import arb
from torch import Tensor

from anchorhead.circuit.apply import U
from anchorhead.circuit.line import Line
from anchorhead.enclosure.balls import gradient_enclosure, jet
from anchorhead.enclosure.exact import as_ball
from anchorhead.enclosure.precision import above, ball, below, precision
from anchorhead.enclosure.variation import value_range
from anchorhead.errors import InputError
from anchorhead.expression.derivative import derivative
from anchorhead.expression.graph import Node
from anchorhead.expression.tensors import evaluate as values_of
from anchorhead.head.grid_module import GridModule
from anchorhead.head.module import HeadModule
from anchorhead.in_context.heads import InnerHead
from anchorhead.model.fused import evaluate

FUSED = 1 << 13
"""Examples in a batch from which on a head is fused into one kernel, which takes seconds once."""
AROUND = 1 + 1e-8
"""Heads are proved a little beyond the bounds, since runs allow a billionth more (`bounds.SLACK`)."""

MOST_BOXES, ORDER = 2000, 8
"""A least slope below zero may be what ranges lose, and so many boxes of Taylor forms of that order are tried."""


@dataclass(frozen=True)
class Facts:
    """What is proved of a term on the declared bounds.

    error: |head - phi| at the number that the head is given, float64's rounding included. moved: |phi at that number
    - phi(u)| for the exact u: w·x is rounded, the stored a, b, c are not the formula's, and a s + b y + c is rounded.
    size: |phi(u)|. astray: how far the stored p and q are from the formula's.
    """

    error: float
    moved: float
    size: float
    astray: tuple[float, float]


@dataclass(frozen=True)
class Law:
    """What a term stands for, exactly: phi of a line in s and y, or a formula in both (line is None)."""

    function: Node
    line: Line | None

    def slopes(self, s: float, y: float) -> tuple[float, float]:
        """The range of its derivative by s over |s| <= s, |y| <= y."""
        with precision():
            if self.line is None:
                found = gradient_enclosure(self.function, {"s": arb(0, s), "y": arb(0, y)})["s"]
            else:
                a = as_ball(self.line.terms.get(0, 0))
                low, high = slope_range(self.function, *self.interval(s, y))
                if a == 0:
                    return 0.0, 0.0
                found = a * ball(low, high) if math.isfinite(low) and math.isfinite(high) else arb("nan")
            return (below(found), above(found)) if found.is_finite() else (-math.inf, math.inf)

    def interval(self, s: float, y: float) -> tuple[float, float]:
        """Where u lies for |s| <= s, |y| <= y."""
        if self.line is None:
            raise InputError("A head that looks at s and y by themselves has no one argument.")
        with precision():
            u = as_ball(self.line.bias) + sum(
                (as_ball(c) * arb(0, (s, y)[wire]) for wire, c in self.line.terms.items()), arb(0)
            )
            return below(u), above(u)


class Term(InnerHead):
    """phi(u)·(p + q y): the head for phi, what it looks at, and what is proved of it.

    line: (a, b, c) with u = a s + b y + c, or None for a head that looks at s and y by themselves. carry: (p, q).
    """

    def __init__(self, head: HeadModule | GridModule, line: tuple[float, float, float] | None, facts: Facts,
                 carry: tuple[float, float], law: Law, reach: float) -> None:  # fmt: skip
        super().__init__(head, facts.error, reach)
        self.line, self.facts, self.carry, self.law = line, facts, carry, law

    def arguments(self, *at: Any) -> list[Any]:
        if self.line is None:
            return list(at)
        (a, b, c), (s, y) = self.line, at
        u = s if a == 1 else a * s
        u = u + b * y if b else u
        return [u + c if c else u]

    def forward(self, *at: Tensor) -> Tensor:
        """phi(u), in float64 whatever the dtype of s: keys are few, and digits cost little here."""
        arguments = self.arguments(*(v.double() for v in at))
        if isinstance(self.head, HeadModule):
            found = evaluate(self.head, arguments[0], FUSED)
        else:
            found = self.head(torch.stack(arguments, -1)).squeeze(-1)
        return found.to(at[0].dtype)

    def exact(self, *at: Tensor) -> Tensor:
        names = "sy" if self.line is None else "u"
        found: Tensor = values_of(self.law.function, dict(zip(names, self.arguments(*at), strict=True)))
        return found.expand_as(at[0])


@dataclass(frozen=True)
class Gradient:
    """dl/ds = sum of terms + constant + on_label·y; `astray`: how far these two are from the formula's.

    off: by how much w·x may be rounded. kinds: the labels, where there are but two.
    """

    terms: tuple[Term, ...]
    off: float
    constant: float = 0.0
    on_label: float = 0.0
    astray: tuple[float, float] = (0.0, 0.0)
    kinds: tuple[float, ...] = ()

    @property
    def carries_labels(self) -> bool:
        """Whether products y·x are needed."""
        return self.on_label != 0 or any(term.carry[1] != 0 for term in self.terms)

    @property
    def quadratic(self) -> bool:
        """Whether it is affine in w, so that the Hessian is the same in all steps."""
        return all(term.law.function is U and not _has_label(term) for term in self.terms)


def _has_label(term: Term) -> bool:
    return term.carry[1] != 0 or term.facts.astray[1] != 0


@lru_cache(maxsize=500)
def slope_range(function: Node, low: float, high: float) -> tuple[float, float]:
    """Bounds of function' on [low, high]; kinks count with the slopes on both sides."""
    if function is U:
        return 1.0, 1.0
    try:
        found = value_range(derivative(function, "u"), low, high)
        if found is not None and found[0] < 0 and _rises(function, low, high):
            found = 0.0, found[1]
    except InputError:
        found = _slopes_by_boxes(function, low, high)
    return (-math.inf, math.inf) if found is None else found


def _rises(function: Node, low: float, high: float) -> bool:
    """Whether function' >= 0 is proved: on a box with middle m and half the width h, function' is at least
    c_1 - sum over k of k |c_k| h^(k-1), the coefficients c_k at m and the last over the whole box, and boxes are halved
    until that is not negative. Ranges of function' alone lose what cancels in it."""
    todo = [(low, high)]
    with precision():
        for _ in range(MOST_BOXES):
            if not todo:
                return True
            a, b = todo.pop()
            middle, box = (a + b) / 2, ball(a, b)
            if not a < middle < b:
                return False
            at, last = jet(function, "u", arb(middle), ORDER - 1), jet(function, "u", box, ORDER)
            known, half = len(at) == ORDER and len(last) == ORDER + 1, arb(above(abs(box - middle)))
            if known and at[1] < 0:
                return False
            rest = [*at[2:], last[ORDER]] if known else []
            least = at[1] - sum(k * abs(c) * half ** (k - 1) for k, c in enumerate(rest, 2)) if known else -1
            if not least >= 0:
                todo += [(a, middle), (middle, b)]
    return False


def _slopes_by_boxes(function: Node, low: float, high: float, boxes: int = 2000) -> tuple[float, float] | None:
    """Clarke's slopes over boxes that cover the interval."""
    least, most = math.inf, -math.inf
    inner = (low + (high - low) * i / boxes for i in range(1, boxes))
    edges = [low, *(min(max(e, low), high) for e in inner), high]
    with precision():
        for a, b in itertools.pairwise(edges):
            slope = gradient_enclosure(function, {"u": ball(a, b)})["u"]
            if not slope.is_finite():
                return None
            least, most = min(least, below(slope)), max(most, above(slope))
    return least, most
