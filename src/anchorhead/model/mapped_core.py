"""One head under another row map than softmax: scores, the map's weights, values, as they are written.

It comes from a compiled head (`with_row_map`), whose values were solved for softmax, or from `ah.compile(row_map=)`,
whose values were solved for the map. Where the map has a proof it is of these numbers; otherwise the error is measured.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anchorhead.errors import InputError, StructureError
from anchorhead.expression.graph import Expression
from anchorhead.expression.tensors import evaluate
from anchorhead.head.head import NUMBERS, Head
from anchorhead.head.module import LiteralHead
from anchorhead.head.own_precision import in_own_precision
from anchorhead.model.core import Core
from anchorhead.model.mechanism import Mechanism, single_head
from anchorhead.model.network import Network, Resources
from anchorhead.proof.certificate import Certificate
from anchorhead.proof.curve import Formula
from anchorhead.proof.mapped import prove_mapped
from anchorhead.row_maps import RowMap

SAMPLES = 20_001
"""Where an error is measured that is not proved."""


class MappedCore(Core):
    """A head, its row map, its target, and the boxes of the proof if there is one."""

    kind = "row_map"
    input_shape = output_shape = ()

    def __init__(self, head: Head, row_map: RowMap, target: Expression, edges: tuple[float, ...] = ()) -> None:
        super().__init__()
        self.head, self.row_map, self.target, self.edges = LiteralHead(head), row_map, target, edges
        self.sizes = head.sizes

    @property
    def dtype(self) -> torch.dtype:
        return self.head.dtype

    @property
    def numbers(self) -> Head:
        """The numbers as they are now."""
        found = {name: getattr(self.head, name).detach().cpu() for name in NUMBERS}
        return Head.of(**found, horner=False, sizes=self.sizes, dtype=str(self.dtype).removeprefix("torch."))

    @in_own_precision
    def weights(self, x: Tensor) -> Tensor:
        """The map's weights, (..., keys)."""
        return self.row_map.weights(self.head.scores(x))

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        values = x.unsqueeze(-1) * self.head.gains + self.head.constants
        return (self.weights(x) * values).sum(-1)

    def exact(self, x: Tensor) -> Tensor:
        return evaluate(self.target.outputs[0], {self.target.variables[0]: x})

    def literal(self) -> nn.Module:
        return self

    def attention(self, x: Tensor) -> list[Tensor]:
        """(*x.shape, 1, keys); what they sum to is the map's affair."""
        self.check(x)
        return [self.weights(x).unsqueeze(-2)]

    def on_sequences(self, tokens: int) -> Network:
        raise StructureError(
            f"This head has the row map {self.row_map.name} in place of softmax, so that it is no softmax attention; "
            "compile it without row_map."
        )

    def mechanism(self, certificate: Certificate) -> Mechanism:
        found = single_head(self.target.outputs[0], self.target.variables[0], self.head.keys, certificate)
        words = f"{found.heads[0].words}, with weights by the row map {self.row_map.name}"
        return replace(found, heads=(replace(found.heads[0], words=words),))

    def resources(self, certificate: Certificate) -> Resources:
        ends = certificate.domain[0]
        return Resources(1, 1, self.head.keys, self.parameter_count(), self.numbers.beta,
                         self.numbers.logit_range(*ends))  # fmt: skip

    @property
    def largest_value(self) -> float:
        return self.numbers.largest_value

    def payload(self, certificate: Certificate) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        head = self.numbers
        record = {"kind": self.kind, "expressions": [str(self.target)], "variables": list(self.target.variables),
                  "uniform": False, "sizes": list(head.sizes), "row_map": self.row_map.record()}  # fmt: skip
        arrays = {name: array.astype(head.dtype) for name, array in head.arrays.items()}
        return record, arrays | {"edges": np.array(self.edges, dtype=np.float64)}

    def __repr__(self) -> str:
        return f"{self.row_map!r}, {self.head.keys} keys"


def mapped(head: Head, row_map: RowMap, target: Expression, domain: tuple[float, float]
           ) -> tuple[MappedCore, Certificate]:  # fmt: skip
    """A head under a map, and what is proved or measured of it on a bounded domain."""
    if not isinstance(row_map, RowMap):
        raise InputError(f"row_map={row_map!r:.60} must be one of ah.row_maps, such as ah.row_maps.Sigmoid().")
    if not all(map(np.isfinite, domain)):
        raise InputError("A head under another row map is looked at on a bounded domain; compile it on one.")
    said = Certificate(str(target), (domain,), head.dtype, "measured", 0.0, 0.0, 0, (), variables=target.variables)
    curve = row_map.curve(head)
    if curve is None:
        core = MappedCore(head, row_map, target)
        reason = f"measured at {SAMPLES} points: {row_map.reason}"
        return core, Certificate(**{**vars(said), "approximation": measured(core, domain), "assumptions": (reason,)})
    found = prove_mapped(curve, Formula(target.outputs[0], target.variables[0]), curve.rounding, *domain)
    proved = {"level": "proved", "approximation": found.approximation, "rounding": found.rounding,
              "boxes": len(found.edges) - 1, "assumptions": row_map.assumptions}  # fmt: skip
    return MappedCore(head, row_map, target, found.edges), Certificate(**{**vars(said), **proved})


def measured(core: MappedCore, domain: tuple[float, float]) -> float:
    """The largest error at evenly spaced points."""
    x = torch.linspace(*domain, SAMPLES, dtype=core.dtype)
    return float((core(x) - core.exact(x)).abs().max())
