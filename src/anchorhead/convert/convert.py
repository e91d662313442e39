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
from torch import Tensor, fx, nn

from anchorhead.compiler.compile import check_tol, compile
from anchorhead.compiler.carrying import carrying_model
from anchorhead.convert.linear import around, row_sum
from anchorhead.convert.placing import put
from anchorhead.convert.report import ConversionReport, Replaced
from anchorhead.convert.sites import Site, find_sites, remaining
from anchorhead.errors import InputError, ToleranceError
from anchorhead.network.activation_head import ActivationHead, GateHead
from anchorhead.network.compiled_head import CompiledHead

Progress = Callable[[str], None]
Range = tuple[float, float]
DEFAULT_RANGE = (-16.0, 16.0)
ROOM = 1.5
"""How much wider than what calibration has seen a range is made."""


def convert(
    module: nn.Module,
    tol: float = 1e-6,
    *,
    ranges: Range | Mapping[str, Range] | None = None,
    calibration: Iterable[Any] | None = None,
    progress: Progress | None = None,
) -> nn.Module:
    """A copy of the module in which every pointwise nonlinearity is softmax attention, with `.report`.

    tol: the error of an activation, half of which its approximation gets.
    ranges: for gated blocks (SwiGLU, GEGLU) and activations without asymptotes, the interval of their arguments: one
        for all, or by the place that the report names. Other activations are proved on all of R, whatever is said here.
    calibration: inputs of the model (tensors, tuples or dictionaries of keyword arguments) on which such intervals are
        measured, and made half as wide again.
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"convert takes a torch module, and got a {type(module).__name__}.")
    tol, report = check_tol(tol), progress or (lambda text: None)
    model: Any = copy.deepcopy(module)
    sites, refused, graphs = find_sites(model)
    found = ConversionReport(tol, refused=list(refused))
    seen = _calibrated(model, sites, graphs, calibration) if calibration is not None else {}
    heads = _Heads(tol, _dtype_of(model), report)
    made: list[tuple[Site, nn.Module]] = []
    for site in sites:
        declared = _range(site, ranges, seen)
        try:
            compiled = heads.gated(site.formula, declared) if site.gated else heads.plain(site.formula, declared)
        except (InputError, ToleranceError) as error:
            found.refused.append((site.place, str(error)))
            continue
        found.replaced.append(_described(model, site, compiled, graphs.get(site.owner)))
        made.append(
            (
                site,
                (GateHead if site.gated else ActivationHead)(compiled.head, site.formula, *found.replaced[-1].domain),
            )
        )
    model = put(model, made, graphs)
    found.remaining = remaining(model)
    model.report = found
    return model


class _Heads:
    """Heads by formula, each compiled once."""

    def __init__(self, tol: float, dtype: torch.dtype, progress: Progress) -> None:
        self.tol, self.dtype, self.progress = tol, dtype, progress
        self.known: dict[tuple[str, Range | None, bool], CompiledHead] = {}

    def plain(self, formula: str, declared: Range | None) -> CompiledHead:
        """On all of R; on the declared interval only where the activation has no asymptotes."""
        try:
            return self._known(formula, None, gated=False)
        except InputError:
            if declared is None:
                raise
        return self._known(formula, declared, gated=False)

    def gated(self, formula: str, declared: Range | None) -> CompiledHead:
        """With constant values, on an interval."""
        return self._known(formula, declared or DEFAULT_RANGE, gated=True)

    def _known(self, formula: str, declared: Range | None, *, gated: bool) -> CompiledHead:
        key = (formula, declared, gated)
        if key not in self.known:
            self.progress(f"{formula}{' times a partner' if gated else ''}: compiling")
            if gated and declared is not None:
                self.known[key] = carrying_model(formula, declared, self.tol / 2, self.dtype)
            else:
                model = compile(formula, declared, tol=self.tol / 2, dtype=self.dtype)
                assert isinstance(model, CompiledHead)
                self.known[key] = model
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


def _described(model: nn.Module, site: Site, head: CompiledHead, graph: fx.Graph | None) -> Replaced:
    certificate = head.certificate
    neurons, linear = around(model, site, graph)
    bound = None if linear is None else row_sum(linear[1]) * certificate.approximation
    return Replaced(
        place=site.place,
        formula=site.formula,
        method=head.method,
        keys=head.head.keys,
        error=certificate.approximation,
        rounding=certificate.rounding,
        domain=certificate.domain[0],
        dtype=certificate.dtype,
        neurons=neurons,
        gated=site.gated,
        feeds=None if linear is None else linear[0],
        output_bound=bound,
    )


def _calibrated(
    model: nn.Module, sites: list[Site], graphs: Mapping[str, fx.Graph], inputs: Iterable[Any]
) -> dict[str, Range]:
    """The intervals that arguments of gated activations take on the inputs, with room on both sides."""
    seen: dict[str, Range] = {}
    hooks = []
    for site in sites:
        if site.kind == "module" and site.name:
            child = model.get_submodule(site.owner).get_submodule(site.name)
            hooks.append(child.register_forward_pre_hook(_watch(seen, site.place)))
    try:
        with torch.no_grad():
            for item in inputs:
                if isinstance(item, Mapping):
                    model(**item)
                elif isinstance(item, tuple | list):
                    model(*item)
                else:
                    model(item)
    finally:
        for hook in hooks:
            hook.remove()
    return {place: _wider(pair) for place, pair in seen.items()}


def _watch(seen: dict[str, Range], place: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor):
            low, high = (float(v) for v in torch.aminmax(args[0].float()))
            before = seen.get(place, (low, high))
            seen[place] = min(low, before[0]), max(high, before[1])

    return hook


def _wider(pair: Range) -> Range:
    reach = ROOM * max(abs(pair[0]), abs(pair[1]), 1e-3)
    return -reach, reach
