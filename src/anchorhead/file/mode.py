"""Who may read a file: safetensors lets its owner alone, and what is written here has the mode of any other file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def usual_mode(path: str | os.PathLike[str]) -> Iterator[None]:
    """A file that is written meanwhile keeps its mode, or gets the one that a new file has here."""
    place = Path(path)
    new = not place.exists()
    place.touch()
    mode = stat.S_IMODE(place.stat().st_mode)
    try:
        yield
    except BaseException:
        if new:
            place.unlink(missing_ok=True)
        raise
    place.chmod(mode)
