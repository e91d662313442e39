"""The findings of a network of heads: those of the heads that fail first, or of the affine map after the last."""

from __future__ import annotations

import torch
from torch import Tensor

from anchorhead.lab.diagnosis.criteria import examine
from anchorhead.lab.diagnosis.diagnosis import Finding
from anchorhead.lab.diagnosis.network_sight import SLACK, NetworkView
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.layered_core import LayeredCore

MOST = 4
"""Findings of one network: nodes beyond these are counted, not described."""


def network_findings(
    model: CompiledModel, part: LayeredCore, x: Tensor, dtype: torch.dtype, beta: float
) -> tuple[list[Finding], float, float]:
    """Findings, the largest error of an output, and the bound."""
    view = NetworkView(part, x, dtype, beta)
    error, exact = view.run(dtype).outputs, view.exact(dtype)[1]
    allowed = torch.tensor(model.claimed.outputs or (model.claimed.bound,)) + SLACK * (1 + exact.abs())
    found: list[Finding] = []
    if not bool((error <= allowed).all()):
        found = [finding for sight in view.sights() for finding in examine(sight)] or [_last(view, error, allowed)]
    return _merged(found), float(error.max()), model.claimed.bound


def _last(view: NetworkView, error: Tensor, allowed: Tensor) -> Finding:
    """Every head keeps its share and the outputs do not: the affine map that makes them, or its rounding."""
    row, column = divmod(int((error / allowed).nan_to_num(nan=float("inf")).argmax()), error.shape[-1])
    figures = (
        f"The error of output {column} is {float(error[row, column]):.3g}, bound {float(allowed[row, column]):.3g}"
    )
    if view.dtype != torch.float64 and bool((view.run(torch.float64).outputs <= allowed).all()):
        evidence = f"{figures}, which float64 keeps: sums of the heads' outputs lose digits."
        return Finding("underflow or saturation", "the last affine map", evidence, "Use float64, which holds it.")
    evidence = f"{figures}, while every head keeps its share: the last affine map is not the one that was compiled."
    return Finding("interpolation drift", "the last affine map", evidence, "Compile or load the model again.")


def _merged(findings: list[Finding]) -> list[Finding]:
    """One finding for each kind and layer: the first node described, the others counted."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.kind, finding.where.split(",")[0]), []).append(finding)
    merged = []
    for group in groups.values():
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        first = group[0]
        merged.append(Finding(first.kind, first.where + more, first.evidence, first.advice))
    return merged[:MOST]
