"""The diagnosis of a network on some inputs, or of a saved model on points laid over its domain.

Inputs outside the domain for which a compiled model was proved are set apart first. Where the model errs there by more
than the bound, that is a boundary artefact of its own; everything else is looked for among the inputs inside.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.digits import Up
from anchorhead.errors import FileError, InputError, PrecisionError
from anchorhead.expression.domain import window
from anchorhead.in_context.load import load
from anchorhead.lab.diagnosis.compiled import ExaminedGrid, ExaminedHead
from anchorhead.lab.diagnosis.criteria import examine
from anchorhead.lab.diagnosis.examined import Examined, altered
from anchorhead.lab.diagnosis.findings import Diagnosis, Finding
from anchorhead.lab.diagnosis.lookups import ExaminedLookup, ExaminedTwoLayer
from anchorhead.lab.diagnosis.network import ExaminedNetwork
from anchorhead.lab.diagnosis.theorems import ExaminedRamps
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.grid_core import GridCore
from anchorhead.model.head_core import HeadCore
from anchorhead.model.layered_core import LayeredCore
from anchorhead.model.two_layer_core import TwoLayerCore
from anchorhead.theorems.anchors import check_count
from anchorhead.theorems.grid_network import ADVICE, GridNetwork
from anchorhead.theorems.precision import DTYPES
from anchorhead.theorems.ramps import Ramps

FAR = 8.0
"""How much of an unbounded domain is laid with points."""
MOST = 1_000_000
CORNERS = 6
"""Up to so many variables all corners of the box are among the points."""
NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
KNOWN: dict[type[nn.Module], Any] = {
    Ramps: ExaminedRamps,
    GridNetwork: ExaminedLookup,
    HeadCore: ExaminedHead,
    GridCore: ExaminedGrid,
    TwoLayerCore: ExaminedTwoLayer,
    LayeredCore: ExaminedNetwork,
}
"""By what a model computes with, how it is examined; a new kind is a line here."""


@torch.no_grad()
def diagnose(model: nn.Module, x: Tensor, *, dtype: Any = None, score_factor: float = 1.0) -> Diagnosis:
    """Recognises the known ways in which softmax attention of anchors fails, on inputs x, and says what to change.

    model: a network of `ah.theorems`, or what `ah.compile` or `ah.load` returns. It is examined as it is, in its
    literal form, edited weights included. x: inputs as the model takes them. dtype: run it in float64, float32,
    bfloat16 or float16 instead, whether or not the model would accept that. score_factor: multiply all scores by this.

    >>> model = ah.compile("exp(x)", (-1, 1))
    >>> ah.diagnose(model, torch.tensor([1.0, 1.5], dtype=torch.float64)).findings[0].kind
    'boundary artefacts'
    """
    part: Any = model.network if isinstance(model, CompiledModel) else model
    kind = next((found for known, found in KNOWN.items() if isinstance(part, known)), None)
    if kind is None:
        raise InputError(
            f"A {type(part).__name__} cannot be diagnosed. What can: networks of ah.theorems (single_head, multi_head, "
            "two_layer, attention_then_softmax), and models that ah.compile or ah.load returns."
        )
    part.check(x)
    _check_inputs(x)
    run_in, scale = _read_dtype(dtype, part.dtype), _read_factor(score_factor)
    findings: list[Finding] = []
    error, bound, inside, edited = 0.0, math.nan, x, getattr(part, "edited", False)
    if isinstance(model, CompiledModel):
        edited, bound = model.certificate.level == "unproved", model.claimed.bound
        inside, outside = _apart(model, x)
        if len(outside):
            findings, error = _beyond(model, outside, scale)
    elif isinstance(model, GridNetwork):
        flat, cell = x.reshape(-1, *model.size), model.grid.cell
        held = ((flat >= model.grid.low - cell) & (flat <= model.grid.high + cell)).flatten(1).all(-1)
        inside = flat[held]
        if not held.all():
            findings, error = _beyond_box(model, flat[~held], scale)
    if len(inside):
        within, worst, bound = _seen(kind(model, inside, run_in, scale))
        findings, error = findings + within, worst if math.isnan(worst) else max(error, worst)
    name = str(run_in).removeprefix("torch.")
    return Diagnosis(tuple(findings), error, bound, part.count(x), name, scale, kind.against(part), edited)


def diagnose_file(
    path: str | os.PathLike[str], *, dtype: Any = None, score_factor: float = 1.0, points: int = 2001
) -> Diagnosis:
    """Diagnoses a saved model on points over its domain, [-8, 8] of an unbounded one, or over the box of a look-up:
    evenly for one variable; for several a seeded sample, the diagonal, the middles of the faces and, if there are few
    variables, the corners."""
    count = check_count(points, "points", 2)
    if count > MOST:
        raise InputError(f"points={count:,} is more than {MOST:,}; a few thousand show what there is to see.")
    model = load(path)
    if not isinstance(model, CompiledModel | GridNetwork):
        raise FileError(
            f"{path} holds the network of a theorem that states no inputs to look at. Diagnose it on inputs of yours: "
            "ah.diagnose(ah.load(file), x)."
        )
    return diagnose(model, laid(model, count), dtype=dtype, score_factor=score_factor)


def laid(model: CompiledModel | GridNetwork, points: int) -> Tensor:
    """About that many inputs over the model's domain, or over its box, in its dtype."""
    if isinstance(model, GridNetwork):
        box = [(model.grid.low, model.grid.high)] * model.grid.coordinates
        return over(box, points, model.dtype, model.size)
    pairs = [window(low, high, FAR) for low, high in model.claimed.domain]
    return over(pairs, points, next(model.parameters()).dtype, model.input_shape)


