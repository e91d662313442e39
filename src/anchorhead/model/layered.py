"""A network of many heads: layers of affine maps and attention, made from stored maps and the heads of its steps.

The state (..., S) holds the wires that are still needed, in a fixed order. A layer is

    rows = weight · state + bias              what its heads look at, their partners, scores and values
    new  = the heads' outputs                 attention, head by head, each over keys of its own
    state = (wires still needed, new)         a residual connection

and the outputs are one more affine map. Steps of a layer that share a head (the same numbers) are evaluated together.
*Fast*: a head as `head/module.py` evaluates it; where it carries a partner, times the partner, which is the same
since all values have that factor. *Literal*: scores, softmax, values for every head.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.layout import LayerPlan, rows_of, states
from anchorhead.circuit.line import Line
from anchorhead.circuit.rows import StoredMap, Wiring, placed, rounded_row
from anchorhead.circuit.step import Step
from anchorhead.head.module import HeadModule
from anchorhead.head.own_precision import in_own_precision
from anchorhead.model.affine import TokenWise
from anchorhead.model.apply import Heads
from anchorhead.model.attend import Attentions
from anchorhead.model.group import Group
from anchorhead.model.largest import Maxima
from anchorhead.model.pool import Pools

MODULES: dict[str, type[Group]] = {"apply": Heads, "times": Heads, "largest": Maxima, "attend": Attentions,
                                   "pool": Pools}  # fmt: skip
"""The modules of the kinds of steps, by their names."""


class Layer(nn.Module):
    """One layer; `kept` are the places of the state that are carried on."""

    kept: Tensor

    def __init__(
        self,
        rows: TokenWise,
        groups: Sequence[nn.Module],
        sizes: Sequence[int],
        kept: Tensor,
        steps: Sequence[Sequence[int]],
    ) -> None:
        super().__init__()
        self.rows, self.groups = rows, nn.ModuleList(groups)
        self.sizes, self.group_steps = tuple(sizes), tuple(list(part) for part in steps)
        self.register_buffer("kept", kept)

    @property
    def steps(self) -> list[int]:
        """The steps of the circuit that the layer evaluates, in the order of its outputs."""
        return [i for part in self.group_steps for i in part]

    def forward(self, state: Tensor) -> Tensor:
        rows = self.rows(state)
        if len(self.groups) == 1 and not len(self.kept):
            return cast(Tensor, self.groups[0](rows))
        parts = rows.split(self.sizes, dim=-1)
        found = [group(part) for group, part in zip(self.groups, parts, strict=True)]
        return torch.cat([state[..., self.kept], *found], dim=-1)

    @property
    def parts(self) -> list[Group]:
        """The groups, each of which evaluates steps of one kind."""
        return cast(list[Group], list(self.groups))

    def literal(self) -> Layer:
        groups = [group.literal() for group in self.parts]
        return Layer(copy.deepcopy(self.rows), groups, self.sizes, self.kept.clone(), self.group_steps)

    def weights(self, state: Tensor) -> Tensor:
        """(..., heads, keys), keys that a head does not have with weight zero."""
        parts = self.rows(state).split(self.sizes, dim=-1)
        found = [group.weights(part) for group, part in zip(self.parts, parts, strict=True)]
        most = max(w.shape[-1] for w in found)
        return torch.cat([nn.functional.pad(w, (0, most - w.shape[-1])) for w in found], dim=-2)


class LayeredNetwork(nn.Module):
    """(..., inputs) to (..., outputs): the layers, and the affine map after the last."""

    def __init__(self, layers: Sequence[Layer], last: TokenWise) -> None:
        super().__init__()
        self.layers, self.last = nn.ModuleList(layers), last

    @property
    def dtype(self) -> torch.dtype:
        return self.last.weight.dtype

    @property
    def sequence(self) -> list[Layer]:
        """The layers in order."""
        return cast(list[Layer], list(self.layers))

    @property
    def groups(self) -> list[tuple[Group, list[int]]]:
        """The groups of all layers, in order, and the steps of each."""
        return [pair for layer in self.sequence for pair in zip(layer.parts, layer.group_steps, strict=True)]

    @in_own_precision
    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.last(x)

    @in_own_precision
    def states(self, x: Tensor) -> list[Tensor]:
        """The state before the first layer, and after each."""
        return list(itertools.accumulate(self.layers, lambda state, layer: layer(state), initial=x))

    def literal(self) -> LayeredNetwork:
        """A copy of the numbers as scores, softmax and values."""
        return LayeredNetwork([layer.literal() for layer in self.sequence], copy.deepcopy(self.last))

    @in_own_precision
    def attention(self, x: Tensor) -> list[Tensor]:
        """The attention weights of each layer, (..., heads, keys); keys that a head does not have weigh zero."""
        return [layer.weights(s) for layer, s in zip(self.sequence, self.states(x), strict=False)]


def build(circuit: Circuit, plans: Sequence[LayerPlan], maps: Sequence[StoredMap], wiring: Wiring,
          heads: Sequence[HeadModule], dtype: torch.dtype) -> LayeredNetwork:  # fmt: skip
    """The network of a circuit: these layers, with these affine maps; `heads` are those that the wiring names."""
    layers, widths = [], [len(held) for held in states(circuit, plans)]
    for plan, stored, width in zip(plans, maps, widths, strict=False):
        groups = [_group(circuit, group, wiring, heads, dtype) for group in plan.groups]
        sizes = [len(rows_of(circuit, group)) for group in plan.groups]
        kept = torch.tensor(plan.kept, dtype=torch.int64)
        layers.append(Layer(affine(stored, width, dtype), groups, sizes, kept, plan.groups))
    return LayeredNetwork(layers, affine(maps[-1], widths[-1], dtype))


def _group(circuit: Circuit, group: Sequence[int], wiring: Wiring, heads: Sequence[HeadModule],
           dtype: torch.dtype) -> Group:  # fmt: skip
    steps, use = [circuit.steps[i] for i in group], wiring.uses[group[0]]
    return MODULES[steps[0].name].of(steps, use, [wiring.values[i] for i in group], heads, dtype)


def affine(stored: StoredMap, width: int, dtype: torch.dtype) -> TokenWise:
    """A stored map on states of that width as a module."""
    weight = torch.zeros(len(stored.bias), width, dtype=dtype)
    lengths = torch.tensor(stored.starts, dtype=torch.int64).diff()
    rows = torch.arange(len(stored.bias)).repeat_interleave(lengths)
    weight[rows, torch.tensor(stored.columns, dtype=torch.int64)] = torch.tensor(stored.entries, dtype=dtype)
    return TokenWise(weight, torch.tensor(stored.bias, dtype=dtype))


def flattened(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Inputs of a shape as flat numbers, (..., inputs); an input without a dimension is one number."""
    if len(shape) == 1:
        return x
    return x.flatten(-len(shape)) if shape else x.unsqueeze(-1)


