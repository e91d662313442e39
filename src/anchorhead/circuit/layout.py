"""How the steps of a circuit are arranged in layers, and where the state of a network holds each wire.

The state before the first layer holds the inputs. A layer reads rows, each an affine function of its state, evaluates
its groups on them, keeps some places of its state and puts what the groups gave behind them. So the arrangement alone
says which wire stands at which place of which state, and which line of which step each row has to hold: what builds a
network and what checks one read it off here. A *group* is steps that one module evaluates together: functions that use
one head, maxima of as many numbers, attentions of one shape (`Step.alike`). Its rows are those of the steps' first
parts one after the other, then those of their second parts, and so on (`Step.parts`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.places import Place

Group = tuple[int, ...]
"""Steps by their number."""


@dataclass(frozen=True)
class LayerPlan:
    """The groups of one layer, and the places of the state before it that are carried on."""

    groups: tuple[Group, ...]
    kept: tuple[int, ...]


def lay_out(circuit: Circuit, heads: Sequence[int]) -> list[LayerPlan]:
    """Every step as early as what it needs allows; `heads` says by number which head a step uses."""
    depths = circuit.depths()
    last_use = _last_uses(circuit, depths)
    held, found = list(range(len(circuit.inputs))), []
    for depth in range(1, max(depths, default=0) + 1):
        groups: dict[tuple[object, ...], list[int]] = {}
        for i, d in enumerate(depths):
            if d == depth:
                groups.setdefault(_alike(circuit, i, heads), []).append(i)
        kept = tuple(k for k, wire in enumerate(held) if last_use.get(wire, 0) > depth)
        plan = LayerPlan(tuple(tuple(group) for group in groups.values()), kept)
        found.append(plan)
        held = wires_after(circuit, plan, held)
    return found


def wires_after(circuit: Circuit, plan: LayerPlan, held: Sequence[int]) -> list[int]:
    """The wires that the state holds after a layer, by place; `held` is that before it."""
    new = [circuit.starts[i] + k for group in plan.groups for i in group for k in range(circuit.steps[i].width)]
    return [held[k] for k in plan.kept] + new


def states(circuit: Circuit, plans: Sequence[LayerPlan]) -> Iterator[list[int]]:
    """The wires of the state before each layer, and after the last."""
    held = list(range(len(circuit.inputs)))
    yield held
    for plan in plans:
        held = wires_after(circuit, plan, held)
        yield held


def rows_of(circuit: Circuit, group: Group) -> list[tuple[int, int]]:
    """For each row that a group reads the step, and the number of the line among those that the step reads."""
    return [(i, k) for part in circuit.steps[group[0]].parts() for i in group for k in part]


def problem_with(circuit: Circuit, plans: Sequence[LayerPlan], heads: Sequence[int]) -> str | None:
    """Why the layers cannot be those of the circuit; None if they can. What they compute is another question."""
    seen = [i for plan in plans for group in plan.groups for i in group]
    if sorted(seen) != list(range(len(circuit.steps))):
        return "its layers do not evaluate every step once"
    width = len(circuit.inputs)
    for plan in plans:
        if not all(0 <= k < width for k in plan.kept) or len(set(plan.kept)) < len(plan.kept):
            return "a layer keeps a place twice, or one that its state does not have"
        for group in plan.groups:
            if not group or len({_alike(circuit, i, heads) for i in group}) != 1:
                return "a group holds steps that cannot be evaluated together"
        width = len(plan.kept) + sum(circuit.steps[i].width for group in plan.groups for i in group)
    return None


def _alike(circuit: Circuit, i: int, heads: Sequence[int]) -> tuple[object, ...]:
    return circuit.place(i), *circuit.steps[i].alike(heads[i])


def read_at(circuit: Circuit, group: Group) -> list[Place]:
    """For each row that a group reads where it is read."""
    return [circuit.steps[i].read_at(circuit.place(i))[k] for i, k in rows_of(circuit, group)]


def _last_uses(circuit: Circuit, depths: Sequence[int]) -> dict[int, float]:
    found: dict[int, float] = {}
    for step, depth in zip(circuit.steps, depths, strict=True):
        for line in step.lines():
            for wire in line.terms:
                found[wire] = max(found.get(wire, 0), depth)
    for line in circuit.outputs:
        for wire in line.terms:
            found[wire] = math.inf
    return found
