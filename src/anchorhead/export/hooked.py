"""What needs TransformerLens, once it is called: the names are there without it, and say how to install it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from anchorhead.export.bridge import NamedBridge
    from anchorhead.export.lens import HookedNetwork


def to_hooked(model: nn.Module, tokens: int | None = None) -> HookedNetwork:
    """The model with TransformerLens' hook points and names of its heads (docs/interpretability.md).

    Arguments and shapes are those of `to_stock_attention`: of a compiled model (batch, tokens, inputs), inputs flat.
    Needs `pip install 'anchorhead[lens]'`, and raises `DependencyError` without it.
    """
    from anchorhead.export.lens import hooked

    return hooked(model, tokens)


def to_bridge(model: nn.Module, tokens: int | None = None) -> NamedBridge:
    """The model in TransformerLens' TransformerBridge: (batch, tokens, inputs) to (batch, tokens, outputs).

    Arguments are those of `to_hooked`, and so is what it needs.
    """
    from anchorhead.export.bridge import bridged

    return bridged(model, tokens)
