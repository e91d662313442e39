"""Pretrained models: every pointwise nonlinearity becomes softmax attention, with a report of what changed.

`ah.convert(model)` is the function in `convert.py`. This folder has the function's name, and importing it puts the
folder's module in the function's place; so the module can be called, and calls the function.
"""

from __future__ import annotations

import sys
import types
from typing import Any


class _Callable(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from anchorhead.convert.convert import convert

        return convert(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
