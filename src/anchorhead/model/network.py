"""A network: affine maps and attention layers in a row, with two evaluations of one set of weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from anchorhead.head.own_precision import in_own_precision
from anchorhead.model.attention import LiteralAttention


class InARow(nn.Module):
    """Stages one after another; those of the class `layer` are attention and can show their weights."""

    layer: type[nn.Module]
    stages: nn.ModuleList
    check: Callable[[Tensor], None]

    @in_own_precision
    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        for stage in self.stages:
            x = stage(x)
        return x

    @in_own_precision
    def attention_weights(self, x: Tensor) -> list[Tensor]:
        """The weights of each attention layer on x, each (..., H, queries, keys)."""
        self.check(x)
        found = []
        for stage in self.stages:
            if isinstance(stage, self.layer):
                weights: Any = stage.weights
                found.append(weights(x))
            x = stage(x)
        return found


class Network(InARow):
    """Stages applied in order. Calling it is the fast evaluation; `literal()` is the one to read and export."""

    def __init__(self, stages: Iterable[nn.Module], size: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self._size = size

    @property
    def size(self) -> tuple[int, int] | None:
        """Tokens and features of the sequences that it takes, where they are fixed."""
        return self._size

    def check(self, x: Tensor) -> None:
        """Refuses an input of the wrong shape or dtype; networks that know theirs say so."""

    def literal(self) -> Literal:
        """A copy of the weights as queries, keys, softmax and values, with nothing folded or skipped."""
        return copy.deepcopy(Literal(self))

    def attention_weights(self, x: Tensor) -> list[Tensor]:
        """The weights of each attention layer on x, each (..., H, queries, keys)."""
        return Literal(self).attention_weights(x)


class Literal(InARow):
    """The literal evaluation of a network: every stage that has two evaluations uses its literal one."""

    layer = LiteralAttention

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.stages = nn.ModuleList(_flatten(network.stages))
        self.check = network.check

    def literal(self) -> Literal:
        """This is it."""
        return self


def _flatten(stages: Iterable[nn.Module]) -> list[nn.Module]:
    flat: list[nn.Module] = []
    for stage in stages:
        make: Any = getattr(stage, "literal", None)
        literal = stage if make is None else make()
        flat += _flatten(literal) if isinstance(literal, nn.Sequential) else [literal]
    return flat
