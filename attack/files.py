"""Files as an attacker writes them: read and written by own code, every field and tensor mutated, digests made to fit.

A file is eight bytes of length, a JSON header with name, dtype, shape and byte range of every tensor, and the bytes;
the header's metadata hold the record as JSON text (docs/format.md). `read`, `digest` and `write` know that much.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

STATED = ("expressions", "variables", "domain", "dtype", "name", "source", "method", "uses", "layers", "program")
MARK = "INJECTED"
TYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "BF16": "<u2", "U8": "<u1", "BOOL": "?"}
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3, 1e-300, 5e-324, -0.0, 1e300, 2.0**1023, 10**400, float("nan"), float("inf"), 2**63,
    "", "x", "inf", f"\x1b[2K\r{MARK}", f"[/bold]{MARK}", f"sin(x) # {MARK}", "1e1000000000", "=1/0", "nan", "9" * 5000,
    [], {}, [[]], [None], ["x", "y"], [1e-300], [-1, 1], "sin(x)", "0", "float32", "float64", "proved", "measured",
    "\ud800", "\u202e",
)  # fmt: skip


KINDS_OF_VALUES: tuple[Any, ...] = ([0], [], [[0]], [{}], {}, {"a": 1}, None, True, -1, 0.5, 10**400, "x")


@dataclass
class Parts:
    """A file taken apart: its record, and code, shape and bytes of every tensor."""

    record: dict[str, Any]
    tensors: dict[str, tuple[str, list[int], bytes]]

    def values(self, name: str) -> np.ndarray:
        code, _, raw = self.tensors[name]
        return np.frombuffer(raw, TYPES[code]).copy()

    def put(self, name: str, values: np.ndarray) -> None:
        code, shape, _ = self.tensors[name]
        values = values.astype(TYPES[code])
        self.tensors[name] = (code, shape if values.size == np.prod(shape) else [values.size], values.tobytes())

    def edges(self) -> list[float]:
        """The ends of the boxes of a head's proof."""
        return [float(v) for name in self.tensors if name == "edges" for v in self.values(name)]


def read(data: bytes) -> Parts:
    """A file taken apart, trusting it."""
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    record = json.loads(header.pop("__metadata__")["anchorhead"])
    return Parts(record, {k: (v["dtype"], v["shape"], body[slice(*v["data_offsets"])]) for k, v in header.items()})


def digest(parts: Parts) -> str:
    """The digest of the record and the tensors, as docs/format.md has it."""
    text = json.dumps({k: v for k, v in parts.record.items() if k != "digest"}, sort_keys=True)
    total = hashlib.sha256(text.encode())
    for name in sorted(parts.tensors):
        total.update(name.encode() + b"\0" + parts.tensors[name][2])
    return total.hexdigest()


