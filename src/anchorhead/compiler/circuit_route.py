"""The route through the graph: circuit -> heads -> network -> certificate."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.doubling import Angle, doubled, has_angles, large_angles
from anchorhead.circuit.program import circuit_digest
from anchorhead.compiler.circuit_target import CircuitTarget, elementwise
from anchorhead.compiler.compose import Composed, compose
from anchorhead.compiler.method import Method, Wish
from anchorhead.compiler.target import Target
from anchorhead.errors import AnchorheadError, InputError, SingularityError, ToleranceError
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.layered_core import LayeredCore
from anchorhead.progress import LOG
from anchorhead.proof.certificate import Certificate, most_above
from anchorhead.proof.network_claim import PlacedNetwork, argument_ranges
from anchorhead.proof.rounding import ASSUMPTIONS

LARGE = 16
"""A head of more keys than this is a reason to look for a circuit with smaller ones."""


class Graph(Method):
    """A head for each node of the graph, in as many layers as it is deep."""

    name = "graph"
    takes = ("one", "several")

    def __init__(self, *, apart: bool = False) -> None:
        self.apart = apart

    def compile(self, target: Target | CircuitTarget, wish: Wish) -> CompiledModel:
        """The network with the fewest keys: functions of one line fused, or apart where that fails or saves keys.

        With `apart`, never as one step: what a single head is for.
        """
        if isinstance(target, Target):
            if target.relative:
                raise InputError("method='graph' keeps absolute errors; leave relative=True out, or use method='auto'.")
            target = elementwise(target)
        composed, source = composed_graph(target, wish, apart=self.apart)
        core = LayeredCore(PlacedNetwork.of(composed.claim), source)
        return CompiledModel(core, stated(target, composed), self.name)


def composed_graph(target: CircuitTarget, wish: Wish, *, apart: bool = False) -> tuple[Composed, dict[str, Any]]:
    """The heads with the fewest keys that keep the tolerance, proved, and what a file says of where they come from."""
    tol = wish.tolerance(1e-6)
    found: list[tuple[Composed, bool, tuple[Angle, ...]]] = []
    refusal: AnchorheadError = ToleranceError(f"{target.name} is a function that has no parts.")
    for fuse in (True, False):
        if not fuse and ((found and _small(found[0][0])) or target.circuit(False) == target.circuit(True)):
            break
        try:
            circuit, angles = _turned(target, fuse, wish.dtype)
            if apart and len(circuit.steps) < 2:
                continue
            LOG.info("%s: through the graph, steps: %d", target.name, len(circuit.steps))
            wish.progress("through the graph" + ("" if fuse else ", a head for every function by itself"))
            composed = compose(circuit, target.box, tol, wish.dtype, wish.progress, wish.limit, literal=wish.literal,
                               hurried=wish.hurried)  # fmt: skip
            found.append((composed, fuse, angles))
        except (ToleranceError, SingularityError) as problem:
            LOG.info("%s: refused through the graph: %s", target.name, problem)
            refusal = problem if fuse or _nearer(problem, refusal) else refusal
    if not found:
        raise refusal
    composed, fused, angles = min(found, key=lambda f: f[0].keys)
    wish.check_limit(composed.keys)
    return composed, target.source(fused=fused, angles=angles)


def _nearer(problem: AnchorheadError, before: AnchorheadError) -> bool:
    """Whether a refusal came as near to the tolerance as the one before: it is that which is to be mended."""
    if not isinstance(before, ToleranceError):
        return False
    return (problem.best if isinstance(problem, ToleranceError) else math.inf) <= before.best


def _turned(target: CircuitTarget, fuse: bool, dtype: str) -> tuple[Circuit, tuple[Angle, ...]]:
    """The circuit, its large angles by doubling."""
    circuit = target.circuit(fuse)
    if not has_angles(circuit):
        return circuit, ()
    angles = large_angles(circuit, [lines[0] for lines in argument_ranges(circuit, target.box, dtype)])
    return (doubled(circuit, angles), angles) if angles else (circuit, ())


def _small(composed: Composed) -> bool:
    """Whether no head is large, and none is repeated for several partners where a product of two keys would do."""
    claim = composed.claim
    carried = Counter(use.head for step, use in zip(claim.circuit.steps, claim.wiring.uses, strict=True)
                      if step.name == "times" and claim.heads[use.head].keys > 2)  # fmt: skip
    return max((head.keys for head in claim.heads), default=0) <= LARGE and max(carried.values(), default=0) <= 1


def stated(target: CircuitTarget, composed: Composed) -> Certificate:
    """What was proved, as a certificate."""
    return Certificate(
        expression=target.name,
        domain=target.box,
        dtype=composed.claim.dtype,
        level="proved",
        approximation=max(composed.approximation),
        rounding=most_above(composed.total, composed.approximation),
        boxes=composed.claim.boxes,
        assumptions=(*ASSUMPTIONS, *target.assumptions),
        outputs=tuple(composed.total),
        variables=target.variables,
        circuit="" if target.expression is not None else circuit_digest(composed.claim.circuit),
        source=target.digest,
        evaluation=composed.claim.evaluation,
    )
