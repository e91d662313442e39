"""The same network with the paper's heads, for comparison: anchors on the range, softmax selects the nearest.

With K keys on [-U, U] such a head errs by about U/K, so its gradient is off by that much whatever the step. What is
certain of it needs no anchors: weights are not negative and sum to one, so that its output lies between its least and
its largest value, and so is phi between its own; the certificate counts that as the head's error.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from flint import arb

from anchorhead.dtypes import UNIT
from anchorhead.enclosure.precision import above, upper
from anchorhead.enclosure.variation import value_range
from anchorhead.errors import InputError
from anchorhead.head.module import HeadModule
from anchorhead.head.nearest import nearest
from anchorhead.in_context.gradient_descent import GradientDescent
from anchorhead.in_context.stability import gamma
from anchorhead.in_context.terms import AROUND, Facts, Term


def with_paper_heads(model: GradientDescent) -> GradientDescent:
    """A copy of the network whose heads select anchors, each with as many keys as the head it replaces.

    Its certificate is its own: what the anchors' values alone imply, which is often nothing.
    """
    gradient = replace(model.gradient, terms=tuple(_selecting(model, term) for term in model.gradient.terms))
    return GradientDescent(model.algorithm, gradient, model.bounds, model.dtype, clip=model.clip)


def _selecting(model: GradientDescent, term: Term) -> Term:
    if term.line is None:
        raise InputError(
            f"The paper has no head for {term.law.function}, of s and y; compare a loss of one combination of s and y."
        )
    a, b, c = term.line
    loss, bounds = model.algorithm.loss, model.bounds
    reach = abs(a) * bounds.s + abs(b) * bounds.y

    def values(u: np.ndarray) -> np.ndarray:
        """The term at s with u = a s + c and y = 0, what is constant in s taken away."""
        s = torch.as_tensor((np.asarray(u) - c) / a)
        whole = loss.slope(s, torch.zeros_like(s)).numpy()
        found: np.ndarray = (whole - model.gradient.constant) / term.carry[0]
        return found

    head = nearest(values, c - reach, c + reach, term.keys)
    facts = _between(model, term, head.arrays["constants"])
    return Term(HeadModule(head), term.line, facts, term.carry, term.law, term.reach)


def _between(model: GradientDescent, term: Term, values: np.ndarray) -> Facts:
    """The facts of a head of which only its values are known: how far they may be from phi's, and 4 K roundings."""
    s = above(arb(model.bounds.s) * AROUND + model.gradient.off)
    ends = term.law.interval(s, model.bounds.y * AROUND)
    low, high = value_range(term.law.function, *ends) or (-term.facts.size, term.facts.size)
    least, most = float(values.min()), float(values.max())
    apart = (arb(high) - least).max(arb(most) - low)
    error = apart + gamma(4 * len(values) + 16, UNIT["float64"]) * max(abs(least), abs(most))
    return replace(term.facts, error=upper(error), moved=0.0)
