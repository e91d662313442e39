"""A model to a file: plain tensors and one JSON text in safetensors, all that loading and checking need."""

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

import anchorhead
from anchorhead.errors import FileError
from anchorhead.network.file import FORMAT, digest


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Writes the numbers, the boxes of the proof, and the record with the certificate."""
    certificate = model.certificate
    record, arrays = model.payload()
    record |= {
        "format": FORMAT,
        "dtype": certificate.dtype,
        "method": model.method,
        "certificate": certificate.as_dict(),
        "versions": _versions(),
    }
    little = {name: np.ascontiguousarray(a).astype(a.dtype.newbyteorder("<"), copy=False) for name, a in arrays.items()}
    record["digest"] = digest(record, {name: a.tobytes() for name, a in little.items()})
    try:
        save_file(little, os.fspath(path), metadata={"anchorhead": json.dumps(record, sort_keys=True, allow_nan=False)})
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path} cannot be written: {error}.") from error


def _versions() -> dict[str, str]:
    found = {"anchorhead": anchorhead.__version__, "python": platform.python_version(), "platform": sys.platform}
    return found | {name: metadata.version(name) for name in ("torch", "python-flint", "numpy", "scipy")}
