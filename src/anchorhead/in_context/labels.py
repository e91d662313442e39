"""Layer 0: products y·x of a label and its example, which some losses need. A head looks at y, its values carry x.

Labels of two kinds are told apart by two keys at a β at which softmax is exact to exp(-80); any others are
multiplied by the smooth head for y itself.
"""

from __future__ import annotations

import torch
from flint import arb
from torch import Tensor, nn

from anchorhead.circuit.apply import U
from anchorhead.enclosure.precision import precision, upper
from anchorhead.head.head import Head
from anchorhead.head.module import HeadModule
from anchorhead.in_context.bounds import Bounds
from anchorhead.in_context.losses import Loss
from anchorhead.in_context.products import identity_head
from anchorhead.in_context.terms import Keys
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.proof.rounding import Rounding

STEEP = 80.0
PAIRS = {"zero_one": (0.0, 1.0), "signs": (-1.0, 1.0)}


class LabelHead(nn.Module):
    """y from a head over y: (...) to (...), in float64 inside; `error` bounds |output - y| before the last cast."""

    def __init__(self, head: HeadModule, error: float) -> None:
        super().__init__()
        self.head, self.error = head, error
        zeros = torch.zeros(head.keys, dtype=torch.float64)
        self.keys = Keys(zeros, head.slopes.detach(), head.intercepts.detach(), head.constants.detach())

    def forward(self, y: Tensor) -> Tensor:
        found: Tensor = self.head(y.double())
        return found.to(y.dtype)


def label_head(loss: Loss, bounds: Bounds) -> LabelHead:
    """The head for a loss's labels."""
    if loss.labels in PAIRS:
        head = _selecting(*PAIRS[loss.labels])
        return LabelHead(head, _selection_error(head, PAIRS[loss.labels]))
    head, _, error = identity_head(bounds.y)
    return LabelHead(head, error)


def _selecting(low: float, high: float) -> HeadModule:
    """Two keys, one for each label: scores ±STEEP/2 at the labels, on opposite sides; all numbers are exact."""
    slope = STEEP / (high - low)
    intercepts = slope * (low + high) / 2, -slope * (low + high) / 2
    return HeadModule(Head((-slope, slope), intercepts, (low, high), (0.0, 0.0), horner=True))


def _selection_error(head: HeadModule, labels: tuple[float, float]) -> float:
    """At the labels the other key has exp(-STEEP) of the weight, at most; rounding as it is proved of any head."""
    claim = HeadClaim(U, "u", *labels, head.numbers)
    rounding = max(Rounding(claim).on_box(label, label) for label in labels)
    with precision():
        return upper((labels[1] - labels[0]) * arb(-STEEP).exp() + rounding)