def exact_wires(circuit: Circuit, x: Tensor, patched: dict[int, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """The circuit itself, as the target that it is: no heads, no approximation.

    All wires (..., wires) and the outputs (..., outputs), flat, of inputs (..., *input_shape). patched: by step, what
    it makes in the place of what it should, (..., width).
    """
    wires = flattened(x, circuit.input_shape)
    depths = circuit.depths()
    place = list(range(len(circuit.inputs)))
    for depth in range(1, max(depths, default=0) + 1):
        here = [i for i, d in enumerate(depths) if d == depth]
        steps = [circuit.steps[i] for i in here]
        lines = [list(step.lines()) for step in steps]
        rows = _exact_rows([line for part in lines for line in part], place, wires).split(list(map(len, lines)), dim=-1)
        own = dict(zip(here, map(_exact_step, steps, rows), strict=True)) | (patched or {})
        found = [own[i] for i in here]
        wires = torch.cat([wires, *found], dim=-1)
        place += [circuit.starts[i] + k for i in here for k in range(circuit.steps[i].width)]
    order = torch.tensor([place.index(w) for w in range(circuit.wires)])
    return wires[..., order], _exact_rows(circuit.outputs, place, wires)


def _exact_step(step: Step, rows: Tensor) -> Tensor:
    return MODULES[step.name].exact(step, rows)


def _exact_rows(lines: Sequence[Line], place: Sequence[int], wires: Tensor) -> Tensor:
    stored = placed([rounded_row(line, "float64") for line in lines], place)
    return affine(stored, len(place), torch.float64)(wires.double()).to(wires.dtype)
