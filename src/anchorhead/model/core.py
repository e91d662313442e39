"""What a compiled model computes with: one interface for one head, a network of heads, a grid, and the paper's layers.

A core maps (..., *input_shape) to (..., *output_shape), some by a *layer* that knows inputs and outputs as flat numbers
(`FlatCore`). The core knows its target where there is one, its matrices, what it costs,
and what a file says of it under its kind (docs/format.md). `compiled.py` puts a certificate on it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from anchorhead.errors import InputError, MissingPartError
from anchorhead.head.parameters import check_tensor
from anchorhead.model.layered import flattened
from anchorhead.model.mechanism import Mechanism
from anchorhead.model.network import Network, Resources
from anchorhead.model.report import Report
from anchorhead.proof.certificate import Certificate


class Core(nn.Module):
    """See the file."""

    kind: ClassVar[str]
    """Its name in files."""
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Of its numbers and inputs."""

    def check(self, x: Tensor) -> None:
        """Refuses what is not a tensor of the model's dtype and of its input's shape."""
        check_tensor(x, self.dtype, self.input_shape)

    def flat(self, x: Tensor) -> Tensor:
        """Inputs that were checked, (..., inputs)."""
        self.check(x)
        return flattened(x, self.input_shape)

    @abstractmethod
    def literal(self) -> nn.Module:
        """A copy of the numbers as scores, softmax and values."""

    def literal_certificate(self, certificate: Certificate) -> Certificate:
        """That of `literal()`, given the model's: the same where it holds for both evaluations."""
        return certificate

    @property
    def joined(self) -> bool:
        """Whether a head of it is of joined pieces (`Head.joined`)."""
        return False

    @abstractmethod
    def attention(self, x: Tensor) -> list[Tensor]:
        """The attention weights, one entry a layer: (..., heads, keys), summing to one over keys."""

    def exact(self, x: Tensor) -> Tensor:
        """The target itself, in torch, at the same inputs: no heads, no approximation."""
        raise InputError("This model's target cannot be looked into, so that there is nothing to compare it with.")

    @abstractmethod
    def on_sequences(self, tokens: int) -> Network:
        """The same function of every token of (..., tokens, inputs), as literal matrices."""

    @abstractmethod
    def resources(self, certificate: Certificate) -> Resources:
        """What it costs on the domain of its certificate."""

    @property
    @abstractmethod
    def largest_value(self) -> float:
        """The largest |constant| or |gain| of any key; see `CompiledModel`."""

    @property
    def report(self) -> Report | None:
        """Where a network's error comes from, node by node; None for what is one node."""
        return None

    def mechanism(self, certificate: Certificate) -> Mechanism:
        """What every head does, with the errors of the evaluation that the certificate is of."""
        raise MissingPartError(
            "This model looks its values up on a grid of the inputs, with the target's values for its own: it has no "
            "heads with a meaning of their own. Compile with method='graph' for a network of named heads."
        )

    @abstractmethod
    def payload(self, certificate: Certificate) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What a file holds beside the claim: the record of target and structure, and the numbers as they are now."""

    def rows(self, x: Tensor) -> Tensor:
        """The inputs one below the other: (rows, *input_shape), or (elements,) for one head."""
        return x.detach().reshape(-1, *self.input_shape)

    def count(self, x: Tensor) -> int:
        """How many inputs there are."""
        return x.numel() // math.prod(self.input_shape)

    def parameter_count(self) -> int:
        """Every stored number."""
        return sum(p.numel() for p in self.parameters())


class FlatCore(Core):
    """A core whose `layer` goes from flat inputs to flat outputs, and has a dtype, `literal()` and `attention(x)`."""

    layer: Any

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = self.layer.dtype
        return found

    def forward(self, x: Tensor) -> Tensor:
        return shaped(self.layer(self.flat(x)), self.output_shape)

    def literal(self) -> nn.Module:
        return Literal(self, self.layer.literal())

    def attention(self, x: Tensor) -> list[Tensor]:
        found: list[Tensor] = self.layer.attention(self.flat(x))
        return found


class Literal(nn.Module):
    """The literal evaluation of a core, on inputs of its shape."""

    def __init__(self, core: Core, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.check = layer, core.check
        self.input_shape, self.output_shape = core.input_shape, core.output_shape

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        return shaped(self.layer(flattened(x, self.input_shape)), self.output_shape)


def shaped(out: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Flat outputs in the output's shape."""
    if len(shape) == 1:
        return out
    return out.unflatten(-1, shape) if shape else out.squeeze(-1)


def stored(number: Tensor) -> np.ndarray:
    """The numbers of a tensor as a file holds them, in one row."""
    return number.detach().cpu().numpy().reshape(-1)


def require_tokens(tokens: Any) -> int:
    """A number of tokens."""
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise InputError(f"tokens={tokens!r} must be a whole number of at least 1.")
    return tokens
