"""The same network with the paper's heads, for comparison: anchors on the range, softmax selects the nearest.

With K keys on [-U, U] such a head errs by about U/K, so its gradient is off by that much whatever the step.
"""

from __future__ import annotations

import numpy as np
import torch

from anchorhead.errors import InputError
from anchorhead.heads.nearest import nearest
from anchorhead.in_context.gradient_descent import GradientDescent
from anchorhead.in_context.reference import slope
from anchorhead.in_context.terms import Gradient, Keys, Term
from anchorhead.network.file import NUMBERS
from anchorhead.network.head_attention import HeadAttention


def with_paper_heads(model: GradientDescent) -> GradientDescent:
    """A copy of the network whose heads select anchors, each with as many keys as the head it replaces.

    Its `certificate` is the original's and does not hold for it.
    """
    terms = tuple(_selecting(model, term) for term in model.gradient.terms)
    gradient = Gradient(terms, model.gradient.constant, model.gradient.on_label)
    return GradientDescent(model.algorithm, gradient, model.bounds, model.dtype, clip=model.clip)


def _selecting(model: GradientDescent, term: Term) -> Term:
    if term.line is None:
        raise InputError(f"The paper has no head for {term.label}; compare a loss of one combination of s and y.")
    a, b, c = term.line
    loss, bounds = model.algorithm.loss, model.bounds
    reach = abs(a) * bounds.s + abs(b) * bounds.y

    def values(u: np.ndarray) -> np.ndarray:
        """The term at s with u = a s + c and y = 0, what is constant in s taken away."""
        s = torch.as_tensor((np.asarray(u) - c) / a)
        whole = slope(loss, s, torch.zeros_like(s)).numpy()
        found: np.ndarray = (whole - model.gradient.constant) / term.carry[0]
        return found

    head = nearest(values, c - reach, c + reach, len(term.keys))[1]
    numbers = {name: torch.tensor(getattr(head, name)) for name in NUMBERS}
    attention = HeadAttention(**numbers, uniform=False, sizes=head.sizes)
    slopes, levels = numbers["slopes"], numbers["intercepts"]
    keys = Keys(a * slopes, b * slopes, c * slopes + levels, numbers["constants"])
    return Term(attention, term.line, keys, term.facts, term.carry, f"{term.label}, nearest anchor")
