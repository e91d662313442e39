"""Where a network's error comes from, node by node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from anchorhead.arithmetic import Array
from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.step import size
from anchorhead.digits import Up
from anchorhead.display import bars, page, shortened, table
from anchorhead.proof.flow import Flow
from anchorhead.proof.network_claim import NetworkClaim, followed, own_errors, worst
from anchorhead.proof.sensitivity import moved_by

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("layer", "node", "function of u", "method", "heads", "keys", "error", "arrives", "own")
"""Of a table of nodes."""


@dataclass(frozen=True)
class NodeReport:
    """Steps that share a head in one layer: what they compute, what it costs, and what it contributes.

    layer: from 0. keys: of one head. error: proved, of the numbers that they write, in the units of those, as in the
    mechanism; with what they inherit from nodes before them. contribution: what of it arrives at the output where it
    matters most: by so much an output moves if all of these numbers are put right, where what comes after computes the
    target's functions. own: likewise of what their own heads err by, had they read exact numbers; over all nodes it
    adds up to about the error of the output.
    """

    layer: int
    label: str
    function: str
    method: str
    heads: int
    keys: int
    error: float
    contribution: float
    own: float


@dataclass(frozen=True)
class Report:
    """The nodes of a network, the proved error of every wire, and the largest absolute score for inputs in the box."""

    nodes: tuple[NodeReport, ...]
    wire_errors: tuple[float, ...]
    logit_range: float

    def unproved(self) -> Report:
        """The same of numbers that it was not proved for: no error is known."""
        nodes = (replace(n, error=math.inf, contribution=math.inf, own=math.inf) for n in self.nodes)
        return replace(self, nodes=tuple(nodes), wire_errors=(math.inf,) * len(self.wire_errors))

    def rows(self) -> list[tuple[str, ...]]:
        """The nodes as text, in the order of `COLUMNS`."""
        return [
            (str(n.layer), n.label, n.function, n.method, str(n.heads), str(n.keys), f"{Up(n.error):.2e}",
             f"{Up(n.contribution):.2e}", f"{Up(n.own):.2e}")
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
        if not self.nodes:
            axes.set_axis_off()
            axes.set_title("no nodes: the model is an affine map", loc="left")
            return figure
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
    """Every group of steps that share a head in a layer, and what its errors are worth at an output."""
    circuit, uses = claim.circuit, claim.wiring.uses
    found = followed(claim, rounding=True)
    depths = circuit.depths()
    groups: dict[tuple[int, int, str], list[int]] = {}
    for i, (use, depth) in enumerate(zip(uses, depths, strict=True)):
        groups.setdefault((depth, use.head, use.kind), []).append(i)
    keys = sorted(groups)
    apart = [groups[key] for key in keys]
    errors, own = worst([flow.errors for flow in found]), own_errors(claim, found)
    arrives, begun = (moved_by(claim, found, _by_group(circuit, apart, each)).max(0) for each in (errors, own))
    nodes = tuple(_node(claim, key[0] - 1, members, errors, float(arrives[g]), float(begun[g]))
                  for g, (key, members) in enumerate(zip(keys, apart, strict=True)))  # fmt: skip
    return Report(nodes, tuple(errors), _logits(claim, found))


def _logits(claim: NetworkClaim, found: Sequence[Flow]) -> float:
    """The largest absolute score of any head, for inputs in the box."""
    most = max((h.head.logit_range(h.low, h.high) for h in claim.heads), default=0.0)
    for i, step in enumerate(claim.circuit.steps):
        sizes = [max(size(flow.arguments[i][k]) for flow in found) for k in range(len(found[0].arguments[i]))]
        most = max(most, step.logits(sizes, claim.wiring.values[i]))
    return most


def _wires(circuit: Circuit, members: Sequence[int]) -> list[int]:
    return [circuit.starts[i] + k for i in members for k in range(circuit.steps[i].width)]


def _by_group(circuit: Circuit, groups: list[list[int]], errors: Sequence[float]) -> Array:
    """The errors of a group's wires in its column."""
    placed = np.zeros((circuit.wires, len(groups)))
    for g, members in enumerate(groups):
        for wire in _wires(circuit, members):
            placed[wire, g] = errors[wire]
    return placed


def _node(claim: NetworkClaim, layer: int, members: list[int], errors: Sequence[float], arrives: float,
          begun: float) -> NodeReport:  # fmt: skip
    step, use = claim.circuit.steps[members[0]], claim.wiring.uses[members[0]]
    labels = list(dict.fromkeys(claim.circuit.steps[i].label for i in members))
    label = labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"
    error = max(errors[wire] for wire in _wires(claim.circuit, members))
    function, method = step.described(claim.heads, use)
    return NodeReport(layer, label, function, method, len(members), step.keys(claim.heads, use), error, arrives, begun)
