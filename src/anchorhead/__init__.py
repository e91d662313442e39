"""anchorhead: functions compiled into softmax attention only, with a proved error.

Names are loaded when first used, so that checking a certificate does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from anchorhead.errors import (
    AnchorheadError,
    DependencyError,
    DiscontinuityError,
    ExpressionError,
    FileError,
    InputError,
    OutsideRangeError,
    PrecisionError,
    ShapeError,
    SingularityError,
    SizeError,
    StructureError,
    ToleranceError,
    VerificationError,
)

if TYPE_CHECKING:
    from anchorhead import in_context, theorems
    from anchorhead.certify.certificate import Certificate
    from anchorhead.certify.checker import verify
    from anchorhead.compiler.compile import compile
    from anchorhead.compiler.loading import load
    from anchorhead.compiler.planning import plan
    from anchorhead.convert.convert import convert
    from anchorhead.convert.feed_forward import feed_forward_as_attention
    from anchorhead.convert.files import load_converted, save_converted
    from anchorhead.export.onnx_file import check_onnx, export_onnx
    from anchorhead.lab.diagnosis import Diagnosis, diagnose
    from anchorhead.network.compiled import CompiledModel
    from anchorhead.network.outside import OutsideRangeWarning
    from anchorhead.network.structure import Walk, walk

__version__ = "0.1.0"

_WHERE = {
    "Certificate": "anchorhead.certify.certificate",
    "CompiledModel": "anchorhead.network.compiled",
    "compile": "anchorhead.compiler.compile",
    "convert": "anchorhead.convert.convert",
    "Diagnosis": "anchorhead.lab.diagnosis",
    "diagnose": "anchorhead.lab.diagnosis",
    "check_onnx": "anchorhead.export.onnx_file",
    "export_onnx": "anchorhead.export.onnx_file",
    "feed_forward_as_attention": "anchorhead.convert.feed_forward",
    "load_converted": "anchorhead.convert.files",
    "save_converted": "anchorhead.convert.files",
    "load": "anchorhead.compiler.loading",
    "OutsideRangeWarning": "anchorhead.network.outside",
    "plan": "anchorhead.compiler.planning",
    "verify": "anchorhead.certify.checker",
    "in_context": "anchorhead.in_context",
    "theorems": "anchorhead.theorems",
    "Walk": "anchorhead.network.structure",
    "walk": "anchorhead.network.structure",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'anchorhead' has no attribute {name!r}")
    module = importlib.import_module(_WHERE[name])
    return module if name in ("in_context", "theorems") else getattr(module, name)


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "AnchorheadError",
    "Certificate",
    "CompiledModel",
    "DependencyError",
    "Diagnosis",
    "DiscontinuityError",
    "ExpressionError",
    "FileError",
    "InputError",
    "OutsideRangeError",
    "OutsideRangeWarning",
    "PrecisionError",
    "ShapeError",
    "SingularityError",
    "SizeError",
    "StructureError",
    "ToleranceError",
    "VerificationError",
    "Walk",
    "__version__",
    "check_onnx",
    "compile",
    "convert",
    "diagnose",
    "export_onnx",
    "feed_forward_as_attention",
    "in_context",
    "load",
    "load_converted",
    "plan",
    "save_converted",
    "theorems",
    "verify",
    "walk",
]
