"""A compiled model as what figures and notebooks show: its function, its error under the bound, who attends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from anchorhead.circuit.names import wire_names
from anchorhead.errors import InputError
from anchorhead.model.core import Core, shaped
from anchorhead.model.kinks import kink_distances
from anchorhead.model.layered_core import LayeredCore
from anchorhead.model.prompt_core import PromptModel, exact_answer
from anchorhead.view import ATTENDED, MOST_WEIGHTS, Array, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from anchorhead.model.compiled import CompiledModel

LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
PROMPT, TRIED = 16, 16
"""Tokens of the prompt that is drawn, and how many prompts of each length are tried."""


def view(model: CompiledModel) -> View:
    """What is drawn of a model."""
    return _of_prompts(model) if isinstance(model, PromptModel) else _of_inputs(model)


def _of_inputs(model: CompiledModel) -> View:
    claim, cost = model.certificate, model.resources
    inputs = lambda x: shaped(torch.tensor(x, dtype=model.network.dtype, device=_device(model)), model.input_shape)

    @torch.no_grad()
    def network(x: Array) -> Array:
        return _flat(model.network(inputs(x)), len(x))

    @torch.no_grad()
    def target(x: Array) -> Array:
        return _flat(model.exact(inputs(x).double()), len(x))

    @torch.no_grad()
    def attention(x: Array) -> list[Array]:
        return [head for layer in model.attention(inputs(x)) for head in _heads(layer, len(x))]

    distances = kink_distances(model.network, claim.domain)

    @torch.no_grad()
    def kinks(x: Array) -> Array:
        return distances(inputs(x).double()).cpu().numpy() if distances else np.zeros((len(x), 0))

    known, layers = claim.level != "unproved", f"{cost.layers} layers, " if cost.layers > 1 else ""
    return View(
        title=claim.expression,
        names=_names(model),
        box=claim.domain,
        network=network,
        target=target if _looked_into(target, len(claim.domain)) else None,
        allowed=(lambda x: claim.bound if claim.relative else claim.allowed(x, None)) if known else None,
        relative=claim.relative,
        level=claim.level,
        label=f"attention, {layers}{cost.keys:,} keys" if cost.keys else "affine map",
        attention=attention if 0 < ATTENDED * cost.keys <= MOST_WEIGHTS else None,
        kinks=None if distances is None else kinks,
        heads=_heads_names(model.network),
    )


def _names(model: CompiledModel) -> Sequence[str]:
    """Of the inputs, as the mechanism has them."""
    core = model.network
    named = core.circuit.inputs if isinstance(core, LayeredCore) else ()
    return model.certificate.variables or named or [f"x{i}" for i in range(len(model.certificate.domain))]


def _heads_names(core: Core) -> list[str]:
    """What the heads that compute write, in the order of `attention`."""
    if not isinstance(core, LayeredCore):
        return []
    names, _ = wire_names(core.circuit)
    return [names[core.circuit.starts[i]] for _, steps in core.layered.groups for i in steps]


def _looked_into(target: Callable[[Array], Array], inputs: int) -> bool:
    """Whether the target can be evaluated."""
    try:
        target(np.ones((1, inputs)))
    except InputError:
        return False
    return True


def _of_prompts(model: PromptModel) -> View:
    """The query, or where there is none the first token, over its box; and the error by the length of the prompt."""
    core, claim = model.network, model.certificate
    own, asked = core.sizes
    low, high = (torch.tensor(ends, dtype=torch.float64) for ends in zip(*claim.domain, strict=True))
    draw = torch.Generator().manual_seed(0)

    def drawn(part: slice, *shape: int) -> Tensor:
        share = torch.rand(*shape, len(low[part]), generator=draw, dtype=torch.float64)
        return (low[part] + share * (high - low)[part]).to(core.dtype)

    rest = drawn(slice(0, own), PROMPT - 1)

    def prompt(x: Array) -> tuple[Tensor, Tensor | None]:
        given = torch.tensor(x, dtype=core.dtype)
        if asked:
            return rest, given
        return torch.cat([given.unsqueeze(-2), rest.expand(len(x), -1, -1)], dim=-2), None

    @torch.no_grad()
    def both(tokens: Tensor, query: Tensor | None) -> tuple[Tensor, Tensor]:
        tokens, query = tokens.to(_device(model)), None if query is None else query.to(_device(model))
        exact = exact_answer(core.circuit, tokens.double(), None if query is None else query.double(), None)
        return core(tokens, query), exact.squeeze(-2) if query is None else exact

    def by_length(axes: Axes) -> None:
        errors = []
        for n in LENGTHS:
            found, exact = both(drawn(slice(0, own), TRIED, n), drawn(slice(own, None), TRIED, 1) if asked else None)
            errors.append(float((found.double() - exact).abs().max()))
        _draw_lengths(axes, errors, claim.bound if claim.level != "unproved" else None, claim.level)

    part = slice(own, None) if asked else slice(0, own)
    return View(
        title=claim.expression,
        names=_names(model)[part],
        box=claim.domain[part],
        network=lambda x: _flat(both(*prompt(x))[0], len(x)),
        target=lambda x: _flat(both(*prompt(x))[1], len(x)),
        allowed=(lambda x: claim.bound) if claim.level != "unproved" else None,
        level=claim.level,
        label=f"attention, {PROMPT - bool(asked)} tokens",
        last=by_length,
    )


def _draw_lengths(axes: Axes, errors: list[float], bound: float | None, level: str) -> None:
    from anchorhead.drawing import ERROR, NETWORK, SMALL, legend

    floor = (bound or max(errors)) * 1e-4 or 1e-18
    axes.loglog(LENGTHS, np.clip(errors, floor, None), "o-", color=ERROR, ms=3, lw=0.9,
                label=f"largest of {TRIED} prompts")  # fmt: skip
    if bound is not None:
        axes.axhline(bound, color=NETWORK, lw=1.1, ls="--", label=f"{level} bound")
    axes.set_ylim(0.6 * floor, 3 * max(*errors, bound or 0.0, floor))
    axes.set_xlabel("tokens of the prompt", fontsize=SMALL)
    axes.set_ylabel("|error|", fontsize=SMALL)
    axes.grid(True, color="0.93", lw=0.6)
    legend(axes)


def _heads(layer: Tensor, points: int) -> list[Array]:
    """Weights (points, ..., heads, keys) one head after the other, (points, keys)."""
    return [head.double().cpu().numpy() for head in layer.reshape(points, -1, layer.shape[-1]).unbind(1)]


def _flat(values: Tensor, points: int) -> Array:
    """Outputs of all points, also of a constant, (points, outputs)."""
    return (values if values.ndim else values.expand(points)).double().cpu().numpy().reshape(points, -1)


def _device(model: CompiledModel) -> torch.device:
    return next(model.parameters()).device
