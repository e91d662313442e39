"""How values and errors flow through a norm, whose squares and quotient belong together (`circuit/norm.py` derives it).

What the network adds of its own is found by following the squares and the quotient once more, with the network's own
wires in the place of the target's: those have no error, and lie in the target's ranges widened by their errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flint import arb

from anchorhead.circuit.apply import NotFinite
from anchorhead.circuit.line import Line
from anchorhead.circuit.norm import Norm
from anchorhead.circuit.step import OutsideDomain, Pair, Valued, widened
from anchorhead.enclosure.exact import as_ball
from anchorhead.enclosure.precision import upper

if TYPE_CHECKING:
    from anchorhead.proof.flow import Tracker


def joint(tracker: Tracker, i: int, norm: Norm, alone: Valued, ranges: Sequence[Pair],
          errors: Sequence[float]) -> Valued:  # fmt: skip
    """Range and error of step i, a norm, given what follows for it by itself: the better of both."""
    found = norm.range(_entries(tracker, norm, ranges))
    low, high = max(found[0], alone[0][0]), min(found[1], alone[0][1])
    kept = (low, high) if low <= high else alone[0]
    if tracker.wiring is None or not max(errors) < math.inf:
        return kept, alone[1]
    near = [widened(*pair) for pair in zip(ranges, errors, strict=True)]
    entries = _entries(tracker, norm, near)
    moved = norm.moved(entries, [carried(next(tracker.circuit.steps[k].lines()), errors) for k in norm.squares])
    if not moved < alone[1]:
        return kept, alone[1]
    try:
        own = _own(tracker, i, norm, near, entries)
    except (OutsideDomain, NotFinite):
        own = math.inf
    return kept, min(alone[1], upper(arb(own) + moved))


def _entries(tracker: Tracker, norm: Norm, ranges: Sequence[Pair]) -> list[Pair]:
    """The ranges of what is squared."""
    none = [0.0] * len(ranges)
    steps = tracker.circuit.steps
    return [tracker.line((k, -1), next(steps[k].lines()), None, ranges, none)[0] for k in norm.squares]


def carried(line: Line, errors: Sequence[float]) -> float:
    """How far a line lies from the target's for the errors of its wires alone."""
    return upper(sum((abs(as_ball(c)) * errors[wire] for wire, c in line.terms.items() if errors[wire]), arb(0)))


def _own(tracker: Tracker, i: int, norm: Norm, near: Sequence[Pair], entries: Sequence[Pair]) -> float:
    """What squares and quotient add where the wires before each of them are taken for exact."""
    starts, ranges, errors = tracker.circuit.starts, list(near), [0.0] * len(near)
    squares = [tracker.step(k, ranges, errors)[0] for k in norm.squares]
    for k, square in zip(norm.squares, squares, strict=True):
        ranges[starts[k]] = widened(*square)
    if norm.root is not None:
        [(ranges[starts[norm.root]], errors[starts[norm.root]])] = tracker.step(norm.root, ranges, errors)
    [(_, quotient)] = tracker.step(i, ranges, errors)
    return upper(arb(quotient) + norm.shifted(entries, [error for _, error in squares]))
