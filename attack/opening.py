"""A file, given to everything that reads one: each returns, or refuses with an AnchorheadError, in time."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import anchorhead as ah
from attack import files
from attack.measuring import CHECK, Result, TimeLimit, limit


def opened(data: bytes, said: str, result: Result) -> list[Any]:
    """What `ah.verify` and `ah.load` make of a file: None where they refuse. Any other exception is a finding."""
    found: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        path.write_bytes(data)
        for what in (ah.verify, ah.load):
            try:
                with limit(CHECK):
                    found.append(what(path))
            except ah.AnchorheadError:
                found.append(None)
            except (TimeLimit, Exception) as error:
                result.violated(f"{said}: {what.__name__} raised {type(error).__name__}: {error}"[:300])
                found.append(None)
    return found


def open_bent(rng: random.Random, data: bytes, result: Result, most: int) -> None:
    """Opens so many of the files in which one entry of the record has a value of another kind, or is gone."""
    bent = list(files.other_kinds(files.read(data)))
    for said, parts in rng.sample(bent, min(most, len(bent))):
        opened(files.write(parts), said, result)
