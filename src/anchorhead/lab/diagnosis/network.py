"""A network of heads, examined: every head that fails by itself, the one that moves the outputs most first.

Later layers inherit what an earlier one gets wrong. So each group of steps that share a head is run on what the target
has there, and what it writes compared with the target's and with what was proved for it. What it moves the outputs by
is told by the target's own steps after it, with what it wrote in the place of what it should. If every head keeps its
share by itself and not in the run, the first layer that does not is examined on what the run has there; if in the run
too, and the outputs do not, it is the affine map after the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from anchorhead.circuit.layout import states
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
"""Nodes that a finding names; the others are counted."""

Before = Callable[[int, torch.dtype], Tensor]
"""The states before a layer, in a dtype."""


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
        self.exact, self.run, self.keeps = cache(self._exact), cache(self._run), cache(self._keeps)
        self.held = list(states(core.circuit, core.placed.plans))

    def _exact(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Wires and outputs of the target, at the inputs as the dtype has them."""
        return exact_wires(self.core.circuit, self.x.to(dtype).double())

    def _run(self, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
        """The literal network in a dtype, its scores times the β that is examined: the states between layers, and the
        errors of outputs, (rows, outputs)."""
        network: LayeredNetwork = altered(self.core.layered.literal(), dtype, self.score_factor)
        parts = [network.states(part) for part in self.x.to(dtype).reshape(len(self.x), -1).split(self.at_once)]
        found = [torch.cat(after) for after in zip(*parts, strict=True)]
        return found, (network.last(found[-1]).double() - self.exact(dtype)[1]).abs()

    def _keeps(self, dtype: torch.dtype) -> bool:
        """Whether no output that keeps its bound in float64 loses it in a dtype."""
        allowed = _loosened(self.claimed.outputs or (self.claimed.bound,), self.exact(torch.float64)[1])
        return bool(((self.run(dtype)[1] <= allowed) | ~(self.run(torch.float64)[1] <= allowed)).all())

    def before(self, number: int, dtype: torch.dtype) -> Tensor:
        """The state that a layer should see."""
        return self.exact(dtype)[0][..., self.held[number]].to(dtype)

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
            alone = [node for number in range(len(self.layers)) for node in self._failing(number, self.before)]
            found = _merged(alone or self._first()) or [self._last(error, allowed)]
        return found, float(error.max()), self.claimed.bound

    def _first(self) -> list[ExaminedNode]:
        """Those of the first layer that fails in the run."""
        layers = (self._failing(number, lambda i, dtype: self.run(dtype)[0][i]) for number in range(len(self.layers)))
        return next(filter(None, layers), [])

    def _failing(self, number: int, before: Before) -> list[ExaminedNode]:
        """The groups of a layer with a wire that errs by more than was proved for it, on these states before it."""
        layer, wires = self.layers[number], self.exact(self.dtype)[0]
        new, ran = self.new_wires(layer), altered(layer.literal(), self.dtype, self.score_factor)
        made = torch.cat([ran(part)[..., -len(new) :] for part in before(number, self.dtype).split(self.at_once)])
        kept = ((made.double() - wires[..., new]).abs() <= self.allowed(new, wires[..., new])).all(0)
        widths = [group.count * group.width for group in layer.parts]
        parts = zip(*(t.split(widths, dim=-1) for t in (made, kept, torch.tensor(new))), strict=True)
        return [ExaminedNode(self, number, i, own.tolist(), before, own[~keeps].tolist(), self._moved(number, i, wrote))
                for i, (wrote, keeps, own) in enumerate(parts) if not keeps.all()]  # fmt: skip

    def _moved(self, number: int, index: int, wrote: Tensor) -> float:
        """By how much the target's outputs differ with what a group wrote in the place of what it should."""
        steps = self.layers[number].group_steps[index]
        parts = wrote.double().split([self.core.circuit.steps[i].width for i in steps], dim=-1)
        moved = exact_wires(self.core.circuit, self.x.to(self.dtype).double(), dict(zip(steps, parts, strict=True)))[1]
        return float((moved - self.exact(self.dtype)[1]).abs().nan_to_num(nan=math.inf).max())

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
        return Finding("edited numbers", "the last affine map", evidence, "Compile or load the model again.")


class ExaminedNode(Examined):
    """One group of steps of one layer, which make these wires, on the states before it; failing: the wires that err
    too much. moved: by how much that moves the outputs."""

    def __init__(self, network: ExaminedNetwork, number: int, index: int, wires: list[int], before: Before,
                 failing: list[int], moved: float) -> None:  # fmt: skip
        super().__init__(network.x, network.dtype, network.score_factor)
        self.network, self.number, self.index, self.wires = network, number, index, wires
        self.before, self.failing, self.moved = before, failing, moved
        self.layer = network.layers[number]
        group = self.layer.parts[index]
        u = group.looked_at(self._rows(torch.float64, 1).double())
        self.u, self.keys, self.logits = u.reshape(-1), group.keys, group.logit_range(u)
        self.bound = network.allowed(wires, network.exact(torch.float64)[0][..., wires]).reshape(-1)
        self.ends, self.seams = _marked(group, u, network.score_factor)
        if group.head is not None and network.claimed.level != "unproved":
            claim = network.core.placed.claim
            proved = claim.heads[claim.wiring.uses[self.layer.group_steps[index][0]].head]
            self.numbers = group.head.numbers, proved.head

    def _rows(self, dtype: torch.dtype, stride: int) -> Tensor:
        """What the group reads."""
        states = self.before(self.number, dtype)[::stride]
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
        return self.node(self.wires[i % len(self.wires)])

    def node(self, wire: int) -> str:
        """A wire in words."""
        return f"layer {self.number}, node {shortened(self.network.core.circuit.wire_name(wire), 40)}"

    def allows(self, dtype: torch.dtype, factor: float = 1.0) -> bool:
        return self.network.keeps(dtype)

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


def _merged(nodes: list[ExaminedNode]) -> list[Finding]:
    """One finding for each kind and advice: the node that moves the outputs most described, the others named."""
    groups: dict[tuple[str, str], list[tuple[ExaminedNode, Finding]]] = {}
    for node in sorted(nodes, key=lambda node: -node.moved):
        for finding in examine(node):
            groups.setdefault((finding.kind, finding.advice), []).append((node, finding))
    return [_all_named(group) for group in groups.values()]


def _all_named(group: list[tuple[ExaminedNode, Finding]]) -> Finding:
    node, first = group[0]
    every = [finding.where for _, finding in group] + [other.node(w) for other, _ in group for w in other.failing]
    names = list(dict.fromkeys(every))
    where = "; ".join(names[:MOST]) + (f" and {len(names) - MOST} more" if len(names) > MOST else "")
    alone = f" By itself it moves the outputs by {node.moved:.3g}." if math.isfinite(node.moved) else ""
    return replace(first, where=where, evidence=first.evidence + alone)
