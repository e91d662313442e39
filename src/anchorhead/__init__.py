"""anchorhead: functions compiled into softmax attention only, with a proved error.

Names are loaded when first used, so that checking a certificate does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from anchorhead.errors import (
    AnchorheadError,
    ConversionError,
    DependencyError,
    DiscontinuityError,
    DtypeError,
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
    from anchorhead.compiler.compile import compile
    from anchorhead.compiler.load import load
    from anchorhead.compiler.method import Fit, HeadMethod, Method
    from anchorhead.compiler.plan import plan
    from anchorhead.compiler.program_route import program
    from anchorhead.conversion.convert import convert
    from anchorhead.conversion.feed_forward import feed_forward_as_attention
    from anchorhead.conversion.folder import load_converted, save_converted
    from anchorhead.conversion.trainable import recertify
    from anchorhead.export.onnx_file import check_onnx, export_onnx
    from anchorhead.file.folder import verify
    from anchorhead.head.head import Head
    from anchorhead.in_context.interpreter import Interpreter, interpreter
    from anchorhead.lab.diagnosis import Diagnosis, diagnose
    from anchorhead.model.compiled import CompiledModel
    from anchorhead.model.fused import warm
    from anchorhead.model.outside import OutsideRangeWarning
    from anchorhead.model.program import Program
    from anchorhead.model.walker import Walk, walk
    from anchorhead.proof.certificate import Certificate

__version__ = "0.1.0"

_WHERE = {
    "Certificate": "anchorhead.proof.certificate",
    "CompiledModel": "anchorhead.model.compiled",
    "compile": "anchorhead.compiler.compile",
    "Fit": "anchorhead.compiler.method",
    "HeadMethod": "anchorhead.compiler.method",
    "Method": "anchorhead.compiler.method",
    "Head": "anchorhead.head.head",
    "convert": "anchorhead.conversion.convert",
    "Diagnosis": "anchorhead.lab.diagnosis",
    "diagnose": "anchorhead.lab.diagnosis",
    "check_onnx": "anchorhead.export.onnx_file",
    "export_onnx": "anchorhead.export.onnx_file",
    "feed_forward_as_attention": "anchorhead.conversion.feed_forward",
    "load_converted": "anchorhead.conversion.folder",
    "save_converted": "anchorhead.conversion.folder",
    "load": "anchorhead.compiler.load",
    "recertify": "anchorhead.conversion.trainable",
    "warm": "anchorhead.model.fused",
    "OutsideRangeWarning": "anchorhead.model.outside",
    "plan": "anchorhead.compiler.plan",
    "program": "anchorhead.compiler.program_route",
    "Program": "anchorhead.model.program",
    "interpreter": "anchorhead.in_context.interpreter",
    "Interpreter": "anchorhead.in_context.interpreter",
    "verify": "anchorhead.file.folder",
    "in_context": "anchorhead.in_context",
    "theorems": "anchorhead.theorems",
    "Walk": "anchorhead.model.walker",
    "walk": "anchorhead.conversion.walk",
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
    "ConversionError",
    "DependencyError",
    "Diagnosis",
    "DiscontinuityError",
    "DtypeError",
    "ExpressionError",
    "FileError",
    "Fit",
    "Head",
    "HeadMethod",
    "InputError",
    "Interpreter",
    "Method",
    "OutsideRangeError",
    "OutsideRangeWarning",
    "PrecisionError",
    "Program",
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
    "interpreter",
    "load",
    "load_converted",
    "plan",
    "program",
    "recertify",
    "save_converted",
    "theorems",
    "verify",
    "walk",
    "warm",
]
