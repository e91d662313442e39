"""What needs TransformerLens, once it is called: the names are there without it, and say how to install it."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, overload

from torch import nn

from anchorhead.circuit.pool import MOST_LITERAL
from anchorhead.digits import Up
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.head_core import UNBOUNDED
from anchorhead.model.mechanism import Mechanism
from anchorhead.model.prompt_core import PromptModel
from anchorhead.proof.certificate import Certificate

if TYPE_CHECKING:
    from anchorhead.export.algorithm_lens import HookedAlgorithm
    from anchorhead.export.bridge import NamedBridge
    from anchorhead.export.lens import Hooked
    from anchorhead.in_context.network import InContextNetwork

NOTED = 1.01
"""How many times its certificate's bound a model with hook points may keep without a word."""


class LiteralWarning(UserWarning):
    """A model is written out as softmax, which keeps less than its certificate says of `model(x)`.

    >>> import warnings
    >>> model = ah.compile("x*y", (-1, 1), tol=1e-3, dtype=torch.float32)
    >>> with warnings.catch_warnings(record=True) as said:
    ...     _ = ah.to_hooked(model)
    >>> any(warning.category is ah.LiteralWarning for warning in said)
    True
    """


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
    _warn_worse(model, found.stated)
    return found


def to_bridge(model: nn.Module, tokens: int | None = None) -> NamedBridge:
    """The model in TransformerLens' TransformerBridge: (batch, tokens, inputs) to (batch, tokens, outputs).

    Of a model of a prompt `bridge(tokens, query=query, mask=mask)`. Arguments are those of `to_hooked`, and so is what
    it needs; learning algorithms, which are no blocks, have `to_hooked` alone.
    """
    from anchorhead.export.bridge import bridged

    found = bridged(model, tokens)
    _warn_worse(model, found.stated)
    return found


def _warn_worse(model: nn.Module, stated: Mechanism | None) -> None:
    """Of a softmax that is written out less may be proved than of the model, or more than a hundredth more of error."""
    if not isinstance(model, CompiledModel) or model.certificate.level != "proved":
        return
    fast, literal = model.certificate, model.literal_certificate()
    if literal.level == "unproved":
        said = f"{_unknown(literal.dtype, stated)}, unlike of model(x)"
    elif literal.relative != fast.relative or _most(literal) > NOTED * _most(fast):
        said = f"which keeps {_kept(literal)}, where model(x) keeps {_kept(fast)}"
    else:
        return
    warnings.warn(f"Hook points are on the softmax written out, {said}: there its rounding counts. {_advice(model)}",
                  LiteralWarning, stacklevel=3)  # fmt: skip


def _unknown(dtype: str, stated: Mechanism | None) -> str:
    """Of what nothing is proved: the first head whose error is infinite has lines whose errors are not."""
    lost = [] if stated is None else [h.name for h in stated.heads if h.kind != "carry" and h.error == math.inf]
    if not lost:
        return f"of which nothing is proved in {dtype}"
    return f"and nothing is proved in {dtype} of the head called {lost[0]!r:.80}, nor of what depends on it"


def _advice(model: CompiledModel) -> str:
    """What keeps more in that form, if anything does."""
    if isinstance(model, PromptModel) and not any(head.evaluation for head in model.network.placed.claim.heads):
        return f"It is that of sums over up to {MOST_LITERAL:,} tokens, which other heads would have, too."
    other = "" if model.certificate.dtype == "float64" else ", or in float64,"
    return (f'Compile with evaluation="literal"{other} for heads that keep the tolerance in that form, if these were '
            "not: such heads may keep less of it here than in model(x), and are warned of, too.")  # fmt: skip


def _most(certificate: Certificate) -> float:
    """What is allowed for |x| <= 100, or on the domain where that is bounded."""
    return certificate.bound + (0.0 if certificate.bounded else certificate.rounding * (1 + UNBOUNDED))


def _kept(certificate: Certificate) -> str:
    """What is allowed, in words."""
    unit = " |target|" if certificate.relative else ""
    grows = "" if certificate.bounded else f" + {Up(certificate.rounding):.2e} (1 + |x|)"
    return f"{Up(certificate.bound):.2e}{unit}{grows}"
