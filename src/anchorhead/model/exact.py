"""A circuit itself, evaluated in torch as the target that it is: no heads, no approximation."""

from __future__ import annotations

import torch
from torch import Tensor

from anchorhead.circuit.circuit import Apply, Circuit, Largest, Line, Step, Times
from anchorhead.circuit.rows import placed, rounded_row
from anchorhead.expression.tensors import evaluate
from anchorhead.model.layered import affine


def exact_wires(circuit: Circuit, x: Tensor) -> tuple[Tensor, Tensor]:
    """All wires (..., wires) and the outputs (..., outputs), flat, of inputs (..., *input_shape)."""
    wires = x.flatten(-len(circuit.input_shape))
    depths = circuit.depths()
    place = list(range(len(circuit.inputs)))
    for depth in range(1, max(depths, default=0) + 1):
        steps = [i for i, d in enumerate(depths) if d == depth]
        lines = [list(circuit.steps[i].lines()) for i in steps]
        rows = _rows([line for part in lines for line in part], place, wires).split([len(p) for p in lines], dim=-1)
        found = [_value(circuit.steps[i], part) for i, part in zip(steps, rows, strict=True)]
        wires = torch.cat([wires, *found], dim=-1)
        place += [circuit.starts[i] + k for i in steps for k in range(circuit.steps[i].width)]
    order = torch.tensor([place.index(w) for w in range(circuit.wires)])
    return wires[..., order], _rows(circuit.outputs, place, wires)


def _rows(lines: list[Line] | tuple[Line, ...], place: list[int], wires: Tensor) -> Tensor:
    stored = placed([rounded_row(line, "float64") for line in lines], place)
    return affine(stored, len(place), torch.float64)(wires.double()).to(wires.dtype)


def _value(step: Step, rows: Tensor) -> Tensor:
    if isinstance(step, Apply | Times):
        value = evaluate(step.function, {"u": rows[..., 0]})
        return (value * rows[..., 1] if isinstance(step, Times) else value).unsqueeze(-1)
    if isinstance(step, Largest):
        return rows.amax(-1, keepdim=True)
    d, m = len(step.query), len(step.offsets)
    query, keys, offsets, values = rows.split([d, m * d, m, m * step.width], dim=-1)
    scores = (keys.unflatten(-1, (m, d)) @ query.unsqueeze(-1)).squeeze(-1) + offsets
    return (scores.softmax(-1).unsqueeze(-2) @ values.unflatten(-1, (m, step.width))).squeeze(-2)
