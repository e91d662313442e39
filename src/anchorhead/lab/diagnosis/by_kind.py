"""The diagnosis of a network on some inputs: what to look at in each kind of model, and what lies outside its domain.

Inputs outside the domain for which a compiled model was proved are set apart first. Where the model errs there by more
than the bound, that is a boundary artefact of its own; everything else is looked for among the inputs inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.compiler.two_layer_route import CompiledTwoLayer
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
from anchorhead.model.compiled_grid import CompiledGrid
from anchorhead.model.compiled_head import CompiledHead
from anchorhead.model.compiled_network import CompiledNetwork
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
    own, check = _reading(model)
    check(x)
    check_inputs(x)
    run_in, scale = read_dtype(dtype, own), read_beta(beta)
    if isinstance(model, CompiledModel):
        findings, error, bound = _compiled(model, x, run_in, scale)
    else:
        findings, error, bound = _look(_sight(model, x, run_in, scale))
    name = str(run_in).removeprefix("torch.")
    return Diagnosis(tuple(findings), error, bound, _count(model, x), name, scale, _against(model))


def _against(model: nn.Module) -> str:
    """What errors are measured against: of sampled functions only what the network itself holds."""
    if isinstance(model, GridNetwork | CompiledTwoLayer):
        return "the values of the cells around each input, not with the function between them"
    if isinstance(model, CompiledGrid) and model.claimed.level != "proved":
        return "its own numbers in float64, since the function cannot be looked into"
    return "the target"


def _reading(model: nn.Module) -> tuple[torch.dtype, Callable[[Tensor], object]]:
    """The model's dtype, and what refuses inputs that it does not take."""
    if isinstance(model, Ramps | GridNetwork):
        return model.dtype, model.check
    if isinstance(model, CompiledHead):
        return model.head.dtype, model.head.check
    if isinstance(model, CompiledNetwork):
        return model.network.last.weight.dtype, model.network.check
    if isinstance(model, CompiledGrid):
        return model.grid.dtype, model.check
    if isinstance(model, CompiledTwoLayer):
        return model.network.dtype, model.scaled
    raise _unknown(model)


def _unknown(model: nn.Module) -> InputError:
    return InputError(
        f"A {type(model).__name__} cannot be diagnosed. What can: networks of ah.theorems (single_head, multi_head, "
        "two_layer, attention_then_softmax), and models that ah.compile or ah.load returns."
    )


def _count(model: nn.Module, x: Tensor) -> int:
    """How many inputs there are: numbers of a head, tokens of a ramp network, points of the others."""
    if isinstance(model, CompiledHead):
        return x.numel()
    if isinstance(model, Ramps):
        return x.numel() // model.features
    if isinstance(model, GridNetwork):
        return x.numel() // (model.grid.tokens * model.grid.features)
    if isinstance(model, CompiledNetwork | CompiledGrid | CompiledTwoLayer):
        return x.numel() // math.prod(model.input_shape)
    raise _unknown(model)


def _sight(model: nn.Module, x: Tensor, dtype: torch.dtype, scale: float) -> Sight:
    if isinstance(model, Ramps):
        return ramp_sight(model, x, dtype, scale)
    if isinstance(model, CompiledHead):
        return head_sight(model, x, dtype, scale)
    if isinstance(model, CompiledGrid):
        return grid_sight(model, x, dtype, scale)
    if isinstance(model, CompiledTwoLayer):
        return lookup_sight(model.network, model.scaled(x), dtype, scale)
    if isinstance(model, GridNetwork):
        return lookup_sight(model, x, dtype, scale)
    raise _unknown(model)


def _compiled(model: CompiledModel, x: Tensor, dtype: torch.dtype, scale: float) -> Seen:
    inside, outside = apart(model, x)
    findings, error, bound = [], 0.0, model.claimed.bound
    if len(outside):
        finding, error = beyond(model, outside, scale)
        findings += [] if finding is None else [finding]
    if len(inside):
        within = (
            network_findings(model, inside, dtype, scale)
            if isinstance(model, CompiledNetwork)
            else _look(_sight(model, inside, dtype, scale))
        )
        findings, error, bound = findings + within[0], _largest(error, within[1]), within[2]
    return findings, error, bound


def _look(sight: Sight) -> Seen:
    run = sight.run(sight.dtype, sight.beta, 1)
    return examine(sight), float(run.error.max()), float(sight.bound.max())


def _largest(a: float, b: float) -> float:
    return b if b != b else max(a, b)
