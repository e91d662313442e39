"""Evaluation in the dtype that was proved, whatever the caller's settings are.

`torch.autocast` turns the products inside a model into bfloat16 or float16, and `torch.set_float32_matmul_precision`
and the settings behind it allow float32 products to be computed in bfloat16 or TF32 where the processor can. A
certificate speaks of neither, so that what carries one is evaluated with both off. Inside torch.compile and
torch.export autocast is off too; the precision of products is then the compiled program's, and stays an assumption.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

Method = TypeVar("Method", bound=Callable[..., Any])
EXACT = ("none", "ieee")


def in_own_precision(method: Method) -> Method:
    """The method of a module, computed in the dtype of its first argument: no autocast, no shortened products."""

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        x = next((value for value in (*args, *kwargs.values())), None)
        if not isinstance(x, Tensor) or x.is_meta:
            return method(self, *args, **kwargs)
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False):
                return run(self, *args, **kwargs)
        if x.dtype != torch.float32 or torch.compiler.is_compiling():
            return method(self, *args, **kwargs)
        backend: Any = torch.backends.cuda if kind == "cuda" else torch.backends.mkldnn
        products = backend.matmul
        before = products.fp32_precision
        if before in EXACT:
            return method(self, *args, **kwargs)
        products.fp32_precision = "ieee"
        try:
            return method(self, *args, **kwargs)
        finally:
            products.fp32_precision = before

    return cast(Method, run)
