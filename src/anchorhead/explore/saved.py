"""A saved model as entries of the page: its head beside the gallery's, or the heads of a network one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anchorhead.compiler.load import load
from anchorhead.compiler.target import read_target
from anchorhead.errors import AnchorheadError, InputError
from anchorhead.explore.gallery import Progress, compiled_heads, entry
from anchorhead.explore.numbers import claim, head_numbers, model_numbers
from anchorhead.expression.parse import parse
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.layered_core import LayeredCore

MOST_HEADS = 24
"""Heads of a network that the page offers, the first ones."""


def file_entries(path: Path, progress: Progress | None = None) -> list[dict[str, Any]]:
    """The entries of a saved model."""
    model = load(path)
    if not model.input_shape:
        return [_head_entry(model, progress)]
    if isinstance(model.network, LayeredCore):
        return _network_entries(model, model.network)
    raise InputError(
        f"{path} holds {model.certificate.expression}, sampled over a grid of keys; the page draws heads of one "
        "variable. Explore a model that was compiled from a formula or a traced function instead."
    )


def _head_entry(model: CompiledModel, progress: Progress | None) -> dict[str, Any]:
    """The saved head first, then what the compiler finds for the same function and domain."""
    certificate = model.certificate
    target = read_target(parse(certificate.expression, certificate.variables), certificate.domain[0])
    saved = model_numbers(model) | {"saved": True}
    try:
        others, notes = compiled_heads(target, progress)
    except AnchorheadError as refusal:
        others, notes = [], [f"Only the saved head is shown, since no other could be compiled: {refusal}"]
    return entry(target, [saved, *others], notes, 0)


def _network_entries(model: CompiledModel, core: LayeredCore) -> list[dict[str, Any]]:
    """Each head of the network as a function of its own u."""
    count = len(core.placed.claim.heads)
    if not count:
        raise InputError(
            f"The network of {model.certificate.expression} has no head of its own: it is affine, or all its attention "
            "was in the target. There is nothing to explore."
        )
    notes = [
        f"One of {count} heads of the network that approximates {model.certificate.expression}; what is proved here is "
        "proved of this head, and anchorhead show prints what of it arrives at the network's output."
    ]
    if count > MOST_HEADS:
        notes.append(f"The first {MOST_HEADS} heads are shown.")
    return [_node_entry(model, core, i, notes) for i in range(min(count, MOST_HEADS))]


def _node_entry(model: CompiledModel, core: LayeredCore, index: int, notes: list[str]) -> dict[str, Any]:
    known, wiring = core.placed.claim.heads[index], core.placed.claim.wiring
    target = read_target(parse(str(known.function), ["u"]), (known.low, known.high))
    uses = zip(wiring.uses, model.circuit.steps, strict=True)
    labels = list(dict.fromkeys(step.label for use, step in uses if use.head == index))
    bounds = (model.certificate.level, known.approximation, known.rounding, model.certificate.dtype)
    stated = claim((target.low, target.high), *bounds)
    shown = entry(target, [head_numbers(core.heads()[index], known.method, stated) | {"saved": True}], notes, 0)
    more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
    return shown | {"node": f"{labels[0]}{more}" if labels else ""}
