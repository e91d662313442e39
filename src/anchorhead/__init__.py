"""anchorhead: functions compiled into softmax attention only, with a proved error.

Names are loaded when first used, so that checking a certificate does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from anchorhead.errors import (
    AnchorheadError,
    DiscontinuityError,
    ExpressionError,
    FileError,
    InputError,
    PrecisionError,
    ShapeError,
    SingularityError,
    SizeError,
    StructureError,
    ToleranceError,
    VerificationError,
)

if TYPE_CHECKING:
    from anchorhead import theorems
    from anchorhead.network.structure import Walk, walk

__version__ = "0.1.0"

_WHERE = {
    "theorems": "anchorhead.theorems",
    "Walk": "anchorhead.network.structure",
    "walk": "anchorhead.network.structure",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'anchorhead' has no attribute {name!r}")
    module = importlib.import_module(_WHERE[name])
    return module if _WHERE[name].rpartition(".")[2] == name else getattr(module, name)


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "AnchorheadError",
    "DiscontinuityError",
    "ExpressionError",
    "FileError",
    "InputError",
    "PrecisionError",
    "ShapeError",
    "SingularityError",
    "SizeError",
    "StructureError",
    "ToleranceError",
    "VerificationError",
    "Walk",
    "__version__",
    "theorems",
    "walk",
]
