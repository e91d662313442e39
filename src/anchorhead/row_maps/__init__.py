"""Other maps from scores to weights than softmax: `ah.row_maps`. Each file says what is proved of its map.

>>> from anchorhead import row_maps
>>> row_maps.FixedPoint(argument_bits=8, exp_bits=8)
FixedPoint(argument_bits=8, exp_bits=8, reciprocal_bits=None)
"""

from __future__ import annotations

from ast import literal_eval
from inspect import signature
from typing import Any

from anchorhead.errors import FileError, InputError
from anchorhead.row_maps.entmax15 import Entmax15
from anchorhead.row_maps.fixed_point import FixedPoint
from anchorhead.row_maps.gated_recurrence import GatedRecurrence
from anchorhead.row_maps.hardmax import Hardmax
from anchorhead.row_maps.linear_attention import LinearAttention
from anchorhead.row_maps.lut_2d import Lut2D
from anchorhead.row_maps.polynomial import Polynomial
from anchorhead.row_maps.relu import ReLU
from anchorhead.row_maps.rexp import Rexp
from anchorhead.row_maps.row_map import RowMap
from anchorhead.row_maps.sigmoid import Sigmoid
from anchorhead.row_maps.softmax import Softmax
from anchorhead.row_maps.sparsemax import Sparsemax

MAPS: tuple[type[RowMap], ...] = (
    Softmax, FixedPoint, Rexp, Lut2D, LinearAttention, GatedRecurrence, Polynomial, Sigmoid, ReLU, Sparsemax, Entmax15,
    Hardmax,
)  # fmt: skip


def row_map_of(record: Any) -> RowMap:
    """The map that a file names."""
    name = record.get("name") if isinstance(record, dict) else None
    found = next((kind for kind in MAPS if kind.name == name), None)
    if found is None:
        raise FileError(f"The file's row map is {record!r:.60}, which is not known.")
    try:
        return found(**{name: value for name, value in record.items() if name != "name"})
    except TypeError:
        raise FileError(f"The file's row map {found.name} has other parameters than {signature(found)}.") from None
    except InputError as error:
        raise FileError(f"The file's row map {found.name} cannot be: {error}") from error


def row_map_named(text: str) -> RowMap:
    """The map that a command names: NAME, or NAME:NUMBER,NUMBER with the numbers in the order of its arguments.

    >>> row_map_named("fixed_point:16,8")
    FixedPoint(argument_bits=16, exp_bits=8, reciprocal_bits=None)
    """
    name, _, numbers = text.partition(":")
    found = {kind.name: kind for kind in MAPS}.get(name.strip())
    if found is None:
        raise InputError(f"{text!r:.60} is no row map; there are {', '.join(kind.name for kind in MAPS)}.")
    arguments = ", ".join(signature(found).parameters)
    try:
        return found(*(literal_eval(part.strip()) for part in numbers.split(",") if part.strip()))
    except InputError:
        raise
    except (TypeError, ValueError, SyntaxError) as error:
        takes = f"takes {arguments}: write {name}:NUMBER,NUMBER in this order" if arguments else "takes no numbers"
        raise InputError(f"{text!r:.60}: {name} {takes}.") from error


__all__ = [
    "Entmax15",
    "FixedPoint",
    "GatedRecurrence",
    "Hardmax",
    "LinearAttention",
    "Lut2D",
    "Polynomial",
    "ReLU",
    "Rexp",
    "RowMap",
    "Sigmoid",
    "Softmax",
    "Sparsemax",
]
