"""Where a model's target has kinks, as numbers that change their sign there: what figures look at closely.

An input's distance to a kink of a function of one variable; of a network the distance of every head's argument to a
kink of its function, and for a maximum how far each of its arguments is above the others.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from anchorhead.circuit.apply import FunctionStep
from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.largest import Largest
from anchorhead.circuit.line import Line
from anchorhead.enclosure.exact import as_float
from anchorhead.enclosure.pieces import kinks
from anchorhead.expression.graph import Node
from anchorhead.model.core import Core
from anchorhead.model.head_core import HeadCore
from anchorhead.model.layered import exact_wires
from anchorhead.model.layered_core import LayeredCore
from anchorhead.model.mapped_core import MappedCore

MOST = 64
"""Distances that are looked at, the first ones."""


def kink_distances(core: Core, domain: tuple[tuple[float, float], ...]) -> Callable[[Tensor], Tensor] | None:
    """From inputs as the model takes them, in float64, to (points, distances); None where no kink is known."""
    if isinstance(core, HeadCore):
        return _from(kinks(core.claim.function, core.variable, *domain[0]))
    if isinstance(core, MappedCore):
        return _from(kinks(core.target.outputs[0], core.target.variables[0], *domain[0]))
    return _of_network(core) if isinstance(core, LayeredCore) else None


def _from(places: list[float]) -> Callable[[Tensor], Tensor] | None:
    if not places:
        return None
    return lambda x: x.reshape(-1, 1) - torch.tensor(places[:MOST], dtype=torch.float64, device=x.device)


def _of_network(core: LayeredCore) -> Callable[[Tensor], Tensor] | None:
    claim, known = core.placed.claim, dict[Node, list[float]]()
    single: list[tuple[Line, float]] = []
    several: list[tuple[Line, ...]] = []
    for step, use in zip(claim.circuit.steps, claim.wiring.uses, strict=True):
        if isinstance(step, Largest):
            several.append(step.arguments)
        elif isinstance(step, FunctionStep) and use.head >= 0:
            head = claim.heads[use.head]
            if step.function not in known:
                known[step.function] = kinks(step.function, "u", head.low, head.high)
            single += [(next(step.lines()), place) for place in known[step.function]]
    if not single and not several:
        return None
    return lambda x: _distances(core.circuit, single[:MOST], several[:MOST], x)


def _distances(
    circuit: Circuit, single: list[tuple[Line, float]], several: list[tuple[Line, ...]], x: Tensor
) -> Tensor:
    wires, _ = exact_wires(circuit, x)

    def value(line: Line) -> Tensor:
        start = torch.full_like(wires[..., 0], as_float(line.bias))
        return sum((as_float(c) * wires[..., wire] for wire, c in line.terms.items()), start)

    found = [value(line) - place for line, place in single]
    for arguments in several:
        rows = torch.stack([value(line) for line in arguments])
        found += [row - rows[torch.arange(len(rows)) != i].amax(0) for i, row in enumerate(rows)]
    return torch.stack(found, dim=-1)
