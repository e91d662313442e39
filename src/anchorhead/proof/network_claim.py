"""What is claimed of a network of heads, and the bound that follows for its outputs.

Each head is proved by itself against its function (`approximation.py`, `rounding.py`); how the steps use them composes
(`flow.py`). A box in at most three variables is cut into cells, and the bound is the worst of any cell: intervals
that forget how wires depend on each other forget less on a smaller box.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.layout import LayerPlan, lay_out
from anchorhead.circuit.rows import StoredMap, Wiring, maps_of
from anchorhead.enclosure.precision import precision
from anchorhead.proof.flow import Flow, Pair, Tracker
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.proof.rounding_on import literal_rounding

CELLS = {1: 32, 2: 8, 3: 4}
"""Cells along each axis, by the number of inputs."""


@dataclass(frozen=True)
class NetworkClaim:
    """A circuit on a box, its heads, and how each step uses them: the numbers that the network computes with."""

    circuit: Circuit
    box: tuple[Pair, ...]
    dtype: str
    heads: tuple[HeadClaim, ...]
    wiring: Wiring
    is_literal: bool = False

    @property
    def evaluation(self) -> str:
        """`fast` where rounding is that of the fast evaluation alone, of a head or of sums over a prompt's tokens."""
        alone = any(head.evaluation for head in self.heads) or self.circuit.tokens
        return "fast" if alone and not self.is_literal else ""

    def literal(self) -> NetworkClaim:
        """The claim of the same network with its heads evaluated as a softmax."""
        return replace(self, heads=tuple(map(_literal_in_network, self.heads)), is_literal=True)

    @property
    def boxes(self) -> int:
        """Boxes in the proofs of all heads."""
        return sum(len(head.edges) - 1 for head in self.heads)


@dataclass(frozen=True)
class PlacedNetwork:
    """A network's claim, and the form in which its numbers are stored and run: layers, and the maps before them."""

    claim: NetworkClaim
    plans: tuple[LayerPlan, ...]
    maps: tuple[StoredMap, ...]

    @classmethod
    def of(cls, claim: NetworkClaim) -> PlacedNetwork:
        """The claim's numbers in layers and maps."""
        plans = lay_out(claim.circuit, [use.head for use in claim.wiring.uses])
        return cls(claim, tuple(plans), tuple(maps_of(claim.circuit, plans, claim.wiring)))


def cells(box: Sequence[Pair], tokens: int = 0) -> list[tuple[Pair, ...]]:
    """The box, cut into cells where it has few sides; those of tokens, which are anywhere in theirs, stay whole."""
    count = CELLS.get(len(box) - tokens, 1)
    sides = [[side] for side in box[:tokens]]
    for low, high in box[tokens:]:
        marks = [low + (high - low) * i / count for i in range(count)] + [high]
        sides.append([(a, b) for a, b in itertools.pairwise(marks) if a < b] or [(low, high)])
    return list(itertools.product(*sides))


def flows(tracker: Tracker, box: Sequence[Pair], *, whole: bool = False, partly: bool = False) -> list[Flow]:
    """What a tracker finds on every cell of the box, or on all of it at once."""
    parts = [tuple(box)] if whole else cells(box, tracker.circuit.tokens)
    with precision():
        return [tracker.follow(cell, partly=partly) for cell in parts]


def argument_ranges(circuit: Circuit, box: Sequence[Pair], dtype: str) -> list[list[Pair]]:
    """For each step the ranges of its lines on the box."""
    found = flows(Tracker(circuit, dtype), box)
    return [line_ranges(found, i) for i in range(len(circuit.steps))]


def line_ranges(found: Sequence[Flow], i: int) -> list[Pair]:
    """The ranges of the lines of step i over all cells."""
    return [hull(cells) for cells in zip(*(flow.arguments[i] for flow in found), strict=True)]


def hull(pairs: Sequence[Pair]) -> Pair:
    """The interval that holds all of them."""
    return min(low for low, _ in pairs), max(high for _, high in pairs)


def worst(found: Sequence[Sequence[float]]) -> list[float]:
    """For each entry the largest over all cells."""
    return [max(column) for column in zip(*found, strict=True)]


@functools.lru_cache(maxsize=256)
def literal_claim(head: HeadClaim) -> HeadClaim:
    """What a head's literal softmax keeps, where its claim is of the fast evaluation."""
    if not head.evaluation:
        return head
    plain = replace(head, relative=False, evaluation="", approximation=head.absolute[0])
    return replace(plain, rounding=literal_rounding(plain))


def _literal_in_network(head: HeadClaim) -> HeadClaim:
    """The same with what is relative kept so: in exact arithmetic the head is the same one, within its approximation
    times the function's absolute value, and rounding of its softmax is beside that."""
    found = literal_claim(head)
    if not (head.relative and found is not head):
        return found
    return replace(head, evaluation="", rounding=0.0, beside=found.rounding)


def followed(claim: NetworkClaim, *, rounding: bool, partly: bool = False) -> list[Flow]:
    """Ranges and errors of all wires, on every cell of the box."""
    return flows(tracker_of(claim, rounding), claim.box, partly=partly)


def wire_errors(claim: NetworkClaim) -> list[float]:
    """A bound for each wire, rounding included; infinite where a head's argument may leave its domain, and behind."""
    return worst([flow.errors for flow in followed(claim, rounding=True, partly=True)])


def own_errors(claim: NetworkClaim, found: Sequence[Flow]) -> list[float]:
    """For each wire what its own step adds, lines and rounding included, where all before it is exact."""
    tracker, steps = tracker_of(claim, True), range(len(claim.circuit.steps))
    inputs = [0.0] * len(claim.circuit.inputs)
    with precision():
        return worst([inputs + [e for i in steps for _, e in tracker.own(i, flow.ranges)] for flow in found])


def tracker_of(claim: NetworkClaim, rounding: bool) -> Tracker:
    """What follows the claim's circuit through its heads."""
    return Tracker(claim.circuit, claim.dtype, claim.wiring, claim.heads, rounding=rounding, literal=claim.is_literal)


def output_errors(claim: NetworkClaim, *, rounding: bool) -> list[float]:
    """A bound for each output, for every input in the box."""
    return worst([flow.output_errors for flow in followed(claim, rounding=rounding)])
