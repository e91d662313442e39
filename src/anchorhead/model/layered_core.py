"""A target in several variables as a network of heads: its layers, the circuit that they compute, what is claimed."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.program import to_program
from anchorhead.circuit.step import OutsideDomain
from anchorhead.digits import counted
from anchorhead.errors import FileError, VerificationError
from anchorhead.head.evaluation import TORCH
from anchorhead.head.head import Head
from anchorhead.head.module import HeadModule
from anchorhead.head.parameters import check_tensor
from anchorhead.model.affine import TokenWise
from anchorhead.model.core import FlatCore, shaped
from anchorhead.model.layered import LayeredNetwork, build, exact_wires
from anchorhead.model.mechanism import Mechanism, mechanism
from anchorhead.model.network import Resources
from anchorhead.model.report import Report, report
from anchorhead.model.self_attention import SelfAttention, layers_on_sequences
from anchorhead.proof.certificate import Certificate, most_above
from anchorhead.proof.network_claim import PlacedNetwork, output_errors, wire_errors
from anchorhead.proof.patched import patched_errors


class LayeredCore(FlatCore):
    """Layers of affine maps and attention: (..., *input_shape) to (..., *output_shape).

    source: where the circuit comes from, formulas and variables or a traced target's name, as a file says it.
    """

    kind = "network"
    build = staticmethod(build)

    def __init__(self, placed: PlacedNetwork, source: dict[str, Any]) -> None:
        super().__init__()
        claim = placed.claim
        heads = [HeadModule(found.head) for found in claim.heads]
        self.layered = self.build(claim.circuit, placed.plans, placed.maps, claim.wiring, heads, TORCH[claim.dtype])
        self.placed, self.source = placed, source
        self.input_shape, self.output_shape = claim.circuit.input_shape, claim.circuit.output_shape

    @property
    def circuit(self) -> Circuit:
        """The target, step by step."""
        return self.placed.claim.circuit

    @property
    def layer(self) -> LayeredNetwork:
        return self.layered

    def exact(self, x: Tensor) -> Tensor:
        double = isinstance(x, Tensor) and x.dtype == torch.float64
        check_tensor(x, torch.float64 if double else self.dtype, self.input_shape)
        return shaped(exact_wires(self.circuit, x)[1], self.output_shape)

    def literal_certificate(self, certificate: Certificate) -> Certificate:
        if certificate.evaluation != "fast" or certificate.level != "proved":
            return certificate
        try:
            total = output_errors(self.placed.claim.literal(), rounding=True)
        except OutsideDomain:
            return replace(certificate.unproved(), evaluation="literal")
        if not math.isfinite(max(total)):
            return replace(certificate.unproved(), evaluation="literal")
        rounding = most_above(total, output_errors(self.placed.claim, rounding=False))
        return replace(certificate, rounding=rounding, outputs=tuple(total), evaluation="literal")

    @property
    def joined(self) -> bool:
        return any(claim.head.joined for claim in self.placed.claim.heads)

    def on_sequences(self, tokens: int) -> SelfAttention:
        return layers_on_sequences(self.layered, len(self.circuit.inputs), tokens)

    @cached_property
    def report(self) -> Report:
        """Layers, heads, keys and errors, node by node."""
        try:
            return report(self.placed.claim)
        except OutsideDomain as reached:
            label = self.circuit.steps[reached.step].label[:80]
            raise VerificationError(
                f"No errors can be told node by node: with the model's numbers the argument of {label} leaves the "
                "domain of its head, so that its claim does not hold."
            ) from None

    def mechanism(self, certificate: Certificate) -> Mechanism:
        claim = self.placed.claim
        if certificate.evaluation == "literal":
            literal = claim.literal()
            return mechanism(self.placed, wire_errors(literal), patched_errors(literal))
        if certificate.level == "unproved":
            unknown = (math.inf,) * self.circuit.wires
            return mechanism(self.placed, unknown, unknown)
        return mechanism(self.placed, self.report.wire_errors, patched_errors(claim))

    def literal_wire_errors(self) -> tuple[float, ...]:
        """About the errors of all wires in the literal evaluation, for a diagnosis.

        A bound as long as no argument leaves the domain of its head, which is not asked here.
        """
        claim = self.placed.claim
        if not claim.evaluation:
            return self.report.wire_errors
        literal = claim.literal()
        anywhere = tuple(replace(head, low=-math.inf, high=math.inf) for head in literal.heads)
        return report(replace(literal, heads=anywhere)).wire_errors

    def resources(self, certificate: Certificate) -> Resources:
        """Keys are counted for every head of every layer."""
        groups = [group for group, _ in self.layered.groups]
        try:
            logit_range = self.report.logit_range
        except VerificationError:
            logit_range = math.nan
        return Resources(
            layers=len(self.layered.sequence),
            heads=sum(group.count for group in groups),
            keys=sum(group.count * group.keys for group in groups),
            parameters=self.parameter_count(),
            beta=max((group.beta for group in groups), default=0.0),
            logit_range=logit_range,
        )

    @property
    def largest_value(self) -> float:
        return max((group.largest_value for group, _ in self.layered.groups), default=0.0)

    def payload(self, certificate: Certificate) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        claim, heads = self.placed.claim, self.heads()
        described = [
            {
                "function": str(h.function),
                "low": h.low,
                "high": h.high,
                "approximation": h.approximation,
                "rounding": h.rounding,
                "relative": h.relative,
                "evaluation": h.evaluation,
                "method": h.method,
                "uniform": heads[i].horner,
                "sizes": list(heads[i].sizes),
            }
            for i, h in enumerate(claim.heads)
        ]
        record = self.source | {
            "kind": self.kind,
            "heads": described,
            "uses": [[u.kind, u.head, u.centre, u.radius] for u in claim.wiring.uses],
            "layers": [[list(group) for group in plan.groups] for plan in self.placed.plans],
            "program": to_program(claim.circuit),
        }
        arrays = self._step_arrays()
        for i, h in enumerate(claim.heads):
            arrays |= h.arrays(heads[i], f"heads.{i}.")
        for i, layer in enumerate(self.layered.sequence):
            arrays |= _map_arrays(f"maps.{i}.", layer.rows)
            arrays[f"layers.{i}.kept"] = layer.kept.detach().cpu().numpy().astype(np.int32)
        return record, arrays | _map_arrays(f"maps.{len(self.layered.layers)}.", self.layered.last)

    def heads(self) -> dict[int, Head]:
        """The heads by their numbers in the claim; those that several groups share must still be one."""
        found: dict[int, HeadModule] = {}
        for group, steps in self.layered.groups:
            if group.head is not None:
                number = self.placed.claim.wiring.uses[steps[0]].head
                if found.setdefault(number, group.head) is not group.head:
                    raise FileError("Two groups of the model no longer share their head; a file holds it once.")
        return {number: module.numbers for number, module in found.items()}

    def _step_arrays(self) -> dict[str, np.ndarray]:
        """With which three numbers every step uses its head."""
        dtype = self.layered.last.weight.detach().cpu().numpy().dtype
        values = np.tile(np.array([[1.0], [0.0], [0.0]], dtype=dtype), (1, len(self.circuit.steps)))
        for group, steps in self.layered.groups:
            numbers = group.numbers()
            if numbers is not None:
                values[:, steps] = numbers.detach().cpu().numpy()
        return {"scales": values[0], "tilts": values[1], "shifts": values[2]}

    def __repr__(self) -> str:
        groups = [group for group, _ in self.layered.groups]
        count, keys = sum(group.count for group in groups), sum(group.count * group.keys for group in groups)
        return f"{counted(len(self.layered.layers), 'layer')}, {counted(count, 'head')}, {counted(keys, 'key')}"


def _map_arrays(prefix: str, affine: TokenWise) -> dict[str, np.ndarray]:
    """An affine map row by row, without its zeros."""
    weight, bias = (v.detach().cpu().numpy() for v in (affine.weight, affine.bias))
    rows, columns = np.nonzero(weight)
    starts = np.searchsorted(rows, np.arange(len(weight) + 1))
    found = {"entries": weight[rows, columns], "columns": columns.astype(np.int32), "starts": starts.astype(np.int32)}
    return {prefix + name: array for name, array in (found | {"bias": bias}).items()}
