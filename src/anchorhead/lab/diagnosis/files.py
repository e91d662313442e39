"""The diagnosis of a saved model, on points laid over its domain."""

from __future__ import annotations

import itertools
import os
from typing import Any

import torch
from torch import Tensor

from anchorhead.compiler.load import load
from anchorhead.errors import InputError
from anchorhead.lab.diagnosis.by_kind import diagnose
from anchorhead.lab.diagnosis.diagnosis import Diagnosis
from anchorhead.model.compiled import CompiledModel
from anchorhead.theorems.anchors import check_count

FAR = 8.0
"""How much of an unbounded domain is laid with points."""
MOST = 1_000_000
CORNERS = 6
"""Up to so many variables all corners of the box are among the points."""


def diagnose_file(
    path: str | os.PathLike[str], *, dtype: Any = None, beta: float = 1.0, points: int = 2001
) -> Diagnosis:
    """Diagnoses a saved model on points over its domain: evenly for one variable; for several a seeded sample, the
    diagonal, the middles of the faces and, if there are few variables, the corners. [-8, 8] of an unbounded one."""
    count = check_count(points, "points", 2)
    if count > MOST:
        raise InputError(f"points={count:,} is more than {MOST:,}; a few thousand show what there is to see.")
    model = load(path)
    x = laid(model, count)
    return diagnose(model, x, dtype=dtype, beta=beta)


def laid(model: CompiledModel, points: int) -> Tensor:
    """About that many inputs over the model's domain, in its dtype."""
    pairs = [_part(low, high) for low, high in model.claimed.domain]
    own = next(model.parameters()).dtype
    low, high = torch.tensor(pairs, dtype=torch.float64).T
    if not model.input_shape:
        return torch.linspace(float(low[0]), float(high[0]), points, dtype=torch.float64).to(own)
    m = len(pairs)
    random = torch.rand(points, m, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    diagonal = torch.linspace(0, 1, max(2, points // 4), dtype=torch.float64)[:, None].expand(-1, m)
    faces = torch.full((2 * m, m), 0.5, dtype=torch.float64)
    faces[torch.arange(m), torch.arange(m)], faces[m + torch.arange(m), torch.arange(m)] = 0.0, 1.0
    corners = list(itertools.product((0.0, 1.0), repeat=m)) if m <= CORNERS else [(0.0,) * m, (1.0,) * m]
    share = torch.cat([random, diagonal, faces, torch.tensor(corners, dtype=torch.float64)])
    inputs = torch.minimum(torch.maximum(low + share * (high - low), low), high)
    return inputs.to(own).reshape(len(inputs), *model.input_shape)


def _part(low: float, high: float) -> tuple[float, float]:
    """[-8, 8] of what is unbounded, moved to where the finite end is."""
    first = low if low > -float("inf") else min(-FAR, high - 2 * FAR) if high < FAR else -FAR
    last = high if high < float("inf") else max(FAR, low + 2 * FAR) if low > -FAR else FAR
    return first, last
