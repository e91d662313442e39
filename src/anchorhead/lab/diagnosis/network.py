"""A network of heads, examined: those of its heads that fail first, on the inputs that they actually see.

Every wire of a run is compared with the target's, as `probe` does, and its error with what was proved for it. Later
layers inherit what an earlier one gets wrong, so only the first layer with a wire beyond its share is looked into: each
group of steps that share a head there is examined, with the layers before it run as they are. If every head keeps its
share and the outputs do not, it is the affine map after the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from anchorhead.digits import Up
from anchorhead.display import shortened
from anchorhead.lab.diagnosis.compiled import near_ends, near_seams, seams_of
from anchorhead.lab.diagnosis.criteria import examine
from anchorhead.lab.diagnosis.examined import CHUNK, Examined, Run, altered, joined, observe
from anchorhead.lab.diagnosis.findings import Finding
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.group import Group
from anchorhead.model.layered import Layer, LayeredNetwork, exact_wires

SLACK = 2**-48
"""What the target itself is rounded by in float64, relative to 1 + its size."""
MOST = 4
"""Findings of one network: nodes beyond these are counted, not described."""


class ExaminedNetwork:
    """A compiled network on inputs (..., *input_shape)."""

    against = staticmethod(Examined.against)

    def __init__(self, model: CompiledModel, x: Tensor, dtype: torch.dtype, score_factor: float) -> None:
        core: Any = model.network
        self.core, self.x, self.dtype, self.score_factor = core, core.rows(x), dtype, score_factor
        literal = core.literal_certificate(model.claimed)
        self.claimed = model.claimed if literal.level == "unproved" else literal
        self.wire_errors = cache(core.literal_wire_errors)
        self.layers: list[Layer] = list(core.layered.sequence)
        sizes = [group.count * group.keys for layer in self.layers for group in layer.parts]
        self.at_once = max(1, CHUNK // max(sizes, default=1))
        self.exact, self.run = cache(self._exact), cache(self._run)

    def _exact(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Wires and outputs of the target, at the inputs as the dtype has them."""
        return exact_wires(self.core.circuit, self.x.to(dtype).double())

    def _run(self, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
        """The literal network in a dtype, its scores times the β that is examined: the states between layers, and the
        errors of outputs, (rows, outputs)."""
        network: LayeredNetwork = altered(self.core.layered.literal(), dtype, self.score_factor)
        parts = [network.states(part) for part in self.x.to(dtype).reshape(len(self.x), -1).split(self.at_once)]
        states = [torch.cat(states) for states in zip(*parts, strict=True)]
        return states, (network.last(states[-1]).double() - self.exact(dtype)[1]).abs()

    def allowed(self, wires: list[int], exact: Tensor) -> Tensor:
        """What was proved of some wires, (..., wires), whose exact values these are."""
        return _loosened([self.wire_errors()[w] for w in wires], exact)

    def new_wires(self, layer: Layer) -> list[int]:
        """The wires that a layer makes, in the order in which it does."""
        circuit = self.core.circuit
        return [circuit.starts[i] + k for i in layer.steps for k in range(circuit.steps[i].width)]

    def findings(self) -> tuple[list[Finding], float, float]:
        """Findings, the largest error of an output, and the bound."""
        error, exact = self.run(self.dtype)[1], self.exact(self.dtype)[1]
        allowed = _loosened(self.claimed.outputs or (self.claimed.bound,), exact)
        found: list[Finding] = []
        if not bool((error <= allowed).all()):
            found = [finding for node in self._failing() for finding in examine(node)] or [self._last(error, allowed)]
        return _merged(found), float(error.max()), self.claimed.bound

    def _failing(self) -> Iterator[ExaminedNode]:
        """The groups with a wire that errs by more than was proved for it, of the first layer that has any."""
        wires, states = self.exact(self.dtype)[0], self.run(self.dtype)[0]
        for number, layer in enumerate(self.layers):
            new = self.new_wires(layer)
            error = (states[number + 1][..., -len(new) :].double() - wires[..., new]).abs()
            failing = ~(error <= self.allowed(new, wires[..., new])).all(0)
            if failing.any():
                widths = [group.count * group.width for group in layer.parts]
                parts = zip(failing.split(widths), torch.tensor(new).split(widths), strict=True)
                for index, (fails, made) in enumerate(parts):
                    if fails.any():
                        yield ExaminedNode(self, number, index, made.tolist())
                return

    def _last(self, error: Tensor, allowed: Tensor) -> Finding:
        """Every head keeps its share and the outputs do not: the affine map that makes them, or its rounding."""
        row, column = divmod(int((error / allowed).nan_to_num(nan=float("inf")).argmax()), error.shape[-1])
        figures = (
            f"The error of output {column} is {float(error[row, column]):.3g}, "
            f"bound {Up(float(allowed[row, column])):.3g}"
        )
        if self.dtype != torch.float64 and bool((self.run(torch.float64)[1] <= allowed).all()):
            evidence = f"{figures}, which float64 keeps: sums of the heads' outputs lose digits."
            return Finding("underflow or saturation", "the last affine map", evidence, "Use float64, which holds it.")
        evidence = f"{figures}, while every head keeps its share: the last affine map is not the one that was compiled."
        return Finding("interpolation drift", "the last affine map", evidence, "Compile or load the model again.")


class ExaminedNode(Examined):
    """One group of steps of one layer, which make these wires, on what the layers before it make."""

    def __init__(self, network: ExaminedNetwork, number: int, index: int, wires: list[int]) -> None:
        super().__init__(network.x, network.dtype, network.score_factor)
        self.network, self.number, self.index, self.wires = network, number, index, wires
        self.layer = network.layers[number]
        group = self.layer.parts[index]
        u = group.looked_at(self._rows(torch.float64, 1).double())
        self.u, self.keys, self.logits = u.reshape(-1), group.keys, group.logit_range(u)
        self.bound = network.allowed(wires, network.exact(torch.float64)[0][..., wires]).reshape(-1)
        self.ends, self.seams = _marked(group, u, network.score_factor)

    def _rows(self, dtype: torch.dtype, stride: int) -> Tensor:
        """What the group reads."""
        states = self.network.run(dtype)[0][self.number][::stride]
        return altered(self.layer.rows, dtype)(states).split(self.layer.sizes, dim=-1)[self.index]

    def literal(self) -> Group:
        return self.layer.literal().parts[self.index]

    def run(self, dtype: torch.dtype, scale: float, stride: int = 1) -> Run:
        """Its scores times a factor of its own."""
        group = altered(self.literal(), dtype, scale)
        exact = self.network.exact(dtype)[0][::stride][..., self.wires]
        parts = (t.split(self.network.at_once) for t in (self._rows(dtype, stride), exact))
        return joined([observe(*self.look(group, part, exact)) for part, exact in zip(*parts, strict=True)])

    def look(self, literal: Group, x: Tensor, exact: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
        """The group on its rows; a head of several outputs counts once for each."""
        weights = literal.weights(x).repeat_interleave(literal.width, dim=-2)
        return (literal(x).double() - exact).abs(), weights

    def where(self, i: int) -> str:
        wire = self.wires[i % len(self.wires)]
        return f"layer {self.number}, node {shortened(self.network.core.circuit.wire_name(wire), 40)}"

    def place(self, i: int) -> str:
        return f"u = {self.u[i].item():.4g}"


def _loosened(proved: Sequence[float], exact: Tensor) -> Tensor:
    return torch.tensor(proved, dtype=torch.float64) + SLACK * (1 + exact.abs())


def _marked(group: Group, u: Tensor, score_factor: float) -> tuple[Tensor, Tensor]:
    """Which queries lie next to the ends of what a head sees, and next to its seams."""
    if group.head is None:
        return torch.zeros_like(u, dtype=torch.bool).reshape(-1), group.at_seams(u, score_factor).reshape(-1)
    head, seams, ends = group.head, seams_of(group.head, score_factor), []
    for column in u.unbind(-1):
        low, high = float(column.min()), float(column.max())
        ends.append(near_ends(column, low, high, head.keys) if high > low else torch.zeros_like(column).bool())
    joints = [near_seams(column, seams) for column in u.unbind(-1)]
    return torch.stack(ends, -1).reshape(-1), torch.stack(joints, -1).reshape(-1)


def _merged(findings: list[Finding]) -> list[Finding]:
    """One finding for each kind and layer: the first node described, the others counted."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.kind, finding.where.split(",")[0]), []).append(finding)
    more = {key: f" and {len(group) - 1} more" if len(group) > 1 else "" for key, group in groups.items()}
    return [replace(group[0], where=group[0].where + more[key]) for key, group in groups.items()][:MOST]
