"""A file back to a model. Only its form and digest are checked here; nothing in a file is executed."""

from __future__ import annotations

import os

import torch

from anchorhead.certify.checker import certificate_of, claim_of
from anchorhead.network.compiled import CompiledModel
from anchorhead.network.file import NUMBERS, read
from anchorhead.network.head_attention import HeadAttention

DTYPES = {"float64": torch.float64, "float32": torch.float32}


def load(path: str | os.PathLike[str]) -> CompiledModel:
    """A saved model. The file's form and digest are checked; `ah.verify` checks the proof itself."""
    found = read(path)
    claim, certificate = claim_of(found), certificate_of(found)
    dtype = DTYPES[claim.dtype]
    numbers = {name: torch.tensor(getattr(claim, name), dtype=dtype) for name in NUMBERS}
    head = HeadAttention(**numbers, uniform=claim.uniform, sizes=claim.sizes)
    record = {"variable": claim.variable, "edges": list(found.numbers["edges"])}
    return CompiledModel(head, certificate, str(found.record.get("method", "")), record)
