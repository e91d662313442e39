"""What a user has on disk: a saved model, a table as CSV, a table or polynomials as JSON.

A CSV file has two columns, the place and the value, with or without a line of titles; places are evenly spaced. A JSON
file holds {"low", "high", "values"} and, if it is not linear, "interpolation"; or {"breaks", "coefficients"} and, if
the powers are of x - (left break), "local": true.
"""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

from anchorhead.errors import FileError, InputError
from anchorhead.proof.piecewise import Piecewise, Table

MOST_BYTES = 1 << 26
EVEN = 1e-6
"""How far a place may be from evenly spaced ones, as a part of their distance; decimals are rounded."""
ARGUMENTS = ({"low", "high", "values", "interpolation"}, {"breaks", "coefficients", "local"})


def read_table(path: Path, interpolation: str = "linear") -> Any:
    """A model, a table or polynomials, by the file's suffix."""
    readers = {".safetensors": _model, ".json": _json, ".csv": lambda p: _csv(p, interpolation)}
    if path.suffix.lower() not in readers:
        raise FileError(f"{path} is neither a saved model (.safetensors) nor a table (.csv, .json).")
    return readers[path.suffix.lower()](path)


def _model(path: Path) -> Any:
    from anchorhead.compiler.load import load_compiled  # which brings torch

    return load_compiled(path)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise FileError(f"{path} is larger than any table ({MOST_BYTES >> 20} MiB).")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def _json(path: Path) -> Piecewise:
    try:
        found = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is not JSON: {error}.") from error
    kind = next((k for k in ARGUMENTS if isinstance(found, dict) and set(found) <= k), None)
    try:
        if kind is ARGUMENTS[0]:
            return Table(**found)
        if kind is ARGUMENTS[1]:
            return Piecewise(**found)
    except TypeError:
        pass
    except InputError as error:
        raise FileError(f"{path}: {error}") from error
    raise FileError(
        f'{path} must hold {{"low", "high", "values"}} or {{"breaks", "coefficients"}}, all of these, and nothing else.'
    )


def _csv(path: Path, interpolation: str) -> Table:
    rows = [row for row in csv.reader(_text(path).splitlines()) if any(cell.strip() for cell in row)]
    numbers: list[tuple[float, float]] = []
    for count, row in enumerate(rows):
        try:
            place, value = (float(cell) for cell in row)
        except ValueError:
            if count == 0:
                continue  # titles
            raise FileError(f"{path}: line {count + 1} must hold two numbers, a place and a value.") from None
        numbers.append((place, value))
    if len(numbers) < 2 or not all(map(math.isfinite, (v for pair in numbers for v in pair))):
        raise FileError(f"{path} must hold at least two places with their values, all of them finite.")
    low, high = numbers[0][0], numbers[-1][0]
    step = (high - low) / (len(numbers) - 1)
    odd = next((x for i, (x, _) in enumerate(numbers) if not abs(x - (low + i * step)) <= EVEN * abs(step)), None)
    if odd is not None or not step > 0:
        raise FileError(
            f"{path}: the places must rise evenly from {low:g} to {high:g}, and {low if odd is None else odd:g} does "
            'not fit; give others as polynomials in JSON, {"breaks", "coefficients"}.'
        )
    try:
        return Table(low, high, [value for _, value in numbers], interpolation)
    except InputError as error:
        raise FileError(f"{path}: {error}") from error
