"""Where a network's error comes from, node by node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from anchorhead.circuit.step import size
from anchorhead.digits import Up
from anchorhead.display import bars, page, shortened, table
from anchorhead.proof.flow import Flow
from anchorhead.proof.network_claim import NetworkClaim, followed, worst
from anchorhead.proof.sensitivity import sensitivities

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("layer", "node", "function of u", "method", "heads", "keys", "error", "arrives")
"""Of a table of nodes."""


@dataclass(frozen=True)
class NodeReport:
    """Steps that share a head in one layer: what they compute, what it costs, and what it contributes.

    layer: from 0. keys: of one head. error: what the head keeps, approximation and rounding. contribution: how much of
    it arrives at the output where it matters most, to first order.
    """

    layer: int
    label: str
    function: str
    method: str
    heads: int
    keys: int
    error: float
    contribution: float


@dataclass(frozen=True)
class Report:
    """The nodes of a network, the proved error of every wire, and the largest absolute score for inputs in the box."""

    nodes: tuple[NodeReport, ...]
    wire_errors: tuple[float, ...]
    logit_range: float

    def rows(self) -> list[tuple[str, ...]]:
        """The nodes as text, in the order of `COLUMNS`."""
        return [
            (str(n.layer), n.label, n.function, n.method, str(n.heads), str(n.keys), f"{Up(n.error):.2e}",
             f"{Up(n.contribution):.2e}")
            for n in self.nodes
        ]  # fmt: skip

    def __str__(self) -> str:
        rows = [(r[0], shortened(r[1], 36), shortened(r[2], 24), *r[3:]) for r in self.rows()]
        widths = [max(len(row[i]) for row in (COLUMNS, *rows)) for i in range(len(COLUMNS))]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
                         for row in (COLUMNS, *rows))  # fmt: skip

    def plot(self) -> Figure:
        """What arrives at the output of each node's error, layer by layer: a figure with no file and no window."""
        from anchorhead.drawing import dots, dress, listed

        figure = listed(len(self.nodes))
        axes = figure.subplots()
        dress(axes)
        dots(axes, [n.label for n in self.nodes], [n.contribution for n in self.nodes],
             [f"layer {n.layer}" for n in self.nodes], "error that arrives at the output")  # fmt: skip
        return figure

    def html(self) -> str:
        """The nodes as a table."""
        return table(COLUMNS, self.rows(), f"{len(self.nodes)} nodes") if self.nodes else ""

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        arriving = sorted(((n.label, n.contribution) for n in self.nodes), key=lambda pair: -pair[1])
        return page("Nodes, and what of their errors arrives at the output",
                    bars(arriving[:8], "the largest, on a logarithmic scale"), self.html())  # fmt: skip

    __repr__ = __str__


def report(claim: NetworkClaim) -> Report:
    """Every group of steps that share a head in a layer, and what it contributes to the error of an output."""
    circuit, uses = claim.circuit, claim.wiring.uses
    domains = [(h.low, h.high) for h in claim.heads]
    found = followed(claim, rounding=True)
    depths = circuit.depths()
    groups: dict[tuple[int, int, str], list[int]] = {}
    for i, (use, depth) in enumerate(zip(uses, depths, strict=True)):
        groups.setdefault((depth, use.head, use.kind), []).append(i)
    keys = sorted(groups)
    apart = [groups[key] for key in keys]
    arrives = _by_group(claim, apart, domains, found)
    nodes = tuple(
        _node(claim, key[0] - 1, members, arrives[g]) for g, (key, members) in enumerate(zip(keys, apart, strict=True))
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
