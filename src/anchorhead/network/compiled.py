"""The compiled model: softmax attention with a certificate, whatever it was compiled from."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any

import numpy as np
from torch import Tensor, nn

from anchorhead.network.resources import Resources
from anchorhead.network.saving import save


class CompiledModel(nn.Module):
    """A function as softmax attention: (..., inputs) to (..., outputs), differentiable and batched.

    `certificate` says how far it is from the target; `resources` what it costs; `method` how it was built.
    """

    def __init__(self, certificate: Any, method: str) -> None:
        super().__init__()
        self.certificate = certificate
        self.method = method

    @abstractmethod
    def literal(self) -> nn.Module:
        """The same network as scores, softmax and values: what export and the walker see."""

    @abstractmethod
    def attention(self, x: Tensor) -> list[Tensor]:
        """The attention weights, one entry a layer: (..., heads, keys), summing to one over keys."""

    @abstractmethod
    def as_self_attention(self, tokens: int) -> nn.Module:
        """The same function of every token of a sequence, as literal W_Q, W_K, W_V, W_O matrices."""

    @property
    @abstractmethod
    def resources(self) -> Resources:
        """What this model costs."""

    @property
    @abstractmethod
    def largest_value(self) -> float:
        """max|value|: the largest constant or gain of any head. Rounding grows with it."""

    @abstractmethod
    def payload(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What a file holds beside the certificate: the record of the statement, and the numbers by name."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one safetensors file that holds all that `ah.load` and `ah.verify` need."""
        save(self, path)
