"""Large angles by doubling: a cosine that turns often, as one that turns seldom, doubled again and again.

    cos(2v) = 2 cos²(v) - 1,   sin(w) = cos(w - π/2),   cos(w) = cos(w + 2πm)

A head has a key or more for each half turn, so cos(1000x) on [-1, 1] would need 320 at least, at any tolerance. With
v = w/2^k the cosine turns 2^k times less, and each doubling is a square, two keys or a few; an error e becomes at
most 4e, since |d(2c² - 1)/dc| <= 4 for |c| <= 1. Whole turns are taken off first, so that angles lie around zero. These
are identities, whatever m and k are: a checker needs no more than to apply them. (docs/mathematics.md 3.2)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from anchorhead.circuit.apply import SQUARE, Apply, U
from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.line import Line, combination
from anchorhead.circuit.step import Pair, Step
from anchorhead.enclosure.exact import Number, simplified
from anchorhead.expression.graph import Node, constant
from anchorhead.expression.primitives import PI, mul

COSINE, SINE = Node("cos", (U,)), Node("sin", (U,))
WIDEST = 16.0
"""The largest angle that is left to a head, in radians."""
MOST_HALVINGS = 40


class Angle(NamedTuple):
    """Step number `step`, a sine or cosine, with so many turns added and halved so many times."""

    step: int
    turns: int
    halvings: int


def has_angles(circuit: Circuit) -> bool:
    """Whether there is a step that could be doubled."""
    return any(isinstance(step, Apply) and step.function in (COSINE, SINE) for step in circuit.steps)


def large_angles(circuit: Circuit, ranges: Sequence[Pair]) -> tuple[Angle, ...]:
    """The sines and cosines whose angles, in these ranges, are too large for a small head."""
    found = []
    for i, (step, (low, high)) in enumerate(zip(circuit.steps, ranges, strict=True)):
        if isinstance(step, Apply) and step.function in (COSINE, SINE) and (high - low) / 2 > WIDEST:
            middle = (low + high) / 2 - (math.pi / 2 if step.function is SINE else 0.0)
            turns = -round(middle / (2 * math.pi)) if abs(middle) < 1e15 else 0
            halvings = math.frexp(math.nextafter((high - low) / 2 / WIDEST, 0.0))[1]  # the least k with 2^k enough
            if halvings <= MOST_HALVINGS:
                found.append(Angle(i, turns, halvings))
    return tuple(found)


def doubled(circuit: Circuit, angles: Sequence[Angle]) -> Circuit:
    """The same circuit with these steps as chains of doublings; ValueError if one is no such step."""
    chosen = {angle.step: angle for angle in angles}
    steps: list[Step] = []
    wires = len(circuit.inputs)
    held: dict[int, Line] = {w: Line({w: 1}) for w in range(wires)}
    for i, (step, start) in enumerate(zip(circuit.steps, circuit.starts, strict=True)):
        moved = step.mapped(lambda line: _substituted(line, held))
        added = [moved] if i not in chosen else _chain(moved, chosen.pop(i), wires)
        steps += added
        wires += sum(part.width for part in added)
        last = wires - added[-1].width
        for k in range(step.width):
            held[start + k] = Line({last + k: 1}) if len(added) == 1 else Line({last + k: 2}, -1)
    if chosen:
        raise ValueError("an angle of a step that is not there")
    outputs = tuple(_substituted(line, held) for line in circuit.outputs)
    return replace(circuit, steps=tuple(steps), outputs=outputs)


def _chain(step: Step, angle: Angle, wire: int) -> list[Step]:
    """cos(u/2^k), and then squares; the first has this wire."""
    if not isinstance(step, Apply) or step.function not in (COSINE, SINE) or not 0 < angle.halvings <= MOST_HALVINGS:
        raise ValueError("an angle of a step that is no sine or cosine")
    quarters = 4 * angle.turns - (1 if step.function is SINE else 0)
    shift: Number = simplified(mul(constant(Fraction(quarters, 2)), PI)) if quarters else 0
    halved = step.argument.shifted(shift).scaled(Fraction(1, 2**angle.halvings))
    found: list[Step] = [Apply(COSINE, halved, f"{step.label}, angle over {2**angle.halvings}")]
    for k in range(angle.halvings):
        line = Line({wire + k: 1}) if k == 0 else Line({wire + k: 2}, -1)
        label = step.label if k == angle.halvings - 1 else f"{step.label}, doubled {k + 1} times"
        found.append(Apply(SQUARE, line, label))
    return found


def _substituted(line: Line, held: Mapping[int, Line]) -> Line:
    return combination(list(line.terms.values()), [held[w] for w in line.terms], line.bias)
