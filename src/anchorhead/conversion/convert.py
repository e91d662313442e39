"""A pretrained model with attention in the place of every pointwise nonlinearity; the original is not touched.

For each distinct activation one head is compiled and proved for the model's dtype, on all of R where it has asymptotes.
A gated block, phi(u)·v, becomes a head that carries v in its values: those are constants times v, so that u must stay
in a range, which is calibrated, declared, or by default [-16, 16], and is checked when the model runs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import fx, nn

from anchorhead.compiler.compile import compile_formula
from anchorhead.compiler.constant_values import carrying_model
from anchorhead.compiler.method import check_tol
from anchorhead.conversion.calibrate import calibrated
from anchorhead.conversion.linear import around, row_sum
from anchorhead.conversion.place_heads import put
from anchorhead.conversion.report import ConversionReport, Replaced
from anchorhead.conversion.sites import Site, find_sites, remaining
from anchorhead.errors import InputError, ToleranceError
from anchorhead.model.activation import ActivationHead, GateHead
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.outside import check_policy

Progress = Callable[[str], None]
Range = tuple[float, float]
DEFAULT_RANGE = (-16.0, 16.0)


def convert(
    module: nn.Module,
    tol: float = 1e-6,
    *,
    ranges: Range | Mapping[str, Range] | None = None,
    calibration: Iterable[Any] | None = None,
    outside: str = "warn",
    progress: Progress | None = None,
) -> nn.Module:
    """A copy of the module in which every pointwise nonlinearity is softmax attention, with `.report`.

    tol: the error of an activation, half of which its approximation gets.
    ranges: for gated blocks (SwiGLU, GEGLU) and activations without asymptotes, the interval of their arguments: one
        for all, or by the place that the report names. Other activations are proved on all of R, whatever is said here.
    calibration: inputs of the model (tensors, tuples or dictionaries of keyword arguments) on which such intervals are
        measured, and made half as wide again.
    outside: what an argument outside such an interval does when the model is run: "warn", once for each head, "error"
        or "ignore". Every head has `.outside`, which can be changed, and `.outside_count`.
    """
    check_policy(outside)
    if not isinstance(module, nn.Module):
        raise InputError(f"convert takes a torch module, and got a {type(module).__name__}.")
    if any(isinstance(m, ActivationHead | GateHead) for m in module.modules()):
        raise InputError(
            "This model is converted already; convert the original, with the tolerance and ranges you want."
        )
    tol, report = check_tol(tol), progress or (lambda text: None)
    model: Any = copy.deepcopy(module)
    sites, refused, graphs = find_sites(model)
    found = ConversionReport(tol, refused=list(refused))
    _check_ranges(ranges, sites)
    seen = calibrated(model, calibration) if calibration is not None else {}
    heads, made = _Heads(tol, _dtype_of(model), report), []
    for site in sites:
        declared = _range(site, ranges, seen)
        try:
            compiled = heads.at(site, declared)
        except (InputError, ToleranceError) as error:
            found.refused.append((site.place, str(error)))
            continue
        found.replaced.append(_described(model, site, compiled, graphs.get(site.owner)))
        made.append((site, _placed(site, compiled, outside)))
    model = put(model, made, graphs)
    found.remaining = remaining(model)
    model.report = found
    return model


def _placed(site: Site, compiled: CompiledModel, outside: str) -> ActivationHead | GateHead:
    head = (GateHead if site.gated else ActivationHead)(compiled.head, site.formula, *compiled.certificate.domain[0])
    head.outside = outside
    return head


class _Heads:
    """Heads by formula, each compiled once."""

    def __init__(self, tol: float, dtype: torch.dtype, progress: Progress) -> None:
        self.tol, self.dtype, self.progress = tol, dtype, progress
        self.known: dict[tuple[str, Range | None, bool], CompiledModel] = {}

    def at(self, site: Site, declared: Range | None) -> CompiledModel:
        """On all of R, and on the declared interval only where the activation has no asymptotes; if it carries a
        partner with constant values, on an interval."""
        if site.gated:
            return self._known(site.formula, declared or DEFAULT_RANGE, gated=True)
        try:
            return self._known(site.formula, None, gated=False)
        except InputError:
            if declared is None:
                raise
        return self._known(site.formula, declared, gated=False)

    def _known(self, formula: str, declared: Range | None, *, gated: bool) -> CompiledModel:
        key = (formula, declared, gated)
        if key not in self.known:
            self.progress(f"{formula}{' times a partner' if gated else ''}: compiling")
            if gated and declared is not None:
                self.known[key] = carrying_model(formula, declared, self.tol / 2, self.dtype)
            else:
                self.known[key] = compile_formula(formula, declared, tol=self.tol / 2, dtype=self.dtype)
        return self.known[key]


def _dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype of the heads: the model's own, or float32 where that is shorter."""
    found = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return found if found == torch.float64 else torch.float32


def _range(site: Site, ranges: Range | Mapping[str, Range] | None, seen: Mapping[str, Range]) -> Range | None:
    given = ranges.get(site.place) if isinstance(ranges, Mapping) else ranges
    if given is None:
        return seen.get(site.place)
    low, high = (float(e) for e in given)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"The range of {site.place}, {given!r}, must be a pair of finite numbers, the lower first.")
    return low, high


def _check_ranges(ranges: Any, sites: list[Site]) -> None:
    """Refuses what is not a pair or a mapping from places that there are."""
    if ranges is None:
        return
    if isinstance(ranges, Mapping):
        unknown = sorted(set(map(str, ranges)) - {site.place for site in sites})
        if unknown:
            raise InputError(
                f"ranges names {', '.join(unknown[:3])}, which is no activation of this model; there are "
                f"{', '.join(site.place for site in sites[:3])}{' and others' if len(sites) > 3 else ''}."
            )
        pairs = list(ranges.values())
    else:
        pairs = [ranges]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise InputError(f"ranges={ranges!r} must be a pair (low, high), or pairs by place.")


def _described(model: nn.Module, site: Site, head: CompiledModel, graph: fx.Graph | None) -> Replaced:
    certificate = head.certificate
    near = around(model, site, graph)
    bound = max(row_sum(m) for _, m in near.feeds) * certificate.approximation if near.direct and near.feeds else None
    return Replaced(
        place=site.place,
        formula=site.formula,
        method=head.method,
        keys=head.head.keys,
        error=certificate.approximation,
        rounding=certificate.rounding,
        domain=certificate.domain[0],
        dtype=certificate.dtype,
        neurons=near.neurons,
        gated=site.gated,
        feeds=", ".join(path for path, _ in near.feeds) or None,
        output_bound=bound,
    )
