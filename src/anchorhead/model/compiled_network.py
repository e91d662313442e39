"""A target in several variables as a network of heads."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.program import to_program
from anchorhead.circuit.step import OutsideDomain
from anchorhead.errors import FileError, VerificationError
from anchorhead.file.stored import StoredNetwork
from anchorhead.head.head import Head
from anchorhead.head.module import HeadModule
from anchorhead.model.affine import TokenWise
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.compiled_head import head_arrays
from anchorhead.model.exact import exact_wires
from anchorhead.model.layered import LayeredNetwork
from anchorhead.model.layered_self_attention import LayeredSelfAttention, layered_as_self_attention
from anchorhead.model.probe import Probe, probe
from anchorhead.model.report import Report
from anchorhead.model.resources import Resources
from anchorhead.proof.certificate import Certificate
from anchorhead.proof.network_claim import NetworkClaim


class CompiledNetwork(CompiledModel):
    """Layers of affine maps and attention: (..., *input_shape) to (..., *output_shape)."""

    def __init__(
        self,
        network: LayeredNetwork,
        stored: StoredNetwork,
        certificate: Certificate,
        method: str,
        source: dict[str, Any],
        report: Callable[[NetworkClaim], Report],
    ) -> None:
        super().__init__(certificate, method)
        self.network = network
        self._stored, self._source, self._make_report = stored, source, report
        self.seal()

    @property
    def circuit(self) -> Circuit:
        """The target, step by step."""
        return self._stored.claim.circuit

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
        try:
            return self._make_report(self._stored.claim)
        except OutsideDomain as reached:
            label = self.circuit.steps[reached.step].label[:80]
            raise VerificationError(
                f"No errors can be told node by node: with the model's numbers the argument of {label} leaves the "
                "domain of its head, so that its claim does not hold."
            ) from None

    def probe(self, x: Tensor) -> Probe:
        """Measures every layer's error on x against the target; `.first` is the first that exceeds its share."""
        return probe(self.network, self.circuit, self.report.wire_errors, self.certificate.outputs, x)

    @property
    def resources(self) -> Resources:
        """What this model costs; keys are counted for every head of every layer."""
        groups = [group for layer in self.network.sequence for group in layer.parts]
        return Resources(
            layers=len(self.network.sequence),
            heads=sum(group.count for group in groups),
            keys=sum(group.count * group.keys for group in groups),
            parameters=sum(p.numel() for p in self.network.parameters()),
            beta=max((group.beta for group in groups), default=0.0),
            logit_range=math.nan if self._hopeless else self.report.logit_range,
        )

    @property
    def _hopeless(self) -> bool:
        """Whether the claim of a file does not even let ranges be followed through its numbers."""
        try:
            self.report  # noqa: B018
        except VerificationError:
            return True
        return False

    @property
    def largest_value(self) -> float:
        return max((head.largest_value for head in self._heads().values()), default=0.0)

    def payload(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        claim, heads = self._stored.claim, self._heads()
        described = [
            {
                "function": str(h.function),
                "low": h.low,
                "high": h.high,
                "approximation": h.approximation,
                "rounding": h.rounding,
                "method": h.method,
                "uniform": heads[i].horner,
                "sizes": list(heads[i].sizes),
            }
            for i, h in enumerate(claim.heads)
        ]
        record = self._source | {
            "kind": "network",
            "heads": described,
            "uses": [[u.kind, u.head, u.centre, u.radius] for u in claim.wiring.uses],
            "layers": [[list(group) for group in plan.groups] for plan in self._stored.plans],
            "program": to_program(claim.circuit),
        }
        arrays = self._step_arrays()
        for i, h in enumerate(claim.heads):
            arrays |= head_arrays(f"heads.{i}.", heads[i], h.edges)
        for i, layer in enumerate(self.network.sequence):
            arrays |= _map_arrays(f"maps.{i}.", layer.rows)
            arrays[f"layers.{i}.kept"] = layer.kept.detach().cpu().numpy().astype(np.int32)
        return record, arrays | _map_arrays(f"maps.{len(self.network.layers)}.", self.network.last)

    def _heads(self) -> dict[int, Head]:
        """The heads by their numbers in the claim; those that several groups share must still be one."""
        found: dict[int, HeadModule] = {}
        for layer in self.network.sequence:
            for group, steps in zip(layer.parts, layer.group_steps, strict=True):
                if group.head is not None:
                    number = self._stored.claim.wiring.uses[steps[0]].head
                    if found.setdefault(number, group.head) is not group.head:
                        raise FileError("Two groups of the model no longer share their head; a file holds it once.")
        return {number: module.numbers for number, module in found.items()}

    def _step_arrays(self) -> dict[str, np.ndarray]:
        """With which three numbers every step uses its head."""
        dtype = self.network.last.weight.detach().cpu().numpy().dtype
        values = np.tile(np.array([[1.0], [0.0], [0.0]], dtype=dtype), (1, len(self.circuit.steps)))
        for layer in self.network.sequence:
            for group, steps in zip(layer.parts, layer.group_steps, strict=True):
                numbers = group.numbers()
                if numbers is not None:
                    values[:, steps] = numbers.detach().cpu().numpy()
        return {"scales": values[0], "tilts": values[1], "shifts": values[2]}

    def __repr__(self) -> str:
        cost = self.resources
        return f"CompiledModel({cost.layers} layers, {cost.heads} heads, {cost.keys} keys; {self.certificate})"

    def __str__(self) -> str:
        return super().__str__() if self._hopeless else f"{super().__str__()}\n{self.report}"


def _map_arrays(prefix: str, affine: TokenWise) -> dict[str, np.ndarray]:
    """An affine map row by row, without its zeros."""
    weight, bias = (v.detach().cpu().numpy() for v in (affine.weight, affine.bias))
    rows, columns = np.nonzero(weight)
    starts = np.searchsorted(rows, np.arange(len(weight) + 1))
    found = {"entries": weight[rows, columns], "columns": columns.astype(np.int32), "starts": starts.astype(np.int32)}
    return {prefix + name: array for name, array in (found | {"bias": bias}).items()}
