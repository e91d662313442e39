"""A claim to a model: the network it speaks of, what a file holds of it, and where its error comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from anchorhead.certify.certificate import Certificate
from anchorhead.certify.flow import Flow, Tracker, shortfall
from anchorhead.certify.network_claim import NetworkClaim, flows, worst
from anchorhead.certify.statement import Statement
from anchorhead.compiler.splitting import sensitivities
from anchorhead.errors import FileError
from anchorhead.expression.circuit import Apply, Attend, Largest, Times
from anchorhead.expression.program import to_program
from anchorhead.network.compiled_network import CompiledNetwork, head_arrays
from anchorhead.network.file import NUMBERS
from anchorhead.network.head_attention import HeadAttention
from anchorhead.network.layered import LayeredNetwork, Part, build
from anchorhead.network.report import NodeReport, Report

DTYPES = {"float64": torch.float64, "float32": torch.float32}


def attention_of(claim: Statement, dtype: torch.dtype) -> HeadAttention:
    """The head that a statement speaks of."""
    numbers = {name: torch.tensor(getattr(claim, name), dtype=dtype) for name in NUMBERS}
    return HeadAttention(**numbers, uniform=claim.uniform, sizes=claim.sizes)


def network_model(
    claim: NetworkClaim, certificate: Certificate, method: str, source: dict[str, Any]
) -> CompiledNetwork:
    """The model; source says where the circuit comes from: formulas and variables, or nothing for a traced target."""
    dtype = DTYPES[claim.dtype]
    heads = [attention_of(head.statement, dtype) for head in claim.heads]
    parts = []
    for step, use in zip(claim.circuit.steps, claim.uses, strict=True):
        if isinstance(step, Apply | Times):
            parts.append(Part(heads[use.head], use.query(step.argument), use.values))
        else:
            parts.append(Part(sharpness=use.sharpness))
    network = build(claim.circuit, parts, dtype)

    def payload() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        _require_unchanged(network, build(claim.circuit, parts, dtype))
        return _payload(claim, certificate, heads, source)

    return CompiledNetwork(network, claim.circuit, certificate, method, payload, lambda: report(claim))


def _require_unchanged(network: LayeredNetwork, fresh: LayeredNetwork) -> None:
    """A file stores the target and the heads; affine maps that were edited would be lost without a word."""
    before, after = network.state_dict(), fresh.state_dict()
    if any(not torch.equal(value.cpu(), after[name]) for name, value in before.items()):
        raise FileError(
            "The model's numbers were changed since it was compiled, and its proof is not about them; compile the "
            "changed target instead."
        )


def _payload(claim: NetworkClaim, certificate: Certificate, heads: list[HeadAttention],
             source: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:  # fmt: skip
    arrays: dict[str, np.ndarray] = {}
    for i, (head, stated) in enumerate(zip(heads, claim.heads, strict=True)):
        arrays |= head_arrays(f"heads.{i}.", head, stated.edges)
    described = [
        {
            "function": str(h.statement.target),
            "low": h.statement.low,
            "high": h.statement.high,
            "approximation": h.approximation,
            "rounding": h.rounding,
            "method": h.method,
            "uniform": h.statement.uniform,
            "sizes": list(h.statement.sizes),
        }
        for h in claim.heads
    ]
    record = {
        "kind": "network",
        "expression": certificate.expression,
        "domain": certificate.as_dict()["domain"],
        "heads": described,
        "uses": [[u.kind, u.head, u.centre, u.radius, u.sharpness] for u in claim.uses],
        **{name: source.get(name) for name in ("expressions", "variables", "fused")},
        "program": None if source.get("expressions") else to_program(claim.circuit),
    }
    return record, arrays


def report(claim: NetworkClaim) -> Report:
    """Every group of steps that share a head in a layer, and what it contributes to the error of an output."""
    circuit, uses = claim.circuit, claim.uses
    domains = [(h.statement.low, h.statement.high) for h in claim.heads]
    found = flows(Tracker(circuit, claim.dtype, uses, [h.facts for h in claim.heads]), claim.box)
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
        attention = attention_of(s, torch.float64)
        most = max(most, attention.logit_range(s.low, s.high))
    for i, step in enumerate(claim.circuit.steps):
        sizes = [max(max(abs(a), abs(b)) for a, b in (flow.arguments[i][k] for flow in found))
                 for k in range(len(found[0].arguments[i]))]  # fmt: skip
        if isinstance(step, Largest):
            most = max(most, claim.uses[i].sharpness * max(sizes))
        elif isinstance(step, Attend):
            d, m = len(step.query), len(step.offsets)
            rows = [sizes[d + j * d : d + (j + 1) * d] for j in range(m)]
            scores = [sum(q * k for q, k in zip(sizes[:d], row, strict=True)) for row in rows]
            most = max(most, *(s + o for s, o in zip(scores, sizes[d + m * d : d + m * d + m], strict=True)))
    return most


def _by_group(claim: NetworkClaim, groups: list[list[int]], domains: list[Any], found: Any) -> list[float]:
    """How much of a unit error of each group's head arrives at an output, at most."""
    renamed, places = list(claim.uses), []
    for g, members in enumerate(groups):
        use = claim.uses[members[0]]
        places.append(domains[use.head] if use.head >= 0 else (0.0, 0.0))
        for i in members:
            renamed[i] = type(use)(use.kind, g, claim.uses[i].centre, claim.uses[i].radius, use.sharpness)
    arrives = sensitivities(claim.circuit, renamed, places, found)
    for g, members in enumerate(groups):
        if isinstance(claim.circuit.steps[members[0]], Largest):
            arrives[:, g] = arrives[:, -1]  # all maxima together: an upper bound for these
    return list(map(float, arrives[:, :-1].max(axis=0)))


def _error(claim: NetworkClaim, members: list[int]) -> float:
    use, step = claim.uses[members[0]], claim.circuit.steps[members[0]]
    if isinstance(step, Largest):
        return max(shortfall(len(claim.circuit.steps[i].arguments)) for i in members) / use.sharpness  # type: ignore
    return claim.heads[use.head].approximation + claim.heads[use.head].rounding if use.head >= 0 else 0.0


def _node(claim: NetworkClaim, layer: int, members: list[int], arrives: float) -> NodeReport:
    step, use = claim.circuit.steps[members[0]], claim.uses[members[0]]
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
