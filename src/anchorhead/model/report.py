"""Where a network's error comes from, node by node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NodeReport:
    """Steps that share a head in one layer: what they compute, what it costs, and what it contributes.

    keys: of one head. error: what the head keeps, approximation and rounding. contribution: how much of it arrives at
    the output where it matters most, to first order.
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

    def __str__(self) -> str:
        head = ("layer", "node", "function of u", "method", "heads", "keys", "error", "arrives")
        rows = [
            (str(n.layer), shortened(n.label, 36), shortened(n.function, 24), n.method, str(n.heads), str(n.keys),
             f"{n.error:.2e}", f"{n.contribution:.2e}")
            for n in self.nodes
        ]  # fmt: skip
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
                         for row in (head, *rows))  # fmt: skip


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
