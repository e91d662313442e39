"""A model to a file: plain tensors and one JSON text in safetensors, all that loading and checking need.

What is written is what the model computes with now. A model whose numbers were changed since they were proved is
written with them and with the old claim, marked `unproved`: `ah.verify` then says whether it holds.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import metadata
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from anchorhead.errors import FileError, InputError
from anchorhead.file.container import FORMAT, digest
from anchorhead.file.mode import usual_mode
from anchorhead.proof.certificate import Certificate, end_text

TYPES = {"float64": "<f8", "float32": "<f4", "int32": "<i4"}


def save(
    record: dict[str, Any], arrays: dict[str, np.ndarray], claimed: Certificate, path: str | os.PathLike[str]
) -> None:
    """Writes the numbers, the boxes of the proof, and the record with the claim."""
    claim = {
        "dtype": claimed.dtype,
        "domain": [[end_text(end) for end in pair] for pair in claimed.domain],
        "certificate": {
            "level": claimed.level,
            "approximation": claimed.approximation,
            "rounding": claimed.rounding,
            "outputs": list(claimed.outputs),
            "boxes": claimed.boxes,
            "relative": claimed.relative,
            "evaluation": claimed.evaluation,
            "assumptions": list(claimed.assumptions),
        },
        "source": claimed.source,
    }
    write(record | claim, arrays, path)


def write(record: dict[str, Any], arrays: dict[str, np.ndarray], path: str | os.PathLike[str]) -> None:
    """Writes numbers and a record, with the versions and the digest that every file has."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"A file is named by a path, not by {path!r:.60}.")
    record = record | {"format": FORMAT, "versions": _versions()}
    little = {name: np.ascontiguousarray(a, dtype=TYPES[str(a.dtype)]) for name, a in arrays.items()}
    try:
        record["digest"] = digest(record, {name: a.tobytes() for name, a in little.items()})
        said = {"anchorhead": json.dumps(record, sort_keys=True, allow_nan=False)}
        with usual_mode(path):
            save_file(little, os.fspath(path), metadata=said)
    except ValueError as error:
        raise FileError(f"{path} cannot be written: a number of the model is not finite ({error}).") from error
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path} cannot be written: {error}.") from error


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": sys.platform}
    return found | {name: metadata.version(name) for name in ("anchorhead", "torch", "python-flint", "numpy", "scipy")}
