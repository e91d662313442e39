"""What turns make of the error of one run of a program (docs/mathematics.md 7.9).

A state w with error e becomes the map's own value at w, which is off by what the map makes of e, and is then computed
with the error of one run from an exact state: the two are added, turn by turn, with the state's range. Where that range
cannot be kept in the box, the machine looks in every turn whether its own state is, and the target's is then no further
outside than they differ.

*Reach.* The machine's last state is in the box, [a, b], then. Let the target's, from any state in the box, be within
[c, d] after all turns, followed by cells of the box. They differ by max(b - c, d - a) at most, whatever became of
errors. A bound that says less is replaced by that one, and is called trivial. What is followed may leave the box where
the target does not, since enclosures are wider than ranges, and then grow without end: beyond twice the box nothing is
said by it. If the target's own state stays in the box, which is then assumed and stated, they differ by b - a at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flint import arb

from anchorhead.circuit.rows import rounded
from anchorhead.circuit.step import HeadFacts, OutsideDomain, Pair, Use, size, widened
from anchorhead.enclosure.precision import above, precision, upper
from anchorhead.errors import SingularityError, ToleranceError
from anchorhead.proof.flow import Tracker
from anchorhead.proof.network_claim import cells

if TYPE_CHECKING:
    from anchorhead.proof.interpretation import Interpreted

HOPELESS = 1e9
"""In units of the box: errors that no bound is stated for."""
SHARPEST = 2.0**60
"""The β of a maximum that is taken for exact."""
WATCHED = "the state lies in the domain after every turn, which an interpreter checks"
KEPT = "the target's own state lies in the domain after every turn too, which nothing checks"
EXACT = HeadFacts(-math.inf, math.inf, 0.0, 0.0)


class TurnsOutside(ToleranceError):
    """That turns stay in the domain is not proved."""


def turned(program: Interpreted, turns: int, own: Sequence[float]) -> list[float]:
    """The bounds after all turns, given those of one from an exact state; infinite where errors spread too far."""
    target, box, first, ideal = program.target, program.claim.box, program.target.tokens, _ideal(program)
    cell, errors = list(box), [0.0] * len(box)
    for _ in range(turns):
        if program.watched:  # the machine's state is in the box, so that the target's is not far outside
            cell[first:] = [widened(*pair) for pair in zip(box[first:], errors[first:], strict=True)]
        try:
            carried = ideal.follow(cell, errors)
        except (SingularityError, OutsideDomain):
            if not program.watched:
                raise
            return [math.inf] * len(own)
        errors[first:] = [upper(arb(a) + b) for a, b in zip(own, carried.output_errors, strict=True)]
        cell[first:] = carried.outputs
        if not program.watched:
            _require_inside(target.inputs[first:], box[first:], cell[first:], errors[first:])
        elif not max(errors) < HOPELESS * max(map(size, box)):
            return [math.inf] * len(own)
    return errors[first:]


def _ideal(program: Interpreted) -> Tracker:
    """Ranges and errors through the target itself."""
    target, dtype = program.target, program.claim.dtype
    uses = [Use("plain", i) if step.wanted() else Use(step.name) for i, step in enumerate(target.steps)]
    wiring = rounded(target, uses, dtype).sharpened([i for i, step in enumerate(target.steps) if step.beta_for(1.0)],
                                                    SHARPEST)  # fmt: skip
    return Tracker(target, dtype, wiring, [EXACT] * len(uses), rounding=False)


def _require_inside(names: Sequence[str], box: Sequence[Pair], cell: Sequence[Pair], errors: Sequence[float]) -> None:
    for name, (low, high), pair, error in zip(names, box, cell, errors, strict=True):
        a, b = widened(pair, error)
        if not (low <= a and b <= high):
            raise TurnsOutside(f"a turn may lead {name} to [{a:.6g}, {b:.6g}], outside [{low:.6g}, {high:.6g}]")


def reach(program: Interpreted) -> tuple[list[float], tuple[str, ...]] | None:
    """How far apart the machine's state and the target's can be after all turns, whatever became of errors, and what
    that assumes; None where nothing is looked at."""
    if program.turns is None or not program.watched:
        return None
    with precision():
        box = program.claim.box[program.target.tokens :]
        widths = [above(arb(high) - low) for low, high in box]
        last = _followed(program, program.turns)
        apart = [max(above(arb(high) - a), above(arb(b) - low)) for (low, high), (a, b) in zip(box, last, strict=True)]
        if all(found <= 2 * width for found, width in zip(apart, widths, strict=True)):
            return apart, ()
        return widths, (KEPT,)


def _followed(program: Interpreted, turns: int) -> list[Pair]:
    """The range of the target's state after all turns from one in the box, or one that it never leaves from then on."""
    ideal, first = _ideal(program), program.target.tokens
    tokens, state = program.claim.box[:first], list(program.claim.box[first:])
    for _ in range(turns):
        try:
            found = [ideal.follow(cell).outputs for cell in cells((*tokens, *state), first)]
        except (SingularityError, OutsideDomain):
            return [(-math.inf, math.inf)] * len(state)
        after = [(min(a for a, _ in pairs), max(b for _, b in pairs)) for pairs in zip(*found, strict=True)]
        if all(low <= a and b <= high for (low, high), (a, b) in zip(state, after, strict=True)):
            break
        state = after
        if not max(map(size, state)) < HOPELESS * max(map(size, program.claim.box)):
            break
    return state
