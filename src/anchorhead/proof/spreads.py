"""How values and errors flow through a spread, whose deviations and products belong together (`circuit/spread.py`).

What the network adds of its own is found as for norms (`norms.py`): products and their mean are followed once more with
the network's own wires in the place of the target's, the means among them, which have no error and lie in the target's
ranges widened by their errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flint import arb

from anchorhead.circuit.apply import NotFinite
from anchorhead.circuit.spread import Spread
from anchorhead.circuit.step import OutsideDomain, Pair, Valued, widened
from anchorhead.enclosure.precision import upper
from anchorhead.proof.norms import carried

if TYPE_CHECKING:
    from anchorhead.proof.flow import Tracker


def joint_spread(tracker: Tracker, i: int, spread: Spread, alone: Valued, ranges: Sequence[Pair],
                 errors: Sequence[float]) -> Valued:  # fmt: skip
    """Range and error of step i, a spread, given what follows for it by itself: the better of both."""
    lines = (spread.left, spread.right)
    left, right = (tracker.line((i, -2 - k), line, None, ranges, errors)[0] for k, line in enumerate(lines))
    found = spread.range(left, right)
    kept = max(found[0], alone[0][0]), min(found[1], alone[0][1])
    if tracker.wiring is None or not max(errors) < math.inf:
        return kept, alone[1]
    moved = spread.moved((left, right), (carried(spread.left, errors), carried(spread.right, errors)))
    if not moved < alone[1]:
        return kept, alone[1]
    try:
        own = _own(tracker, i, spread, ranges, errors)
    except (OutsideDomain, NotFinite):
        own = math.inf
    return kept, min(alone[1], upper(arb(own) + moved))


def _own(tracker: Tracker, i: int, spread: Spread, ranges: Sequence[Pair], errors: Sequence[float]) -> float:
    """What means, products and their mean add where the wires before them are taken for exact."""
    starts = tracker.circuit.starts
    near, none = [widened(*pair) for pair in zip(ranges, errors, strict=True)], [0.0] * len(ranges)
    off = list(none)
    for k in spread.means:
        wire = starts[k]
        [(near[wire], off[wire])] = tracker.step(k, near, none)
        near[wire] = widened(near[wire], off[wire])
    means = carried(spread.left_means, off), carried(spread.right_means, off)
    lines = (spread.left, spread.right)
    left, right = (tracker.line((i, -2 - k), line, None, near, none)[0] for k, line in enumerate(lines))
    product, size = starts[spread.product], spread.size((left, right), means)
    [(_, none[product])] = tracker.step(spread.product, near, none)
    near[product] = -size, size
    [(_, error)] = tracker.step(i, near, none)
    return upper(arb(error) + arb(means[0]) * means[1])
