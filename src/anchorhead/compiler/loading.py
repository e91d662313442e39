"""A file back to a model. Only its form and digest are checked here; nothing in a file is executed."""

from __future__ import annotations

import os

import torch

from anchorhead.certify.stored import certificate_of, head_claim, network_claim
from anchorhead.certify.stored_grid import grid_claim, shapes_of
from anchorhead.compiler.assembling import DTYPES, attention_of, network_model
from anchorhead.compiler.universal import stored_two_layer
from anchorhead.errors import FileError
from anchorhead.network.compiled import CompiledModel
from anchorhead.network.compiled_grid import CompiledGrid
from anchorhead.network.compiled_head import CompiledHead
from anchorhead.network.file import ModelFile, read
from anchorhead.network.grid_attention import GridAttention
from anchorhead.network.outside import check_policy


def load(path: str | os.PathLike[str], *, outside: str = "warn") -> CompiledModel:
    """A saved model. The file's form and digest are checked; `ah.verify` checks the proof itself.

    outside: what an input outside the domain does, "warn", "error" or "ignore", as for `ah.compile`.
    """
    check_policy(outside)
    found = read(path)
    kinds = {"head": _head, "network": _network, "grid": _grid, "two_layer": _two_layer}
    model = kinds[found.record["kind"]](found)
    model.outside = outside
    return model


def _head(found: ModelFile) -> CompiledModel:
    claim = head_claim(found)
    record = {"variable": claim.variable, "edges": list(found.numbers["edges"])}
    return CompiledHead(attention_of(claim, DTYPES[claim.dtype]), certificate_of(found), _method(found), record)


def _network(found: ModelFile) -> CompiledModel:
    record = found.record
    source = {name: record.get(name) for name in ("expressions", "variables", "fused", "program")}
    return network_model(network_claim(found), certificate_of(found), _method(found), source)


def _grid(found: ModelFile) -> CompiledModel:
    claim = grid_claim(found)
    record = {name: found.record.get(name) for name in ("expressions", "variables")}
    grid = GridAttention.of(claim.head, DTYPES[claim.dtype])
    return CompiledGrid(grid, certificate_of(found), _method(found), record, *shapes_of(found.record))


def _two_layer(found: ModelFile) -> CompiledModel:
    certificate, levels = certificate_of(found), found.record.get("levels")
    found.require({"values"})
    values, points = found.numbers["values"], len(certificate.domain)
    if type(levels) is not int or levels < 2 or not values or len(values) % levels**points:
        raise FileError("The values in the file do not fit its number of levels.")
    table = torch.tensor(values, dtype=DTYPES[found.dtypes["values"]])
    return stored_two_layer(table, levels, certificate, *shapes_of(found.record))


def _method(found: ModelFile) -> str:
    return str(found.record.get("method", ""))
