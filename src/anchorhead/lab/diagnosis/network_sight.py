"""A network of heads, as sights of the heads that fail first, on the inputs that they actually see.

Every wire of a run is compared with the target's, as `probe` does, and its error with what was proved for it. Later
layers inherit what an earlier one gets wrong, so only the first layer with a wire beyond its share is looked into: one
sight for each group of steps that share a head there, with the layers before it run as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from anchorhead.lab.diagnosis.head_sight import CHUNK, coarser, near_ends, near_seams, seams_of, solved_for
from anchorhead.lab.diagnosis.recast import recast
from anchorhead.lab.diagnosis.sight import Run, Sight, joined, observe
from anchorhead.model.group import Group
from anchorhead.model.layered import Layer, LayeredNetwork, exact_wires
from anchorhead.model.layered_core import LayeredCore
from anchorhead.model.report import shortened

SLACK = 2**-48
"""What the target itself is rounded by in float64, relative to 1 + its size."""


@dataclass(frozen=True)
class NetworkRun:
    """A run of a whole network: the states between layers, and errors of outputs (rows, outputs)."""

    states: list[Tensor]
    outputs: Tensor


class NetworkView:
    """A compiled network and the inputs (rows, *input_shape) that it is examined on."""

    def __init__(self, model: LayeredCore, x: Tensor, dtype: torch.dtype, beta: float) -> None:
        self.model, self.dtype, self.beta = model, dtype, beta
        self.x = x.detach().reshape(-1, *model.input_shape)
        self._runs: dict[torch.dtype, NetworkRun] = {}
        self._exact: dict[torch.dtype, tuple[Tensor, Tensor]] = {}

    @cached_property
    def proved(self) -> tuple[float, ...]:
        """What was proved for every wire."""
        return self.model.report.wire_errors

    @cached_property
    def _per(self) -> int:
        """Inputs at a time."""
        sizes = [group.count * group.keys for layer in self.model.layered.sequence for group in layer.parts]
        return max(1, CHUNK // max(sizes, default=1))

    def exact(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Wires and outputs of the target, at the inputs as the dtype has them."""
        if dtype not in self._exact:
            self._exact[dtype] = exact_wires(self.model.circuit, self.x.to(dtype).double())
        return self._exact[dtype]

    def run(self, dtype: torch.dtype) -> NetworkRun:
        """The literal network in a dtype, its scores times the β that is examined."""
        if dtype not in self._runs:
            network: LayeredNetwork = recast(self.model.layered.literal(), dtype, self.beta)
            parts = [network.states(part) for part in self.x.to(dtype).flatten(1).split(self._per)]
            states = [torch.cat(states) for states in zip(*parts, strict=True)]
            outputs = (network.last(states[-1]).double() - self.exact(dtype)[1]).abs()
            self._runs[dtype] = NetworkRun(states, outputs)
        return self._runs[dtype]

    def new_wires(self, layer: Layer) -> list[int]:
        """The wires that a layer makes, in the order in which it does."""
        circuit = self.model.circuit
        return [circuit.starts[i] + k for i in layer.steps for k in range(circuit.steps[i].width)]

    def sights(self) -> list[Sight]:
        """Those of the first layer in which a wire errs by more than was proved for it."""
        wires, _ = self.exact(self.dtype)
        states = self.run(self.dtype).states
        for number, layer in enumerate(self.model.layered.sequence):
            new = self.new_wires(layer)
            error = (states[number + 1][..., -len(new) :].double() - wires[..., new]).abs()
            allowed = torch.tensor([self.proved[w] for w in new]) + SLACK * (1 + wires[..., new].abs())
            failing = ~(error <= allowed).all(0)
            if failing.any():
                return self._groups(number, failing)
        return []

    def _groups(self, number: int, failing: Tensor) -> list[Sight]:
        found, start = [], 0
        for index, group in enumerate(self.model.layered.sequence[number].parts):
            width = group.count * group.width
            if failing[start : start + width].any():
                found.append(self._sight(number, index, slice(start, start + width)))
            start += width
        return found

    def _sight(self, number: int, index: int, part: slice) -> Sight:
        model, layer = self.model, self.model.layered.sequence[number]
        group, wires = layer.parts[index], self.new_wires(layer)[part]
        rows = recast(layer.rows, torch.float64, 1.0)(self.run(torch.float64).states[number])
        u = group.looked_at(rows.split(layer.sizes, dim=-1)[index].double())
        names = [shortened(model.circuit.wire_name(w), 40) for w in wires]
        keys, (ends, seams) = group.keys, marked(group, u, self.beta)
        exact = self.exact(torch.float64)[0][..., wires]
        proved = torch.tensor([self.proved[w] for w in wires], dtype=torch.float64)
        return Sight(
            where=lambda i: f"layer {number + 1}, node {names[i % len(names)]}",
            run=self._runner(number, index, wires),
            rows=len(self.x),
            dtype=self.dtype,
            beta=self.beta,
            bound=(proved + SLACK * (1 + exact.abs())).reshape(-1),
            ends=ends,
            seams=seams,
            logits=group.logit_range(u),
            keys=keys,
            place=lambda i: f"u = {u.reshape(-1)[i].item():.4g}",
            rescale=lambda factor: solved_for(factor, self.beta),
            smaller=coarser,
        )

    def _runner(self, number: int, index: int, wires: list[int]) -> Callable[[torch.dtype, float, int], Run]:
        """Runs one group of one layer on what the layers before it make, its scores times a factor of its own."""
        layer = self.model.layered.sequence[number]
        group = layer.literal().parts[index]

        def run(dtype: torch.dtype, scale: float, stride: int) -> Run:
            rows = recast(layer.rows, dtype, 1.0)(self.run(dtype).states[number][::stride])
            part = rows.split(layer.sizes, dim=-1)[index]
            cast = recast(group, dtype, scale)
            exact = self.exact(dtype)[0][::stride][..., wires]
            return joined(
                [_run(cast, *both) for both in zip(part.split(self._per), exact.split(self._per), strict=True)]
            )

        return run


def _run(group: Group, rows: Tensor, exact: Tensor) -> Run:
    """One group on its rows; a head of several outputs counts once for each."""
    weights = group.weights(rows).repeat_interleave(group.width, dim=-2)
    return observe((group(rows).double() - exact).abs(), weights)


def marked(group: Group, u: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Which queries lie next to the ends of what a head sees, and next to its seams."""
    if group.head is None:
        return torch.zeros_like(u, dtype=torch.bool).reshape(-1), group.at_seams(u, beta).reshape(-1)
    head = group.head
    seams, ranges = seams_of(head, beta), [(float(c.min()), float(c.max())) for c in u.unbind(-1)]
    columns = list(zip(u.unbind(-1), ranges, strict=True))
    ends = [near_ends(c, a, b, head.keys) if b > a else torch.zeros_like(c).bool() for c, (a, b) in columns]
    joints = [near_seams(c, seams) for c in u.unbind(-1)]
    return torch.stack(ends, -1).reshape(-1), torch.stack(joints, -1).reshape(-1)
