"""A circuit itself, evaluated in torch as the target that it is: no heads, no approximation."""

from __future__ import annotations

import torch
from torch import Tensor

from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.line import Line
from anchorhead.circuit.rows import placed, rounded_row
from anchorhead.model.layered import MODULES, affine


def exact_wires(circuit: Circuit, x: Tensor) -> tuple[Tensor, Tensor]:
    """All wires (..., wires) and the outputs (..., outputs), flat, of inputs (..., *input_shape)."""
    wires = x.flatten(-len(circuit.input_shape))
    depths = circuit.depths()
    place = list(range(len(circuit.inputs)))
    for depth in range(1, max(depths, default=0) + 1):
        steps = [i for i, d in enumerate(depths) if d == depth]
        lines = [list(circuit.steps[i].lines()) for i in steps]
        rows = _rows([line for part in lines for line in part], place, wires).split([len(p) for p in lines], dim=-1)
        found = [
            MODULES[circuit.steps[i].name].exact(circuit.steps[i], part) for i, part in zip(steps, rows, strict=True)
        ]
        wires = torch.cat([wires, *found], dim=-1)
        place += [circuit.starts[i] + k for i in steps for k in range(circuit.steps[i].width)]
    order = torch.tensor([place.index(w) for w in range(circuit.wires)])
    return wires[..., order], _rows(circuit.outputs, place, wires)


def _rows(lines: list[Line] | tuple[Line, ...], place: list[int], wires: Tensor) -> Tensor:
    stored = placed([rounded_row(line, "float64") for line in lines], place)
    return affine(stored, len(place), torch.float64)(wires.double()).to(wires.dtype)
