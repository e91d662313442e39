"""What a network costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Resources:
    """layers and heads of attention, keys (columns that can be attended to, over all heads of all layers),
    parameters (every stored number), beta of the sharpest layer (what softmax's scores are multiplied by, the inverse
    temperature), and the largest absolute logit for
    inputs in range."""

    layers: int
    heads: int
    keys: int
    parameters: int
    beta: float
    logit_range: float
