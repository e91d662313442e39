"""A claim to a model: the network that it speaks of, and where its error comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from anchorhead.circuit.circuit import Attend, Largest, Times
from anchorhead.circuit.layout import lay_out
from anchorhead.circuit.rows import maps_of
from anchorhead.compiler.tolerance_shares import sensitivities
from anchorhead.file.stored import StoredNetwork
from anchorhead.head.module import HeadAttention
from anchorhead.head.numbers import NUMBERS
from anchorhead.model.compiled_network import CompiledNetwork
from anchorhead.model.layered import build
from anchorhead.model.report import NodeReport, Report
from anchorhead.proof.certificate import Certificate
from anchorhead.proof.flow import Flow, Tracker, shortfall
from anchorhead.proof.network_claim import NetworkClaim, flows, worst
from anchorhead.proof.statement import Statement

DTYPES = {"float64": torch.float64, "float32": torch.float32}


def attention_of(claim: Statement) -> HeadAttention:
    """The head that a statement speaks of."""
    numbers = {name: torch.tensor(getattr(claim, name), dtype=DTYPES[claim.dtype]) for name in NUMBERS}
    return HeadAttention(**numbers, uniform=claim.uniform, sizes=claim.sizes)


def placed_network(claim: NetworkClaim) -> StoredNetwork:
    """The claim's numbers in layers and maps."""
    plans = lay_out(claim.circuit, [use.head for use in claim.wiring.uses])
    return StoredNetwork(claim, tuple(plans), tuple(maps_of(claim.circuit, plans, claim.wiring)))


def network_model(
    stored: StoredNetwork, certificate: Certificate, method: str, source: dict[str, Any]
) -> CompiledNetwork:
    """The model; source says where the circuit comes from: formulas and variables, or a traced target's name."""
    claim = stored.claim
    heads = [attention_of(head.statement) for head in claim.heads]
    network = build(claim.circuit, stored.plans, stored.maps, claim.wiring, heads, DTYPES[claim.dtype])
    return CompiledNetwork(network, stored, certificate, method, source, report)


def report(claim: NetworkClaim) -> Report:
    """Every group of steps that share a head in a layer, and what it contributes to the error of an output."""
    circuit, uses = claim.circuit, claim.wiring.uses
    domains = [(h.statement.low, h.statement.high) for h in claim.heads]
    found = flows(Tracker(circuit, claim.dtype, claim.wiring, [h.facts for h in claim.heads]), claim.box)
    depths = circuit.depths()
    groups: dict[tuple[int, int, str], list[int]] = {}
    for i, (use, depth) in enumerate(zip(uses, depths, strict=True)):
        groups.setdefault((depth, use.head, use.kind), []).append(i)
    keys = sorted(groups)
    apart = [groups[key] for key in keys]
    arrives = _by_group(claim, apart, domains, found)
    nodes = tuple(
        _node(claim, key[0], members, arrives[g]) for g, (key, members) in enumerate(zip(keys, apart, strict=True))
    )
    return Report(nodes, tuple(worst([flow.errors for flow in found])), _logits(claim, found))


def _logits(claim: NetworkClaim, found: Sequence[Flow]) -> float:
    """The largest absolute score of any head, for inputs in the box."""
    most = 0.0
    for head in claim.heads:
        s = head.statement
        most = max(most, attention_of(s).logit_range(s.low, s.high))
    for i, step in enumerate(claim.circuit.steps):
        sizes = [max(max(abs(a), abs(b)) for a, b in (flow.arguments[i][k] for flow in found))
                 for k in range(len(found[0].arguments[i]))]  # fmt: skip
        if isinstance(step, Largest):
            most = max(most, claim.wiring.values[i][0] * max(sizes))
        elif isinstance(step, Attend):
            d, m = len(step.query), len(step.offsets)
            rows = [sizes[d + j * d : d + (j + 1) * d] for j in range(m)]
            scores = [sum(q * k for q, k in zip(sizes[:d], row, strict=True)) for row in rows]
            most = max(most, *(s + o for s, o in zip(scores, sizes[d + m * d : d + m * d + m], strict=True)))
    return most


def _by_group(claim: NetworkClaim, groups: list[list[int]], domains: list[Any], found: Any) -> list[float]:
    """How much of a unit error of each group's head arrives at an output, at most."""
    renamed, places = list(claim.wiring.uses), []
    for g, members in enumerate(groups):
        use = claim.wiring.uses[members[0]]
        places.append(domains[use.head] if use.head >= 0 else (0.0, 0.0))
        for i in members:
            renamed[i] = replace(renamed[i], head=g)
    arrives = sensitivities(claim.circuit, renamed, places, found)
    for g, members in enumerate(groups):
        if isinstance(claim.circuit.steps[members[0]], Largest):
            arrives[:, g] = arrives[:, -1]  # all maxima together: an upper bound for these
    return list(map(float, arrives[:, :-1].max(axis=0)))


def _error(claim: NetworkClaim, members: list[int]) -> float:
    use, step = claim.wiring.uses[members[0]], claim.circuit.steps[members[0]]
    if isinstance(step, Largest):
        sizes = [sum(1 for _ in claim.circuit.steps[i].lines()) for i in members]
        return max(shortfall(m) / claim.wiring.values[i][0] for m, i in zip(sizes, members, strict=True))
    return claim.heads[use.head].approximation + claim.heads[use.head].rounding if use.head >= 0 else 0.0


def _node(claim: NetworkClaim, layer: int, members: list[int], arrives: float) -> NodeReport:
    step, use = claim.circuit.steps[members[0]], claim.wiring.uses[members[0]]
    labels = list(dict.fromkeys(claim.circuit.steps[i].label for i in members))
    label = labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"
    error = _error(claim, members)
    if use.head >= 0:
        head = claim.heads[use.head]
        function = str(head.statement.target)
        if isinstance(step, Times):
            function = "u·v" if function == "u" else f"({function})·v"
        return NodeReport(
            layer, label, function, head.method, len(members), len(head.statement.slopes), error, error * arrives
        )
    if isinstance(step, Largest):
        return NodeReport(layer, label, "max", "maximum", len(members), len(step.arguments), error, error * arrives)
    keys = len(step.offsets)  # type: ignore[union-attr]
    return NodeReport(layer, label, "softmax", "as it is", len(members), keys, 0.0, 0.0)
