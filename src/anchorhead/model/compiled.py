"""The compiled model: softmax attention with a certificate, whatever it was compiled from."""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from anchorhead.errors import InputError, PrecisionError
from anchorhead.file.save import save
from anchorhead.model.network import Network
from anchorhead.model.outside import Watched
from anchorhead.model.probe import LayerProbe, Probe
from anchorhead.model.resources import Resources
from anchorhead.model.stock import to_stock_attention
from anchorhead.proof.certificate import Certificate

ADVICE = "Compile it on a domain that holds the inputs, or clip them to it"


def fingerprint(module: nn.Module) -> bytes:
    """A digest of all numbers that a module holds."""
    total = hashlib.blake2b()
    for name, value in module.state_dict().items():
        total.update(name.encode() + b"\0" + value.detach().cpu().contiguous().numpy().tobytes())
    return total.digest()


class CompiledModel(Watched):
    """A function as softmax attention: (..., inputs) to (..., outputs), differentiable and batched.

    `certificate` says how far it is from the target; `resources` what it costs; `method` how it was built; `outside`
    what an input outside the domain does: "warn", once, unless it is set to "error" or "ignore".
    """

    def __init__(self, certificate: Certificate, method: str) -> None:
        super().__init__()
        self._claimed = certificate
        self.method = method
        self._sealed = b""
        self.watch(certificate.domain, f"the model of {certificate.expression}", ADVICE)

    def seal(self) -> None:
        """Remembers the numbers as those that the certificate is about; every kind of model ends its making so."""
        self._sealed = fingerprint(self)

    @property
    def claimed(self) -> Certificate:
        """The certificate of the numbers that were proved, whatever has become of them; diagnoses hold them to it."""
        return self._claimed

    @property
    def certificate(self) -> Certificate:
        """How far the model is from its target; `unproved` once its numbers are not those that were proved."""
        kept = self._claimed.level != "unproved" and fingerprint(self) == self._sealed
        return self._claimed if kept else self._claimed.unproved()

    @abstractmethod
    def literal(self) -> nn.Module:
        """The same network as scores, softmax and values: what export and the walker see."""

    @abstractmethod
    def attention(self, x: Tensor) -> list[Tensor]:
        """The attention weights, one entry a layer: (..., heads, keys), summing to one over keys."""

    @abstractmethod
    def as_self_attention(self, tokens: int) -> Network:
        """The same function of every token of a sequence, as literal W_Q, W_K, W_V, W_O matrices."""

    def on_sequences(self, tokens: int) -> Network:
        """The network on sequences of that many inputs that other forms are made of."""
        return self.as_self_attention(tokens)

    def to_stock_attention(self, tokens: int | None = None) -> nn.Module:
        """The same function of every token, (batch, tokens, inputs), as stock nn.MultiheadAttention and nn.Linear."""
        return to_stock_attention(self, tokens)

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
        """What a file holds beside the claim: the record of target and structure, and the numbers as they are now."""

    def exact(self, x: Tensor) -> Tensor:
        """The target itself, in torch, at the same inputs: no heads, no approximation."""
        raise InputError("This model's target cannot be looked into, so that there is nothing to compare it with.")

    def probe(self, x: Tensor) -> Probe:
        """Measures the error on x against the target, layer by layer; `.first` is the first that exceeds its share."""
        error = (self(x).double() - self.exact(x.double())).abs()
        bound = self.certificate.bound
        if not self.certificate.bounded:
            bound += self.certificate.rounding * (1 + float(x.abs().max())) if x.numel() else 0.0
        measured = float(error.max()) if error.numel() else 0.0
        return Probe((LayerProbe(1, self.certificate.expression, measured, bound),))

    def _apply(self, fn: Any, recurse: bool = True) -> CompiledModel:
        """`.to(device)` and the like; another dtype is refused, since the numbers would no longer be those proved."""
        for parameter in self.parameters():
            if fn(parameter.detach()[..., :0].clone()).dtype != parameter.dtype:
                raise PrecisionError(
                    f"This model was proved for {parameter.dtype}, and rounding its numbers would break the proof. "
                    "Compile "
                    "it again with the dtype that you want, dtype=torch.float32 or torch.float64."
                )
        super()._apply(fn, recurse)
        return self

    def __str__(self) -> str:
        cost = self.resources
        return (
            f"{self.certificate}\n{cost.layers} layers, {cost.heads} heads, {cost.keys} keys, {cost.parameters} "
            f"parameters, beta {cost.beta:.4g}, logits up to {cost.logit_range:.4g}"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one safetensors file that holds all that `ah.load` and `ah.verify` need."""
        record, arrays = self.payload()
        claimed = replace(self._claimed, level=self.certificate.level)
        save(record | {"method": self.method}, arrays, claimed, path)
