"""Reading a model file without torch: the safetensors layout, checked byte by byte. docs/format.md describes it.

A safetensors file is eight bytes of header length, a JSON header with name, dtype, shape and byte range of every
tensor, and the bytes. Nothing in it is code. Whatever does not fit, lengths, ranges, overlaps, types, numbers that are
not finite, is refused with a sentence, and so is what is larger than any model needs, before it is unpacked. The
header's metadata hold one JSON text, `anchorhead`, with what is claimed and a digest over the text and all tensors.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from anchorhead.errors import FileError
from anchorhead.file.entries import quoted

FORMAT = 3
MOST_BYTES = 1 << 28
MOST_HEADER = 1 << 25
MOST_DIGITS = 4000
"""Of a whole number in the record."""
CODES = {"F64": ("d", "float64"), "F32": ("f", "float32"), "I32": ("i", "int32")}
KINDS = ("head", "network", "grid", "two_layer", "program", "theorem", "row_map", "distance")
"""What a file may hold: a head, a network of heads, a layer over a tensor grid, the paper's two layers, a program, a
theorem's network, a head under another row map, the distance of two functions."""
NAME = re.compile(r"([a-z]+\.(0|[1-9][0-9]{0,5})\.)?[a-z_]+")


@dataclass(frozen=True)
class ModelFile:
    """What a file holds: the record of what is claimed, and numbers by name with their dtypes."""

    record: dict[str, Any]
    numbers: dict[str, tuple[float, ...]]
    dtypes: dict[str, str]

    def require(self, names: Mapping[str, str]) -> None:
        """Refuses a file that holds other tensors than these, by name, or holds them in another dtype."""
        if set(self.numbers) != set(names):
            raise FileError(f"The file does not hold the tensors of its model ({', '.join(sorted(names)[:8])}).")
        wrong = next((name for name in sorted(names) if self.dtypes[name] != names[name]), None)
        if wrong is not None:
            raise FileError(f"The tensor {wrong!r} in the file is {self.dtypes[wrong]}, and must be {names[wrong]}.")

    def integers(self, name: str) -> tuple[int, ...]:
        """A tensor of whole numbers."""
        return tuple(map(int, self.numbers[name]))


def digest(record: dict[str, Any], tensors: dict[str, bytes]) -> str:
    """SHA-256 over the record, without its own digest, and every tensor in the order of names."""
    text = json.dumps({k: v for k, v in record.items() if k != "digest"}, sort_keys=True, allow_nan=False)
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        total.update(name.encode() + b"\0" + tensors[name])
    return total.hexdigest()


def read(path: str | os.PathLike[str]) -> ModelFile:
    """Reads and checks a file's form; the proof in it is checked by `checker.py`."""
    data = _bytes(path)
    header, body = _header(data, path)
    record = _record(header, path)
    if record.get("kind") not in KINDS:
        raise FileError(
            f"{path} holds a model of kind {quoted(record.get('kind'))}, and {', '.join(KINDS)} can be read."
        )
    names = set(header) - {"__metadata__"}
    if not all(NAME.fullmatch(name) for name in names):
        raise FileError(f"{path} holds tensors that are not those of an anchorhead model.")
    ranges = {name: _range(name, header[name], path) for name in sorted(names)}
    _require_apart(ranges.values(), len(body), path)
    tensors = {name: body[start:end] for name, (_, start, end) in ranges.items()}
    if digest(record, tensors) != record.get("digest"):
        raise FileError(
            f"{path} was changed since it was written: its digest does not fit its contents. Compile it again."
        )
    numbers = {name: _values(name, code, tensors[name], path) for name, (code, _, _) in ranges.items()}
    return ModelFile(record, numbers, {name: CODES[code][1] for name, (code, _, _) in ranges.items()})


