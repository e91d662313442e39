"""The numbers of a module: part of its state, and whether they are still those that something was made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.errors import DtypeError, InputError, ShapeError

CHUNK_ENTRIES = 1 << 22
"""No temporary of the fast evaluation has more entries per chunk than this (32 MB in float64)."""


def constant(value: Tensor) -> nn.Parameter:
    """A stored number of the network: part of the state, not trained unless the user asks for it."""
    return nn.Parameter(value.detach().clone(), requires_grad=False)


def check_tensor(
    x: Any, dtype: torch.dtype, shape: tuple[int, ...] = (), *, name: str = "The input", what: str = "model"
) -> None:
    """Refuses what is not a tensor of that dtype, (..., *shape)."""
    if not isinstance(x, Tensor):
        raise InputError(f"{name} must be a torch tensor, not {type(x).__name__}; use torch.as_tensor.")
    if x.layout != torch.strided:
        raise InputError(f"{name} is {x.layout}, and must be dense; use .to_dense().")
    if x.is_meta:
        raise InputError(f"{name} is on the meta device and has no numbers; use .to_empty, or a tensor of a device.")
    if shape and (x.ndim < len(shape) or tuple(x.shape[-len(shape) :]) != shape):
        raise ShapeError(f"{name} has shape {tuple(x.shape)}; this {what} takes (..., {', '.join(map(str, shape))}).")
    if x.dtype != dtype:
        other = f", or make the {what} with dtype={x.dtype}" if x.dtype in (torch.float32, torch.float64) else ""
        raise DtypeError(f"{name} is {x.dtype} and the {what} {dtype}. Convert it with .to({dtype}){other}.")


def unchanged(now: Sequence[Tensor], before: Sequence[Tensor]) -> bool:
    """Whether tensors hold the numbers that they held before, bit by bit, on the same device."""
    return all(
        a.dtype is b.dtype and a.device == b.device and torch.equal(a, b) for a, b in zip(now, before, strict=True)
    )


def followed(numbers: Sequence[Tensor]) -> bool:
    """Whether torch follows what is computed with these: for gradients, or as a transformation of torch.func."""
    return (torch.is_grad_enabled() and any(t.requires_grad for t in numbers)) or transformed(numbers)


def transformed(numbers: Sequence[Tensor]) -> bool:
    """Whether these are in a transformation of torch.func, and may be other numbers than a module holds."""
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is None:
        return False
    return any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in numbers)


class Shaped(nn.Module):
    """A module that is printed with the shapes of its numbers."""

    def extra_repr(self) -> str:
        held = (*self._parameters.items(), *self._buffers.items())
        return ", ".join(f"{name} {tuple(value.shape)}" for name, value in held if value is not None)


class AsBuilt(nn.Module):
    """A module with a faster evaluation that holds for the numbers that it was built with, and for no others."""

    _built: list[Tensor] | None = None
    _edited = False

    def _fixed(self) -> list[Tensor]:
        """The numbers that the faster evaluation takes for granted."""
        return list(self.parameters())

    def built(self) -> None:
        """From now on these are the numbers."""
        self._built = [t.detach().clone() for t in self._fixed()]

    def forget(self) -> None:
        """Its numbers are not those that it should have been built with: it counts as edited."""
        self._built = None

    @property
    def edited(self) -> bool:
        """Whether numbers were changed since it was built; it is then evaluated as what it has become.

        Inside torch.compile and torch.export: whether they had been at the last look outside.
        """
        now = self._fixed()
        if transformed(now):
            return True
        if not torch.compiler.is_compiling():
            self._edited = self._built is None or not unchanged(now, self._built)
        return self._edited

    @property
    def evaluated_literally(self) -> bool:
        """Whether the faster evaluation is not taken: it was edited, or gradients of its numbers are asked for."""
        return self.edited or any(t.requires_grad for t in self._fixed())

    def _apply(self, fn: Any, recurse: bool = True) -> AsBuilt:
        edited = any(t.device.type != "meta" for t in self._fixed()) and self.edited
        super()._apply(fn, recurse)
        self._built = None
        if not edited:
            self.built()
        return self
