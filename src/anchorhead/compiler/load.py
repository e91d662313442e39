"""A file back to a model: its numbers as they are stored, none derived. Only its form and digest are checked here."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from anchorhead.compiler.two_layer_route import stored_two_layer
from anchorhead.errors import FileError
from anchorhead.expression.graph import Expression
from anchorhead.file.container import ModelFile, read
from anchorhead.file.stored import certificate_of, dtype_of, head_claim, method_of, stored_network
from anchorhead.file.stored_grid import grid_claim, shapes_of
from anchorhead.file.stored_mapped import stored_mapped
from anchorhead.head.evaluation import TORCH
from anchorhead.head.grid_module import GridModule
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.grid_core import GridCore
from anchorhead.model.head_core import HeadCore
from anchorhead.model.layered_core import LayeredCore
from anchorhead.model.mapped_core import MappedCore
from anchorhead.model.outside import check_policy
from anchorhead.model.prompt_core import PromptCore, PromptModel
from anchorhead.proof.certificate import Certificate

MOST_CELLS = 1 << 24


def load_compiled(path: str | os.PathLike[str], *, outside: str = "warn") -> CompiledModel:
    """A saved model that was compiled. The file's form and digest are checked; `ah.verify` checks the proof itself."""
    check_policy(outside)
    return compiled(read(path), path, outside)


def compiled(found: ModelFile, path: str | os.PathLike[str], outside: str, checked: Certificate | None = None
             ) -> CompiledModel:  # fmt: skip
    """The model that a file holds; outside: what an input outside the domain does; checked: what was proved of it."""
    kind = found.record["kind"]
    other = {
        "theorem": "the network of a theorem, not a compiled model; ah.load reads it",
        "program": "a program for an interpreter; read it with ah.Program.load",
        "distance": "the distance of two functions; ah.verify checks and returns it",
    }
    if kind in other:
        raise FileError(f"{path} holds {other[kind]}.")
    model = LOADED[kind](found, checked or certificate_of(found))
    model.outside = outside
    return model


def _head(found: ModelFile, certificate: Certificate) -> CompiledModel:
    claim = head_claim(found)
    certificate = replace(certificate, evaluation=claim.evaluation)
    return CompiledModel(HeadCore(claim), certificate, method_of(found.record))


def _mapped(found: ModelFile, certificate: Certificate) -> CompiledModel:
    claim, row_map = stored_mapped(found)
    target = Expression((claim.function,), (claim.variable,))
    return CompiledModel(MappedCore(claim.head, row_map, target, claim.edges), certificate, claim.method)


def _network(found: ModelFile, certificate: Certificate) -> CompiledModel:
    record, stored = found.record, stored_network(found)
    if len(certificate.outputs) != len(stored.claim.circuit.outputs):
        raise FileError("The file does not claim a bound for each output of its network.")
    names = ("expressions", "variables", "fused", "doubled", "name")
    source: dict[str, Any] = {name: record[name] for name in names if name in record}
    certificate = replace(certificate, evaluation=stored.claim.evaluation)
    if stored.claim.circuit.tokens:
        return PromptModel(PromptCore(stored, source), certificate, method_of(record))
    return CompiledModel(LayeredCore(stored, source), certificate, method_of(record))


def _grid(found: ModelFile, certificate: Certificate) -> CompiledModel:
    claim = grid_claim(found)
    shapes = shapes_of(found.record, claim.head.axes, claim.head.outputs)
    core = GridCore(GridModule.of(claim.head, TORCH[claim.dtype]), claim.expression, *shapes)
    return CompiledModel(core, certificate, method_of(found.record))


def _two_layer(found: ModelFile, certificate: Certificate) -> CompiledModel:
    levels: Any = found.record.get("levels")
    outputs: Any = found.record.get("outputs")
    inputs = len(certificate.domain)
    names = [f"state.{i}.numbers" for i in range(len(found.numbers))]
    found.require(dict.fromkeys(names, dtype_of(found)))
    fits = type(levels) is int and 2 <= levels <= MOST_CELLS and type(outputs) is int and outputs >= 1 and inputs <= 32
    if not fits or levels**inputs * outputs > MOST_CELLS:
        raise FileError("The file's numbers of levels and outputs are not those of a two-layer network.")
    state = [found.numbers[name] for name in names]
    shapes = shapes_of(found.record, inputs, outputs)
    return stored_two_layer(state, levels, outputs, certificate, shapes, TORCH[dtype_of(found)])


LOADED: dict[str, Callable[[ModelFile, Certificate], CompiledModel]] = {
    "head": _head,
    "network": _network,
    "grid": _grid,
    "two_layer": _two_layer,
    "row_map": _mapped,
}
"""How a model of each kind is read."""
