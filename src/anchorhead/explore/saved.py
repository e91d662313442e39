"""A saved model as entries of the page: its head beside the gallery's, or the heads of a network one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from anchorhead.compiler.load import load
from anchorhead.compiler.target import Target, read_target
from anchorhead.errors import AnchorheadError, InputError
from anchorhead.explore.gallery import Progress, compiled_heads, entry
from anchorhead.explore.numbers import claim, head_numbers, model_numbers
from anchorhead.expression.parse import parse
from anchorhead.head.head import NUMBERS, Head
from anchorhead.model.compiled_head import CompiledHead
from anchorhead.model.compiled_network import CompiledNetwork

MOST_HEADS = 24
"""Heads of a network that the page offers, the first ones."""


def file_entries(path: Path, progress: Progress | None = None) -> list[dict[str, Any]]:
    """The entries of a saved model."""
    model = load(path)
    if isinstance(model, CompiledHead):
        return [_head_entry(model, progress)]
    if isinstance(model, CompiledNetwork):
        return _network_entries(model)
    raise InputError(
        f"{path} holds {model.certificate.expression}, sampled over a grid of keys; the page draws heads of one "
        "variable. Explore a model that was compiled from a formula or a traced function instead."
    )


def _head_entry(model: CompiledHead, progress: Progress | None) -> dict[str, Any]:
    """The saved head first, then what the compiler finds for the same function and domain."""
    certificate = model.certificate
    target = read_target(parse(certificate.expression, [model.variable]), certificate.domain[0])
    saved = model_numbers(model) | {"saved": True}
    try:
        others, notes = compiled_heads(target, progress)
    except AnchorheadError as refusal:
        others, notes = [], [f"Only the saved head is shown, since no other could be compiled: {refusal}"]
    return entry(target, [saved, *others], notes, 0)


def _network_entries(model: CompiledNetwork) -> list[dict[str, Any]]:
    """Each head of the network as a function of its own u."""
    record, arrays = model.payload()
    count = len(record["heads"])
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
    return [_node_entry(model, record, arrays, i, notes) for i in range(min(count, MOST_HEADS))]


def _node_entry(
    model: CompiledNetwork, record: dict[str, Any], arrays: dict[str, np.ndarray], index: int, notes: list[str]
) -> dict[str, Any]:
    stated = record["heads"][index]
    target: Target = read_target(parse(stated["function"], ["u"]), (stated["low"], stated["high"]))
    uses = zip(record["uses"], model.circuit.steps, strict=True)
    labels = list(dict.fromkeys(step.label for use, step in uses if use[1] == index))
    numbers: dict[str, Any] = {name: arrays[f"heads.{index}.{name}"] for name in NUMBERS}
    head = Head.of(**numbers, horner=stated["uniform"], sizes=stated["sizes"])
    bounds = (model.certificate.level, stated["approximation"], stated["rounding"], model.certificate.dtype)
    saved = head_numbers(head, stated["method"], claim((target.low, target.high), *bounds)) | {"saved": True}
    shown = entry(target, [saved], notes, 0)
    more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
    return shown | {"node": f"{labels[0]}{more}" if labels else ""}
