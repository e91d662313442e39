"""A pretrained model with attention in the place of every pointwise nonlinearity; the original is not touched.

For each distinct activation one head is compiled and proved for the model's dtype, on all of R where it has asymptotes.
A gated block, phi(u)·v, becomes a head that carries v in its values: those are constants times v, so that u must stay
in a range, which is calibrated, declared, or by default [-16, 16], and is checked when the model runs. At the end the
converted model runs once: what else in it is nonlinear is listed (`watch.py`), and its outputs are held against the
original's (`trial.py`).
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
from anchorhead.conversion.pretrained import forbid_saving
from anchorhead.conversion.report import ConversionReport, Replaced
from anchorhead.conversion.sites import Site, find_sites
from anchorhead.conversion.trial import try_out
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
    inputs: Any = None,
    accept: bool = False,
    ranges: Range | Mapping[str, Range] | None = None,
    calibration: Iterable[Any] | None = None,
    outside: str = "warn",
    progress: Progress | None = None,
) -> nn.Module:
    """A copy of the module in which every pointwise nonlinearity is softmax attention, with `.report`.

    tol: the error of an activation, half of which its approximation gets. One that cannot be had raises
        `ToleranceError`.
    inputs: an example of what the model takes: a tensor, a tuple of arguments, or a dictionary of keyword arguments.
        Without it one is built from the model's configuration or drawn from its forward's signature and its layers;
        where that fails the report says that the model was not watched. A model that differs from its original on them
        by more than the proved errors explain raises `ConversionError`.
    accept: whether activations for which tol cannot be had are left as they were, or with a larger error, and listed.
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
    measured = None if calibration is None else list(calibration)
    seen = calibrated(model, measured) if measured is not None else {}
    heads, made = _Heads(tol, _dtype_of(model), report), []
    for site in sites:
        compiled = _head_for(site, heads, _range(site, ranges, seen), found, accept=accept)
        if compiled is not None:
            found.replaced.append(described(model, site, compiled, graphs.get(site.owner)))
            made.append((site, placed(site, compiled, outside)))
    model = put(model, made, graphs)
    forbid_saving(model)
    model.report = found
    report("watching it run")
    given = measured[0] if inputs is None and measured else inputs
    try_out(module, model, given, found, lenient=ranges is not None)
    return model


def _head_for(
    site: Site, heads: _Heads, declared: Range | None, report: ConversionReport, *, accept: bool
) -> CompiledModel | None:
    """The head for a site, or None where there is none, with the reason in the report."""
    try:
        return heads.at(site, declared, accept=accept)
    except (InputError, ToleranceError) as error:
        if isinstance(error, ToleranceError) and not accept:
            advice = "accept=True leaves it as it was, or with that error, and lists it."
            refusal = ToleranceError(f"{site.place}: {error} {advice}")
            refusal.best = error.best
            raise refusal from error
        report.refused.append((site.place, str(error)))
        return None


def placed(site: Site, compiled: CompiledModel, outside: str) -> ActivationHead | GateHead:
    """A head for a site, as it stands in the model."""
    head = (GateHead if site.gated else ActivationHead)(compiled.head, site.formula, *compiled.certificate.domain[0])
    head.outside = outside
    head.remember(compiled)
    return head


class _Heads:
    """Heads by formula, each compiled once."""

    def __init__(self, tol: float, dtype: torch.dtype, progress: Progress) -> None:
        self.tol, self.dtype, self.progress = tol, dtype, progress
        self.known: dict[tuple[str, Range | None, bool], CompiledModel] = {}

    def at(self, site: Site, declared: Range | None, *, accept: bool) -> CompiledModel:
        """On all of R, and on the declared interval only where the activation has no asymptotes; if it carries a
        partner with constant values, on an interval, where an error above tol must be accepted."""
        if site.gated:
            found = self._known(site.formula, declared or DEFAULT_RANGE, gated=True)
            best = found.certificate.approximation
            if best > self.tol and not accept:
                error = ToleranceError(f"a head for {site.formula} times a partner reaches {best:.2g} in {self.dtype}.")
                error.best = best
                raise error
            return found
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


def described(model: nn.Module, site: Site, head: CompiledModel, graph: fx.Graph | None) -> Replaced:
    """The report's row of a head at a site, its bound computed from the weights that the model has now."""
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