def write(parts: Parts, bend: Callable[[dict[str, Any]], Any] | None = None) -> bytes:
    """A file with a digest that fits; `bend` may change the header before it is written."""
    header: dict[str, Any] = {}
    body = b""
    for name, (code, shape, raw) in parts.tensors.items():
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    record = json.dumps(parts.record | {"digest": digest(parts)}, sort_keys=True)
    header["__metadata__"] = {"anchorhead": record}
    if bend is not None:
        bend(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in nested data, itself first."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from paths(part, (*at, key))


def _set(record: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        record = record[key]
    record[path[-1]] = value


def _get(record: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        record = record[key]
    return record


def _bend_value(rng: random.Random, value: Any) -> Any:
    """A value that looks like the old one and is not."""
    if isinstance(value, bool) or value is None or rng.random() < 0.35:
        return rng.choice(VALUES)
    if isinstance(value, int | float):
        return rng.choice((value * 2, value / 2, -value, value + 1, value * (1 + 1e-9), 0, float(value), str(value)))
    if isinstance(value, str):
        bent = f"{value}{MARK}; {value} + 0.001; 2*({value}); \x1b[31m{value}; {value.replace('x', 'y')}; {value[:-1]}"
        return rng.choice(bent.split("; "))
    if isinstance(value, list):
        return rng.choice((value[::-1], value + value, value[:-1], value[1:], [*value, rng.choice(VALUES)]))
    return {**value, rng.choice(("extra", "level", MARK)): rng.choice(VALUES)}


def field(rng: random.Random, parts: Parts) -> str:
    """One entry of the record."""
    path = rng.choice([p for p in paths(parts.record) if p and p[0] not in ("digest", "versions")])
    value = _bend_value(rng, _get(parts.record, path))
    if rng.random() < 0.1:
        del _get(parts.record, path[:-1])[path[-1]]
        return f"without {path}"
    _set(parts.record, path, value)
    return f"{path} = {str(value)[:60]!r}"


def other_kinds(parts: Parts) -> Iterator[tuple[str, Parts]]:
    """Every entry of the record, replaced by a value of every kind that JSON has, and left out."""
    for path in paths(parts.record):
        if not path or path[0] in ("digest", "versions"):
            continue
        for value in (*KINDS_OF_VALUES, MARK):
            bent = Parts(copy.deepcopy(parts.record), parts.tensors)
            if value == MARK:
                del _get(bent.record, path[:-1])[path[-1]]
            else:
                _set(bent.record, path, copy.deepcopy(value))
            yield (f"without {path}" if value == MARK else f"{path} = {value!r:.60}"), bent


def agreed(rng: random.Random, parts: Parts) -> str:
    """One part of the statement or the claim, something else of the same kind."""
    certificate = parts.record.get("certificate")
    if not isinstance(certificate, dict):
        return field(rng, parts)
    parts_of = {
        **{name: parts.record for name in STATED if name in parts.record},
        **dict.fromkeys(certificate, certificate),
    }
    name = rng.choice(list(parts_of))
    value = _bend_value(rng, parts_of[name][name])
    if name == "domain" and rng.random() < 0.7:
        value = _other_domain(rng, parts.record["domain"]) or value
    if name in ("expressions", "variables") and isinstance(parts.record[name], list) and rng.random() < 0.7:
        value = [str(_bend_value(rng, str(text))) for text in parts.record[name]]
    parts_of[name][name] = value
    return f"{name} = {str(value)[:80]!r}"


def _other_domain(rng: random.Random, domain: Any) -> Any:
    """The domain with one end moved, or None if it is none any more."""
    value = copy.deepcopy(domain)
    try:
        pair, place = rng.choice(value), rng.randrange(2)
        end = max(-1e300, min(1e300, float(pair[place])))
        pair[place] = rng.choice((end * 1.5, end * 0.5, end + 1, end - 1, "inf", "-inf", end))
    except (TypeError, ValueError, IndexError, OverflowError, KeyError):
        return None
    return value


def claim(parts: Parts, factor: float) -> None:
    """Multiplies everything that is claimed, of heads too."""
    for path in [path for path in paths(parts.record) if path and "program" not in path]:
        value = _get(parts.record, path)
        if isinstance(value, float) and (path[-1] in ("approximation", "rounding") or path[-2:-1] == ("outputs",)):
            _set(parts.record, path, value * factor)


def claims(rng: random.Random, parts: Parts) -> str:
    """All claims together, larger or smaller."""
    factor = rng.choice((0.5, 0.9, 0.999, 1 - 1e-12, 2.0, 1e3, 0.0))
    claim(parts, factor)
    return f"claims times {factor}"


def _at(values: np.ndarray, place: int, value: Any) -> np.ndarray:
    out = values.copy()
    out[place : place + 1] = value
    return out


NUMBERS: dict[str, Callable[[np.ndarray, int, random.Random], np.ndarray]] = {
    "an ulp": lambda v, i, rng: _at(v, i, np.nextafter(v[i : i + 1], np.inf).astype(v.dtype)),
    "a value": lambda v, i, rng: _at(v, i, v[i : i + 1] * rng.choice((2, 1.001, 1.000001, 0))),
    "scaled": lambda v, i, rng: v * rng.choice((0.5, 1.001, 1 + 1e-7, 1e10, -1)),
    "shifted": lambda v, i, rng: v + rng.choice((1, 100, 1e-6, 1e14)),
    "permuted": lambda v, i, rng: np.array(rng.sample(list(v), len(v)), v.dtype),
    "not finite": lambda v, i, rng: _at(v, i, np.nan) if v.dtype.kind == "f" else v,
    "huge": lambda v, i, rng: _at(v, i, 3e38 if v.dtype.kind == "f" else 2**31 - 1),
    "negative": lambda v, i, rng: _at(v, i, -v[i : i + 1] - 1),
    "shorter": lambda v, i, rng: v[:-1],
    "longer": lambda v, i, rng: np.append(v, v[-1:]),
}  # fmt: skip


def tensor(rng: random.Random, parts: Parts) -> str:
    """One tensor: a value, all values, their order, their number, their type, their shape; or it is gone."""
    if not parts.tensors:  # an affine target has no head
        return field(rng, parts)
    name = rng.choice(list(parts.tensors))
    code, shape, raw = parts.tensors[name]
    kind = rng.choice([*NUMBERS, "an ulp", "a value", "type", "shape", "swapped", "gone"])
    place = rng.randrange(max(1, int(np.prod(shape))))
    bent: Any = (code, shape, raw)
    if kind in NUMBERS:
        with np.errstate(all="ignore"):
            parts.put(name, NUMBERS[kind](parts.values(name), place, rng))
        return f"tensor {name}: {kind} at {place}"
    if kind == "type":
        bent = (rng.choice(("F64", "F32", "I64", "F16", "BF16", "Q4", 7)), shape, raw)
    elif kind == "shape":
        bent = (code, rng.choice(([*shape, 1], [1, *shape], [], [-1], [2**62], shape[::-1], [0], None)), raw)
    elif kind == "swapped":
        other = rng.choice(list(parts.tensors))
        bent, parts.tensors[other] = parts.tensors[other], bent
    parts.tensors[name] = bent
    if kind == "gone":
        del parts.tensors[name]
    return f"tensor {name}: {kind}"


def loosened(rng: random.Random, parts: Parts) -> str:
    """Looser claims with other numbers or another formula: much of this is true, and what is not must be refused."""
    factor = rng.choice((1.5, 10.0, 1e3, 1e6))
    claim(parts, factor)
    change = rng.choice((tensor, tensor, tensor, field, agreed))(rng, parts)
    return f"claims times {factor}, {change}"


def several(rng: random.Random, parts: Parts) -> str:
    """Two or three changes at once."""
    return "; ".join(rng.choice((field, agreed, tensor, claims))(rng, parts) for _ in range(rng.randint(2, 3)))


def _record(header: dict[str, Any], text: str) -> None:
    header["__metadata__"]["anchorhead"] = text


def _encoded(data: bytes, encoding: str) -> bytes:
    """The header in another encoding."""
    (length,) = struct.unpack("<Q", data[:8])
    header = data[8 : 8 + length].decode().encode(encoding)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


BENDS: dict[str, Callable[[dict[str, Any], str, random.Random], Any]] = {
    "offsets": lambda h, name, rng: h[name].update(
        data_offsets=rng.choice(([0, 8], [8, 0], [-8, 8], [0, 2**63], [0.0, 8.0], None, [0], [2**70, 2**71]))
    ),
    "entry": lambda h, name, rng: h.update({name: rng.choice((None, [], 7, {}, {"dtype": "F64"}))}),
    "extra": lambda h, name, rng: h.update({rng.choice(("extra", "a/b", "heads.999999.slopes", "")): h[name]}),
    "overlap": lambda h, name, rng: h[name].update(data_offsets=next(iter(h.values()))["data_offsets"]),
    "metadata": lambda h, name, rng: h.update(__metadata__=rng.choice((None, [], {}, {"anchorhead": 7}))),
    "deep": lambda h, name, rng: _record(h, "[" * 100_000 + "]" * 100_000),
    "text": lambda h, name, rng: _record(h, rng.choice(("[]", "{", "null", '{"format": 3}', '{"digest": NaN}'))),
    "cut text": lambda h, name, rng: _record(h, h["__metadata__"]["anchorhead"][:-1]),
    "digits": lambda h, name, rng: _record(h, h["__metadata__"]["anchorhead"].replace("1", "9" * 5000, 1)),
    "many": lambda h, name, rng: h.update({f"heads.{i}.slopes": h[name] for i in range(3000)}),
}
BYTES: dict[str, Callable[[bytes, int, random.Random], bytes]] = {
    "cut": lambda data, at, rng: data[:at],
    "flip": lambda data, at, rng: data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :],
    "length": lambda data, at, rng: struct.pack("<Q", rng.choice((0, 1, 2**63, 2**64 - 1, len(data)))) + data[8:],
    "encoding": lambda data, at, rng: _encoded(data, rng.choice(("utf-16", "utf-16-le", "utf-32", "utf-8-sig"))),
    "name": lambda data, at, rng: data.replace(b'"__metadata__"', b'"x"', 1),
}


def structure(rng: random.Random, parts: Parts) -> tuple[str, bytes]:
    """The container itself: entries and text of the header, or the bytes."""
    kind, name = rng.choice([*BENDS, *BYTES]), rng.choice(list(parts.tensors))
    if kind in BENDS:
        return f"structure: {kind} of {name}", write(parts, lambda header: BENDS[kind](header, name, rng))
    data = write(parts)
    return f"structure: {kind}", BYTES[kind](data, rng.randrange(len(data)), rng)


MUTATIONS = (field, field, agreed, agreed, claims, tensor, tensor, loosened, loosened, loosened, several)


def mutated(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    """What was done, and the file."""
    parts = read(data)
    if parts.tensors and rng.random() < 0.1:
        return structure(rng, parts)
    said = rng.choice(MUTATIONS)(rng, parts)
    return said, write(parts)
