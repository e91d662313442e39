"""A claim to a model: the network that it speaks of, and where its error comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from anchorhead.circuit.layout import lay_out
from anchorhead.circuit.rows import maps_of
from anchorhead.circuit.step import size
from anchorhead.compiler.tolerance_shares import sensitivities
from anchorhead.file.stored import StoredNetwork
from anchorhead.head.evaluation import TORCH
from anchorhead.head.module import HeadModule
from anchorhead.model.compiled_network import CompiledNetwork
from anchorhead.model.layered import build
from anchorhead.model.report import NodeReport, Report
from anchorhead.proof.certificate import Certificate
from anchorhead.proof.flow import Flow, Tracker
from anchorhead.proof.network_claim import NetworkClaim, flows, worst


def placed_network(claim: NetworkClaim) -> StoredNetwork:
    """The claim's numbers in layers and maps."""
    plans = lay_out(claim.circuit, [use.head for use in claim.wiring.uses])
    return StoredNetwork(claim, tuple(plans), tuple(maps_of(claim.circuit, plans, claim.wiring)))


def network_model(
    stored: StoredNetwork, certificate: Certificate, method: str, source: dict[str, Any]
) -> CompiledNetwork:
    """The model; source says where the circuit comes from: formulas and variables, or a traced target's name."""
    claim = stored.claim
    heads = [HeadModule(found.head) for found in claim.heads]
    network = build(claim.circuit, stored.plans, stored.maps, claim.wiring, heads, TORCH[claim.dtype])
    return CompiledNetwork(network, stored, certificate, method, source, report)


def report(claim: NetworkClaim) -> Report:
    """Every group of steps that share a head in a layer, and what it contributes to the error of an output."""
    circuit, uses = claim.circuit, claim.wiring.uses
    domains = [(h.low, h.high) for h in claim.heads]
    found = flows(Tracker(circuit, claim.dtype, claim.wiring, claim.heads), claim.box)
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
    most = max((h.head.logit_range(h.low, h.high) for h in claim.heads), default=0.0)
    for i, step in enumerate(claim.circuit.steps):
        sizes = [max(size(flow.arguments[i][k]) for flow in found) for k in range(len(found[0].arguments[i]))]
        most = max(most, step.logits(sizes, claim.wiring.values[i]))
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
    return list(map(float, arrives[:, :-1].max(axis=0)))


def _node(claim: NetworkClaim, layer: int, members: list[int], arrives: float) -> NodeReport:
    step, use, wiring = claim.circuit.steps[members[0]], claim.wiring.uses[members[0]], claim.wiring
    labels = list(dict.fromkeys(claim.circuit.steps[i].label for i in members))
    label = labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"
    error = max(claim.circuit.steps[i].own_error(claim.heads, use, wiring.values[i]) for i in members)
    function, method = step.described(claim.heads, use)
    return NodeReport(layer, label, function, method, len(members), step.keys(claim.heads, use), error, error * arrives)
