"""The paper's networks as what figures and notebooks show.

A ramp network is drawn over u = w·x + t, which every token is given: x_i = w_i (u - t_i)/|w_i|². Where it has several
output rows it is their sum that is drawn, the clipped value, under the bound of the sum. A look-up is drawn
over its box, with its bound where it is told how fast the function varies.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from anchorhead.digits import exactly
from anchorhead.errors import AnchorheadError, InputError
from anchorhead.theorems.construction import Construction
from anchorhead.theorems.grid import Modulus
from anchorhead.theorems.own_columns import OwnLookup
from anchorhead.theorems.ramps import Ramps
from anchorhead.theorems.two_layer import GridNetwork
from anchorhead.view import ATTENDED, MOST_WEIGHTS, Array, View

MARGIN = 0.2
"""How far beyond the range of a ramp is drawn, of its width."""
CHUNK = 4_000_000
"""Entries of inputs that are computed at a time."""


def view(network: Construction, lipschitz: float | Modulus | None = None) -> View:
    """What is drawn of a network."""
    if isinstance(network, Ramps):
        if lipschitz is not None:
            raise InputError("This network computes ramps, whose bound needs no Lipschitz constant; leave it out.")
        return _ramps(network)
    if isinstance(network, GridNetwork):
        return _grid(network, lipschitz)
    raise InputError(f"There is no figure of a {type(network).__name__}; compare network(x) with network.exact(x).")


def _ramps(network: Ramps) -> View:
    weights, bias = network.weights.double(), network.bias.double()
    size = weights.square().sum(-1)
    direction = weights / torch.where(size > 0, size, 1.0)[:, None]
    seen = size > 0
    if not seen.any():
        raise InputError("All weights of this network are zero, so that it computes constants and there is no curve.")
    first = int(seen.nonzero()[0, 0])

    def inputs(u: Array) -> Tensor:
        return ((torch.tensor(u, device=bias.device)[:, :, None] - bias[None, :, None]) * direction).to(network.dtype)

    summed = lambda out: out.sum(-1)[:, seen]
    margin = MARGIN * (network.high - network.low)
    try:
        bound: float | None = network.sum_bound
    except AnchorheadError:
        bound = None
    name = f"clip(u, {exactly(network.low)}, {exactly(network.high)})"
    rows = "" if network.output_features == 1 else f"sum of {network.output_features} output rows"
    token = "" if network.tokens == 1 else f"token {first + 1} of {network.tokens}"
    return View(
        title=name,
        names=["u = w·x + t of every token"],
        box=[(network.low - margin, network.high + margin)],
        network=lambda u: _in_parts(lambda x: summed(network(x)), inputs, u, network),
        target=lambda u: np.broadcast_to(u.clip(network.low, network.high), (len(u), int(seen.sum()))),
        allowed=None if bound is None else lambda x: bound,
        label=f"{network.heads} head{'s' * (network.heads > 1)} of {network.keys} keys",
        attention=(lambda u: _weights(network, inputs, u, first)) if _few(network) else None,
        outputs=1,
        condition=f"proved, of the {rows}" if rows else "",
        drawn=",\n".join(part for part in (token, rows) if part) or "value",
    )


def _grid(network: GridNetwork, lipschitz: float | Modulus | None) -> View:
    tokens, features = network.size
    bound = None if lipschitz is None else network.bound_for(lipschitz=lipschitz)
    inputs = lambda x: network.lookup.values.new_tensor(x).unflatten(-1, network.size)
    both = tokens > 1 and features > 1
    names = [f"x{i + 1},{j + 1}" if both else f"x{i + j + 1}" for i in range(tokens) for j in range(features)]
    return View(
        title="f",
        names=names,
        box=[(network.grid.low, network.grid.high)] * network.grid.coordinates,
        network=lambda x: _in_parts(network, inputs, x, network),
        target=None if network.f is None else lambda x: _in_parts(network.exact, inputs, x, network),
        allowed=None if bound is None else lambda x: bound,
        condition="" if lipschitz is None else _condition(lipschitz),
        label=f"{network.grid.levels} levels, {network.resources.keys:,} keys",
        attention=(lambda x: _weights(network, inputs, x, 0)) if _few(network) else None,
        heads=_heads(network, names[:features]),
    )


def _heads(network: GridNetwork, names: list[str]) -> list[str]:
    """What the heads are called: the ramps of the first token, of every grid, feature and edge, and the look-up's."""
    lookup, last = network.lookup, network.layer2
    grids = lookup.grids if isinstance(lookup, OwnLookup) else [network.grid]
    ramps = [f"ramp of {name}, {edge:.3g}" for grid in grids for name in names for edge in grid.edges().tolist()]
    count = 0 if last is None else last.heads
    return ramps + [f"look-up, head {k}" if count > 1 else "look-up" for k in range(count)]


def _condition(lipschitz: float | Modulus) -> str:
    return "if f has that modulus" if callable(lipschitz) else f"if f is Lipschitz with {lipschitz:g}"


def _few(network: Construction) -> bool:
    """Whether the weights of all tokens and heads can be had for a figure."""
    return ATTENDED * network.size[0] * network.resources.keys <= MOST_WEIGHTS


@torch.no_grad()
def _in_parts(function: Callable[[Tensor], Tensor], inputs: Callable[[Array], Tensor], x: Array,
              network: Construction) -> Array:  # fmt: skip
    """Outputs (points, outputs) of a function of sequences, some points at a time."""
    most = max(1, CHUNK // (network.size[0] * network.size[1]))
    parts = [function(inputs(x[k : k + most])) for k in range(0, len(x), most)]
    return torch.cat([part.double().flatten(1) for part in parts]).cpu().numpy()


@torch.no_grad()
def _weights(network: Construction, inputs: Callable[[Array], Tensor], x: Array, token: int) -> list[Array]:
    """Of every head of every layer what the token attends to, (points, keys)."""
    layers = network.attention_weights(inputs(x))
    return [
        head[:, min(token, head.shape[1] - 1)].double().cpu().numpy()
        for layer in layers
        for head in layer.expand(len(x), -1, -1, -1).unbind(1)
    ]
