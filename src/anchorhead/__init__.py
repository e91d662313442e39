"""anchorhead: functions compiled into softmax attention only, with a proved error.

Names are loaded when first used, so that checking a certificate does not wait for torch.
"""

from __future__ import annotations

import importlib
import logging
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
    MissingPartError,
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
    from anchorhead import in_context, row_maps, theorems
    from anchorhead.compiler.compile import compile
    from anchorhead.compiler.method import Fit, HeadMethod, Method
    from anchorhead.compiler.plan import plan
    from anchorhead.compiler.program_route import program
    from anchorhead.conversion.convert import convert
    from anchorhead.conversion.feed_forward import feed_forward_as_attention
    from anchorhead.conversion.folder import load_converted
    from anchorhead.conversion.save_folder import save_converted
    from anchorhead.conversion.trainable import recertify
    from anchorhead.conversion.walk import walk
    from anchorhead.export import gallery
    from anchorhead.export.hooked import LiteralWarning, to_bridge, to_hooked
    from anchorhead.export.onnx_file import check_onnx, export_onnx
    from anchorhead.file.distance import Distance
    from anchorhead.file.folder import verify
    from anchorhead.head.head import Head
    from anchorhead.in_context.interpreter import Interpreter, interpreter
    from anchorhead.in_context.load import load
    from anchorhead.lab.diagnosis import Diagnosis, diagnose
    from anchorhead.measure.distance import distance
    from anchorhead.measure.sweep import Sweep, sweep
    from anchorhead.model.compiled import CompiledModel
    from anchorhead.model.mechanism import Mechanism
    from anchorhead.model.outside import OutsideRangeWarning
    from anchorhead.model.program import Program
    from anchorhead.model.walker import Walk
    from anchorhead.model.warm import warm
    from anchorhead.proof.certificate import Certificate
    from anchorhead.proof.piecewise import Piecewise, Table

__version__ = "0.2.0.dev0"

logging.getLogger("anchorhead").addHandler(logging.NullHandler())

_WHERE = {
    "Certificate": "anchorhead.proof.certificate",
    "CompiledModel": "anchorhead.model.compiled",
    "compile": "anchorhead.compiler.compile",
    "Fit": "anchorhead.compiler.method",
    "HeadMethod": "anchorhead.compiler.method",
    "Method": "anchorhead.compiler.method",
    "Head": "anchorhead.head.head",
    "convert": "anchorhead.conversion.convert",
    "Distance": "anchorhead.file.distance",
    "distance": "anchorhead.measure.distance",
    "sweep": "anchorhead.measure.sweep",
    "Sweep": "anchorhead.measure.sweep",
    "Piecewise": "anchorhead.proof.piecewise",
    "Table": "anchorhead.proof.piecewise",
    "Diagnosis": "anchorhead.lab.diagnosis",
    "diagnose": "anchorhead.lab.diagnosis",
    "check_onnx": "anchorhead.export.onnx_file",
    "export_onnx": "anchorhead.export.onnx_file",
    "gallery": "anchorhead.export.gallery",
    "LiteralWarning": "anchorhead.export.hooked",
    "to_bridge": "anchorhead.export.hooked",
    "to_hooked": "anchorhead.export.hooked",
    "Mechanism": "anchorhead.model.mechanism",
    "feed_forward_as_attention": "anchorhead.conversion.feed_forward",
    "load_converted": "anchorhead.conversion.folder",
    "save_converted": "anchorhead.conversion.save_folder",
    "load": "anchorhead.in_context.load",
    "recertify": "anchorhead.conversion.trainable",
    "warm": "anchorhead.model.warm",
    "OutsideRangeWarning": "anchorhead.model.outside",
    "plan": "anchorhead.compiler.plan",
    "program": "anchorhead.compiler.program_route",
    "Program": "anchorhead.model.program",
    "interpreter": "anchorhead.in_context.interpreter",
    "Interpreter": "anchorhead.in_context.interpreter",
    "verify": "anchorhead.file.folder",
    "in_context": "anchorhead.in_context",
    "row_maps": "anchorhead.row_maps",
    "theorems": "anchorhead.theorems",
    "Walk": "anchorhead.model.walker",
    "walk": "anchorhead.conversion.walk",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'anchorhead' has no attribute {name!r}")
    module = importlib.import_module(_WHERE[name])
    return module if name in ("in_context", "row_maps", "theorems", "gallery") else getattr(module, name)


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
    "Distance",
    "DtypeError",
    "ExpressionError",
    "FileError",
    "Fit",
    "Head",
    "HeadMethod",
    "InputError",
    "Interpreter",
    "LiteralWarning",
    "Mechanism",
    "Method",
    "MissingPartError",
    "OutsideRangeError",
    "OutsideRangeWarning",
    "Piecewise",
    "PrecisionError",
    "Program",
    "ShapeError",
    "SingularityError",
    "SizeError",
    "StructureError",
    "Sweep",
    "Table",
    "ToleranceError",
    "VerificationError",
    "Walk",
    "__version__",
    "check_onnx",
    "compile",
    "convert",
    "diagnose",
    "distance",
    "export_onnx",
    "feed_forward_as_attention",
    "gallery",
    "in_context",
    "interpreter",
    "load",
    "load_converted",
    "plan",
    "program",
    "recertify",
    "row_maps",
    "save_converted",
    "sweep",
    "theorems",
    "to_bridge",
    "to_hooked",
    "verify",
    "walk",
    "warm",
]
