"""A network: affine maps and attention layers in a row, with two evaluations of one set of weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from anchorhead.head.own_precision import in_own_precision


@dataclass(frozen=True)
class Resources:
    """What a network costs.

    layers and heads of attention (one for each softmax, however many numbers it gives; numbers that are carried on
    count nothing), keys (columns that can be attended to, over all heads of all layers), parameters (every stored
    number), beta of the sharpest layer (what softmax's scores are multiplied by, the inverse temperature), and the
    largest absolute logit for inputs in the domain, box or range that it is built for: nan where it is not known.
    """

    layers: int
    heads: int
    keys: int
    parameters: int
    beta: float
    logit_range: float

    @property
    def logits(self) -> str:
        """The range of logits in words."""
        return "not known" if math.isnan(self.logit_range) else f"±{self.logit_range:.4g}"


def _accept(x: Tensor) -> None:
    """Every input is as good as another."""


class Network(nn.Module):
    """Stages applied in order. Calling it is the fast evaluation; `literal()` is the one to read and export.

    check: refuses an input of the wrong shape or dtype; networks that know theirs say so.
    """

    check: Callable[[Tensor], None] = staticmethod(_accept)

    def __init__(self, stages: Iterable[nn.Module], size: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self._size = size

    @property
    def size(self) -> tuple[int, int] | None:
        """Tokens and features of the sequences that it takes, where they are fixed."""
        return self._size

    @in_own_precision
    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        for stage in self.stages:
            x = stage(x)
        return x

    def literal(self) -> Network:
        """A copy of the weights as queries, keys, softmax and values, with nothing folded or skipped."""
        found = Network(copy.deepcopy(_literal_stages(self.stages)), self.size)
        found.check = self.check
        return found

    @in_own_precision
    def attention_weights(self, x: Tensor) -> list[Tensor]:
        """The weights of each attention layer on x, each (..., H, queries, keys)."""
        self.check(x)
        found = []
        for stage in _literal_stages(self.stages):
            weights: Any = getattr(stage, "weights", None)
            if weights is not None:
                found.append(weights(x))
            x = stage(x)
        return found


def _literal_stages(stages: Iterable[nn.Module]) -> list[nn.Module]:
    """Every stage that has two evaluations in its literal one, and those in a row one by one."""
    flat: list[nn.Module] = []
    for stage in stages:
        make: Any = getattr(stage, "literal", None)
        literal = stage if make is None else make()
        flat += _literal_stages(literal) if isinstance(literal, nn.Sequential) else [literal]
    return flat
