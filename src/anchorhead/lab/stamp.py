"""What made a result: versions, and a digest of this package's code, so that results of other code are not mixed in."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from pathlib import Path

import anchorhead


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
