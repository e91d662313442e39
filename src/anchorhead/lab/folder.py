"""The folder of a run: one run at a time, and only results of one version of the code, told by a digest of it."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import anchorhead
from anchorhead.errors import FileError

STAMP = "versions.json"


@contextmanager
def results_folder(path: Path) -> Iterator[Path]:
    """Makes the folder, or takes one that the same software began; locked until the run ends."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{path} cannot be made: {error}. Choose another folder with -o.") from error
    with _locked(path):
        _check(path)
        yield path


def _check(path: Path) -> None:
    here, file = stamp(), path / STAMP
    if file.exists():
        try:
            there = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            there = {}
        there = there if isinstance(there, dict) else {}
        if there != here:
            differing = ", ".join(f"{k} {there.get(k)} then, {v} now" for k, v in here.items() if there.get(k) != v)
            raise FileError(
                f"{path} holds results of other software ({differing}), which would be mixed with new ones. Choose "
                "another folder with -o, or remove that one."
            )
    elif any(path.glob("*.csv")):
        raise FileError(f"{path} holds CSV files of something else; choose another folder with -o.")
    file.write_text(json.dumps(here, indent=1) + "\n", encoding="utf-8")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # not on this system; two runs in one folder are then the user's affair
        yield
        return
    with (path / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FileError(f"Another run is writing to {path}; wait for it, or choose another folder.") from error
        yield


@cache
def _code() -> str:
    digest = hashlib.sha256()
    root = Path(anchorhead.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def stamp() -> dict[str, str]:
    """Versions by name."""
    import numpy
    import scipy
    import torch

    return {
        "anchorhead": anchorhead.__version__,
        "code": _code(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