def over(pairs: Sequence[tuple[float, float]], points: int, own: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """About that many inputs of a shape over a box."""
    low, high = torch.tensor(pairs, dtype=torch.float64).T
    if not shape:
        return torch.linspace(float(low[0]), float(high[0]), points, dtype=torch.float64).to(own)
    m = len(pairs)
    random = torch.rand(points, m, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    diagonal = torch.linspace(0, 1, max(2, points // 4), dtype=torch.float64)[:, None].expand(-1, m)
    faces = torch.full((2 * m, m), 0.5, dtype=torch.float64)
    faces[torch.arange(m), torch.arange(m)], faces[m + torch.arange(m), torch.arange(m)] = 0.0, 1.0
    corners = list(itertools.product((0.0, 1.0), repeat=m)) if m <= CORNERS else [(0.0,) * m, (1.0,) * m]
    share = torch.cat([random, diagonal, faces, torch.tensor(corners, dtype=torch.float64)])
    inputs = torch.minimum(torch.maximum(low + share * (high - low), low), high)
    return inputs.to(own).reshape(len(inputs), *shape)


def _seen(examined: Examined | ExaminedNetwork) -> tuple[list[Finding], float, float]:
    """Findings, largest error, bound."""
    if isinstance(examined, ExaminedNetwork):
        return examined.findings()
    return examine(examined), float(examined.as_run.error.max()), examined.promised()


def _check_inputs(x: Tensor) -> None:
    """Refuses no inputs, and inputs that are not numbers; shape and dtype are the model's to check."""
    if not x.numel():
        raise InputError(f"x is empty, {tuple(x.shape)}; a diagnosis needs at least one input to look at.")
    if not x.isfinite().all():
        count = int((~x.isfinite()).sum())
        raise InputError(
            f"x holds {count} value{'s' * (count > 1)} that {'are' if count > 1 else 'is'} NaN or infinite; a network "
            "cannot be blamed for those. Remove them first."
        )


def _read_dtype(dtype: Any, own: torch.dtype) -> torch.dtype:
    """The dtype to run in, that of the model unless given; a torch dtype or its name."""
    found = own if dtype is None else NAMES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or found not in DTYPES:
        raise PrecisionError(f"dtype={dtype!r} must be one of {', '.join(NAMES)}: a network runs in those.")
    return found


def _read_factor(score_factor: Any) -> float:
    """The factor for all scores, positive and finite."""
    number = isinstance(score_factor, int | float) and not isinstance(score_factor, bool)
    if not (number and math.isfinite(score_factor) and score_factor > 0):
        raise InputError(
            f"score_factor={score_factor!r} must be a positive finite number: all scores are multiplied by it, and 1 "
            "leaves them as they are."
        )
    return float(score_factor)


def _apart(model: CompiledModel, x: Tensor) -> tuple[Tensor, Tensor]:
    """The inputs inside the domain, and those outside; an end rounded to the model's dtype is inside."""
    rows = model.network.rows(x)
    low, high = torch.tensor(model.claimed.domain, dtype=torch.float64).T
    low, high = (torch.minimum(low, low.to(x.dtype).double()), torch.maximum(high, high.to(x.dtype).double()))
    flat = rows.double().reshape(len(rows), -1)
    inside = ((flat >= low) & (flat <= high)).all(-1)
    return rows[inside], rows[~inside]


def _beyond(model: CompiledModel, x: Tensor, scale: float) -> tuple[list[Finding], float]:
    """A finding where the model errs by more than its bound on inputs outside, or where the target cannot be looked
    into, since nothing is promised either; and the largest error there."""
    name, (low, high), (least, most) = _furthest(model, x)
    reaches = f"[{low:g}, {high:g}] and reaches from {least:.6g} to {most:.6g}."
    try:
        error = _errors(model, x, scale)
    except InputError:
        largest, holds = 0.0, ""
        evidence = (
            f"{len(x):,} inputs lie outside the domain, where nothing is promised and this target cannot be compared "
            f"with: {name} belongs to {reaches}"
        )
    else:
        exact = model.exact(x.double()).abs().reshape(len(x), -1).amax(-1) if model.claimed.relative else 1.0
        bad, largest = ~(error <= model.claimed.bound * exact), float(error.max())
        if not bad.any():
            return [], largest
        holds = f", {name} from {min(low, least):.6g} to {max(high, most):.6g}"
        evidence = (
            f"{int(bad.sum()):,} of {len(x):,} inputs outside the domain err by more than the bound "
            f"{Up(model.claimed.bound):.3g}, up to {largest:.3g}: {name} is proved on {reaches}"
        )
    advice = f"Compile it on a domain that holds the inputs{holds}, or clip {name} to [{low:g}, {high:g}]."
    return [Finding("boundary artefacts", "outside the domain", evidence, advice)], largest


def _beyond_box(model: GridNetwork, x: Tensor, scale: float) -> tuple[list[Finding], float]:
    """A finding on inputs further than a cell outside the box of a look-up, where it gives what it has for the nearest
    point in it; and the largest error there, where f is known."""
    error = 0.0
    evidence = (
        f"{len(x):,} inputs lie further than a cell outside the box [{model.grid.low:g}, {model.grid.high:g}], where "
        f"nothing is proved: entries reach from {float(x.min()):.6g} to {float(x.max()):.6g}"
    )
    if model.f is not None:
        made: Tensor = altered(model.literal(), torch.float64, scale)(x.double())
        error = float((made - model.exact(x)).abs().max())
        evidence += f", and the network errs by up to {error:.3g} there"
    return [Finding("boundary artefacts", "outside the box", evidence, f"{ADVICE}, or clip them to it.")], error


def _errors(model: CompiledModel, x: Tensor, scale: float) -> Tensor:
    """For every input the largest error of an output, run in float64 with scores times a factor."""
    wide = x.double()
    literal, exact = altered(model.literal(), torch.float64, scale), model.exact(wide)
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
