"""A target in several variables as a network of heads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from anchorhead.expression.circuit import Circuit
from anchorhead.network.compiled import CompiledModel
from anchorhead.network.exact import exact_wires
from anchorhead.network.file import NUMBERS
from anchorhead.network.layered import Heads, LayeredNetwork, Maxima
from anchorhead.network.layered_self_attention import LayeredSelfAttention, layered_as_self_attention
from anchorhead.network.probing import Probe, probe
from anchorhead.network.report import Report
from anchorhead.network.resources import Resources

Payload = tuple[dict[str, Any], dict[str, np.ndarray]]


class CompiledNetwork(CompiledModel):
    """Layers of affine maps and attention: (..., *input_shape) to (..., *output_shape)."""

    def __init__(
        self,
        network: LayeredNetwork,
        circuit: Circuit,
        certificate: Any,
        method: str,
        payload: Callable[[], Payload],
        report: Callable[[], Report],
    ) -> None:
        super().__init__(certificate, method)
        self.network = network
        self.circuit = circuit
        self._payload, self._make_report = payload, report

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.network.input_shape

    def forward(self, x: Tensor) -> Tensor:
        self.look(x)
        return self.network(x)

    def exact(self, x: Tensor) -> Tensor:
        """The target itself, in torch, at the same inputs: no heads, no approximation."""
        self.network.check(x)
        outputs = exact_wires(self.circuit, x)[1]
        shape = self.network.output_shape
        return outputs.unflatten(-1, shape) if shape else outputs.squeeze(-1)

    def literal(self) -> LayeredNetwork:
        return self.network.literal()

    def attention(self, x: Tensor) -> list[Tensor]:
        """The attention weights of each layer, (..., heads, keys); keys that a head does not have weigh zero."""
        return self.network.attention(x)

    def as_self_attention(self, tokens: int) -> LayeredSelfAttention:
        """The same function of every token of (..., tokens, inputs), as literal W_Q, W_K, W_V, W_O matrices."""
        return layered_as_self_attention(self.network, tokens)

    @cached_property
    def report(self) -> Report:
        """Layers, heads, keys and errors, node by node; `print(model)` shows it."""
        return self._make_report()

    def probe(self, x: Tensor) -> Probe:
        """Measures every layer's error on x against the target; `.first` is the first that exceeds its share."""
        return probe(self.network, self.circuit, self.report.wire_errors, self.certificate.outputs, x)

    @property
    def resources(self) -> Resources:
        """What this model costs; keys are counted for every head of every layer."""
        groups: list[Any] = [group for layer in self.network.sequence for group in layer.parts]
        return Resources(
            layers=len(self.network.sequence),
            heads=sum(group.count for group in groups),
            keys=sum(group.count * group.keys for group in groups),
            parameters=sum(p.numel() for p in self.network.parameters()),
            temperature=max((_temperature(group) for group in groups), default=0.0),
            logit_range=self.report.logit_range,
        )

    @property
    def largest_value(self) -> float:
        heads = [g.head for layer in self.network.sequence for g in layer.parts if isinstance(g, Heads)]
        return max((head.largest_value for head in heads), default=0.0)

    def payload(self) -> Payload:
        return self._payload()

    def __repr__(self) -> str:
        cost = self.resources
        return f"CompiledModel({cost.layers} layers, {cost.heads} heads, {cost.keys} keys; {self.certificate})"

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.report}"


def _temperature(group: Any) -> float:
    if isinstance(group, Heads):
        return group.head.temperature
    return group.sharpness.item() if isinstance(group, Maxima) else 1.0


def head_arrays(prefix: str, head: Any, edges: Any) -> dict[str, np.ndarray]:
    """The numbers of one head, by their names in a file."""
    arrays = {prefix + name: getattr(head, name).detach().cpu().numpy() for name in NUMBERS}
    return arrays | {prefix + "edges": np.asarray(edges, dtype=np.float64)}
