"""Reading a model file without torch: the safetensors layout, checked byte by byte.

A safetensors file is eight bytes of header length, a JSON header with name, dtype, shape and byte range of every
tensor, and the bytes. Nothing in it is code. Whatever does not fit, lengths, ranges, types, numbers that are not
finite, is refused with a sentence. The header's metadata hold one JSON text, `anchorhead`, with the statement, its
certificate and a digest over the text and all tensor bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorhead.errors import FileError

FORMAT = 2
MOST_BYTES = 1 << 28
CODES = {"F64": "d", "F32": "f"}
HORNER_DEPTH = {"float64": 500.0, "float32": 60.0}
"""How far intercepts may lie above those at the ends for exp of the difference to be a coefficient in the dtype."""
NUMBERS = ("slopes", "intercepts", "constants", "gains", "gate_slopes", "gate_levels")
"""The tensors of a head; `edges`, the ends of its boxes, go with them."""
KINDS = ("head", "network", "grid", "two_layer")
"""What a file may hold: one head, a network of heads, one layer over a tensor grid, or the paper's two layers."""


NAME = re.compile(r"([a-z]+\.[0-9]{1,6}\.)?[a-z_]+")


@dataclass(frozen=True)
class ModelFile:
    """What a file holds: the record of the statement and its certificate, and numbers by name with their dtypes."""

    record: dict[str, Any]
    numbers: dict[str, tuple[float, ...]]
    dtypes: dict[str, str]

    def require(self, names: Collection[str]) -> None:
        """Refuses a file that holds other tensors than these."""
        if set(self.numbers) != set(names):
            raise FileError(f"The file does not hold the tensors of its model ({', '.join(sorted(names)[:8])}).")


def digest(record: dict[str, Any], tensors: dict[str, bytes]) -> str:
    """SHA-256 over the record, without its own digest, and every tensor in the order of names."""
    text = json.dumps({k: v for k, v in record.items() if k != "digest"}, sort_keys=True, allow_nan=False)
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        total.update(name.encode() + b"\0" + tensors[name])
    return total.hexdigest()


def read(path: str | os.PathLike[str]) -> ModelFile:
    """Reads and checks a file's form; the proof in it is checked by `checker.py`."""
    data = _bytes(Path(path))
    header, body = _header(data, path)
    record = _record(header, path)
    if record.get("kind") not in KINDS:
        raise FileError(f"{path} holds a model of kind {record.get('kind')!r}, and {', '.join(KINDS)} can be read.")
    names = set(header) - {"__metadata__"}
    if not all(NAME.fullmatch(name) for name in names):
        raise FileError(f"{path} holds tensors that are not those of an anchorhead model.")
    tensors, numbers, dtypes = {}, {}, {}
    for name in sorted(names):
        tensors[name], numbers[name], dtypes[name] = _tensor(name, header[name], body, path)
    if digest(record, tensors) != record.get("digest"):
        raise FileError(
            f"{path} was changed since it was written: its digest does not fit its contents. Compile it again."
        )
    return ModelFile(record, numbers, dtypes)


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise FileError(f"{path} is larger than any model file ({MOST_BYTES >> 20} MiB); it is not one.")
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}.") from error


def _header(data: bytes, path: object) -> tuple[dict[str, Any], bytes]:
    broken = FileError(f"{path} is not a safetensors file, or is cut short; compile the model again, or copy it again.")
    if len(data) < 8:
        raise broken
    (length,) = struct.unpack("<Q", data[:8])
    if length > len(data) - 8:
        raise broken
    try:
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError):
        raise broken from None
    if not isinstance(header, dict):
        raise broken
    return header, data[8 + length :]


def _record(header: dict[str, Any], path: object) -> dict[str, Any]:
    metadata = header.get("__metadata__")
    text = metadata.get("anchorhead") if isinstance(metadata, dict) else None
    try:
        record = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise FileError(f"{path} is not a model that anchorhead saved: its metadata lack the certificate.")
    if record.get("format") != FORMAT:
        raise FileError(
            f"{path} has format {record.get('format')!r} and this version of anchorhead reads {FORMAT}; use the "
            "version that wrote it."
        )
    return record


def _tensor(name: str, entry: Any, body: bytes, path: object) -> tuple[bytes, tuple[float, ...], str]:
    broken = FileError(f"{path}: the tensor {name!r} is damaged; compile the model again, or copy it again.")
    if not isinstance(entry, dict):
        raise broken
    code: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if code not in CODES or not _naturals(shape, 1) or not _naturals(offsets, 2):
        raise broken
    raw = body[offsets[0] : offsets[1]]
    size = struct.calcsize(CODES[code])
    if offsets[1] > len(body) or len(raw) != offsets[1] - offsets[0] or len(raw) != shape[0] * size:
        raise broken
    values = struct.unpack(f"<{shape[0]}{CODES[code]}", raw)
    if not all(math.isfinite(v) for v in values):
        raise FileError(f"{path}: the tensor {name!r} holds a number that is not finite.")
    return raw, values, {"F64": "float64", "F32": "float32"}[code]


def _naturals(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(type(v) is int and v >= 0 for v in value)
