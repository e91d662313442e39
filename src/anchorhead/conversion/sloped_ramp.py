"""nn.PReLU with its slope as the parameter that it is: relu(x) + slope·(x - relu(x)), of which only the ramp is a head.

A head for the whole would have the slope among its numbers, where no optimiser and no `load_state_dict` finds it.
"""

from __future__ import annotations

from torch import Tensor, nn

from anchorhead.conversion.place_heads import keep_hooks


class SlopedRamp(nn.Module):
    """A PReLU, under the same name of its slope, one or one for each channel."""

    def __init__(self, before: nn.PReLU) -> None:
        super().__init__()
        self.weight, self.ramp = before.weight, nn.ReLU()
        self.train(before.training)
        keep_hooks(before, self)

    def forward(self, x: Tensor) -> Tensor:
        slope = self.weight.reshape(-1, *[1] * (x.dim() - 2))  # channels are the second dimension
        ramp = self.ramp(x)
        below = x - ramp
        return (ramp + slope * below).reshape(x.shape)


def put_ramps(model: nn.Module) -> nn.Module:
    """The model with ramps and slopes in the place of every PReLU; the model itself is changed."""
    made: dict[int, nn.Module] = {}
    for module in [model, *model.modules()]:
        if isinstance(module, nn.PReLU) and type(module).forward is nn.PReLU.forward and "forward" not in vars(module):
            made.setdefault(id(module), SlopedRamp(module))
    for module in list(model.modules()):
        for name, child in module._modules.items():
            module._modules[name] = made.get(id(child), child)
    return made.get(id(model), model)
