"""Kernels ahead of time: those of all heads in a model."""

from __future__ import annotations

from torch import nn

from anchorhead.errors import InputError
from anchorhead.model.fused import warm as make_kernels


def warm(model: nn.Module) -> None:
    """Makes the kernels of all heads in a model now, rather than when it first meets a large input.

    Each takes some seconds, or one where torch finds it in its cache on disk.

    >>> ah.warm(ah.convert(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())))
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"warm takes a model with heads, a torch module, and got a {type(model).__name__}.")
    make_kernels(model)
