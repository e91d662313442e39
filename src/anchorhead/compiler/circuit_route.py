"""The route through the graph: circuit -> heads -> network -> certificate."""

from __future__ import annotations

import math

from anchorhead.circuit.program import circuit_digest
from anchorhead.compiler.circuit_target import CircuitTarget
from anchorhead.compiler.compose import Composed, compose
from anchorhead.compiler.method import Method, Progress, Wish
from anchorhead.errors import AnchorheadError, SingularityError, ToleranceError
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.layered_core import LayeredCore
from anchorhead.proof.certificate import Certificate
from anchorhead.proof.network_claim import PlacedNetwork
from anchorhead.proof.rounding import ASSUMPTIONS


class Graph(Method):
    """A head for each node of the graph, in as many layers as it is deep."""

    name = "graph"
    takes = ("several",)

    def compile(self, target: CircuitTarget, wish: Wish) -> CompiledModel:
        """The network with the fewest keys that the passes find; functions of one line fused, or apart if not."""
        tol = wish.tolerance(1e-6)
        try:
            composed, fused = compose(target.circuit(True), target.box, tol, wish.dtype, wish.progress), True
        except (ToleranceError, SingularityError) as refusal:
            wish.progress("again, with a head for every function by itself")
            composed, fused = _apart(target, tol, wish.dtype, wish.progress, refusal), False
        core = LayeredCore(PlacedNetwork.of(composed.claim), target.source(fused=fused))
        return CompiledModel(core, _certificate(target, composed), self.name)


def _apart(target: CircuitTarget, tol: float, dtype: str, progress: Progress, refusal: AnchorheadError) -> Composed:
    """Without fusing; the refusal of the fused circuit if that does not help."""
    circuit = target.circuit(False)
    if circuit == target.circuit(True):
        raise refusal
    try:
        return compose(circuit, target.box, tol, dtype, progress)
    except (ToleranceError, SingularityError):
        raise refusal from None


def _certificate(target: CircuitTarget, composed: Composed) -> Certificate:
    approximation, total = max(composed.approximation), max(composed.total)
    return Certificate(
        expression=target.name,
        domain=target.box,
        dtype=composed.claim.dtype,
        level="proved",
        approximation=approximation,
        rounding=math.nextafter(total - approximation, math.inf) if total > approximation else 0.0,
        boxes=composed.claim.boxes,
        assumptions=(*ASSUMPTIONS, *target.assumptions),
        outputs=tuple(composed.total),
        variables=target.variables,
        circuit="" if target.expression is not None else circuit_digest(composed.claim.circuit),
        source=target.digest,
    )
