"""Underflow or saturation: what a dtype does to a head that float64 holds."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anchorhead.lab.diagnosis.diagnosis import Finding
from anchorhead.lab.diagnosis.sight import Run, Sight
from anchorhead.theorems.precision import DTYPES


def precision(sight: Sight, as_run: Run, plain: Run) -> Finding | None:
    """A finding where outputs are no numbers, or err beyond the bound that the same numbers keep in float64."""
    broken = ~as_run.finite
    lost = broken | ((as_run.error > sight.bound) & (plain.error <= sight.bound))
    if not lost.any():
        return None
    worst = int(torch.where(lost, as_run.error.nan_to_num(nan=math.inf), -1.0).argmax())
    evidence = _broken(sight, broken, worst) if broken.any() else _digits(sight, as_run, plain, worst)
    return Finding("underflow or saturation", sight.where(worst), evidence, _advice(sight, plain))


def _broken(sight: Sight, broken: Tensor, worst: int) -> str:
    top, factor = torch.finfo(sight.dtype).max, sight.beta
    found = f"{int(broken.sum()):,} of {len(broken):,} outputs are NaN or infinite, such as at {sight.place(worst)}"
    if not sight.logits * factor > top:
        return f"{found}: a number on the way there is not finite in {_name(sight.dtype)}."
    scores = f"scores reach {sight.logits:.3g}" + (f" times {factor:.3g}" if factor != 1 else "")
    return f"{found}: {scores} for queries in range, and {_name(sight.dtype)} ends at {top:.3g}."


def _digits(sight: Sight, as_run: Run, plain: Run, worst: int) -> str:
    unit, logits = torch.finfo(sight.dtype).eps / 2, sight.logits * sight.beta
    lead = float((plain.top[worst] / plain.second[worst].clamp_min(1e-300)).log())
    kept, before = len(as_run.leader.unique()), len(plain.leader.unique())
    stuck = f" {kept} keys ever lead where in float64 {before} do." if kept < before else ""
    return (
        f"The error is {float(as_run.error[worst]):.3g} at {sight.place(worst)}, bound {float(sight.bound[worst]):.3g},"
        f" and {float(plain.error[worst]):.3g} in float64: {_name(sight.dtype)} rounds scores of {logits:.3g} by "
        f"{logits * unit:.2g}, where the leading key is ahead by {lead:.2g}, and values by {unit:.2g} of their size."
        f"{stuck}"
    )


def _advice(sight: Sight, plain: Run) -> str:
    """The narrowest wider dtype that was tried and keeps what float64 keeps, and what else helps."""
    if not plain.finite.all():
        if not sight.run(torch.float64, sight.beta * 1e-12, 1).finite.all():
            return "Build, compile or load the model again: not all of its stored numbers are finite."
        limit = torch.finfo(torch.float64).max / max(sight.logits, 1.0)
        return f"Float64 does not hold it either: lower β, to below {limit:.2g} times the built one."
    wider = [d for d in DTYPES if torch.finfo(d).eps < torch.finfo(sight.dtype).eps]
    for dtype in reversed(wider):
        run = plain if dtype == torch.float64 else sight.run(dtype, sight.beta, 1)
        if (
            sight.allows(dtype)
            and run.finite.all()
            and not ((run.error > sight.bound) & (plain.error <= sight.bound)).any()
        ):
            smaller = sight.smaller(sight.dtype)
            return f"Use {_name(dtype)}, which holds it." + (f" {smaller}" if smaller else "")
    return "Build it again: no dtype holds these numbers."


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
