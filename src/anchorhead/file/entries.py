"""Single entries of a file's record, each refused with a sentence where it is not of the kind that it must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anchorhead.display import shortened
from anchorhead.errors import FileError

LONGEST = 60
"""What is quoted of an entry, in characters."""


def quoted(value: Any) -> str:
    """A value of a file as a sentence repeats it: cut, with dots, where it is long."""
    return shortened(repr(value), LONGEST)


def listed(record: dict[str, Any], name: str) -> list[Any]:
    """An entry of the record that must be a list."""
    value = record.get(name)
    if not isinstance(value, list):
        raise FileError(f"The record in the file lacks {name!r}.")
    return value


def flag(record: dict[str, Any], name: str) -> bool:
    """An entry of the record that is true or false: the latter where it is absent."""
    value = record.get(name, False)
    if type(value) is not bool:
        raise FileError(f"The file's {name} is {quoted(value)}, and must be true or false.")
    return value


def number(record: dict[str, Any], name: str, *, negative: bool = False) -> float:
    """An entry of the record that must be a finite number."""
    return real(record.get(name), f"The file's {name}", negative=negative)


def real(value: Any, name: str, *, negative: bool = False) -> float:
    """A finite number as a float; whole numbers must be ones that a float holds. name: what it is, with an article."""
    if type(value) not in (int, float) or abs(value) > 1.7e308 or float(value) != value:
        raise FileError(f"{name} is {quoted(value)}, which is not a number that can be held.")
    if value < 0 and not negative:
        raise FileError(f"{name} is {quoted(value)}, and cannot be negative.")
    return float(value)


def count(record: dict[str, Any], name: str, most: int) -> int:
    """An entry of the record that counts something: a whole number from 1 to `most`."""
    value = record.get(name)
    if type(value) is not int or not 1 <= value <= most:
        raise FileError(f"The file's {name} is {quoted(value)}, and must be a whole number from 1 to {most}.")
    return value


def one_of(record: dict[str, Any], name: str, known: Sequence[str]) -> str:
    """An entry of the record that is one of these words."""
    value = record.get(name)
    if value not in known:
        raise FileError(f"The file's {name} is {quoted(value)}, and must be {' or '.join(known)}.")
    return str(value)
