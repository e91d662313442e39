"""Entries of the page for the networks of theorems: their heads as functions of the one number that each looks at.

A ramp head looks at u = w·x + t, and has the theorem's bound. A head of `multi_head` is silent where u belongs to
another one, and a head of `universal` tells on which side of an edge a token is: functions that jump, which no head
follows, so that what is claimed of one such head by itself is only how far its values reach.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorhead.compiler.target import read_target
from anchorhead.errors import InputError
from anchorhead.explore.numbers import claim, grid, head_numbers, samples
from anchorhead.head.head import Head
from anchorhead.in_context.universal import Universal
from anchorhead.theorems.construction import Construction
from anchorhead.theorems.grid_network import GridNetwork
from anchorhead.theorems.grid_scores import ramp_head
from anchorhead.theorems.multi_head import MultiHead
from anchorhead.theorems.ramps import Ramps

MOST = 24
"""Heads of a network that the page offers, the first ones."""
MARGIN = 0.25
"""How much of the range is drawn beyond its ends."""


def theorem_entries(model: Construction | Universal) -> list[dict[str, Any]]:
    """The heads of a theorem's network, one entry each."""
    if isinstance(model, Universal):
        return _edges(model)
    if model.edited:
        raise InputError(
            "The network's weights were changed since it was built, so that no function is known that its heads are "
            "for. Explore one as it was built."
        )
    if isinstance(model, MultiHead):
        return _silent_heads(model)
    if isinstance(model, GridNetwork):
        anchors, note = ramp_head(model.ramp_anchors, model.ramp_beta), _grid_note(model)
        ramp = _ramp(model, 0.0, 1.0, anchors.theorem_bound(model.ramp_anchors - 1), note)
        return [ramp | {"name": f"one ramp of layer 1 of {model.theorem}, {ramp['name']},"}]
    if not isinstance(model, Ramps):
        raise InputError(f"The page does not know the heads of a {type(model).__name__}.")
    note = f"The head of {model!r}: every token looks at its own u = w_i·x_i + t_i, and all share the keys."
    return [_ramp(model, model.low, model.high, model.sum_bound, note)]


def _grid_note(model: GridNetwork) -> str:
    return (
        f"One ramp of the first layer of {model!r}: u = (x - edge)/width + 1/2, the same keys for every feature and "
        f"edge. What follows, a look-up of {model.grid.points:,} grid points, is of all coordinates and is not drawn."
    )


def _ramp(model: Construction, low: float, high: float, bound: float, note: str) -> dict[str, Any]:
    margin = MARGIN * (high - low)
    target = read_target(f"clip(u, {low!r}, {high!r})", (low - margin, high + margin))
    (head,) = model.scalar_heads()
    stated = claim((target.low, target.high), "theorem", bound, 0.0, str(model.dtype).removeprefix("torch."))
    return _entry(f"clip(u, {low:g}, {high:g})", head, stated, samples(target), [note])


def _silent_heads(model: MultiHead) -> list[dict[str, Any]]:
    """Each head: u where the nearest of all anchors is its own, and 0 elsewhere."""
    margin = MARGIN * (model.high - model.low)
    u = grid(model.low - margin, model.high + margin)
    nearest = np.rint((np.clip(u, model.low, model.high) - model.low) / model.spacing) - 1
    own = np.clip(nearest, 0, len(model.anchors) - 1) // (model.tokens - 2)
    found = []
    for i, head in enumerate(model.scalar_heads()[:MOST]):
        f = np.where(own == i, np.clip(u, model.low, model.high), 0.0)
        note = f"Head {i + 1} of {model.heads} of {model!r}: the network adds them all, and its bound is of the sum."
        found.append(
            _jumping(f"u among the anchors of head {i + 1}", head, u, f, str(model.dtype), note, model.spacing / 2)
        )
    return found


def _edges(model: Universal) -> list[dict[str, Any]]:
    """The first head, edge by edge: whether a token is beyond it along the path of cells."""
    if len(model.names) > 1:
        raise InputError(
            f"Tokens of this network have the coordinates {', '.join(model.names)}, and the page draws functions of "
            "one number. Explore a network for tokens of one coordinate."
        )
    (low, high), nodes = model.lattice.ranges[0], model.lattice.nodes
    keys, middle = model.cells.read_keys(), float(model.middle)
    slopes, levels = keys.slopes.numpy()[0], keys.levels.numpy()
    z, found = grid(low, high), []
    for j, values in enumerate(keys.constants.numpy().T[:MOST]):
        head = Head.of(slopes=slopes, intercepts=levels - slopes * middle, constants=values, horner=False)
        edge = low + (high - low) * (j + 1) / nodes
        f = np.where((z > edge) == (values[-1] > 0), 1.0, 0.0)
        note = f"What {model!r} asks of a token at edge {j + 1} of {nodes - 1}; a prompt becomes the means of these."
        found.append(_jumping(f"side of {edge:.4g}", head, z, f, str(model.dtype), note, 0.0))
    return found


def _jumping(name: str, head: Head, u: np.ndarray, f: np.ndarray, dtype: str, note: str,
             beyond: float) -> dict[str, Any]:  # fmt: skip
    """An entry of a function that jumps; what is claimed is how far apart its values, which lie at most `beyond` those
    of the keys, and the head's can be."""
    reach = max(0.0, *head.constants) - min(0.0, *head.constants) + beyond
    stated = claim((u[0], u[-1]), "trivial", reach, 0.0, dtype.removeprefix("torch."))
    values = {"window": [u[0], u[-1]], "f": f.tolist(), "close": {"x": [], "f": []}}
    return _entry(name, head, stated, values, [note, "The function jumps, and no head is close to it at the jump."])


def _entry(name: str, head: Head, stated: dict[str, Any], values: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    shown = head_numbers(head, "nearest", stated) | {"saved": True}
    return {"name": name, "variable": "u", "domain": stated["domain"], **values, "heads": [shown], "notes": notes,
            "start": 0}  # fmt: skip
