"""Where a network's error comes from, node by node, and whether a run of it keeps what was proved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from anchorhead.expression.circuit import Circuit
from anchorhead.network.exact import exact_wires
from anchorhead.network.layered import LayeredNetwork


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
            (str(n.layer), _short(n.label, 36), _short(n.function, 24), n.method, str(n.heads), str(n.keys),
             f"{n.error:.2e}", f"{n.contribution:.2e}")
            for n in self.nodes
        ]  # fmt: skip
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
                         for row in (head, *rows))  # fmt: skip


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


@dataclass(frozen=True)
class LayerProbe:
    """One layer of a run: the node that errs most against what was proved for it."""

    layer: int
    label: str
    measured: float
    proved: float

    @property
    def exceeds(self) -> bool:
        """Whether the measured error is above the proved one (not a number counts as above)."""
        return not self.measured <= self.proved


@dataclass(frozen=True)
class Probe:
    """A run against the exact target, layer by layer."""

    layers: tuple[LayerProbe, ...]

    @property
    def first(self) -> LayerProbe | None:
        """The first layer whose measured error exceeds its share, or None."""
        return next((layer for layer in self.layers if layer.exceeds), None)

    def __str__(self) -> str:
        lines = [
            f"layer {p.layer}: measured {p.measured:.2e}, proved {p.proved:.2e} at {_short(p.label, 60)}"
            + ("  <- exceeds its share" if p is self.first else "")
            for p in self.layers
        ]
        return "\n".join(lines)


def probe(network: LayeredNetwork, circuit: Circuit, wire_errors: Sequence[float], output_errors: Sequence[float],
          x: Tensor) -> Probe:  # fmt: skip
    """Compares every wire of a run with the target in float64; the last layer is the output's affine map."""
    network.check(x)
    wires, outputs = exact_wires(circuit, x.double())
    states = network.states(x)
    found = []
    for number, (layer, (_, state)) in enumerate(zip(network.sequence, pairwise(states), strict=True), 1):
        new = [circuit.starts[i] + k for i in layer.steps for k in range(circuit.steps[i].width)]
        errors = (state[..., -len(new) :].double() - wires[..., new]).abs().flatten(0, -2).amax(0).tolist()
        names = [circuit.wire_name(w) for w in new]
        found.append(_worst(number, names, errors, [wire_errors[w] for w in new]))
    errors = (network.last(states[-1]).double() - outputs).abs().flatten(0, -2).amax(0).tolist()
    names = [f"output {i}" for i in range(len(errors))]
    found.append(_worst(len(network.sequence) + 1, names, errors, output_errors))
    return Probe(tuple(found))


def _worst(layer: int, names: Sequence[str], errors: Sequence[float], proved: Sequence[float]) -> LayerProbe:
    ratios = [e / p if p > 0 else (0.0 if e == 0 else float("inf")) for e, p in zip(errors, proved, strict=True)]
    worst = max(range(len(ratios)), key=lambda i: (ratios[i] != ratios[i], ratios[i]))
    return LayerProbe(layer, names[worst], errors[worst], proved[worst])