def _bytes(path: str | os.PathLike[str]) -> bytes:
    if not isinstance(path, str | os.PathLike):
        raise FileError(
            f"The path of a file is wanted, and a {type(path).__name__} was given; save a model first, "
            'model.save("model.safetensors"), and give that path.'
        )
    try:
        found = Path(path).stat()
        if not stat.S_ISREG(found.st_mode):
            if (Path(path) / "anchorhead.json").is_file():
                raise FileError(
                    f"{path} is the folder of a converted model: its README.md says what was converted, anchorhead "
                    "verify checks its heads, and ah.load_converted loads it."
                )
            raise FileError(f"{path} is not a file of its own; give the path of a saved model.")
        if found.st_size > MOST_BYTES:
            raise FileError(f"{path} is larger than any model file ({MOST_BYTES >> 20} MiB); it is not one.")
        with Path(path).open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except (OSError, ValueError, TypeError) as error:
        raise FileError(f"{path!s:.200} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def parsed(text: bytes | str) -> Any:
    """JSON without what Python adds to it: NaN, infinities, numbers of any length, names that occur twice, and bytes
    that are not UTF-8 or begin with a byte order mark, are refused with a ValueError."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a number")

    def whole(digits: str) -> int:
        if len(digits) > MOST_DIGITS:
            raise ValueError("a number is too long")
        return int(digits)

    def real(digits: str) -> float:
        value = float(digits)
        return value if math.isfinite(value) else refuse(digits[:40])

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name occurs twice")
        return found

    text = text.decode("utf-8") if isinstance(text, bytes) else text
    return json.loads(text, object_pairs_hook=once, parse_constant=refuse, parse_int=whole, parse_float=real)


def _header(data: bytes, path: object) -> tuple[dict[str, Any], bytes]:
    broken = FileError(f"{path} is not a safetensors file, or is cut short; compile the model again, or copy it again.")
    if len(data) < 8:
        raise broken
    (length,) = struct.unpack("<Q", data[:8])
    if length > len(data) - 8 or length > MOST_HEADER:
        raise broken
    try:
        header = parsed(data[8 : 8 + length])
    except (ValueError, RecursionError):
        raise broken from None
    if not isinstance(header, dict):
        raise broken
    return header, data[8 + length :]


def _record(header: dict[str, Any], path: object) -> dict[str, Any]:
    metadata = header.get("__metadata__")
    text = metadata["anchorhead"] if isinstance(metadata, dict) and set(metadata) == {"anchorhead"} else None
    try:
        record = parsed(text.encode()) if isinstance(text, str) else None  # a surrogate by itself is no text
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise FileError(f"{path} is not a model that anchorhead saved: its metadata lack the record of it.")
    if type(record.get("format")) is not int or record["format"] != FORMAT:
        raise FileError(
            f"{path} has format {quoted(record.get('format'))} and this version of anchorhead reads {FORMAT}; use the "
            "version that wrote it, or compile the model again."
        )
    return record


def _range(name: str, entry: Any, path: object) -> tuple[str, int, int]:
    """The dtype's code and the byte range of a tensor, which has one dimension."""
    found: dict[str, Any] = entry if isinstance(entry, dict) else {}
    code: Any = found.get("dtype")
    shape: Any = found.get("shape")
    offsets: Any = found.get("data_offsets")
    fits = isinstance(code, str) and code in CODES and _naturals(shape, 1) and _naturals(offsets, 2)
    if not fits or offsets[1] - offsets[0] != shape[0] * struct.calcsize(CODES[code][0]):
        raise FileError(f"{path}: the tensor {name!r} is damaged; compile the model again, or copy it again.")
    return code, offsets[0], offsets[1]


def _require_apart(ranges: Collection[tuple[str, int, int]], size: int, path: object) -> None:
    """The tensors lie one behind the other and fill the file: no byte is read twice, and none is not read."""
    ordered = sorted((start, end) for _, start, end in ranges)
    ends = [0, *(end for _, end in ordered)]
    if any(start != end for (start, _), end in zip(ordered, ends, strict=False)) or ends[-1] != size:
        raise FileError(f"{path}: its tensors overlap, leave gaps or are cut short; compile or copy it again.")


def _values(name: str, code: str, raw: bytes, path: object) -> tuple[float, ...]:
    letter = CODES[code][0]
    values = struct.unpack(f"<{len(raw) // struct.calcsize(letter)}{letter}", raw)
    if not all(map(math.isfinite, values)):
        raise FileError(f"{path}: the tensor {name!r} holds a number that is not finite.")
    return values


def _naturals(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(type(v) is int and 0 <= v < 1 << 40 for v in value)


def printable(value: Any, most: int = 200) -> bool:
    """Whether a text from a file can be shown to a person: no control characters, no escape sequences, not long."""
    return isinstance(value, str) and len(value) <= most and value.isprintable()
