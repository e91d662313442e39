"""The diagnosis of a network on some inputs: what to look at in each kind of model, and what lies outside its domain.

Inputs outside the domain for which a compiled model was proved are set apart first. Where the model errs there by more
than the bound, that is a boundary artefact of its own; everything else is looked for among the inputs inside.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.errors import InputError
from anchorhead.lab.diagnosis.arguments import check_inputs, read_beta, read_dtype
from anchorhead.lab.diagnosis.criteria import examine
from anchorhead.lab.diagnosis.diagnosis import Diagnosis, Finding
from anchorhead.lab.diagnosis.domain import apart, beyond
from anchorhead.lab.diagnosis.grid_sight import grid_sight, lookup_sight
from anchorhead.lab.diagnosis.head_sight import head_sight
from anchorhead.lab.diagnosis.network_findings import network_findings
from anchorhead.lab.diagnosis.ramp_sight import ramp_sight
from anchorhead.lab.diagnosis.sight import Sight
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.core import Core
from anchorhead.model.grid_core import GridCore
from anchorhead.model.head_core import HeadCore
from anchorhead.model.layered_core import LayeredCore
from anchorhead.model.two_layer_core import TwoLayerCore
from anchorhead.theorems.ramps import Ramps
from anchorhead.theorems.two_layer import GridNetwork

Seen = tuple[list[Finding], float, float]
"""Findings, largest error, bound."""


@torch.no_grad()
def diagnose(model: nn.Module, x: Tensor, *, dtype: Any = None, beta: float = 1.0) -> Diagnosis:
    """Recognises the known ways in which softmax attention of anchors fails, on inputs x, and says what to change.

    model: a network of `ah.theorems`, or what `ah.compile` or `ah.load` returns. It is examined as it is, in its
    literal form, edited weights included. x: inputs as the model takes them. dtype: run it in float64, float32,
    bfloat16 or float16 instead, whether or not the model would accept that. beta: multiply all scores by this.
    """
    part: Any = model.network if isinstance(model, CompiledModel) else model
    if not isinstance(part, Ramps | GridNetwork | Core):
        raise _unknown(part)
    part.check(x)
    check_inputs(x)
    run_in, scale = read_dtype(dtype, part.dtype), read_beta(beta)
    if isinstance(model, CompiledModel):
        findings, error, bound = _compiled(model, x, run_in, scale)
    else:
        findings, error, bound = seen(part, model, x, run_in, scale)
    name = str(run_in).removeprefix("torch.")
    return Diagnosis(tuple(findings), error, bound, part.count(x), name, scale, _against(part))


def _against(part: Any) -> str:
    """What errors are measured against: of sampled functions only what the network itself holds."""
    if isinstance(part, GridNetwork | TwoLayerCore):
        return "the values of the cells around each input, not with the function between them"
    if isinstance(part, GridCore) and part.expression is None:
        return "its own numbers in float64, since the function cannot be looked into"
    return "the target"


@singledispatch
def seen(part: Any, model: Any, x: Tensor, dtype: torch.dtype, beta: float) -> Seen:
    """What is found on inputs inside the domain, by what a model computes with; a new kind is registered here."""
    raise _unknown(part)


def _unknown(part: Any) -> InputError:
    return InputError(
        f"A {type(part).__name__} cannot be diagnosed. What can: networks of ah.theorems (single_head, multi_head, "
        "two_layer, attention_then_softmax), and models that ah.compile or ah.load returns."
    )


@seen.register
def _(part: Ramps, model: Ramps, x: Tensor, dtype: torch.dtype, beta: float) -> Seen:
    return _look(ramp_sight(model, x, dtype, beta))


@seen.register
def _(part: GridNetwork, model: GridNetwork, x: Tensor, dtype: torch.dtype, beta: float) -> Seen:
    return _look(lookup_sight(model, x, dtype, beta))


@seen.register
def _(part: HeadCore, model: CompiledModel, x: Tensor, dtype: torch.dtype, beta: float) -> Seen:
    return _look(head_sight(model, part, x, dtype, beta))


@seen.register
def _(part: GridCore, model: CompiledModel, x: Tensor, dtype: torch.dtype, beta: float) -> Seen:
    return _look(grid_sight(model, part, x, dtype, beta))


@seen.register
def _(part: TwoLayerCore, model: CompiledModel, x: Tensor, dtype: torch.dtype, beta: float) -> Seen:
    return _look(lookup_sight(part.network, part.scaled(x), dtype, beta))


@seen.register
def _(part: LayeredCore, model: CompiledModel, x: Tensor, dtype: torch.dtype, beta: float) -> Seen:
    return network_findings(model, part, x, dtype, beta)


def _compiled(model: CompiledModel, x: Tensor, dtype: torch.dtype, scale: float) -> Seen:
    inside, outside = apart(model, x)
    findings, error, bound = [], 0.0, model.claimed.bound
    if len(outside):
        finding, error = beyond(model, outside, scale)
        findings += [] if finding is None else [finding]
    if len(inside):
        within = seen(model.network, model, inside, dtype, scale)
        findings, error, bound = findings + within[0], _largest(error, within[1]), within[2]
    return findings, error, bound


def _look(sight: Sight) -> Seen:
    run = sight.run(sight.dtype, sight.beta, 1)
    return examine(sight), float(run.error.max()), float(sight.bound.max())


def _largest(a: float, b: float) -> float:
    return b if b != b else max(a, b)
