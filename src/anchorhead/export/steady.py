"""Literal heads that keep their digits in other runtimes: scores of steep gates, counted from the largest."""

from __future__ import annotations

from torch import Tensor, nn

from anchorhead.head.module import LiteralHead


class SteadyHead(LiteralHead):
    """Scores counted from the largest gate, which softmax does not see: a steep gate costs the others no digits."""

    def __init__(self, head: LiteralHead) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(head.__dict__)

    def weights(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(-1)
        gates = x * self.gate_slopes + self.gate_levels
        gates = gates - gates.amax(-1, keepdim=True)
        return (x * self.slopes + self.intercepts + gates[..., self.piece]).softmax(-1)


def steady(module: nn.Module) -> nn.Module:
    """The literal form with steady heads wherever a piece has several keys; the module is one that nobody else has."""
    if isinstance(module, LiteralHead):
        pieces = len(module.gate_slopes)
        return SteadyHead(module) if 1 < pieces < len(module.slopes) else module
    for name, child in list(module._modules.items()):
        if child is not None:
            setattr(module, name, steady(child))
    return module
