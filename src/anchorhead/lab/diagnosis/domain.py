"""Inputs outside the domain that a compiled model was proved for: nothing is promised there."""

from __future__ import annotations

import torch
from torch import Tensor

from anchorhead.errors import InputError
from anchorhead.lab.diagnosis.diagnosis import Finding
from anchorhead.lab.diagnosis.recast import recast
from anchorhead.model.compiled import CompiledModel


def apart(model: CompiledModel, x: Tensor) -> tuple[Tensor, Tensor]:
    """The inputs inside the domain, and those outside; an end rounded to the model's dtype is inside."""
    rows = model.network.rows(x)
    low, high = torch.tensor(model.claimed.domain, dtype=torch.float64).T
    low, high = (torch.minimum(low, low.to(x.dtype).double()), torch.maximum(high, high.to(x.dtype).double()))
    flat = rows.double().reshape(len(rows), -1)
    inside = ((flat >= low) & (flat <= high)).all(-1)
    return rows[inside], rows[~inside]


def beyond(model: CompiledModel, x: Tensor, scale: float) -> tuple[Finding | None, float]:
    """A finding where the model errs by more than its bound on inputs outside, and the largest error there."""
    try:
        error = _errors(model, x, scale)
    except InputError:
        return _unknown(model, x), 0.0
    bad = ~(error <= model.claimed.bound)
    largest = float(error.max())
    if not bad.any():
        return None, largest
    name, (low, high), (least, most) = _furthest(model, x)
    evidence = (
        f"{int(bad.sum()):,} of {len(x):,} inputs outside the domain err by more than the bound "
        f"{model.claimed.bound:.3g}, up to {largest:.3g}: {name} is proved on [{low:g}, {high:g}] and reaches from "
        f"{least:.6g} to {most:.6g}."
    )
    advice = (
        f"Compile it on a domain that holds the inputs, {name} from {min(low, least):.6g} to {max(high, most):.6g}, or "
        f"clip {name} to [{low:g}, {high:g}]."
    )
    return Finding("boundary artefacts", "outside the domain", evidence, advice), largest


def _unknown(model: CompiledModel, x: Tensor) -> Finding:
    """The target cannot be looked into, so that there is no error to measure; but nothing is promised either."""
    name, (low, high), (least, most) = _furthest(model, x)
    evidence = (
        f"{len(x):,} inputs lie outside the domain, where nothing is promised and this target cannot be compared with: "
        f"{name} belongs to [{low:g}, {high:g}] and reaches from {least:.6g} to {most:.6g}."
    )
    advice = f"Compile it on a domain that holds the inputs, or clip {name} to [{low:g}, {high:g}]."
    return Finding("boundary artefacts", "outside the domain", evidence, advice)


def _errors(model: CompiledModel, x: Tensor, scale: float) -> Tensor:
    """For every input the largest error of an output, run in float64 with scores times a factor."""
    wide = x.double()
    literal, exact = recast(model.literal(), torch.float64, scale), model.exact(wide)
    return (literal(wide).reshape(len(x), -1) - exact.reshape(len(x), -1)).abs().amax(-1)


def _furthest(model: CompiledModel, x: Tensor) -> tuple[str, tuple[float, float], tuple[float, float]]:
    """The variable that leaves its domain furthest, in widths of it: its name, its domain, and what it reaches."""
    flat, certificate = x.double().reshape(len(x), -1), model.claimed
    reached = list(zip(flat.amin(0).tolist(), flat.amax(0).tolist(), strict=True))
    leaves = [max(low - least, most - high) / (high - low)
              for (low, high), (least, most) in zip(certificate.domain, reached, strict=True)]  # fmt: skip
    k = max(range(len(leaves)), key=lambda i: leaves[i])
    names = certificate.variables
    return names[k] if k < len(names) else f"input {k}", certificate.domain[k], reached[k]
