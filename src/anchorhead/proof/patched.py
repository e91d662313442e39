"""What heads keep where numbers of a network were patched (docs/mathematics.md 3.6).

Inputs of the box take every line of a step into an interval, the hull of its ranges on the cells. A patched number, the
same in the network and in the target taken as these steps, may bring lines together as no input does: u from one cell
and v from another, entries of a norm that are not those of one vector. *Statement*: if all patched numbers are ones
that some input gives, a head whose lines the target has in their intervals, as have those that it depends on, writes
the step's result to within the error that is found here. *Proof*, from step to step: every wire is within what the
steps before say of lines in their intervals, and errs by no more than they say, a patched one not at all; the errors of
lines grow with those two (`flow.py`), and the step's own rule holds for any lines in these intervals. What is known of
several steps together, as of a norm, is left out, since it is of one vector.
"""

from __future__ import annotations

import contextlib
import math

from anchorhead.circuit.apply import NotFinite
from anchorhead.circuit.step import OutsideDomain, Pair, Valued
from anchorhead.enclosure.precision import precision
from anchorhead.proof.flow import has_unknown
from anchorhead.proof.network_claim import NetworkClaim, followed, hull, tracker_of, worst


def patched_errors(claim: NetworkClaim) -> list[float]:
    """For each wire what its head keeps wherever lines are in their intervals; no less than for inputs of the box.

    Infinite where a line with its error may leave the domain of the head, and for heads that depend on such a one.
    """
    found, circuit = followed(claim, rounding=True, partly=True), claim.circuit
    tracker = tracker_of(claim, True)
    known, inputs = worst([flow.errors for flow in found]), len(circuit.inputs)
    ranges: list[Pair] = [hull([flow.ranges[wire] for flow in found]) for wire in range(inputs)]
    errors = [0.0] * inputs
    with precision():
        for i, step in enumerate(circuit.steps):
            lines, _, computed = tracker.read(i, step, ranges, errors)
            seen = [tracker.read(i, step, flow.ranges, flow.errors) for flow in found]
            inside = [(hull([cell[0][k][0] for cell in seen]), error) for k, (_, error) in enumerate(lines)]
            results: list[Valued] = [((-math.inf, math.inf), math.inf)] * step.width
            with contextlib.suppress(OutsideDomain, NotFinite):
                if not has_unknown(inside):
                    results = step.follow(inside, hull([argument for _, argument, _ in seen]), computed)
            for wire, (value, error) in enumerate(results, circuit.starts[i]):
                ranges.append(hull([value, *(flow.ranges[wire] for flow in found)]))
                errors.append(max(error, known[wire]))
    return errors
