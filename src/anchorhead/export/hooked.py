"""What needs TransformerLens, once it is called: the names are there without it, and say how to install it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, overload

from torch import nn

from anchorhead.model.compiled import CompiledModel

if TYPE_CHECKING:
    from anchorhead.export.algorithm_lens import HookedAlgorithm
    from anchorhead.export.bridge import NamedBridge
    from anchorhead.export.lens import Hooked
    from anchorhead.in_context.network import InContextNetwork


@overload
def to_hooked(model: InContextNetwork, tokens: int | None = None) -> HookedAlgorithm: ...


@overload
def to_hooked(model: nn.Module, tokens: int | None = None) -> Hooked: ...


def to_hooked(model: nn.Module, tokens: int | None = None) -> Hooked | HookedAlgorithm:
    """The model with TransformerLens' hook points and names of its heads (docs/interpretability.md).

    Of a compiled model it takes (batch, tokens, inputs), inputs flat, tokens = 1 unless given. Of a model of a prompt
    it is called as the model is, with (tokens, query, mask), for one dimension of batches and prompts of any length, or
    of that one where it is given. Of a learning algorithm (`ah.in_context`) as that is, with hook points at its steps.
    Needs `pip install 'anchorhead[lens]'`, and raises `DependencyError` without it.
    """
    from anchorhead.export.lens import hooked
    from anchorhead.in_context.network import InContextNetwork

    if isinstance(model, InContextNetwork):
        from anchorhead.export.algorithm_lens import HookedAlgorithm

        return HookedAlgorithm(model, tokens)
    found = hooked(model, tokens)
    _warn_unproved(model)
    return found


def to_bridge(model: nn.Module, tokens: int | None = None) -> NamedBridge:
    """The model in TransformerLens' TransformerBridge: (batch, tokens, inputs) to (batch, tokens, outputs).

    Of a model of a prompt `bridge(tokens, query=query, mask=mask)`. Arguments are those of `to_hooked`, and so is what
    it needs; learning algorithms, which are no blocks, have `to_hooked` alone.
    """
    from anchorhead.export.bridge import bridged

    found = bridged(model, tokens)
    _warn_unproved(model)
    return found


def _warn_unproved(model: nn.Module) -> None:
    """Of a softmax that is written out less may be proved than of the model."""
    if not isinstance(model, CompiledModel) or model.certificate.level != "proved":
        return
    literal = model.literal_certificate()
    if literal.level == "unproved":
        warnings.warn(f"Hook points are on the softmax written out, of which nothing is proved in {literal.dtype}, "
                      "unlike of model(x): its rounding may be larger than the tolerance. Compile with "
                      'evaluation="literal", or in float64, to have a bound.', stacklevel=3)  # fmt: skip
