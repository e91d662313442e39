"""A file back to a model. Only its form and digest are checked here; nothing in a file is executed."""

from __future__ import annotations

import os

from anchorhead.certify.stored import certificate_of, head_claim, network_claim
from anchorhead.compiler.assembling import DTYPES, attention_of, network_model
from anchorhead.errors import FileError
from anchorhead.network.compiled import CompiledModel
from anchorhead.network.compiled_head import CompiledHead
from anchorhead.network.file import ModelFile, read


def load(path: str | os.PathLike[str]) -> CompiledModel:
    """A saved model. The file's form and digest are checked; `ah.verify` checks the proof itself."""
    found = read(path)
    kinds = {"head": _head, "network": _network}
    make = kinds.get(found.record["kind"])
    if make is None:
        raise FileError(f"{path} holds a model of kind {found.record['kind']!r}, which cannot be loaded.")
    return make(found)


def _head(found: ModelFile) -> CompiledModel:
    claim = head_claim(found)
    record = {"variable": claim.variable, "edges": list(found.numbers["edges"])}
    return CompiledHead(attention_of(claim, DTYPES[claim.dtype]), certificate_of(found), _method(found), record)


def _network(found: ModelFile) -> CompiledModel:
    record = found.record
    source = {name: record.get(name) for name in ("expressions", "variables", "fused", "program")}
    return network_model(network_claim(found), certificate_of(found), _method(found), source)


def _method(found: ModelFile) -> str:
    return str(found.record.get("method", ""))
