"""The paper's two-layer network (`theorems/two_layer.py`) behind a map of a box to the unit cube."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anchorhead.circuit.step import Pair
from anchorhead.errors import InputError
from anchorhead.model.affine import PositionGain
from anchorhead.model.core import Core, Literal, require_tokens, shaped, stored
from anchorhead.model.network import Network, Resources
from anchorhead.proof.certificate import Certificate


class TwoLayerCore(Core):
    """A look-up in two layers: (..., *input_shape) to (..., *output_shape).

    network: a look-up on the unit cube, for sequences of one token that has all inputs as its features.
    """

    kind = "two_layer"
    network: Any

    def __init__(
        self, network: Network, box: Sequence[Pair], input_shape: tuple[int, ...], output_shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.network = network
        self.network.outside = "ignore"  # the model looks, in the units of its own box
        self.input_shape, self.output_shape = input_shape, output_shape
        low, high = torch.tensor(box, dtype=torch.float64).T
        gain = 1 / (high - low)
        self.scale = PositionGain(gain[None].to(self.dtype), (-low * gain)[None].to(self.dtype))

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = self.network.dtype
        return found

    def scaled(self, x: Tensor) -> Tensor:
        """The inputs as one token each, on the unit cube."""
        return self.scale(self.flat(x).unsqueeze(-2))

    def forward(self, x: Tensor) -> Tensor:
        return shaped(self.network(self.scaled(x)).squeeze(-2), self.output_shape)

    def literal(self) -> Literal:
        token, flat = nn.Unflatten(-1, (1, math.prod(self.input_shape))), nn.Flatten(-2)
        return Literal(self, nn.Sequential(token, copy.deepcopy(self.scale), self.network.literal(), flat))

    def attention(self, x: Tensor) -> list[Tensor]:
        """The weights of both layers, (..., heads, keys)."""
        return [weights.squeeze(-2) for weights in self.network.attention_weights(self.scaled(x))]

    def on_sequences(self, tokens: int) -> Network:
        """The map to the unit cube and the network behind it, which is matrices on one token already."""
        if require_tokens(tokens) != 1:
            raise InputError(f"tokens={tokens!r} was asked for, and this network is built for sequences of 1.")
        return Network([self.scale, *self.network.stages], self.network.size)

    def resources(self, certificate: Certificate) -> Resources:
        found: Resources = self.network.resources
        return found

    @property
    def largest_value(self) -> float:
        return float(self.network.lookup.values.abs().max())

    def payload(self, certificate: Certificate) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        record = {
            "kind": self.kind,
            "name": certificate.expression[:200],
            "outputs": self.network.lookup.values.shape[-1],
            "levels": self.network.grid.levels,
            "input_shape": list(self.input_shape),
            "output_shape": list(self.output_shape),
        }
        return record, {f"state.{i}.numbers": stored(value) for i, value in enumerate(self.state_dict().values())}

    def __repr__(self) -> str:
        return f"two_layer, {self.network.grid.levels} levels"
