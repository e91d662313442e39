"""Warnings that point at the line which called this library, however deep in it, or in torch's calls of modules, they
arise."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import torch

INSIDE = tuple(f"{Path(file).parent}{os.sep}" for file in (__file__, str(torch.__file__)))


def warn_caller(message: str, category: type[Warning]) -> None:
    """`warnings.warn`, from the first frame that is neither of this package nor of torch."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
